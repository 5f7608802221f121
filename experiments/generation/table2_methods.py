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

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpswd.budget import Budget
from dpswd.data import Benchmark
from dpswd.generators import draw
from dpswd.mixture.features import DCT
from experiments.generation.training import BENCHMARKS, DELTA, SHIPPED, Made, train_mixture, train_network
from models.dp_merf import DPMERF
from models.gaussian import ClassGaussian
from models.networks import Table3Generator

__all__ = ["BUDGETS", "DATASETS", "GENERATED", "METHODS", "Cell"]

DATASETS = ("MNIST", "FashionMNIST")
GENERATED = tuple(BENCHMARKS)  # of the experiment ``generation``
STEPS = {"rows": (800, 4000), "quantiles": (400, 2000), "DP-MERF": (300, 1200)}  # quick, full
BUDGETS: tuple[float | None, ...] = (10.0, 1.0, 0.2)

Trained = tuple[Callable[[Tensor], Tensor] | None, dict[str, Any]]  # sampler (None: real records), and guarantee


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

    @property
    def options(self) -> dict[str, Any]:
        """Budget and seed."""
        return {"epsilon": self.epsilon, "delta": DELTA, "seed": self.seed}


def _made(made: Made) -> Trained:
    return partial(draw, made.generator), made.facts


def _mixture(cell: Cell, loaded: Benchmark, directory: Path) -> Trained:
    return _made(train_mixture(loaded.private(), SHIPPED[cell.dataset], directory, **cell.options))


def _network(cell: Cell, loaded: Benchmark, directory: Path, **options: Any) -> Trained:
    options |= cell.options | {"steps": STEPS[cell.method][cell.full]}
    return _made(train_network(loaded.private(), directory, **options))


def _dp_merf(cell: Cell, loaded: Benchmark, directory: Path) -> Trained:
    torch.manual_seed(cell.seed)
    model = DPMERF(Table3Generator(), n_frequencies=1000, lengthscale=6.0)
    budget = model.release(loaded.private(), directory, cell.epsilon or 0.0, DELTA)
    model.train_generator(STEPS[cell.method][cell.full])
    return _sampler(model), _facts(budget)


def _gaussian(cell: Cell, loaded: Benchmark, directory: Path) -> Trained:
    torch.manual_seed(cell.seed)
    model = ClassGaussian(DCT((1, 28, 28), size=14, centre=0.13, radius=10.0))
    return _sampler(model), _facts(model.fit(loaded.private(), directory, cell.epsilon or 0.0, DELTA))


def _real(cell: Cell, loaded: Benchmark, directory: Path) -> Trained:
    return None, {"sound": None, "mu": None, "delta": None, "statistic": None}


def _facts(budget: Budget) -> dict[str, Any]:
    facts = budget.statement()
    return {"sound": facts["sound"], "mu": facts["mu"], "delta": facts["delta"], "statistic": "moments"}


def _sampler(model: DPMERF | ClassGaussian) -> Callable[[Tensor], Tensor]:
    return lambda labels: torch.cat([model.sample(part) for part in labels.split(500)])


METHODS: dict[str, tuple[Callable[[Cell, Benchmark, Path], Trained], tuple[float | None, ...]]] = {
    "real records": (_real, (None,)),
    "without noise": (_mixture, (None,)),
    "rows": (partial(_network, batch_size=100, statistic="rows", generated=100), BUDGETS),
    "quantiles": (partial(_network, batch_size=6000, every=5), BUDGETS),
    "mixture": (_mixture, BUDGETS),
    "DP-MERF": (_dp_merf, BUDGETS),
    "Gaussian": (_gaussian, BUDGETS),
}
