r"""From the scores of an attack to lower bounds on mu and epsilon with a stated confidence. NumPy and SciPy only.

The attack gives one score per run; large scores speak for the second of two neighbouring data sets. At a threshold t

- FPR = P(score > t | first data set), FNR = P(score <= t | second data set).

A mechanism that is :math:`\mu`-GDP lets no test have :math:`\Phi^{-1}(1 - FPR) - \Phi^{-1}(FNR) > \mu` (Dong2022,
Definition 2.6 with the curve of Equation 6), and one that is :math:`(\varepsilon, \delta)`-DP none with
:math:`FNR < 1 - \delta - e^\varepsilon FPR` or the same with both rates exchanged (Wasserman and Zhou 2010, Theorem
2.4). Both expressions fall as the rates grow, so that upper confidence limits on the rates give lower bounds.

The limits are Clopper and Pearson's (1934): exact for independent runs, whatever the number of errors. The threshold is
chosen on runs that are not counted afterwards; on those that are it is fixed in advance, as the limits want it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from dpswd._validate import array, at_least, probability
from dpswd.errors import InputError

__all__ = ["Attack", "Evidence", "upper_limit", "weigh"]

Array = NDArray[np.float64]

LEAST_TRIALS = 50
_FOR_THRESHOLDS = 0.15  # of the runs
_CANDIDATES = 400  # thresholds to choose from
_SHY = 1e-4  # the level at which thresholds for mu are compared, relative to that of the limits
_SHARES = {"mu": 0.8, "epsilon": 0.2}  # of the error probability


def upper_limit(errors: ArrayLike, trials: int, level: float) -> Array:
    """Computes the Clopper-Pearson limit that an error rate exceeds with probability at most ``level``.

    Args:
        errors: Observed errors, any shape; fractions are interpolated (for choosing a threshold only).
        trials: Number of independent runs.
        level: Probability strictly between 0 and 1.

    Returns:
        Array of the same shape.

    Example:
        >>> bool(abs(upper_limit(0, 100, 0.05) - (1 - 0.05 ** (1 / 100))) < 1e-12)
        True
    """
    at_least(1, trials=trials)
    probability(level=level)
    errors = array("errors", errors)
    if not (errors >= 0).all():
        raise InputError("Expected numbers of errors of at least 0, got others.")
    limit = stats.beta.isf(level, errors + 1, np.maximum(trials - errors, 1e-12))
    return np.where(errors >= trials, 1.0, limit)


def _mu(fpr: Array, fnr: Array) -> Array:
    return np.asarray(stats.norm.isf(fpr) - stats.norm.ppf(fnr), dtype=float)


def _epsilon(fpr: Array, fnr: Array, delta: float) -> Array:
    one, other = (1 - delta - fnr) / fpr, (1 - delta - fpr) / fnr
    return np.log(np.maximum(np.maximum(one, other), 1.0))


@dataclass(frozen=True)
class Attack:
    """One test and upper limits on its error rates.

    Attributes:
        threshold: Scores above it are taken for the second data set.
        fpr: Upper limit on the false-positive rate.
        fnr: Upper limit on the false-negative rate.
    """

    threshold: float
    fpr: float
    fnr: float

    @property
    def mu(self) -> float:
        """Lower bound on mu, at least 0."""
        return max(0.0, float(_mu(np.asarray(self.fpr), np.asarray(self.fnr))))

    def epsilon(self, delta: float) -> float:
        """Lower bound on epsilon at ``delta``, at least 0."""
        return float(_epsilon(np.asarray(self.fpr), np.asarray(self.fnr), delta))


@dataclass(frozen=True)
class Evidence:
    """What the runs prove. All four limits on error rates hold together with probability ``confidence``.

    Attributes:
        for_mu: The test whose bound on mu was largest on the runs for choosing.
        for_epsilon: Likewise for epsilon at ``delta``.
        delta: As given.
        confidence: As given.
        trials: Runs per data set, those for choosing thresholds included.
        best_provable_mu: What these runs would have proved without a single error.
    """

    for_mu: Attack
    for_epsilon: Attack
    delta: float
    confidence: float
    trials: int
    best_provable_mu: float

    @property
    def mu(self) -> float:
        """Lower bound on mu."""
        return self.for_mu.mu

    @property
    def epsilon(self) -> float:
        """Lower bound on epsilon at ``delta``: the better of both tests."""
        return max(self.for_mu.epsilon(self.delta), self.for_epsilon.epsilon(self.delta))


def weigh(first: ArrayLike, second: ArrayLike, *, delta: float = 1e-5, confidence: float = 0.99) -> Evidence:
    """Turns scores of independent runs into lower bounds.

    Args:
        first: Scores (n,) of runs on the first data set.
        second: Scores (n,) of runs on the second.
        delta: Where to read epsilon.
        confidence: Probability with which all bounds hold.

    Raises:
        InputError: If there are too few runs, unequal numbers of them, or scores that are nan.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> evidence = weigh(rng.normal(0, 1, 20_000), rng.normal(2, 1, 20_000))
        >>> 1.85 < evidence.mu < 2
        True
    """
    probability(delta=delta, confidence=confidence)
    one, two = (np.clip(array("scores", scores), -1e300, 1e300) for scores in (first, second))
    if one.ndim != 1 or one.shape != two.shape or len(one) < LEAST_TRIALS:
        raise InputError(
            f"Expected as many runs on both data sets, at least {LEAST_TRIALS}, got {one.shape} and {two.shape}."
        )
    if np.isnan(one).any() or np.isnan(two).any():
        raise InputError("Expected scores that are numbers, got nan; the attack failed.")
    cut = math.ceil(_FOR_THRESHOLDS * len(one))
    counted = len(one) - cut

    def attack(goal: Callable[[Array, Array], Array], share: float, planned: int, shy: float = 1.0) -> Attack:
        level = (1 - confidence) * share / 2
        threshold = _threshold(one[:cut], two[:cut], planned, level * shy, goal)
        errors = [int((one[cut:] > threshold).sum()), int((two[cut:] <= threshold).sum())]
        fpr, fnr = upper_limit(errors, counted, level)
        return Attack(threshold, float(fpr), float(fnr))

    faultless = upper_limit(0, counted, (1 - confidence) * _SHARES["mu"] / 2)
    return Evidence(
        # of thresholds that look alike the one with more errors is the safer choice: few errors are mostly luck
        attack(_mu, _SHARES["mu"], cut, _SHY),
        attack(lambda fpr, fnr: _epsilon(fpr, fnr, delta), _SHARES["epsilon"], counted),
        delta,
        confidence,
        len(one),
        float(_mu(faultless, faultless)),
    )


def _threshold(one: Array, two: Array, planned: int, level: float, goal: Callable[[Array, Array], Array]) -> float:
    """Chooses the threshold that would do best if so many runs as are planned had the error rates of these."""
    pooled = np.unique(np.concatenate([one, two]))
    if len(pooled) == 1:
        return float(pooled[0])
    between = pooled[:-1] / 2 + pooled[1:] / 2
    between = between[np.unique(np.linspace(0, len(between) - 1, _CANDIDATES).astype(int))]
    above = len(one) - np.searchsorted(np.sort(one), between, side="right")
    below = np.searchsorted(np.sort(two), between, side="right")
    scale = planned / len(one)
    worth = goal(upper_limit(above * scale, planned, level), upper_limit(below * scale, planned, level))
    best = np.flatnonzero(worth >= worth.max() - 1e-9)
    return float(between[best[len(best) // 2]])  # the middle one, where several separate the runs
