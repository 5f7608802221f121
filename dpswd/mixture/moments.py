r"""Means and covariances of classes and cells, from released values.

The released values are counts, sums and second moments. All of it is post-processing;
docs/theory/generator.md states what is done and why. The cell of a record depends on this record,
on public numbers and on released values only, so that a cell is a class like any other to
:mod:`dpswd.queries`.

Shapes: C classes, K cells of all classes, d dimensions. ``noise`` is the standard deviation of an
entry of a released sum, or of a diagonal entry of a released second moment.
"""

from typing import cast

import torch
from sklearn.cluster import KMeans
from torch import Tensor

from dpswd._symmetric import of_eigenvalues, positive_part, root

# A released covariance may have no positive eigenvalue, and k-means needs distinct rows.
LEAST_VARIANCE = 1e-9
# Least ratio of the variance of a signal to its reference, which keeps Wiener's weights above zero.
_LEAST_RATIO = 1e-3
# Largest factor that gives clipped second moments their variance back: a larger one is mostly
# noise.
_LARGEST_FACTOR = 4.0
# A class with fewer records than this part of their mean number is rare.
RARE = 0.5
# The covariance of a rare class is pulled to that of all classes only if the largest variance is at
# least this many times its noise. Below, the mean of the class is mostly noise as well, and the
# released covariance holds what is left of it.
_LEAST_VARIANCE_TO_NOISE = 6.0
# The covariance of a cell of a reference is mixed with that within all cells, as if this many rows
# had the latter: a cell of few rows has no full covariance of its own.
_POOLED_ROWS = 5
# Synthetic rows of each class from which the first centres are found.
_N_SYNTHETIC = 3000
# Least eigenvalue of the covariance of a reference, over the mean one, which is inverted.
_LEAST_INVERTED = 1e-3


def nearest_spectrum(matrix: Tensor) -> Tensor:
    """Return the nearest positive semidefinite matrix (d, d) of the same trace.

    Noise makes large eigenvalues larger and small ones negative, and keeps their sum on average.
    """

    def nearest(values: Tensor) -> Tensor:
        """Project ascending eigenvalues (d,) on nonnegative ones of the same sum.

        One number is subtracted from all, and the negative ones become zero. That is the projection
        on a simplex: the number is the ``shift`` of the largest group of leading eigenvalues that
        stay positive.
        """
        descending = values.flip(0)
        total = descending.sum().clamp(min=0)
        group_sizes = torch.arange(1, len(values) + 1)
        shifts = (descending.cumsum(0) - total) / group_sizes
        n_positive = max(int((descending > shifts).sum()), 1)
        return (values - shifts[n_positive - 1]).clamp(min=0)

    return of_eigenvalues(nearest, matrix)


def mean_and_variance(total: Tensor, squares: float, n: int, noise: float) -> tuple[Tensor, float]:
    """Return the mean (d,) and the variance of n rows.

    The variance is their mean squared distance from the mean.

    Args:
        total: Released sum (d,) of the rows.
        squares: Released sum of their squared norms.
        n: Number of the rows.
        noise: Standard deviation of an entry of the sum, which makes the norm of the mean too
            large.
    """
    mean = total / n
    excess = len(mean) * (noise / n) ** 2
    return mean, squares / n - float(mean.square().sum()) + excess


def class_means(counts: Tensor, sums: Tensor, reference: Tensor, noise: float) -> Tensor:
    """Return the means (C, d) of classes, pulled towards that of all records.

    Args:
        counts: Released counts (C,).
        sums: Released sums (C, d).
        reference: Public variances (d,) of the rows.
        noise: Standard deviation of an entry of a sum.
    """
    overall = sums.sum(0) / counts.sum()
    difference = sums / counts[:, None] - overall
    noise_sq = (noise / counts).square()[:, None]
    return overall + difference * signal_weight(difference, reference, noise_sq)


def signal_weight(difference: Tensor, reference: Tensor, noise_sq: Tensor) -> Tensor:
    """Return Wiener's weights of noisy differences from a prior.

    The weight is the variance of the signal over that of signal and noise. The variance of the
    signal is a multiple of ``reference``, and the multiple is fitted by moments, mostly of the
    entries above the noise.

    Args:
        difference: Noisy differences (..., d).
        reference: Their variances up to one factor, of a shape that expands to that of
            ``difference``.
        noise_sq: Variances of the noise, likewise.
    """
    trust = (reference / (reference + noise_sq)).square().expand_as(difference)
    ratios = (difference.square() - noise_sq) / reference
    ratio = (ratios * trust).sum() / trust.sum()
    signal_sq = ratio.clamp(min=_LEAST_RATIO) * reference
    return signal_sq / (signal_sq + noise_sq)


def pulled_covariances(released: Tensor, prior: Tensor, noise: Tensor) -> Tensor:
    """Pull covariances (..., d, d) towards a prior, entry by entry.

    ``noise`` (...) is that of their diagonal entries.
    """
    variances = prior.diagonal(dim1=-2, dim2=-1).clamp(min=LEAST_VARIANCE)
    reference = variances[..., :, None] * variances[..., None, :]  # of entry (i, j)
    # Symmetric noise has half of the variance off the diagonal.
    parts = 0.5 + 0.5 * torch.eye(prior.shape[-1])
    noise_sq = noise.square()[..., None, None] * parts
    difference = released - prior
    return prior + difference * signal_weight(difference, reference, noise_sq)


def column_variances(released: Tensor, noise: float, total: float) -> Tensor:
    """Return the variances (d,) of columns, above zero, that add up to ``total``.

    Each is pulled towards the mean one, the more the larger the noise is beside the differences of
    the variances. None is below the noise, or below the mean one if that is smaller: a column that
    seems not to vary would decide every classification. Clipping makes all of them smaller; one
    factor restores their sum.

    Args:
        released: Released mean squares (d,) of the columns.
        noise: Standard deviation of one of them.
        total: Sum of the variances, which is known.
    """
    mean = released.mean().clamp(min=LEAST_VARIANCE)
    difference = released - mean
    noise_sq = mean.new_full((1,), noise**2)
    weight = signal_weight(difference, mean.square(), noise_sq)
    floor = min(noise, float(mean))
    variances = (mean + weight * difference).clamp(min=max(floor, LEAST_VARIANCE))
    return (variances * (total / variances.sum())).clamp(min=LEAST_VARIANCE)


def class_covariances(
    counts: Tensor,
    covariances: Tensor,
    pooled: Tensor,
    noise: float,
    n_cells: int,
    rare: float = RARE,
) -> Tensor:
    """Return the covariances (C, d, d) of classes.

    They are as released: what the noise adds to variances makes classifiers robust. Those of rare
    classes are pulled to the pooled one, unless their noise hides the largest variance. Where a
    rare class is smaller than a mean cell, all classes have the pooled one.

    Args:
        counts: Released counts (C,).
        covariances: Released covariances (C, d, d).
        pooled: Covariance (d, d) within all classes together.
        noise: Standard deviation of a diagonal entry of a second moment, before the division by
            counts.
        n_cells: Cells per class.
        rare: Part of the mean count below which a class is rare; 0 for no rare class.
    """
    largest = pooled.diagonal().max().clamp(min=LEAST_VARIANCE)
    visible = noise / counts * _LEAST_VARIANCE_TO_NOISE < largest
    is_rare = (counts < rare * counts.mean()) & visible
    is_small = counts[is_rare] < counts.mean() / n_cells
    if n_cells > 1 and bool(is_small.any()):
        return pooled.expand_as(covariances)
    pulled = covariances.clone()
    for c in is_rare.nonzero().flatten().tolist():  # each has a factor of its own
        pulled[c] = pulled_covariances(covariances[c], pooled, noise / counts[c])
    return positive_part(pulled)


def first_centres(means: Tensor, covariance: Tensor, n_cells: int) -> Tensor:
    """Return the centres (C, n_cells, d) of the first cells.

    They are those of k-means on synthetic rows. The rows are normal with the means (C, d) of
    classes and one covariance (d, d). Their seed is fixed: it hides nothing, and every process must
    find the same cells.
    """
    generator = torch.Generator().manual_seed(0)
    shape = root(positive_part(covariance, LEAST_VARIANCE))
    centres = []
    for mean in means:
        codes = torch.randn(_N_SYNTHETIC, len(mean), generator=generator, dtype=torch.float64)
        rows = mean + codes @ shape
        centres.append(torch.from_numpy(_k_means(rows, n_cells).cluster_centers_))
    return torch.stack(centres)


def moved_to(rows: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    """Move rows (n, d) to a mean (d,) and a covariance (d, d).

    The map is the optimal transport between normal distributions, which is linear.
    """
    centred = rows - rows.mean(0)
    own = centred.T @ centred / len(centred)

    def inverse_root(values: Tensor) -> Tensor:
        """Return 1 / sqrt of eigenvalues, of which small ones are raised to a floor."""
        floor = _LEAST_INVERTED * float(values.mean()) + LEAST_VARIANCE
        return values.clamp(min=floor).rsqrt()

    inverse = of_eigenvalues(inverse_root, own)
    half = root(own)
    middle = root(half @ positive_part(covariance) @ half)
    return mean + centred @ (inverse @ middle @ inverse).T


def reference_cells(rows: Tensor, n_cells: int) -> tuple[Tensor, Tensor]:
    """Return the cells of public rows (n, d), by k-means.

    Returns:
        Centres (n_cells, d) and covariances (n_cells, d, d) of the cells.
    """
    clusters = _k_means(rows, n_cells)
    centres = torch.from_numpy(clusters.cluster_centers_)
    cells = torch.from_numpy(clusters.labels_).long()
    deviations = rows - centres[cells]
    cell_deviations = [deviations[cells == c] for c in range(n_cells)]
    scatter = torch.stack([part.T @ part for part in cell_deviations])
    counts = torch.bincount(cells, minlength=n_cells)[:, None, None]
    pooled = _POOLED_ROWS * scatter.sum(0) / len(rows)
    return centres, (scatter + pooled) / (counts + _POOLED_ROWS)


def _k_means(rows: Tensor, n_cells: int) -> KMeans:
    """Cluster rows (n, d), with the same result in every process."""
    return KMeans(n_cells, n_init=1, max_iter=50, random_state=0).fit(rows.numpy())


def cells_of(rows: Tensor, labels: Tensor, centres: Tensor) -> Tensor:
    """Return the cell (n,) of each row, that of the nearest centre of its class.

    Args:
        rows: Rows (n, d).
        labels: Their classes (n,).
        centres: Centres (C, n_cells, d).

    Returns:
        Numbers (n,) of the cells: class times n_cells plus the number of the centre.
    """
    n_classes, n_cells, dim = centres.shape
    distances = torch.cdist(rows.double(), centres.reshape(-1, dim))
    distances = distances.unflatten(1, (n_classes, n_cells))
    own = distances[torch.arange(len(rows)), labels]
    return cast(Tensor, labels * n_cells + own.argmin(1))


def cell_means(counts: Tensor, sums: Tensor, variances: Tensor, noise: float) -> Tensor:
    """Return the mean deviations (K, d) of cells from their centres, pulled towards 0.

    Args:
        counts: Counts (K,) of cells.
        sums: Sums (K, d) of deviations.
        variances: Variances (d,) of the pooled covariance.
        noise: Standard deviation of an entry of a sum.
    """
    difference = sums / counts[:, None]
    noise_sq = (noise / counts).square()[:, None]
    excess = (difference.square() - noise_sq).sum(1)
    ratio = (excess / variances.sum()).clamp(min=0)
    signal_sq = ratio[:, None] * variances
    return difference * signal_sq / (signal_sq + noise_sq)


def cell_covariances(
    counts: Tensor,
    moments: Tensor,
    noise: float,
    weights: Tensor,
    means: Tensor,
    covariances: Tensor,
) -> Tensor:
    """Return the covariances (K, d, d) of cells.

    Each is pulled towards that within the cells of its class. Moments of clipped rows are too
    small: one factor gives all cells together the variance that follows from the covariances of
    classes and the proportions of cells.

    Args:
        counts: Counts (K,) of cells.
        moments: Released second moments (K, d, d) about the means of cells, of clipped rows.
        noise: Standard deviation of a diagonal entry of a moment.
        weights: Proportions (C, n_cells) of the cells of a class.
        means: Means (K, d) of cells.
        covariances: Covariances (C, d, d) of classes.
    """
    n_cells = weights.shape[1]
    means_of_classes = means.unflatten(0, (-1, n_cells))
    centres = (weights[:, :, None] * means_of_classes).sum(1, keepdim=True)
    offsets = means_of_classes - centres
    between = torch.einsum("ck,cki,ckj->cij", weights, offsets, offsets)
    within = positive_part(covariances - between).repeat_interleave(n_cells, 0)
    released = moments / counts[:, None, None]
    clipped = _total_variance(weights, released)
    scale = (_total_variance(weights, within) / clipped).clamp(1, _LARGEST_FACTOR)
    return pulled_covariances(scale * released, within, scale * (noise / counts))


def _total_variance(weights: Tensor, covariances: Tensor) -> Tensor:
    """Return the mean trace of covariances (K, d, d), above zero."""
    traces = covariances.diagonal(dim1=1, dim2=2).sum(1)
    return (weights.flatten() * traces).sum().clamp(min=LEAST_VARIANCE)
