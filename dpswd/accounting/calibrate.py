"""Calibration: the least noise that keeps a budget.

The search runs in ln sigma, first on a coarse grid of the accountant and then on its fine one.
"""

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable

import numpy as np
from dp_accounting import get_epsilon_gaussian, get_sigma_gaussian
from scipy import optimize

from dpswd._validate import positive, probability
from dpswd.accounting.accountant import PrivacyAccountant, ReleaseGroup, check_mechanism
from dpswd.accounting.pld import COARSE, POINTS_PER_DEVIATION, LossTooLargeError
from dpswd.errors import InputError, PrivacyWarning
from dpswd.mechanism import Mechanism

__all__ = ["calibrate_sigma", "epsilon_of_mu", "mu_of_epsilon", "planning_mu"]

# Part of the budget that may stay unspent; 0.5 % is promised.
_SLACK = 3e-4
# Distance in ln sigma from the first guess at which the search ends.
_REACH = 40.0
# First strides of the search in ln sigma, by the points per deviation of the accountant's grid.
_STRIDES = {COARSE: 0.1, POINTS_PER_DEVIATION: 0.01}
# Precision of the solution in ln sigma. That of the coarse grid only starts the next search. The
# solver stops before, within the slack, unless the accountant's number jumps over it.
_PRECISIONS = {COARSE: 1e-4, POINTS_PER_DEVIATION: 1e-5}
# Precision in ln sigma where the accountant's number jumps over the budget.
_JUMP_WIDTH = 1e-4
# Smallest and largest mu that a budget is converted to.
_LEAST_MU = 1e-11
_LARGEST_MU = 2e4
# What a run without noise is planned for, and the largest mu that a run with noise may have: the
# accountant composes mean privacy losses mu^2 / 2 below 1e6.
_NOISE_FREE_MU = 1e3
# An epsilon that a run may have at every delta: below mu^2 / 2 of that mu.
_LARGEST_EPSILON = 450_000
# Above this epsilon the search of dp_accounting overflows.
_LARGEST_SEARCHED_EPSILON = 1e15


def calibrate_sigma(
    mechanism: Mechanism,
    *,
    sample_size: int,
    n_releases: int,
    target_epsilon: float | None = None,
    target_delta: float | None = None,
    target_mu: float | None = None,
    accountant: str = "pld",
    spent: PrivacyAccountant | None = None,
) -> float:
    """Find the least sigma that keeps a budget.

    The budget is for ``n_releases`` releases of the mechanism together with ``spent``.

    Formal guarantee:
        For the returned sigma the accountant computes at most the budget, and at least 99.5 % of
        it. It computes less where its number jumps there: to a refusal, for budgets with a mean
        privacy loss above 1e6.

    Where every sigma keeps the budget, since delta exceeds the probability that a record is read at
    all, sigma is that of releases of all records, and a :class:`~dpswd.errors.PrivacyWarning` says
    so.

    Args:
        mechanism: What is to be released; its ``sigma`` is ignored.
        sample_size: Number N of records; of units, where units are stated.
        n_releases: Number T of releases.
        target_epsilon: Budget, together with ``target_delta``.
        target_delta: See ``target_epsilon``.
        target_mu: Budget of Gaussian differential privacy. It holds at error rates above 1e-10; at
            all of them if the composition is exactly Gaussian.
        accountant: ``"pld"`` or ``"rdp"``.
        spent: Releases already made, or planned with noise of their own, that share the budget.

    Returns:
        sigma, in the units of what is released.

    Raises:
        InputError: If a target is missing, given twice or out of range; if no noise keeps the
            budget, for example because ``spent`` leaves nothing; or if a bound has no
            ``failure_prob`` and the target is not epsilon.

    Example:
        >>> from dpswd.mechanism import ProjectionMechanism
        >>> mechanism = ProjectionMechanism(dim=784, n_projections=200, sigma=1.0, batch_size=128)
        >>> sigma = calibrate_sigma(
        ...     mechanism, sample_size=10_000, n_releases=7_900,
        ...     target_epsilon=10, target_delta=1e-5)
        >>> round(sigma, 2)
        0.49
    """
    check_mechanism(mechanism)
    target = _Target.of(target_epsilon, target_delta, target_mu)
    history: tuple[ReleaseGroup, ...] = ()
    if spent is not None:
        history = tuple(spent.history)
    candidate = (dataclasses.replace(mechanism, sigma=1.0), sample_size, n_releases)
    try:
        sigma, keeps_any = _find_sigma(candidate, history, target, accountant)
    except _NoNoiseKeepsItError as error:
        raise InputError(_refusal(target, accountant, error.least, bool(history))) from None
    if keeps_any:
        warnings.warn(_needless(target, sample_size), PrivacyWarning, stacklevel=2)
    return sigma


@functools.lru_cache(maxsize=256)
def _find_sigma(
    candidate: ReleaseGroup,
    history: tuple[ReleaseGroup, ...],
    target: "_Target",
    accountant: str,
) -> tuple[float, bool]:
    """Return the least sigma, and whether every sigma keeps the budget.

    All inputs are public. The same releases with the same budget, such as those of a forecast and
    of its run, or of another seed, are calibrated once in a process.

    Args:
        candidate: The mechanism with sigma 1, so that its scale is the unit sensitivity, with the
            numbers of records and of releases.
        history: Other releases that share the budget.
        target: The budget.
        accountant: Name of the accountant.

    Raises:
        _NoNoiseKeepsItError: If no sigma keeps the budget.
    """
    mechanism, sample_size, n_releases = candidate

    def account(sigma: float) -> PrivacyAccountant:
        scaled = (dataclasses.replace(mechanism, sigma=sigma), sample_size, n_releases)
        return PrivacyAccountant.from_groups([*history, scaled], accountant)

    part = account(1.0).resolve(target.delta or 0.5).parts()[-1]
    # The search starts near a Gaussian limit of many releases: mu^2 = T q^2 (e^(mu_1^2) - 1) with
    # sampling, T mu_1^2 without, where mu_1 is that of one release of all records.
    after_sampling = target.mu / (part.rate * math.sqrt(n_releases))
    mu_1_squared = after_sampling**2
    if part.rate < 1:
        mu_1_squared = math.log1p(after_sampling**2)
    guess = math.log(part.scale) + 0.5 * math.log(part.law.mean / mu_1_squared)
    search = _Search(lambda sigma, points: target.spend(account(sigma), points), target.value)
    log_sigma = search.find(guess)
    if log_sigma is None:
        unsampled = target.mu / math.sqrt(n_releases)
        return part.scale * math.sqrt(part.law.mean) / unsampled, True
    return math.exp(log_sigma), False


def mu_of_epsilon(epsilon: float, delta: float) -> float:
    """Return the mu of a Gaussian mechanism with this budget.

    Raises:
        InputError: If no mu between 1e-11 and 1,000 has this budget.

    Example:
        >>> round(mu_of_epsilon(1.0, 1e-5), 3)
        0.268
    """
    mu = _unbounded_mu(epsilon, delta)
    if mu <= _LEAST_MU:
        raise InputError(
            f"Expected a budget that allows a release, got epsilon={epsilon:g} and "
            f"delta={delta:g}; choose a larger epsilon."
        )
    if not mu <= _NOISE_FREE_MU:
        raise InputError(
            f"Expected epsilon of at most {_LARGEST_EPSILON:,}, got epsilon={epsilon:g}; choose a "
            "smaller one, or inf, which adds no noise."
        )
    return mu


def epsilon_of_mu(mu: float, delta: float) -> float:
    """Return the epsilon of a Gaussian mechanism with this mu.

    Example:
        >>> round(epsilon_of_mu(2.0, 1e-5), 2)
        10.0
    """
    return float(get_epsilon_gaussian(1 / mu, delta))


def planning_mu(epsilon: float, delta: float) -> float:
    """Return the mu from which a run chooses what it releases.

    For epsilon = inf it is 1,000: a larger budget changes nothing that is chosen from it, and the
    numbers of all formulas stay finite.
    """
    if epsilon == math.inf:
        return _NOISE_FREE_MU
    return mu_of_epsilon(epsilon, delta)


@functools.lru_cache(maxsize=256)
def _unbounded_mu(epsilon: float, delta: float) -> float:
    """Return the mu of any budget, also beyond the limits of :func:`mu_of_epsilon`.

    It may be inaccurate there.
    """
    if epsilon > _LARGEST_SEARCHED_EPSILON:
        return math.inf
    with np.errstate(all="ignore"):  # of extreme budgets
        return 1 / float(get_sigma_gaussian(epsilon, delta))


@dataclasses.dataclass(frozen=True)
class _Target:
    """A budget: an epsilon at a delta, or a mu.

    Attributes:
        value: The epsilon or the mu that may be spent.
        delta: ``None`` for a mu.
        mu: The mu of a Gaussian mechanism with this budget, for the start of the search; that of an
            epsilon is limited to 1e-11 ... 20,000.
    """

    value: float
    delta: float | None
    mu: float

    @classmethod
    def of(cls, epsilon: float | None, delta: float | None, mu: float | None) -> "_Target":
        """Check the targets of :func:`calibrate_sigma`."""
        if epsilon is not None and delta is not None and mu is None:
            positive(target_epsilon=epsilon)
            probability(target_delta=delta)
            equivalent = min(max(_unbounded_mu(epsilon, delta), _LEAST_MU), _LARGEST_MU)
            return cls(float(epsilon), delta, equivalent)
        if mu is not None and epsilon is None and delta is None:
            positive(target_mu=mu)
            return cls(float(mu), None, mu)
        targets = {"target_epsilon": epsilon, "target_delta": delta, "target_mu": mu}
        names = [name for name, value in targets.items() if value is not None]
        raise InputError(
            "Expected (target_epsilon, target_delta) or target_mu, "
            f"got {', '.join(names) or 'none'}."
        )

    def spend(self, account: PrivacyAccountant, points: int) -> float:
        """Return what an account spends of this budget."""
        if self.delta is None:
            mu, _ = account.get_mu_and_regret(points=points)
            return mu
        return account.get_epsilon(self.delta, points=points)

    def __str__(self) -> str:
        if self.delta is None:
            return f"target_mu={self.value:g}"
        return f"target_epsilon={self.value:g} at target_delta={self.delta:g}"


def _refusal(target: _Target, accountant: str, least: float, has_spent: bool) -> str:
    """Say that no noise keeps a budget, of which at least ``least`` is spent."""
    name = "epsilon"
    if target.delta is None:
        name = "mu"
    reason = f"the {accountant} accountant computes at least {name}={least:.4g} for any sigma"
    if has_spent:
        reason = f"the other releases alone spend {name}={least:.4g}"
    return (
        f"Expected a budget that noise can keep, got {target}, but {reason}; "
        "raise the target above that."
    )


def _needless(target: _Target, sample_size: int) -> str:
    """Say that every sigma keeps a budget."""
    remedy = "Choose a smaller target_mu"
    if target.delta is not None:
        remedy = f"Choose a target_delta below 1 / N = {1 / sample_size:.2g}"
    return (
        f"Every sigma keeps {target}, since a record is so rarely read; sigma is calibrated as if "
        f"every release read all records. {remedy}."
    )


class _NoNoiseKeepsItError(Exception):
    """A budget that no sigma keeps; ``least`` is what the largest sigma spends."""

    def __init__(self, least: float) -> None:
        super().__init__()
        self.least = least


class _Search:
    """Search for the least sigma with ``spend(sigma) <= target``.

    ``spend(sigma, points)`` decreases in sigma, up to errors of rounding; it may raise
    LossTooLargeError for a small sigma.
    """

    def __init__(self, spend: Callable[[float, int], float], target: float) -> None:
        self.spend = spend
        self.target = target
        self.excess = functools.cache(self._excess)

    def find(self, guess: float) -> float | None:
        """Return ln sigma with ``(1 - slack) target <= spend(sigma) <= target``.

        The search starts with ``guess`` of ln sigma. Where ``spend`` jumps over these values, the
        smaller side of the jump is returned, and ``None`` where every sigma keeps the budget.

        Raises:
            _NoNoiseKeepsItError: If no sigma keeps the budget.
        """
        log_sigma = guess
        for points, stride in _STRIDES.items():
            near, far = self._bracket(log_sigma, points, stride)
            if far == -math.inf:
                return None
            root = optimize.brentq(self.excess, near, far, args=(points,), xtol=_PRECISIONS[points])
            log_sigma = float(root)
        if self.excess(log_sigma, POINTS_PER_DEVIATION) == 0:
            return log_sigma
        precision = _PRECISIONS[POINTS_PER_DEVIATION]
        return self._jump(log_sigma - precision, log_sigma + precision)

    def _excess(self, log_sigma: float, points: int) -> float:
        """Return ln(spend / target) minus the middle of the slack; 0 within the slack.

        The solver stops at 0.
        """
        try:
            value = self.spend(math.exp(log_sigma), points)
        except LossTooLargeError:
            value = math.inf
        log_ratio = math.log(max(value, 1e-300) / self.target)
        centred = min(max(log_ratio, -50.0), 50.0) + _SLACK / 2
        if abs(centred) <= _SLACK / 2:
            return 0.0
        return centred

    def _bracket(self, start: float, points: int, stride: float) -> tuple[float, float]:
        """Return two values of ln sigma around the solution, the one near ``start`` first.

        The second one is minus infinity where every sigma keeps the budget.

        Raises:
            _NoNoiseKeepsItError: If no sigma keeps the budget.
        """
        near = start
        far = start
        if self.excess(start, points) > 0:
            while self.excess(far, points) > 0:
                near = far
                far += stride
                stride *= 2
                if far - start > _REACH:
                    least = self.spend(math.exp(near), POINTS_PER_DEVIATION)
                    raise _NoNoiseKeepsItError(least)
        else:
            while self.excess(far, points) < 0:
                near = far
                far -= stride
                stride *= 2
                if start - far > _REACH:
                    return near, -math.inf
        return near, far

    def _jump(self, low: float, high: float) -> float:
        """Return the least ln sigma between ``low`` and ``high`` that keeps the budget."""
        while self.excess(high, POINTS_PER_DEVIATION) > 0:
            high += _JUMP_WIDTH
        while high - low > _JUMP_WIDTH:
            middle = (low + high) / 2
            if self.excess(middle, POINTS_PER_DEVIATION) > 0:
                low = middle
            else:
                high = middle
        return high
