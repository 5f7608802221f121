"""Digits as they are, with more steps than in Table 1: the source alone, and ours at epsilon 10 from one release.

Steps after the release are free: they cost time and no privacy. The source alone is trained for as many steps in all.
"""

from pathlib import Path
from statistics import mean, stdev
from typing import Any

from experiments.adaptation.adaptation_cells import Cell, run_adaptation
from experiments.adaptation.adaptation_methods import PROBLEMS

HELP = "adaptation of digits as they are, with five times as many steps as in Table 1 (20 minutes; six with --quick)"

STEPS = (300, 1500)
NAMES = tuple(name for name in PROBLEMS if name.endswith("as they are"))
SEEDS, QUICK_SEEDS = 3, 1
METHODS = (("source only", None), ("DP-SWD, adapter", 10.0))


def run(out: Path, *, quick: bool = False, data: Path | None = None, workers: int | None = None) -> dict[str, Any]:
    """Run the missing cells; return one row per problem, method and number of steps."""
    keys = [(name, method, budget, steps) for name in NAMES for method, budget in METHODS for steps in STEPS]
    seeds = range(QUICK_SEEDS if quick else SEEDS)
    cells = [_cell(seed, *key) for seed in seeds for key in keys]
    found = run_adaptation(cells, data, out, workers)
    rows = []
    for i, (name, method, budget, steps) in enumerate(keys):
        same = found[i :: len(keys)]
        values = [row["accuracy"] for row in same]
        facts = {key: same[0].get(key) for key in ("delta", "mu", "sound")}
        row = {"dataset": name, "method": method, "epsilon": budget, **facts, "steps": steps}
        std = round(stdev(values), 2) if len(values) > 1 else None
        rows.append(row | {"mean": round(mean(values), 2), "std": std, "seeds": len(values)})
        print(f"{name:<24} {method:<16} {steps:>5} steps {rows[-1]['mean']} ± {std}")
    return {"rows": rows}


def _cell(seed: int, name: str, method: str, budget: float | None, steps: int) -> Cell:
    """The cell; with the number of steps of Table 1, ours is the cell of that table."""
    same = method != "source only" and steps == PROBLEMS[name].steps
    return Cell(name, seed, method, budget, None if same else steps)
