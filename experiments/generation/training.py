"""Training of the library's generators on benchmarks, without evaluation and, if wanted, without noise."""

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
from dpswd.audit.game import Unrecorded
from dpswd.budget.budget import Budget
from dpswd.data import Benchmark, benchmark
from dpswd.evaluation.accuracy import scores
from dpswd.mixture.forecast import forecast
from dpswd.networks.generator import Generator
from dpswd.records import PrivateRecords, Records

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
DELTA = 1e-5
UNLIMITED_MU = 10.0  # the structure of a run without noise


@dataclass(frozen=True)
class Made:
    """A trained generator, the facts sound, mu, delta and statistic of privacy.json, and the training time."""

    generator: Generator
    facts: dict[str, Any]
    seconds: float


class NoNoise(Unrecorded):
    """Takes the place of a budget: sigma 1e-12 and a fixed seed, hence NOT PRIVATE. Keeps no ledger."""

    mu, queries = UNLIMITED_MU, ()

    def __enter__(self) -> Self:
        for query in self.queries:
            query.mechanism = dataclasses.replace(query.mechanism, sigma=1e-12, noise_seed=0)
            query.recorder = self
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing."""

    def statement(self) -> dict[str, Any]:
        """Return that nothing is guaranteed."""
        return {"sound": None, "mu": None, "delta": None, "weights_from_runs": []}


def load(dataset: str, data: Path | None) -> Benchmark:
    """Return a data set by its name in the tables."""
    return benchmark(BENCHMARKS[dataset], data, public=True)


def accuracies(
    names: Sequence[str], images: Tensor, labels: Tensor, loaded: Benchmark, score: str = "accuracy"
) -> dict[str, float]:
    """Train classifiers on images; return their accuracies on the test records, or another of their scores."""
    assert loaded.test is not None
    return {name: scores(name, Records(images, labels), loaded.test)[score] for name in names}


def to_bytes(images: Tensor) -> NDArray[np.uint8]:
    """Convert pixels (n, channels, h, w) in [0, 1] to bytes in torchvision's layout, (n, h, w) or (n, h, w, 3)."""
    pixels: NDArray[np.uint8] = (images.clamp(0, 1) * 255).round().to(torch.uint8).numpy()
    return pixels[:, 0] if pixels.shape[1] == 1 else pixels.transpose(0, 2, 3, 1)


def constants_digest(path: Path) -> str:
    """Return a digest of the constants in a file: a cell is run again when they change."""
    return hashlib.sha256(json.dumps(shipped_constants(path), sort_keys=True).encode()).hexdigest()[
        :16
    ]


def shipped_constants(path: Path) -> dict[str, Any]:
    """Return the constants in a file."""
    return dict(yaml.safe_load(path.read_text()) or {})


def train_mixture(
    records: PrivateRecords,
    constants: Path,
    directory: Path | None = None,
    *,
    epsilon: float | None,
    delta: float = DELTA,
    seed: int,
    limits: Mapping[str, int] | None = None,
    **changes: Any,
) -> Made:
    """Fit the one-shot generator with the public ``constants`` of a file and ``changes`` of them.

    The run directory is new, or a temporary one; without ``epsilon`` there is no noise and no ledger. The seed is that
    of latent codes: noise is fresh in any case. ``limits`` are options of the forecast, of which the structure follows.
    """
    if directory is None:
        with tempfile.TemporaryDirectory() as place:
            return train_mixture(
                records,
                constants,
                Path(place) / "run",
                epsilon=epsilon,
                delta=delta,
                seed=seed,
                limits=limits,
                **changes,
            )
    stated = {
        key: value
        for key, value in shipped_constants(constants).items()
        if key not in ("size", "channels", "classes")
    }
    stated |= changes
    budget: Any = NoNoise()
    if epsilon is not None:
        budget = Budget(
            records, target_epsilon=epsilon, target_delta=delta, run_dir=directory, config=stated
        )
    structure = None
    if limits:
        structure = forecast(
            len(records), records.shape, records.n_classes, budget.mu, **dict(limits)
        )
    torch.manual_seed(seed)
    started = time.monotonic()
    generator = mixture.fit(records, budget, structure=structure, **stated)
    seconds = time.monotonic() - started
    facts = {name: budget.statement()[name] for name in ("sound", "mu", "delta")}
    return Made(generator, facts | {"statistic": None if epsilon is None else "moments"}, seconds)


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
) -> Made:
    """Train a generator by DP-SWD at every ``every``-th step, as :class:`dpswd.lightning.module.GeneratorModule` does.

    A release has ``batch_size`` records. The seed is that of weights and latent codes; ``options`` are the module's.
    """
    import lightning as L

    from dpswd import PrivacyBudget, ReleaseLoader
    from dpswd.features.frequencies import DCT
    from dpswd.lightning.module import GeneratorModule
    from dpswd.networks.image_generators import ConvGenerator

    torch.manual_seed(seed)
    features = DCT((1, 28, 28), size=14, centre=0.13, radius=11.0)
    module = GeneratorModule(
        ConvGenerator(latent_dim=100), features, batch_size, n_projections=392, **options
    )
    budget = PrivacyBudget(epsilon, delta, run_dir=str(directory))
    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    trainer = L.Trainer(
        max_steps=steps, accelerator="cpu", callbacks=[budget], default_root_dir=directory, **quiet
    )
    loader = ReleaseLoader(
        records, batch_size=batch_size, n_releases=-(-steps // every), every=every
    )
    started = time.monotonic()
    trainer.fit(module, loader)
    seconds = time.monotonic() - started
    facts = budget.statement()
    return Made(
        module.generator.eval(),
        {name: facts[name] for name in ("sound", "mu", "delta")}
        | {"statistic": facts["mechanism"]["statistic"]},
        seconds,
    )
