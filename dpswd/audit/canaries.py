r"""One training run, many canaries: an end-to-end audit of whatever a training run gives out.

Each of m slots of the data set holds one of two records, as a fair coin of its own decides. After the run the auditor
guesses r of the coins, and v guesses are right.

Theorem (Steinke, Nasr and Jagielski, Privacy Auditing with One (1) Training Run, NeurIPS 2023, Theorem 5.2, whose proof
uses no more than that flipping one coin makes a neighbouring data set; here that is replace-one). If the run is
:math:`(\varepsilon, \delta)`-DP then, with :math:`W \sim \mathrm{Bin}(r, e^\varepsilon / (1 + e^\varepsilon))`,

.. math:: P(v \text{ or more right}) \le P(W \ge v) + 2 m \delta \max_{i \ge 1} \frac{P(v - i \le W < v)}{i}.

Where this is weak. All coins share one run, so even a perfect attack on m slots proves no more than about
:math:`\ln(m / \ln(1/p))`; canaries hide each other; and a generator that summarises thousands of records has little to
say about one. A bound near 0 is the rule, and is no evidence of privacy. Use it to catch a pipeline that memorises.
"""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, stats

from dpswd._validate import at_least, probability
from dpswd.errors import InputError

__all__ = ["one_run_epsilon", "one_run_p_value"]


def one_run_p_value(slots: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Bounds the probability that ``right`` or more of ``guesses`` are right under (epsilon, delta)-DP.

    Args:
        slots: Number m of coins.
        guesses: Number r <= m of guesses.
        right: Number v of right guesses.
        epsilon: At least 0.
        delta: At least 0.

    Returns:
        A number of at most 1.
    """
    at_least(0, guesses=guesses, right=right)
    at_least(1, slots=slots)
    if not right <= guesses <= slots:
        raise InputError(f"Expected right <= guesses <= slots, got {right}, {guesses} and {slots}.")
    rate = 1 / (1 + math.exp(-epsilon))
    p_value = float(stats.binom.sf(right - 1, guesses, rate))
    if delta and right:
        near = np.cumsum(stats.binom.pmf(np.arange(right - 1, -1, -1), guesses, rate))
        p_value += 2 * slots * delta * float(np.max(near / np.arange(1, right + 1)))
    return min(p_value, 1.0)


def one_run_epsilon(scores: ArrayLike, coins: ArrayLike, *, delta: float, confidence: float = 0.99) -> float:
    """Computes a lower bound on epsilon from one run.

    The guesses are the slots with the largest scores in size. All slots, a half, a quarter and a tenth of them are
    tried; each of the four gets a quarter of the error probability.

    Args:
        scores: Scores (m,); positive ones guess that the coin shows 1, the larger the surer.
        coins: What the coins showed (m,), 0 or 1.
        delta: The delta of the claim that is tested.
        confidence: Probability with which the bound holds.

    Returns:
        epsilon, 0 where nothing is proved.

    Raises:
        InputError: If shapes do not fit or a coin shows anything else.

    Example:
        >>> coins = np.arange(200) % 2
        >>> epsilon = one_run_epsilon(coins - 0.5, coins, delta=1e-5)
        >>> 3 < epsilon < 4
        True
    """
    probability(delta=delta, confidence=confidence)
    scores, coins = np.asarray(scores, dtype=float), np.asarray(coins)
    if scores.ndim != 1 or scores.shape != coins.shape or not len(scores):
        raise InputError(f"Expected one score per coin, got shapes {scores.shape} and {coins.shape}.")
    if np.isnan(scores).any() or not np.isin(coins, (0, 1)).all():
        raise InputError("Expected scores that are numbers and coins that are 0 or 1, got others.")
    m = len(scores)
    order = np.argsort(-np.abs(scores), kind="stable")
    correct = ((scores > 0) == (coins == 1))[order]
    numbers = sorted({max(1, m // part) for part in (1, 2, 4, 10)})
    level = (1 - confidence) / len(numbers)
    return max(_largest_refuted(m, r, int(correct[:r].sum()), delta, level) for r in numbers)


def _largest_refuted(slots: int, guesses: int, right: int, delta: float, level: float) -> float:
    """The largest epsilon that so many right guesses refute; the p-value grows with epsilon up to it."""

    def gap(epsilon: float) -> float:
        return one_run_p_value(slots, guesses, right, epsilon, delta) - level

    if gap(0.0) >= 0:
        return 0.0
    steps = np.linspace(0, 20, 201)  # the first epsilon that is not refuted ends the search
    upper = next((float(step) for step in steps if gap(float(step)) >= 0), 20.0)
    lower = max(0.0, upper - 0.1)
    return float(optimize.brentq(gap, lower, upper)) if gap(upper) >= 0 else lower
