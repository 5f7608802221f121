"""Price of ``sample(spread=...)``: one generator, several factors."""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import mean

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
    planned = [Cell(name, seed) for name in DATASETS for seed in range(N_SEEDS)]
    if quick:
        planned = planned[:1]
    work = partial(evaluate, data=data)
    results = cells.run_cells(planned, work, out / "spread", version=_version)
    rows: list[Row] = []
    for of_dataset in cells.grouped(results, lambda result: result["dataset"]).values():
        rows += _averaged(of_dataset)
    return {"rows": rows}


def _averaged(results: list[Result]) -> list[Row]:
    """Average over the seeds of a data set: a row for each spread and classifier."""
    all_draws = [result.pop("draws") for result in results]
    rows: list[Row] = []
    for draws in zip(*all_draws, strict=True):  # of one spread, a draw for each seed
        row = results[0] | {"spread": draws[0]["spread"]}
        row["frechet"] = mean(draw_of_seed["frechet"] for draw_of_seed in draws)
        rows += cells.by_classifier(draws, row)
    return rows


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
