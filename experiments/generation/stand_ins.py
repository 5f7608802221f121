"""What the default generator reaches on benchmarks cut to N records.

Logistic regression on 10,000 synthetic records, tested on the test records; mean over the seeds,
which draw the N records.
``python -m experiments tables`` copies the rows into the package, where ``dpswd forecast`` reads
them, and adds those of all records from ``run generation`` (60,000 synthetic records, mean over its
seeds).
"""

import math
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean

import torch

from dpswd import PrivateGenerator
from dpswd.accounting.calibrate import mu_of_epsilon
from dpswd.networks.generator import draw
from experiments import cells
from experiments.generation.training import BENCHMARKS, DELTA, accuracies, load
from experiments.results import Result, Row

SIZES = (300, 1000, 3000)
N_TRAIN = {"MNIST": 60_000, "FashionMNIST": 60_000, "USPS": 7291, "digits": 1438, "CIFAR10": 50_000}
IN_COLOUR = ("CIFAR10",)
BUDGETS = (10.0, 1.0)
N_SYNTHETIC = 10_000
N_CLASSES = 10


@dataclass(frozen=True)
class Cell(cells.Cell):
    """``size`` random training records of a data set, and a budget."""

    dataset: str
    size: int
    epsilon: float
    seed: int = 0


def run(out: Path, *, seeds: int = 3, quick: bool = False, data: Path | None = None) -> Result:
    """Logistic regression on synthetic records of small sets (half an hour; resumes)."""
    settings = plan()
    if quick:
        settings = [("digits", 300, 10.0)]
        seeds = 1
    planned = [Cell(*setting, seed) for setting in settings for seed in range(seeds)]
    work = partial(measure, data=data)
    results = cells.run_cells(planned, work, out / "stand_ins")
    return {"rows": summarise(results)}


def plan() -> list[tuple[str, int, float]]:
    """List data set, number of records and epsilon of the cells of a seed.

    A data set has the sizes for which it has records.
    """
    planned = []
    for name in BENCHMARKS:
        for size in SIZES:
            if size <= N_TRAIN[name]:
                planned += [(name, size, epsilon) for epsilon in BUDGETS]
    return planned


def summarise(results: list[Result]) -> list[Row]:
    """Average the accuracies of the seeds: a row per data set, size and epsilon."""
    rows = []
    for seed_results in cells.grouped(results, _setting).values():
        accuracy = mean(result["accuracy"] for result in seed_results)
        row = seed_results[0] | {"accuracy": round(accuracy, 1), "seeds": len(seed_results)}
        rows.append(row)
    return rows


def _setting(result: Result) -> tuple[str, int, float]:
    """Return data set, number of records and epsilon of a result."""
    return result["dataset"], result["n_records"], result["epsilon"]


def measure(cell: Cell, data: Path | None = None) -> Row:
    """Fit the default generator and train the classifier."""
    source = load(cell.dataset, data)
    order = torch.randperm(len(source.train), generator=torch.Generator().manual_seed(cell.seed))
    records = source.train.select(order[: cell.size])
    with tempfile.TemporaryDirectory() as directory:
        estimator = PrivateGenerator(
            cell.epsilon, DELTA, run_dir=Path(directory) / "run", verbose=False
        )
        estimator.fit(records.private(classes=source.classes))
    labels = torch.arange(N_SYNTHETIC) % N_CLASSES
    images = draw(estimator.generator_, labels)
    accuracy = accuracies(["logreg"], images, labels, source)["logreg"]
    return _row(cell.dataset, cell.size, cell.epsilon, accuracy)


def of_all_records(row: Row) -> Row:
    """Make a row of this experiment from one of ``run generation``."""
    return _row(row["dataset"], N_TRAIN[row["dataset"]], row["epsilon"], row["mean"])


def _row(dataset: str, size: int, epsilon: float, accuracy: float) -> Row:
    """Return the row of a generator; its signal is that of a class mean."""
    channels = 1
    if dataset in IN_COLOUR:
        channels = 3
    signal = mu_of_epsilon(epsilon, DELTA) * size / math.sqrt(N_CLASSES)
    return {
        "dataset": dataset,
        "channels": channels,
        "n_records": size,
        "epsilon": epsilon,
        "delta": DELTA,
        "signal": round(signal, 2),
        "accuracy": round(accuracy, 1),
    }
