r"""Lower bounds on mu and epsilon from an attack, and the claim beside them.

The bounds follow from the scores of the attack.

The attack returns one score per run; above a threshold it names the second of two neighbouring data
sets. FPR and FNR are its error rates. No test of a :math:`\mu`-GDP mechanism has :math:`\Phi^{-1}(1
- FPR) - \Phi^{-1}(FNR) > \mu` (Dong2022). No test of an :math:`(\varepsilon, \delta)`-DP mechanism
has :math:`FNR < 1 - \delta - e^\varepsilon FPR`, or the same with both rates exchanged (Wasserman
and Zhou 2010, Theorem 2.4). Both decrease in the rates, so the upper limits of Clopper and Pearson
(1934) on the rates, exact for independent runs, give lower bounds. The threshold is chosen on runs
that are not counted afterwards.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from dpswd._validate import array, probability
from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.errors import InputError
from dpswd.report.gdp import TradeOff

Array = NDArray[np.float64]

# Fewest runs per data set of which bounds are computed.
MIN_TRIALS = 50
# Part of the runs on which the threshold is chosen; they are not counted afterwards.
_PART_FOR_THRESHOLD = 0.15
# Number of thresholds that are compared.
_N_CANDIDATES = 400
# Factor on the level at which thresholds are compared: with few errors, one threshold is better
# than another mostly by chance, and a strict level prefers those with more errors.
_CAUTION = 1e-4
# Scores and error rates are kept away from infinity and zero by these.
_LARGEST_SCORE = 1e300
_SMALLEST_RATE = 1e-300


def upper_limit(errors: ArrayLike, trials: int, level: float) -> Array:
    """Compute the Clopper-Pearson upper limit of an error rate.

    The rate exceeds the limit with probability at most ``level``.
    """
    errors = np.asarray(errors)
    successes = np.maximum(trials - errors, 1)
    limit = stats.beta.isf(level, errors + 1, successes)
    return np.where(errors >= trials, 1.0, limit)


def _mu(fpr: ArrayLike, fnr: ArrayLike) -> Array:
    """Return mu of the Gaussian trade-off curve through a point (fpr, fnr)."""
    return np.asarray(stats.norm.isf(fpr) - stats.norm.ppf(fnr), dtype=float)


def mu_lower_bound(fpr: float, fnr: float) -> float:
    """Return the lower bound on mu, at least 0, from the error rates of a test."""
    return max(0.0, float(_mu(fpr, fnr)))


def epsilon_lower_bound(fpr: float, fnr: float, delta: float) -> float:
    """Return the lower bound on epsilon at ``delta`` from error rates of a test.

    The bound is at least 0.
    """
    ratio = max((1 - delta - fnr) / fpr, (1 - delta - fpr) / fnr)
    return math.log(max(1.0, ratio))


@dataclass(frozen=True)
class Evidence:
    """Result of an attack: one test, with its error limits and bounds.

    All of them hold together with probability ``confidence``.

    Attributes:
        mu_lower: Lower bound on mu.
        epsilon_lower: Lower bound on epsilon at ``delta``.
        fpr: Upper limit of the false-positive rate.
        fnr: Upper limit of the false-negative rate.
        delta: Where epsilon is evaluated.
        confidence: Probability with which the bounds hold.
        trials: Runs per data set, those for choosing the threshold included.
        best_provable_mu: Bound on mu that these runs would give without a single error.
    """

    mu_lower: float
    epsilon_lower: float
    fpr: float
    fnr: float
    delta: float
    confidence: float
    trials: int
    best_provable_mu: float


def evaluate(
    first: ArrayLike, second: ArrayLike, *, delta: float = 1e-5, confidence: float = 0.99
) -> Evidence:
    """Compute lower bounds on mu and epsilon from the scores of an attack.

    Args:
        first: Scores (n,) of independent runs on the first data set, at least ``MIN_TRIALS``.
        second: Scores (n,) of as many runs on the second.
        delta: Where epsilon is evaluated.
        confidence: Probability with which the bounds hold together.

    Raises:
        InputError: If scores are too few, of different numbers, or not numbers.
    """
    probability(delta=delta, confidence=confidence)
    scores_of_first = _checked_scores(first)
    scores_of_second = _checked_scores(second)
    if scores_of_first.shape != scores_of_second.shape:
        raise InputError(
            "Expected equally many scores of both data sets, "
            f"got {scores_of_first.shape} and {scores_of_second.shape}."
        )
    n_trials = len(scores_of_first)
    n_for_threshold = math.ceil(_PART_FOR_THRESHOLD * n_trials)
    n_counted = n_trials - n_for_threshold
    level = (1 - confidence) / 2  # each of the two limits fails with this probability
    threshold = _threshold(
        scores_of_first[:n_for_threshold], scores_of_second[:n_for_threshold], level * _CAUTION
    )
    false_positives = int((scores_of_first[n_for_threshold:] > threshold).sum())
    false_negatives = int((scores_of_second[n_for_threshold:] <= threshold).sum())
    fpr = float(upper_limit(false_positives, n_counted, level))
    fnr = float(upper_limit(false_negatives, n_counted, level))
    without_error = float(upper_limit(0, n_counted, level))
    return Evidence(
        mu_lower=mu_lower_bound(fpr, fnr),
        epsilon_lower=epsilon_lower_bound(fpr, fnr, delta),
        fpr=fpr,
        fnr=fnr,
        delta=delta,
        confidence=confidence,
        trials=n_trials,
        best_provable_mu=mu_lower_bound(without_error, without_error),
    )


def _checked_scores(values: ArrayLike) -> Array:
    """Return finite scores (n,).

    An :class:`InputError` is raised if they are too few or not numbers.
    """
    scores = np.clip(array("scores", values), -_LARGEST_SCORE, _LARGEST_SCORE)
    if scores.ndim != 1 or len(scores) < MIN_TRIALS:
        raise InputError(
            f"Expected equally many scores of both data sets, at least {MIN_TRIALS}, "
            f"got {scores.shape}."
        )
    if np.isnan(scores).any():
        raise InputError("Expected scores that are numbers, got nan; check the attack.")
    return np.asarray(scores)


def _threshold(one: Array, two: Array, level: float) -> float:
    """Return the threshold with the best bound on mu at ``level``.

    At a strict level, the one with more errors is preferred among similar thresholds: few errors
    are mostly chance. Where several thresholds are equally good, the middle one is returned.
    """
    pooled = np.unique(np.concatenate([one, two]))
    if len(pooled) == 1:
        return float(pooled[0])
    between = pooled[:-1] / 2 + pooled[1:] / 2
    places = np.linspace(0, len(between) - 1, _N_CANDIDATES).astype(int)
    candidates = between[np.unique(places)]
    false_positives = len(one) - np.searchsorted(np.sort(one), candidates, side="right")
    false_negatives = np.searchsorted(np.sort(two), candidates, side="right")
    fpr = upper_limit(false_positives, len(one), level)
    fnr = upper_limit(false_negatives, len(two), level)
    bounds = _mu(fpr, fnr)
    best = np.flatnonzero(bounds >= bounds.max() - 1e-9)
    middle = best[len(best) // 2]
    return float(candidates[middle])


@dataclass(frozen=True)
class Claim:
    """Claim of an accountant: no test has error rates below the trade-off curve.

    Attributes:
        mu: Upper bound on mu.
        epsilon: Upper bound on epsilon at the delta of the claim.
        curve: Trade-off curve, which is stronger than mu wherever mu is not tight.
        assumptions: What the claim rests on.
    """

    mu: float
    epsilon: float
    curve: TradeOff
    assumptions: tuple[str, ...]

    @classmethod
    def of(cls, account: PrivacyAccountant, delta: float) -> "Claim":
        """Return the claim at ``delta``.

        Bounds that spend a tail probability take half of ``delta``.
        """
        guarantee = account.guarantee(delta)
        curve = TradeOff.of(account.resolve(delta))
        return cls(guarantee["mu"], guarantee["epsilon"], curve, guarantee["assumptions"])

    def mu_at(self, fpr: float) -> float:
        """Return mu of the Gaussian curve that meets the claimed one at ``fpr``.

        It is at most :attr:`mu`.
        """
        fnr = max(float(self.curve.fnr([fpr])[0]), _SMALLEST_RATE)
        return min(self.mu, mu_lower_bound(fpr, fnr))

    def is_consistent_with(self, evidence: Evidence) -> bool:
        """Whether ``evidence`` does not refute the claim.

        No bound may exceed the claim, and the test must lie on or above the curve.
        """
        return (
            evidence.mu_lower <= self.mu
            and evidence.epsilon_lower <= self.epsilon
            and evidence.fnr >= float(self.curve.fnr([evidence.fpr])[0])
        )
