"""Queries of a fit, each with its share of the budget.

They are in the order of their releases.
"""

from dataclasses import dataclass
from typing import Any

from dpswd.mixture.structure import RAW_NORM, ROW_NORM, Structure, squares_bound
from dpswd.queries import ClassCovariances, ClassMeans, ClassSquares, ColumnCounts, SumAndNorm
from dpswd.records import PrivateRecords

__all__ = ["Queries"]

# Shares are below 1.
_LARGEST_SHARE = 0.99


@dataclass(frozen=True, eq=False)
class Queries:
    """Queries of a fit; ``None`` for what the structure does not release.

    Attributes:
        columns: Counts in the bins of every column.
        overall: Sum of all rows and of their squared norms.
        tones: Sum of the histograms of the pixels of all images.
        means: Counts and sums of classes.
        moments: Second moments of classes, or of all classes together.
        variances: Squares of all classes together, where there are no second moments.
        cell_means: Counts and sums of cells, one query for each round.
        cell_moments: Second moments of cells.
    """

    columns: ColumnCounts | None
    overall: SumAndNorm | None
    tones: ClassMeans | None
    means: ClassMeans | None
    moments: ClassCovariances | None
    variances: ClassSquares | None
    cell_means: tuple[ClassMeans, ...]
    cell_moments: ClassCovariances | None

    @classmethod
    def of(cls, structure: Structure, records: PrivateRecords, noise_seed: int | None) -> "Queries":
        """Return the queries of a structure.

        Args:
            structure: What is released, and the shares of the budget.
            records: The records, whose public bounds and kinds of columns are used.
            noise_seed: For tests only: NOT PRIVATE.
        """
        shares = structure.shares
        n_groups = structure.n_groups
        n_cells = n_groups * structure.n_cells
        dim = structure.dim
        p = structure.n_components
        columns = None
        overall = None
        tones = None
        means = None
        moments = None
        variances = None
        cell_moments = None
        n_moments = n_groups
        if structure.pooled:
            n_moments = 1
        if "columns" in shares:
            # A query that is the only one gets all of mu, whatever its share.
            column_share = min(shares["columns"], _LARGEST_SHARE)
            bounds: Any = records.bounds  # which a structure with columns requires
            n_distributions = n_groups if structure.own_columns else 1
            columns = ColumnCounts(
                n_distributions,
                bounds,
                records.kinds,
                structure.n_bins,
                share=column_share,
                noise_seed=noise_seed,
            )
        if "overall" in shares:
            overall = SumAndNorm(dim, RAW_NORM, share=shares["overall"], noise_seed=noise_seed)
        if "tones" in shares:
            tones = ClassMeans(
                1,
                structure.n_levels,
                ROW_NORM,
                share=shares["tones"],
                noise_seed=noise_seed,
                name="sum of the histograms of pixels",
            )
        if "means" in shares:
            means = ClassMeans(
                n_groups, dim, ROW_NORM, share=shares["means"], noise_seed=noise_seed
            )
        if "moments" in shares:
            moments = ClassCovariances(
                n_moments,
                dim,
                structure.class_bound,
                share=shares["moments"],
                noise_seed=noise_seed,
            )
        if "variances" in shares:
            variances = ClassSquares(
                1, dim, squares_bound(dim), share=shares["variances"], noise_seed=noise_seed
            )
        cell_means = []
        for i in range(structure.n_rounds):
            seed = noise_seed
            if seed is not None:
                seed += i  # each round has noise of its own
            share = shares["cell_means"] / structure.n_rounds
            name = f"counts and sums of {n_cells} cells"
            query = ClassMeans(n_cells, p, ROW_NORM, share=share, noise_seed=seed, name=name)
            cell_means.append(query)
        if "cell_moments" in shares:
            cell_moments = ClassCovariances(
                n_cells,
                p,
                ROW_NORM,
                share=shares["cell_moments"],
                noise_seed=noise_seed,
                name=f"second moments of {n_cells} cells",
            )
        return cls(
            columns, overall, tones, means, moments, variances, tuple(cell_means), cell_moments
        )

    def in_order(self) -> list[Any]:
        """Return the queries in the order of their releases.

        The last one gets what is left of mu.
        """
        first = [self.columns, self.overall, self.tones, self.means, self.moments, self.variances]
        queries = [*first, *self.cell_means, self.cell_moments]
        return [query for query in queries if query is not None]
