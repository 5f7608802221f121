r"""Gomez2025, open question: mu-GDP of two mechanisms of selection.

The mechanisms are the exponential mechanism and report-noisy-max. Both choose one of several
candidates by scores of sensitivity 1 and are epsilon-DP, so that Proposition 6.1 bounds their mu:
the exponential mechanism with probabilities proportional to :math:`e^{\varepsilon u / 2}`, and the
largest score after Laplace noise of scale :math:`2 / \varepsilon`.

The privacy loss of the exponential mechanism lies in an interval of length epsilon (Dong2020). Of
two laws with losses in :math:`[t - \varepsilon, t]` none are told apart better than those with
losses at both ends only; mu is their largest over t (docs/gdp.md has the proof). Two candidates
attain it. For report-noisy-max the largest mu of a search over scores is a lower bound.
"""

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from experiments.accounting.gdp import pure_mu
from experiments.results import Result, Row

Array = NDArray[np.float64]

EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0)
CANDIDATES = (2, 3, 5, 10, 30, 100)
NOISE_POINTS = 8001  # of an integral over the largest noisy score
NOISE_WIDTH = 40.0  # of that integral to either side, in scales of the noise


def two_point_mu(epsilon: float, loss: float) -> float:
    r"""Return the mu of two laws with losses ``loss`` and ``loss - epsilon`` only.

    With :math:`q` the probability of the larger loss under the second law, :math:`q e^t + (1 - q)
    e^{t - \varepsilon} = 1`, and the only corner of the trade-off curve is :math:`(q, 1 - q e^t)`.
    """
    ratio = math.exp(loss)
    least_ratio = math.exp(loss - epsilon)
    q = (1 - least_ratio) / (ratio - least_ratio)
    return float(stats.norm.ppf(q * ratio) - stats.norm.ppf(q))


def exponential_mu(epsilon: float) -> float:
    """Return the least mu of the epsilon-DP exponential mechanism.

    It covers all intervals of the privacy loss.
    """
    parts = np.linspace(0, 1, 201)[1:-1]
    return max(two_point_mu(epsilon, float(part) * epsilon) for part in parts)


def noisy_max_probability(epsilon: float, lead: float, n_candidates: int) -> float:
    """Return the probability that report-noisy-max chooses the first candidate.

    Args:
        epsilon: The noise has the scale 2 / epsilon.
        lead: Score of the first candidate; the others have the score 0.
        n_candidates: Number of candidates.
    """
    scale = 2 / epsilon
    value = np.linspace(-NOISE_WIDTH, NOISE_WIDTH, NOISE_POINTS) * scale + lead
    density = stats.laplace.pdf(value - lead, scale=scale)
    others = stats.laplace.cdf(value, scale=scale) ** (n_candidates - 1)
    return float(np.trapezoid(density * others, value))


def noisy_max_least_mu(epsilon: float) -> Row:
    """Return the largest mu of report-noisy-max, and where it is attained.

    A search yields it.

    Neighbours raise the first score by 1 and lower the others by 1. An attacker sees whether the
    first candidate was chosen.
    """
    rows = []
    for n_candidates in CANDIDATES:
        for offset in np.linspace(-3, 6, 46) * 2 / epsilon:
            raised = noisy_max_probability(epsilon, offset + 1, n_candidates)
            lowered = noisy_max_probability(epsilon, offset - 1, n_candidates)
            mu = float(stats.norm.ppf(raised) - stats.norm.ppf(lowered))
            rows.append({"mu": mu, "n_candidates": n_candidates, "offset": float(offset)})
    return max(rows, key=lambda row: row["mu"])


def gdp_selection(out: Path, *, quick: bool = False) -> Result:
    """Gomez2025, open question: mu of exponential mechanism and report-noisy-max."""
    epsilons = EPSILONS
    if quick:
        epsilons = (1.0,)
    rows: list[Row] = []
    for epsilon in epsilons:
        worst = noisy_max_least_mu(epsilon)
        rows.append(
            {
                "epsilon": epsilon,
                "mu_pure": pure_mu(epsilon),
                "mu_exponential": exponential_mu(epsilon),
                "mu_noisy_max_least": worst["mu"],
                "n_candidates": worst["n_candidates"],
                "offset": worst["offset"],
            }
        )
    return {"rows": rows}


EXPERIMENTS = (gdp_selection,)
