"""Calibration: the least noise that keeps a budget, by a search in ln sigma on a coarse and then on the fine grid."""

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
from dp_accounting import get_sigma_gaussian
from scipy import optimize

from dpswd._validate import positive, probability
from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.pld import COARSE, POINTS_PER_DEVIATION, LossTooLargeError
from dpswd.errors import InputError
from dpswd.mechanism import Mechanism

__all__ = ["calibrate_sigma", "mu_of_epsilon"]

_SLACK = 3e-4  # part of the budget that may stay unspent; 0.5 % is promised
_REACH = 40.0  # in ln sigma, around the first guess


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
    """Find the least sigma for which ``n_releases`` releases, together with ``spent``, keep a budget.

    Formal guarantee:
        For the returned sigma the accountant computes at most the budget, and at least 99.5 % of it.

    Args:
        mechanism: What is to be released; its ``sigma`` is ignored.
        sample_size: Number N of records.
        n_releases: Number T of releases.
        target_epsilon: Budget, together with ``target_delta``.
        target_delta: See ``target_epsilon``.
        target_mu: Budget of Gaussian differential privacy. It holds at error rates above 1e-10; at all of them if the
            composition is exactly Gaussian.
        accountant: ``"pld"`` or ``"rdp"``.
        spent: Releases already made, or planned with noise of their own, that share the budget.

    Returns:
        sigma, in the units of what is released.

    Raises:
        InputError: If a target is missing, given twice or out of range; if ``spent`` leaves nothing; if the budget
            holds without noise; or if a bound has no ``failure_prob`` and the target is not epsilon.

    Example:
        >>> from dpswd.mechanism import ProjectionMechanism
        >>> mechanism = ProjectionMechanism(dim=784, n_projections=200, sigma=1.0, batch_size=128)
        >>> sigma = calibrate_sigma(
        ...     mechanism, sample_size=10_000, n_releases=7_900, target_epsilon=10, target_delta=1e-5)
        >>> round(sigma, 2)
        0.49
    """

    def account(sigma: float) -> PrivacyAccountant:
        candidate = dataclasses.replace(mechanism, sigma=sigma), sample_size, n_releases
        return PrivacyAccountant.from_groups(
            [*(spent.history if spent else []), candidate], accountant
        )

    def spend(sigma: float, points: int) -> float:
        if target_delta is None:
            return account(sigma).get_mu_and_regret(points=points)[0]
        return account(sigma).get_epsilon(target_delta, points=points)

    targets = {
        "target_epsilon": target_epsilon,
        "target_delta": target_delta,
        "target_mu": target_mu,
    }
    given = [name for name, value in targets.items() if value is not None]
    if target_epsilon is not None and target_delta is not None and target_mu is None:
        positive(target_epsilon=target_epsilon)
        probability(target_delta=target_delta)
        mu = mu_of_epsilon(target_epsilon, target_delta)
    elif target_mu is not None and len(given) == 1:
        positive(target_mu=target_mu)
        mu = target_mu
    else:
        raise InputError(
            f"Expected (target_epsilon, target_delta) or target_mu, got {', '.join(given) or 'none'}."
        )
    part = (
        account(1.0).resolve(target_delta or 0.5).parts()[-1]
    )  # with sigma 1: its scale is the unit sensitivity
    amplified = mu / (part.rate * math.sqrt(n_releases))
    per_release = math.log1p(amplified**2) if part.rate < 1 else amplified**2
    guess = math.log(part.scale) + 0.5 * math.log(part.law.mean / per_release)
    return _search(spend, float(target_epsilon or mu), guess)


def mu_of_epsilon(epsilon: float, delta: float) -> float:
    """Return the mu of a Gaussian mechanism with this budget.

    Raises:
        InputError: If no mu between 1e-11 and 20,000 has this budget.

    Example:
        >>> round(mu_of_epsilon(1.0, 1e-5), 3)
        0.268
    """
    with np.errstate(divide="ignore"):  # of extreme budgets
        mu = 1 / float(get_sigma_gaussian(epsilon, delta))
    if not 1e-11 < mu < 2e4:
        raise InputError(
            f"Expected a less extreme budget, got epsilon={epsilon:g} and delta={delta:g}."
        )
    return mu


def _search(spend: Callable[[float, int], float], target: float, guess: float) -> float:
    """Find sigma with ``(1 - slack) target <= spend(sigma) <= target``, starting with ``guess`` of ln sigma."""

    @functools.cache
    def excess(log_sigma: float, points: int) -> float:
        try:
            value = spend(math.exp(log_sigma), points)
        except LossTooLargeError:
            value = math.inf
        found = min(max(math.log(max(value, 1e-300) / target), -50.0), 50.0) + _SLACK / 2
        return 0.0 if abs(found) <= _SLACK / 2 else found  # the solver stops at 0

    too_low = InputError(
        f"Expected a budget that noise can keep, got {target:g} at most; raise the target."
    )
    too_high = InputError(
        f"Expected a budget that only noise can keep, got a target of {target:g} of which less is spent at every sigma "
        "(as when target_delta exceeds the probability that a record is read at all); lower the target."
    )
    for points, stride in ((COARSE, 0.1), (POINTS_PER_DEVIATION, 0.01)):
        start = near = far = guess
        direction = 1 if excess(start, points) > 0 else -1  # towards more noise, or less
        while direction * excess(far, points) > 0:
            near, far, stride = far, far + direction * stride, 2 * stride
            if abs(far - start) > _REACH:
                raise too_low if direction > 0 else too_high
        guess = float(optimize.brentq(excess, near, far, args=(points,), xtol=1e-12))
    if excess(guess, POINTS_PER_DEVIATION):
        raise too_high
    return math.exp(guess)
