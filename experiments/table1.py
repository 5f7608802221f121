"""Table 1: domain adaptation, methods x problems, mean and standard deviation over seeds.

Digits in two protocols: framed alike (each image by itself: public knowledge) and as they are (scaled to 28 x 28, as in
the paper); Office-Caltech-10 in six pairs. Cells that were finished are kept under ``OUT/table1_cells`` and not run
again.
"""

import json
import logging
import multiprocessing
import os
import warnings
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from dpswd import __version__
from dpswd.files import write_json
from experiments.adaptation_methods import METHODS, PROBLEMS, make_start, run_method

HELP = "Table 1: private domain adaptation, 10 seeds (3 with --quick), epsilon 10 and 1; half an hour and more"

SEEDS, QUICK_SEEDS = 10, 3
_AS_THEY_ARE = 3  # seeds of the second protocol of digits
_WORKERS = 2
PUBLISHED = {"MNIST-USPS": 94.0, "USPS-MNIST": 83.4}  # Table 1 of the paper, DP-SWD at (10, 1e-5)


def silence() -> None:
    """Keeps Lightning from telling of every one of some hundred trainers."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    warnings.filterwarnings("ignore", module="opacus")
    warnings.filterwarnings("ignore", message="Full backward hook is firing")


def cell(name: str, seed: int, root: str | None, directory: Path) -> list[dict[str, Any]]:
    """Runs all methods on one problem from one start, or reads what was found before."""
    path = directory / f"{name.replace(', ', '_').replace(' ', '_')}_{seed}.json"
    if path.exists():
        content = json.loads(path.read_text())
        if content["version"] == __version__:
            return list(content["rows"])
    silence()
    torch.set_num_threads(1)
    start = make_start(PROBLEMS[name], seed, root)
    rows = [
        {"problem": name, "seed": seed, **run_method(start, method, epsilon)}
        for method, (_, budgets) in METHODS.items()
        for epsilon in budgets
    ]
    directory.mkdir(parents=True, exist_ok=True)
    write_json(path, {"version": __version__, "rows": rows})
    return rows


def _cell(arguments: tuple[str, int, str | None, Path]) -> list[dict[str, Any]]:
    return cell(*arguments)


def run(out: Path, *, quick: bool = False, data: Path | None = None) -> dict[str, Any]:
    """Runs what is missing, two cells at a time; returns one row per problem, method and budget."""
    seeds = QUICK_SEEDS if quick else SEEDS
    root = None if data is None else str(data)
    jobs = [
        (name, seed, root, out / "table1_cells")
        for seed in range(seeds)
        for name in PROBLEMS
        if not name.endswith("as they are") or seed < _AS_THEY_ARE
    ]
    workers = min(_WORKERS, os.cpu_count() or 1)
    found: list[dict[str, Any]] = []
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for rows in pool.imap(_cell, jobs):
            found += rows
            best = max(rows, key=lambda row: row["accuracy"])
            print(
                f"{rows[0]['problem']} seed {rows[0]['seed']}: {sum(row['seconds'] for row in rows):.0f} s, best "
                f"{best['method']} {best['accuracy']:.1f}",
                flush=True,
            )
    rows = summarise(found)
    for row in rows:
        budget = f"epsilon {row['epsilon']:g}" if row["epsilon"] else "no privacy"
        print(f"{row['dataset']:<24} {row['method']:<20} {budget:<11} {row['mean']} ± {row['std']}")
    return {"protocol": __doc__, "published": PUBLISHED, "rows": rows}


def summarise(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means and standard deviations over seeds, in the form of the accuracy tables."""
    rows = []
    for name in dict.fromkeys(row["problem"] for row in found):
        for method, (_, budgets) in METHODS.items():
            for budget in budgets:
                same = [r for r in found if (r["problem"], r["method"], r["budget"]) == (name, method, budget)]
                values = [row["accuracy"] for row in same]
                facts = same[0]
                rows.append(
                    {
                        "dataset": name,
                        "method": method,
                        "release": "quantiles" if method.startswith("DP-SWD,") else None,
                        "epsilon": budget,
                        "delta": facts.get("delta"),
                        "mu": facts.get("mu"),
                        "sound": facts.get("sound"),
                        "classifier": "encoder and head",
                        "mean": round(mean(values), 2),
                        "std": round(stdev(values), 2) if len(values) > 1 else None,
                        "seeds": len(values),
                        "train_seconds": round(mean(row["seconds"] for row in same), 1),
                    }
                )
    return rows
