r"""Gaussian releases besides the projections: class counts, class means, second moments, columns.

A query reads all N records (q = 1) and has a fixed L2 sensitivity under replace-one: with noise ``sigma`` it is
:math:`\mu`-GDP, :math:`\mu` = sensitivity / sigma. Gaussian releases compose as
:math:`\mu = \sqrt{\mu_1^2 + \mu_2^2}`, also adaptively (Dong2022, Corollary 3.3).

=========================  ==========================================  =======================  ===================
query                      statistic (per class c where it applies)    sensitivity              noise
=========================  ==========================================  =======================  ===================
:class:`ClassCounts`       :math:`n_c`                                 :math:`\sqrt 2`          i.i.d.
:class:`ClassMeans`        :math:`(R\,n_c, \sum_{i \in c} x_i)`        :math:`2 R`              i.i.d.
:class:`SumAndNorm`        :math:`(\sum_i x_i,`                        :math:`2 R`              i.i.d.
                           :math:`\sum_i \|x_i\|^2 / R)`
:class:`ClassCovariances`  :math:`\sum_{i \in c} x_i x_i^T`            :math:`\sqrt 2 R^2`      symmetric, per class
:class:`ColumnCounts`      records in the nodes of every column        :math:`\sqrt{2 L}`      i.i.d.
=========================  ==========================================  =======================  ===================

R is ``row_norm``, to which the x_i are clipped. Symmetric noise is ``sigma (G + G^T) / 2`` with G standard
normal. Proofs: docs/theory/sensitivity.md, Propositions 6 to 10 and 12.

Every query has ``release(records, ..., rows=None)``: ``rows`` maps records to the x_i, each by itself
(:mod:`dpswd.row_copy`). Every query has the options ``sigma``, the standard deviation of the noise (``None`` until a budget
sets it), ``share``, the part of the squared mu of a budget that it gets, below 1, and ``noise_seed``, for tests only:
NOT PRIVATE.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dpswd._distributed import Processes
from dpswd._random import noisy, normal
from dpswd._validate import at_least, positive, probability
from dpswd.bins import Bins, Bounds
from dpswd.errors import InputError
from dpswd.mechanism import GaussianMechanism
from dpswd.records import PrivateRecords
from dpswd.release import Releasing, clip_rows, uncompiled
from dpswd.row_copy import LabelledRows, RowFunction

__all__ = ["ClassCounts", "ClassCovariances", "ClassMeans", "ColumnCounts", "SumAndNorm"]

Add = Callable[
    [Tensor, Tensor, Tensor], None
]  # adds rows (n, d) with groups (n,) to a sum in float64
Pair = tuple[tuple[Any, ...], tuple[Any, ...]]  # arguments of release for two neighbours

_FAR = 1000.0  # norm of the record that differs in an audit, in units of the clipping bound


class GaussianQuery(Releasing[GaussianMechanism]):
    """Base of the queries of all records; a :class:`dpswd.Budget` sets sigma and recorder."""

    n_classes = 1
    symmetric = False  # whether the sum and its noise are symmetric matrices

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
        super().__init__(
            GaussianMechanism(
                sensitivity=sensitivity, name=name, sigma=sigma, noise_seed=noise_seed
            )
        )
        self.share = share

    def worst_pair(self, size: int) -> Pair:
        """Return the arguments of ``release`` for two neighbours that attain the sensitivity; for audits.

        The first of ``size`` records differs, and its norm exceeds the clipping bound.
        """
        raise InputError(f"Expected a query that defines worst_pair, got {type(self).__name__}.")

    def coordinates(self, released: Any) -> Any:
        """Return the result of ``release`` as one tensor in the units of the sensitivity."""
        return released

    @uncompiled
    @torch.no_grad()
    def _sum(
        self, records: PrivateRecords, rows: RowFunction | None, shape: tuple[int, ...], add: Add
    ) -> Tensor:
        """Release a sum over all records, or return a stored release without opening a record."""
        if not isinstance(records, PrivateRecords):
            raise InputError(
                f"Expected PrivateRecords, got {type(records).__name__}; wrap them: PrivateRecords(X, y)."
            )
        if (
            self.n_classes > 1
            and not isinstance(rows, LabelledRows)
            and records.n_classes != self.n_classes
        ):
            raise InputError(
                f"Expected records of n_classes={self.n_classes}, got {records.n_classes}; make it equal."
            )
        if (stored := self._ask(records)) is not None:
            if tuple(stored["values"].shape) != shape:
                raise InputError(
                    "Expected the query of the interrupted run, got a new one; resume with its config."
                )
            return stored["values"]
        values = torch.zeros(shape, dtype=torch.float64)

        def total() -> None:
            for mapped, groups in self._open_all(records, rows):
                if self.n_classes == 1:  # one group takes all records
                    groups = torch.zeros_like(groups)
                elif bool(((groups < 0) | (groups >= self.n_classes)).any()):
                    raise InputError(
                        f"Expected groups below {self.n_classes}, got groups outside; check n_classes."
                    )
                add(values, mapped, groups)

        def add_noise(exact: Tensor) -> Tensor:
            noise = normal(self._source, shape)
            if self.symmetric:
                exact, noise = (exact + exact.mT) / 2, (noise + noise.mT) / 2
            return noisy(exact, noise, self.mechanism.sigma)

        processes = Processes()
        processes.run_on_all(total)
        return self._publish(processes.sum(values), add_noise)


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

    def release(self, records: PrivateRecords) -> Tensor:
        """Release noisy counts (C,) in float64, neither rounded nor clamped at 0."""

        def add(counts: Tensor, rows: Tensor, groups: Tensor) -> None:
            counts += torch.bincount(groups, minlength=self.n_classes)

        return self._sum(records, None, (self.n_classes,), add)

    def worst_pair(self, size: int) -> Pair:
        """Move a record from class 0 to class 1."""
        return _neighbours(
            torch.zeros(size, 1), torch.zeros(1), n_classes=self.n_classes, new_class=1
        )


class _RowQuery(GaussianQuery):
    """Base of the queries of clipped rows (n, d) in C classes."""

    name = ""  # in the ledger
    order = 1  # of the sensitivity in R: 2 R, or sqrt(2) R^2

    def __init__(self, n_classes: int, dim: int, row_norm: float = 0.5, **options: Any) -> None:
        at_least(1, n_classes=n_classes, dim=dim)
        positive(row_norm=row_norm)
        name = f"{self.name} of {n_classes} classes" if n_classes > 1 else self.name
        sensitivity = (
            2 * float(row_norm) if self.order == 1 else math.sqrt(2) * float(row_norm) ** 2
        )
        super().__init__(name, sensitivity, **options)
        self.n_classes, self.dim = n_classes, dim

    @property
    def row_norm(self) -> float:
        """Bound R on the norm of a row, as the sensitivity of the mechanism states it."""
        sensitivity = self.mechanism.sensitivity
        return sensitivity / 2 if self.order == 1 else math.sqrt(sensitivity / math.sqrt(2))

    def _clip(self, rows: Tensor) -> Tensor:
        """Return rows, clipped, in float64."""
        if rows.shape[1] != self.dim:
            raise InputError(
                f"Expected rows of dim={self.dim}, got {rows.shape[1]}; set dim to that of the rows."
            )
        return clip_rows(rows, self.row_norm)

    def worst_pair(self, size: int) -> Pair:
        """Replace a long row among short ones of all classes by its negative (order 1) or an orthogonal one."""
        rows = torch.full((size, self.dim), self.row_norm / (2 * math.sqrt(self.dim)))
        rows[0] = _FAR * self.row_norm * torch.eye(self.dim)[0]
        moved = -rows[0] if self.order == 1 else rows[0].roll(1)
        labels = torch.arange(size) % self.n_classes
        return _neighbours(rows, moved, n_classes=self.n_classes, new_class=1, labels=labels)


class ClassMeans(_RowQuery):
    """Number of records of each class and the sum of their rows; the counts add nothing to the sensitivity.

    Args:
        n_classes: Public number C >= 1 of classes.
        dim: Dimension d of the rows.
        row_norm: Public bound R on the norm of a row, enforced by clipping.
        options: ``sigma``, of a sum (of a count: sigma / R), ``share`` and ``noise_seed``.

    Example:
        >>> ClassMeans(2, dim=3).mechanism.description
        'counts and sums of 2 classes (Gaussian mechanism, sensitivity 1)'
    """

    name = "counts and sums"

    def release(
        self, records: PrivateRecords, rows: RowFunction | None = None
    ) -> tuple[Tensor, Tensor]:
        """Open every record once and release noisy counts (C,) and sums (C, d) in float64."""

        def add(totals: Tensor, rows: Tensor, groups: Tensor) -> None:
            clipped = self._clip(rows)
            added = torch.cat([torch.full_like(clipped[:, :1], self.row_norm), clipped], dim=1)
            totals.index_add_(0, groups, _summable(added, self.row_norm, len(records)))

        released = self._sum(records, rows, (self.n_classes, 1 + self.dim), add)
        return released[:, 0] / self.row_norm, released[:, 1:]

    def coordinates(self, released: tuple[Tensor, Tensor]) -> Tensor:
        """Return (C, 1 + d): counts times R, which have the noise of the sums, and the sums."""
        counts, sums = released
        return torch.cat([counts[:, None] * self.row_norm, sums], dim=1)


class ColumnCounts(GaussianQuery):
    r"""Number of records of each class in the bins of every column, and in groups of bins.

    Groups are the nodes of the trees of :mod:`dpswd.bins`: sums over many bins then consist of few noisy numbers. A
    record is in one node of each of the L levels of all trees, so the sensitivity is :math:`\sqrt{2 L}`
    (docs/theory/sensitivity.md, Proposition 12).

    Args:
        n_classes: Public number C >= 1 of classes.
        bounds: Public bounds (low, high) of each of the d columns. Values beyond count as the bounds.
        kinds: Public kind of each column: ``"numeric"``, ``"integer"`` or ``"binary"``; ``None`` if all are numeric.
        n_bins: Most bins of a column, at least 4; integers have one bin each if they are no more than that.
        options: ``sigma``, of a count, ``share`` and ``noise_seed``.

    Example:
        >>> query = ColumnCounts(2, bounds=[(0, 1), (17, 90)], kinds=["binary", "integer"], n_bins=64)
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
        bins = Bins.of(bounds, kinds, n_bins)  # and their nodes
        super().__init__("counts in columns", math.sqrt(2 * len(bins.levels)), **options)
        self.n_classes, self.bins = n_classes, bins

    def release(self, records: PrivateRecords, rows: RowFunction | None = None) -> Tensor:
        """Open every record once and release noisy counts (C, M) in float64, in the order of ``bins.levels``."""

        def add(counts: Tensor, rows: Tensor, groups: Tensor) -> None:
            if rows.shape[1] != (d := len(self.bins.n_bins)):
                raise InputError(
                    f"Expected rows of {d} columns, as bounds has, got {rows.shape[1]}; make them equal."
                )
            nodes = (groups[:, None] * self.bins.n_nodes + self.bins.nodes(rows)).flatten()
            counts.view(-1).index_add_(0, nodes, torch.ones(len(nodes), dtype=torch.float64))

        return self._sum(records, rows, (self.n_classes, self.bins.n_nodes), add)

    def worst_pair(self, size: int) -> Pair:
        """Move a record from below the bounds of all columns to above them: two nodes change on every level."""
        ends = [self.bins.edges[j, [0, count - 1]] for j, count in enumerate(self.bins.n_bins)]
        low, high = torch.stack(ends, dim=1).float()
        rows = low.repeat(size, 1)
        rows[0] -= _FAR * (high - low)
        return _neighbours(rows, high + _FAR * (high - low), n_classes=self.n_classes)


class ClassCovariances(_RowQuery):
    """Sum of the outer products of clipped rows, for each class: second moments.

    For moments about centres that are public or released, ``rows`` subtracts those (:class:`dpswd.LabelledRows`).

    Args:
        n_classes: Public number C >= 1 of classes.
        dim: Dimension d of the rows.
        row_norm: Public bound R on the norm of a row, enforced by clipping.
        options: ``sigma``, of a diagonal entry (off the diagonal: sigma / sqrt 2), ``share`` and ``noise_seed``.

    Example:
        >>> ClassCovariances(2, dim=3).mechanism.description
        'second moments of 2 classes (Gaussian mechanism, sensitivity 0.353553)'
    """

    name = "second moments"
    order = 2
    symmetric = True

    def release(self, records: PrivateRecords, rows: RowFunction | None = None) -> Tensor:
        """Open every record once and release noisy sums (C, d, d), symmetric, in float64."""

        def add(moments: Tensor, rows: Tensor, groups: Tensor) -> None:
            clipped = _summable(self._clip(rows), self.row_norm, len(records), order=2)
            for c in range(self.n_classes):
                of_class = clipped[groups == c]
                moments[c] += of_class.T @ of_class

        return self._sum(records, rows, (self.n_classes, self.dim, self.dim), add)


class SumAndNorm(_RowQuery):
    r"""Sum of all rows, and the sum of their squared norms, which adds nothing to the sensitivity.

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

    def release(
        self, records: PrivateRecords, rows: RowFunction | None = None
    ) -> tuple[Tensor, float]:
        """Open every record once and release the noisy sum (d,) in float64 and the noisy sum of squared norms."""

        def add(totals: Tensor, rows: Tensor, groups: Tensor) -> None:
            clipped = self._clip(rows)
            added = torch.cat(
                [clipped, clipped.square().sum(1, keepdim=True) / self.row_norm], dim=1
            )
            totals += _summable(added, self.row_norm, len(records)).sum(0)

        released = self._sum(records, rows, (self.dim + 1,), add)
        return released[:-1], float(released[-1]) * self.row_norm

    def coordinates(self, released: tuple[Tensor, float]) -> Tensor:
        """Return (d + 1,): the sum, and the sum of squared norms over R, which has the noise of the sum."""
        total, squares = released
        return torch.cat([total, total.new_tensor([squares / self.row_norm])])


def _summable(values: Tensor, bound: float, n: int, order: int = 1) -> Tensor:
    """Round values of at most ``bound`` towards zero, so that float64 adds n of them without error, in any order.

    With ``order=2`` that holds for n products of two values. Errors of additions would depend on all records
    (docs/theory/numerics.md).
    """
    grid = 2.0 ** math.ceil(math.log2(bound) + (math.log2(n) - 53) / order)
    return (values / grid).trunc_().mul_(grid)


def _neighbours(
    rows: Tensor, first: Tensor, n_classes: int, new_class: int = 0, labels: Tensor | None = None
) -> Pair:
    """Return handles of rows (n, d) and of the same with another first row and, if there are classes, class."""
    moved = torch.cat([first.to(rows)[None], rows[1:]])
    if n_classes < 2:
        return (PrivateRecords(rows),), (PrivateRecords(moved),)
    labels, classes = (
        torch.zeros(len(rows), dtype=torch.int64) if labels is None else labels,
        range(n_classes),
    )
    changed = torch.cat([labels.new_tensor([new_class]), labels[1:]])
    return (PrivateRecords(rows, labels, classes=classes),), (
        PrivateRecords(moved, changed, classes=classes),
    )
