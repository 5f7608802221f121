"""Digits as they are, with more steps than in Table 1: the source alone, and ours at epsilon 10 from one release.

Steps after the release are free, so that more of them cost time and no privacy. The source alone is trained for as many
steps in all. One process; what was finished is kept under ``OUT/adaptation_cells`` and not run again; interrupted, it
reports the seeds that are complete.
"""

from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from dpswd.errors import InputError
from experiments.adaptation.adaptation_cells import cell
from experiments.adaptation.adaptation_methods import PROBLEMS, Problem

HELP = "adaptation of digits as they are, with five times as many steps as in Table 1 (20 minutes; six with --quick)"

STEPS = (300, 1500)
NAMES = tuple(name for name in PROBLEMS if name.endswith("as they are"))
SEEDS, QUICK_SEEDS = 3, 1
METHODS = (("source only", None), ("DP-SWD, adapter", 10.0))


def longer(problem: Problem, method: str, steps: int) -> Problem:
    """Returns a problem with ``steps`` steps beyond those of the start, for ours or for the source alone."""
    if method == "source only":
        return replace(problem, name=f"{problem.name}, source {steps} more", pretrain=problem.pretrain + steps)
    # as many as in Table 1: it is that problem, and its cell is that of the table
    name = problem.name if steps == problem.steps else f"{problem.name}, {steps} steps"
    return replace(problem, name=name, steps=steps)


def run(out: Path, *, quick: bool = False, data: Path | None = None) -> dict[str, Any]:
    """Runs what is missing, seed by seed; returns one row per problem, method and number of steps."""
    root = None if data is None else str(data)
    seeds: list[list[dict[str, Any]]] = []
    try:
        for seed in range(QUICK_SEEDS if quick else SEEDS):
            seeds.append(_one_seed(seed, root, out / "adaptation_cells"))
    except KeyboardInterrupt:
        if not seeds:
            raise InputError(
                "Expected at least one complete seed, got an interrupt before; what was finished is kept: run it again."
            ) from None
    rows = []
    for same in zip(*seeds, strict=True):
        values = [row["accuracy"] for row in same]
        facts = {name: same[0].get(name) for name in ("dataset", "method", "epsilon", "delta", "mu", "sound", "steps")}
        std = round(stdev(values), 2) if len(values) > 1 else None
        rows.append(facts | {"mean": round(mean(values), 2), "std": std, "seeds": len(values)})
    return {"rows": rows}


def _one_seed(seed: int, root: str | None, directory: Path) -> list[dict[str, Any]]:
    rows = []
    for name in NAMES:
        for method, budget in METHODS:
            for steps in STEPS:
                problem = longer(PROBLEMS[name], method, steps)
                (found,) = cell(problem.name, seed, [(method, budget)], root, directory, problem)
                rows.append({"epsilon": budget, **found, "dataset": name, "steps": steps})
                print(f"seed {seed}  {name:<24} {method:<16} {steps:>5} steps {found['accuracy']:.1f}", flush=True)
    return rows
