"""Differentially private sliced Wasserstein loss.

axes: B private rows, n public rows, d dimension, k directions, m values per column, C classes.

The loss releases a batch (:mod:`dpswd.release` opens it) and compares public rows with it::

    clip -> project -> sort and average -> ledger -> noise -> distance

A :class:`Release` holds everything that was released, and the distance reads the release only.
"""

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpswd._compiling import uncompiled
from dpswd._distributed import Processes
from dpswd._kernels import (
    Projections,
    padded_block_means,
    plain_padded_block_means,
    power_cost,
    project,
    sum_over_projections,
)
from dpswd._labels import class_numbers
from dpswd._sorting import sort_rows
from dpswd._threads import multiply_in_threads
from dpswd._validate import choice, padded_size, tensor
from dpswd.clipping import clip_rows, unit_rows
from dpswd.errors import InputError, UtilityWarning
from dpswd.mechanism import ProjectionMechanism, mechanism_from_dict
from dpswd.records import PrivateBatch, PrivateRecords, check_n_classes
from dpswd.release import BatchStatistic, Recorder, make_release
from dpswd.row_copy import RowFunction
from dpswd.sensitivity import SUMMED_AT_ONCE
from dpswd.sliced import check_order, wasserstein_1d
from dpswd.slices import random_projections
from dpswd.structured import StructuredProjections, fixed_point_frame

__all__ = ["DPSlicedWassersteinLoss", "Release"]

Reduction = Literal["mean", "max", "energy"]

# Projected private rows are sorted in parts of at most this many bytes, which bounds the memory.
_MAX_SORTED_BYTES = 2**27
# Integers of a frame are sorted and averaged in parts of at most this many: they stay in the
# processor's cache.
_SORTED_AT_ONCE = 2**18
# Public rows of more than this many times row_norm are in other units than clipped private rows. An
# untrained network alone draws rows up to about 1.6 times as long as the records: so much longer is
# an image of grey pixels than one of MNIST.
_LONG = 2


@dataclass(frozen=True)
class Release:
    """The output of one release. Everything computed from it is post-processing.

    Attributes:
        values: Noisy values (m, k), or (C, m, k) for records with a class; every column of noisy
            rows is sorted.
        projections: Public directions (d, k), or structured slices.
        mechanism: The mechanism that made the release.

    Example:
        >>> mechanism = ProjectionMechanism(dim=5, n_projections=20, sigma=0.1, batch_size=64)
        >>> release = DPSlicedWassersteinLoss(mechanism).release(torch.randn(64, 5))
        >>> release.values.shape, release.projections.shape
        (torch.Size([64, 20]), torch.Size([5, 20]))
    """

    values: Tensor
    projections: Projections
    mechanism: ProjectionMechanism

    def project(self, rows: Tensor) -> Tensor:
        """Project rows (N, d) on the directions of the release: (N, k)."""
        return project(rows, _converted(self.projections, rows))

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values for a checkpoint; all of them are public.

        Of structured slices only the signs are stored.
        """
        projections = self.projections
        if isinstance(projections, StructuredProjections):
            projections = projections.signs
        return {
            "values": self.values,
            "projections": projections,
            "mechanism": self.mechanism.to_dict(),
        }

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> "Release":
        """Restore a release from the result of :meth:`state_dict`.

        Raises:
            InputError: If the dictionary is not the state of a release of a loss.
        """
        entries = {"values", "projections", "mechanism"}
        if not isinstance(state, dict) or not entries <= set(state):
            raise InputError(
                f"Expected the state of a release, with the entries {', '.join(sorted(entries))}, "
                f"got a {type(state).__name__} without one of them; pass the result of "
                "state_dict()."
            )
        mechanism = mechanism_from_dict(state["mechanism"])
        if not isinstance(mechanism, ProjectionMechanism):
            raise InputError(
                "Expected the state of a release of DPSlicedWassersteinLoss, "
                f"got one of {mechanism.description}; pass the state of a release of the loss."
            )
        projections = _as_projections(state["projections"], mechanism)
        return cls(state["values"], projections, mechanism)

    def to(self, device: torch.device | str) -> "Release":
        """Return the release with its tensors on ``device``."""
        return Release(self.values.to(device), self.projections.to(device), self.mechanism)


class DistanceEstimate(NamedTuple):
    """An estimated squared distance and its standard error; both are released values.

    Attributes:
        value: The estimate, which can be negative.
        standard_error: Its standard error.
    """

    value: float
    standard_error: float


class DPSlicedWassersteinLoss(BatchStatistic):
    """Sliced Wasserstein loss of private and public rows. Each call makes one release.

    Formal guarantee:
        One call with a :class:`~dpswd.PrivateBatch` is the subsampled Gaussian mechanism that
        ``mechanism`` describes, under replace-one; no gradient reaches the private rows
        (docs/theory/private-side.md). A call with a tensor is the same *on conditions that the
        caller answers for*: each tensor holds a uniform subset of fixed size, drawn without
        replacement and afresh; each row depends on one record; nothing else reads the records.

    The value is the p-th power of the distance, the square by default; with ``root=True`` the
    distance. It depends on the ``statistic`` of the mechanism. With ``"rows"`` it is the smoothed
    distance of the paper: the public projections get noise of the same size. With ``"quantiles"``
    it is the distance of noisy block means: given the directions, its gradient is an unbiased
    estimate of the gradient of the squared distance between exact block means, and its value is
    offset by a constant. That holds for order p = 2; a release does not depend on the order, and
    other orders have neither an unbiased gradient nor a constant offset.

    A subclass that audits the mechanism may override the methods that
    :func:`dpswd.release.make_release` calls, in this order: :meth:`draw_projections`,
    :meth:`exact_values` (which calls :meth:`compute_statistic`), :meth:`add_noise` (which calls
    :meth:`draw_noise`) and :meth:`discard_order`.

    Args:
        mechanism: The mechanism of a release. Its ``sigma`` must be set before the first release.
        p: Order of the distance, at least 1.
        root: Whether the distance is returned in place of its p-th power.
        reduction: ``"mean"`` over the slices; ``"max"``, the largest of them, as in the max-sliced
            distance; or ``"energy"``, their mean with weights in proportion to themselves. All
            three are post-processing of released slices (docs/theory/private-side.md, Proposition
            36). Noise adds to every slice, so that the largest one is biased upwards.
        recorder: Object that records every release before it is made; ``PrivacyBudget`` and
            ``Budget`` set it.

    Raises:
        InputError: If ``mechanism`` is not a ProjectionMechanism, or p < 1.

    References:
        | Rakotomamonjy2021, Algorithm 1 and Section 3; Deshpande2019 (largest slice); Nguyen2023
          (energy).

    Example:
        >>> mechanism = ProjectionMechanism(dim=5, n_projections=20, sigma=0.1, batch_size=64)
        >>> loss = DPSlicedWassersteinLoss(mechanism)
        >>> public = torch.zeros(32, 5, requires_grad=True)
        >>> loss(torch.randn(64, 5), public).backward()
        >>> public.grad.shape, loss.n_releases
        (torch.Size([32, 5]), 1)

        A plain loop: a release is paid for by the budget, and :meth:`distance` to it is free, for
        any number of steps. Block means (``"quantiles"``) have far less noise than rows.

        >>> import tempfile
        >>> from dpswd import Budget
        >>> records = PrivateRecords(torch.rand(256, 5))
        >>> features = torch.nn.Tanh()  # maps private and generated records to rows
        >>> network = torch.nn.Linear(2, 5)
        >>> mechanism = ProjectionMechanism(
        ...     5, 20, batch_size=64, statistic="quantiles", n_quantiles=8, kind="orthogonal",
        ...     row_norm=2.3)  # above 5 ** 0.5, the largest norm of a row
        >>> loss = DPSlicedWassersteinLoss(mechanism)
        >>> budget = {"target_epsilon": 10, "target_delta": 1e-4, "n_releases": 4}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with Budget(records, [loss], run_dir=folder, **budget):
        ...         for _ in range(4):
        ...             release = loss.release(PrivateBatch(records, 64), rows=features)
        ...             for _ in range(10):
        ...                 generated = network(torch.randn(32, 2))
        ...                 loss.distance(release, features(generated)).backward()
        >>> loss.n_releases
        4
    """

    def __init__(
        self,
        mechanism: ProjectionMechanism,
        *,
        p: float = 2,
        root: bool = False,
        reduction: Reduction = "mean",
        recorder: Recorder | None = None,
    ) -> None:
        if not isinstance(mechanism, ProjectionMechanism):
            raise InputError(
                f"Expected mechanism to be a ProjectionMechanism, got {type(mechanism).__name__}; "
                "pass ProjectionMechanism(dim, n_projections, batch_size=...)."
            )
        check_order(p)
        super().__init__(mechanism, recorder)
        choice(("mean", "max", "energy"), reduction=reduction)
        self.p = p
        self.root = root
        self.reduction = reduction
        self._has_compared = False
        # What to do about long rows, for a warning: a module has other arguments than the loss.
        self.remedy_of_long_rows = (
            "divide both by a public constant in rows=, or set row_norm of the mechanism"
        )

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
            private: A batch of :class:`~dpswd.ReleaseLoader`; or rows (B, d) that the caller
                answers for, B being the ``batch_size`` of the mechanism, which has no classes then.
            public: Rows (n, d), n >= 1. They receive the gradient and are not clipped; a
                :class:`~dpswd.errors.UtilityWarning` says if the first ones of a loss are more than
                twice as long as the ``row_norm`` of the mechanism.
            public_labels: Classes (n,) if the mechanism has ``n_classes``.
            rows: Maps the records of the batch to rows (n, d), each by itself; ``None`` flattens
                them.

        Returns:
            Scalar tensor.

        Raises:
            InputError: If shapes, types or values are not valid; nothing was released.
            BudgetExceededError: If the recorder refuses the release.
        """
        self._check_public(public, public_labels)
        release = self.release(private, rows=rows).to(public.device)
        return self.distance(release, public, public_labels)

    def release(
        self, private: PrivateBatch | Tensor, *, rows: RowFunction | None = None
    ) -> Release:
        """Make one release of a batch; see :meth:`forward`.

        With ``torch.distributed`` initialised, every rank calls this method; of a tensor each hands
        over its part of the B rows.
        """
        if isinstance(private, PrivateBatch):
            tensors = make_release(self, self._records_of(private), rows)
        else:
            Processes().run_on_all(self._check_handed_over, private, rows)
            tensors = make_release(self, private)
        projections = _as_projections(tensors["projections"], self.mechanism)
        return Release(tensors["values"], projections, self.mechanism)

    def draw_projections(self) -> Tensor:
        """Draw the directions (d, k) of one release, or the signs of structured slices."""
        mechanism = self.mechanism
        if mechanism.kind == "structured":
            return StructuredProjections.draw(
                mechanism.dim, mechanism.n_projections, generator=self.source
            ).signs
        dtype = torch.float64
        if mechanism.precision == "single":
            dtype = torch.float32
        return random_projections(
            mechanism.dim,
            mechanism.n_projections,
            kind=mechanism.kind,
            generator=self.source,
            dtype=dtype,
        )

    def exact_values(self, rows: Tensor, labels: Tensor | None, projections: Projections) -> Tensor:
        """Compute the values of private rows (B, d) before noise. PRIVATE.

        Their shape is (m, k), or (C, m, k) with classes. The projections are the result of
        :meth:`draw_projections`.
        """
        projections = _as_projections(projections, self.mechanism)
        with torch.autocast(rows.device.type, enabled=False):
            if self.mechanism.precision == "single":
                clipped = unit_rows(rows, self.mechanism.row_norm)
            else:
                clipped = clip_rows(rows, self.mechanism.row_norm)
            return self.compute_statistic(clipped, labels, projections)

    def compute_statistic(
        self, rows: Tensor, labels: Tensor | None, projections: Projections
    ) -> Tensor:
        """Compute the statistic of clipped rows (B, d).

        With labels, that is one statistic for every class. In single precision the rows are those
        of :func:`dpswd.clipping.unit_rows`.

        Returns:
            Values (m, k) in float64, or (C, m, k) with labels. The order of noisy rows is discarded
            after the noise.
        """
        if labels is None:
            return self._statistic_of_class(rows, None, projections)
        assert self.mechanism.n_classes is not None  # labels without classes are refused
        values = []
        for c in range(self.mechanism.n_classes):
            values.append(self._statistic_of_class(rows, labels == c, projections))
        return torch.stack(values)

    def _statistic_of_class(
        self, rows: Tensor, member: Tensor | None, projections: Projections
    ) -> Tensor:
        """Return the values (m, k) of those clipped rows that are members of a class.

        A row of another class counts as zero, so that every class has B rows, and their number
        says nothing. For block means, the zeros are added after the sort, at less cost.

        Args:
            rows: Clipped rows (B, d) of all classes.
            member: Whether each row (B,) is of the class; ``None`` for a single class.
            projections: Directions, or structured slices.
        """
        n_rows = len(rows)
        if self.mechanism.statistic == "rows":
            if member is not None:
                rows = rows * member[:, None]
            columns = rows.new_empty(projections.shape[1], n_rows, dtype=torch.float64)
            start = 0
            for part, factor in self._projected(rows, projections, n_rows):
                columns[start : start + len(part)] = part
                columns[start : start + len(part)] *= factor
                start += len(part)
            return columns.T
        if member is not None:
            rows = rows[member]
        means = []
        for part, factor in self._projected(rows, projections, n_rows):
            columns = sort_rows(part).double().T
            part_means = padded_block_means(columns, n_rows, self.mechanism.n_values)
            means.append(part_means * factor)
        return torch.cat(means, dim=1)

    def _projected(
        self, rows: Tensor, projections: Projections, size: int
    ) -> Iterator[tuple[Tensor, float]]:
        """Yield the projections of clipped rows (n, d) in parts, with a factor of each.

        A part holds some of the k columns as rows, (columns, n): sorts run in contiguous memory.
        The projections are the part times the factor. For structured slices the part holds
        integers, whose sums have no rounding error (:mod:`dpswd.structured`).

        Args:
            rows: Clipped rows.
            projections: Directions, or structured slices.
            size: Number of rows and zeros that a part is sorted with.
        """
        n_columns = max(1, _MAX_SORTED_BYTES // (8 * size))  # sorted at a time
        if not isinstance(projections, StructuredProjections):
            for directions in torch.split(projections, n_columns, dim=1):
                if self.mechanism.precision == "single":
                    yield _single_product(directions, rows), self.mechanism.row_norm
                else:
                    yield directions.T @ rows.T, 1.0
            return
        for signs in projections.signs:
            integers, factor = fixed_point_frame(signs, rows, self.mechanism.row_norm)
            for part in integers.split(min(n_columns, max(1, _SORTED_AT_ONCE // size))):
                yield part, factor

    def draw_noise(self, shape: tuple[int, ...]) -> Tensor:
        """Draw standard normal noise (m, k) or (C, m, k) in float64.

        It is drawn as (k, m) and transposed: noisy rows are computed and sorted column by column,
        and the noise has their order in memory.
        """
        *classes, m, k = shape
        return super().draw_noise((*classes, k, m)).mT

    def discard_order(self, values: Tensor) -> Tensor:
        """Sort every column of noisy rows, so that a position carries no information."""
        if self.mechanism.statistic != "rows":
            return values
        columns = values.mT.contiguous()
        return sort_rows(columns.flatten(0, -2)).view(columns.shape).mT

    @uncompiled
    def distance(
        self, release: Release, public: Tensor, public_labels: Tensor | None = None
    ) -> Tensor:
        """Return the distance of ``public`` (n, d) to a release. Post-processing.

        The distance is a scalar. It reads released values only, so that it can be repeated at no
        cost.
        """
        self._check_public(public, public_labels)
        self._warn_of_long_rows(public)
        with torch.autocast(public.device.type, enabled=False):
            rows = public.to(torch.promote_types(public.dtype, torch.float32))
            if self.reduction != "mean":
                power = self._reduced(self._slice_powers(release, rows, public_labels))
            elif public_labels is None:
                power = _distance(release, rows, release.values, self.p)
            else:
                power = self._distance_of_classes(release, rows, public_labels)
        if self.root:
            smallest = torch.finfo(power.dtype).tiny  # the root has no derivative at zero
            return power.clamp(min=smallest) ** (1 / self.p)
        return power

    @uncompiled
    def slice_distances(
        self, release: Release, public: Tensor, public_labels: Tensor | None = None
    ) -> Tensor:
        """Return the p-th powers (k,) of the distances along all slices. Post-processing.

        Their mean is :meth:`distance`; with labels they are means over classes. Any function of
        them, such as the largest or a weighted mean, is post-processing, too.
        """
        self._check_public(public, public_labels)
        self._warn_of_long_rows(public)
        with torch.autocast(public.device.type, enabled=False):
            rows = public.to(torch.promote_types(public.dtype, torch.float32))
            return self._slice_powers(release, rows, public_labels)

    def _slice_powers(self, release: Release, rows: Tensor, labels: Tensor | None) -> Tensor:
        """Return the p-th powers (k,) of the distances along all slices, of rows (n, d)."""
        if labels is None:
            return _slice_powers(release, rows, release.values, self.p, len(rows))
        powers = []
        for c, values in enumerate(release.values):
            class_rows = _rows_of_class(release, rows, labels == c)
            powers.append(_slice_powers(release, class_rows, values, self.p, len(rows)))
        return torch.stack(powers).mean(0)

    def _reduced(self, powers: Tensor) -> Tensor:
        """Return the largest of the powers (k,), or their mean with weights as themselves."""
        if self.reduction == "max":
            return powers.max()
        total = powers.sum().clamp(min=torch.finfo(powers.dtype).tiny)
        return (powers * powers).sum() / total

    @torch.no_grad()
    def estimate(
        self, release: Release, public: Tensor, public_labels: Tensor | None = None
    ) -> DistanceEstimate:
        """Estimate the squared distance of ``public`` (n, d) to the private batch.

        This is post-processing of a release. The noise adds its variance to every squared
        difference of block means; it is subtracted. Given the batch, the result is an unbiased
        estimate of the squared distance of block means, averaged over all directions. It can be
        negative. Block means leave out the spread within a block, so that their distance is at most
        that of the rows.

        Args:
            release: A release of block means.
            public: Rows (n, d); with labels at most as many of a class as the batch has rows.
            public_labels: Classes (n,) if the mechanism has ``n_classes``; the distance is then the
                mean over classes, of rows that are filled with zeros.

        Returns:
            The estimate and its standard error, which covers noise and directions: it comes from
            the spread over directions, or over whole bases if there are several.

        Raises:
            InputError: If the release is of noisy rows, has a single direction, or shapes do not
                fit.
        """
        self._check_public(public, public_labels)
        self._warn_of_long_rows(public)
        mechanism = release.mechanism
        if mechanism.statistic != "quantiles" or mechanism.n_projections < 2:
            raise InputError(
                "Expected a release of statistic='quantiles' along at least two directions, got "
                f"{mechanism.description}; use distance()."
            )
        rows = public.to(torch.float64)
        classes: list[Tensor] = [rows]
        if public_labels is not None:
            classes = [rows[public_labels == c] for c in range(len(release.values))]
        values = release.values.to(rows).view(len(classes), mechanism.n_values, -1)
        squares = []
        for class_rows, released in zip(classes, values, strict=True):
            projected = project(class_rows, _converted(release.projections, rows))
            columns = sort_rows(projected.T.contiguous()).T
            means = padded_block_means(columns, len(rows), mechanism.n_values)
            squares.append((means - released).square().mean(0))
        # The noise adds sigma^2 to the expectation of every squared difference.
        estimates = torch.stack(squares).mean(0) - mechanism.sigma**2
        return estimate_of_slices(estimates, mechanism)

    def _distance_of_classes(self, release: Release, rows: Tensor, labels: Tensor) -> Tensor:
        """Return the mean over classes of the distance of public rows (n, d) to a release."""
        n_classes = len(release.values)
        counts = torch.bincount(labels, minlength=n_classes)
        is_noisy_rows = release.mechanism.statistic == "rows"
        have_equal_size = len(counts.unique()) == 1
        if have_equal_size and not is_noisy_rows:  # one pass over all classes, which is faster
            return _distance(release, rows[labels.argsort()], release.values, self.p)
        distances = []
        for c, values in enumerate(release.values):
            class_rows = _rows_of_class(release, rows, labels == c)
            distance = _distance(release, class_rows, values, self.p, size=len(rows))
            distances.append(distance)
        return torch.stack(distances).mean()

    def _records_of(self, batch: PrivateBatch) -> PrivateRecords:
        """Return the records of a batch that fits the mechanism, and mark it as released."""
        mechanism = self.mechanism
        records = batch.records
        if records is None:
            return batch.consume()  # refuses the empty batch
        if len(batch) != mechanism.batch_size:
            raise InputError(
                f"Expected batch_size={mechanism.batch_size} as the mechanism, got {len(batch)}; "
                "make it equal."
            )
        if mechanism.n_classes is not None:
            check_n_classes(records, mechanism.n_classes, "the mechanism")
        return batch.consume()

    def _check_handed_over(self, private: Any, row_function: RowFunction | None) -> None:
        """Check rows that the caller hands over; every rank has a part of them.

        The numbers of rows are gathered before anything is refused: every rank must make the call,
        or the others would wait for it.
        """
        n_rows = 0
        if isinstance(private, Tensor) and private.ndim:
            n_rows = len(private)
        counts = Processes().all_gather(n_rows)
        kind = type(private).__name__
        batch = "pass PrivateBatch(records, batch_size), or a batch of ReleaseLoader"
        if isinstance(private, Release):
            raise InputError(
                "Expected a private batch, got a Release; its distance to public rows is "
                "loss.distance(release, rows)."
            )
        if isinstance(private, PrivateRecords):
            raise InputError(f"Expected a private batch, got {kind}; {batch}.")
        if row_function is not None or self.mechanism.n_classes:
            raise InputError(
                f"Expected a private batch with rows=... or n_classes, got {kind}; {batch}."
            )
        self.check_private_rows(private, None)
        size = sum(counts)
        if size != self.mechanism.batch_size:
            where = ""
            if len(counts) > 1:
                where = " in all processes together"
            raise InputError(
                f"Expected batch_size={self.mechanism.batch_size} private rows, got {size}{where}; "
                "make it equal."
            )
        if len(private) and not _is_finite(private):
            raise InputError(
                "Expected finite private rows, got nan or inf; "
                "make such a row zero, do not drop it."
            )

    def check_private_rows(self, rows: Tensor, labels: Tensor | None) -> None:
        """Raise an InputError unless rows (B, d) and labels (B,) fit the mechanism."""
        remedy = (
            "; pass rows=, the map of private records to rows (without it they are flattened), or "
            "set dim of the mechanism to the number of its outputs"
        )
        self._check_rows("private rows", rows, remedy)
        self._check_labels("classes of a row function", labels, len(rows))

    def _check_public(self, rows: Tensor, labels: Tensor | None) -> None:
        """Raise an :class:`InputError` unless public rows (n, d) and labels (n,) fit."""
        remedy = (
            "; map public records by the same function as rows=, or set dim of the mechanism to "
            "the number of its outputs"
        )
        self._check_rows("public rows", rows, remedy)
        if not len(rows):
            raise InputError("Expected at least one row in public rows, got none; pass some.")
        if labels is None and self.mechanism.n_classes is not None:
            raise InputError(
                f"Expected public_labels, since the mechanism has "
                f"n_classes={self.mechanism.n_classes}, got none; pass public_labels=, the number "
                "of the class of every public row."
            )
        self._check_labels("public_labels", labels, len(rows))

    def _warn_of_long_rows(self, rows: Tensor) -> None:
        """Warn if the first public rows (n, d) are far longer than the bound.

        The norms of private rows stay unknown. The first public rows are the evidence: if private
        rows are clipped, training shortens the public ones.
        """
        if self._has_compared:
            return
        self._has_compared = True
        norm = float(torch.linalg.vector_norm(rows.detach().double())) / math.sqrt(len(rows))
        row_norm = self.mechanism.row_norm
        if norm > _LONG * row_norm:
            warnings.warn(
                f"Public rows have norm {norm:.2g} (root mean square), and private rows are "
                f"clipped to row_norm={row_norm:g}, which removes their scale; "
                f"{self.remedy_of_long_rows}.",
                UtilityWarning,
                stacklevel=2,
            )

    def _check_rows(self, name: str, rows: Tensor, remedy: str) -> None:
        """Raise unless ``rows`` are floating-point rows (n, dim)."""
        tensor(**{name: rows})
        dim = self.mechanism.dim
        if rows.ndim != 2 or rows.shape[1] != dim or not rows.is_floating_point():
            raise InputError(
                f"Expected {name} to be a floating-point tensor (n, {dim}), "
                f"got {rows.dtype} of shape {tuple(rows.shape)}{remedy}."
            )

    def _check_labels(self, name: str, labels: Tensor | None, n_rows: int) -> None:
        """Raise unless labels (n,) are integers in [0, n_classes).

        Without classes, labels must be ``None``.
        """
        n_classes = self.mechanism.n_classes
        if n_classes is None:
            if labels is not None:
                raise InputError(
                    f"Expected no {name}, since the mechanism has no n_classes; set n_classes."
                )
            return
        class_numbers(name, labels, n_rows, n_classes)


def estimate_of_slices(estimates: Tensor, mechanism: ProjectionMechanism) -> DistanceEstimate:
    """Return the mean of the estimates (k,) along all slices, and its standard error.

    The error follows from the spread of independent numbers. Slices of one basis or frame are not
    independent of each other, but the means of several bases are.
    """
    independent = estimates
    size = mechanism.dim  # of a basis or frame
    if mechanism.kind == "structured":
        size = padded_size(mechanism.dim)
    n_bases = mechanism.n_projections // size
    if mechanism.kind != "iid" and n_bases > 1:
        whole_bases = estimates[: n_bases * size]
        independent = whole_bases.view(n_bases, size).mean(1)
    error = independent.std() / math.sqrt(len(independent))
    return DistanceEstimate(float(estimates.mean()), float(error))


def _rows_of_class(release: Release, rows: Tensor, member: Tensor) -> Tensor:
    """Return those public rows (n, d) that are members (n,) of a class.

    Where rows were released, a row of another class counts as zero, as among the private rows.
    """
    if release.mechanism.statistic == "rows":
        return rows * member[:, None]
    return rows[member]


def _as_projections(projections: Projections, mechanism: ProjectionMechanism) -> Projections:
    """Return directions or structured slices from a tensor that was drawn or stored.

    Of structured slices, the tensor holds the signs. Directions, and slices that are structured
    already, are returned as they are.
    """
    if mechanism.kind != "structured" or isinstance(projections, StructuredProjections):
        return projections
    slices = StructuredProjections(projections, mechanism.dim)
    if slices.shape[1] != mechanism.n_projections:
        raise InputError(
            f"Expected signs of {mechanism.n_projections} slices, got {slices.shape[1]}."
        )
    return slices


def _single_product(directions: Tensor, rows: Tensor) -> Tensor:
    """Return the products (k, n) of float32 directions (d, k) and rows (n, d).

    On the CPU, NumPy multiplies, since torch can be set to lower precision; elsewhere the products
    are in float64. Sums of few products are added up, whose error is smaller
    (docs/theory/sensitivity.md, Proposition 38).
    """
    if rows.device.type != "cpu":
        return directions.T.double() @ rows.T.double()
    products = np.empty((directions.shape[1], len(rows)), dtype=np.float32)
    write = partial(_write_products, directions.T.numpy(), rows.numpy(), products)
    n_at_a_time = math.ceil(len(products) / torch.get_num_threads())
    starts = range(0, len(products), n_at_a_time)
    multiply_in_threads(write, [slice(start, start + n_at_a_time) for start in starts])
    return torch.from_numpy(products)


def _write_products(
    directions: NDArray[np.float32],
    rows: NDArray[np.float32],
    products: NDArray[np.float32],
    part: slice,
) -> None:
    """Write the products of some of the directions (k, d) and rows (n, d) to (k, n)."""
    directions = directions[part]
    products = products[part]
    np.matmul(directions[:, :SUMMED_AT_ONCE], rows[:, :SUMMED_AT_ONCE].T, out=products)
    for start in range(SUMMED_AT_ONCE, rows.shape[1], SUMMED_AT_ONCE):
        entries = slice(start, start + SUMMED_AT_ONCE)
        products += directions[:, entries] @ rows[:, entries].T


def _converted(projections: Projections, rows: Tensor) -> Projections:
    """Return directions of the type of rows, or slices, on the device of the rows."""
    if isinstance(projections, StructuredProjections):
        return projections.to(rows.device)
    return projections.to(rows)


def _is_finite(rows: Tensor) -> bool:
    """Return whether all entries of non-empty rows are finite.

    One pass suffices, without a copy: a sum is finite only if its terms are.
    """
    if math.isfinite(rows.detach().sum()):
        return True
    # the sum of finite entries can overflow
    smallest, largest = torch.aminmax(rows.detach())  # nan if an entry is nan
    return math.isfinite(smallest) and math.isfinite(largest)


def _distance(
    release: Release, public: Tensor, values: Tensor, p: float, *, size: int | None = None
) -> Tensor:
    """Return the mean p-th power of the distance of public rows to a release.

    It is the mean of :func:`_slice_powers`, computed by the fast kernels: directions are projected
    and sorted in chunks, and the gradient is computed with the value.

    Args:
        release: The release, for its directions and its mechanism.
        public: Rows (n, d); for values of C classes, n / C rows of each class, class by class.
        values: Released values (m, k) of one class, or (C, m, k).
        p: Order of the distance.
        size: Number of rows up to which a class is filled with zeros, since a row of another class
            counts as zero; n by default.
    """
    projections = _converted(release.projections, public)
    target = values.to(public)
    target = target.view(-1, *target.shape[-2:])  # (C, m, k)
    if size is None:
        size = len(public)
    blur = 0.0
    if release.mechanism.statistic == "rows":  # the smoothed distance: public rows get noise, too
        blur = release.mechanism.sigma
        if size != target.shape[1]:  # other numbers of rows, which the kernels do not compare
            projected = project(public, projections)
            blurred = projected + blur * torch.randn_like(projected)
            return wasserstein_1d(blurred, target[0], p).mean()
    cost = partial(_cost, target=target, size=size, p=p)
    return sum_over_projections(cost, projections, public, groups=len(target), blur=blur)


def _slice_powers(release: Release, public: Tensor, values: Tensor, p: float, size: int) -> Tensor:
    """Return the p-th powers (k,) of distances to released values.

    They are the distances of public rows to released values (m, k). All are computed at once in
    plain torch, so that any function of them has a gradient; their mean alone is faster by
    :func:`_distance`.

    Args:
        release: The release, for its directions and its mechanism.
        public: Rows (n, d).
        values: Released values (m, k).
        p: Order of the distance.
        size: Number of rows, n or more, up to which they are filled with zeros.
    """
    projected = project(public, _converted(release.projections, public))
    target = values.to(projected)
    if release.mechanism.statistic == "rows":  # the smoothed distance: public rows get noise, too
        blurred = projected + release.mechanism.sigma * torch.randn_like(projected)
        return wasserstein_1d(blurred, target, p)
    means = plain_padded_block_means(projected, size, len(target))
    return (means - target).abs().pow(p).mean(0)


def _cost(columns: slice, projected: Tensor, *, target: Tensor, size: int, p: float) -> Tensor:
    """Return what some of the k columns add to the distance.

    Args:
        columns: The columns, c of them.
        projected: Sorted projections of the public rows, which may be overwritten. Every class of
            every column has a column (n / C,) of its own: (n / C, c C), in the order column 0 of
            class 0, column 0 of class 1, ...
        target: Released values (C, m, k).
        size: Number of rows up to which a class is filled with zeros.
        p: Order of the distance.
    """
    n_classes, n_blocks, k = target.shape
    means = padded_block_means(projected, size, n_blocks)  # noisy rows, one in a block, stay
    released = target[..., columns].permute(1, 2, 0).flatten(1)
    return power_cost(means, released, p, means.shape[1] / (n_classes * k))
