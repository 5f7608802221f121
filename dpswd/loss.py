"""Differentially private sliced Wasserstein loss.

axes: B private rows, n public rows, d dimension, k directions, m values per column, C classes.

A private record takes one path, which this file follows from top to bottom::

    sampling (dpswd.sampling) -> clip -> project -> sort and average -> ledger -> noise -> loss

The private tensor is detached on entry, a :class:`Release` holds everything that was released, and the distance reads
the release only.

Several processes (``torch.distributed``) make one release together. Rank 0 draws the batch and gathers the rows, then
computes, records and perturbs them as a single process does, and broadcasts the release. See
docs/theory/private-side.md, Proposition 19.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from dpswd._distributed import Processes
from dpswd._provenance import track_runs
from dpswd._random import normal, on_grid, random_source
from dpswd._sorting import sort_columns, sort_rows
from dpswd._validate import tensor
from dpswd.errors import InputError
from dpswd.mechanism import GaussianMechanism, Mechanism, ProjectionMechanism, mechanism_from_dict
from dpswd.sliced import padded_block_means, power_cost, random_projections, sum_over_projections, wasserstein_1d

__all__ = ["DPSlicedWassersteinLoss", "Recorder", "Release", "clip_rows"]

_CHUNK_BYTES = 2**27  # of projected private rows in memory at a time


class Recorder:
    """Base of the objects that record releases. Its methods are called on every rank.

    Example:
        >>> class Counter(Recorder):
        ...     count = 0
        ...     def record(self, mechanism):
        ...         self.count += 1
        >>> mechanism = ProjectionMechanism(dim=5, n_projections=20, sigma=0.1, batch_size=64)
        >>> loss = DPSlicedWassersteinLoss(mechanism, recorder=Counter())
        >>> release = loss.release(torch.randn(64, 5))
        >>> loss.recorder.count
        1
    """

    def before_release(
        self, mechanism: Mechanism, rows: Tensor | None, labels: Tensor | None
    ) -> dict[str, Tensor] | None:
        """Called first, with the rows as given (the first ones of a sketch, ``None`` for a query); raises to refuse.

        Returns:
            Tensors of a stored release, which are used instead of a new one, or ``None``.
        """
        return None

    def record(self, mechanism: Mechanism) -> None:
        """Write one release to stable storage before its noise is drawn; raise to refuse it."""
        raise NotImplementedError

    def store(self, mechanism: Mechanism, tensors: dict[str, Tensor]) -> None:
        """Called with the noisy values of a release as soon as they exist."""


class BudgetWatch:
    """Number of privacy budgets that are active in this process; with one active, every release needs a recorder."""

    running = 0


M = TypeVar("M", bound=ProjectionMechanism | GaussianMechanism)


class ReleasingModule(nn.Module, Generic[M]):
    """Base of the loss and of the queries: a mechanism, its source of noise, and a count of releases.

    Args:
        mechanism: The mechanism of a release. Its ``sigma`` must be set before the first release.
        recorder: Object that records every release before it is made; ``None`` counts releases in ``n_releases`` only.
    """

    def __init__(self, mechanism: M, recorder: Recorder | None = None) -> None:
        super().__init__()
        track_runs(self)
        self.mechanism, self.recorder, self.n_releases = mechanism, recorder, 0

    @property
    def mechanism(self) -> M:
        """The mechanism of a release."""
        return self._mechanism

    @mechanism.setter
    def mechanism(self, mechanism: M) -> None:
        self._mechanism: M = mechanism
        self._source = random_source(mechanism.noise_seed)

    def stored_release(self, rows: Tensor | None = None, labels: Tensor | None = None) -> dict[str, Tensor] | None:
        """Announce a release to the recorder; return the tensors of a stored release if it has one."""
        return None if self.recorder is None else self.recorder.before_release(self.mechanism, rows, labels)

    def record_release(self) -> None:
        """Record one release; raise if a privacy budget is active and there is no recorder."""
        self.mechanism.check_calibrated()
        if self.recorder is not None:
            self.recorder.record(self.mechanism)
        elif BudgetWatch.running:
            raise InputError(
                "Expected a recorder for every release while a PrivacyBudget is active, got none; make the loss or "
                "query an attribute of the LightningModule."
            )
        self.n_releases += 1

    def record_and_draw(self, noisy: Callable[[], Tensor]) -> Tensor:
        """Record a release on every rank, any of which may refuse; then draw its noise on rank 0 and broadcast it."""
        processes = Processes()
        processes.run_on_all(self.record_release)
        released: Tensor = processes.broadcast(noisy)
        return released

    def store(self, **tensors: Tensor) -> None:
        """Hand the noisy values of a release to the recorder."""
        if self.recorder is not None:
            self.recorder.store(self.mechanism, tensors)

    def extra_repr(self) -> str:
        """Describe the mechanism for ``print(module)``."""
        status = "" if self.mechanism.is_private else "NOT PRIVATE: fixed noise seed; "
        sigma = "not calibrated" if self.mechanism.sigma is None else f"{self.mechanism.sigma:.4g}"
        return f"{status}{self.mechanism.description}, sigma={sigma}"


@dataclass(frozen=True)
class Release:
    """The output of one release. Everything computed from it is post-processing.

    Attributes:
        values: Noisy values (m, k), or (C, m, k) for records with a class; every column of noisy rows is sorted.
        projections: Public directions (d, k).
        mechanism: The mechanism that made the release.

    Example:
        >>> mechanism = ProjectionMechanism(dim=5, n_projections=20, sigma=0.1, batch_size=64)
        >>> release = DPSlicedWassersteinLoss(mechanism).release(torch.randn(64, 5))
        >>> release.values.shape, release.projections.shape
        (torch.Size([64, 20]), torch.Size([5, 20]))
    """

    values: Tensor
    projections: Tensor
    mechanism: ProjectionMechanism

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values for a checkpoint; all of them are public."""
        return {"values": self.values, "projections": self.projections, "mechanism": self.mechanism.to_dict()}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> "Release":
        """Restore a release from the result of :meth:`state_dict`."""
        mechanism = mechanism_from_dict(state["mechanism"])
        if not isinstance(mechanism, ProjectionMechanism):
            raise InputError(f"Expected a release of projections, got {state['mechanism'].get('mechanism')!r}.")
        return cls(state["values"], state["projections"], mechanism)

    def to(self, device: torch.device | str) -> "Release":
        """Return the release with its tensors on ``device``."""
        return Release(self.values.to(device), self.projections.to(device), self.mechanism)


class DPSlicedWassersteinLoss(ReleasingModule[ProjectionMechanism]):
    """Squared sliced 2-Wasserstein loss between private and public rows. Each call makes one release.

    Formal guarantee:
        One call is the subsampled Gaussian mechanism that ``mechanism`` describes, under replace-one, provided that
        the private rows are a uniform subset of fixed size, drawn without replacement and afresh for every call
        (:class:`dpswd.sampling.FixedSizeSampler`), and that each row depends on one record only. Rows are clipped
        inside, and directions and noise are fresh cryptographic randomness. No gradient reaches the private rows.

    The value depends on the ``statistic`` of the mechanism. With ``"rows"`` it is the smoothed distance of the paper:
    the public projections get noise of the same size. With ``"quantiles"`` it is the distance of noisy block means:
    given the directions, its gradient is an unbiased estimate of the gradient of the squared distance between exact
    block means, and its value is offset by a constant.

    A subclass that audits the mechanism may override :meth:`draw_projections`, :meth:`exact_values`,
    :meth:`compute_statistic`, :meth:`add_noise`, :meth:`discard_order` and :meth:`publish`.

    Args:
        mechanism: The mechanism of a release. Its ``sigma`` must be set before the first release.
        recorder: Object that records every release before it is made; ``None`` counts releases in ``n_releases`` only.

    Raises:
        InputError: If ``mechanism`` is not a ProjectionMechanism.

    References:
        | Rakotomamonjy2021, Algorithm 1 and Section 3.

    Example:
        >>> mechanism = ProjectionMechanism(dim=5, n_projections=20, sigma=0.1, batch_size=64)
        >>> loss = DPSlicedWassersteinLoss(mechanism)
        >>> public = torch.zeros(32, 5, requires_grad=True)
        >>> loss(torch.randn(64, 5), public).backward()
        >>> public.grad.shape, loss.n_releases
        (torch.Size([32, 5]), 1)
    """

    def __init__(self, mechanism: ProjectionMechanism, *, recorder: Recorder | None = None) -> None:
        if not isinstance(mechanism, ProjectionMechanism):
            raise InputError(f"Expected mechanism to be a ProjectionMechanism, got {type(mechanism).__name__}.")
        super().__init__(mechanism, recorder)

    def forward(
        self,
        private: Tensor,
        public: Tensor,
        private_labels: Tensor | None = None,
        public_labels: Tensor | None = None,
    ) -> Tensor:
        """Make one release of ``private`` and return its distance to ``public``.

        Args:
            private: Rows (B, d), B being the ``batch_size`` of the mechanism.
            public: Rows (n, d), n >= 1. They receive the gradient and are not clipped.
            private_labels: Classes (B,) if the mechanism has ``n_classes``; as private as the rows.
            public_labels: Classes (n,) if the mechanism has ``n_classes``.

        Returns:
            Scalar tensor.

        Raises:
            InputError: If shapes, types or values are not valid; nothing was released.
            BudgetExceededError: If the recorder refuses the release.
        """
        self._check_public(public, public_labels)
        return self.distance(self.release(private, private_labels), public, public_labels)

    @torch.no_grad()
    def release(self, private: Tensor, labels: Tensor | None = None) -> Release:
        """Make one release of ``private`` (B, d) and its classes (B,); see :meth:`forward`.

        With ``torch.distributed`` initialised, every rank calls this method with its part of the B rows; rank 0
        computes the values.
        """
        if (stored := self.stored_release(private, labels)) is not None:
            return Release(stored["values"], stored["projections"], self.mechanism).to(private.device)
        processes = Processes()
        processes.run_on_all(partial(self._check_private, private, labels, processes))
        counts = processes.all_gather(len(private))
        rows = processes.gather(private.detach().double().T, counts)  # (d, B), or None on other ranks
        classes = None if labels is None else processes.gather(labels, counts)
        projections = processes.broadcast(self.draw_projections).to(private.device)  # (d, k)

        def exact() -> Tensor | None:
            return None if rows is None else self.exact_values(rows.T, classes, projections)

        return self.publish(processes.run_on_all(exact), projections)

    def exact_values(self, rows: Tensor, labels: Tensor | None, projections: Tensor) -> Tensor:
        """Compute the values before noise. PRIVATE: for :meth:`release`, tests and audits.

        Args:
            rows: Private rows (B, d), clipped here.
            labels: Classes (B,), or ``None``.
            projections: Directions (d, k).

        Returns:
            Tensor (m, k) or (C, m, k) in float64.
        """
        with torch.autocast(rows.device.type, enabled=False):
            return self.compute_statistic(clip_rows(rows, self.mechanism.row_norm), labels, projections)

    def draw_projections(self) -> Tensor:
        """Draw the directions (d, k) of one release."""
        mechanism = self.mechanism
        return random_projections(mechanism.dim, mechanism.n_projections, kind=mechanism.kind, generator=self._source)

    def compute_statistic(self, rows: Tensor, labels: Tensor | None, projections: Tensor) -> Tensor:
        """Project clipped rows (B, d), sort every column and average its blocks, a few directions at a time."""
        size, blocks = len(rows), self.mechanism.n_values
        columns = max(1, _CHUNK_BYTES // (8 * size))

        def summary(group: Tensor) -> Tensor:
            sorted_parts = (sort_rows(u.T @ group.T, in_place=True).T for u in torch.split(projections, columns, 1))
            parts = [padded_block_means(part, size, blocks) for part in sorted_parts]
            return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

        if labels is None:
            return summary(rows)
        return torch.stack([summary(rows[labels == c]) for c in range(self.mechanism.n_classes or 0)])

    def publish(self, values: Tensor | None, projections: Tensor) -> Release:
        """Record a release of exact values (m, k) or (C, m, k), ``None`` on ranks above 0; then add noise to them."""

        def noisy() -> Tensor:
            assert values is not None  # on rank 0
            return self.discard_order(self.add_noise(values)).cpu()

        released = self.record_and_draw(noisy).to(projections.device)
        self.store(values=released, projections=projections)
        return Release(released, projections, self.mechanism)

    def add_noise(self, values: Tensor) -> Tensor:
        """Add fresh Gaussian noise to exact values and round them to a public grid."""
        noise = torch.from_numpy(normal(self._source, tuple(values.mT.shape))).mT.to(values.device)
        return on_grid(torch.add(values, noise, alpha=self.mechanism.sigma), self.mechanism.sigma)

    def discard_order(self, values: Tensor) -> Tensor:
        """Sort every column of noisy rows, so that a row's position carries no information. Post-processing."""
        if self.mechanism.statistic != "rows":
            return values
        return sort_columns(values) if values.ndim == 2 else torch.stack([sort_columns(block) for block in values])

    def distance(self, release: Release, public: Tensor, public_labels: Tensor | None = None) -> Tensor:
        """Return the distance of ``public`` (n, d) to a release, a scalar. Post-processing, repeatable at no cost."""
        self._check_public(public, public_labels)
        mechanism = release.mechanism
        with torch.autocast(public.device.type, enabled=False):
            public = public.to(torch.promote_types(public.dtype, torch.float32))
            projections, target = release.projections.to(public), release.values.to(public)
            if mechanism.statistic == "rows":
                return _smoothed_distance(public, projections, target, public_labels, mechanism.sigma)
            if public_labels is None:
                return _block_distance(public, projections, target, len(public))
            counts = torch.bincount(public_labels, minlength=len(target))
            if bool((counts == counts[0]).all()):  # classes of equal size are compared in one pass
                return _block_distance(public[public_labels.argsort()], projections, target, len(public))
            groups = [public[public_labels == c] for c in range(len(target))]
            each = [_block_distance(z, projections, t, len(public)) for z, t in zip(groups, target, strict=True)]
            return torch.stack(each).mean()

    def _check_private(self, private: Tensor, labels: Tensor | None, processes: Processes) -> None:
        self.mechanism.check_calibrated()
        wanted = (self.mechanism.batch_size, self.mechanism.dim)
        tensor(private=private)
        here = len(private) if private.ndim else 0
        found = (sum(processes.all_gather(here)), *private.shape[1:])
        if found != wanted:
            raise InputError(
                f"Expected private rows of shape {wanted} (batch_size and dim of the mechanism), got {found}"
                f"{' on all ranks together' if processes.world_size > 1 else ''}; the guarantee requires a fixed "
                "batch size."
            )
        check_rows("private rows", private, self.mechanism.dim)
        check_finite(private)
        check_labels("private_labels", labels, self.mechanism.n_classes, len(private))

    def _check_public(self, public: Tensor, labels: Tensor | None) -> None:
        self.mechanism.check_calibrated()
        check_rows("public rows", public, self.mechanism.dim)
        if not len(public):
            raise InputError("Expected at least one row in public rows, got none.")
        check_labels("public_labels", labels, self.mechanism.n_classes, len(public))


def clip_rows(rows: Tensor, row_norm: float) -> Tensor:
    """Scale every row with an L2 norm above ``row_norm`` down to it, row by row, in float64.

    The target is ``row_norm (1 - 1e-12 - d u)`` with u = 2^-53, so that rounding cannot leave a row above the bound
    (docs/theory/sensitivity.md, Proposition 1). A row whose norm overflows becomes zero.

    Args:
        rows: (B, d), any floating-point type.
        row_norm: Public bound.

    Returns:
        Tensor (B, d) in float64, detached.

    Example:
        >>> clip_rows(torch.tensor([[3.0, 4.0], [0.1, 0.0]]), row_norm=0.5).norm(dim=1)
        tensor([0.5000, 0.1000], dtype=torch.float64)
    """
    rows = rows.detach().to(torch.float64)
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    margin = 1e-12 + rows.shape[1] * 2.0**-53
    return rows * (row_norm * (1 - margin) / norms).clamp(max=1.0)


def check_rows(name: str, rows: Tensor, dim: int) -> None:
    """Raise unless ``rows`` are floating-point rows (n, dim)."""
    tensor(**{name: rows})
    if rows.ndim != 2 or rows.shape[1] != dim or not rows.is_floating_point():
        raise InputError(
            f"Expected {name} to be a floating-point tensor (n, {dim}), got {rows.dtype} of shape {tuple(rows.shape)}."
        )


def check_finite(rows: Tensor) -> None:
    """Raise unless all private rows are finite."""
    if not bool(torch.isfinite(rows).all()):
        raise InputError(
            "Expected finite private rows, got nan or inf; replace such a record by a zero row (dropping records "
            "would make their number depend on private values)."
        )


def check_labels(name: str, labels: Tensor | None, n_classes: int | None, size: int) -> None:
    """Raise unless there are ``size`` integer labels in [0, n_classes - 1], or none where ``n_classes`` is ``None``."""
    if n_classes is None:
        if labels is not None:
            raise InputError(f"Expected no {name}, since the mechanism has no n_classes; set n_classes.")
        return
    if labels is not None:
        tensor(**{name: labels})
    integers = labels is not None and not (
        labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool
    )
    if labels is None or not integers or tuple(labels.shape) != (size,):
        got = "none" if labels is None else f"{labels.dtype} of shape {tuple(labels.shape)}"
        raise InputError(f"Expected {name} to be integers of shape ({size},), got {got}.")
    if bool(((labels < 0) | (labels >= n_classes)).any()):
        raise InputError(f"Expected {name} in [0, {n_classes - 1}], got labels outside; check n_classes.")


def _block_distance(public: Tensor, projections: Tensor, target: Tensor, size: int) -> Tensor:
    """Mean squared difference of block means of (n, d), padded with zeros to ``size`` rows, to (m, k).

    For a target (C, m, k), ``public`` holds C classes of n / C rows each, one class after the other.
    """
    classes = len(target) if target.ndim == 3 else 1
    blocks, k = target.shape[-2:]

    def cost(columns: slice, projected: Tensor) -> Tensor:
        means = padded_block_means(projected, size, blocks)
        released = target[..., columns]
        released = released if target.ndim == 2 else released.permute(1, 2, 0).flatten(1)
        return power_cost(means, released, 2, means.shape[1] / (classes * k))

    return sum_over_projections(cost, projections, public, groups=classes)


def _smoothed_distance(
    public: Tensor, projections: Tensor, target: Tensor, labels: Tensor | None, sigma: float
) -> Tensor:
    """Squared distance of noisy projections of (n, d) to noisy rows (m, k) or (C, m, k)."""
    if labels is None:
        blocks = [(public, target)]
    else:
        blocks = [(public * (labels == c)[:, None], values) for c, values in enumerate(target)]
    return torch.stack([_noisy_distance(rows, projections, values, sigma) for rows, values in blocks]).mean()


def _noisy_distance(rows: Tensor, projections: Tensor, target: Tensor, sigma: float) -> Tensor:
    k = target.shape[1]
    if len(rows) != len(target):
        projected = (projections.T @ rows.T).T
        return wasserstein_1d(projected + sigma * torch.randn_like(projected), target).mean()

    def cost(columns: slice, projected: Tensor) -> Tensor:
        return power_cost(projected, target[:, columns], 2, projected.shape[1] / k)

    return sum_over_projections(cost, projections, rows, blur=sigma)
