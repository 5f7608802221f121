r"""Gibbs classifiers with bounded losses (Ying2024, Remark 4).

A *Gibbs head* is one linear classifier drawn from :math:`q_w \propto e^{-\beta \bar R(w)}`,
where the candidates w are public and :math:`\bar R` is the mean of a bounded loss over the private
records. One exact draw is also an exponential mechanism, which gives a guarantee:
:func:`exponential_mechanism_epsilon`.

The estimators follow Remarks 3c and 5b. Beside the printed value they give the centred bound of
:mod:`dpswd.diagnostics.tangent` with an interval: a normal approximation in the number of draws
that holds for all records at once (Bonferroni) and covers the estimated mean by the triangle
inequality, so it is wide.

Savage loss: Masnadi-Shirazi and Vasconcelos, NeurIPS 2008. Tangent loss: Masnadi-Shirazi, Mahadevan
and Vasconcelos, CVPR 2010.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

Array = NDArray[np.float64]

LOSS_BOUNDS = {"savage": 1.0, "tangent": (math.pi + 1) ** 2, "zero_one": 1.0}  # losses in [0, B]


def margin_loss(loss: str, margins: Tensor) -> Tensor:
    """Compute a bounded loss of classification margins, of any shape.

    A margin is positive where the class is right.
    """
    if loss == "savage":
        return torch.sigmoid(-2 * margins).square()
    if loss == "tangent":
        return (2 * torch.arctan(margins) - 1).square()
    return (margins <= 0).to(margins.dtype)


def linear_margins(weights: Tensor, features: Tensor, labels: Tensor) -> Tensor:
    """Compute margins (..., n) of linear classifiers.

    Args:
        weights: classifiers (..., d + 1, c), whose last row is the bias.
        features: rows (n, d).
        labels: classes (n,).
    """
    scores = features @ weights[..., :-1, :] + weights[..., -1:, :]  # (..., n, c)
    index = labels.expand(scores.shape[:-1])[..., None]
    of_label = scores.gather(-1, index)[..., 0]
    best_other = scores.scatter(-1, index, -math.inf).amax(-1)
    return of_label - best_other


def exponential_mechanism_epsilon(beta: float, loss: str, n_records: int) -> float:
    r"""Compute the pure epsilon of one exact draw from a Gibbs distribution.

    The candidates are public. The mean loss of every candidate moves by at most B / n, hence
    :math:`|\ln q - \ln q'| \le 2 \beta B / n` with B from ``LOSS_BOUNDS``. Every further draw costs
    the same again.
    """
    return 2 * beta * LOSS_BOUNDS[loss] / n_records


@dataclass(frozen=True)
class Estimate:
    """Bounds estimated from draws of q, with TV as half of the L1 norm. A diagnostic.

    ``printed`` is the paper's estimator: 2 beta R of Remark 3c, or beta R of Remark 5b, whose
    theorem is false. ``value`` is the centred bound, between the ends of its interval.
    """

    printed: float
    value: float
    lower: float
    upper: float


def estimate_tv_bound(risks: Array, beta: float, *, confidence: float = 0.95) -> Estimate:
    """Estimate Theorem 3 from risks (draws, n).

    The centred bound is beta max_x E_q |c_wx|.
    """
    n_draws, n_records = risks.shape
    deviation = np.abs(risks - risks.mean(axis=0))  # (draws, n)
    mean = deviation.mean(axis=0)
    n_errors = 4 * n_records  # two means per record, two sides each
    z = float(stats.norm.isf((1 - confidence) / n_errors))
    spread = deviation.std(axis=0, ddof=1) + risks.std(axis=0, ddof=1)
    error = z * spread / math.sqrt(n_draws)
    lower = max(float((mean - error).max()), 0.0)
    upper = float((mean + error).max())
    printed = 2 * beta * float(np.abs(risks).mean(axis=0).max())
    return Estimate(printed, beta * float(mean.max()), beta * lower, beta * upper)


def estimate_sobolev_bound(gradients: Array, beta: float, *, confidence: float = 0.95) -> Estimate:
    """Estimate Theorem 5 from vectors (draws, D) as in ``tangent_norms``.

    The centred bound is beta/2 E_q |c_w|_H1.
    """
    n_draws = len(gradients)
    height = np.linalg.norm(gradients - gradients.mean(axis=0), axis=1)
    z = float(stats.norm.isf((1 - confidence) / 4))
    # The norm is 1-Lipschitz, so an error of the mean vector moves every height by its length.
    offset = (1 + z) * math.sqrt(float(np.square(height).mean()) / n_draws)
    error = z * float(height.std(ddof=1)) / math.sqrt(n_draws) + offset
    value = float(height.mean())
    half = beta / 2
    printed = beta * float(np.linalg.norm(gradients.mean(axis=0)))
    return Estimate(printed, half * value, half * max(value - error, 0.0), half * (value + error))
