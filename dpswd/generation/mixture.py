r"""A mixture of normal laws per class, from released counts, sums and second moments; all of it is post-processing.

Every class is cut into cells. Their centres come from k-means on SYNTHETIC rows, drawn from the normal law of the class
(released mean, shared covariance), so that they cost nothing; which cell a record falls into depends on this record and
on public values only. A cell is then a class like any other to :mod:`dpswd.queries`.

Noise is large beside the covariance of a small cell, and small beside that of all records. With ``shrink``, entry
(i, j) is pulled towards its prior, cell to class, class to all, by Wiener's weight
:math:`\kappa l_i l_j / (\kappa l_i l_j + \nu_{ij}^2)`, with :math:`l` the variances in the shared covariance,
:math:`\nu` the known noise, and :math:`\kappa` fitted by moments: how much cells (or classes) differ, in units of
:math:`l_i l_j`.
"""

import torch
from sklearn.cluster import KMeans
from torch import Tensor

__all__ = ["cell_means", "cell_of", "centres", "covariances", "positive_part", "root", "within_covariance"]


def positive_part(matrix: Tensor, floor: float = 0.0) -> Tensor:
    """Lifts the eigenvalues of symmetric matrices (..., d, d) to at least ``floor``."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp(min=floor)[..., None, :]) @ vectors.mT


def root(matrix: Tensor) -> Tensor:
    """Symmetric square root of symmetric matrices (..., d, d); negative eigenvalues count as 0."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp(min=0).sqrt()[..., None, :]) @ vectors.mT


def within_covariance(variances: Tensor, counts: Tensor, means: Tensor, floor: float) -> Tensor:
    """Covariance about the class means: the second moment of all rows, diagonal (d,), less that of the means (C, d)."""
    shares = counts / counts.sum()
    return positive_part(torch.diag(variances) - (means * shares[:, None]).T @ means, floor)


def centres(means: Tensor, covariance: Tensor, n_cells: int, n_synthetic: int = 3000) -> Tensor:
    """Centres (C, n_cells, d) of cells, by k-means on rows drawn from the normal law of each class.

    The generator is seeded: these draws hide nothing, and every process must find the same cells.
    """
    if n_cells == 1:
        return means[:, None].clone()
    generator = torch.Generator().manual_seed(0)
    shape = root(covariance)
    found = []
    for mean in means:
        rows = mean + torch.randn(n_synthetic, len(mean), generator=generator, dtype=torch.float64) @ shape
        clusters = KMeans(n_cells, n_init=1, max_iter=50, random_state=0).fit(rows.numpy())
        found.append(torch.from_numpy(clusters.cluster_centers_))
    return torch.stack(found)


def cell_of(rows: Tensor, labels: Tensor, centres: Tensor) -> Tensor:
    """Index (n,) of the cell of each row (n, d) with its class (n,): class times n_cells plus the nearest centre."""
    classes, n_cells, dim = centres.shape
    distance = torch.cdist(rows.double(), centres.reshape(-1, dim)).unflatten(1, (classes, n_cells))
    return labels * n_cells + distance[torch.arange(len(rows)), labels].argmin(1)


def cell_means(counts: Tensor, sums: Tensor, priors: Tensor, variances: Tensor, noise: float) -> Tensor:
    """Means (K, d) of cells, pulled towards ``priors`` (K, d) where the noise of a sum drowns them.

    Args:
        counts: (K,), positive.
        sums: (K, d), released.
        priors: (K, d), the centres from synthetic rows.
        variances: (d,), of the shared covariance.
        noise: Standard deviation of an entry of a released sum.
    """
    difference = sums / counts[:, None] - priors
    noise_sq = (noise / counts).square()[:, None]
    spread = ((difference.square() - noise_sq).sum(1) / variances.sum()).clamp(min=0)[:, None] * variances
    return priors + difference * spread / (spread + noise_sq)


def covariances(counts: Tensor, moments: Tensor, shared: Tensor, n_cells: int, noise: float) -> Tensor:
    """Covariances (K, d, d) of cells from released second moments about the cell means.

    Args:
        counts: (K,), positive; cells of one class stand together.
        moments: (K, d, d), released.
        shared: (d, d), what is known of the covariance from all records: the first prior.
        n_cells: Cells per class.
        noise: Standard deviation of a diagonal entry of a released moment; off the diagonal by sqrt 2 less.
    """
    variances = shared.diagonal().clamp(min=1e-9)
    level = _pulled(moments.sum(0) / counts.sum(), shared, variances, noise * len(counts) ** 0.5 / float(counts.sum()))
    found = []
    for some, n in zip(moments.split(n_cells), counts.split(n_cells), strict=True):
        of_class = _pulled(some.sum(0) / n.sum(), level, variances, noise * n_cells**0.5 / float(n.sum()))
        found += [
            _pulled(moment / count, of_class, variances, noise / float(count))
            for moment, count in zip(some, n, strict=True)
        ]
    return positive_part(torch.stack(found), 1e-3 * float(variances.min()))


def _pulled(estimate: Tensor, prior: Tensor, variances: Tensor, noise: float) -> Tensor:
    products = torch.outer(variances, variances)
    noise_sq = torch.full_like(products, noise**2 / 2)
    noise_sq.diagonal().mul_(2)
    difference = estimate - prior
    weight = (products / (noise_sq + 0.05 * products)).square()  # entries above the noise tell most about kappa
    kappa = float(((difference.square() - noise_sq) / products * weight).sum() / weight.sum())
    signal = max(kappa, 0.0) * products
    return prior + difference * signal / (signal + noise_sq)
