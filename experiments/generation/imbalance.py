"""Two classes in proportions 9 : 1: what the rule for the covariance of a rare class, and noise in training, are worth.

Digits (classes 0 to 4 against 5 to 9), on which both were chosen; Fashion-MNIST likewise and grey faces of women
against men, on which nothing was chosen. Classifiers are trained on 4,000 synthetic records, half of them of the rare
class, or on as many draws of the real ones; the figure is their balanced accuracy on all test records, a mean over
seeds.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpswd.data import Benchmark
from dpswd.mixture import moments
from dpswd.networks.generator import draw
from dpswd.records import Records
from experiments import cells
from experiments.generation.imagebench import TASKS, faces
from experiments.generation.training import SHIPPED, accuracies, load, train_mixture

KEPT = {"digits": 800, "USPS": 4000, "MNIST": 4000, "FashionMNIST": 4000, "faces": 2500}  # records
BUDGETS, SEEDS = (10.0, 1.0), 3
CLASSIFIERS = ("logreg", "cnn")
NOISE = 0.2  # standard deviation of what is added to pixels in [0, 1]
_N_SYNTHETIC = 4000


@dataclass(frozen=True)
class Cell(cells.Cell):
    """A data set, a budget or ``None`` for the real records, whether the rule holds, and a seed."""

    dataset: str
    epsilon: float | None
    ruled: bool
    seed: int


def run(out: Path, *, quick: bool = False, data: Path | None = None) -> dict[str, Any]:
    """Balanced accuracy where one of two classes is rare (a quarter of an hour; resumes)."""
    settings = [(epsilon, ruled) for epsilon in BUDGETS for ruled in (False, True)] + [
        (None, False)
    ]
    planned = [
        Cell(name, *setting, seed) for name in KEPT for setting in settings for seed in range(SEEDS)
    ]
    planned = planned[:1] if quick else planned
    found = cells.run_cells(planned, partial(measure, data=data), out / "imbalance")
    groups = cells.grouped(zip(planned, found, strict=True), lambda pair: replace(pair[0], seed=0))
    rows = []
    for cell, same in groups.items():
        for method in same[0][1]:
            facts = {"dataset": cell.dataset, "epsilon": cell.epsilon, "method": method}
            rows += cells.by_classifier([{"accuracy": each[method]} for _, each in same], facts)
    return {"rows": rows}


def measure(cell: Cell, data: Path | None = None) -> dict[str, dict[str, float]]:
    """Return balanced accuracies in percent of training on synthetic records, by method, or on the real ones."""
    loaded = two_classes(cell.dataset, data)
    n, labels = KEPT[cell.dataset], loaded.train.labels
    torch.manual_seed(cell.seed)
    order = torch.randperm(len(labels))
    frequent, rare = order[labels[order] == 0][: n * 9 // 10], order[labels[order] == 1][: n // 10]
    drawn = torch.arange(_N_SYNTHETIC) % 2

    def score(images: Tensor) -> dict[str, float]:
        return accuracies(CLASSIFIERS, images, drawn, loaded, "balanced_accuracy")

    if cell.epsilon is None:
        half = _N_SYNTHETIC // 2
        index = torch.stack(
            [frequent[torch.arange(half) % len(frequent)], rare[torch.arange(half) % len(rare)]], 1
        )
        return {"real records": score(loaded.train.floats(index.flatten()))}
    records = loaded.train.select(torch.cat([frequent, rare])).private(classes=[0, 1])
    constants = SHIPPED.get(cell.dataset, TASKS["faces"].constants)
    rare = moments.RARE if cell.ruled else 0.0
    made = train_mixture(records, constants, epsilon=cell.epsilon, seed=cell.seed, rare=rare)
    images = draw(made.generator, drawn)
    if not cell.ruled:
        return {"as released": score(images)}
    return {
        "by the rule": score(images),
        "and noise": score(images + NOISE * torch.randn_like(images)),
    }


def two_classes(dataset: str, data: Path | None) -> Benchmark:
    """Return a data set with the classes 0 and 1."""
    found = faces(data) if dataset == "faces" else load(dataset, data)
    assert found.test is not None

    def change(part: Records) -> Records:
        if dataset == "faces":
            return replace(part, values=part.values.float().mean(1, keepdim=True).byte())
        return replace(part, labels=(part.labels >= 5).long())

    return replace(found, train=change(found.train), test=change(found.test))
