r"""Audit of one training run with many canaries.

Each of m slots of the data set holds one of two records, as an independent fair coin decides. After the run the auditor
guesses r of the coins; v guesses are right.

Theorem (Steinke, Nasr and Jagielski, Privacy Auditing with One (1) Training Run, NeurIPS 2023, Theorem 5.2; its proof
only uses that flipping one coin gives a neighbouring data set, here under replace-one). If the run is
:math:`(\varepsilon, \delta)`-DP then, with :math:`W \sim \mathrm{Bin}(r, e^\varepsilon / (1 + e^\varepsilon))`,

.. math:: P(v \text{ or more right}) \le P(W \ge v) + 2 m \delta \max_{i \ge 1} \frac{P(v - i \le W < v)}{i}.

All coins share one run, so that even a perfect attack on m slots proves at most about :math:`\ln(m / \ln(1/p))`. A
bound near 0 is common and no evidence of privacy; the audit detects a pipeline that memorises records.
"""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, stats


def one_run_p_value(slots: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Bound the probability of v or more ``right`` guesses out of r among m ``slots`` under (epsilon, delta)-DP."""
    rate = 1 / (1 + math.exp(-epsilon))
    p_value = float(stats.binom.sf(right - 1, guesses, rate))
    if delta and right:
        near = np.cumsum(stats.binom.pmf(np.arange(right - 1, -1, -1), guesses, rate))
        p_value += 2 * slots * delta * float(np.max(near / np.arange(1, right + 1)))
    return min(p_value, 1.0)


def one_run_epsilon(
    scores: ArrayLike, coins: ArrayLike, *, delta: float, confidence: float = 0.99
) -> float:
    """Compute a lower bound on epsilon that holds with probability ``confidence``, from one run.

    A positive score (m,) guesses that the coin (m,) is 1. The guesses are the slots with the largest absolute scores:
    all slots, a half, a quarter and a tenth of them, each with a quarter of the error probability.
    """
    scores, coins = np.asarray(scores, dtype=np.float64), np.asarray(coins)
    m = len(scores)
    order = np.argsort(-np.abs(scores), kind="stable")
    correct = ((scores > 0) == (coins == 1))[order]
    numbers = sorted({max(1, m // part) for part in (1, 2, 4, 10)})
    level = (1 - confidence) / len(numbers)
    return max(_largest_refuted(m, r, int(correct[:r].sum()), delta, level) for r in numbers)


def _largest_refuted(slots: int, guesses: int, right: int, delta: float, level: float) -> float:
    """Return the largest epsilon that the guesses refute; the p-value increases with epsilon up to it."""

    def gap(epsilon: float) -> float:
        return one_run_p_value(slots, guesses, right, epsilon, delta) - level

    if gap(0.0) >= 0:
        return 0.0
    steps = np.linspace(0, 20, 201)  # the search ends at the first epsilon that is not refuted
    upper = next((float(step) for step in steps if gap(float(step)) >= 0), 20.0)
    lower = max(0.0, upper - 0.1)
    return float(optimize.brentq(gap, lower, upper)) if gap(upper) >= 0 else lower
