"""Two-sample test: can a classifier tell synthetic records from real ones?

A classifier is trained on one half of real and synthetic records, and tested on the other half. Its
AUC is the probability that it finds a random synthetic record more synthetic than a random real
one: 0.5 if it cannot tell them apart, 1 if it always can (Lopez-Paz and Oquab, Revisiting
Classifier Two-Sample Tests, ICLR 2017).

For tables, the propensity score p of a record is the probability that it is synthetic, by a
logistic regression on columns, squares and products of columns that is fitted to all records. pMSE
is the mean of (p - 1/2)^2 for equally many records of both sides (Snoke, Raab, Nowok, Dibben,
Slavkovic, General and Specific Utility Measures for Synthetic Data, JRSS-A 2018). For independent
records of equal laws its expectation is about k / (4 N), k terms and N records of both sides
together: differences of p from 1/2 are a projection on k dimensions of N numbers of variance 1/4.
"""

import warnings

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import PolynomialFeatures

from dpswd._layout import Array
from dpswd.evaluation.accuracy import scores
from dpswd.records import Records

__all__ = ["propensity", "two_sample_test"]

# Records of each side, which bounds the time.
_MOST = 4000
# Fewer records of a side leave nothing to train on.
_LEAST = 20
# Records per term of the propensity score, below which squares and products are left out.
_PER_TERM = 20
# Singular values of the terms, in the largest one, from which on a direction counts.
_LEAST_PART = 1e-4
_DIGITS = 4
IMAGE_TESTERS = ("logreg", "cnn")
ROW_TESTERS = ("logreg", "boosting")


def two_sample_test(synthetic: Records, real: Records) -> dict[str, float | None]:
    """Return the AUC of classifiers that tell synthetic records from real ones.

    Args:
        synthetic: Synthetic records.
        real: Real records of the same shape. Both sides are cut to one number, at most 4,000.

    Returns:
        The AUC by the name of the classifier; empty for fewer than 20 records.

    Example:
        >>> rows = torch.rand(400, 3)
        >>> labels = torch.zeros(400, dtype=torch.int64)
        >>> far = two_sample_test(Records(rows + 1, labels), Records(rows, labels))
        >>> far["logreg"] > 0.99
        True
    """
    n = min(len(synthetic), len(real), _MOST)
    if n < _LEAST:
        return {}
    testers = ROW_TESTERS
    if real.values.ndim == 4:
        testers = IMAGE_TESTERS
    order = torch.randperm(2 * n, generator=torch.Generator().manual_seed(0))
    values = torch.cat([real.evenly_spread(n).floats(), synthetic.evenly_spread(n).floats()])[order]
    is_synthetic = torch.cat([torch.zeros(n), torch.ones(n)]).long()[order]
    train = Records(values[:n], is_synthetic[:n], real.nominal)
    test = Records(values[n:], is_synthetic[n:], real.nominal)
    return {name: scores(name, train, test)["auc"] for name in testers}


def propensity(synthetic: Records, real: Records) -> dict[str, float] | None:
    """Return the mean squared error of propensity scores of tables.

    Args:
        synthetic: Synthetic rows.
        real: Real rows of the same columns. Both sides are cut to one number, at most 4,000.

    Returns:
        ``"pmse"``, from 0 (cannot be told apart) to 1/4 (always told apart), and ``"ratio"``, over
        its expectation for equal laws: about 1 if the laws are equal. ``None`` for fewer than 20
        rows, or if all columns are constant.

    Example:
        >>> rows = torch.randn(900, 3, generator=torch.Generator().manual_seed(0))
        >>> one, other = [Records(part, torch.zeros(450).long()) for part in rows.split(450)]
        >>> far = Records(one.values + 1, one.labels)
        >>> propensity(one, other)["ratio"] < 3 < propensity(far, other)["ratio"]
        True
    """
    n = min(len(synthetic), len(real), _MOST)
    if n < _LEAST:
        return None
    rows = (
        torch.cat([real.evenly_spread(n).floats(), synthetic.evenly_spread(n).floats()])
        .double()
        .numpy()
    )
    terms = _independent_terms(rows)
    if not terms.shape[1]:
        return None
    is_synthetic = np.arange(2 * n) >= n
    # Terms of norm 1 and no penalty; the fit is stopped where the sides can be separated.
    model = LogisticRegression(C=1e6, max_iter=200)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(terms, is_synthetic)
    scores_of_rows = model.predict_proba(terms)[:, 1]
    error = float(np.square(scores_of_rows - 0.5).mean())
    expected = terms.shape[1] / (4 * 2 * n)
    return {"pmse": round(error, _DIGITS), "ratio": round(error / expected, 2)}


def _independent_terms(rows: Array) -> Array:
    """Return independent combinations (N, k) of terms of rows (N, d).

    The terms are columns, squares and products.
    """
    rows = _scaled(rows)
    n_products = rows.shape[1] * (rows.shape[1] + 3) // 2
    if n_products * _PER_TERM <= len(rows):
        rows = _scaled(PolynomialFeatures(2, include_bias=False).fit_transform(rows))
    left, values, _ = np.linalg.svd(rows, full_matrices=False)
    counted = values > _LEAST_PART * max(values[0], 1.0)
    return np.asarray(left[:, counted] * np.sqrt(len(rows)))


def _scaled(rows: Array) -> Array:
    """Return rows whose columns have mean 0 and variance 1; constant columns become 0."""
    deviations = rows.std(0)
    return np.asarray((rows - rows.mean(0)) / np.where(deviations > 0, deviations, 1.0))
