"""Two-sample test: can a classifier tell synthetic records from real ones?

A classifier is trained on one half of real and synthetic records, and tested on the other half. Its
AUC is the probability that it finds a random synthetic record more synthetic than a random real
one: 0.5 if it cannot tell them apart, 1 if it always can (Lopez-Paz and Oquab, Revisiting Classifier
Two-Sample Tests, ICLR 2017).
"""

import torch

from dpswd.evaluation.accuracy import scores
from dpswd.records import Records

__all__ = ["two_sample_test"]

# Records of each side, which bounds the time.
_MOST = 4000
# Fewer records of a side leave nothing to train on.
_LEAST = 20
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
    values = torch.cat([_some(real, n), _some(synthetic, n)])[order]
    is_synthetic = torch.cat([torch.zeros(n), torch.ones(n)]).long()[order]
    train = Records(values[:n], is_synthetic[:n])
    test = Records(values[n:], is_synthetic[n:])
    return {name: scores(name, train, test)["auc"] for name in testers}


def _some(records: Records, n: int) -> torch.Tensor:
    """Return n records, evenly spread, as floats."""
    places = torch.linspace(0, len(records) - 1, n).round().long()
    return records.floats(places)
