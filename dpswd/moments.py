r"""Moment matching: moments released once, and a loss on them for networks.

Moments are means and second moments. Nothing is projected or sorted: this is not DP-SWD, whose loss
is :class:`dpswd.DPSlicedWassersteinLoss`. A matcher has one or several public feature maps
(docs/networks.md). Rows are centred and scaled by released values and clipped to norm 1/2, their
differences from the released mean of their class to norm 2/5.

======================  ==========================================  ====================
release                 statistic                                   sensitivity
======================  ==========================================  ====================
overall, per map        sum of rows and of their squared norms      Proposition 10
means, per map          counts and sums per class                   Proposition 8
moments, per map        second moments about the means, per class   Proposition 9
======================  ==========================================  ====================

All are releases of all records (docs/theory/sensitivity.md), and compose as
:math:`\mu^2 = \sum \mu_i^2`, also where centre and scale of later ones are those of earlier ones.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from dpswd._labels import numbers_of_generated
from dpswd._validate import at_least, positive
from dpswd.errors import InputError
from dpswd.features.maps import FeatureMap
from dpswd.mixture.moments import (
    class_covariances,
    class_means,
    mean_and_variance,
    nearest_spectrum,
)
from dpswd.queries import ClassCovariances, ClassMeans, SumAndNorm
from dpswd.records import PrivateRecords
from dpswd.release import Releasing
from dpswd.released import ReleasedStatistics
from dpswd.row_copy import LabelledRows

__all__ = ["MomentMatcher", "plan_moments"]

# Bound on rows before they are centred: three times their root mean square norm for photographs.
_RAW_NORM = 1.5

# Bound on centred rows, whose root mean square norm it is.
_ROW_NORM = 0.5

# Bound on rows about the mean of their class, which limits the noise of second moments.
_CLASS_NORM = 0.4

# Frequencies per axis of an image. With fewer than 7, classes share one second moment; more than 14
# are not used.
LEAST_FREQUENCIES = 7
MOST_FREQUENCIES = 14

# Part of the squared mu for the overall sums.
_OVERALL_SHARE = 0.06

# Of what the overall sums leave to a map, the means get this part, and the second moments the rest:
# where every class has second moments, and where they are pooled.
_MEANS_SHARE = 0.3
_MEANS_SHARE_POOLED = 0.8

# Least variance of rows by which they are scaled, and least count of a class as a part of the mean
# count: the noise of a small budget may leave nothing of either.
_LEAST_VARIANCE = 1e-4
_LEAST_COUNT = 0.1

# Norms and traces by which the library divides are at least this.
_TINY_NORM = 1e-12
_TINY_TRACE = 1e-9


class MomentMatcher(ReleasedStatistics):
    """Noisy statistics of all records, per class, and a loss on them.

    The loss is that of generated records.

    Formal guarantee:
        :meth:`release` is (target_epsilon, target_delta)-differentially private under replace-one,
        classes included. The loss, and every network that is trained on it, are post-processing.

    Args:
        features: One public feature map, or several, from records to rows.
        n_classes: Number C of classes of the records; 0 for none.
        moments: Whether second moments are released, for each map or for all.
        pooled: Whether one second moment is released for all classes together. Covariances within
            classes are then equal; their noise is that of one class divided by C.
        noise_seed: For tests only: NOT PRIVATE.

    Attributes:
        guarantee: Statement of the guarantee of the released values.

    Raises:
        InputError: If a number is out of range.

    Example:
        >>> from dpswd.features.maps import Flatten
        >>> records = PrivateRecords(torch.rand(60, 1, 4, 4), torch.arange(60) % 2, classes=[0, 1])
        >>> matcher = MomentMatcher(Flatten((1, 4, 4), centre=0.5, radius=1.2), n_classes=2)
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     guarantee = matcher.release(
        ...         records, target_epsilon=10, target_delta=1e-5, run_dir=folder)
        >>> loss = matcher.loss(torch.rand(8, 1, 4, 4, requires_grad=True), torch.arange(8) % 2)
        >>> guarantee["sound"], loss.shape
        (True, torch.Size([]))
    """

    contents = "moments"
    file_format = 2

    def __init__(
        self,
        features: FeatureMap | Sequence[FeatureMap],
        n_classes: int = 0,
        *,
        moments: bool | Sequence[bool] = True,
        pooled: bool = False,
        noise_seed: int | None = None,
    ) -> None:
        super().__init__(n_classes)
        if isinstance(features, FeatureMap):
            features = [features]
        if isinstance(moments, bool):
            moments = [moments] * len(features)
        if not features:
            raise InputError("Expected at least one feature map in features, got none.")
        if len(moments) != len(features):
            raise InputError(
                f"Expected moments for each of {len(features)} feature maps, got {len(moments)}; "
                "pass True or False for each, or one for all."
            )
        parts = nn.ModuleList()
        for feature_map, has_moments in zip(features, moments, strict=True):
            part = _Part(
                feature_map,
                max(1, n_classes),
                has_moments,
                pooled=pooled,
                share=1 / len(features),
                noise_seed=noise_seed,
            )
            parts.append(part)
        self.parts = cast(Sequence[_Part], parts)

    @property
    def is_released(self) -> bool:
        """Whether the matcher has released values, of its own or of a file."""
        return all(bool(part.weights.any()) for part in self.parts)

    def queries(self) -> list[Releasing[Any]]:
        """Return the releases in their order; the last one takes the rest of the budget."""
        queries: list[Releasing[Any]] = [part.overall for part in self.parts]
        for part in self.parts:
            queries.append(part.means)
            if part.moments is not None:
                queries.append(part.moments)
        return queries

    @torch.no_grad()
    def make_releases(self, records: PrivateRecords) -> None:
        """Make all releases within the budget that records them."""
        self.check(records)
        for part in self.parts:
            part.release(records)

    def feature_maps(self) -> list[FeatureMap]:
        """Return the feature maps from records to rows."""
        return [part.features for part in self.parts]

    def settings(self) -> dict[str, Any]:
        """Return a line on each feature map."""
        return {"maps": [features.description for features in self.feature_maps()]}

    def normal(self) -> tuple[Tensor, Tensor]:
        """Return means (C, d) and covariances (C, d, d) of normal rows of the first map.

        They have the released moments. A network may start there: both are functions of released
        values.

        Raises:
            InputError: If that map has no released second moments.
        """
        part = self.parts[0]
        if part.moments is None or not self.is_released:
            raise InputError(
                "Expected released second moments of the first map, got none; "
                "call release with moments."
            )
        means = part.mean * part.scale + part.centre
        covariances = part.moment * (part.scale.square() * part.unclipped)
        return means, covariances

    def loss(self, records: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the squared distance of generated records from the moments.

        It is in units of noise. The distance of means and moments is an unbiased estimate from a
        batch (a U-statistic), so that a small batch does not pull a generator towards too little
        variety.

        Args:
            records: Generated records (n, ...); at least two of every class that occurs.
            labels: Their classes (n,), where the matcher has classes.

        Returns:
            Scalar tensor, differentiable.

        Raises:
            InputError: If nothing was released, or labels are missing.
        """
        self.check_released()
        numbers = numbers_of_generated(labels, records, self.n_classes)
        classes, counts = numbers.unique(return_counts=True)
        if not len(records) or bool((counts == 1).any()):
            raise InputError(
                "Expected at least two generated records of every class, got fewer; add records."
            )
        distances = []
        for part in self.parts:
            rows = part(records.to(part.mean.dtype))
            for c in classes.tolist():
                distances.append(part.distance(rows[numbers == c], c))
        weight = sum(float(part.weights.sum()) for part in self.parts)
        return torch.stack(distances).sum() / (len(classes) * weight)


class MomentPlan(NamedTuple):
    """Size of the released moments of images.

    Attributes:
        size: Number of frequencies per axis.
        pooled: Whether one second moment is released for all classes together.
    """

    size: int
    pooled: bool


def plan_moments(
    n_records: int, n_classes: int, mu: float, sample_shape: Sequence[int]
) -> MomentPlan:
    r"""Choose the frequencies of a moment matcher of images, and its pooling.

    The frequencies are those per axis; second moments are pooled or not.

    The plan depends on public numbers only. With D frequencies of all channels, the noise of the
    second moment of one class has a largest eigenvalue of about
    :math:`3 D^{3/2} / (1.6 \mu N / C)` times the average variance (semicircle law). D is the square
    for which that is closest to 3. Where it gives too few, second moments are pooled, and D is that
    of :mod:`dpswd.mixture.structure`.

    Args:
        n_records: Number N of records.
        n_classes: Number C of classes; 0 for none.
        mu: Budget of Gaussian differential privacy.
        sample_shape: Shape (channels, height, width) of an image.

    Returns:
        The number of frequencies per axis, and whether second moments are pooled.

    Raises:
        InputError: If a number is out of range.
    """
    at_least(1, n_records=n_records)
    at_least(0, n_classes=n_classes)
    positive(mu=mu)
    groups = max(1, n_classes)
    channels, *sides = sample_shape
    signal = mu * n_records / groups
    size = round(math.sqrt((1.6 * signal) ** (2 / 3) / channels))
    pooled = n_classes > 1 and size < LEAST_FREQUENCIES
    if pooled:
        size = round(math.sqrt((signal * math.sqrt(groups)) ** (2 / 3) / channels))
    return MomentPlan(min(max(2, size), MOST_FREQUENCIES, *sides), pooled)


def _clipped(rows: Tensor, norm: float) -> Tensor:
    """Clip rows (n, d) as a query does; gradients leave the factor out."""
    norms = rows.detach().norm(dim=1, keepdim=True).clamp(min=_TINY_NORM)
    clipped: Tensor = rows * (norm / norms).clamp(max=1)
    return clipped


class _Part(nn.Module):
    """A feature map, its queries, and what they released.

    It maps records to centred and scaled rows.

    Args:
        features: Public feature map of d dimensions.
        groups: Number C of classes, 1 for records without classes.
        has_moments: Whether second moments are released.
        pooled: Whether one second moment is released for all classes together.
        share: Part of the squared mu of the matcher for this map.
        noise_seed: For tests only: NOT PRIVATE.

    Attributes:
        centre: Released mean (d,) of all rows.
        scale: Number by which centred rows are divided.
        mean: Means (C, d) of the classes, of centred and scaled rows.
        moment: Second moments (C, d, d) about the means, of clipped rows.
        unclipped: Variance of rows within classes over that of clipped ones.
        weights: Weights (2,) of the squared distances of means and of moments: one over the
            variance of their noise.
    """

    centre: Tensor
    scale: Tensor
    mean: Tensor
    moment: Tensor
    unclipped: Tensor
    weights: Tensor

    def __init__(
        self,
        features: FeatureMap,
        groups: int,
        has_moments: bool,
        *,
        pooled: bool,
        share: float,
        noise_seed: int | None,
    ) -> None:
        super().__init__()
        dim = features.dim
        rest = share * (1 - _OVERALL_SHARE)
        share_of_means = rest
        if has_moments and pooled:
            share_of_means = rest * _MEANS_SHARE_POOLED
        elif has_moments:
            share_of_means = rest * _MEANS_SHARE
        self.features = features
        self.overall = SumAndNorm(
            dim, _RAW_NORM, share=share * _OVERALL_SHARE, noise_seed=noise_seed
        )
        self.means = ClassMeans(groups, dim, _ROW_NORM, share=share_of_means, noise_seed=noise_seed)
        self.moments: ClassCovariances | None = None
        moment_shape: tuple[int, ...] = (0,)
        if has_moments:
            n_moments = groups
            if pooled:
                n_moments = 1
            self.moments = ClassCovariances(
                n_moments, dim, _CLASS_NORM, share=rest - share_of_means, noise_seed=noise_seed
            )
            moment_shape = (groups, dim, dim)
        self.register_buffer("centre", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("mean", torch.zeros(groups, dim))
        self.register_buffer("moment", torch.zeros(moment_shape))
        self.register_buffer("unclipped", torch.ones(()))
        self.register_buffer("weights", torch.zeros(2))

    def forward(self, records: Tensor) -> Tensor:
        """Map records (n, ...) to rows (n, d), which are not clipped."""
        rows: Tensor = (self.features(records) - self.centre) / self.scale
        return rows

    def distance(self, rows: Tensor, c: int) -> Tensor:
        """Return the weighted squared distance of rows (n, d) from the moments of class c.

        Unbiased estimates: sums over pairs of different rows of the products r.s and (r.s)^2, which
        are the inner products of r and s, and of r r^T and s s^T.
        """
        n = len(rows)
        mean = self.mean[c]
        clipped = _clipped(rows, _ROW_NORM)
        products = (clipped @ clipped.T).fill_diagonal_(0)
        first = products.sum() / (n * (n - 1)) - 2 * clipped.mean(0) @ mean + mean @ mean
        if self.moments is None:
            return self.weights[0] * first
        moment = self.moment[c]
        about = _clipped(rows - mean, _CLASS_NORM)
        products = (about @ about.T).fill_diagonal_(0)
        cross = ((about @ moment) * about).sum() / n
        second = products.square().sum() / (n * (n - 1)) - 2 * cross + moment.square().sum()
        return self.weights[0] * first + self.weights[1] * second

    def release(self, records: PrivateRecords) -> None:
        """Release centre and scale, then means of the rows, then moments.

        The rows follow from centre and scale.
        """
        n = records.n_entries
        total, squares = self.overall.release(records, rows=self.features)
        mean, variance = mean_and_variance(total, squares, n, self.overall.mechanism.sigma)
        self.centre.copy_(mean)
        self.scale.fill_(math.sqrt(max(variance, _LEAST_VARIANCE)) / _ROW_NORM)

        counts, sums = self.means.release(records, rows=self)
        counts = counts.clamp(min=_LEAST_COUNT * n / len(counts))
        spread = torch.full_like(total, _ROW_NORM**2 / len(total))
        means = class_means(counts, sums, spread, self.means.mechanism.sigma)
        self.mean.copy_(means)
        self.weights[0] = self.means.mechanism.sigma**-2

        if self.moments is not None:
            about = LabelledRows(self._rows_about_means)
            moments = self.moments.release(records, rows=about)
            sigma = self.moments.mechanism.sigma
            self._set_moments(moments, counts, means, sigma)
            self.weights[1] = sigma**-2

    def _rows_about_means(self, records: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Map records to differences (n, d) of their rows from the class means."""
        return self(records) - self.mean[labels], labels

    def _set_moments(self, sums: Tensor, counts: Tensor, means: Tensor, sigma: float) -> None:
        """Set second moments (C, d, d) from noisy sums.

        Those of a class keep the noise of their positive eigenvalues, scaled to the released trace:
        it makes classifiers robust. Where most rows were clipped, the variance is that of the
        released squared norms.

        Args:
            sums: Noisy sums (C, d, d) of classes, or (1, d, d) of all of them together.
            counts: Counts (C,) of the classes.
            means: Means (C, d) of the classes.
            sigma: Standard deviation of the noise of a sum.
        """
        proportions = counts / counts.sum()
        pooled = nearest_spectrum(sums.sum(0) / counts.sum())
        moments = pooled.expand(len(means), -1, -1)
        if len(sums) == len(means) > 1:
            moments = class_covariances(counts, sums / counts[:, None, None], pooled, sigma, 1)
            trace = proportions @ moments.diagonal(dim1=1, dim2=2).sum(1)
            moments = moments * (pooled.trace() / trace.clamp(min=_TINY_TRACE))
        self.moment.copy_(moments)
        between = proportions @ (means - proportions @ means).square().sum(1)
        ratio = float((_ROW_NORM**2 - between) / pooled.trace().clamp(min=_TINY_TRACE))
        self.unclipped.fill_(min(max(ratio, 1.0), (_ROW_NORM / _CLASS_NORM) ** 2))
