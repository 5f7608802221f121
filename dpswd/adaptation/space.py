r"""Public coordinates of records, from the source and public numbers.

Records are centred at the mean of the source and divided by its root mean square distance from it. The leading
coordinates are the projections on the first p principal directions of the source. p is at most
:math:`(\mu N)^{2/3} / 2` for N target records, half the number of directions whose second moment can be released
(:mod:`dpswd.generation.structure`), and at most 32.

For a target of vectors, the private generator is fitted to the leading coordinates; for a target of images, to the
images.
"""

import dataclasses
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpswd.errors import InputError
from dpswd.rowwise import finite_or_zero

__all__ = ["MAX_DIRECTIONS", "SourceSpace"]

MAX_DIRECTIONS = 32

Array = NDArray[Any]


@dataclasses.dataclass(frozen=True, eq=False)
class SourceSpace:
    """Map from records to coordinates.

    Args:
        shape: Shape of a record: (d,), or (H, W) or (H, W, C) for images.
        normalise: Scale every vector to norm 1 first.
        center: Mean of the source (d,), after the scaling.
        radius: Root mean square distance of the source from the mean.
        basis: Principal directions (d, p) of the source.

    Example:
        >>> X = np.random.default_rng(0).normal(size=(60, 5))
        >>> space = SourceSpace.of(X, n_target=16, mu=0.5, normalise=False)
        >>> space.coordinates(X).shape, space.leading(X).shape
        ((60, 5), (60, 2))
    """

    shape: tuple[int, ...]
    normalise: bool
    center: Array
    radius: float
    basis: Array

    @classmethod
    def of(cls, source: Array, n_target: int, mu: float, normalise: bool) -> "SourceSpace":
        """Returns the coordinates for a source, the number N of target records and the budget mu."""
        flat = _flat(source, normalise)
        center = flat.mean(0)
        radius = float(np.sqrt(np.square(flat - center).sum(1).mean())) or 1.0
        p = int(min(MAX_DIRECTIONS, max(2.0, (mu * n_target) ** (2 / 3) / 2)))
        spread = np.cov((flat - center) / radius, rowvar=False).reshape(flat.shape[1], -1)
        return cls(source.shape[1:], normalise, center, radius, np.linalg.eigh(spread)[1][:, ::-1][:, :p])

    def coordinates(self, records: Array) -> Array:
        """Returns all coordinates (n, d) of records (n, ...), before the projection.

        Raises:
            InputError: If the records have another shape.
        """
        if records.shape[1:] != self.shape:
            raise InputError(f"Expected X with records of shape {self.shape}, got {records.shape[1:]}.")
        rows: Array = (_flat(records, self.normalise) - self.center) / self.radius
        return rows

    def leading(self, records: Array) -> Array:
        """Returns the leading coordinates (n, p) of records (n, ...)."""
        rows: Array = self.coordinates(records) @ self.basis
        return rows

    def target_rows(self, target: Array) -> Array:
        """Returns leading coordinates in float32; a record that overflows becomes the zero row (Proposition 22)."""
        rows: Array = finite_or_zero(torch.from_numpy(self.leading(target)).float()).numpy()
        return rows

    def vectors(self, leading: Array) -> Array:
        """Returns the vectors (n, d) with these leading coordinates, and 0 for the remaining ones."""
        rows: Array = leading @ self.basis.T * self.radius + self.center
        return rows


def _flat(records: Array, normalise: bool) -> Array:
    rows: Array = records.reshape(len(records), -1).astype(np.float64)
    if records.ndim > 2 and records.dtype == np.uint8:
        return rows / 255
    if normalise and records.ndim == 2:
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return rows


def channels_first(images: Array) -> Tensor:
    """Converts images (n, H, W) or (n, H, W, C), bytes or floats, to (n, C, H, W) in [0, 1]."""
    values = torch.from_numpy(np.ascontiguousarray(images)).float()
    values = values / 255 if images.dtype == np.uint8 else values
    return values.unsqueeze(1) if values.ndim == 3 else values.permute(0, 3, 1, 2)


def channels_last(records: Tensor) -> Array:
    """Converts images (n, C, H, W) to (n, H, W), or (n, H, W, C) in colour; returns vectors (n, d) as they are."""
    if records.ndim != 4:
        return records.numpy()
    return records[:, 0].numpy() if records.shape[1] == 1 else records.permute(0, 2, 3, 1).numpy()
