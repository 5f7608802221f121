"""Public maps from records to rows, of which sums or projections are released.

The guarantee requires that a map is fixed before the private records are read, and that it computes
each row from one record. A map is scaled: a record at L2 distance at most ``radius`` from its
``centre`` (pixels in [0, 1]) has a row of norm at most 1/2. Losses and queries clip longer rows.
"""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from dpswd._validate import at_least, pairs, positive, real
from dpswd.errors import InputError

__all__ = ["Columns", "FeatureMap", "Flatten", "histogram"]


class FeatureMap(nn.Module):
    """Differentiable map from records ``(n, *sample_shape)`` to rows (n, dim).

    Each row depends on its own record only. A subclass sets ``dim`` and defines :meth:`transform`,
    and :meth:`inverse` if rows are decoded.

    Args:
        sample_shape: Shape of one record.
        centre: Public constant subtracted from every entry.
        radius: Public L2 distance from the centre that is mapped to norm 1/2.

    Attributes:
        dim: Dimension of the rows, which a subclass sets.

    Raises:
        InputError: If a value is out of range.

    Example:
        >>> class Mean(FeatureMap):
        ...     dim = 1
        ...     def transform(self, centred):
        ...         return centred.flatten(1).mean(1, keepdim=True)
        >>> Mean((1, 2, 2))(torch.ones(3, 1, 2, 2)).flatten()
        tensor([0.5000, 0.5000, 0.5000])
    """

    dim: int

    def __init__(
        self, sample_shape: tuple[int, ...], centre: float = 0.0, radius: float = 1.0
    ) -> None:
        super().__init__()
        if not isinstance(sample_shape, Sequence):
            raise InputError(
                f"Expected sample_shape as a tuple, got {sample_shape!r}; pass (d,) for vectors or "
                "(channels, height, width) for images."
            )
        at_least(1, **{f"sample_shape_{i}": side for i, side in enumerate(sample_shape)})
        positive(radius=radius)
        self.sample_shape = tuple(sample_shape)
        self.centre = real("centre", centre)
        if not math.isfinite(self.centre):
            raise InputError(f"Expected centre to be finite, got centre={self.centre}.")
        self.radius = radius

    @property
    def remedy_of_long_rows(self) -> str:
        """What to do if rows are much longer than 1/2, for a warning."""
        return (
            f"raise radius={self.radius:g} of {type(self).__name__} to about the distance of a "
            "record from the centre, by public knowledge of such records"
        )

    @property
    def description(self) -> str:
        """One line with class, options and dimension, by which a file recognises the map."""
        options = f"{self.sample_shape}, centre={self.centre}, radius={self.radius}"
        return f"{type(self).__name__}({options}), d={self.dim}"

    def forward(self, records: Tensor) -> Tensor:
        """Map records ``(n, *sample_shape)`` to rows (n, dim)."""
        shape = tuple(records.shape[1:])
        if shape != self.sample_shape:
            name = type(self).__name__
            raise InputError(
                f"Expected records of shape {self.sample_shape}, as {name} maps, got {shape}; "
                f"{_remedy_of_shape(name, shape)}."
            )
        centred = records - self.centre
        return self.transform(centred) / (2 * self.radius)

    def decode(self, rows: Tensor) -> Tensor:
        """Map rows (n, dim) to their preimages of least norm ``(n, *sample_shape)``."""
        centred = self.inverse(rows * (2 * self.radius))
        return centred + self.centre

    def transform(self, centred: Tensor) -> Tensor:
        """Map centred records ``(n, *sample_shape)`` to unscaled rows (n, dim)."""
        raise NotImplementedError

    def inverse(self, rows: Tensor) -> Tensor:
        """Map rows (n, dim) that are not scaled to centred records ``(n, *sample_shape)``."""
        raise NotImplementedError


def _remedy_of_shape(name: str, shape: tuple[int, ...]) -> str:
    """Return what to do about records of another shape than a map of a name has."""
    remedy = f"give {name} the shape {shape}"
    if len(shape) != 3:
        return remedy
    return f"{remedy}, or read images of its size and channels: size= (--size)"


def image_sides(sample_shape: Sequence[int]) -> tuple[int, int, int]:
    """Return channels, height and width of an image; refuse other shapes.

    Raises:
        InputError: If the shape is not (channels, height, width).
    """
    if len(sample_shape) != 3:
        raise InputError(
            "Expected sample_shape (channels, height, width) of images, got "
            f"{tuple(sample_shape)}; pass (1, height, width) for grey ones."
        )
    channels, height, width = sample_shape
    return channels, height, width


class Flatten(FeatureMap):
    """The entries of the record; for feature vectors and small images.

    Args:
        sample_shape: Shape of one record.
        centre: Public constant subtracted from every entry.
        radius: Public L2 distance from the centre that is mapped to norm 1/2.

    Raises:
        InputError: If a value is out of range.

    Example:
        >>> features = Flatten((3,), radius=2.0)
        >>> features(torch.tensor([[2.0, 0.0, 0.0]]))
        tensor([[0.5000, 0.0000, 0.0000]])
    """

    def __init__(
        self, sample_shape: tuple[int, ...], centre: float = 0.0, radius: float = 1.0
    ) -> None:
        super().__init__(sample_shape, centre, radius)
        self.dim = math.prod(sample_shape)

    def transform(self, centred: Tensor) -> Tensor:
        """Flatten the records."""
        return centred.flatten(1)

    def inverse(self, rows: Tensor) -> Tensor:
        """Restore the shape of the records."""
        return cast(Tensor, rows.unflatten(1, self.sample_shape))


class Columns(Flatten):
    """The columns of a vector, scaled by public bounds to [0, 1], clipped and centred.

    No row is longer than 1: a corner of the unit cube of d columns is at distance sqrt(d) / 2 from
    the centre, twice the radius.

    Args:
        bounds: Public bounds (low, high) of each of the d columns.

    Attributes:
        low: Lower bounds (d,) in float64.
        width: Upper bounds minus lower bounds (d,) in float64.

    Raises:
        InputError: If bounds are no pairs of numbers, or a lower bound is not below the upper one.

    Example:
        >>> features = Columns([(0, 10), (-1, 1)])
        >>> features(torch.tensor([[5.0, 0.0], [10.0, 7.0]])).norm(dim=1)
        tensor([0.0000, 1.0000], dtype=torch.float64)
    """

    def __init__(self, bounds: Sequence[tuple[float, float]]) -> None:
        limits = torch.tensor(pairs("bounds", bounds), dtype=torch.float64).view(-1, 2)
        if not len(limits):
            raise InputError("Expected bounds of at least one column, got none; pass them.")
        super().__init__((len(limits),), centre=0.5, radius=math.sqrt(len(limits)) / 4)
        low, high = limits.unbind(1)
        is_wrong = ~(low < high)
        if bool(is_wrong.any()):
            column = int(is_wrong.nonzero()[0])
            raise InputError(
                f"Expected bounds low < high, got ({low[column]:g}, {high[column]:g}) for column "
                f"{column}; correct them."
            )
        self.low = nn.Buffer(low, persistent=False)
        self.width = nn.Buffer(high - low, persistent=False)

    def forward(self, records: Tensor) -> Tensor:
        """Map records (n, d) to rows (n, d)."""
        parts = (records - self.low) / self.width
        return super().forward(parts.clamp(0, 1))

    def decode(self, rows: Tensor) -> Tensor:
        """Map rows (n, d) to records (n, d)."""
        parts = super().decode(rows)
        return parts * self.width + self.low


def histogram(images: Tensor, n_levels: int) -> Tensor:
    """Return half of the shares of pixels at ``n_levels`` levels of brightness.

    The levels are equidistant from 0 to 1. Shares add up to 1, so that the norm is at most 1/2.

    Args:
        images: Pixels (n, channels, height, width); values beyond [0, 1] count as 0 or 1.
        n_levels: Number of levels, at least 2.

    Returns:
        Rows (n, n_levels), each of one image.

    Example:
        >>> histogram(torch.tensor([[[[0.0, 1.0], [1.0, 1.0]]]]), n_levels=2)
        tensor([[0.1250, 0.3750]])
    """
    pixels = images.flatten(1).nan_to_num()
    levels = (pixels * (n_levels - 1)).round()
    levels = levels.clamp(0, n_levels - 1).long()
    n_pixels = levels.shape[1]
    weights = torch.full(levels.shape, 0.5 / n_pixels, device=levels.device)
    empty = weights.new_zeros(len(levels), n_levels)
    return empty.scatter_add_(1, levels, weights)
