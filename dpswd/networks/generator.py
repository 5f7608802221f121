"""Base class of generators, and drawing of records from them."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpswd._keys import label_key
from dpswd._labels import class_positions
from dpswd._layout import Layout
from dpswd._provenance import track_runs
from dpswd._validate import at_least, choice, positive
from dpswd.errors import InputError

if TYPE_CHECKING:
    from dpswd.mixture.structure import Structure

__all__ = ["Generator", "draw", "with_training_noise"]

# Records are generated in parts of this size, which bounds the memory that a generator needs.
_PART = 500

# Largest factor on the latent codes: beyond it, records have nothing of the private ones.
_LARGEST_SPREAD = 10.0

# Standard deviation of the noise on pixels of range 1 that classifiers are trained with. It was
# chosen on the digits, USPS and MNIST ("Rare classes" of docs/generation.md).
_TRAINING_NOISE = 0.2

# At most this many unknown names of classes are printed in a message.
_MOST_NAMES = 5


class Generator(nn.Module):
    """Base class of generators: sizes, latent codes, and the format of the records.

    A subclass stores its arguments as attributes of the same names, from which
    :func:`~dpswd.files.generators.write_generator` writes them.

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

    Raises:
        InputError: If ``latent_dim`` is below 1 or ``n_classes`` is negative.

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
        self.sample_shape = tuple(sample_shape)
        self.n_classes = n_classes
        self.latent_dim = latent_dim
        self.class_names: Sequence[Any] | None = None
        self.proportions: list[float] | None = None
        self.layout: Layout | None = None
        self.kinds: list[str] | None = None
        self.structure: Structure | None = None

    def latent(self, n: int, spread: float = 1.0) -> Tensor:
        """Draw normal codes (n, latent_dim) of standard deviation ``spread``."""
        first_tensor = next(itertools.chain(self.parameters(), self.buffers()))
        return spread * torch.randn(n, self.latent_dim, device=first_tensor.device)

    def code(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Concatenate codes (n, latent_dim) and one-hot classes: (n, latent_dim + C)."""
        if self.n_classes == 0:
            return latent
        one_hot = F.one_hot(labels, self.n_classes).to(latent.dtype)
        return torch.cat([latent, one_hot], dim=1)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Map codes to records.

        Args:
            latent: Codes (n, latent_dim), as :meth:`latent` draws them.
            labels: Numbers (n,) of the classes; 0 without classes.

        Returns:
            Records ``(n, *sample_shape)``; pixels lie in [0, 1].
        """
        raise NotImplementedError

    def labels(self, n: int, proportions: str = "equal") -> Tensor:
        """Choose the classes of n records.

        Args:
            n: Number of records.
            proportions: ``"equal"``: every class equally often. ``"released"``: in the released
                proportions and in random order.

        Returns:
            Numbers (n,) of the classes; 0 without classes.

        Raises:
            InputError: If n is below 1, or the proportions are unknown or were not released.
        """
        at_least(1, n=n)
        choice(("equal", "released"), proportions=proportions)
        if proportions == "equal" or self.n_classes == 0:
            return torch.arange(n) % max(1, self.n_classes)
        if self.proportions is None:
            raise InputError(
                "Expected released proportions of the classes, got a generator without; "
                "use proportions='equal'."
            )
        proportion_of_class = torch.tensor(self.proportions, dtype=torch.float64)
        cumulative = proportion_of_class.cumsum(0)
        ends = (cumulative * n).round().long()
        ordered = torch.bucketize(torch.arange(n), ends[:-1], right=True)
        return ordered[torch.randperm(n)]

    def numbers(self, names: Any) -> Tensor:
        """Return the numbers (n,) of classes that are given by name.

        A name is read as a label of the records is: the class 7 is also found as ``"7"``.

        Raises:
            InputError: If a name is not one of the classes.
        """
        classes = list(self.class_names or range(self.n_classes))
        positions = class_positions(classes)
        listed = np.asarray(names).ravel().tolist()
        unknown: set[str] = set()
        numbers: list[int] = []
        for name in listed:
            key = label_key(name)
            if key in positions:
                numbers.append(positions[key])
            else:
                unknown.add(str(name))
        if unknown:
            names_of_unknown = ", ".join(sorted(unknown)[:_MOST_NAMES])
            raise InputError(
                f"Expected classes out of {classes}, got {names_of_unknown}; write the names as "
                "the generator has them."
            )
        return torch.tensor(numbers)


def affine_by_class(linear: Tensor, offset: Tensor, codes: Tensor, membership: Tensor) -> Tensor:
    """Apply to each code the affine map of its class.

    Args:
        linear: Matrix of each class (C, r, r).
        offset: Offset of each class (C, r).
        codes: Codes (n, r).
        membership: One-hot classes (n, C).

    Returns:
        Rows (n, r).
    """
    # The code stands at the place of its class, and zeros at those of the other classes:
    # one product with all matrices (C r, r) then selects the matrix of each code.
    placed = membership[:, :, None] * codes[:, None]
    matrices = linear.mT.flatten(0, 1)
    return membership @ offset + placed.flatten(1) @ matrices


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch for public randomness; the global random state stays as it is."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


def draw(generator: Generator, labels: Tensor, spread: float = 1.0) -> Tensor:
    """Generate a record for each class in evaluation mode.

    Args:
        generator: The generator.
        labels: Numbers (n,) of the classes; 0 without classes.
        spread: Factor above 0 on the latent codes; below 1, records are closer to the means that
            the generator has learned, and less varied.

    Returns:
        Records ``(n, *sample_shape)`` in float32 on the CPU.

    Raises:
        InputError: If ``spread`` is not positive, or above 10.

    Example:
        >>> from dpswd.mixture.generator import MixtureGenerator
        >>> draw(MixtureGenerator((1, 8, 8), n_classes=2), torch.tensor([0, 1, 1])).shape
        torch.Size([3, 1, 8, 8])
    """
    return torch.cat(list(_draw_parts(generator, labels, spread)))


def with_training_noise(images: Tensor) -> Tensor:
    """Add normal noise of standard deviation 0.2 to every pixel of range 1.

    Where the records of a class are few, a linear classifier fits details of synthetic images that
    the real ones do not have. Noise hides these details.

    Args:
        images: Images in uint8, of range 255, or in floats, of range 1.

    Returns:
        Images in float32 of the same range and shape. Noisy pixels outside of the range are not
        cut: that would make a black background brighter than that of real images.

    Example:
        >>> noisy = with_training_noise(torch.full((1000, 1, 8, 8), 100, dtype=torch.uint8))
        >>> round(float(noisy.std()))
        51
    """
    pixel_range = 1
    if images.dtype == torch.uint8:
        pixel_range = 255
    return images.float() + pixel_range * _TRAINING_NOISE * torch.randn(images.shape)


def draw_in_layout(generator: Generator, labels: Tensor, spread: float = 1.0) -> Any:
    """Generate a record for each class in the format of the private ones.

    Images are converted part by part, so that bytes are held in memory and not floats.

    Args:
        generator: The generator; its ``layout`` is the format.
        labels: Numbers (n,) of the classes; 0 without classes.
        spread: As in :func:`draw`.

    Returns:
        An array or a DataFrame of n records, in bytes or floats as the layout says.
    """
    parts = _draw_parts(generator, labels, spread)
    if len(generator.sample_shape) == 3:
        return np.concatenate([_restore(generator, part) for part in parts])
    return _restore(generator, torch.cat(list(parts)))


@torch.no_grad()
def _draw_parts(generator: Generator, labels: Tensor, spread: float) -> Iterator[Tensor]:
    """Yield the records of :func:`draw` in parts (at most 500, *sample_shape)."""
    positive(spread=spread)
    if spread > _LARGEST_SPREAD:
        raise InputError(f"Expected spread of at most {_LARGEST_SPREAD:g}, got spread={spread:g}.")
    training = generator.training
    generator.eval()
    try:
        for part in labels.split(_PART):
            latent = generator.latent(len(part), spread)
            yield generator(latent, part.to(latent.device)).cpu()
    finally:
        generator.train(training)


def _restore(generator: Generator, records: Tensor) -> Any:
    """Convert records ``(n, *sample_shape)`` to the format of the private ones."""
    records = _with_whole_columns(generator, records)
    layout = generator.layout
    if layout is None and records.ndim == 2:
        layout = Layout.of(records)
    elif layout is None:
        layout = Layout.of(records[:1].to(torch.uint8))
    return layout.restore(records)


def _with_whole_columns(generator: Generator, records: Tensor) -> Tensor:
    """Round integer columns, and move entries of binary columns to the nearer bound."""
    if generator.kinds is None:
        return records
    records = records.clone()
    for column, kind in enumerate(generator.kinds):
        values = records[:, column]
        if kind == "integer":
            records[:, column] = values.round()
        elif kind == "binary":
            low = float(generator.get_buffer("low")[column])
            high = float(generator.get_buffer("high")[column])
            middle = (low + high) / 2
            records[:, column] = torch.where(values > middle, high, low)
    return records
