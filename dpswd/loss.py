"""The differentially private sliced Wasserstein loss: the whole street that a private record travels.

axes: B private rows, n public rows, d dimension, k directions, m values per column, C classes.

sampling (dpswd.sampling) -> clip -> project -> sort and block -> ledger -> noise -> loss. Nothing turns back: the
private tensor is detached at the door, a :class:`Release` holds all that has left, and the distance reads nothing else.

Several processes (``torch.distributed``) make one release together. The first draws one subset of B records; each clips
its part; the first collects the clipped rows, and does alone what one process does: directions, sort and block, ledger,
one draw of noise. What it sends to the others is the release. Proof that the guarantee is that of one process: clipping
acts on each row by itself, so the rows that the first holds are those of one process, in the same order; all that
follows is the same function of them and of the same random draws; and what the others do with the noisy values is
post-processing. (Were each to add its own noise to the same values, that would be as many releases as processes.)
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dpswd._distributed import Processes
from dpswd._provenance import track_runs
from dpswd._random import normal, on_grid, random_source
from dpswd._sorting import sort_columns, sort_rows
from dpswd._validate import tensor
from dpswd.errors import InputError
from dpswd.mechanism import Mechanism, ProjectionMechanism, mechanism_from_dict
from dpswd.sliced import padded_block_means, power_cost, random_projections, sum_over_projections, wasserstein_1d

__all__ = ["BudgetWatch", "DPSlicedWassersteinLoss", "Recorder", "Release", "clip_rows"]


class BudgetWatch:
    """Counts the budgets that run in this process; while one does, a release without a ledger is refused."""

    running = 0


_CHUNK_BYTES = 2**27  # of projected rows held at a time on the private side


class Recorder(Protocol):
    """Protocol of an object that records releases. All methods are called on every rank.

    Two further methods are optional, see :class:`dpswd.training.budget.RunBudget`:

    - ``before_release(mechanism, rows, labels)`` is called first, with the rows as given (``None`` for a query). It may
      refuse the release, or return the tensors of a stored one, which are then used instead of a new release;
    - ``store(mechanism, tensors)`` is called as soon as the noisy values exist.
    """

    def record(self, mechanism: Mechanism) -> None:
        """Writes one release to stable storage before its noise is drawn; raises to refuse it."""


def before_release(
    recorder: Recorder | None, mechanism: Mechanism, rows: Tensor | None = None, labels: Tensor | None = None
) -> dict[str, Tensor] | None:
    """Calls the optional method of a recorder; returns the tensors of a stored release, if it has one."""
    method = getattr(recorder, "before_release", None)
    return None if method is None else method(mechanism, rows, labels)  # type: ignore[no-any-return]


def store(recorder: Recorder | None, mechanism: Mechanism, tensors: dict[str, Tensor]) -> None:
    """Calls the optional method of a recorder with the noisy values of a release."""
    if (method := getattr(recorder, "store", None)) is not None:
        method(mechanism, tensors)


def clip_rows(rows: Tensor, row_norm: float) -> Tensor:
    """Scales every row whose L2 norm exceeds ``row_norm`` down to it, each by itself, in float64.

    The target is smaller by a factor 1 - 1e-12 - d u, u = 2^-53: a sum of d squares, added in whatever order, is off by
    at most (d + 1) u relative to itself (Higham 2002, Section 4.2), its root by half of that, so that rounding cannot
    push a row over the bound. A row so large that its norm overflows becomes zero.

    Args:
        rows: (B, d), any floating type.
        row_norm: The public bound.

    Returns:
        Tensor (B, d) in float64, detached.
    """
    rows = rows.detach().to(torch.float64)
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    margin = 1e-12 + rows.shape[1] * 2.0**-53
    return rows * (row_norm * (1 - margin) / norms).clamp(max=1.0)


@dataclass(frozen=True)
class Release:
    """All that left the private side in one release. Everything computed from it is post-processing.

    Attributes:
        values: Noisy values (m, k), or (C, m, k) where records carry a class; ascending per column for rows.
        projections: The directions (d, k), which are published too.
        mechanism: What made it.
    """

    values: Tensor
    projections: Tensor
    mechanism: ProjectionMechanism

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values, to be kept in a checkpoint: they are public."""
        return {"values": self.values, "projections": self.projections, "mechanism": self.mechanism.to_dict()}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> "Release":
        """Makes the release again from what :meth:`state_dict` gave."""
        mechanism = mechanism_from_dict(state["mechanism"])
        if not isinstance(mechanism, ProjectionMechanism):
            raise InputError(f"Expected a release of projections, got {state['mechanism'].get('mechanism')!r}.")
        return cls(state["values"], state["projections"], mechanism)

    def to(self, device: torch.device | str) -> "Release":
        """Moves the tensors."""
        return Release(self.values.to(device), self.projections.to(device), self.mechanism)


class DPSlicedWassersteinLoss(nn.Module):
    """Squared sliced 2-Wasserstein loss between private rows and public ones. Each call is ONE release.

    Formal guarantee:
        One call is the subsampled Gaussian mechanism that ``mechanism`` describes, under replace-one, provided that
        the rows are a fresh uniform subset of fixed size (:class:`dpswd.sampling.FixedSizeSampler`); account for it
        with :class:`dpswd.PrivacyAccountant`. The gradient with respect to ``public`` is post-processing.
        The private argument never receives a gradient, also where a network computed it. (If that network is itself
        being trained, it must treat rows independently: no batch statistics.)

    ===================  =============================================================================
    edge case            what happens
    ===================  =============================================================================
    row beyond the norm  clipped, in float64, by itself
    nan or inf           refused before anything is released
    B rows wanted        another number is refused: the accountant counted on B
    n other than B       blocks (quantiles) or one-dimensional transport by POT (rows)
    float16, bfloat16    the public side is compared in float32, the private side in float64
    autocast             switched off inside
    ===================  =============================================================================

    With ``statistic="rows"`` the public side is blurred by noise of the same size, which makes this the *smoothed*
    sliced Wasserstein distance of the paper. With ``"quantiles"`` it is not: given the directions, the gradient is an
    unbiased estimate of that of the squared distance between block means; the value is offset by a constant.

    Args:
        mechanism: What is released, with which noise.
        recorder: Object that writes each release down before it happens; ``None`` keeps only the count in ``releases``.

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
        super().__init__()
        track_runs(self)
        self.recorder = recorder
        self.n_releases = 0
        self.mechanism = mechanism

    @property
    def mechanism(self) -> ProjectionMechanism:
        """What is released, with which noise."""
        return self._mechanism

    @mechanism.setter
    def mechanism(self, mechanism: ProjectionMechanism) -> None:
        if not isinstance(mechanism, ProjectionMechanism):
            raise InputError(f"Expected mechanism to be a ProjectionMechanism, got {type(mechanism).__name__}.")
        self._mechanism = mechanism
        self._source = random_source(mechanism.noise_seed)

    def forward(
        self,
        private: Tensor,
        public: Tensor,
        private_labels: Tensor | None = None,
        public_labels: Tensor | None = None,
    ) -> Tensor:
        """Releases ``private`` once and compares ``public`` with what was released.

        Args:
            private: Rows (B, d); B is the mechanism's ``batch_size``.
            public: Rows (n, d), any n >= 1; gets the gradient. Not clipped.
            private_labels: Classes (B,) where the mechanism has ``n_classes``; private like the rows.
            public_labels: Classes (n,), likewise.

        Returns:
            Scalar tensor.

        Raises:
            InputError: If shapes, types or values do not fit; nothing is released then.
            BudgetExceededError: If the ledger refuses the release.
        """
        self._check_public(public, public_labels)
        return self.distance(self.release(private, private_labels), public, public_labels)

    @torch.no_grad()
    def release(self, private: Tensor, labels: Tensor | None = None) -> Release:
        """Makes one release of ``private`` (B, d) and of its classes (B,), if any. See :meth:`forward`.

        Where ``torch.distributed`` is initialised all processes call this, each with its part of the B rows.
        """
        if (stored := before_release(self.recorder, self.mechanism, private, labels)) is not None:
            return Release(stored["values"], stored["projections"], self.mechanism).to(private.device)
        processes = Processes()
        processes.run_on_all(partial(self._check_private, private, labels, processes))
        mechanism = self.mechanism
        with torch.autocast(private.device.type, enabled=False):
            rows = clip_rows(private, mechanism.row_norm)  # (B, d)
            if processes.world_size > 1:
                return self._release_together(rows, labels, processes)
            projections = self._directions().to(rows.device)  # (d, k)
            values = self._summarise(rows, labels, projections)  # (m, k) or (C, m, k)
        return self._publish(values, projections)

    def _release_together(self, part: Tensor, labels: Tensor | None, processes: Processes) -> Release:
        """Makes one release of the clipped rows (n, d) of all processes; the module's docstring has the proof."""
        counts = processes.all_gather(len(part))
        rows = processes.gather(part.T.contiguous(), counts)  # (d, B) on the first process
        classes = None if labels is None else processes.gather(labels, counts)
        projections: Tensor = processes.broadcast(self._directions).to(part.device)

        def exact() -> Tensor | None:
            return None if rows is None else self._summarise(rows.T.contiguous(), classes, projections)

        values = processes.run_on_all(exact)
        processes.run_on_all(self._announce)  # every process has its own say; the first one writes
        noisy: Tensor = processes.broadcast(lambda: self._noisy(values).cpu())
        store(self.recorder, self.mechanism, {"values": noisy, "projections": projections})
        return Release(noisy.to(part.device), projections, self.mechanism)

    def distance(self, release: Release, public: Tensor, public_labels: Tensor | None = None) -> Tensor:
        """Compares ``public`` (n, d) with a release, for free and as often as wanted. Returns a scalar."""
        self._check_public(public, public_labels)
        mechanism = release.mechanism
        with torch.autocast(public.device.type, enabled=False):
            public = public.to(torch.promote_types(public.dtype, torch.float32))
            projections, target = release.projections.to(public), release.values.to(public)
            if mechanism.statistic == "rows":
                return _smoothed(public, projections, target, public_labels, mechanism.sigma)
            if public_labels is None:
                return _residual(public, projections, target, len(public))
            counts = torch.bincount(public_labels, minlength=len(target))
            if bool((counts == counts[0]).all()):  # all classes at once
                return _residual(public[public_labels.argsort()], projections, target, len(public))
            groups = [public[public_labels == c] for c in range(len(target))]
            each = [_residual(z, projections, t, len(public)) for z, t in zip(groups, target, strict=True)]
            return torch.stack(each).mean()

    def extra_repr(self) -> str:
        """What ``print(module)`` says."""
        status = "" if self.mechanism.is_private else "NOT PRIVATE: fixed noise seed; "
        return f"{status}{self.mechanism.description}, sigma={self.mechanism.sigma:.4g}"

    def _summarise(self, rows: Tensor, labels: Tensor | None, projections: Tensor) -> Tensor:
        """Projects and reduces (B, d) to (m, k) or (C, m, k), a few columns at a time. Exact: noise comes later."""
        size, blocks = len(rows), self.mechanism.n_values
        width = max(1, _CHUNK_BYTES // (8 * size))
        groups = [] if labels is None else [rows[labels == c] for c in range(self.mechanism.n_classes or 0)]

        def summary(group: Tensor) -> Tensor:
            sorted_parts = (sort_rows(u.T @ group.T, in_place=True).T for u in torch.split(projections, width, 1))
            parts = [padded_block_means(part, size, blocks) for part in sorted_parts]
            return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

        return summary(rows) if labels is None else torch.stack([summary(group) for group in groups])

    def _directions(self) -> Tensor:
        """Draws the directions (d, k) of one release."""
        mechanism = self.mechanism
        return random_projections(mechanism.dim, mechanism.n_projections, kind=mechanism.kind, generator=self._source)

    def _publish(self, values: Tensor, projections: Tensor) -> Release:
        """Ledger, then noise: the only door through which exact values (m, k) or (C, m, k) leave."""
        self._announce()
        noisy = self._noisy(values)
        store(self.recorder, self.mechanism, {"values": noisy, "projections": projections})
        return Release(noisy, projections, self.mechanism)

    def _announce(self) -> None:
        if self.recorder is not None:
            self.recorder.record(self.mechanism)
        elif BudgetWatch.running:
            raise InputError(
                "Expected a ledger for every release while a PrivacyBudget runs, got a loss without one; "
                "make the loss an attribute of the LightningModule."
            )
        self.n_releases += 1

    def _noisy(self, values: Tensor) -> Tensor:
        noise = self._noise(tuple(values.mT.shape)).mT.to(values.device)  # a column lies together, as in the values
        values = on_grid(torch.add(values, noise, alpha=self.mechanism.sigma), self.mechanism.sigma)
        return self._order_free(values) if self.mechanism.statistic == "rows" else values

    def _noise(self, shape: tuple[int, ...]) -> Tensor:
        """Draws standard normal numbers of a shape, fresh for every release."""
        return torch.from_numpy(normal(self._source, shape))

    def _order_free(self, values: Tensor) -> Tensor:
        """Sorts every column of (m, k) or (C, m, k), so that the position of a row says nothing. Post-processing."""
        return sort_columns(values) if values.ndim == 2 else torch.stack([sort_columns(block) for block in values])

    def _check_private(self, private: Tensor, labels: Tensor | None, processes: Processes) -> None:
        wanted = (self.mechanism.batch_size, self.mechanism.dim)
        tensor(private=private)
        here = len(private) if private.ndim else 0
        found = (sum(processes.all_gather(here)), *private.shape[1:])
        if found != wanted:
            raise InputError(
                f"Expected private rows of shape {wanted} (batch_size and dim of the mechanism), got "
                f"{found}{' in all processes together' if processes.world_size > 1 else ''}; the guarantee counts on a "
                "fixed batch size."
            )
        if not private.is_floating_point():
            raise InputError(f"Expected floating-point private rows, got {private.dtype}; convert them first.")
        if not bool(torch.isfinite(private).all()):
            raise InputError("Expected finite private rows, got nan or inf; clean the data before it is used.")
        self._check_labels("private_labels", labels, len(private))

    def _check_public(self, public: Tensor, labels: Tensor | None) -> None:
        tensor(public=public)
        if public.ndim != 2 or public.shape[1] != self.mechanism.dim or not len(public):
            raise InputError(f"Expected public rows (n, {self.mechanism.dim}), n >= 1, got {tuple(public.shape)}.")
        if not public.is_floating_point():
            raise InputError(f"Expected floating-point public rows, got {public.dtype}; convert them first.")
        most = torch.finfo(torch.promote_types(public.dtype, torch.float32)).max
        if self.mechanism.sigma > most / 2**10:
            raise InputError(
                f"Expected a sigma that {public.dtype} can hold, got sigma={self.mechanism.sigma:g}; use float64."
            )
        self._check_labels("public_labels", labels, len(public))

    def _check_labels(self, name: str, labels: Tensor | None, size: int) -> None:
        classes = self.mechanism.n_classes
        if classes is None:
            if labels is not None:
                raise InputError(f"Expected no {name}: the mechanism has no n_classes; give it one or leave them out.")
            return
        if labels is not None:
            tensor(**{name: labels})
        if labels is None or tuple(labels.shape) != (size,) or labels.is_floating_point() or labels.is_complex():
            got = "none" if labels is None else f"{labels.dtype} of shape {tuple(labels.shape)}"
            raise InputError(f"Expected {name} to be integers of shape ({size},), got {got}.")
        if bool(((labels < 0) | (labels >= classes)).any()):
            raise InputError(f"Expected {name} between 0 and {classes - 1}, got others; check n_classes.")


def _residual(public: Tensor, projections: Tensor, target: Tensor, size: int) -> Tensor:
    """Compares block means of (n, d), padded with zeros to ``size`` rows, with (m, k): the mean of the squares.

    Or, for (C, m, k), those of C classes with n / C rows each, which come one class after the other.
    """
    classes = len(target) if target.ndim == 3 else 1
    blocks, k = target.shape[-2:]

    def criterion(columns: slice, ours: Tensor) -> Tensor:
        means = padded_block_means(ours, size, blocks)
        theirs = target[..., columns]
        theirs = theirs if target.ndim == 2 else theirs.permute(1, 2, 0).flatten(1)
        return power_cost(means, theirs, 2, means.shape[1] / (classes * k))

    return sum_over_projections(criterion, projections, public, groups=classes)


def _smoothed(public: Tensor, projections: Tensor, target: Tensor, labels: Tensor | None, sigma: float) -> Tensor:
    """Compares projections of (n, d), blurred like the released rows, with (m, k) or (C, m, k)."""
    if labels is None:
        blocks = [(public, target)]
    else:
        blocks = [(public * (labels == c)[:, None], values) for c, values in enumerate(target)]
    return torch.stack([_blurred(rows, projections, values, sigma) for rows, values in blocks]).mean()


def _blurred(rows: Tensor, projections: Tensor, target: Tensor, sigma: float) -> Tensor:
    """Compares projections of (n, d), blurred, with (m, k), which is in ascending order."""
    k = target.shape[1]
    if len(rows) != len(target):
        projected = (projections.T @ rows.T).T
        return wasserstein_1d(projected + sigma * torch.randn_like(projected), target).mean()

    def criterion(columns: slice, ours: Tensor) -> Tensor:
        return power_cost(ours, target[:, columns], 2, ours.shape[1] / k)

    return sum_over_projections(criterion, projections, rows, blur=sigma)
