"""What costs accuracy where only the encoder may move: the noise, the age of releases, or the gradient that is stopped?

Digits as they are, features of the encoder, one weight (0.01) for all rows. From the unprotected method to the sound
one, a step at a time; then the adapter, which needs no moving encoder.
"""

from pathlib import Path
from statistics import mean
from typing import Any

import torch

from dpswd.lightning.budget import PrivacyBudget
from experiments.adaptation.adaptation_methods import PROBLEMS, NoNoise, Start, make_module, make_start, train_module
from experiments.cells import silence
from models.adaptation import accuracy, source_batches
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
    """Accuracy after one of the steps."""
    torch.manual_seed(1000 + start.seed)
    problem = start.problem
    if step == "source only":
        return accuracy(start.module, start.test)
    if step == "both branches":
        encoder, classifier = start.parts()
        source = source_batches(start.data.source_loader(), start.module.n_classes)
        target = raw_batches(start.data.private, problem.batch)
        fit_unprotected(
            encoder, classifier, SWDTerm(), source, target, steps=problem.steps, weight=WEIGHT, lr=problem.lr
        )
        return start.score(encoder, classifier)
    budget = PrivacyBudget(EPSILON, problem.delta)
    if step == "adapter":
        return float(train_module(make_module(start), start, budget)["accuracy"])
    looks = 60 if "60" in step else 10
    module = make_module(
        start,
        adapter=None,
        space=None,
        n_projections=None,
        release_every=problem.steps // looks,
        alignment=WEIGHT,
    )
    return float(train_module(module, start, budget if "noise" in step else NoNoise())["accuracy"])


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
