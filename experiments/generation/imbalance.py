"""Two classes in proportions 9 : 1: what the rule for the covariance of a rare class is worth.

Digits (classes 0 to 4 against 5 to 9), on which the rule was chosen; Fashion-MNIST likewise and grey faces of women
against men, on which it was confirmed. Classifiers are trained on 4,000 synthetic records, half of them of the rare
class; the figure is their balanced accuracy on all test records, a mean over seeds.
"""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from dpswd.data import Benchmark
from dpswd.generators import draw
from dpswd.mixture import moments
from dpswd.records import Records
from experiments import cells
from experiments.generation.imagebench import TASKS, faces
from experiments.generation.training import SHIPPED, accuracies, load, train_mixture

KEPT = {"digits": 800, "USPS": 4000, "MNIST": 4000, "FashionMNIST": 4000, "faces": 2500}  # records
BUDGETS, SEEDS = (10.0, 1.0), 3
CLASSIFIERS = ("logreg", "cnn")
_N_SYNTHETIC = 4000


@dataclass(frozen=True)
class Cell(cells.Cell):
    """A data set, a budget, whether the rule holds, and a seed."""

    dataset: str
    epsilon: float
    ruled: bool
    seed: int


def run(out: Path, *, quick: bool = False, data: Path | None = None) -> dict[str, Any]:
    """Balanced accuracy where one of two classes is rare (ten minutes; resumes)."""
    settings = [(name, epsilon, ruled) for name in KEPT for epsilon in BUDGETS for ruled in (False, True)]
    planned = [
        Cell(*setting, seed) for setting in settings[: 2 if quick else None] for seed in range(1 if quick else SEEDS)
    ]
    found = cells.run_cells(planned, partial(measure, data=data), out / "imbalance")
    groups = cells.grouped(zip(planned, found, strict=True), lambda pair: replace(pair[0], seed=0))
    rows = []
    for cell, same in groups.items():
        how = "by the rule" if cell.ruled else "as released"
        facts = {"dataset": cell.dataset, "epsilon": cell.epsilon, "covariance": how}
        for name in CLASSIFIERS:
            rows.append(facts | {"classifier": name} | cells.averaged([each[name] for _, each in same]))
    return {"rows": rows}


def measure(cell: Cell, data: Path | None = None) -> dict[str, Any]:
    """Fit the generator and return the balanced accuracies in percent."""
    loaded = two_classes(cell.dataset, data)
    n, labels = KEPT[cell.dataset], loaded.train.labels
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(cell.seed))
    kept = torch.cat([order[labels[order] == 0][: n * 9 // 10], order[labels[order] == 1][: n // 10]])
    records = loaded.train.select(kept).private(classes=[0, 1])
    constants = SHIPPED.get(cell.dataset, TASKS["faces"].constants)
    with nullcontext() if cell.ruled else patch.object(moments, "RARE", 0.0):
        made = train_mixture(records, constants, epsilon=cell.epsilon, seed=cell.seed)
    drawn = torch.arange(_N_SYNTHETIC) % 2
    return accuracies(CLASSIFIERS, draw(made.generator, drawn), drawn, loaded, "balanced_accuracy")


def two_classes(dataset: str, data: Path | None) -> Benchmark:
    """Return a data set with the classes 0 and 1."""
    found = faces(data) if dataset == "faces" else load(dataset, data)
    assert found.test is not None

    def change(part: Records) -> Records:
        if dataset == "faces":
            return replace(part, values=part.values.float().mean(1, keepdim=True).byte())
        return replace(part, labels=(part.labels >= 5).long())

    return replace(found, train=change(found.train), test=change(found.test))
