r"""Gaussian releases besides the projections: class counts, class means, second moments.

A query reads all N records (q = 1) and has a fixed L2 sensitivity under replace-one. Its path is that of a loss:
check, clip, sum over records and ranks, ledger, noise. With noise ``sigma`` it is :math:`\mu`-GDP, :math:`\mu` =
sensitivity / sigma. Gaussian releases compose as :math:`\mu = \sqrt{\mu_1^2 + \mu_2^2}`, also if a later one depends on
the result of an earlier one (Dong2022, Corollary 3.3).

=========================  ==========================================  =======================  ===================
query                      statistic (per class c where it applies)    sensitivity              noise
=========================  ==========================================  =======================  ===================
:class:`ClassCounts`       :math:`n_c`                                 :math:`\sqrt 2`          i.i.d.
:class:`ClassMeans`        :math:`(R\,n_c, \sum_{i \in c} x_i)`        :math:`2 R`              i.i.d.
:class:`SumAndNorm`        :math:`(\sum_i x_i,`                        :math:`2 R`              i.i.d.
                           :math:`\sum_i \|x_i\|^2 / R)`
:class:`SecondMoment`      :math:`\sum_i x_i x_i^T`                    :math:`\sqrt 2 R^2`      symmetric
:class:`ClassCovariances`  :math:`\sum_{i \in c} v_i v_i^T`,           :math:`\sqrt 2 R^2`      symmetric, per class
                           :math:`v_i = x_i - m_c`
=========================  ==========================================  =======================  ===================

With ``torch.distributed`` initialised, every rank calls ``release`` with records of its own, each record on one rank,
and gets the same result (docs/theory/private-side.md, Proposition 26). A budget refuses another number of records than
its N.

R is ``row_norm``, to which the x_i (or v_i) are clipped. Symmetric noise is ``sigma (G + G^T) / 2`` with G standard
normal: the Gaussian mechanism in the space of symmetric matrices with the Frobenius norm. Proofs:
docs/theory/sensitivity.md, Propositions 6 to 9 and 24.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from dpswd._distributed import Processes
from dpswd._random import normal, on_grid
from dpswd._validate import at_least, positive, real
from dpswd.errors import InputError
from dpswd.loss import Recorder, ReleasingModule, check_finite, check_labels, check_rows, clip_rows
from dpswd.mechanism import GaussianMechanism

__all__ = ["ClassCounts", "ClassCovariances", "ClassMeans", "GaussianQuery", "Parts", "SecondMoment", "SumAndNorm"]

Parts = Iterable[tuple[Tensor, Tensor]]
"""Rows (n, d) and their classes (n,), one part of the records after the other."""

_ROWS = 8192  # rows that are clipped at a time


class GaussianQuery(ReleasingModule[GaussianMechanism]):
    """Base class of a query with fixed sensitivity.

    Every query takes ``share``, and ``noise_seed``, which is for tests only: NOT PRIVATE.

    Args:
        mechanism: Sensitivity and noise. A budget may set ``sigma`` later.
        share: Fraction of the squared mu of a budget for this query.
        recorder: Object that records each release before it is made.

    Raises:
        InputError: If ``share`` is not strictly between 0 and 1.

    Example:
        >>> query = ClassCounts(2, sigma=2.0, share=0.1)
        >>> isinstance(query, GaussianQuery), round(query.mechanism.unit_sensitivity, 4)
        (True, 1.4142)
    """

    def __init__(self, mechanism: GaussianMechanism, share: float, recorder: Recorder | None = None) -> None:
        super().__init__(mechanism, recorder)
        if not 0 < real("share", share) < 1:
            raise InputError(f"Expected share of the budget strictly between 0 and 1, got share={share!r}.")
        self.share = share

    def worst_pair(self, size: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return arguments of ``release`` for two neighbours of ``size`` records whose distance is the sensitivity.

        For audits (:mod:`dpswd.audit`). The first record differs, and its norm exceeds the clipping bound.
        """
        raise InputError(f"Expected a query that defines worst_pair, got {type(self).__name__}.")

    def coordinates(self, released: Any) -> Tensor:
        """Return the result of ``release`` as one tensor in the units of the sensitivity."""
        values: Tensor = released
        return values

    def _sum(self, shape: tuple[int, ...], total: Callable[[Tensor], int], *, symmetric: bool = False) -> Tensor:
        """Release the sum over the records of all ranks, or return a stored release without reading a record.

        Args:
            shape: Shape of the sum.
            total: Adds the records of this rank to a tensor (``*shape``) of zeros and returns their number.
            symmetric: Whether the sum and its noise are symmetric matrices.
        """
        if (stored := self.stored_release()) is not None:
            if tuple(stored["values"].shape) != shape:
                raise InputError(
                    "Expected the queries of the interrupted run, got another one; resume with its config."
                )
            return stored["values"]
        processes = Processes()
        values = torch.zeros(shape, dtype=torch.float64)
        number = sum(processes.all_gather(processes.run_on_all(lambda: total(values))))
        wanted = getattr(self.recorder, "sample_size", number)
        if number != wanted:
            raise InputError(
                f"Expected every one of the {wanted} records once, got {number} records on {processes.world_size} "
                "ranks; pass the records of this rank, each record on one rank."
            )
        values = processes.sum(values)
        return self._publish((values + values.mT) / 2 if symmetric else values, symmetric=symmetric)

    def _publish(self, values: Tensor, *, symmetric: bool = False) -> Tensor:
        """Record a release of exact values, which rank 0 has, then add noise to them."""

        def noisy() -> Tensor:
            noise = torch.from_numpy(normal(self._source, tuple(values.shape)))
            if symmetric:
                noise = (noise + noise.mT) / 2
            return on_grid(values + self.mechanism.sigma * noise, self.mechanism.sigma)

        released = self.record_and_draw(noisy)
        self.store(values=released)
        return released


class ClassCounts(GaussianQuery):
    """Number of records of each class.

    Args:
        n_classes: Public number C >= 2 of classes.
        sigma: Standard deviation of the noise on a count; ``None`` until a budget sets it.
        share: See :class:`GaussianQuery`.
        noise_seed: As ``share``.

    Raises:
        InputError: If a value is out of range.

    Example:
        >>> counts = ClassCounts(2, sigma=1.0).release(torch.tensor([0, 0, 1]))
        >>> counts.shape
        torch.Size([2])
    """

    def __init__(
        self, n_classes: int, sigma: float | None = None, share: float = 0.01, noise_seed: int | None = None
    ) -> None:
        at_least(2, n_classes=n_classes)
        super().__init__(_mechanism("class counts", math.sqrt(2), sigma, noise_seed), share)
        self.n_classes = n_classes

    @torch.no_grad()
    def release(self, labels: Tensor) -> Tensor:
        """Release the counts of ``labels`` (N,), neither rounded nor clamped at 0.

        Returns:
            Tensor (C,) in float64.

        Raises:
            InputError: If a label is not an integer in [0, C - 1]; nothing was released.
        """

        def total(counts: Tensor) -> int:
            check_labels("labels", labels, self.n_classes, labels.numel() if isinstance(labels, Tensor) else 0)
            counts += torch.bincount(labels.cpu(), minlength=self.n_classes)
            return len(labels)

        return self._sum((self.n_classes,), total)

    def worst_pair(self, size: int) -> tuple[tuple[Tensor], tuple[Tensor]]:
        """A record changes from class 0 to class 1."""
        first = torch.zeros(size, dtype=torch.int64)
        second = first.clone()
        second[0] = 1
        return (first,), (second,)


class _RowQuery(GaussianQuery):
    """Base of the queries of clipped rows (n, d)."""

    name = ""  # in the ledger
    order = 1  # of the sensitivity in R: 2 R, or sqrt(2) R^2

    def __init__(
        self,
        dim: int,
        row_norm: float = 0.5,
        sigma: float | None = None,
        share: float = 0.2,
        noise_seed: int | None = None,
    ) -> None:
        at_least(1, dim=dim)
        positive(row_norm=row_norm)
        sensitivity = 2 * float(row_norm) if self.order == 1 else math.sqrt(2) * float(row_norm) ** 2
        super().__init__(_mechanism(self.name, sensitivity, sigma, noise_seed), share)
        self.dim, self.row_norm, self.n_classes = dim, row_norm, 0

    def _over(self, parts: Parts, add: Callable[[Tensor, Tensor, Tensor], None]) -> Callable[[Tensor], int]:
        """Return a function that adds all parts to a tensor and counts their rows; it raises at an invalid part."""

        def total(values: Tensor) -> int:
            number = 0
            for rows, labels in parts:
                self._check_rows(rows)
                if self.n_classes:
                    check_labels("labels", labels, self.n_classes, len(rows))
                add(values, rows, labels.long())
                number += len(rows)
            return number

        return total

    def _check_rows(self, rows: Tensor) -> None:
        check_rows("rows", rows, self.dim)
        check_finite(rows)


class _ClassQuery(_RowQuery):
    """Base of the queries of clipped rows in C classes."""

    def __init__(
        self,
        n_classes: int,
        dim: int,
        row_norm: float = 0.5,
        sigma: float | None = None,
        share: float = 0.2,
        noise_seed: int | None = None,
    ) -> None:
        at_least(1, n_classes=n_classes)
        self.name = f"{type(self).name} of {n_classes} classes"
        super().__init__(dim, row_norm, sigma, share, noise_seed)
        self.n_classes = n_classes


class ClassMeans(_ClassQuery):
    """Number of records of each class and the sum of their rows; the counts add nothing to the sensitivity.

    Args:
        n_classes: Public number C >= 1 of classes.
        dim: Dimension d of the rows.
        row_norm: Public bound R on the norm of a row, enforced by clipping.
        sigma: Standard deviation of the noise on a sum (on a count: sigma / R); ``None`` until a budget sets it.

    Example:
        >>> query = ClassMeans(2, dim=3, sigma=1.0)
        >>> counts, sums = query.release([(torch.rand(5, 3), torch.tensor([0, 1, 1, 0, 0]))])
        >>> counts.shape, sums.shape
        (torch.Size([2]), torch.Size([2, 3]))
    """

    name = "counts and sums"

    @torch.no_grad()
    def release(self, parts: Parts) -> tuple[Tensor, Tensor]:
        """Read every record once and release noisy counts (C,) and sums (C, d) in float64.

        Raises:
            InputError: If rows or classes are not valid; nothing was released.
        """

        def add(totals: Tensor, rows: Tensor, labels: Tensor) -> None:
            clipped = clip_rows(rows, self.row_norm)
            with_count = torch.cat([torch.full_like(clipped[:, :1], self.row_norm), clipped], dim=1)
            totals.index_add_(0, labels, with_count)

        released = self._sum((self.n_classes, 1 + self.dim), self._over(parts, add))
        return released[:, 0] / self.row_norm, released[:, 1:]

    def worst_pair(self, size: int) -> tuple[tuple[Parts], tuple[Parts]]:
        """A record changes its class: two blocks move by sqrt(2) R each."""
        first, second = _change_of_class(size, self.dim, self.n_classes, self.row_norm)
        return ([first],), ([second],)

    def coordinates(self, released: tuple[Tensor, Tensor]) -> Tensor:
        """Return (C, 1 + d): counts times R, which have the noise of the sums, and the sums."""
        counts, sums = released
        return torch.cat([counts[:, None] * self.row_norm, sums], dim=1)


class SecondMoment(_RowQuery):
    """Sum of the outer products of clipped rows, not centred.

    Args:
        dim: Dimension d of the rows.
        row_norm: Public bound R on the norm of a row, enforced by clipping.
        sigma: Standard deviation of the noise on the diagonal (off it: sigma / sqrt 2); ``None`` until a budget sets
            it.

    Example:
        >>> moment = SecondMoment(3, sigma=1.0).release(torch.rand(5, 3))
        >>> torch.equal(moment, moment.T)
        True
    """

    name = "second moment"
    order = 2

    @torch.no_grad()
    def release(self, rows: Tensor) -> Tensor:
        """Release the second moment of ``rows`` (N, d), clipped here.

        Returns:
            Symmetric tensor (d, d) in float64.

        Raises:
            InputError: If the rows are not valid; nothing was released.
        """

        def total(moment: Tensor) -> int:
            self._check_rows(rows)
            for part in torch.split(rows, _ROWS):
                clipped = clip_rows(part, self.row_norm)
                moment += (clipped.T @ clipped).cpu()
            return len(rows)

        return self._sum((self.dim, self.dim), total, symmetric=True).to(rows.device)

    def worst_pair(self, size: int) -> tuple[tuple[Tensor], tuple[Tensor]]:
        """A row is replaced by an orthogonal one."""
        at_least(2, dim=self.dim)
        first = torch.zeros(size, self.dim, dtype=torch.float64)
        second = first.clone()
        first[0, 0] = second[0, 1] = 1000 * self.row_norm
        return (first,), (second,)


class ClassCovariances(_ClassQuery):
    """Sum of the outer products of clipped rows about a public centre, for each class.

    Args:
        n_classes: Public number C >= 1 of classes.
        dim: Dimension d of the rows.
        row_norm: Public bound R on the distance of a row to its centre, enforced by clipping.
        sigma: Standard deviation of the noise on the diagonal (off it: sigma / sqrt 2); ``None`` until a budget sets
            it.

    Example:
        >>> query = ClassCovariances(2, dim=3, sigma=1.0)
        >>> query.release([(torch.rand(4, 3), torch.tensor([0, 1, 1, 0]))], torch.zeros(2, 3)).shape
        torch.Size([2, 3, 3])
    """

    name = "second moments"
    order = 2

    @torch.no_grad()
    def release(self, parts: Parts, centers: Tensor) -> Tensor:
        """Read every record once and release noisy sums (C, d, d), symmetric, in float64.

        Args:
            parts: Rows and classes.
            centers: (C, d); public, or computed from earlier releases of the same budget.

        Raises:
            InputError: If rows, classes or centres are not valid; nothing was released.
        """
        if tuple(centers.shape) != (self.n_classes, self.dim) or not bool(torch.isfinite(centers).all()):
            raise InputError(
                f"Expected finite centers of shape {(self.n_classes, self.dim)}, got shape {tuple(centers.shape)}."
            )

        def add(moments: Tensor, rows: Tensor, labels: Tensor) -> None:
            residuals = clip_rows(rows.double() - centers.double()[labels], self.row_norm)
            for c in range(self.n_classes):
                of_class = residuals[labels == c]
                moments[c] += of_class.T @ of_class

        return self._sum((self.n_classes, self.dim, self.dim), self._over(parts, add), symmetric=True)

    def worst_pair(self, size: int) -> tuple[tuple[Parts, Tensor], tuple[Parts, Tensor]]:
        """A record changes its class: R^2 in each of two matrices. The centres are not zero, to audit them too."""
        first, second = _change_of_class(size, self.dim, self.n_classes, self.row_norm)
        steps = torch.arange(1, 1 + self.n_classes * self.dim, dtype=torch.float64)
        centers = self.row_norm * steps.sin().reshape(self.n_classes, self.dim) / math.sqrt(self.dim)
        return ([first], centers), ([second], centers)


class SumAndNorm(_RowQuery):
    r"""Sum of all rows, and the sum of their squared norms, which adds nothing to the sensitivity.

    With rows of norm at most R a record contributes :math:`(x, \|x\|^2 / R)`; the sensitivity is 2R
    (docs/theory/sensitivity.md, Proposition 24).

    Args:
        dim: Dimension d of the rows.
        row_norm: Public bound R on the norm of a row, enforced by clipping.
        sigma: Standard deviation of the noise on an entry of the sum; ``None`` until a budget sets it.

    Example:
        >>> total, squares = SumAndNorm(3, sigma=1.0).release([(torch.rand(4, 3), torch.zeros(4).long())])
        >>> total.shape
        torch.Size([3])
    """

    name = "sum of rows and squared norms"

    @torch.no_grad()
    def release(self, parts: Parts) -> tuple[Tensor, float]:
        """Read every record once and release the noisy sum (d,) in float64 and the noisy sum of squared norms.

        Raises:
            InputError: If rows are not valid; nothing was released.
        """

        def add(totals: Tensor, rows: Tensor, labels: Tensor) -> None:
            clipped = clip_rows(rows, self.row_norm)
            totals[:-1] += clipped.sum(0)
            totals[-1] += clipped.square().sum() / self.row_norm

        released = self._sum((self.dim + 1,), self._over(parts, add))
        return released[:-1], float(released[-1]) * self.row_norm

    def worst_pair(self, size: int) -> tuple[tuple[Parts], tuple[Parts]]:
        """A row is replaced by its negative."""
        labels = torch.zeros(size, dtype=torch.int64)
        first = torch.zeros(size, self.dim, dtype=torch.float64)
        first[0] = 1000 * self.row_norm
        return ([(first, labels)],), ([(-first, labels)],)

    def coordinates(self, released: tuple[Tensor, float]) -> Tensor:
        """Return (d + 1,): the sum, and the sum of squared norms over R, which has the noise of the sum."""
        total, squares = released
        return torch.cat([total, total.new_tensor([squares / self.row_norm])])


def _mechanism(name: str, sensitivity: float, sigma: float | None, noise_seed: int | None) -> GaussianMechanism:
    noise: dict[str, Any] = {} if sigma is None else {"sigma": sigma}
    return GaussianMechanism(sensitivity=sensitivity, name=name, noise_seed=noise_seed, **noise)


def _change_of_class(size: int, dim: int, n_classes: int, row_norm: float) -> tuple[tuple[Tensor, Tensor], ...]:
    """Two neighbours: short rows of all classes; row 0 is long, and changes its direction and its class."""
    rows = torch.full((size, dim), row_norm / (2 * math.sqrt(dim)), dtype=torch.float64)
    labels = torch.arange(size) % n_classes
    rows[0] = 1000 * row_norm
    changed_rows, changed_labels = rows.clone(), labels.clone()
    changed_rows[0, ::2] *= -1
    changed_labels[0] = 1
    return (rows, labels), (changed_rows, changed_labels)
