r"""Gaussian releases per class: counts with sums, and second moments about public centres.

A record is (row, class), both private; a data set is embedded as one block per class. With rows of norm at most R:

=========================  ============================================  ==========================
release                    block of class c                              sensitivity (replace-one)
=========================  ============================================  ==========================
:class:`ClassMeans`        :math:`(R\,n_c, \sum_{i \in c} x_i)`          :math:`2 R`
:class:`ClassCovariances`  :math:`\sum_{i \in c} v_i v_i^T`,             :math:`\sqrt 2 R^2`
                           :math:`v_i = x_i - m_c`, clipped
=========================  ============================================  ==========================

Proof for counts and sums. A record contributes :math:`z = (R, x)` to the block of its class,
:math:`\|z\|^2 \le 2 R^2`. Replaced within its class it moves the block by :math:`\|x - x'\| \le 2R`; if the class
changes, two blocks move by :math:`\|z\|` and :math:`\|z'\|`, together by :math:`\sqrt{2R^2 + 2R^2} = 2R`. So the
counts are free: sums alone cost as much.

Proof for second moments. :math:`m_c` does not depend on the records (it is public, or was released before: adaptive
composition, Dong2022, Corollary 3.3). Within a class the squared Frobenius norm of the move is
:math:`\|v\|^4 + \|v'\|^4 - 2 \langle v, v' \rangle^2 \le 2 R^4`; across classes it is
:math:`\|v\|^4 + \|v'\|^4 \le 2 R^4`. Noise ``(G + G^T) / 2`` is the Gaussian mechanism in the space of symmetric
matrices (:mod:`dpswd.queries`), here one such space per class.
"""

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from dpswd._validate import at_least, positive
from dpswd.errors import InputError
from dpswd.generation.rows import private_rows
from dpswd.loss import clip_rows
from dpswd.mechanism import GaussianMechanism
from dpswd.queries import GaussianQuery

__all__ = ["ClassCovariances", "ClassMeans", "Parts", "rows_in_parts"]

Parts = Iterable[tuple[Tensor, Tensor]]  # rows (n, d) and their classes (n,), a part of the records at a time
_PART = 8192  # records whose rows are held at a time


class ClassMeans(GaussianQuery):
    """Releases, for every class, how many records it has and the sum of their rows.

    Args:
        n_classes: Number C >= 2 of classes; public.
        dim: Dimension d of the rows.
        row_norm: Public bound R on the norm of a row, enforced by clipping.
        sigma: Standard deviation of the noise on a sum; on a count it is sigma / R.
        share: See :class:`dpswd.queries.GaussianQuery`.
        noise_seed: For tests only: NOT PRIVATE.
    """

    def __init__(
        self,
        n_classes: int,
        dim: int,
        row_norm: float = 0.5,
        sigma: float = 1.0,
        share: float = 0.2,
        noise_seed: int | None = None,
    ) -> None:
        at_least(2, n_classes=n_classes)
        at_least(1, dim=dim)
        positive(row_norm=row_norm)
        name = f"counts and sums of {n_classes} classes"
        super().__init__(
            GaussianMechanism(sensitivity=2 * row_norm, sigma=sigma, name=name, noise_seed=noise_seed), share
        )
        self.n_classes, self.dim, self.row_norm = n_classes, dim, row_norm

    @torch.no_grad()
    def release(self, parts: Parts) -> tuple[Tensor, Tensor]:
        """Reads every record once; returns noisy counts (C,) and sums (C, d) in float64, as they come.

        Raises:
            InputError: If rows or classes do not fit; nothing is released then.
        """
        totals = torch.zeros(self.n_classes, 1 + self.dim, dtype=torch.float64)
        for rows, labels in parts:
            _check(rows, labels, self.dim, self.n_classes)
            clipped = clip_rows(rows, self.row_norm)
            with_count = torch.cat([torch.full_like(clipped[:, :1], self.row_norm), clipped], dim=1)
            totals.index_add_(0, labels, with_count)
        released = self._once(lambda: totals + self.mechanism.sigma * self._normal(*totals.shape))
        return released[:, 0] / self.row_norm, released[:, 1:]

    def worst_pair(self, size: int) -> tuple[tuple[Parts], tuple[Parts]]:
        """A row changes its class: two blocks move by sqrt 2 R each; see :meth:`GaussianQuery.worst_pair`."""
        first, second = _records(size, self.dim, self.n_classes, self.row_norm)
        return ([first],), ([second],)

    def coordinates(self, released: tuple[Tensor, Tensor]) -> Tensor:
        """Returns (C, 1 + d): counts times R, whose noise is that of the sums, and the sums."""
        counts, sums = released
        return torch.cat([counts[:, None] * self.row_norm, sums], dim=1)


class ClassCovariances(GaussianQuery):
    """Releases, for every class, the sum of outer products of rows about a centre that is public.

    Args:
        n_classes: Number C >= 2 of classes; public.
        dim: Dimension d of the rows.
        row_norm: Public bound R on the distance of a row from its centre, enforced by clipping.
        sigma: Standard deviation of the noise on the diagonal (off it: sigma / sqrt 2).
        share: See :class:`dpswd.queries.GaussianQuery`.
        noise_seed: For tests only: NOT PRIVATE.
    """

    def __init__(
        self,
        n_classes: int,
        dim: int,
        row_norm: float = 0.5,
        sigma: float = 1.0,
        share: float = 0.8,
        noise_seed: int | None = None,
    ) -> None:
        at_least(2, n_classes=n_classes)
        at_least(1, dim=dim)
        positive(row_norm=row_norm)
        name = f"second moments of {n_classes} classes"
        sensitivity = math.sqrt(2) * row_norm**2
        super().__init__(
            GaussianMechanism(sensitivity=sensitivity, sigma=sigma, name=name, noise_seed=noise_seed), share
        )
        self.n_classes, self.dim, self.row_norm = n_classes, dim, row_norm

    @torch.no_grad()
    def release(self, parts: Parts, centers: Tensor) -> Tensor:
        """Reads every record once; returns noisy sums (C, d, d), symmetric, in float64.

        Args:
            parts: Rows and classes.
            centers: (C, d); public, or computed from earlier releases of the same budget.

        Raises:
            InputError: If rows, classes or centres do not fit; nothing is released then.
        """
        if tuple(centers.shape) != (self.n_classes, self.dim) or not bool(torch.isfinite(centers).all()):
            raise InputError(
                f"Expected finite centers of shape {(self.n_classes, self.dim)}, got {tuple(centers.shape)}."
            )
        moments = torch.zeros(self.n_classes, self.dim, self.dim, dtype=torch.float64)
        for rows, labels in parts:
            _check(rows, labels, self.dim, self.n_classes)
            residuals = clip_rows(rows.double() - centers.double()[labels], self.row_norm)
            for c in range(self.n_classes):
                mine = residuals[labels == c]
                moments[c] += mine.T @ mine

        def noisy() -> Tensor:
            noise = self._normal(*moments.shape)
            return (moments + moments.mT) / 2 + self.mechanism.sigma * (noise + noise.mT) / 2

        return self._once(noisy)

    def worst_pair(self, size: int) -> tuple[tuple[Parts, Tensor], tuple[Parts, Tensor]]:
        """A row changes its class, R^2 in each of two matrices, on and off their diagonals.

        See :meth:`GaussianQuery.worst_pair`. The centres are not zero: subtracting them takes part.
        """
        first, second = _records(size, self.dim, self.n_classes, self.row_norm)
        steps = torch.arange(1, 1 + self.n_classes * self.dim, dtype=torch.float64)
        centers = self.row_norm * steps.sin().reshape(self.n_classes, self.dim) / math.sqrt(self.dim)
        return ([first], centers), ([second], centers)


def _records(size: int, dim: int, n_classes: int, row_norm: float) -> tuple[tuple[Tensor, Tensor], ...]:
    """Two neighbours: short rows of all classes, and a long row without zeros that changes to class 1 and turns."""
    rows = torch.full((size, dim), row_norm / (2 * math.sqrt(dim)), dtype=torch.float64)
    labels = torch.arange(size) % n_classes
    rows[0] = 1000 * row_norm  # clipping takes part
    other, classes = rows.clone(), labels.clone()
    other[0, ::2] *= -1
    classes[0] = 1
    return (rows, labels), (other, classes)


def rows_in_parts(features: nn.Module, records: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Maps records (N, ...), bytes or floats, to rows, a part at a time: they need not fit in memory together.

    Raises:
        InputError: If there is not one label per record.
    """
    if len(records) != len(labels):
        raise InputError(f"Expected a label per record, got {len(records)} and {len(labels)}.")
    for some, classes in zip(records.split(_PART), labels.split(_PART), strict=True):
        pixels = some.float() / 255 if some.dtype == torch.uint8 else some
        yield private_rows(features, pixels), classes


def _check(rows: Tensor, labels: Tensor, dim: int, n_classes: int) -> None:
    if rows.ndim != 2 or rows.shape[1] != dim or not rows.is_floating_point():
        raise InputError(f"Expected floating-point rows (n, {dim}), got {rows.dtype} {tuple(rows.shape)}.")
    if not bool(torch.isfinite(rows).all()):
        raise InputError("Expected finite private rows, got nan or inf; clean the data before it is used.")
    if tuple(labels.shape) != (len(rows),) or labels.dtype != torch.int64:
        raise InputError(f"Expected an int64 label per row, got {labels.dtype} {tuple(labels.shape)}.")
    if bool(((labels < 0) | (labels >= n_classes)).any()):
        raise InputError(f"Expected labels between 0 and {n_classes - 1}, got others; check n_classes.")
