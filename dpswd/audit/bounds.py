r"""Lower bounds on mu and epsilon from the scores of an attack, and the claim that they are compared with.

The attack returns one score per run; above a threshold it names the second of two neighbouring data sets. FPR and FNR
are its error rates. No test of a :math:`\mu`-GDP mechanism has :math:`\Phi^{-1}(1 - FPR) - \Phi^{-1}(FNR) > \mu`
(Dong2022). No test of an :math:`(\varepsilon, \delta)`-DP mechanism has :math:`FNR < 1 - \delta - e^\varepsilon FPR`,
or the same with both rates exchanged (Wasserman and Zhou 2010, Theorem 2.4). Both decrease in the rates, so the upper
limits of Clopper and Pearson (1934) on the rates, exact for independent runs, give lower bounds. The threshold is
chosen on runs that are not counted afterwards.
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

MIN_TRIALS = 50
_THRESHOLD_SHARE = 0.15  # of the runs, for choosing the threshold
_CANDIDATES = 400  # thresholds to choose from
_CAUTION = 1e-4  # factor on the confidence level at which thresholds are compared


def upper_limit(errors: ArrayLike, trials: int, level: float) -> Array:
    """Compute the Clopper-Pearson limit, which an error rate exceeds with probability at most ``level``."""
    errors = np.asarray(errors)
    return np.where(
        errors >= trials, 1.0, stats.beta.isf(level, errors + 1, np.maximum(trials - errors, 1))
    )


def _mu(fpr: ArrayLike, fnr: ArrayLike) -> Array:
    return np.asarray(stats.norm.isf(fpr) - stats.norm.ppf(fnr), dtype=float)


def lower_bounds(fpr: float, fnr: float, delta: float) -> tuple[float, float]:
    """Compute lower bounds, at least 0, on mu, and on epsilon at ``delta``, from the error rates of a test."""
    ratio = max((1 - delta - fnr) / fpr, (1 - delta - fpr) / fnr)
    return max(0.0, float(_mu(fpr, fnr))), math.log(max(1.0, ratio))


@dataclass(frozen=True)
class Evidence:
    """Result of an attack: one test, whose two error limits and bounds hold together with ``confidence``."""

    mu_lower: float
    epsilon_lower: float  # at ``delta``
    fpr: float  # at most
    fnr: float  # at most
    delta: float
    confidence: float
    trials: int  # runs per data set, those for choosing the threshold included
    best_provable_mu: float  # bound on mu that these runs would give without a single error


def evaluate(
    first: ArrayLike, second: ArrayLike, *, delta: float = 1e-5, confidence: float = 0.99
) -> Evidence:
    """Compute lower bounds, which hold together with ``confidence``, from the scores (n,) of independent runs."""
    probability(delta=delta, confidence=confidence)
    one, two = (np.clip(array("scores", scores), -1e300, 1e300) for scores in (first, second))
    if one.ndim != 1 or one.shape != two.shape or len(one) < MIN_TRIALS:
        raise InputError(
            f"Expected equally many scores of both data sets, at least {MIN_TRIALS}, got {one.shape} and {two.shape}."
        )
    if np.isnan(one).any() or np.isnan(two).any():
        raise InputError("Expected scores that are numbers, got nan; check the attack.")
    cut = math.ceil(_THRESHOLD_SHARE * len(one))
    counted, level = len(one) - cut, (1 - confidence) / 2
    threshold = _threshold(one[:cut], two[:cut], level * _CAUTION)
    errors = [int((one[cut:] > threshold).sum()), int((two[cut:] <= threshold).sum())]
    fpr, fnr, faultless = upper_limit([*errors, 0], counted, level).tolist()
    best, _ = lower_bounds(faultless, faultless, delta)
    return Evidence(*lower_bounds(fpr, fnr, delta), fpr, fnr, delta, confidence, len(one), best)


def _threshold(one: Array, two: Array, level: float) -> float:
    """Return the threshold with the best bound on mu at ``level``.

    At a strict level, the one with more errors is preferred among similar thresholds: few errors are mostly chance.
    """
    pooled = np.unique(np.concatenate([one, two]))
    if len(pooled) == 1:
        return float(pooled[0])
    between = pooled[:-1] / 2 + pooled[1:] / 2
    between = between[np.unique(np.linspace(0, len(between) - 1, _CANDIDATES).astype(int))]
    above = len(one) - np.searchsorted(np.sort(one), between, side="right")
    below = np.searchsorted(np.sort(two), between, side="right")
    value = _mu(upper_limit(above, len(one), level), upper_limit(below, len(two), level))
    best = np.flatnonzero(value >= value.max() - 1e-9)
    return float(between[best[len(best) // 2]])  # the middle one, where several separate the runs


@dataclass(frozen=True)
class Claim:
    """Claim of an accountant: no test has error rates below the trade-off curve."""

    mu: float
    epsilon: float
    curve: TradeOff  # stronger than mu wherever mu is not tight
    assumptions: list[str]

    @classmethod
    def of(cls, account: PrivacyAccountant, delta: float) -> "Claim":
        """Return the claim at ``delta``, of which bounds that spend a tail probability take half."""
        facts = account.guarantee(delta)
        return cls(
            facts["mu"], facts["epsilon"], TradeOff.of(account.resolve(delta)), facts["assumptions"]
        )

    def mu_at(self, fpr: float) -> float:
        """Return mu of the Gaussian curve through the claimed curve at ``fpr``, at most :attr:`mu`."""
        fnr = max(float(self.curve.fnr([fpr])[0]), 1e-300)
        return min(self.mu, max(0.0, float(_mu(fpr, fnr))))

    def is_consistent_with(self, evidence: Evidence) -> bool:
        """Whether no bound in ``evidence`` exceeds the claim, and its test lies on or above the curve."""
        return (
            evidence.mu_lower <= self.mu
            and evidence.epsilon_lower <= self.epsilon
            and evidence.fnr >= float(self.curve.fnr([evidence.fpr])[0])
        )
