r"""Audit of one training run with many canaries.

Each of m slots of the data set holds one of two records, as an independent fair coin decides. After
the run the auditor guesses r of the coins; v guesses are right.

Theorem (Steinke, Nasr and Jagielski, Privacy Auditing with One (1) Training Run, NeurIPS 2023,
Theorem 5.2; its proof only uses that flipping one coin gives a neighbouring data set, here under
replace-one). If the run is :math:`(\varepsilon, \delta)`-DP then, with
:math:`W \sim \mathrm{Bin}(r, e^\varepsilon / (1 + e^\varepsilon))`,

.. math:: P(v \text{ or more right}) \le P(W \ge v) + 2 m \delta \max_{i \ge 1} \frac{P(v - i \le W
< v)}{i}.

All coins share one run, so that even a perfect attack on m slots proves at most about
:math:`\ln(m / \ln(1/p))`. A bound near 0 is common and no evidence of privacy; the audit detects a
pipeline that memorises records.
"""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, stats

FRACTIONS = (1, 2, 4, 10)  # parts of the slots that are guessed: all, a half, a quarter, a tenth
LARGEST = 20.0  # epsilon that the search considers


def one_run_p_value(slots: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Bound the probability of v or more ``right`` guesses under (epsilon, delta)-DP.

    Args:
        slots: Number m of slots.
        guesses: Number r of guesses.
        right: Number v of right ones.
        epsilon: Epsilon of the claim.
        delta: Delta of the claim.
    """
    rate = 1 / (1 + math.exp(-epsilon))
    p_value = float(stats.binom.sf(right - 1, guesses, rate))
    if delta and right:
        below = np.arange(right - 1, -1, -1)  # v - 1, v - 2, ..., 0
        probabilities = np.cumsum(stats.binom.pmf(below, guesses, rate))
        largest = float(np.max(probabilities / np.arange(1, right + 1)))
        p_value += 2 * slots * delta * largest
    return min(p_value, 1.0)


def one_run_epsilon(
    scores: ArrayLike, coins: ArrayLike, *, delta: float, confidence: float = 0.99
) -> float:
    """Compute a lower bound on epsilon from one run.

    The guesses are the slots with the largest absolute scores: all slots, a half, a quarter and a
    tenth of them, each with a quarter of the error probability.

    Args:
        scores: Scores (m,); a positive one guesses that the coin is 1.
        coins: Coins (m,), 0 or 1.
        delta: Delta of the claim.
        confidence: Probability with which the bound holds.
    """
    scores = np.asarray(scores, dtype=np.float64)
    coins = np.asarray(coins)
    slots = len(scores)
    order = np.argsort(-np.abs(scores), kind="stable")
    is_right = ((scores > 0) == (coins == 1))[order]
    numbers = sorted({max(1, slots // fraction) for fraction in FRACTIONS})
    level = (1 - confidence) / len(numbers)
    bounds = []
    for guesses in numbers:
        right = int(is_right[:guesses].sum())
        bounds.append(_largest_refuted(slots, guesses, right, delta, level))
    return max(bounds)


def _largest_refuted(slots: int, guesses: int, right: int, delta: float, level: float) -> float:
    """Return the largest epsilon that the guesses refute.

    The p-value increases with epsilon up to it. The search ends at the first step of 0.1 that is
    not refuted.
    """

    def gap(epsilon: float) -> float:
        return one_run_p_value(slots, guesses, right, epsilon, delta) - level

    if gap(0.0) >= 0:
        return 0.0
    upper = LARGEST
    for step in np.linspace(0, LARGEST, 201):
        if gap(float(step)) >= 0:
            upper = float(step)
            break
    lower = max(0.0, upper - 0.1)
    if gap(upper) < 0:
        return lower
    return float(optimize.brentq(gap, lower, upper))
