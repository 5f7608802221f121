"""Rakotomamonjy2021, Table 1 and Figure 3: domain adaptation, methods x problems, mean and deviation over seeds.

Digits in two protocols: framed alike (each image by itself, which is public knowledge) and as they are (scaled to
28 x 28); Office-Caltech-10 in six pairs. ``OUT/adaptation_cells`` holds one file for each finished cell: a method with
its budget, on a problem, with a seed. All methods of a problem and seed start from the same network, and
:func:`~experiments.adaptation.adaptation_methods.run_method` seeds each method by itself, so that the experiments share
their cells.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from experiments import cells
from experiments.adaptation.adaptation_methods import (
    METHODS,
    PROBLEMS,
    Start,
    make_start,
    run_method,
)
from experiments.plots import figure

SEEDS, FEW, ONE = 10, 3, 1  # of Table 1; of digits as they are, and of the others; with --quick
WANTED = tuple((method, budget) for method, (_, budgets) in METHODS.items() for budget in budgets)
OURS = ("DP-SWD, adapter", 10.0)
COMPARED = (
    ("source only", None),
    ("SWD", None),
    ("SWD, adapter", None),
    ("DP-DANN", 10.0),
    ("DP-SWD, adapter", 1.0),
)
PUBLISHED = {"MNIST-USPS": 94.0, "USPS-MNIST": 83.4}  # Table 1 of the paper, DP-SWD at (10, 1e-5)
DIGITS = tuple(name for name in PROBLEMS if "MNIST" in name)
AS_THEY_ARE = tuple(name for name in DIGITS if name.endswith("as they are"))
EPSILONS, FEW_EPSILONS = (0.5, 1.0, 2.0, 5.0, 10.0), (0.5, 10.0)


@dataclass(frozen=True)
class Cell(cells.Cell):
    """A method with its budget on a problem."""

    problem: str
    seed: int
    method: str
    budget: float | None


@functools.lru_cache(maxsize=1)  # the methods of a problem and seed follow each other
def _start(problem: str, seed: int, root: str | None) -> Start:
    return make_start(PROBLEMS[problem], seed, root)


def run_adaptation(wanted: Sequence[Cell], root: Path | None, out: Path) -> list[dict[str, Any]]:
    """Run the missing cells; return the result of each, in their order."""
    work = partial(_work, root=None if root is None else str(root))
    return cells.run_cells(wanted, work, out / "adaptation_cells")


def _work(cell: Cell, root: str | None) -> dict[str, Any]:
    start = _start(cell.problem, cell.seed, root)
    facts = {"problem": cell.problem, "seed": cell.seed}
    return {**facts, **run_method(start, cell.method, cell.budget)}


def summarise(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means and standard deviations over seeds, in the form of the accuracy tables."""
    rows = []
    groups = cells.grouped(
        found, lambda result: (result["problem"], result["method"], result["budget"])
    )
    for (problem, method, budget), same in groups.items():
        row: dict[str, Any] = {"dataset": problem, "method": method, "epsilon": budget}
        row["statistic"] = "quantiles" if method.startswith("DP-SWD,") else None
        row |= {name: same[0].get(name) for name in ("delta", "mu", "sound", "conditions")}
        row |= {
            "classifier": "encoder and head",
            "train_seconds": round(mean(each["seconds"] for each in same), 1),
        }
        rows.append(row | cells.averaged([each["accuracy"] for each in same], 2))
    return rows


def table1(out: Path, *, quick: bool = False, data: Path | None = None) -> dict[str, Any]:
    """Table 1: private domain adaptation, 10 seeds (3 with --quick), epsilon 10 and 1 (an hour; resumes)."""
    wanted = [
        Cell(name, seed, method, budget)
        for seed in range(FEW if quick else SEEDS)
        for name in PROBLEMS
        if name not in AS_THEY_ARE or seed < FEW
        for method, budget in WANTED
        if name in AS_THEY_ARE or not method.startswith("image map")
    ]
    found = run_adaptation(wanted, data, out)
    return {"published": PUBLISHED, "rows": summarise(found), "comparisons": compare(found)}


def compare(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ours minus others, seed by seed from the same start: mean, and its standard error. One row per problem and other.

    The six pairs of Office-Caltech-10 are averaged within a seed first.
    """
    values: dict[tuple[str, str, float | None], dict[int, list[float]]] = {}
    for row in found:
        group = row["problem"] if "MNIST" in row["problem"] else "Office-Caltech-10"
        by_seed = values.setdefault((group, row["method"], row["budget"]), {})
        by_seed.setdefault(row["seed"], []).append(row["accuracy"])
    rows = []
    for group in dict.fromkeys(key[0] for key in values):
        ours = values[group, *OURS]
        for method, budget in COMPARED:
            theirs = values[group, method, budget]
            gaps = [mean(ours[seed]) - mean(theirs[seed]) for seed in ours]
            error = round(stdev(gaps) / len(gaps) ** 0.5, 2) if len(gaps) > 1 else None
            row = {"dataset": group, "method": method, "epsilon": budget, "seeds": len(gaps)}
            rows.append(
                row | {"gap": round(mean(gaps), 2) + 0.0, "standard_error": error}
            )  # no minus zero
    return rows


def fig3(out: Path, *, quick: bool = False, data: Path | None = None) -> dict[str, Any]:
    """Figure 3: adaptation accuracy against epsilon from 0.5 to 10, three seeds (one with --quick)."""
    keys: list[tuple[str, float | None]] = [("source only", None)]
    keys += [
        (method, epsilon)
        for method in (OURS[0], "DP-DANN")
        for epsilon in (FEW_EPSILONS if quick else EPSILONS)
    ]
    keys += [key for key in WANTED if key[0].startswith("image map")]
    wanted = [
        Cell(name, seed, *key)
        for seed in range(ONE if quick else FEW)
        for name in DIGITS
        for key in keys
        if key[0] in ("source only", OURS[0])
        or name in AS_THEY_ARE  # framed, DP-DANN hardly differs from the source
    ]
    rows = summarise(run_adaptation(wanted, data, out))
    _draw(rows, out / "fig3.png")
    return {"rows": rows}


def _draw(rows: list[dict[str, Any]], path: Path) -> None:
    styles = {"DP-SWD, adapter": "o-", "DP-DANN": "s--", "source only": ":"}
    images = {"synthetic target": "D-", "real target": "-.", "source only": "--"}
    styles |= {f"image map, {name}": style for name, style in images.items()}
    protocols = {"framed alike": ("tab:blue", ""), "as they are": ("tab:orange", ", as they are")}
    groups = cells.grouped(rows, lambda row: (row["dataset"], row["method"]))
    with figure(path, 9, 4.6, 1, 2, dpi=100, sharey=True) as panels:
        for axes, pair in zip(panels, PUBLISHED, strict=True):
            for protocol, (colour, suffix) in protocols.items():
                for method, style in styles.items():
                    part = sorted(
                        groups.get((pair + suffix, method), ()), key=lambda row: row["epsilon"] or 0
                    )
                    label = f"{method}, {protocol}"
                    if part and part[0]["epsilon"] is None:
                        axes.axhline(part[0]["mean"], color=colour, linestyle=style, label=label)
                    elif part:
                        x, y, spread = (
                            [row[key] or 0.0 for row in part] for key in ("epsilon", "mean", "std")
                        )
                        axes.errorbar(x, y, spread, fmt=style, color=colour, capsize=2, label=label)
            axes.set(xscale="log", xlabel="epsilon", title=pair)
            axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
            axes.minorticks_off()
        panels[0].set_ylabel("accuracy on the target's test set, %")
        handles = panels[0].get_legend_handles_labels()
        panels[0].figure.legend(*handles, loc="outside lower center", ncols=3, fontsize=8)


EXPERIMENTS = (table1, fig3)
