r"""Gaussian releases besides the projections.

They are class counts, class means, second moments, squares, and columns.

A query reads all N records (q = 1) and has a fixed L2 sensitivity under replace-one: with noise
``sigma`` it is :math:`\mu`-GDP, :math:`\mu` = sensitivity / sigma. Gaussian releases compose as
:math:`\mu = \sqrt{\mu_1^2 + \mu_2^2}`, also adaptively (Dong2022, Corollary 3.3).

=========================  ===================================  ==================  ==============
query                      statistic, per class c if it has     sensitivity         noise
=========================  ===================================  ==================  ==============
:class:`ClassCounts`       :math:`n_c`                          :math:`\sqrt 2`     i.i.d.
:class:`ClassMeans`        :math:`(R\,n_c, \sum_{i \in c} x_i)` :math:`2 R`         i.i.d.
:class:`SumAndNorm`        :math:`(\sum_i x_i,`                 :math:`2 R`         i.i.d.
                           :math:`\sum_i \|x_i\|^2 / R)`
:class:`ClassCovariances`  :math:`\sum_{i \in c} x_i x_i^T`     :math:`\sqrt 2 R^2` symmetric
:class:`ClassSquares`      :math:`\sum_{i \in c} s_i`           :math:`\sqrt 2 B`   i.i.d.
:class:`ColumnCounts`      records in nodes of every column     :math:`\sqrt{2 L}`  i.i.d.
=========================  ===================================  ==================  ==============

R is ``row_norm``, to which the x_i are clipped. Symmetric noise is ``sigma (G + G^T) / 2`` for each
class, with G standard normal. s_i has the squares of the entries of x_i and is clipped to norm B.
Proofs: docs/theory/sensitivity.md, Propositions 6 to 10, 12 and 37.

Every query has ``release(records, ..., rows=None)``: ``rows`` maps records to the x_i, each by
itself (:mod:`dpswd.row_copy`). :func:`dpswd.release.make_release` makes the release; a query states
what a chunk of records contributes, the shape of the sum, the sensitivity and the noise.

Every query has the options ``sigma``, the standard deviation of the noise (``None`` until a budget
sets it), ``share``, the part of the squared mu of a budget that it gets, below 1, and
``noise_seed``, for tests only: NOT PRIVATE.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dpswd._validate import at_least, positive, probability
from dpswd.bins import Bins, Bounds
from dpswd.clipping import clip_rows
from dpswd.errors import InputError
from dpswd.mechanism import GaussianMechanism
from dpswd.records import PrivateRecords, check_handle, check_n_classes
from dpswd.release import RecordSum, make_release
from dpswd.row_copy import LabelledRows, RowFunction

__all__ = [
    "ClassCounts",
    "ClassCovariances",
    "ClassMeans",
    "ClassSquares",
    "ColumnCounts",
    "SumAndNorm",
]

# Norm of the record that differs in an audit, in units of the clipping bound: clipping must show.
_FAR = 1000.0


class GaussianQuery(RecordSum):
    """Base of the queries of all records.

    A :class:`dpswd.Budget` sets sigma and recorder.

    Args:
        name: Name of the query in the ledger.
        sensitivity: L2 sensitivity of the sum under replace-one.
        sigma: Standard deviation of the noise; ``None`` until a budget sets it.
        share: Part of the squared mu of a budget, below 1.
        noise_seed: For tests only: NOT PRIVATE.
    """

    def __init__(
        self,
        name: str,
        sensitivity: float,
        *,
        sigma: Any = None,
        share: float = 0.2,
        noise_seed: int | None = None,
    ) -> None:
        probability(share=share)
        mechanism = GaussianMechanism(
            sensitivity=sensitivity, name=name, sigma=sigma, noise_seed=noise_seed
        )
        super().__init__(mechanism)
        self.share = share

    def release_sum(
        self, records: PrivateRecords, row_function: RowFunction | None = None
    ) -> Tensor:
        """Release the noisy sum over all records, in :attr:`shape` and in float64.

        Raises:
            InputError: If the records are not behind a handle, or have other classes.
            BudgetExceededError: If the recorder refuses the release.
        """
        check_handle(records)
        groups_are_classes = self.n_classes > 1 and not isinstance(row_function, LabelledRows)
        if groups_are_classes:
            check_n_classes(records, self.n_classes, type(self).__name__)
        return make_release(self, records, row_function)["values"]

    def worst_pair(self, size: int) -> tuple[PrivateRecords, PrivateRecords]:
        """Return two neighbouring data sets that attain the sensitivity; for audits.

        The first of ``size`` records differs, and its norm exceeds the clipping bound.
        """
        raise InputError(f"Expected a query that defines worst_pair, got {type(self).__name__}.")

    def coordinates(self, released: Any) -> Any:
        """Return the result of ``release`` as one tensor in the units of the sensitivity."""
        return released


class ClassCounts(GaussianQuery):
    """Number of records of each class.

    Args:
        n_classes: Public number C >= 2 of classes.
        share: Part of the squared mu of the budget.
        options: ``sigma``, of a count, and ``noise_seed``.

    Example:
        >>> ClassCounts(2, share=0.02).mechanism.description
        'class counts (Gaussian mechanism, sensitivity 1.41421)'
    """

    def __init__(self, n_classes: int, *, share: float = 0.01, **options: Any) -> None:
        at_least(2, n_classes=n_classes)
        super().__init__("class counts", math.sqrt(2), share=share, **options)
        self.n_classes = n_classes
        self.shape = (n_classes,)

    def release(self, records: PrivateRecords) -> Tensor:
        """Release noisy counts (C,) in float64, neither rounded nor clamped at 0."""
        return self.release_sum(records)

    def contribution(self, rows: Tensor, groups: Tensor, n_records: int) -> Tensor:
        """Count the records of a chunk. PRIVATE."""
        return torch.bincount(groups, minlength=self.n_classes).double()

    def worst_pair(self, size: int) -> tuple[PrivateRecords, PrivateRecords]:
        """Move a record from class 0 to class 1."""
        rows = torch.zeros(size, 1)
        first = _handle(rows, torch.zeros(size, dtype=torch.int64), self.n_classes)
        second = _handle(rows, _first_changed_to(1, size), self.n_classes)
        return first, second


class _RowQuery(GaussianQuery):
    """Base of the queries of clipped rows (n, d) in C classes."""

    name = ""  # in the ledger
    # The sensitivity is factor R^order: sqrt(2) where no inner product of two terms is negative.
    factor = 2.0
    order = 1

    def __init__(
        self,
        n_classes: int,
        dim: int,
        row_norm: float = 0.5,
        *,
        name: str | None = None,
        **options: Any,
    ) -> None:
        at_least(1, n_classes=n_classes, dim=dim)
        positive(row_norm=row_norm)
        if name is None:
            name = self.name
            if n_classes > 1:
                name = f"{self.name} of {n_classes} classes"
        sensitivity = self.factor * float(row_norm) ** self.order
        super().__init__(name, sensitivity, **options)
        self.n_classes = n_classes
        self.dim = dim

    @property
    def row_norm(self) -> float:
        """Bound R on the norm of a row, as the sensitivity of the mechanism states it."""
        bound = self.mechanism.sensitivity / self.factor
        if self.order == 2:
            return math.sqrt(bound)
        return bound

    def _check_dim(self, rows: Tensor) -> None:
        """Refuse rows of another dimension."""
        if rows.shape[1] != self.dim:
            raise InputError(
                f"Expected rows of dim={self.dim}, got {rows.shape[1]}; "
                "set dim to that of the rows."
            )

    def _clip(self, rows: Tensor) -> Tensor:
        """Return rows, clipped, in float64."""
        self._check_dim(rows)
        return clip_rows(rows, self.row_norm)

    def worst_pair(self, size: int) -> tuple[PrivateRecords, PrivateRecords]:
        """Replace a long row among short ones of all classes.

        The class of the row changes from 0 to 1. The other row is the negative one, or an
        orthogonal one where no inner product of two terms is negative.
        """
        rows = torch.full((size, self.dim), self.row_norm / (2 * math.sqrt(self.dim)))
        rows[0] = _FAR * self.row_norm * torch.eye(self.dim)[0]
        other = rows.clone()
        other[0] = -rows[0]
        if self.factor < 2:
            other[0] = rows[0].roll(1)
        labels = torch.arange(size) % self.n_classes
        other_labels = labels.clone()
        other_labels[0] = 1
        first = _handle(rows, labels, self.n_classes)
        second = _handle(other, other_labels, self.n_classes)
        return first, second


class ClassMeans(_RowQuery):
    """Number of records of each class and the sum of their rows.

    The counts add nothing to the sensitivity.

    Args:
        n_classes: Public number C >= 1 of classes.
        dim: Dimension d of the rows.
        row_norm: Public bound R on the norm of a row, enforced by clipping.
        options: ``sigma``, of a sum (of a count: sigma / R), ``share``, ``noise_seed``, and
            ``name``, by which the ledger calls the release.

    Example:
        >>> ClassMeans(2, dim=3).mechanism.description
        'counts and sums of 2 classes (Gaussian mechanism, sensitivity 1)'
    """

    name = "counts and sums"

    def __init__(self, n_classes: int, dim: int, row_norm: float = 0.5, **options: Any) -> None:
        super().__init__(n_classes, dim, row_norm, **options)
        self.shape = (n_classes, 1 + dim)

    def release(
        self, records: PrivateRecords, rows: RowFunction | None = None
    ) -> tuple[Tensor, Tensor]:
        """Open every record once and release noisy counts (C,) and sums (C, d) in float64."""
        values = self.release_sum(records, rows)
        return values[:, 0] / self.row_norm, values[:, 1:]

    def contribution(self, rows: Tensor, groups: Tensor, n_records: int) -> Tensor:
        """Return (C, 1 + d): counts times R, and sums of clipped rows. PRIVATE."""
        clipped = self._clip(rows)
        ones = torch.full_like(clipped[:, :1], self.row_norm)
        terms = _summable(torch.cat([ones, clipped], dim=1), self.row_norm, n_records)
        return torch.zeros(self.shape, dtype=torch.float64).index_add_(0, groups, terms)

    def coordinates(self, released: tuple[Tensor, Tensor]) -> Tensor:
        """Return (C, 1 + d): counts times R, and the sums.

        The counts times R have the noise of the sums.
        """
        counts, sums = released
        return torch.cat([counts[:, None] * self.row_norm, sums], dim=1)


class ColumnCounts(GaussianQuery):
    r"""Number of records of each class in bins of columns.

    Records in groups of bins are counted as well.

    Groups are the nodes of the trees of :mod:`dpswd.bins`: sums over many bins then consist of few
    noisy numbers. A record is in one node of each of the L levels of all trees, so the sensitivity
    is :math:`\sqrt{2 L}` (docs/theory/sensitivity.md, Proposition 12).

    Args:
        n_classes: Public number C >= 1 of classes.
        bounds: Public bounds (low, high) of each of the d columns. Values beyond count as the
            bounds.
        kinds: Public kind of each column: ``"numeric"``, ``"integer"``, ``"binary"``, or
            ``"nominal"`` for numbers of categories; ``None`` if all are numeric.
        n_bins: Most bins of a column, at least 4; integers have one bin each if they are no more
            than that.
        options: ``sigma``, of a count, ``share`` and ``noise_seed``.

    Example:
        >>> query = ColumnCounts(2, [(0, 1), (17, 90)], ["binary", "integer"], n_bins=64)
        >>> query.bins.n_bins, query.mechanism.description
        ((2, 64), 'counts in columns (Gaussian mechanism, sensitivity 2.44949)')
    """

    def __init__(
        self,
        n_classes: int,
        bounds: Bounds,
        kinds: Sequence[str] | None = None,
        n_bins: int = 64,
        **options: Any,
    ) -> None:
        at_least(1, n_classes=n_classes)
        bins = Bins.of(bounds, kinds, n_bins)
        super().__init__("counts in columns", math.sqrt(2 * len(bins.levels)), **options)
        self.n_classes = n_classes
        self.bins = bins
        self.shape = (n_classes, bins.n_nodes)

    def release(self, records: PrivateRecords, rows: RowFunction | None = None) -> Tensor:
        """Open every record once and release noisy counts (C, M) in float64.

        The M counts of a class have the order of ``bins.levels``.
        """
        return self.release_sum(records, rows)

    def contribution(self, rows: Tensor, groups: Tensor, n_records: int) -> Tensor:
        """Count the records (C, M) of a chunk in the nodes of all trees. PRIVATE."""
        n_columns = len(self.bins.n_bins)
        if rows.shape[1] != n_columns:
            raise InputError(
                f"Expected rows of {n_columns} columns, as bounds has, got {rows.shape[1]}; "
                "make them equal."
            )
        nodes = groups[:, None] * self.bins.n_nodes + self.bins.nodes(rows)
        counts = torch.bincount(nodes.flatten(), minlength=math.prod(self.shape))
        return counts.double().view(self.shape)

    def worst_pair(self, size: int) -> tuple[PrivateRecords, PrivateRecords]:
        """Move a record from below the bounds of all columns to above them.

        Two nodes change on every level.
        """
        lowest = self.bins.edges[:, 0]
        highest = torch.stack(
            [
                edges[n_bins - 1]
                for edges, n_bins in zip(self.bins.edges, self.bins.n_bins, strict=True)
            ]
        )
        low = lowest.float()
        high = highest.float()
        rows = low.repeat(size, 1)
        rows[0] -= _FAR * (high - low)
        other = rows.clone()
        other[0] = high + _FAR * (high - low)
        labels = torch.zeros(size, dtype=torch.int64)
        first = _handle(rows, labels, self.n_classes)
        second = _handle(other, labels, self.n_classes)
        return first, second


class ClassCovariances(_RowQuery):
    """Sum of the outer products of clipped rows, for each class: second moments.

    For moments about centres that are public or released, ``rows`` subtracts those
    (:class:`dpswd.LabelledRows`).

    Args:
        n_classes: Public number C >= 1 of classes.
        dim: Dimension d of the rows.
        row_norm: Public bound R on the norm of a row, enforced by clipping.
        options: ``sigma``, of a diagonal entry (off the diagonal: sigma / sqrt 2), ``share``,
            ``noise_seed``, and ``name``, by which the ledger calls the release.

    Example:
        >>> ClassCovariances(2, dim=3).mechanism.description
        'second moments of 2 classes (Gaussian mechanism, sensitivity 0.353553)'
    """

    name = "second moments"
    factor = math.sqrt(2)
    order = 2

    def __init__(self, n_classes: int, dim: int, row_norm: float = 0.5, **options: Any) -> None:
        super().__init__(n_classes, dim, row_norm, **options)
        self.shape = (n_classes, dim, dim)

    def release(self, records: PrivateRecords, rows: RowFunction | None = None) -> Tensor:
        """Open every record once and release noisy sums (C, d, d), symmetric, in float64."""
        return self.release_sum(records, rows)

    def contribution(self, rows: Tensor, groups: Tensor, n_records: int) -> Tensor:
        """Return the sums (C, d, d) of outer products of clipped rows. PRIVATE.

        They are without error.
        """
        factors = _summable(self._clip(rows), self.row_norm, n_records, order=2)
        moments = torch.empty(self.shape, dtype=torch.float64)
        for c in range(self.n_classes):
            class_factors = factors[groups == c]
            torch.mm(class_factors.T, class_factors, out=moments[c])
        return moments

    def draw_noise(self, shape: tuple[int, ...]) -> Tensor:
        """Draw symmetric noise: the mean of a standard normal matrix and its transpose."""
        normal = super().draw_noise(shape)
        return (normal + normal.mT) / 2


class ClassSquares(_RowQuery):
    """Sum of the squared entries of rows, for each class.

    These are the diagonals of second moments.

    The squares of a row are a row without negative entries, clipped to norm B as a whole. A row
    whose d entries are of equal size has squares of norm R^2 / sqrt(d), so that B can be far below
    R^2, and the noise with it (docs/theory/sensitivity.md, Proposition 37).

    Args:
        n_classes: Public number C >= 1 of classes.
        dim: Dimension d of the rows.
        row_norm: Public bound B on the norm of the squares of a row, enforced by clipping.
        options: ``sigma``, of a sum, ``share`` and ``noise_seed``.

    Example:
        >>> ClassSquares(2, dim=3, row_norm=0.25).mechanism.description
        'squares of 2 classes (Gaussian mechanism, sensitivity 0.353553)'
    """

    name = "squares"
    factor = math.sqrt(2)

    def __init__(self, n_classes: int, dim: int, row_norm: float = 0.25, **options: Any) -> None:
        super().__init__(n_classes, dim, row_norm, **options)
        self.shape = (n_classes, dim)

    def release(self, records: PrivateRecords, rows: RowFunction | None = None) -> Tensor:
        """Open every record once and release noisy sums (C, d) of squares in float64."""
        return self.release_sum(records, rows)

    def contribution(self, rows: Tensor, groups: Tensor, n_records: int) -> Tensor:
        """Return the sums (C, d) of clipped squares. PRIVATE."""
        self._check_dim(rows)
        # The squares of a longer row are longer than B: it is shortened first, so that no square
        # overflows.
        longest = math.sqrt(self.row_norm) * self.dim**0.25
        squares = clip_rows(clip_rows(rows, longest).square_(), self.row_norm)
        terms = _summable(squares, self.row_norm, n_records)
        return torch.zeros(self.shape, dtype=torch.float64).index_add_(0, groups, terms)


class SumAndNorm(_RowQuery):
    r"""Sum of all rows, and the sum of their squared norms.

    The squared norms add nothing to the sensitivity.

    With rows of norm at most R a record contributes :math:`(x, \|x\|^2 / R)`; the sensitivity is 2R
    (docs/theory/sensitivity.md, Proposition 10).

    Args:
        dim: Dimension d of the rows.
        row_norm: Public bound R on the norm of a row, enforced by clipping.
        options: ``sigma``, of an entry of the sum, ``share`` and ``noise_seed``.

    Example:
        >>> SumAndNorm(3).mechanism.sensitivity
        1.0
    """

    name = "sum of rows and squared norms"

    def __init__(self, dim: int, row_norm: float = 0.5, **options: Any) -> None:
        super().__init__(1, dim, row_norm, **options)
        self.shape = (dim + 1,)

    def release(
        self, records: PrivateRecords, rows: RowFunction | None = None
    ) -> tuple[Tensor, float]:
        """Open every record once and release both noisy sums.

        They are the sum of the rows, and the sum of squared norms.

        Returns:
            The sum (d,) in float64, and a number.
        """
        values = self.release_sum(records, rows)
        return values[:-1], float(values[-1]) * self.row_norm

    def contribution(self, rows: Tensor, groups: Tensor, n_records: int) -> Tensor:
        """Return (d + 1,): sums of clipped rows and of squared norms. PRIVATE.

        The squared norms are divided by R.
        """
        clipped = self._clip(rows)
        squares = clipped.square().sum(1, keepdim=True) / self.row_norm
        return _summable(torch.cat([clipped, squares], dim=1), self.row_norm, n_records).sum(0)

    def coordinates(self, released: tuple[Tensor, float]) -> Tensor:
        """Return (d + 1,): the sum, and the sum of squared norms over R.

        Both have the same noise.
        """
        total, squares = released
        return torch.cat([total, total.new_tensor([squares / self.row_norm])])


def _summable(values: Tensor, bound: float, n: int, order: int = 1) -> Tensor:
    """Round values so that float64 adds n of them without error, in any order.

    Errors of additions would depend on all records (docs/theory/numerics.md). Values are rounded
    towards zero to multiples of a power of two. With n = 2^13 values of at most 1/2 that is 2^-41:
    a sum is at most 2^12 and has 53 binary digits.

    Args:
        values: Values of at most ``bound`` in absolute value; they are not changed.
        bound: Public bound.
        n: Number of terms of the sum.
        order: 2 if the terms are products of two values each.
    """
    grid = 2.0 ** math.ceil(math.log2(bound) + (math.log2(n) - 53) / order)
    return (values / grid).trunc_().mul_(grid)


def _handle(rows: Tensor, labels: Tensor, n_classes: int) -> PrivateRecords:
    """Return a handle of rows (n, d) with labels (n,).

    With a single class it has no labels.
    """
    if n_classes == 1:
        return PrivateRecords(rows)
    return PrivateRecords(rows, labels, classes=range(n_classes))


def _first_changed_to(label: int, size: int) -> Tensor:
    """Return labels (size,) of class 0, of which the first is ``label``."""
    labels = torch.zeros(size, dtype=torch.int64)
    labels[0] = label
    return labels
