r"""Fidelity: how close the distribution of synthetic records is to that of real ones.

Distances are in the leading principal components of the real records, columns in units of their standard deviation
first. ``frechet`` is the squared 2-Wasserstein distance of normal laws with the means and covariances of both sides,
over the total variance of the real ones. ``precision`` is the share of synthetic records within the distance of the
third nearest neighbour of a real record from this record, ``recall`` the same with the sides exchanged (Kynkäänniemi et
al., Improved Precision and Recall Metric for Assessing Generative Models, NeurIPS 2019).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors

Rows = NDArray[Any]

_COMPONENTS = 32
_NEIGHBOURS = 3
_MOST = 2000  # records of each side for precision and recall


def fidelity(synthetic: Rows, real: Rows, *, columns: bool) -> dict[str, Any]:
    """Compare synthetic rows (n, d) with real rows (m, d).

    ``columns`` that have a meaning add their 1-Wasserstein distances, in standard deviations, and the differences of
    correlations. ``halves`` has the same of one half of the real rows against the other, the best one can expect.
    """
    found = _compare(synthetic, real, columns)
    return (
        found | {"halves": _compare(real[::2], real[1::2], columns)} if len(real) >= 20 else found
    )


def _compare(made: Rows, real: Rows, columns: bool) -> dict[str, Any]:
    if columns:
        centre, scale = real.mean(0), real.std(0)
        scale = np.where(scale > 0, scale, 1.0)
        made, real = (made - centre) / scale, (real - centre) / scale
    space = PCA(min(_COMPONENTS, *real.shape), random_state=0).fit(real)
    a, b = space.transform(made), space.transform(real)
    some, others = (rows[:: -(-len(rows) // _MOST)] for rows in (a, b))
    found: dict[str, Any] = {
        "frechet": frechet(a, b) / float(b.var(0).sum()),
        "precision": covered(some, others),
        "recall": covered(others, some),
    }
    if columns:
        distances = [stats.wasserstein_distance(x, y) for x, y in zip(made.T, real.T, strict=True)]
        found["column_distances"] = [round(float(each), 4) for each in distances]
        if made.shape[1] > 1:
            differences = np.abs(_correlations(made) - _correlations(real))
            found["correlation_difference"] = float(
                differences[np.triu_indices(len(differences), 1)].mean()
            )
    return {
        name: round(each, 4) if isinstance(each, float) else each for name, each in found.items()
    }


def frechet(a: Rows, b: Rows) -> float:
    """Return the squared 2-Wasserstein distance of the normal laws of rows (n, d) and (m, d)."""
    one, two = np.atleast_2d(np.cov(a, rowvar=False)), np.atleast_2d(np.cov(b, rowvar=False))
    values, vectors = np.linalg.eigh(one)
    half = (vectors * np.sqrt(values.clip(min=0))) @ vectors.T
    cross = np.sqrt(np.linalg.eigvalsh(half @ two @ half).clip(min=0)).sum()
    return float(np.square(a.mean(0) - b.mean(0)).sum() + np.trace(one) + np.trace(two) - 2 * cross)


def covered(points: Rows, about: Rows) -> float:
    """Return the share of rows (n, d) within the distance of the third nearest neighbour of a row (m, d) from it."""
    neighbours = min(_NEIGHBOURS, len(about) - 1)
    radii = NearestNeighbors(n_neighbors=neighbours + 1).fit(about).kneighbors(about)[0][:, -1]
    squares = np.square(points).sum(1)[:, None] + np.square(about).sum(1) - 2 * points @ about.T
    return float((squares <= np.square(radii)).any(1).mean())


def _correlations(rows: Rows) -> Rows:
    with np.errstate(divide="ignore", invalid="ignore"):  # of constant columns
        return np.asarray(np.nan_to_num(np.corrcoef(rows, rowvar=False)))
