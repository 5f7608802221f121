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

from dpswd.data import CIFAR10, MNIST, USPS, Digits, FashionMNIST, PrivateData
from dpswd.generation.export import generate
from dpswd.generation.features import DCT
from dpswd.training.budget import Budget
from experiments.generation.train_config import train_config
from models.dp_merf import DPMERF
from models.gaussian import ClassGaussian
from models.networks import Table3Generator

__all__ = ["DATASETS", "DELTA", "GENERATED", "METHODS", "Cell", "Trained", "shipped_configs", "train"]

DATASETS: dict[str, type[PrivateData]] = {"MNIST": MNIST, "FashionMNIST": FashionMNIST}
GENERATED = DATASETS | {"USPS": USPS, "digits": Digits, "CIFAR10": CIFAR10}  # the last three in generation.py only
SHIPPED = {
    "MNIST": ["mnist.yaml"],
    "FashionMNIST": ["fashion.yaml"],
    "USPS": [str(Path(__file__).with_name("usps.yaml"))],
    "digits": ["digits.yaml"],
    "CIFAR10": [str(Path(__file__).with_name("cifar10.yaml"))],
}
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


def shipped_configs(cell: Cell) -> list[str]:
    """Name the config that a cell follows."""
    return SHIPPED[cell.dataset]


def _config(cell: Cell, configs: list[str], data: Path | None, directory: Path, *more: str) -> Trained:
    """Train a shipped config."""
    run = train_config(configs, directory, epsilon=cell.epsilon, delta=DELTA, seed=cell.seed, data=data, more=more)
    return Trained(lambda labels: generate(run.module, labels), run.facts, run.seconds)


def _steps(cell: Cell) -> int:
    """Training steps of the methods whose length is not that of a shipped config."""
    return STEPS[cell.method][cell.full]


def _of_dataset(cell: Cell) -> list[str]:
    return ["--data", f"dpswd.data.{cell.dataset}"]


def _mixture(cell: Cell, data: Path | None, directory: Path) -> Trained:
    return _config(cell, shipped_configs(cell), data, directory)


def _quantiles(cell: Cell, data: Path | None, directory: Path) -> Trained:
    more = [*_of_dataset(cell), "--trainer.max_steps", str(_steps(cell)), "--data.batch_size", "6000"]
    return _config(cell, ["mnist_steps.yaml"], data, directory, *more)


def _rows(cell: Cell, data: Path | None, directory: Path) -> Trained:
    more = [*_of_dataset(cell), "--trainer.max_steps", str(_steps(cell)), "--data.batch_size", "100"]
    more += ["--model.statistic", "rows", "--model.release_every", "1", "--model.generated", "100"]
    return _config(cell, ["mnist_steps.yaml"], data, directory, *more)


def _dp_merf(cell: Cell, data: Path | None, directory: Path) -> Trained:
    started = time.monotonic()
    torch.manual_seed(cell.seed)
    private = DATASETS[cell.dataset](root=None if data is None else str(data)).private
    model = DPMERF(Table3Generator(), n_frequencies=1000, lengthscale=6.0)
    assert cell.epsilon is not None
    budget = model.release(private.values, private.labels, directory, cell.epsilon, DELTA)
    model.train_generator(_steps(cell))
    return Trained(_sampler(model.sample), _facts(budget), time.monotonic() - started)


def _gaussian(cell: Cell, data: Path | None, directory: Path) -> Trained:
    started = time.monotonic()
    torch.manual_seed(cell.seed)
    private = DATASETS[cell.dataset](root=None if data is None else str(data)).private
    model = ClassGaussian(DCT((1, 28, 28), size=14, center=0.13, radius=10.0))
    assert cell.epsilon is not None
    budget = model.fit(private.values, private.labels, directory, cell.epsilon, DELTA)
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
