r"""Gibbs classifiers with bounded losses (Ying2024, Remark 4), exact draws, and estimators from draws.

A *Gibbs head* is one linear classifier drawn from :math:`q_w \propto \pi_w e^{-\beta \bar R(w)}`, where the
candidates w are public and :math:`\bar R` is the mean of a bounded loss over the private records. One exact draw is
also an exponential mechanism, which gives a guarantee: :func:`exponential_mechanism_epsilon`.

The estimators follow Remarks 3c and 5b. Beside the printed value they give the centred bound of
:mod:`dpswd.diagnostics.tangent` with an interval: a normal approximation in the number of draws that holds for all
records at once (Bonferroni) and covers the estimated mean by the triangle inequality, so it is wide.

Savage loss: Masnadi-Shirazi and Vasconcelos, NeurIPS 2008. Tangent loss: Masnadi-Shirazi, Mahadevan and Vasconcelos,
CVPR 2010.
"""

import math
import secrets
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from torch import Tensor

from dpswd._validate import array, at_least, choice, positive, probability
from dpswd.errors import InputError

Array = NDArray[np.float64]

LOSS_BOUNDS = {"savage": 1.0, "tangent": (math.pi + 1) ** 2, "zero_one": 1.0}  # every loss lies in [0, bound]

_MIN_SAMPLES = 100  # below it the normal approximation of the intervals is poor


def margin_loss(loss: str, margins: Tensor) -> Tensor:
    r"""Bounded loss of classification margins v (positive where the class is right), any shape.

    Savage: :math:`(1 + e^{2v})^{-2}`. Tangent: :math:`(2 \arctan v - 1)^2`. Zero-one: 1 where v <= 0.

    Args:
        loss: ``"savage"``, ``"tangent"`` or ``"zero_one"``.
        margins: Any shape.

    Returns:
        Losses in the shape of ``margins``, between 0 and ``LOSS_BOUNDS[loss]``.

    Raises:
        InputError: For any other loss; hinge, logistic and squared loss have no finite bound.
    """
    choice(tuple(LOSS_BOUNDS), loss=loss)
    if loss == "savage":
        return torch.sigmoid(-2 * margins).square()
    if loss == "tangent":
        return (2 * torch.arctan(margins) - 1).square()
    return (margins <= 0).to(margins.dtype)


def linear_margins(weights: Tensor, features: Tensor, labels: Tensor) -> Tensor:
    """Margins of linear classifiers: score of the right class minus the best other score.

    Args:
        weights: Classifiers (..., d + 1, c); the last row is the bias.
        features: Rows (n, d).
        labels: Classes (n,), integers in [0, c).

    Returns:
        Margins (..., n).
    """
    scores = features @ weights[..., :-1, :] + weights[..., -1:, :]
    index = labels.expand(scores.shape[:-1])[..., None]
    return scores.gather(-1, index)[..., 0] - scores.scatter(-1, index, -math.inf).amax(-1)


def exponential_mechanism_epsilon(beta: float, loss: str, n_records: int) -> float:
    r"""Pure epsilon of one exact draw from a Gibbs distribution over public candidates (replace-one).

    The mean loss of every candidate moves by at most B / n, hence :math:`|\ln q - \ln q'| \le 2 \beta B / n` with B
    from ``LOSS_BOUNDS``. Every further draw costs the same again.

    Args:
        beta: Inverse temperature, above 0, in one over units of the loss.
        loss: A key of ``LOSS_BOUNDS``.
        n_records: Number n of records.

    Returns:
        epsilon.

    Raises:
        InputError: If an argument is out of range.
    """
    positive(beta=beta)
    choice(tuple(LOSS_BOUNDS), loss=loss)
    at_least(1, n_records=n_records)
    return 2 * beta * LOSS_BOUNDS[loss] / n_records


def sample_hypotheses(q: ArrayLike, size: int, *, rng: np.random.Generator | None = None) -> NDArray[np.int64]:
    """Draw indices (size,) from a finite Gibbs distribution exactly.

    Every draw is a release. ``rng`` is for tests; without it the operating system's generator is used.

    Args:
        q: Probabilities (m,).
        size: Number of draws.
        rng: Generator for tests.

    Raises:
        InputError: If ``size`` is below 1.
    """
    at_least(1, size=size)
    if rng is None:
        system = secrets.SystemRandom()
        uniform = np.array([system.random() for _ in range(size)])
    else:
        uniform = rng.random(size)
    cumulative = np.cumsum(array("q", q))
    return np.searchsorted(cumulative / cumulative[-1], uniform, side="right").astype(np.int64)


@dataclass(frozen=True)
class Estimate:
    """Bounds estimated from draws of q, with TV as half of the L1 norm. A diagnostic.

    Attributes:
        printed: The paper's estimator: 2 beta R of Remark 3c, or beta R of Remark 5b (whose theorem is false).
        value: The centred bound.
        lower: Lower end of its interval, at least 0.
        upper: Upper end; the number to quote.
        confidence: Approximate probability that the interval holds the exact centred bound.
    """

    printed: float
    value: float
    lower: float
    upper: float
    confidence: float


def estimate_tv_bound(risks: ArrayLike, beta: float, *, confidence: float = 0.95) -> Estimate:
    r"""Estimate Theorem 3: printed :math:`2 \beta \max_x E_q r_{wx}`, centred :math:`\beta \max_x E_q |c_{wx}|`.

    Args:
        risks: Risks (samples, n) of drawn hypotheses on the records.
        beta: Inverse temperature.
        confidence: Of the interval, for all records together.

    Returns:
        Printed and centred bound, and the interval of the latter.

    Raises:
        InputError: If there are fewer than 100 draws, or a value is out of range.
    """
    r = _samples("risks", risks, beta, confidence)
    deviation = np.abs(r - r.mean(axis=0))  # (samples, n)
    mean = deviation.mean(axis=0)
    z = float(stats.norm.isf((1 - confidence) / (4 * r.shape[1])))  # two means per record, two sides each
    error = z * (deviation.std(axis=0, ddof=1) + r.std(axis=0, ddof=1)) / math.sqrt(len(r))
    lower, upper = max(float((mean - error).max()), 0.0), float((mean + error).max())
    printed = 2 * beta * float(np.abs(r).mean(axis=0).max())
    return Estimate(printed, beta * float(mean.max()), beta * lower, beta * upper, confidence)


def estimate_sobolev_bound(gradients: ArrayLike, beta: float, *, confidence: float = 0.95) -> Estimate:
    r"""Estimate Theorem 5: printed :math:`\beta |E_q r|_{H^1}`, centred :math:`\frac\beta2 E_q |c_w|_{H^1}`.

    Args:
        gradients: Vectors (samples, D) as in :func:`~dpswd.diagnostics.tangent.tangent_norms`, of drawn hypotheses.
        beta: Inverse temperature.
        confidence: Of the interval.

    Returns:
        Printed and centred bound, and the interval of the latter.

    Raises:
        InputError: If there are fewer than 100 draws, or a value is out of range.
    """
    g = _samples("gradients", gradients, beta, confidence)
    height = np.linalg.norm(g - g.mean(axis=0), axis=1)
    z = float(stats.norm.isf((1 - confidence) / 4))
    # The norm is 1-Lipschitz, so an error of the mean vector moves every height by at most its length.
    offset = (1 + z) * math.sqrt(float(np.square(height).mean()) / len(g))
    error = z * float(height.std(ddof=1)) / math.sqrt(len(g)) + offset
    value = float(height.mean())
    printed = beta * float(np.linalg.norm(g.mean(axis=0)))
    return Estimate(
        printed, beta / 2 * value, beta / 2 * max(value - error, 0.0), beta / 2 * (value + error), confidence
    )


def _samples(name: str, values: ArrayLike, beta: float, confidence: float) -> Array:
    positive(beta=beta)
    probability(confidence=confidence)
    rows = array(name, values)
    if rows.ndim != 2 or len(rows) < _MIN_SAMPLES or not rows.shape[1]:
        raise InputError(f"Expected {name} of at least {_MIN_SAMPLES} draws, got shape {rows.shape}; draw more.")
    if not np.isfinite(rows).all():
        raise InputError(f"Expected {name} to be bounded, got nan or inf; use a bounded loss.")
    return rows
