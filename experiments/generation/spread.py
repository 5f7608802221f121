"""Price of ``sample(spread=...)``: one generator, several factors."""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

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

N_SYNTHETIC = 20_000
EPSILON = 10.0
SPREADS = (1.0, 0.8, 0.6)
CLASSIFIERS = ("logreg", "cnn")
DATASETS = ("digits", "USPS")


@dataclass(frozen=True)
class Cell(cells.Cell):
    """One generator."""

    dataset: str
    seed: int


def run(out: Path, *, quick: bool = False, data: Path | None = None) -> Result:
    """Price of draws nearer to the means of cells (ten minutes; resumes)."""
    planned = [Cell(name, 0) for name in DATASETS]
    if quick:
        planned = planned[:1]
    work = partial(evaluate, data=data)
    results = cells.run_cells(planned, work, out / "spread", version=_version)
    rows: list[Row] = []
    for result in results:
        draws = result.pop("draws")
        for spread_draw in draws:
            row = result | {"spread": spread_draw["spread"], "frechet": spread_draw["frechet"]}
            rows += cells.by_classifier([spread_draw], row)
    return {"rows": rows}


def _version(cell: Cell) -> list[str | float]:
    """Return what a cell depends on."""
    return [constants_digest(SHIPPED[cell.dataset]), N_SYNTHETIC, *SPREADS]


def evaluate(cell: Cell, data: Path | None) -> Result:
    """Fit a generator; return accuracies and Fréchet distance for every factor."""
    loaded = load(cell.dataset, data)
    assert loaded.test is not None
    real = loaded.test.floats()
    trained = train_mixture(
        loaded.private(), SHIPPED[cell.dataset], epsilon=EPSILON, seed=cell.seed
    )
    assert trained.privacy.sound is True
    labels = torch.arange(N_SYNTHETIC) % loaded.n_classes
    draws = []
    for spread in SPREADS:
        torch.manual_seed(cell.seed)
        images = draw(trained.generator, labels, spread)
        draws.append(
            {
                "spread": spread,
                "frechet": fidelity(real, images[: len(real)])["frechet"],
                "accuracy": accuracies(CLASSIFIERS, images, labels, loaded),
            }
        )
    return {
        "dataset": cell.dataset,
        "epsilon": EPSILON,
        **asdict(trained.privacy),
        "draws": draws,
    }
