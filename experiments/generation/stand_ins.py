"""What the default generator reaches on public benchmarks that were cut to N random training records.

Logistic regression on 10,000 synthetic records, tested on the test records; one seed. ``python -m experiments tables``
copies the rows into the package, where ``dpswd forecast`` reads them, and adds those of all records from ``run
generation`` (60,000 synthetic records, mean over its seeds).
"""

import math
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dpswd import PrivateGenerator
from dpswd.accounting.calibrate import mu_of_epsilon
from dpswd.networks.generator import draw
from experiments import cells
from experiments.generation.training import BENCHMARKS, DELTA, accuracies, load

SIZES = (300, 1000, 3000)
ALL = {
    "MNIST": 60_000,
    "FashionMNIST": 60_000,
    "USPS": 7291,
    "digits": 1438,
    "CIFAR10": 50_000,
}  # training records
BUDGETS = (10.0, 1.0)
_N_SYNTHETIC = 10_000
_N_CLASSES = 10


@dataclass(frozen=True)
class Cell(cells.Cell):
    """``size`` random training records of a data set, and a budget."""

    dataset: str
    size: int
    epsilon: float


def run(out: Path, *, quick: bool = False, data: Path | None = None) -> dict[str, Any]:
    """Logistic regression on synthetic records of benchmarks cut to N records (ten minutes; resumes)."""
    planned = [
        Cell(name, size, epsilon)
        for name in BENCHMARKS
        for size in SIZES
        if size <= ALL[name]
        for epsilon in BUDGETS
    ]
    chosen = [Cell("digits", 300, 10.0)] if quick else planned
    return {"rows": cells.run_cells(chosen, partial(measure, data=data), out / "stand_ins")}


def measure(cell: Cell, data: Path | None = None) -> dict[str, Any]:
    """Fit the default generator and trains the classifier."""
    source = load(cell.dataset, data)
    order = torch.randperm(len(source.train), generator=torch.Generator().manual_seed(0))
    records = source.train.select(order[: cell.size])
    with tempfile.TemporaryDirectory() as directory:
        estimator = PrivateGenerator(
            cell.epsilon, DELTA, run_dir=Path(directory) / "run", verbose=False
        )
        estimator.fit(records.private(classes=source.classes))
        labels = torch.arange(_N_SYNTHETIC) % _N_CLASSES
        images = draw(estimator.generator_, labels)
    found = accuracies(["logreg"], images, labels, source)["logreg"]
    return _row(cell.dataset, source.shape[0], cell.size, cell.epsilon, found)


def of_all_records(row: dict[str, Any]) -> dict[str, Any]:
    """Make a row of this experiment from one of ``run generation``."""
    return _row(
        row["dataset"],
        3 if row["dataset"] == "CIFAR10" else 1,
        ALL[row["dataset"]],
        row["epsilon"],
        row["mean"],
    )


def _row(dataset: str, channels: int, size: int, epsilon: float, found: float) -> dict[str, Any]:
    return {
        "dataset": dataset,
        "channels": channels,
        "n_records": size,
        "epsilon": epsilon,
        "delta": DELTA,
        "signal": round(mu_of_epsilon(epsilon, DELTA) * size / math.sqrt(_N_CLASSES), 2),
        "accuracy": round(found, 1),
    }
