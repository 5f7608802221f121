"""Fidelity: how close the distribution of synthetic records is to the real one.

Distances are in the leading principal components of the real records: of columns in units of their
standard deviation, or of public features of images (:mod:`dpswd.evaluation.images`). ``frechet`` is
the squared 2-Wasserstein distance of normal laws with the means and covariances of both sides, over
the total variance of the real ones. ``precision`` is the fraction of synthetic records within the
distance of the third nearest neighbour of a real record from this record, ``recall`` the same with
the sides exchanged (Kynkäänniemi et al., Improved Precision and Recall Metric for Assessing
Generative Models, NeurIPS 2019).
"""

from typing import Any

import numpy as np
from scipy import stats
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors

from dpswd._layout import Array
from dpswd.errors import InputError

_N_COMPONENTS = 32
_N_NEIGHBOURS = 3
_MAX_NEIGHBOURS_OF = 2000  # records of each side for precision and recall
_MIN_HALVED = 20  # real records from which on their halves are compared
_LEAST = 2  # rows that have a covariance
_MOST_VALUES = 20  # of a column up to which each value has a bin of its own
_MOST_BINS = 10  # of columns with more values
_DIGITS = 4  # after the decimal point


def fidelity(synthetic: Array, real: Array, *, columns: bool) -> dict[str, Any]:
    """Compare synthetic rows with real rows, beside two halves of the real ones.

    All figures depend on the numbers of rows: a Fréchet distance of few rows is too large. So the
    first half of the real rows, and as many synthetic rows, are compared with the second half. With
    fewer than 20 real rows there are no halves, and all rows are compared.

    Args:
        synthetic: Synthetic rows (n, d) in a random order.
        real: Real rows (m, d) in a random order.
        columns: Whether columns have a meaning. Then their 1-Wasserstein distances, in standard
            deviations, the column whose histogram differs most, the mean absolute difference of
            correlations, and the pair of columns whose correlations differ most are added.

    Returns:
        The figures of the module's docstring. ``"halves"`` has those of the first half of the real
        rows against the second one, the best that one can expect.

    Raises:
        InputError: If one of the sides has fewer than 2 rows.
    """
    check_numbers(len(synthetic), len(real))
    if len(real) < _MIN_HALVED:
        return compare(synthetic, real, columns=columns)
    size = min(len(synthetic), len(real) // 2)
    second = real[len(real) // 2 :]
    figures = compare(synthetic[:size], second, columns=columns)
    figures["halves"] = compare(real[:size], second, columns=columns)
    return figures


def check_numbers(n_synthetic: int, n_real: int) -> None:
    """Refuse fewer records than have a covariance.

    Raises:
        InputError: If one of the numbers is below 2.
    """
    if n_synthetic < _LEAST:
        raise InputError(
            f"Expected at least {_LEAST} synthetic records to compare distributions, got "
            f"{n_synthetic}; draw more."
        )
    if n_real < _LEAST:
        raise InputError(
            f"Expected at least {_LEAST} real records to compare distributions, got {n_real}; pass "
            "more."
        )


def compare(synthetic: Array, real: Array, *, columns: bool) -> dict[str, Any]:
    """Return the figures of synthetic rows (n, d) against real ones (m, d).

    ``columns`` is as for :func:`fidelity`.
    """
    worst_column = {}
    if columns:
        worst_column = _worst_column(synthetic, real)
        centre = real.mean(0)
        scale = real.std(0)
        scale = np.where(scale > 0, scale, 1.0)
        synthetic = (synthetic - centre) / scale
        real = (real - centre) / scale
    space = PCA(min(_N_COMPONENTS, *real.shape), random_state=0)
    with np.errstate(invalid="ignore"):  # of the parts of a variance that is 0
        real_points = space.fit(real).transform(real)
    points = space.transform(synthetic)
    some_real_points = _thinned(real_points)
    some_points = _thinned(points)
    figures: dict[str, Any] = {
        "frechet": _relative_frechet(points, real_points),
        "precision": round(covered(some_points, some_real_points), _DIGITS),
        "recall": round(covered(some_real_points, some_points), _DIGITS),
    }
    if columns:
        pairs = zip(synthetic.T, real.T, strict=True)
        distances = [stats.wasserstein_distance(*pair) for pair in pairs]
        figures["column_distances"] = [round(float(value), _DIGITS) for value in distances]
        figures["worst_column"] = worst_column
        if synthetic.shape[1] > 1:
            figures |= _correlation_differences(synthetic, real)
    return figures


def _thinned(points: Array) -> Array:
    """Return every k-th point, so that at most 2,000 are left."""
    step = -(-len(points) // _MAX_NEIGHBOURS_OF)
    return points[::step]


def _relative_frechet(points: Array, real_points: Array) -> float | None:
    """Return the Fréchet distance over the total variance of the real points.

    It is ``None`` if all real points are equal.
    """
    variance = float(real_points.var(0).sum())
    if variance == 0:
        return None
    return round(frechet(points, real_points) / variance, _DIGITS)


def frechet(a: Array, b: Array) -> float:
    """Return the squared 2-Wasserstein distance of normal laws.

    The laws are those of rows (n, d) and (m, d).

    Raises:
        InputError: If one of them has fewer than 2 rows.
    """
    check_numbers(len(a), len(b))
    covariance_a = np.atleast_2d(np.cov(a, rowvar=False))
    covariance_b = np.atleast_2d(np.cov(b, rowvar=False))
    values, vectors = np.linalg.eigh(covariance_a)
    root_a = (vectors * np.sqrt(values.clip(min=0))) @ vectors.T
    squares = np.linalg.eigvalsh(root_a @ covariance_b @ root_a)
    cross = np.sqrt(squares.clip(min=0)).sum()
    between_means = np.square(a.mean(0) - b.mean(0)).sum()
    distance = between_means + np.trace(covariance_a) + np.trace(covariance_b) - 2 * cross
    return max(0.0, float(distance))


def covered(points: Array, centres: Array) -> float:
    """Return the fraction of points (n, d) in a ball about one of the centres (m, d).

    The radius of a ball is the distance of its centre from the third nearest other centre.
    """
    n_neighbours = min(_N_NEIGHBOURS, len(centres) - 1)
    neighbours = NearestNeighbors(n_neighbors=n_neighbours + 1).fit(centres)
    radii = neighbours.kneighbors(centres)[0][:, -1]
    point_norms = np.square(points).sum(1)[:, None]
    centre_norms = np.square(centres).sum(1)
    squares = point_norms + centre_norms - 2 * points @ centres.T
    return float((squares <= np.square(radii)).any(1).mean())


def _worst_column(synthetic: Array, real: Array) -> dict[str, Any]:
    """Return the column whose histograms have the largest total-variation distance."""
    pairs = zip(synthetic.T, real.T, strict=True)
    distances = [total_variation(*pair) for pair in pairs]
    worst = int(np.argmax(distances))
    return {"column": worst, "total_variation": round(distances[worst], _DIGITS)}


def total_variation(a: Array, b: Array) -> float:
    """Return the total-variation distance of the histograms of columns (n,) and (m,).

    It is the largest difference of the parts of both sides that lie in some set of bins. A column
    ``b`` of at most 20 values has a bin for each of them. Others have bins with about as many
    entries of ``b`` in each: as many as the cube root of the smaller side, between 2 and 10.

    Example:
        >>> total_variation(np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1]))
        0.25
    """
    values = np.unique(b)
    if len(values) <= _MOST_VALUES:
        edges = (values[1:] + values[:-1]) / 2
    else:
        n_bins = int(np.clip(np.cbrt(min(len(a), len(b))), 2, _MOST_BINS))
        edges = np.unique(np.quantile(b, np.arange(1, n_bins) / n_bins))
    parts = []
    for column in (a, b):
        counts = np.bincount(np.searchsorted(edges, column), minlength=len(edges) + 1)
        parts.append(counts / len(column))
    return float(np.abs(parts[0] - parts[1]).sum() / 2)


def _correlation_differences(synthetic: Array, real: Array) -> dict[str, Any]:
    """Return the mean absolute difference of correlations, and the worst pair.

    The correlations of the worst pair of columns differ most.
    """
    synthetic_correlations = _correlations(synthetic)
    real_correlations = _correlations(real)
    differences = np.abs(synthetic_correlations - real_correlations)
    first, second = np.triu_indices(len(differences), 1)
    above_diagonal = differences[first, second]
    worst = int(above_diagonal.argmax())
    pair = (first[worst], second[worst])
    return {
        "correlation_difference": round(float(above_diagonal.mean()), _DIGITS),
        "worst_pair": {
            "columns": [int(number) for number in pair],
            "synthetic": round(float(synthetic_correlations[pair]), _DIGITS),
            "real": round(float(real_correlations[pair]), _DIGITS),
        },
    }


def _correlations(rows: Array) -> Array:
    """Return the correlations (d, d) of columns; those of a constant column are 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.nan_to_num(np.corrcoef(rows, rowvar=False)))
