"""What costs accuracy where only the encoder may move: the noise, the age of releases, or the gradient that is stopped?

Digits as they are, features of the encoder, one weight (0.01) for all rows. From the unprotected method to the sound
one, a step at a time; then the adapter, which needs no moving encoder.
"""

from pathlib import Path
from statistics import mean
from typing import Any

import torch

from experiments.adaptation.adaptation_methods import FEATURES, PROBLEMS, Start, align, make_start
from experiments.cells import silence
from models.alignment import SWDTerm, fit_unprotected, raw_batches

HELP = "adaptation without an adapter: what costs accuracy, step by step (14 minutes; five with --quick)"

WEIGHT, EPSILON = 0.01, 10.0
STEPS = (
    "source only",
    "both branches",
    "source branch, 60 looks",
    "source branch, 10 looks",
    "... and noise",
    "adapter",
)


def one(start: Start, step: str) -> float:
    """Return the accuracy after one of the steps."""
    torch.manual_seed(1000 + start.seed)
    problem = start.problem
    if step == "source only":
        return start.score(*start.parts())
    if step == "both branches":
        encoder, classifier = start.parts()
        target = raw_batches(start.target, problem.batch)
        options: dict[str, Any] = {"steps": problem.steps, "weight": WEIGHT, "lr": problem.lr}
        fit_unprotected(encoder, classifier, SWDTerm(), start.source(), target, **options)
        return start.score(encoder, classifier)
    if step == "adapter":
        return float(align(start, EPSILON)["accuracy"])
    changes = FEATURES | {"n_releases": 60 if "60" in step else 10, "alignment": WEIGHT}
    return float(align(start, EPSILON if "noise" in step else None, **changes)["accuracy"])


def run(out: Path, *, quick: bool = False, data: Path | None = None) -> dict[str, Any]:
    """Return one row per problem and step."""
    silence()
    rows = []
    for name in [name for name in PROBLEMS if name.endswith("as they are")]:
        starts = [
            make_start(PROBLEMS[name], seed, None if data is None else str(data)) for seed in range(1 if quick else 3)
        ]
        for step in STEPS:
            values = [one(start, step) for start in starts]
            rows.append({"dataset": name, "step": step, "mean": round(mean(values), 1), "seeds": len(values)})
            print(f"{name:<24} {step:<24} {rows[-1]['mean']}", flush=True)
    return {"rows": rows}
