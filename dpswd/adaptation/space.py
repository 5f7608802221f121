r"""Records of a source and a target as arrays, and their public coordinates.

Records are centred at the mean of the source and divided by its root mean square distance from it. The leading
coordinates are its principal directions: at most 32, and at most half of the number whose second moment can be released
(:mod:`dpswd.mixture.structure`). The private generator is fitted to them, or to images as they are.
"""

import dataclasses

import numpy as np
import torch
from sklearn.decomposition import PCA
from torch import Tensor

from dpswd._arrays import finite
from dpswd._layout import Array
from dpswd.errors import InputError

__all__ = ["SourceSpace", "flat"]

_MAX_DIRECTIONS = 32


@dataclasses.dataclass(frozen=True, eq=False)
class SourceSpace:
    """Map from records to coordinates."""

    shape: tuple[int, ...]  # of a record: (d,), or (C, H, W) for images
    normalise: bool  # scale every vector to norm 1 first
    centre: Array  # mean of the source (d,), after the scaling
    radius: float  # root mean square distance of the source from the mean
    basis: Array | None = (
        None  # principal directions (d, p) of the source; None for all of the space
    )

    @classmethod
    def of(cls, source: Array, n_target: int, mu: float, normalise: bool) -> "SourceSpace":
        """Return the coordinates for a source, the number N of target records and the budget mu."""
        rows = flat(source, normalise)
        centre = rows.mean(0)
        radius = float(np.sqrt(np.square(rows - centre).sum(1).mean())) or 1.0
        p = int(min(_MAX_DIRECTIONS, max(2.0, (mu * n_target) ** (2 / 3) / 2), *rows.shape))
        basis = PCA(p, random_state=0).fit(rows).components_.T
        return cls(source.shape[1:], normalise, centre, radius, basis)

    def leading(self, records: Array) -> Array:
        """Return the leading coordinates (n, p) of records (n, ...)."""
        if records.shape[1:] != self.shape:
            raise InputError(
                f"Expected X with records of shape {self.shape}, got {records.shape[1:]}."
            )
        rows: Array = (flat(records, self.normalise) - self.centre) / self.radius
        return rows if self.basis is None else rows @ self.basis

    def target_rows(self, target: Array) -> Tensor:
        """Return leading coordinates (n, p) in float32; a record that overflows becomes the zero row."""
        return finite(torch.from_numpy(self.leading(target)).float(), "zero")

    def vectors(self, leading: Array) -> Array:
        """Return the vectors (n, d) with these leading coordinates, and 0 for the remaining ones."""
        rows: Array = leading if self.basis is None else leading @ self.basis.T
        return rows * self.radius + self.centre


def flat(records: Array, normalise: bool = False) -> Array:
    """Return records (n, ...) as vectors (n, d) in float64; bytes of images become pixels in [0, 1]."""
    rows: Array = records.reshape(len(records), -1).astype(np.float64)
    if records.ndim > 2 and records.dtype == np.uint8:
        return rows / 255
    if normalise and records.ndim == 2:
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return rows
