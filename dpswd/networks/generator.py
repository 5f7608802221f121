"""Base class of generators, and drawing of records from them."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpswd._arrays import Layout
from dpswd._provenance import track_runs
from dpswd._validate import at_least, choice, positive
from dpswd.errors import InputError

__all__ = ["Generator", "draw"]

_PART = 500  # records that are generated at a time


class Generator(nn.Module):
    """Base class of generators: sizes, latent codes, and the format of the records.

    A subclass stores its arguments as attributes of the same names, from which :func:`write_generator` writes them.

    Args:
        sample_shape: Shape of one record.
        n_classes: Number C of classes; 0 for none.
        latent_dim: Size of the latent code.

    Attributes:
        class_names: Public names of the classes, in the order of their numbers.
        proportions: Released proportions of the classes, if they were released.
        layout: Format of the private records, in which synthetic ones are returned.
        kinds: Public kinds of columns.
        structure: Facts of the fit, for reports; not in the file.

    Example:
        >>> class Linear(Generator):
        ...     def __init__(self, sample_shape, n_classes, latent_dim):
        ...         super().__init__(sample_shape, n_classes, latent_dim)
        ...         self.map = nn.Linear(latent_dim + n_classes, sample_shape[0])
        ...     def forward(self, latent, labels):
        ...         return self.map(self.code(latent, labels))
        >>> draw(Linear((3,), n_classes=2, latent_dim=4), torch.zeros(5, dtype=torch.int64)).shape
        torch.Size([5, 3])
    """

    def __init__(self, sample_shape: tuple[int, ...], n_classes: int, latent_dim: int) -> None:
        super().__init__()
        track_runs(self)
        at_least(1, latent_dim=latent_dim)
        at_least(0, n_classes=n_classes)
        self.sample_shape, self.n_classes, self.latent_dim = (
            tuple(sample_shape),
            n_classes,
            latent_dim,
        )
        self.class_names: list[Any] | None = None
        self.proportions: list[float] | None = None
        self.layout: Layout | None = None
        self.kinds: list[str] | None = None
        self.structure: Any = None

    def latent(self, n: int, spread: float = 1.0) -> Tensor:
        """Draw normal codes (n, latent_dim) of standard deviation ``spread``."""
        device = next(itertools.chain(self.parameters(), self.buffers())).device
        return spread * torch.randn(n, self.latent_dim, device=device)

    def code(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Concatenate codes and one-hot classes: (n, latent_dim + C)."""
        if not self.n_classes:
            return latent
        return torch.cat([latent, F.one_hot(labels, self.n_classes).to(latent.dtype)], dim=1)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Map codes (n, latent_dim) and classes (n,) to records ``(n, *sample_shape)``; pixels in [0, 1]."""
        raise NotImplementedError

    def labels(self, n: int, proportions: str = "equal") -> Tensor:
        """Return n classes (n,), every class equally often or in the released proportions; 0 without classes."""
        at_least(1, n=n)
        choice(("equal", "released"), proportions=proportions)
        if proportions == "equal" or not self.n_classes:
            return torch.arange(n) % max(1, self.n_classes)
        if self.proportions is None:
            raise InputError(
                "Expected released proportions of the classes, got a generator without; use 'equal'."
            )
        edges = (torch.tensor(self.proportions, dtype=torch.float64).cumsum(0) * n).round().long()
        return torch.bucketize(torch.arange(n), edges[:-1], right=True)[torch.randperm(n)]

    def numbers(self, names: Any) -> Tensor:
        """Return the numbers (n,) of classes that are given by name, which may be spelled out."""
        classes = list(self.class_names or range(self.n_classes))
        known = {key: i for i, name in enumerate(classes) for key in (str(name), name)}
        given = np.asarray(names).ravel().tolist()
        if unknown := sorted({str(name) for name in given if name not in known}):
            raise InputError(f"Expected classes out of {classes}, got {', '.join(unknown[:5])}.")
        return torch.tensor([known[name] for name in given])


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch for public randomness; the global random state stays as it is."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


@torch.no_grad()
def draw(generator: Generator, labels: Tensor, spread: float = 1.0) -> Tensor:
    """Generate a record for each class in evaluation mode.

    Args:
        generator: The generator.
        labels: Numbers (n,) of the classes; 0 without classes.
        spread: Factor above 0 on the noise about the means of cells; below 1 draws are closer to them.

    Returns:
        Records ``(n, *sample_shape)`` in float32 on the CPU.

    Example:
        >>> from dpswd.mixture.generator import MixtureGenerator
        >>> draw(MixtureGenerator((1, 8, 8), n_classes=2), torch.tensor([0, 1, 1])).shape
        torch.Size([3, 1, 8, 8])
    """
    return torch.cat(list(_drawn(generator, labels, spread)))


@torch.no_grad()
def _drawn(generator: Generator, labels: Tensor, spread: float) -> Iterator[Tensor]:
    """Yield what :func:`draw` returns in parts."""
    positive(spread=spread)
    training = generator.training
    generator.eval()
    for part in labels.split(_PART):
        latent = generator.latent(len(part), spread)
        yield generator(latent, part.to(latent.device)).cpu()
    generator.train(training)


def draw_in_layout(generator: Generator, labels: Tensor, spread: float = 1.0) -> Any:
    """Generate a record for each class in the format of the private ones; images part by part, to hold bytes only."""
    parts = _drawn(generator, labels, spread)
    if len(generator.sample_shape) == 3:
        return np.concatenate([_in_layout(generator, part) for part in parts])
    return _in_layout(generator, torch.cat(list(parts)))


def _in_layout(generator: Generator, records: Tensor) -> Any:
    """Convert records ``(n, *sample_shape)`` to the format of the private ones: bytes or floats, array or DataFrame."""
    for column, kind in enumerate(generator.kinds or ()):
        values = records[:, column]
        if kind == "integer":
            values.round_()
        elif kind == "binary":
            low, high = (float(getattr(generator, name)[column]) for name in ("low", "high"))
            values.copy_(torch.where(values > (low + high) / 2, high, low))
    layout = generator.layout or Layout.of(
        records if records.ndim == 2 else records[:1].to(torch.uint8)
    )
    return layout.restore(records)
