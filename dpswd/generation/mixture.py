r"""Means and covariances of classes and cells from released counts, sums and second moments: post-processing only.

Every class is cut into cells. Their centres come from k-means on SYNTHETIC rows, drawn from the released normal law of
the class. The cell of a record depends on this record and on released values only, so that a cell is a class like any
other to :mod:`dpswd.queries`.

Noise is large beside the covariance of a cell, and small beside that of all records. Entry (i, j) of an estimate is
pulled towards its prior by Wiener's weight :math:`\kappa l_i l_j / (\kappa l_i l_j + \nu_{ij}^2)`, with the variances
:math:`l` of the pooled covariance, the known standard deviation :math:`\nu` of the noise, and :math:`\kappa` fitted by
moments: how much classes (or cells) differ, in units of :math:`l_i l_j`. Means are pulled in the same way.
"""

import torch
from sklearn.cluster import KMeans
from torch import Tensor

__all__ = [
    "cell_means",
    "cell_of",
    "centres",
    "class_means",
    "covariances",
    "nearest_spectrum",
    "positive_part",
    "root",
]


def positive_part(matrix: Tensor, floor: float = 0.0) -> Tensor:
    """Lifts the eigenvalues of symmetric matrices (..., d, d) to at least ``floor``."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp(min=floor)[..., None, :]) @ vectors.mT


def root(matrix: Tensor) -> Tensor:
    """Symmetric square root of symmetric matrices (..., d, d); negative eigenvalues count as 0."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp(min=0).sqrt()[..., None, :]) @ vectors.mT


def nearest_spectrum(matrix: Tensor) -> Tensor:
    """Nearest positive semidefinite matrix (d, d) of the same trace: noise spreads a spectrum and keeps its sum."""
    values, vectors = torch.linalg.eigh(matrix)
    descending = values.flip(0)
    excess = (descending.cumsum(0) - descending.sum().clamp(min=0)) / torch.arange(1, len(values) + 1)
    n_positive = int((descending > excess).sum())
    return (vectors * (values - excess[max(n_positive, 1) - 1]).clamp(min=0)) @ vectors.T


def class_means(counts: Tensor, sums: Tensor, reference: Tensor, noise: float) -> Tensor:
    r"""Means (C, d) of classes, pulled towards the mean of all records.

    The variance of coordinate j between classes is modelled as :math:`\beta` times its public reference variance.

    Args:
        counts: (C,), positive.
        sums: (C, d), released.
        reference: (d,), public variances.
        noise: Standard deviation of an entry of a released sum.
    """
    overall = sums.sum(0) / counts.sum()
    difference = sums / counts[:, None] - overall
    noise_sq = (noise / counts).square()[:, None]
    weight = (reference / (reference + noise_sq.mean())).square()  # entries above the noise tell most about beta
    excess = (difference.square() - noise_sq).mean(0) / reference
    beta = max(float((excess * weight).sum() / weight.sum()), 1e-3)
    return overall + difference * beta * reference / (beta * reference + noise_sq)


def centres(means: Tensor, covariances: Tensor, n_cells: int, n_synthetic: int = 3000) -> Tensor:
    """Centres (C, n_cells, d) of cells, by k-means on rows drawn from the normal law of each class.

    The random numbers are seeded: they hide nothing, and every process must find the same cells.

    Args:
        means: (C, d).
        covariances: (C, d, d).
        n_cells: Cells per class.
        n_synthetic: Synthetic rows per class.
    """
    if n_cells == 1:
        return means[:, None].clone()
    generator = torch.Generator().manual_seed(0)
    found = []
    for mean, shape in zip(means, root(covariances), strict=True):
        rows = mean + torch.randn(n_synthetic, len(mean), generator=generator, dtype=torch.float64) @ shape
        clusters = KMeans(n_cells, n_init=1, max_iter=50, random_state=0).fit(rows.numpy())
        found.append(torch.from_numpy(clusters.cluster_centers_))
    return torch.stack(found)


def cell_of(rows: Tensor, labels: Tensor, centres: Tensor) -> Tensor:
    """Index (n,) of the cell of each row (n, d) with its class (n,): class times n_cells plus the nearest centre."""
    classes, n_cells, dim = centres.shape
    distance = torch.cdist(rows.double(), centres.reshape(-1, dim)).unflatten(1, (classes, n_cells))
    return labels * n_cells + distance[torch.arange(len(rows)), labels].argmin(1)


def cell_means(counts: Tensor, sums: Tensor, variances: Tensor, noise: float) -> Tensor:
    """Means (K, d) of deviations from the centres of cells, pulled towards 0.

    Args:
        counts: (K,), positive.
        sums: (K, d), released sums of deviations.
        variances: (d,), of the pooled covariance.
        noise: Standard deviation of an entry of a released sum.
    """
    difference = sums / counts[:, None]
    noise_sq = (noise / counts).square()[:, None]
    spread = ((difference.square() - noise_sq).sum(1) / variances.sum()).clamp(min=0)[:, None] * variances
    return difference * spread / (spread + noise_sq)


def covariances(counts: Tensor, moments: Tensor, shared: Tensor, noise: float, n_cells: int = 1) -> Tensor:
    """Covariances (K, d, d) of classes or cells from released second moments about their means.

    Args:
        counts: (K,), positive; cells of one class stand together.
        moments: (K, d, d), released.
        shared: (d, d), the first prior: a covariance of all records.
        noise: Standard deviation of a diagonal entry of a released moment; off the diagonal by sqrt 2 less.
        n_cells: Cells per class. With one, classes are pulled towards ``shared``; with several, all records are
            pulled towards ``shared``, classes towards all records, and cells towards their class.
    """
    variances = shared.diagonal().clamp(min=1e-9)
    if n_cells > 1:
        total = float(counts.sum())
        level = _pulled(moments.sum(0) / total, shared, variances, noise * len(counts) ** 0.5 / total)
    found = []
    for some, n in zip(moments.split(n_cells), counts.split(n_cells), strict=True):
        prior = shared
        if n_cells > 1:
            prior = _pulled(some.sum(0) / n.sum(), level, variances, noise * n_cells**0.5 / float(n.sum()))
        found += [
            _pulled(moment / count, prior, variances, noise / float(count))
            for moment, count in zip(some, n, strict=True)
        ]
    return positive_part(torch.stack(found), 1e-3 * float(variances.median()))


def _pulled(estimate: Tensor, prior: Tensor, variances: Tensor, noise: float) -> Tensor:
    products = torch.outer(variances, variances)
    noise_sq = torch.full_like(products, noise**2 / 2)
    noise_sq.diagonal().mul_(2)
    difference = estimate - prior
    weight = (products / (noise_sq + 0.05 * products)).square()  # entries above the noise tell most about kappa
    kappa = float(((difference.square() - noise_sq) / products * weight).sum() / weight.sum())
    signal = max(kappa, 0.0) * products
    return prior + difference * signal / (signal + noise_sq)
