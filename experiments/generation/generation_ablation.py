"""Ablation of the default generator: one part left out at a time, and what is left without noise."""

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

SEEDS, N_SYNTHETIC = 3, 60_000
CLASSIFIERS = ("cnn",)
GREY, COLOUR = ("MNIST", "FashionMNIST"), ("CIFAR10",)
STILL = tuple((amount, 0.0) for amount in ("shift", "rotation", "zoom", "shear", "elastic"))


@dataclass(frozen=True)
class Part:
    """What is changed: public constants, or limits of the structure; on which data sets; with noise or without."""

    label: str
    datasets: tuple[str, ...] = (*GREY, *COLOUR)
    options: tuple[tuple[str, float], ...] = ()
    limits: tuple[tuple[str, int], ...] = ()  # options of the forecast
    epsilon: float | None = 10.0

    def __str__(self) -> str:
        return self.label


PARTS = (
    Part("as shipped"),
    Part("one cell per class", limits=(("max_cells", 1),)),
    Part("no tone curve", limits=(("max_levels", 0),)),
    Part("no jitter", GREY, STILL),
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


def evaluate(cell: Cell, data: Path | None) -> dict[str, Any]:
    """Train, generate, and return the row with its accuracies."""
    part, loaded = cell.part, load(cell.dataset, data)
    options = {"epsilon": part.epsilon, "seed": cell.seed, **dict(part.options)}
    made = train_mixture(
        loaded.private(), SHIPPED[cell.dataset], limits=dict(part.limits), **options
    )
    labels = torch.arange(N_SYNTHETIC) % 10
    images = draw(made.generator, labels)
    assert loaded.test is not None
    assert made.facts["sound"] is (True if part.epsilon else None)
    real, found = loaded.test.floats(), accuracies(CLASSIFIERS, images, labels, loaded)
    facts = {name: made.facts[name] for name in ("mu", "delta", "sound")}
    facts["frechet"] = fidelity(real, images[: len(real)])["frechet"]
    return {
        "dataset": cell.dataset,
        "change": part.label,
        "epsilon": part.epsilon,
        **facts,
        "accuracy": found,
    }


def run(
    out: Path, *, quick: bool = False, seeds: int = SEEDS, data: Path | None = None
) -> dict[str, Any]:
    """Measure what each part of the default generator brings, and what the noise costs (hours; resumes)."""
    planned = [
        Cell(dataset, part, seed)
        for seed in range(seeds)
        for part in PARTS
        for dataset in part.datasets
    ]

    def version(cell: Cell) -> list[Any]:
        part = cell.part
        return [
            constants_digest(SHIPPED[cell.dataset]),
            *map(list, part.options),
            *map(list, part.limits),
            part.epsilon,
        ]

    chosen = planned[: 1 if quick else None]
    found = cells.run_cells(
        chosen, partial(evaluate, data=data), out / "generation-ablation", version=version
    )
    return {"rows": summarise(found)}


def summarise(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Average over seeds: one row for each data set, part and classifier, with the mean Frechet distance."""
    groups = cells.grouped(results, lambda result: (result["dataset"], result["change"]))
    rows = []
    for dataset in (*GREY, *COLOUR):
        for found in (
            groups[dataset, part.label] for part in PARTS if (dataset, part.label) in groups
        ):
            facts = {key: value for key, value in found[0].items() if key != "accuracy"}
            rows += cells.by_classifier(
                found, facts | {"frechet": mean(result["frechet"] for result in found)}
            )
    return rows
