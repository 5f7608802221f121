"""The methods of Table 2: each trains on one data set with one budget and one seed, and can then generate.

==================  ==================================================================================  ==============
method              training                                                                            guarantee
==================  ==================================================================================  ==============
real records        none: classifiers are trained on real records                                       none
without noise       the shipped config without noise                                                    none
rows                noisy rows at every step                                                            exact
quantiles           noisy block means at every fifth step                                               exact
mixture             the shipped config: moments of all records, each released once                      exact
DP-MERF             Harder2021: noisy mean embedding                                                    exact
Gaussian            class-wise normal law with private count, mean and covariance                       exact
==================  ==================================================================================  ==============

Every method with a guarantee leaves a run directory that ``dpswd report`` reads.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpswd.budget import Budget
from dpswd.generators import draw
from dpswd.mixture.features import DCT
from experiments.generation.training import BENCHMARKS, SHIPPED, Made, load, train_mixture, train_network
from models.dp_merf import DPMERF
from models.gaussian import ClassGaussian
from models.networks import Table3Generator

__all__ = ["DATASETS", "DELTA", "GENERATED", "METHODS", "Cell", "Trained", "train"]

DATASETS = ("MNIST", "FashionMNIST")
GENERATED = tuple(BENCHMARKS)  # the last three in generation.py only
DELTA = 1e-5
STEPS = {"rows": (800, 4000), "quantiles": (400, 2000), "DP-MERF": (300, 1200)}  # quick, full
BUDGETS: tuple[float | None, ...] = (10.0, 1.0, 0.2)


@dataclass(frozen=True)
class Cell:
    """One training run of the table: at full length, or cut short."""

    dataset: str
    method: str
    epsilon: float | None
    seed: int
    full: bool = False

    @property
    def name(self) -> str:
        """Name of its file."""
        budget = "none" if self.epsilon is None else f"{self.epsilon:g}"
        return f"{self.dataset}-{self.method.replace(' ', '_')}-{budget}-{self.seed}"


@dataclass(frozen=True)
class Trained:
    """The result of training: a sampler (``None`` for real records), facts on the guarantee, and seconds."""

    sample: Callable[[Tensor], Tensor] | None
    facts: dict[str, Any]
    seconds: float


def _made(made: Made) -> Trained:
    return Trained(lambda labels: draw(made.generator, labels), made.facts, made.seconds)


def _steps(cell: Cell) -> int:
    """Training steps of the methods that take steps."""
    return STEPS[cell.method][cell.full]


def _mixture(cell: Cell, data: Path | None, directory: Path) -> Trained:
    records = load(cell.dataset, data).private()
    constants = SHIPPED[cell.dataset]
    return _made(train_mixture(records, constants, directory, epsilon=cell.epsilon, delta=DELTA, seed=cell.seed))


def _network(cell: Cell, data: Path | None, directory: Path, **options: Any) -> Trained:
    assert cell.epsilon is not None
    spent = {"epsilon": cell.epsilon, "delta": DELTA, "seed": cell.seed, "steps": _steps(cell)}
    return _made(train_network(load(cell.dataset, data).private(), directory, **spent, **options))


def _quantiles(cell: Cell, data: Path | None, directory: Path) -> Trained:
    return _network(cell, data, directory, batch_size=6000, every=5)


def _rows(cell: Cell, data: Path | None, directory: Path) -> Trained:
    return _network(cell, data, directory, batch_size=100, statistic="rows", generated=100)


def _dp_merf(cell: Cell, data: Path | None, directory: Path) -> Trained:
    started = time.monotonic()
    torch.manual_seed(cell.seed)
    model = DPMERF(Table3Generator(), n_frequencies=1000, lengthscale=6.0)
    assert cell.epsilon is not None
    budget = model.release(load(cell.dataset, data).private(), directory, cell.epsilon, DELTA)
    model.train_generator(_steps(cell))
    return Trained(_sampler(model.sample), _facts(budget), time.monotonic() - started)


def _gaussian(cell: Cell, data: Path | None, directory: Path) -> Trained:
    started = time.monotonic()
    torch.manual_seed(cell.seed)
    model = ClassGaussian(DCT((1, 28, 28), size=14, centre=0.13, radius=10.0))
    assert cell.epsilon is not None
    budget = model.fit(load(cell.dataset, data).private(), directory, cell.epsilon, DELTA)
    return Trained(_sampler(model.sample), _facts(budget), time.monotonic() - started)


def _real(cell: Cell, data: Path | None, directory: Path) -> Trained:
    return Trained(None, {"sound": None, "mu": None, "delta": None, "statistic": None}, 0.0)


def _facts(budget: Budget) -> dict[str, Any]:
    facts = budget.statement()
    return {"sound": facts["sound"], "mu": facts["mu"], "delta": facts["delta"], "statistic": "moments"}


def _sampler(sample: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def whole(labels: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat([sample(part) for part in labels.split(500)])

    return whole


METHODS: dict[str, tuple[Callable[[Cell, Path | None, Path], Trained], tuple[float | None, ...]]] = {
    "real records": (_real, (None,)),
    "without noise": (_mixture, (None,)),
    "rows": (_rows, BUDGETS),
    "quantiles": (_quantiles, BUDGETS),
    "mixture": (_mixture, BUDGETS),
    "DP-MERF": (_dp_merf, BUDGETS),
    "Gaussian": (_gaussian, BUDGETS),
}


def train(cell: Cell, data: Path | None, directory: Path) -> Trained:
    """Train one cell; a method with a guarantee makes ``directory`` its run directory, which must be new."""
    method, _ = METHODS[cell.method]
    return method(cell, data, directory)
