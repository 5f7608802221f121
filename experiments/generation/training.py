"""Training of the library's generators on benchmarks, without evaluation."""

import dataclasses
import hashlib
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from torch import Tensor

from dpswd import mixture
from dpswd.budget.budget import Budget
from dpswd.data import Benchmark, benchmark
from dpswd.evaluation.accuracy import scores
from dpswd.mixture.forecast import forecast
from dpswd.networks.generator import Generator
from dpswd.queries import GaussianQuery
from dpswd.records import PrivateRecords, Records
from experiments.simulated import SimulatedBudget

CONFIGS = Path(__file__).parents[2] / "configs"
BENCHMARKS = {
    "MNIST": "mnist",
    "FashionMNIST": "fashion",
    "USPS": "usps",
    "digits": "digits",
    "CIFAR10": "cifar10",
}
SHIPPED = {  # public constants of the one-shot generator
    "MNIST": CONFIGS / "mnist.yaml",
    "FashionMNIST": CONFIGS / "fashion.yaml",
    "USPS": Path(__file__).with_name("usps.yaml"),
    "digits": CONFIGS / "digits.yaml",
    "CIFAR10": Path(__file__).with_name("cifar10.yaml"),
}
OF_COMMAND = ("size", "channels", "classes")  # keys of a config that a fit does not take
DELTA = 1e-5
UNLIMITED_MU = 10.0  # the structure of a run without noise
SILENT_SIGMA = 1e-12  # noise of a run without noise


@dataclass(frozen=True)
class Privacy:
    """What a run states about privacy; ``None`` where it states nothing.

    Attributes:
        sound: Whether the guarantee holds.
        mu: Its mu.
        delta: Its delta.
        statistic: What was released: ``"moments"``, ``"rows"`` or ``"quantiles"``.
    """

    sound: bool | None = None
    mu: float | None = None
    delta: float | None = None
    statistic: str | None = None


@dataclass(frozen=True)
class Trained:
    """A trained generator, what its run states about privacy, and its seconds."""

    generator: Generator
    privacy: Privacy
    seconds: float


class NoNoise(SimulatedBudget):
    """Budget of a run without noise, hence NOT PRIVATE.

    Releases have a standard deviation of ``SILENT_SIGMA`` and a fixed seed.
    """

    def __init__(self) -> None:
        self.mu = UNLIMITED_MU
        self.queries: Sequence[GaussianQuery] = ()

    def __enter__(self) -> Self:
        for query in self.queries:
            query.mechanism = dataclasses.replace(query.mechanism, sigma=SILENT_SIGMA, noise_seed=0)
            query.recorder = self
        return self


# Data ---------------------------------------------------------------------------------------------


def load(dataset: str, data: Path | None) -> Benchmark:
    """Return a data set by its name in the tables."""
    return benchmark(BENCHMARKS[dataset], data, public=True)


def accuracies(
    names: Sequence[str], images: Tensor, labels: Tensor, loaded: Benchmark, score: str = "accuracy"
) -> dict[str, float]:
    """Train classifiers on images (n, channels, h, w) with labels (n,).

    Returns:
        Their accuracies on the test records in percent, or another of their scores, by name.
    """
    assert loaded.test is not None
    train = Records(images, labels)
    return {name: scores(name, train, loaded.test)[score] for name in names}


def to_bytes(images: Tensor) -> NDArray[np.uint8]:
    """Convert pixels (n, channels, h, w) in [0, 1] to bytes in torchvision's layout.

    Returns:
        Grey images (n, h, w), or images in colour (n, h, w, 3).
    """
    pixels: NDArray[np.uint8] = (images.clamp(0, 1) * 255).round().to(torch.uint8).numpy()
    if pixels.shape[1] == 1:
        return pixels[:, 0]
    return pixels.transpose(0, 2, 3, 1)


def shipped_constants(path: Path) -> dict[str, Any]:
    """Return the constants in a file."""
    return dict(yaml.safe_load(path.read_text()) or {})


def constants_digest(path: Path) -> str:
    """Return a digest of the constants in a file."""
    return digest(shipped_constants(path))


def digest(settings: dict[str, Any]) -> str:
    """Return 16 hexadecimal digits that change with the settings."""
    text = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# Training -----------------------------------------------------------------------------------------


def train_mixture(
    records: PrivateRecords,
    constants: Path,
    directory: Path | None = None,
    *,
    epsilon: float | None,
    delta: float = DELTA,
    seed: int,
    limits: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Trained:
    """Fit the one-shot generator with the public constants of a file.

    Args:
        records: Private records.
        constants: File of the constants.
        directory: New run directory, ``None`` for a temporary one.
        epsilon: Budget; without it there is no noise and no ledger: NOT PRIVATE.
        delta: Delta of the budget.
        seed: Seed of the latent codes. The noise is fresh in any case.
        limits: Options of the forecast, from which the structure follows.
        changes: Changes of the constants.
    """
    if directory is None:
        with tempfile.TemporaryDirectory() as parent:
            return train_mixture(
                records,
                constants,
                Path(parent) / "run",
                epsilon=epsilon,
                delta=delta,
                seed=seed,
                limits=limits,
                **changes,
            )
    options = shipped_constants(constants)
    for key in OF_COMMAND:
        options.pop(key, None)
    options |= changes
    ink = options.pop("shapes", None)
    if ink is not None:
        records = records.as_shapes(ink)
    budget: Any = NoNoise()  # it has the attributes of a Budget that a fit uses
    statistic = None
    if epsilon is not None:
        budget = Budget(
            records, target_epsilon=epsilon, target_delta=delta, run_dir=directory, config=options
        )
        statistic = "moments"
    structure = None
    if limits:
        n_classes = records.n_classes
        structure = forecast(len(records), records.shape, n_classes, budget.mu, **dict(limits))
    torch.manual_seed(seed)
    started = time.monotonic()
    generator = mixture.fit(records, budget, structure=structure, **options)
    seconds = time.monotonic() - started
    privacy = Privacy(statistic=statistic)
    guarantee = budget.statement().guarantee
    if guarantee.private:
        privacy = Privacy(guarantee.sound, guarantee.mu, guarantee.delta, statistic)
    return Trained(generator, privacy, seconds)


def train_network(
    records: PrivateRecords,
    directory: Path,
    *,
    epsilon: float,
    delta: float,
    seed: int,
    steps: int,
    batch_size: int,
    every: int = 1,
    **options: Any,
) -> Trained:
    """Train a generator by DP-SWD with Lightning.

    Args:
        records: Private records.
        directory: New run directory.
        epsilon: Budget.
        delta: Delta of the budget.
        seed: Seed of weights and latent codes.
        steps: Number of steps.
        batch_size: Records of a release.
        every: Steps between releases.
        options: Options of the module.
    """
    # Lightning takes seconds to import, and only Table 2 needs it.
    import lightning as L

    from dpswd import PrivacyBudget, ReleaseLoader
    from dpswd.features.frequencies import DCT
    from dpswd.lightning.module import GeneratorModule
    from dpswd.networks.image_generators import ConvGenerator

    torch.manual_seed(seed)
    features = DCT((1, 28, 28), size=14, centre=0.13, radius=11.0)
    generator = ConvGenerator(latent_dim=100)
    module = GeneratorModule(generator, features, batch_size, n_projections=392, **options)
    budget = PrivacyBudget(epsilon, delta, run_dir=str(directory))
    trainer = L.Trainer(
        max_steps=steps,
        accelerator="cpu",
        callbacks=[budget],
        default_root_dir=directory,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    n_releases = -(-steps // every)
    loader = ReleaseLoader(records, batch_size=batch_size, n_releases=n_releases, every=every)
    started = time.monotonic()
    trainer.fit(module, loader)
    seconds = time.monotonic() - started
    statement = budget.statement()
    statistic = statement["mechanism"]["statistic"]
    privacy = Privacy(statement["sound"], statement["mu"], statement["delta"], statistic)
    return Trained(module.generator.eval(), privacy, seconds)
