"""Public maps from records to rows, of which sums or projections are released.

The guarantee requires that a map is fixed before the private records are read and computes each row from one record.
Rows are scaled so that a record at L2 distance at most ``radius`` from ``centre`` (pixels in [0, 1]) has norm at most
1/2; losses and queries clip longer rows.
"""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from dpswd._validate import at_least, positive, real
from dpswd.errors import InputError

__all__ = ["Columns", "FeatureMap", "Flatten", "histogram"]


class FeatureMap(nn.Module):
    """Differentiable map from records ``(n, *sample_shape)`` to rows (n, dim), row by row.

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
        ...     def rows(self, centred):
        ...         return centred.flatten(1).mean(1, keepdim=True)
        >>> Mean((1, 2, 2))(torch.ones(3, 1, 2, 2)).flatten()
        tensor([0.5000, 0.5000, 0.5000])
    """

    dim: int

    def __init__(
        self, sample_shape: tuple[int, ...], centre: float = 0.0, radius: float = 1.0
    ) -> None:
        super().__init__()
        at_least(1, **{f"sample_shape_{i}": side for i, side in enumerate(sample_shape)})
        positive(radius=radius)
        self.sample_shape = tuple(sample_shape)
        self.centre, self.radius = real("centre", centre), radius

    def forward(self, records: Tensor) -> Tensor:
        """Map ``(n, *sample_shape)`` to (n, dim)."""
        if tuple(records.shape[1:]) != self.sample_shape:
            got = tuple(records.shape[1:])
            raise InputError(
                f"Expected records of shape {self.sample_shape}, got {got}; set sample_shape to theirs."
            )
        return self.rows(records - self.centre) / (2 * self.radius)

    def decode(self, rows: Tensor) -> Tensor:
        """Map rows (n, dim) to their preimages of least norm ``(n, *sample_shape)``."""
        return self.records(rows * (2 * self.radius)) + self.centre

    def rows(self, centred: Tensor) -> Tensor:
        """Map centred records to unscaled rows."""
        raise NotImplementedError

    def records(self, rows: Tensor) -> Tensor:
        """Map unscaled rows to centred records."""
        raise NotImplementedError


class Flatten(FeatureMap):
    """The entries of the record; for feature vectors and small images.

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

    def rows(self, centred: Tensor) -> Tensor:
        """Flatten."""
        return centred.flatten(1)

    def records(self, rows: Tensor) -> Tensor:
        """Restore the shape of the records."""
        return cast(Tensor, rows.unflatten(1, self.sample_shape))


class Columns(Flatten):
    """The columns of a vector, scaled by public bounds (low, high) to [0, 1] and clipped; no row is longer than 1."""

    def __init__(self, bounds: Sequence[tuple[float, float]]) -> None:
        super().__init__((len(bounds),), centre=0.5, radius=math.sqrt(len(bounds)) / 4)
        low, high = torch.tensor(bounds, dtype=torch.float64).unbind(1)
        self.low = nn.Buffer(low, persistent=False)
        self.width = nn.Buffer(high - low, persistent=False)

    def forward(self, records: Tensor) -> Tensor:
        """Map (n, d) to (n, d)."""
        return super().forward(((records - self.low) / self.width).clamp(0, 1))

    def decode(self, rows: Tensor) -> Tensor:
        """Map rows (n, d) to records (n, d)."""
        return super().decode(rows) * self.width + self.low


def histogram(images: Tensor, n_levels: int) -> Tensor:
    """Return half of the shares of pixels at equidistant levels from 0 to 1: rows (n, n_levels) of norm at most 1/2."""
    levels = (images.flatten(1).nan_to_num() * (n_levels - 1)).round().clamp(0, n_levels - 1).long()
    shares = torch.full(levels.shape, 0.5 / levels.shape[1], device=levels.device)
    return shares.new_zeros(len(levels), n_levels).scatter_add_(1, levels, shares)
