"""Differentially private sliced Wasserstein loss.

axes: B private rows, n public rows, d dimension, k directions, m values per column, C classes.

The loss releases a batch (:mod:`dpswd.release` opens it) and compares public rows with the release::

    clip -> project -> sort and average -> ledger -> noise -> distance

A :class:`Release` holds everything that was released, and the distance reads the release only.
"""

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from dpswd._distributed import Processes
from dpswd._kernels import padded_block_means, power_cost, sum_over_projections
from dpswd._random import noisy, normal
from dpswd._sorting import sort_rows
from dpswd._validate import tensor
from dpswd.errors import InputError
from dpswd.mechanism import ProjectionMechanism, mechanism_from_dict
from dpswd.records import PrivateBatch
from dpswd.release import Recorder, Releasing, clip_rows, uncompiled
from dpswd.row_copy import RowFunction
from dpswd.sliced import wasserstein_1d
from dpswd.slices import random_projections

__all__ = ["DPSlicedWassersteinLoss", "Release"]

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_CHUNK_BYTES = 2**27  # of projected private rows in memory at a time


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
        return {
            "values": self.values,
            "projections": self.projections,
            "mechanism": self.mechanism.to_dict(),
        }

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> "Release":
        """Restore a release from the result of :meth:`state_dict`."""
        return cls(
            state["values"],
            state["projections"],
            cast(Any, mechanism_from_dict(state["mechanism"])),
        )

    def to(self, device: torch.device | str) -> "Release":
        """Return the release with its tensors on ``device``."""
        return Release(self.values.to(device), self.projections.to(device), self.mechanism)


class DPSlicedWassersteinLoss(Releasing[ProjectionMechanism]):
    """Squared sliced 2-Wasserstein loss between private and public rows. Each call makes one release.

    Formal guarantee:
        One call with a :class:`~dpswd.PrivateBatch` is the subsampled Gaussian mechanism that ``mechanism`` describes,
        under replace-one; no gradient reaches the private rows (docs/theory/private-side.md). A call with a tensor is
        the same *on conditions that the caller answers for*: each tensor holds a uniform subset of fixed size, drawn
        without replacement and afresh; each row depends on one record; nothing else reads the records.

    The value depends on the ``statistic`` of the mechanism. With ``"rows"`` it is the smoothed distance of the paper:
    the public projections get noise of the same size. With ``"quantiles"`` it is the distance of noisy block means:
    given the directions, its gradient is an unbiased estimate of the gradient of the squared distance between exact
    block means, and its value is offset by a constant.

    A subclass that audits the mechanism may override :meth:`draw_projections`, :meth:`exact_values`,
    :meth:`compute_statistic`, :meth:`add_noise`, :meth:`discard_order` and :meth:`publish`.

    Args:
        mechanism: The mechanism of a release. Its ``sigma`` must be set before the first release.
        recorder: Object that records every release before it is made; ``PrivacyBudget`` and ``Budget`` set it.

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
            raise InputError(
                f"Expected mechanism to be a ProjectionMechanism, got {type(mechanism).__name__}."
            )
        super().__init__(mechanism, recorder)

    def forward(
        self,
        private: PrivateBatch | Tensor,
        public: Tensor,
        public_labels: Tensor | None = None,
        *,
        rows: RowFunction | None = None,
    ) -> Tensor:
        """Make one release of ``private`` and return its distance to ``public``.

        Args:
            private: A batch of :class:`~dpswd.ReleaseLoader`; or rows (B, d) that the caller answers for, B being the
                ``batch_size`` of the mechanism, which has no classes then.
            public: Rows (n, d), n >= 1. They receive the gradient and are not clipped.
            public_labels: Classes (n,) if the mechanism has ``n_classes``.
            rows: Maps the records of the batch to rows (n, d), each by itself; ``None`` flattens them.

        Returns:
            Scalar tensor.

        Raises:
            InputError: If shapes, types or values are not valid; nothing was released.
            BudgetExceededError: If the recorder refuses the release.
        """
        self._check_sample("public", public, public_labels)
        release = self.release(private, rows=rows).to(public.device)
        return self.distance(release, public, public_labels)

    @uncompiled
    @torch.no_grad()
    def release(
        self, private: PrivateBatch | Tensor, *, rows: RowFunction | None = None
    ) -> Release:
        """Make one release of a batch; see :meth:`forward`.

        With ``torch.distributed`` initialised, every rank calls this method; of a tensor each hands over its part of
        the B rows.
        """
        mechanism = self.mechanism
        records = private.take() if isinstance(private, PrivateBatch) else None
        if records is not None and (size := len(private)) != mechanism.batch_size:
            raise InputError(
                f"Expected batch_size={mechanism.batch_size} as the mechanism, got {size}; make it equal."
            )
        if records is not None and mechanism.n_classes not in (None, records.n_classes):
            raise InputError(
                f"Expected n_classes={records.n_classes} as the records, got {mechanism.n_classes}."
            )
        if (stored := self._ask(records)) is not None:
            return Release(stored["values"], stored["projections"], mechanism)
        processes = Processes()
        if records is not None:
            found, classes = self._open_batch(records, len(private), rows)
        else:
            handed = cast(Tensor, private)
            processes.run_on_all(lambda: self._check_private(handed, rows))
            found = processes.gather(
                handed.detach().to(torch.promote_types(handed.dtype, torch.float32))
            )
            classes = None
        device = "cpu" if found is None else found.device
        projections = processes.broadcast(self.draw_projections).to(device)  # (d, k)

        def exact() -> Tensor | None:
            if found is None:
                return None
            grouped = classes if mechanism.n_classes else None
            self._check_sample("private", found, grouped)
            return self.exact_values(found, grouped, projections)

        return self.publish(processes.run_on_all(exact), projections)

    def exact_values(self, rows: Tensor, labels: Tensor | None, projections: Tensor) -> Tensor:
        """Compute the values (m, k) or (C, m, k) of private rows (B, d) before noise. PRIVATE."""
        with torch.autocast(rows.device.type, enabled=False):
            return self.compute_statistic(
                clip_rows(rows, self.mechanism.row_norm), labels, projections
            )

    def draw_projections(self) -> Tensor:
        """Draw the directions (d, k) of one release."""
        mechanism = self.mechanism
        return random_projections(
            mechanism.dim, mechanism.n_projections, kind=mechanism.kind, generator=self._source
        )

    def compute_statistic(self, rows: Tensor, labels: Tensor | None, projections: Tensor) -> Tensor:
        """Project clipped rows (B, d); for block means, sort every column and average its blocks, a few at a time."""
        size, blocks = len(rows), self.mechanism.n_values

        def of_rows(
            member: Tensor | None,
        ) -> Tensor:  # zero for another class; the order is discarded after the noise
            return (projections.T @ (rows if member is None else rows * member[:, None]).T).T

        def of_blocks(member: Tensor | None) -> Tensor:
            group, columns = (
                rows if member is None else rows[member],
                max(1, _CHUNK_BYTES // (8 * size)),
            )
            sorted_parts = (
                sort_rows(u.T @ group.T).T for u in torch.split(projections, columns, 1)
            )
            return torch.cat([padded_block_means(part, size, blocks) for part in sorted_parts], 1)

        summary = of_rows if self.mechanism.statistic == "rows" else of_blocks
        if labels is None:
            return summary(None)
        return torch.stack([summary(labels == c) for c in range(self.mechanism.n_classes or 0)])

    def publish(self, values: Tensor | None, projections: Tensor) -> Release:
        """Record a release of exact values (m, k) or (C, m, k), ``None`` on ranks above 0; then add noise to them."""
        noisy = self._publish(
            values, lambda exact: self.discard_order(self.add_noise(exact)), projections=projections
        )
        return Release(noisy.to(projections.device), projections, self.mechanism)

    def add_noise(self, values: Tensor) -> Tensor:
        """Add fresh Gaussian noise to exact values and round them to a public grid."""
        noise = normal(self._source, tuple(values.mT.shape)).mT.to(values.device)
        return noisy(values, noise, self.mechanism.sigma)

    def discard_order(self, values: Tensor) -> Tensor:
        """Sort every column of noisy rows in place: a row's position carries no information. Post-processing."""
        if self.mechanism.statistic != "rows":
            return values
        columns = values.mT.contiguous()
        return sort_rows(columns.flatten(0, -2)).view(columns.shape).mT

    def distance(
        self, release: Release, public: Tensor, public_labels: Tensor | None = None
    ) -> Tensor:
        """Return the distance of ``public`` (n, d) to a release, a scalar. Post-processing, repeatable at no cost."""
        self._check_sample("public", public, public_labels)
        mechanism = release.mechanism
        with torch.autocast(public.device.type, enabled=False):
            public = public.to(torch.promote_types(public.dtype, torch.float32))
            projections, target = release.projections.to(public), release.values.to(public)
            blur = mechanism.sigma if mechanism.statistic == "rows" else 0.0

            def compared(rows: Tensor, values: Tensor) -> Tensor:
                return _distance(
                    rows, projections, values.view(-1, *target.shape[-2:]), len(public), blur
                )

            if public_labels is None:
                return compared(public, target)
            members = [public_labels == c for c in range(len(target))]
            if blur:  # a row of another class is zero
                groups = [public * member[:, None] for member in members]
            elif (
                len(torch.bincount(public_labels, minlength=len(target)).unique()) == 1
            ):  # equal sizes: in one pass
                return compared(public[public_labels.argsort()], target)
            else:
                groups = [public[member] for member in members]
            return torch.stack([compared(z, t) for z, t in zip(groups, target, strict=True)]).mean()

    def _check_private(self, private: Tensor, rows: RowFunction | None) -> None:
        """Check rows that are handed over; every rank has a part of them."""
        counts = Processes().all_gather(
            len(private) if isinstance(private, Tensor) and private.ndim else 0
        )
        if rows is not None or self.mechanism.n_classes:
            raise InputError(
                "Expected a batch of ReleaseLoader for rows=... and n_classes, got a tensor; use one."
            )
        self._check_sample("private", private, None)
        if (size := sum(counts)) != self.mechanism.batch_size:
            got = f"{size} on all ranks together" if len(counts) > 1 else size
            raise InputError(
                f"Expected batch_size={self.mechanism.batch_size} private rows, got {got}."
            )
        if len(private) and not all(
            map(math.isfinite, torch.aminmax(private.detach()))
        ):  # nan propagates
            raise InputError(
                "Expected finite private rows, got nan or inf; make such a row zero, do not drop it."
            )

    def _check_sample(self, name: str, rows: Tensor, labels: Tensor | None) -> None:
        """Raise unless ``rows`` are floating-point rows (n, dim), n >= 1 of public ones, with classes as stated."""
        dim, n_classes = self.mechanism.dim, self.mechanism.n_classes
        classes = "public_labels" if name == "public" else "classes of a row function"
        tensor(**{f"{name} rows": rows})
        if rows.ndim != 2 or rows.shape[1] != dim or not rows.is_floating_point():
            got = f"{rows.dtype} of shape {tuple(rows.shape)}"
            also = (
                "; set dim, or pass rows=, the map of records to rows" if name == "private" else ""
            )
            raise InputError(
                f"Expected {name} rows to be a floating-point tensor (n, {dim}), got {got}{also}."
            )
        if name == "public" and not len(rows):
            raise InputError("Expected at least one row in public rows, got none.")
        if n_classes is None:
            if labels is not None:
                raise InputError(
                    f"Expected no {classes}, since the mechanism has no n_classes; set n_classes."
                )
            return
        if (
            not isinstance(labels, Tensor)
            or labels.dtype not in _INTEGERS
            or labels.shape != rows.shape[:1]
        ):
            got = (
                f"{labels.dtype} {tuple(labels.shape)}"
                if isinstance(labels, Tensor)
                else type(labels).__name__
            )
            raise InputError(
                f"Expected {classes} to be a tensor of {len(rows)} integers, got {got}."
            )
        if bool(((labels < 0) | (labels >= n_classes)).any()):
            raise InputError(
                f"Expected {classes} in [0, {n_classes - 1}], got labels outside; check n_classes."
            )


def _distance(
    public: Tensor, projections: Tensor, target: Tensor, size: int, blur: float
) -> Tensor:
    """Mean squared difference of block means to (C, m, k), of C parts of equal size that are padded to ``size`` rows.

    With ``blur``, the squared distance of noisy projections to noisy rows (1, m, k).
    """
    classes, blocks, k = target.shape
    if blur and size != blocks:
        projected = (projections.T @ public.T).T
        return wasserstein_1d(projected + blur * torch.randn_like(projected), target[0]).mean()

    def cost(columns: slice, projected: Tensor) -> Tensor:
        means = padded_block_means(projected, size, blocks)  # noisy rows as they are
        released = target[..., columns].permute(1, 2, 0).flatten(1)
        return power_cost(means, released, 2, means.shape[1] / (classes * k))

    return sum_over_projections(cost, projections, public, groups=classes, blur=blur)
