r"""Public coordinates of the records of a source and a target.

Columns of a table have units of their own. They are divided by their standard deviation in the
source, and by a tenth of their range in it at least: in a column that is 1 for one of 1,000 source
records, a target record with a 1 would otherwise be 30 standard deviations away. Columns that are
constant in the source are left out.

Records are centred at the mean of the source and divided by its root mean square distance from it.
The coordinates are then those along the leading principal directions of the source: at most 32, and
at most half of the number whose second moment can be released (:mod:`dpswd.mixture.structure`). The
private generator is fitted to these coordinates, or to images as they are.
"""

import dataclasses
import math

import numpy as np
import torch
from sklearn.decomposition import PCA
from torch import Tensor

from dpswd._arrays import finite
from dpswd._layout import Array
from dpswd.errors import InputError

__all__ = ["SourceSpace", "count_directions", "flat"]

_MAX_DIRECTIONS = 32

# Least deviation of a column, over its range in the source.
_LEAST_DEVIATION = 0.1
# A range below this part of the largest entry is a rounding error.
_CONSTANT = 1e-9

# A vector shorter than this is divided by it, not by its norm.
_LEAST_NORM = 1e-12


@dataclasses.dataclass(frozen=True, eq=False)
class SourceSpace:
    """Map from records to coordinates of the source.

    Attributes:
        shape: Shape of a record: (d,), or (C, H, W) for images.
        normalise: Whether every vector is scaled to norm 1 first.
        centre: Mean (d,) of the source, after that scaling.
        radius: Root mean square distance of the source from its mean.
        basis: Principal directions (d, p) of the source; ``None`` for all of the space.
        weights: Factor (d,) of each column of a table, 0 for those that are left out; ``None`` for
            other records.
    """

    shape: tuple[int, ...]
    normalise: bool
    centre: Array
    radius: float
    basis: Array | None = None
    weights: Array | None = None

    @classmethod
    def from_source(
        cls,
        source: Array,
        n_target: int,
        mu: float,
        normalise: bool = False,
        standardise: bool = False,
    ) -> "SourceSpace":
        """Return the coordinates along the leading directions of a source.

        Args:
            source: Records (n, ...) of the source.
            n_target: Number N of target records; of units, where units are stated.
            mu: Budget of Gaussian differential privacy of the target.
            normalise: Whether every vector is scaled to norm 1 first.
            standardise: Whether columns get weights by their deviations.
        """
        rows = flat(source, normalise)
        weights = None
        if standardise:
            weights = _column_weights(rows)
            rows = rows * weights
        centre = rows.mean(0)
        mean_square = np.square(rows - centre).sum(1).mean()
        radius = float(np.sqrt(mean_square)) or 1.0
        n_directions = min(count_directions(rows.shape[1], n_target, mu), len(rows))
        basis = PCA(n_directions, random_state=0).fit(rows).components_.T
        return cls(source.shape[1:], normalise, centre, radius, basis, weights)

    @classmethod
    def identity(cls, shape: tuple[int, ...]) -> "SourceSpace":
        """Return the coordinates that are the entries of a record as they come."""
        return cls(shape, normalise=False, centre=np.zeros(math.prod(shape)), radius=1.0)

    @property
    def of_records(self) -> "SourceSpace":
        """Coordinates of a classifier without adaptation: entries, or weighted columns."""
        if self.weights is None:
            return SourceSpace.identity(self.shape)
        return dataclasses.replace(self, basis=None, radius=1.0)

    def coordinates(self, records: Array) -> Array:
        """Return the coordinates (n, p) of records (n, ...).

        Raises:
            InputError: If the records are not of the shape of the source.
        """
        if records.shape[1:] != self.shape:
            remedy = "pass such records"
            if len(self.shape) == 3:
                remedy = "scale the images; dpswd predict and dpswd adapt scale those of files"
            raise InputError(
                f"Expected X with records of shape {self.shape}, as in the source, "
                f"got {records.shape[1:]}; {remedy}."
            )
        rows: Array = flat(records, self.normalise)
        if self.weights is not None:
            rows = rows * self.weights
        rows = (rows - self.centre) / self.radius
        if self.basis is None:
            return rows
        return rows @ self.basis

    def target_rows(self, target: Array) -> Tensor:
        """Return the coordinates (n, p) of private records in float32.

        A record whose coordinates are not finite in float32 becomes the zero row.
        """
        with np.errstate(all="ignore"):  # a warning of NumPy would tell of a record
            coordinates = self.coordinates(target)
        return finite(torch.from_numpy(coordinates).float(), "zero")

    def vectors(self, coordinates: Array) -> Array:
        """Return the vectors (n, d) with these coordinates (n, p).

        They are zero along the directions that have no coordinate, and so are columns that were
        left out.
        """
        rows = coordinates
        if self.basis is not None:
            rows = coordinates @ self.basis.T
        vectors: Array = rows * self.radius + self.centre
        if self.weights is not None:
            vectors = vectors / np.where(self.weights > 0, self.weights, 1)
        return vectors


def count_directions(dim: int, n_target: int, mu: float) -> int:
    """Return the number of leading directions of d in which a target is released.

    A second moment of (mu N)^(2/3) directions can be released, see :mod:`dpswd.mixture.forecast`;
    half as many are used.
    """
    n_released = max(2.0, (mu * n_target) ** (2 / 3) / 2)
    return int(min(_MAX_DIRECTIONS, n_released, dim))


def _column_weights(rows: Array) -> Array:
    """Return the factor (d,) of each column of rows (n, d), 0 for constant ones."""
    ranges = rows.max(0) - rows.min(0)
    deviations = np.maximum(rows.std(0), _LEAST_DEVIATION * ranges)
    is_constant = ranges <= _CONSTANT * np.abs(rows).max(0)
    weights: Array = np.where(is_constant, 0, 1 / np.where(is_constant, 1, deviations))
    return weights


def flat(records: Array, normalise: bool = False) -> Array:
    """Return records (n, ...) as vectors (n, d) in float64.

    Args:
        records: Vectors or images; bytes of images become pixels in [0, 1].
        normalise: Whether vectors are scaled to norm 1; images are not.
    """
    rows: Array = records.reshape(len(records), -1).astype(np.float64)
    is_image = records.ndim > 2
    if is_image and records.dtype == np.uint8:
        return rows / 255
    if normalise and not is_image:
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        rows = rows / np.maximum(norms, _LEAST_NORM)
    return rows
