"""Price of ``sample(spread=...)``: one generator per data set and seed, drawn with several factors."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
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

N_SYNTHETIC, EPSILON = 20_000, 10.0
SPREADS = (1.0, 0.8, 0.6)
CLASSIFIERS = ("logreg", "cnn")
DATASETS = ("digits", "USPS")


@dataclass(frozen=True)
class Cell(cells.Cell):
    """One generator."""

    dataset: str
    seed: int


def evaluate(cell: Cell, data: Path | None) -> dict[str, Any]:
    """Fit a generator; return accuracies and Fréchet distance of its draws for every factor."""
    loaded = load(cell.dataset, data)
    assert loaded.test is not None
    made = train_mixture(loaded.private(), SHIPPED[cell.dataset], epsilon=EPSILON, seed=cell.seed)
    assert made.facts["sound"] is True
    labels, real, draws = torch.arange(N_SYNTHETIC) % 10, loaded.test.floats(), []
    for spread in SPREADS:
        torch.manual_seed(cell.seed)
        images = draw(made.generator, labels, spread)
        distance = fidelity(real, images[: len(real)])["frechet"]
        found = accuracies(CLASSIFIERS, images, labels, loaded)
        draws.append({"spread": spread, "frechet": distance, "accuracy": found})
    return {"dataset": cell.dataset, "epsilon": EPSILON, **made.facts, "draws": draws}


def run(out: Path, *, quick: bool = False, data: Path | None = None) -> dict[str, Any]:
    """Measure what draws nearer to the means of cells cost in accuracy and distance (ten minutes; resumes)."""
    planned = [Cell(name, 0) for name in DATASETS][: 1 if quick else None]

    def version(cell: Cell) -> list[Any]:
        return [constants_digest(SHIPPED[cell.dataset]), N_SYNTHETIC, *SPREADS]

    rows = []
    for found in cells.run_cells(
        planned, partial(evaluate, data=data), out / "spread", version=version
    ):
        for each in found.pop("draws"):
            rows += cells.by_classifier(
                [each], found | {"spread": each["spread"], "frechet": each["frechet"]}
            )
    return {"rows": rows}
