r"""Small Gaussian releases beside the projections: class counts and a second moment.

Each reads all N records (q = 1), has a fixed L2 sensitivity under replace-one, is written to the ledger before its
noise is drawn, and is :math:`\mu`-GDP with :math:`\mu` = sensitivity / sigma. Gaussian releases compose as
:math:`\mu = \sqrt{\mu_1^2 + \mu_2^2}`, also where a later one is chosen after seeing an earlier one (Dong2022,
Corollary 3.3).

===================  =============================  ==========================================================
release              sensitivity                    noise
===================  =============================  ==========================================================
:class:`ClassCounts`   :math:`\sqrt 2`                 ``N(0, sigma^2)`` on every count
:class:`SecondMoment`  :math:`\sqrt 2` row_norm^2      ``sigma (G + G^T) / 2``, G standard normal (d x d)
===================  =============================  ==========================================================

Proof for counts. A record that changes its class moves two counts by one.

Proof for the second moment, :math:`M = \sum_i x_i x_i^T` with :math:`\|x_i\| \le R`. Replacing x by x' moves M by
:math:`x x^T - x' x'^T`, whose squared Frobenius norm is
:math:`\|x\|^4 + \|x'\|^4 - 2 \langle x, x' \rangle^2 \le 2 R^4`.
Symmetric matrices with the Frobenius norm are a Euclidean space with coordinates :math:`a_{ii}` and
:math:`\sqrt 2 a_{ij}`, i < j; :math:`(G + G^T)/2` has variance 1 and 1/2 on and off the diagonal, so that every
coordinate has variance 1: it is the Gaussian mechanism in that space.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from dpswd._distributed import Processes
from dpswd._provenance import track_runs
from dpswd._random import normal, on_grid, random_source
from dpswd._validate import at_least, positive, real, tensor
from dpswd.errors import InputError
from dpswd.loss import BudgetWatch, Recorder, before_release, clip_rows, store
from dpswd.mechanism import GaussianMechanism

__all__ = ["ClassCounts", "ClassCovariances", "ClassMeans", "GaussianQuery", "Parts", "SecondMoment"]


Parts = Iterable[tuple[Tensor, Tensor]]  # rows (n, d) and their classes (n,), a part of the records at a time


class GaussianQuery(nn.Module):
    """Base: a query of fixed sensitivity, its noise, and whoever keeps the ledger.

    Args:
        mechanism: Sensitivity and noise. ``sigma`` may be set later, by a budget.
        share: Part of the squared mu of a budget that this release is meant to get, for
            :class:`dpswd.training.callback.PrivacyBudget`.
        recorder: Object that writes each release down before it happens.
    """

    def __init__(self, mechanism: GaussianMechanism, share: float, recorder: Recorder | None = None) -> None:
        super().__init__()
        track_runs(self)
        if not 0 < real("share", share) < 1:
            raise InputError(f"Expected a share of the budget strictly between 0 and 1, got share={share!r}.")
        self.mechanism, self.share, self.recorder = mechanism, share, recorder
        self.n_releases = 0

    @property
    def mechanism(self) -> GaussianMechanism:
        """Sensitivity and noise."""
        return self._mechanism

    @mechanism.setter
    def mechanism(self, mechanism: GaussianMechanism) -> None:
        self._mechanism = mechanism
        self._source = random_source(mechanism.noise_seed)

    def _announce(self) -> None:
        if self.recorder is not None:
            self.recorder.record(self.mechanism)
        elif BudgetWatch.running:
            raise InputError("Expected a ledger for every release while a PrivacyBudget runs, got a query without one.")
        self.n_releases += 1

    def _once(self, noisy: Callable[[], Tensor]) -> Tensor:
        """Ledger, noise, grid; where there are several processes the first one's records and noise, for all of them."""
        if (stored := before_release(self.recorder, self.mechanism)) is not None:
            return stored["values"]
        processes = Processes()
        processes.run_on_all(self._announce)
        released: Tensor = processes.broadcast(lambda: on_grid(noisy(), self.mechanism.sigma))
        store(self.recorder, self.mechanism, {"values": released})
        return released

    def _normal(self, *shape: int) -> Tensor:
        return torch.from_numpy(normal(self._source, shape))

    def worst_pair(self, size: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Returns arguments of ``release`` for two neighbours of ``size`` records as far apart as the sensitivity.

        For an auditor, :mod:`dpswd.audit.query_game`. The first record differs; clipping takes part.

        Raises:
            InputError: If the query states none.
        """
        raise InputError(f"Expected a query that states its worst pair, got {type(self).__name__}; define worst_pair.")

    def coordinates(self, released: Any) -> Tensor:
        """Returns what ``release`` gave as one tensor, in units in which its length is that of the sensitivity."""
        values: Tensor = released
        return values

    def extra_repr(self) -> str:
        """What ``print(module)`` says."""
        status = "" if self.mechanism.is_private else "NOT PRIVATE: fixed noise seed; "
        return f"{status}{self.mechanism.description}, sigma={self.mechanism.sigma:.4g}"


class ClassCounts(GaussianQuery):
    """Releases how many records each class has.

    Args:
        n_classes: Number C >= 2 of classes; public.
        sigma: Standard deviation of the noise on a count.
        share: See :class:`GaussianQuery`.
        noise_seed: For tests only: NOT PRIVATE.
    """

    def __init__(self, n_classes: int, sigma: float = 1.0, share: float = 0.01, noise_seed: int | None = None) -> None:
        at_least(2, n_classes=n_classes)
        super().__init__(
            GaussianMechanism(sensitivity=math.sqrt(2), sigma=sigma, name="class counts", noise_seed=noise_seed), share
        )
        self.n_classes = n_classes

    @torch.no_grad()
    def release(self, labels: Tensor) -> Tensor:
        """Releases the counts of ``labels`` (N,), as they come: neither rounded nor made positive. Returns (C,).

        Raises:
            InputError: If a label is no integer between 0 and C - 1.
        """
        tensor(labels=labels)
        integers = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
        if labels.ndim != 1 or not integers or bool(((labels < 0) | (labels >= self.n_classes)).any()):
            raise InputError(f"Expected integer labels (N,) between 0 and {self.n_classes - 1}, got others.")
        counts = torch.bincount(labels.cpu(), minlength=self.n_classes).double()
        return self._once(lambda: counts + self.mechanism.sigma * self._normal(self.n_classes))

    def worst_pair(self, size: int) -> tuple[tuple[Tensor], tuple[Tensor]]:
        """One record of class 0 moves to class 1: two counts by one; see :meth:`GaussianQuery.worst_pair`."""
        first = torch.zeros(size, dtype=torch.int64)
        second = first.clone()
        second[0] = 1
        return (first,), (second,)


class SecondMoment(GaussianQuery):
    """Releases the sum of the outer products of clipped rows, not centred.

    Args:
        dim: Dimension d of the rows.
        row_norm: Public bound R on the norm of a row, enforced by clipping.
        sigma: Standard deviation of the noise on the diagonal (off it: sigma / sqrt 2).
        share: See :class:`GaussianQuery`.
        noise_seed: For tests only: NOT PRIVATE.
    """

    def __init__(
        self, dim: int, row_norm: float = 0.5, sigma: float = 1.0, share: float = 0.2, noise_seed: int | None = None
    ) -> None:
        at_least(1, dim=dim)
        positive(row_norm=row_norm)
        sensitivity = math.sqrt(2) * float(row_norm) * float(row_norm)
        super().__init__(
            GaussianMechanism(sensitivity=sensitivity, sigma=sigma, name="second moment", noise_seed=noise_seed), share
        )
        self.dim, self.row_norm = dim, row_norm

    @torch.no_grad()
    def release(self, rows: Tensor) -> Tensor:
        """Releases the second moment of ``rows`` (N, d), clipped here. Returns (d, d), symmetric, in float64.

        Raises:
            InputError: If the rows have another dimension, or are not finite.
        """
        tensor(rows=rows)
        if rows.ndim != 2 or rows.shape[1] != self.dim or not rows.is_floating_point():
            raise InputError(f"Expected floating-point rows (N, {self.dim}), got {rows.dtype} {tuple(rows.shape)}.")
        if not bool(torch.isfinite(rows).all()):
            raise InputError("Expected finite private rows, got nan or inf; clean the data before it is used.")
        moment = torch.zeros(self.dim, self.dim, dtype=torch.float64, device=rows.device)
        for part in torch.split(rows, 8192):
            clipped = clip_rows(part, self.row_norm)
            moment += clipped.T @ clipped

        def noisy() -> Tensor:
            noise = self._normal(self.dim, self.dim)
            return ((moment + moment.T) / 2).cpu() + self.mechanism.sigma * (noise + noise.T) / 2

        return self._once(noisy).to(rows.device)

    def worst_pair(self, size: int) -> tuple[tuple[Tensor], tuple[Tensor]]:
        """A row becomes one at a right angle to it, both far beyond the bound; see :meth:`GaussianQuery.worst_pair`."""
        at_least(2, dim=self.dim)
        first = torch.zeros(size, self.dim, dtype=torch.float64)
        second = first.clone()
        first[0, 0] = second[0, 1] = 1000 * self.row_norm  # clipping takes part
        return (first,), (second,)


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


def _check(rows: Tensor, labels: Tensor, dim: int, n_classes: int) -> None:
    if rows.ndim != 2 or rows.shape[1] != dim or not rows.is_floating_point():
        raise InputError(f"Expected floating-point rows (n, {dim}), got {rows.dtype} {tuple(rows.shape)}.")
    if not bool(torch.isfinite(rows).all()):
        raise InputError("Expected finite private rows, got nan or inf; clean the data before it is used.")
    if tuple(labels.shape) != (len(rows),) or labels.dtype != torch.int64:
        raise InputError(f"Expected an int64 label per row, got {labels.dtype} {tuple(labels.shape)}.")
    if bool(((labels < 0) | (labels >= n_classes)).any()):
        raise InputError(f"Expected labels between 0 and {n_classes - 1}, got others; check n_classes.")
