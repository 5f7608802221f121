"""Two classes in proportions 9 : 1: worth of a rule, and of noise.

The rule is that for the covariance of a rare class; the noise is added to pixels in training.
Digits (classes 0 to 4 against 5 to 9), on which both were chosen; Fashion-MNIST likewise and grey
faces of women against men, on which nothing was chosen. Classifiers are trained on 4,000 synthetic
records, half of them of the rare class, or on as many draws of the real ones; the figure is their
balanced accuracy on all test records, a mean over seeds.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from dpswd.data import Benchmark
from dpswd.mixture import moments
from dpswd.networks.generator import draw, with_training_noise
from dpswd.records import Records
from experiments import cells
from experiments.generation.imagebench import TASKS, faces
from experiments.generation.training import SHIPPED, accuracies, load, train_mixture
from experiments.results import Result, Row

N_RECORDS = {"digits": 800, "USPS": 4000, "MNIST": 4000, "FashionMNIST": 4000, "faces": 2500}
BUDGETS = (10.0, 1.0)
N_SEEDS = 3
CLASSIFIERS = ("logreg", "cnn")
N_SYNTHETIC = 4000


@dataclass(frozen=True)
class Cell(cells.Cell):
    """A data set with a budget, ``None`` for the real records.

    ``ruled`` says whether the rule holds.
    """

    dataset: str
    epsilon: float | None
    ruled: bool
    seed: int


def run(
    out: Path, *, quick: bool = False, data: Path | None = None, seeds: int = N_SEEDS
) -> Result:
    """Balanced accuracy where one of two classes is rare (5 minutes a seed; resumes)."""
    planned = plan(seeds)
    if quick:
        planned = planned[:1]
    results = cells.run_cells(planned, partial(measure, data=data), out / "imbalance")
    of_setting: dict[Cell, list[Result]] = {}
    for cell, result in zip(planned, results, strict=True):
        of_setting.setdefault(replace(cell, seed=0), []).append(result)
    rows: list[Row] = []
    for cell, seed_results in of_setting.items():
        for method in seed_results[0]:
            row = {"dataset": cell.dataset, "epsilon": cell.epsilon, "method": method}
            accuracies_of_seeds = [{"accuracy": result[method]} for result in seed_results]
            rows += cells.by_classifier(accuracies_of_seeds, row)
    return {"rows": rows}


def plan(n_seeds: int) -> list[Cell]:
    """List the cells: synthetic records at both budgets, and real ones.

    Synthetic records are made without the rule and with it.
    """
    planned = []
    for name in N_RECORDS:
        for epsilon in BUDGETS:
            for ruled in (False, True):
                planned += [Cell(name, epsilon, ruled, seed) for seed in range(n_seeds)]
        planned += [Cell(name, None, False, seed) for seed in range(n_seeds)]
    return planned


def drawn_records(labels: Tensor, n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw n records, nine of class 0 for each one of class 1.

    Args:
        labels: Classes (N,), 0 and 1.
        n: Number of records that are drawn.
        seed: Of the draw.

    Returns:
        The numbers of the records of class 0, and of those of class 1.
    """
    torch.manual_seed(seed)
    order = torch.randperm(len(labels))
    frequent = order[labels[order] == 0][: n * 9 // 10]
    rare = order[labels[order] == 1][: n // 10]
    return frequent, rare


def measure(cell: Cell, data: Path | None = None) -> dict[str, dict[str, float]]:
    """Return balanced accuracies in percent by method.

    Classifiers are trained on synthetic records, or on the real ones.
    """
    loaded = two_classes(cell.dataset, data)
    frequent, rare = drawn_records(loaded.train.labels, N_RECORDS[cell.dataset], cell.seed)
    if cell.epsilon is None:
        images = loaded.train.floats(_alternating(frequent, rare))
        return {"real records": _score(images, loaded)}

    records = loaded.train.select(torch.cat([frequent, rare])).private(classes=[0, 1])
    rare_part = 0.0  # of the mean count, below which a class is rare: no class is
    if cell.ruled:
        rare_part = moments.RARE
    trained = train_mixture(
        records,
        SHIPPED.get(cell.dataset, TASKS["faces"].constants),
        epsilon=cell.epsilon,
        seed=cell.seed,
        rare=rare_part,
    )
    images = draw(trained.generator, _labels())
    if not cell.ruled:
        return {"as released": _score(images, loaded)}
    by_rule = _score(images, loaded)
    noisy = with_training_noise(images)
    return {"by the rule": by_rule, "and noise": _score(noisy, loaded)}


def _labels() -> Tensor:
    """Return the classes (N_SYNTHETIC,) of training records: 0, 1, 0, 1, ..."""
    return torch.arange(N_SYNTHETIC) % 2


def _score(images: Tensor, loaded: Benchmark) -> dict[str, float]:
    """Return balanced accuracies of training on images of both classes in turn."""
    return accuracies(CLASSIFIERS, images, _labels(), loaded, "balanced_accuracy")


def _alternating(first: Tensor, second: Tensor) -> Tensor:
    """Return N_SYNTHETIC numbers, of the first and the second in turn.

    Both are repeated as often as it takes.
    """
    place = torch.arange(N_SYNTHETIC // 2)
    pairs = torch.stack([first[place % len(first)], second[place % len(second)]], 1)
    return pairs.flatten()


def two_classes(dataset: str, data: Path | None) -> Benchmark:
    """Return a data set with the classes 0 and 1."""
    if dataset == "faces":
        loaded = faces(data)
        change = _grey
    else:
        loaded = load(dataset, data)
        change = _halves
    assert loaded.test is not None
    return replace(loaded, train=change(loaded.train), test=change(loaded.test))


def _grey(records: Records) -> Records:
    """Return images in grey."""
    return replace(records, values=records.values.float().mean(1, keepdim=True).byte())


def _halves(records: Records) -> Records:
    """Return records whose class is 1 for the classes 5 to 9."""
    return replace(records, labels=(records.labels >= 5).long())
