r"""Means and covariances of classes and cells from released counts, sums and second moments: post-processing only.

docs/generation.md states what is done and why. The cell of a record depends on this record, on public numbers and on
released values only, so that a cell is a class like any other to :mod:`dpswd.queries`.

Shapes: C classes, K cells of all classes, d dimensions. ``noise`` is the standard deviation of an entry of a released
sum, or of a diagonal entry of a released second moment.
"""

from typing import cast

import torch
from sklearn.cluster import KMeans
from torch import Tensor

from dpswd._symmetric import of_eigenvalues, positive_part, root

_LEAST_VARIANCE = (
    1e-9  # a released covariance may have no positive eigenvalue; k-means needs distinct rows
)
_MOST_CLIPPED = 4.0  # largest factor that gives clipped second moments their variance back
RARE = 0.5  # a class with fewer records, as a part of their mean number, is rare
_FAINTEST = 6.0  # largest variance over the noise of a rare class below which its covariance stays as released
_POOLED_ROWS = 5  # weight of the covariance within all cells of a reference in that of one cell


def nearest_spectrum(matrix: Tensor) -> Tensor:
    """Nearest positive semidefinite matrix (d, d) of the same trace: noise spreads a spectrum and keeps its sum."""

    def nearest(values: Tensor) -> Tensor:
        descending = values.flip(0)
        excess = (descending.cumsum(0) - descending.sum().clamp(min=0)) / torch.arange(
            1, len(values) + 1
        )
        n_positive = int((descending > excess).sum())
        return (values - excess[max(n_positive, 1) - 1]).clamp(min=0)

    return of_eigenvalues(nearest, matrix)


def mean_and_spread(total: Tensor, squares: float, n: int, noise: float) -> tuple[Tensor, float]:
    """Mean (d,) and mean squared distance from it, from released sums of n rows (d,) and of their squared norms."""
    mean = total / n  # whose norm the noise makes too large
    return mean, squares / n - float(mean.square().sum()) + len(mean) * (noise / n) ** 2


def class_means(counts: Tensor, sums: Tensor, reference: Tensor, noise: float) -> Tensor:
    """Means (C, d) of counts (C,) and sums (C, d), pulled towards that of all records; public variances (d,)."""
    overall = sums.sum(0) / counts.sum()
    difference = sums / counts[:, None] - overall
    return overall + difference * signal_weight(
        difference, reference, (noise / counts).square()[:, None]
    )


def signal_weight(difference: Tensor, reference: Tensor, noise_sq: Tensor) -> Tensor:
    """Wiener's weights of noisy differences from a prior, whose variance is a multiple of ``reference``.

    The weight is the variance of the signal over that of signal and noise. The multiple is fitted by moments.
    """
    trust = (
        (reference / (reference + noise_sq)).square().expand_as(difference)
    )  # of entries above the noise
    beta = ((difference.square() - noise_sq) / reference * trust).sum() / trust.sum()
    signal_sq = beta.clamp(min=1e-3) * reference
    return signal_sq / (signal_sq + noise_sq)


def pulled_covariances(released: Tensor, prior: Tensor, noise: Tensor) -> Tensor:
    """Pull covariances (..., d, d) with ``noise`` (...) towards a prior, entry by entry."""
    variances = prior.diagonal(dim1=-2, dim2=-1).clamp(min=_LEAST_VARIANCE)
    reference = variances[..., :, None] * variances[..., None, :]  # of entry (i, j)
    noise_sq = noise.square()[..., None, None] * (0.5 + 0.5 * torch.eye(prior.shape[-1]))
    difference = released - prior
    return prior + difference * signal_weight(difference, reference, noise_sq)


def class_covariances(
    counts: Tensor, covariances: Tensor, pooled: Tensor, noise: float, n_cells: int
) -> Tensor:
    """Covariances (C, d, d) of classes: as released, for rare classes pulled to the pooled one (d, d), or all pooled.

    What the noise adds to variances stays, which makes classifiers robust. Moments about a mean that is mostly noise
    hold what is left of this mean: those of a rare class stay, too, where noise hides the largest variance.
    """
    largest = pooled.diagonal().max().clamp(min=_LEAST_VARIANCE)
    rare = (counts < RARE * counts.mean()) & (noise / counts * _FAINTEST < largest)
    if n_cells > 1 and bool((counts[rare] < counts.mean() / n_cells).any()):
        return pooled.expand_as(covariances)
    found = covariances.clone()
    for c in rare.nonzero().flatten().tolist():  # each has a factor of its own
        found[c] = pulled_covariances(covariances[c], pooled, noise / counts[c])
    return positive_part(found)


def centres(means: Tensor, covariance: Tensor, n_cells: int, n_synthetic: int = 3000) -> Tensor:
    """Centres (C, n_cells, d) of cells, by k-means on synthetic rows with means (C, d) and one covariance (d, d)."""
    generator = torch.Generator().manual_seed(
        0
    )  # hides nothing, and every process must find the same cells
    shape, found = root(positive_part(covariance, _LEAST_VARIANCE)), []
    for mean in means:
        rows = (
            mean
            + torch.randn(n_synthetic, len(mean), generator=generator, dtype=torch.float64) @ shape
        )
        clusters = KMeans(n_cells, n_init=1, max_iter=50, random_state=0).fit(rows.numpy())
        found.append(torch.from_numpy(clusters.cluster_centers_))
    return torch.stack(found)


def like_reference(reference: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    """Move rows (n, d) to a mean (d,) and a covariance (d, d), by the optimal transport of normal laws."""
    centred = reference - reference.mean(0)
    own = centred.T @ centred / len(centred)
    inverse = of_eigenvalues(
        lambda each: each.clamp(min=1e-3 * float(each.mean()) + _LEAST_VARIANCE).rsqrt(), own
    )
    half = root(own)
    return mean + centred @ (inverse @ root(half @ positive_part(covariance) @ half) @ inverse).T


def reference_cells(rows: Tensor, n_cells: int) -> tuple[Tensor, Tensor]:
    """Centres (n_cells, d) and covariances (n_cells, d, d) of cells of public rows (n, d), by k-means."""
    clusters = KMeans(n_cells, n_init=1, max_iter=50, random_state=0).fit(rows.numpy())
    centres, cells = (
        torch.from_numpy(clusters.cluster_centers_),
        torch.from_numpy(clusters.labels_).long(),
    )
    about = rows - centres[cells]
    scatter = torch.stack([about[cells == c].T @ about[cells == c] for c in range(n_cells)])
    counts = torch.bincount(cells, minlength=n_cells)[:, None, None]
    return centres, (scatter + _POOLED_ROWS * scatter.sum(0) / len(rows)) / (counts + _POOLED_ROWS)


def cell_of(rows: Tensor, labels: Tensor, centres: Tensor) -> Tensor:
    """Index (n,) of the cell of each row (n, d) with its class (n,): class times n_cells plus the nearest centre."""
    classes, n_cells, dim = centres.shape
    distance = torch.cdist(rows.double(), centres.reshape(-1, dim)).unflatten(1, (classes, n_cells))
    return cast(Tensor, labels * n_cells + distance[torch.arange(len(rows)), labels].argmin(1))


def cell_means(counts: Tensor, sums: Tensor, variances: Tensor, noise: float) -> Tensor:
    """Mean deviations (K, d) from centres of cells, pulled towards 0; ``variances`` (d,) of the pooled covariance."""
    difference = sums / counts[:, None]
    noise_sq = (noise / counts).square()[:, None]
    spread = ((difference.square() - noise_sq).sum(1) / variances.sum()).clamp(min=0)[
        :, None
    ] * variances
    return difference * spread / (spread + noise_sq)


def cell_covariances(
    counts: Tensor,
    moments: Tensor,
    noise: float,
    weights: Tensor,
    means: Tensor,
    covariances: Tensor,
) -> Tensor:
    """Covariances (K, d, d) of cells, pulled towards the covariance within the cells of their class.

    Moments (K, d, d) about the means (K, d) of clipped rows are too small: one factor gives all cells together the
    variance that follows from the covariances (C, d, d) of classes and the proportions (C, K / C) of cells.
    """
    n_cells = weights.shape[1]
    about = means.unflatten(0, (-1, n_cells))
    about = about - (weights[:, :, None] * about).sum(1, keepdim=True)
    between = torch.einsum("ck,cki,ckj->cij", weights, about, about)
    within = positive_part(covariances - between).repeat_interleave(n_cells, 0)
    moments = moments / counts[:, None, None]
    wanted, found = (
        (weights.flatten() * each.diagonal(dim1=1, dim2=2).sum(1)).sum().clamp(min=_LEAST_VARIANCE)
        for each in (within, moments)
    )
    scale = (wanted / found).clamp(1, _MOST_CLIPPED)
    return pulled_covariances(scale * moments, within, scale * (noise / counts))
