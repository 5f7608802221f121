r"""Slices along principal directions, and a loss on them for networks.

The paper's distance, made to learn: of every class the sorted slices of all records, averaged in
blocks, are released once along many random directions. Directions lie in the space of the leading
principal directions, which an earlier release of the same plan determines.

=========  ===================================================  ==============
release    statistic, of all records                            sensitivity
=========  ===================================================  ==============
means      counts and sums per class                            Proposition 8
moment     second moment about the means of the classes         Proposition 7
slices     block means of sorted projections, per class         Proposition 32
=========  ===================================================  ==============

The three compose adaptively: the rows of a later release are a public function of one record, its
class, and earlier released values (docs/theory/sensitivity.md, Proposition 32). Everything after
them is post-processing: training reads released values only, for any number of steps.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from dpswd._labels import numbers_of_generated
from dpswd._sorting import sort_rows_with_order
from dpswd._symmetric import principal_axes
from dpswd._validate import at_least, choice, positive
from dpswd.errors import InputError
from dpswd.features.maps import FeatureMap
from dpswd.loss import DPSlicedWassersteinLoss, Release
from dpswd.mechanism import BoundKind, ProjectionKind, ProjectionMechanism
from dpswd.mixture.moments import class_means, nearest_spectrum, pulled_covariances
from dpswd.queries import ClassCovariances, ClassMeans
from dpswd.records import PrivateBatch, PrivateRecords
from dpswd.release import Releasing
from dpswd.released import ReleasedStatistics
from dpswd.row_copy import LabelledRows

__all__ = ["PrincipalSlices", "SlicePlan", "plan_slices"]

# Bounds on rows, and on their differences from the mean of their class, in units in which the root
# mean square norm of photographs is 1/2.
_ROW_NORM = 1.0
_CLASS_NORM = 0.75

# Parts of the squared mu.
_MEANS_SHARE = 0.05
_MOMENT_SHARE = 0.15

# A coordinate is divided by its standard deviation to this power: small directions are seen, but
# do not weigh as much as large ones.
_POWER = 0.4

# Bound on rows in principal coordinates, over their expected root mean square norm.
_REACH = 1.25

# Bound on rows in principal coordinates after they are scaled: that of the mechanism.
_SCALED_NORM = 0.5

# A reference size: directions and blocks per class that were good for 6,000 records of a class at
# mu = 2, and the powers of mu n with which they grow.
_REFERENCE_SIGNAL = 12_000.0
_REFERENCE_DIRECTIONS = 60
_REFERENCE_BLOCKS = 20
_POWER_OF_DIRECTIONS = 0.25
_POWER_OF_BLOCKS = 1 / 3
_LEAST_DIRECTIONS = 4
_LEAST_BLOCKS = 4
_N_BASES = 30

# Released counts and variances are at least these parts of their mean.
_LEAST_COUNT = 0.1
_LEAST_VARIANCE = 1e-4
_TINY_NORM = 1e-12


class SlicePlan(NamedTuple):
    """Sizes of a release of slices.

    Attributes:
        n_directions: Number r of principal directions.
        n_bases: Number of random orthonormal bases of their space.
        n_quantiles: Number m of blocks of all records.
        batch_size: Number B of records that are read; a multiple of m.
    """

    n_directions: int
    n_bases: int
    n_quantiles: int
    batch_size: int


def plan_slices(n_records: int, n_classes: int, mu: float, dim: int) -> SlicePlan:
    r"""Choose the sizes of a release of slices by a rule.

    The rule reads public numbers only.

    With :math:`s = \mu N / C` there are :math:`60\,(s / 12{,}000)^{1/4}` directions and
    :math:`20\,(s / 12{,}000)^{1/3}` blocks per class, and 30 bases. Up to one block of records is
    left out, so that all blocks have the same size.

    Args:
        n_records: Number N of records; of units, where units are stated.
        n_classes: Number C of classes; 0 for none.
        mu: Budget of Gaussian differential privacy.
        dim: Dimension of the rows before they are reduced.

    Raises:
        InputError: If a number is out of range.

    Example:
        >>> plan_slices(60_000, 10, 2.0, dim=144)
        SlicePlan(n_directions=60, n_bases=30, n_quantiles=200, batch_size=60000)
    """
    at_least(1, n_records=n_records, dim=dim)
    at_least(0, n_classes=n_classes)
    positive(mu=mu)
    groups = max(1, n_classes)
    signal = mu * n_records / groups / _REFERENCE_SIGNAL
    n_directions = round(_REFERENCE_DIRECTIONS * signal**_POWER_OF_DIRECTIONS)
    n_blocks = round(_REFERENCE_BLOCKS * signal**_POWER_OF_BLOCKS)
    n_blocks = max(_LEAST_BLOCKS, n_blocks)
    block_size = max(1, n_records // (groups * n_blocks))
    n_quantiles = n_records // block_size
    return SlicePlan(
        n_directions=min(max(_LEAST_DIRECTIONS, n_directions), dim),
        n_bases=_N_BASES,
        n_quantiles=n_quantiles,
        batch_size=n_quantiles * block_size,
    )


@dataclass(frozen=True)
class PrincipalStart:
    """Where a generator starts: functions of released values.

    Attributes:
        means: Means (C, d) of the classes.
        basis: Matrix (d, r) from scaled principal coordinates to differences from the means.
        deviations: Standard deviations (r,) of the scaled coordinates.
        rest: Square root (d, d) of the covariance outside of the principal directions.
    """

    means: Tensor
    basis: Tensor
    deviations: Tensor
    rest: Tensor


class PrincipalSlices(ReleasedStatistics):
    """Noisy slices of all records, per class, and a loss on them.

    The loss is that of generated records.

    Formal guarantee:
        :meth:`release` is (target_epsilon, target_delta)-differentially private under replace-one,
        classes included (docs/theory/sensitivity.md, Proposition 32). The loss, and every network
        that is trained on it, are post-processing.

    Args:
        features: Public feature map from records to rows.
        n_classes: Number C of classes of the records; 0 for none.
        plan: Sizes of the release, as :func:`plan_slices` chooses them.
        kind: ``"orthogonal"`` bases, whose sensitivity is constant, or ``"iid"`` directions.
        bound: Treatment of the random sensitivity of ``"iid"`` directions: ``"exact"``,
            ``"bernstein"`` or ``"clt"`` (not rigorous).
        failure_prob: Tail probability of the Bernstein and CLT bounds; see
            :class:`dpswd.ProjectionMechanism`.
        noise_seed: For tests only: NOT PRIVATE.

    Attributes:
        means: Query of counts and sums.
        moment: Query of the second moment.
        criterion: The loss that releases the slices.
        guarantee: Statement of the guarantee of the released values.

    Raises:
        InputError: If a number is out of range, an option is unknown, or the plan has more
            directions than the map has dimensions.

    Example:
        >>> from dpswd.features.maps import Flatten
        >>> records = PrivateRecords(torch.rand(60, 1, 4, 4), torch.arange(60) % 2, classes=[0, 1])
        >>> features = Flatten((1, 4, 4), centre=0.5, radius=1.2)
        >>> slices = PrincipalSlices(features, 2, plan_slices(60, 2, 2.0, dim=16))
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     statement = slices.release(
        ...         records, target_epsilon=10, target_delta=1e-5, run_dir=folder)
        >>> loss = slices.loss(torch.rand(8, 1, 4, 4, requires_grad=True), torch.arange(8) % 2)
        >>> statement["sound"], loss.shape
        (True, torch.Size([]))
    """

    contents = "slices"
    file_format = 1

    mean: Tensor
    counts: Tensor
    basis: Tensor
    encoder: Tensor
    deviations: Tensor
    rest: Tensor
    projections: Tensor
    values: Tensor
    sigma: Tensor

    def __init__(
        self,
        features: FeatureMap,
        n_classes: int,
        plan: SlicePlan,
        *,
        kind: ProjectionKind = "orthogonal",
        bound: BoundKind = "exact",
        failure_prob: float | None = None,
        noise_seed: int | None = None,
    ) -> None:
        super().__init__(n_classes)
        choice(("iid", "orthogonal"), kind=kind)
        if plan.n_directions > features.dim:
            raise InputError(
                f"Expected a plan of at most {features.dim} directions, the dimensions of the "
                f"feature map, got {plan.n_directions}; call plan_slices with dim={features.dim}."
            )
        groups = max(1, n_classes)
        dim = features.dim
        self.features = features
        self.plan = plan
        self.means = ClassMeans(groups, dim, _ROW_NORM, share=_MEANS_SHARE, noise_seed=noise_seed)
        self.moment = ClassCovariances(
            1, dim, _CLASS_NORM, share=_MOMENT_SHARE, noise_seed=noise_seed
        )
        mechanism = ProjectionMechanism(
            dim=plan.n_directions,
            n_projections=plan.n_bases * plan.n_directions,
            batch_size=plan.batch_size,
            statistic="quantiles",
            n_quantiles=plan.n_quantiles,
            row_norm=_SCALED_NORM,
            kind=kind,
            bound=bound,
            failure_prob=failure_prob,
            n_classes=n_classes or None,
            noise_seed=noise_seed,
        )
        self.criterion = DPSlicedWassersteinLoss(mechanism)
        r = plan.n_directions
        n_columns = mechanism.n_projections
        self.register_buffer("mean", torch.zeros(groups, dim))
        self.register_buffer("counts", torch.zeros(groups))
        self.register_buffer("basis", torch.zeros(dim, r))
        self.register_buffer("encoder", torch.zeros(dim, r))
        self.register_buffer("deviations", torch.zeros(r))
        self.register_buffer("rest", torch.zeros(dim, dim))
        self.register_buffer("projections", torch.zeros(r, n_columns))
        self.register_buffer("values", torch.zeros(groups, plan.n_quantiles, n_columns))
        self.register_buffer("sigma", torch.zeros(()))

    # Releases

    @property
    def is_released(self) -> bool:
        """Whether there are released values, of an own release or of a file."""
        return bool(self.projections.any())

    @property
    def has_directions(self) -> bool:
        """Whether the principal directions are released."""
        return bool(self.encoder.any())

    def queries(self) -> list[Releasing[Any]]:
        """Return the releases in their order; the last one takes the rest of the budget."""
        return [self.means, self.moment, self.criterion]

    @torch.no_grad()
    def make_releases(self, records: PrivateRecords) -> None:
        """Make all releases within the budget that records them."""
        self.release_directions(records)
        self.release_slices(PrivateBatch(records, self.plan.batch_size))

    def check(self, records: PrivateRecords) -> None:
        """Refuse records of other classes or of another shape, before the first release."""
        super().check(records)
        if self.plan.batch_size > len(records):
            raise InputError(
                f"Expected a plan for {len(records)} records, got batch_size="
                f"{self.plan.batch_size}; call plan_slices with the number of records."
            )

    def feature_maps(self) -> list[FeatureMap]:
        """Return the feature map from records to rows, in a list."""
        return [self.features]

    def settings(self) -> dict[str, Any]:
        """Return a line on the feature map, and the sizes of the plan."""
        return {"sizes": list(self.plan), "map": self.features.description}

    @torch.no_grad()
    def release_directions(self, records: PrivateRecords) -> None:
        """Release means and second moment, and choose the principal directions by them."""
        self.check(records)
        counts, sums = self.means.release(records, rows=self._raw_rows())
        counts = counts.clamp(min=_LEAST_COUNT * records.n_entries / len(counts))
        noise = self.means.mechanism.sigma
        reference = torch.full((self.features.dim,), 1.0 / self.features.dim)
        self.mean.copy_(class_means(counts, sums, reference.to(sums), noise))
        self.counts.copy_(counts * (self.plan.batch_size / records.n_entries))
        total = self.moment.release(records, rows=LabelledRows(self._centred_rows))[0]
        noise = self.moment.mechanism.sigma / records.n_entries
        self._choose_directions(total / records.n_entries, noise)

    @torch.no_grad()
    def release_slices(self, batch: PrivateBatch) -> Release:
        """Release the slices of a batch of all records, and return the release."""
        released = self.criterion.release(batch, rows=LabelledRows(self._private_rows))
        self.projections.copy_(cast(Tensor, released.projections))  # no structured slices
        self.values.copy_(released.values.view(self.values.shape))
        self.sigma.fill_(released.mechanism.sigma)
        return released

    def _choose_directions(self, covariance: Tensor, noise: float) -> None:
        """Set basis, encoder and deviations by a released covariance (d, d).

        Variances of single features are far above the noise of an entry, covariances are not: they
        are pulled towards zero by their ratio to the noise.
        """
        diagonal = covariance.diagonal()
        least = _LEAST_VARIANCE * float(diagonal.mean().clamp(min=_TINY_NORM))
        prior = torch.diag(diagonal.clamp(min=least))
        pulled = pulled_covariances(covariance, prior, covariance.new_tensor(noise))
        variances, vectors = principal_axes(nearest_spectrum(pulled))
        r = self.plan.n_directions
        leading = variances[:r].clamp(min=max(least, _TINY_NORM))
        weights = leading.pow(-_POWER / 2)
        expected_sq = (leading * weights.square()).sum()
        scale = _SCALED_NORM / (_REACH * expected_sq.sqrt())
        self.encoder.copy_(vectors[:, :r] * (weights * scale))
        self.basis.copy_(vectors[:, :r] / (weights * scale))
        self.deviations.copy_(leading.sqrt() * weights * scale)
        outside = variances.clone()
        outside[:r] = 0
        rest = (vectors * outside.clamp(min=0).sqrt()) @ vectors.T
        self.rest.copy_(rest)

    def _raw_rows(self) -> LabelledRows:
        """Return the row function of the first release: the features, and the class."""

        def raw(records: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            return self.features(records), self._groups(labels)

        return LabelledRows(raw)

    def _groups(self, labels: Tensor) -> Tensor:
        """Return the classes (n,); zeros without classes."""
        if self.n_classes:
            return labels
        return torch.zeros_like(labels)

    def _centred_rows(self, records: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Map records to differences (n, d) from the mean of their class, in one group."""
        rows = self.features(records) - self.mean[self._groups(labels)]
        return rows, torch.zeros_like(labels)

    def _private_rows(self, records: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Map records to principal coordinates (n, r) and their classes."""
        return self.coordinates(records, self._groups(labels)), labels

    # Training

    def coordinates(self, records: Tensor, labels: Tensor) -> Tensor:
        """Map records (n, ...) of classes (n,) to scaled principal coordinates (n, r)."""
        rows = self.features(records.to(self.mean.dtype)) - self.mean[labels]
        coordinates: Tensor = rows @ self.encoder
        return coordinates

    def start(self) -> PrincipalStart:
        """Return where a generator starts.

        Raises:
            InputError: If no directions were released.
        """
        if not self.has_directions:
            raise InputError("Expected released directions, got none; call release or load first.")
        return PrincipalStart(self.mean, self.basis, self.deviations, self.rest)

    def loss(
        self, records: Tensor, labels: Tensor | None = None, *, n_bases: int | None = 6
    ) -> Tensor:
        """Return the squared distance of generated records from the slices.

        It is in units of noise. See :meth:`distance`; coordinates are those of the records.

        Args:
            records: Generated records (n, ...).
            labels: Their classes (n,), where the slices have classes.
            n_bases: Number of bases, drawn anew at every call; ``None`` for all.
        """
        numbers = numbers_of_generated(labels, records, self.n_classes)
        return self.distance(self.coordinates(records, numbers), labels, n_bases=n_bases)

    def distance(
        self, coordinates: Tensor, labels: Tensor | None = None, *, n_bases: int | None = 6
    ) -> Tensor:
        r"""Return the squared distance of generated coordinates from the slices.

        The rows of every class are split into two batches. With the differences D and D' of their
        block means from the released ones, the loss is the mean of
        :math:`D D' / \sigma^2` over classes, blocks and directions. The batches are independent, so
        its expectation is the square of the expected difference, while the square of one difference
        would add the variance of a batch, which pulls a generator towards too little variety. The
        expected difference has an error of the order of 1 / n: the block means of n rows are less
        extreme than those of all records. Ten rows or more per block make it small.

        Args:
            coordinates: Generated coordinates (n, r), as :meth:`coordinates` returns them.
            labels: Their classes (n,), where the slices have classes: each equally often, and an
                even number of times.
            n_bases: Number of bases, drawn anew at every call; ``None`` for all.

        Returns:
            Scalar tensor, differentiable.

        Raises:
            InputError: If nothing was released, or labels do not fit.
        """
        self.check_released()
        numbers = numbers_of_generated(labels, coordinates, self.n_classes)
        batches = self._two_batches(coordinates.to(self.projections.dtype), numbers)
        columns = self._some_columns(n_bases)
        directions = self.projections[:, columns]
        norms = batches.detach().norm(dim=-1, keepdim=True).clamp(min=_TINY_NORM)
        clipped = batches * (_SCALED_NORM / norms).clamp(max=1)
        projected = (directions.T @ clipped.mT).contiguous()  # (2, C, k, n)
        _, order = sort_rows_with_order(projected.flatten(0, 2))
        slices = projected.gather(3, order.view(projected.shape))
        lower, upper = self._block_weights(slices.shape[3])
        released = self.values[:, :, columns].mT  # (C, k, m)
        below = slices.clamp(max=0) @ lower.mT
        above = slices.clamp(min=0) @ upper.mT
        n_blocks = lower.shape[1]
        if 2 * n_blocks <= self.plan.n_quantiles:
            # no block has both negative and positive rows
            means = torch.cat([below, above], dim=3)
            released = torch.cat([released[..., :n_blocks], released[..., -n_blocks:]], dim=2)
        else:
            n_zeros = self.plan.n_quantiles - n_blocks
            means = F.pad(below, (0, n_zeros)) + F.pad(above, (n_zeros, 0))
        differences = means - released
        product: Tensor = differences[0] * differences[1]
        return product.mean() / self.sigma.square()

    def _two_batches(self, coordinates: Tensor, labels: Tensor) -> Tensor:
        """Return coordinates (n, r) as two batches of every class (2, C, n / (2 C), r)."""
        groups = len(self.values)
        counts = torch.bincount(labels, minlength=groups)
        n_of_class = len(labels) // groups
        if bool((counts != n_of_class).any()) or n_of_class % 2 or not n_of_class:
            raise InputError(
                "Expected every class equally often, an even number of times, "
                f"got counts {counts.tolist()}; pass such labels."
            )
        ordered = coordinates[labels.argsort(stable=True)]
        return ordered.view(groups, 2, n_of_class // 2, -1).transpose(0, 1)

    def _some_columns(self, n_bases: int | None) -> Tensor:
        """Return the numbers of the columns of some of the bases, drawn at random."""
        if n_bases is None:
            n_bases = self.plan.n_bases
        at_least(1, n_bases=n_bases)
        chosen = torch.randperm(self.plan.n_bases)[:n_bases]
        r = self.plan.n_directions
        columns = chosen[:, None] * r + torch.arange(r)
        return columns.flatten().to(self.projections.device)

    def _block_weights(self, n: int) -> tuple[Tensor, Tensor]:
        """Return the weights (C, l, n) of n sorted generated rows in blocks of each class.

        A row stands for count / n records. The negative ones fill blocks from the lowest one on,
        the positive ones from the highest one; the zeros of other classes lie between them. The l
        lowest and l highest blocks have all rows.
        """
        block_size = self.plan.batch_size / self.plan.n_quantiles
        counts = self.counts.clamp(max=self.plan.batch_size)
        n_blocks = math.ceil(float(counts.max()) / block_size)
        n_blocks = min(n_blocks, self.plan.n_quantiles)
        rows_per_block = n * block_size / counts
        numbers = torch.arange(n_blocks + 1, device=counts.device)
        edges = numbers * rows_per_block[:, None]  # (C, l + 1)
        row = torch.arange(n, device=counts.device)
        starts = torch.maximum(edges[:, :-1, None], row)
        ends = torch.minimum(edges[:, 1:, None], row + 1)
        lower = (ends - starts).clamp(min=0) / rows_per_block[:, None, None]
        upper = lower.flip((1, 2))
        return lower, upper
