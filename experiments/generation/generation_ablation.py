"""Ablation of the default generator: one part left out at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from dpswd.networks.generator import draw
from experiments import cells
from experiments.generation.frechet import fidelity
from experiments.generation.training import (
    SHIPPED,
    accuracies,
    constants_digest,
    load,
    train_mixture,
)
from experiments.results import Result, Row

N_SEEDS = 3
N_SYNTHETIC = 60_000
CLASSIFIERS = ("cnn",)
GREY = ("MNIST", "FashionMNIST")
COLOUR = ("CIFAR10",)
DATASETS = (*GREY, *COLOUR)
NO_JITTER = (
    ("shift", 0.0),
    ("rotation", 0.0),
    ("zoom", 0.0),
    ("shear", 0.0),
    ("elastic", 0.0),
)


@dataclass(frozen=True)
class Part:
    """What is changed.

    Attributes:
        label: Name in the table.
        datasets: Data sets on which it is measured.
        options: Changed public constants with their values.
        limits: Options of the forecast, from which the structure follows.
        epsilon: Budget; ``None`` for no noise.
    """

    label: str
    datasets: tuple[str, ...] = DATASETS
    options: tuple[tuple[str, float], ...] = ()
    limits: tuple[tuple[str, int], ...] = ()
    epsilon: float | None = 10.0

    def __str__(self) -> str:
        return self.label


PARTS = (
    Part("as shipped"),
    Part("one cell per class", limits=(("max_cells", 1),)),
    Part("no tone curve", limits=(("max_levels", 0),)),
    Part("no jitter", GREY, NO_JITTER),
    Part("contrast of one", COLOUR, (("contrast", 0.0),)),
    Part("no frequencies but the released", COLOUR, (("residual_amplitude", 0.0),)),
    Part("without noise", epsilon=None),
)


@dataclass(frozen=True)
class Cell(cells.Cell):
    """One run."""

    dataset: str
    part: Part
    seed: int


def run(
    out: Path, *, quick: bool = False, seeds: int = N_SEEDS, data: Path | None = None
) -> Result:
    """Worth of each part of the generator, and cost of noise (hours; resumes)."""
    planned = plan(seeds)
    if quick:
        planned = planned[:1]
    work = partial(evaluate, data=data)
    results = cells.run_cells(planned, work, out / "generation-ablation", version=_version)
    return {"rows": summarise(results)}


def plan(n_seeds: int) -> list[Cell]:
    """List the cells, one seed after the other."""
    planned = []
    for seed in range(n_seeds):
        for part in PARTS:
            planned += [Cell(dataset, part, seed) for dataset in part.datasets]
    return planned


def _version(cell: Cell) -> list[Any]:
    """Return what a cell depends on."""
    part = cell.part
    changes = [list(change) for change in (*part.options, *part.limits)]
    return [constants_digest(SHIPPED[cell.dataset]), *changes, part.epsilon]


def evaluate(cell: Cell, data: Path | None) -> Result:
    """Train, generate, and return the row with its accuracies."""
    part = cell.part
    loaded = load(cell.dataset, data)
    assert loaded.test is not None
    real = loaded.test.floats()
    options: dict[str, Any] = dict(part.options)
    trained = train_mixture(
        loaded.private(),
        SHIPPED[cell.dataset],
        epsilon=part.epsilon,
        seed=cell.seed,
        limits=dict(part.limits),
        **options,
    )
    if part.epsilon is None:
        assert trained.privacy.sound is None
    else:
        assert trained.privacy.sound is True
    labels = torch.arange(N_SYNTHETIC) % loaded.n_classes
    images = draw(trained.generator, labels)
    accuracy = accuracies(CLASSIFIERS, images, labels, loaded)
    return {
        "dataset": cell.dataset,
        "change": part.label,
        "epsilon": part.epsilon,
        "mu": trained.privacy.mu,
        "delta": trained.privacy.delta,
        "sound": trained.privacy.sound,
        "frechet": fidelity(real, images[: len(real)])["frechet"],
        "accuracy": accuracy,
    }


def summarise(results: Sequence[Result]) -> list[Row]:
    """Average over seeds: a row for each data set, part and classifier.

    Rows are in the order of the data sets, then of the parts.
    """
    groups = cells.grouped(results, lambda result: (result["dataset"], result["change"]))
    rows = []
    for dataset in DATASETS:
        for part in PARTS:
            seed_results = groups.get((dataset, part.label), [])
            if not seed_results:
                continue
            row = dict(seed_results[0])
            del row["accuracy"]
            row["frechet"] = mean(result["frechet"] for result in seed_results)
            rows += cells.by_classifier(seed_results, row)
    return rows
