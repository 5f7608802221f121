"""Row functions of the fit, which map private records to rows.

They are frozen: their scale, directions and centres follow from public numbers and earlier
releases. So the row of a record depends on this record alone (:mod:`dpswd.row_copy`).

Shapes: n records, D dimensions of the rows, p leading ones, C classes, K cells of all classes.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from dpswd.features.maps import FeatureMap
from dpswd.mixture import moments
from dpswd.mixture.columns import NormalScores

__all__ = ["AboutClassMeans", "InCells", "RowMap"]


@dataclass(frozen=True, eq=False)
class RowMap:
    """Map from records to rows that are centred, scaled and turned.

    It is a public map, or that to normal scores.

    Attributes:
        feature_map: Public map from records to rows.
        scale: Factor that gives the rows their root mean square norm.
        mean: Released mean (D,) of the rows of ``feature_map``; 0 for normal scores.
        scores: Normal scores of released columns, which take the place of ``feature_map``.
        directions: Principal directions (D, D) of the rows, as columns; ``None`` before their
            release.
    """

    feature_map: FeatureMap
    scale: float
    mean: Tensor
    scores: NormalScores | None = None
    directions: Tensor | None = None

    @property
    def dim(self) -> int:
        """Dimension D of the rows."""
        return len(self.mean)

    def __call__(self, values: Tensor, labels: Tensor | None = None) -> Tensor:
        """Map records ``(n, *sample_shape)`` of classes (n,) to rows (n, D)."""
        return self.leading(values, labels, self.dim)

    def leading(self, values: Tensor, labels: Tensor | None, n_leading: int) -> Tensor:
        """Map records of classes (n,) to leading coordinates (n, n_leading)."""
        if self.scores is None:
            centred = self.feature_map(values).double() - self.mean
        else:
            centred = self.scores.scores(values, labels)
        rows: Tensor = centred * self.scale
        if self.directions is None:
            return rows
        return rows @ self.directions[:, :n_leading]

    def turned(self, directions: Tensor) -> "RowMap":
        """Return the map to coordinates in directions (D, D)."""
        return replace(self, directions=directions)

    def decode(self, rows: Tensor) -> Tensor:
        """Map rows (n, D) to records ``(n, *sample_shape)``, or to normal scores (n, D)."""
        unturned = rows
        if self.directions is not None:
            unturned = rows @ self.directions.T
        unscaled = (unturned / self.scale + self.mean).float()
        if self.scores is not None:
            return unscaled
        return self.feature_map.decode(unscaled)


@dataclass(frozen=True, eq=False)
class AboutClassMeans:
    """Deviations of rows from the released means (C, D) of their classes.

    The object is an argument of :class:`dpswd.LabelledRows`.
    """

    rows: RowMap
    means: Tensor

    def __call__(self, values: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Map records of classes (n,) to deviations (n, D) and to their classes."""
        return self.rows(values, labels) - self.means[labels], labels


@dataclass(frozen=True, eq=False)
class InCells:
    """Deviations of leading coordinates from a point of their cell.

    The object is an argument of :class:`dpswd.LabelledRows`. The cell of a record is that of the
    nearest centre of its class.

    Attributes:
        rows: Map from records to rows.
        centres: Centres (C, n_cells, p) of the cells.
        origins: Points (K, p) that are subtracted, one for each cell.
        unit: Length that becomes 1.
    """

    rows: RowMap
    centres: Tensor
    origins: Tensor
    unit: float

    def __call__(self, values: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Map records of classes (n,) to deviations (n, p), and to their cells.

        The cells are numbers (n,).
        """
        p = self.centres.shape[2]
        leading = self.rows.leading(values, labels, p)
        cells = moments.cells_of(leading, labels, self.centres)
        return (leading - self.origins[cells]) / self.unit, cells
