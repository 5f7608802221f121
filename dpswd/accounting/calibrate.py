r"""Calibration: the least noise that keeps a budget.

The part of a budget that is spent decreases with sigma. A search in :math:`\ln\sigma` on a coarse grid of losses is
confirmed on the fine grid: the returned sigma keeps the budget there and spends at least 99.5 % of it.
"""

import dataclasses
import math
from collections.abc import Callable

from gdpnum import PLDConverter
from scipy import optimize

from dpswd._validate import at_least, choice, positive, probability
from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.pld import COARSE, POINTS_PER_DEVIATION, LossTooLargeError, gaussian_delta
from dpswd.accounting.rdp import MAX_ORDER, RenyiAccount
from dpswd.errors import InputError
from dpswd.mechanism import Mechanism

__all__ = ["calibrate_sigma", "mu_of_epsilon"]

_SLACK = 0.004  # part of the budget that may stay unspent; 0.5 % is promised
_REACH = 40.0  # in ln sigma, around the first guess

Account = Callable[[float], PrivacyAccountant]  # of sigma
Spend = Callable[[float, int], float]  # (sigma, grid points per deviation) -> epsilon or mu spent


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
    at_least(1, sample_size=sample_size, n_releases=n_releases)
    choice(("pld", "rdp"), accountant=accountant)

    def account(sigma: float) -> PrivacyAccountant:
        candidate = dataclasses.replace(mechanism, sigma=sigma), sample_size, n_releases
        return PrivacyAccountant.from_groups([*(spent.history if spent else []), candidate], accountant)

    targets = {"target_epsilon": target_epsilon, "target_delta": target_delta, "target_mu": target_mu}
    target, mu, spend = _target({name: value for name, value in targets.items() if value is not None}, account)
    resolved = account(1.0).resolve(target_delta or 0.5)
    part = resolved.parts()[-1]  # with sigma 1: its scale is the unit sensitivity
    amplified = mu / (part.rate * math.sqrt(n_releases))
    per_release = math.log1p(amplified**2) if part.rate < 1 else amplified**2
    guess = math.log(part.scale) + 0.5 * math.log(part.law.mean / per_release)
    return _search(spend, target, guess)


def _target(given: dict[str, float], account: Account) -> tuple[float, float, Spend]:
    """Return the number to reach, the mu of a Gaussian mechanism that has it, and what a sigma spends of it."""
    if set(given) == {"target_epsilon", "target_delta"}:
        epsilon, delta = given.values()
        positive(target_epsilon=epsilon)
        probability(target_delta=delta)
        return float(epsilon), mu_of_epsilon(float(epsilon), delta), _spend_epsilon(account, epsilon, delta)
    if set(given) == {"target_mu"}:
        positive(**given)
        return float(given["target_mu"]), float(given["target_mu"]), _spend_mu(account)
    raise InputError(f"Expected (target_epsilon, target_delta) or target_mu, got {', '.join(given) or 'none'}.")


def _spend_epsilon(account: Account, epsilon: float, delta: float) -> Spend:
    resolved = account(1.0).resolve(delta)
    least = -1.01 * math.log(delta) / (MAX_ORDER - 1)  # what the conversion adds at the largest order
    if resolved.accountant == "rdp" and epsilon <= least:
        raise InputError(
            f"Expected target_epsilon > {least:.2g}, the least that Renyi orders can bound, got {epsilon!r}; use 'pld'."
        )
    resolved.check_tail(delta)
    tail = resolved.tail

    def spend(sigma: float, points: int) -> float:
        candidate = account(sigma).resolve(delta)
        if candidate.accountant == "rdp":
            return RenyiAccount(candidate.parts()).get_epsilon(delta - tail)
        return float(candidate.pld(points=points).get_epsilon_for_delta(delta))

    return spend


def _spend_mu(account: Account) -> Spend:
    def spend(sigma: float, points: int) -> float:
        candidate = account(sigma)
        if points == POINTS_PER_DEVIATION or candidate.gaussian_mu is not None:
            return candidate.get_mu_and_regret()[0]
        try:
            return float(PLDConverter(candidate.pld(points=points)).get_mu())
        except (ValueError, AssertionError) as error:  # both error rates vanish everywhere
            if isinstance(error, InputError) and not isinstance(error, LossTooLargeError):
                raise
            return math.inf

    return spend


def mu_of_epsilon(epsilon: float, delta: float) -> float:
    """Return the mu of a Gaussian mechanism with this budget.

    Raises:
        InputError: If no mu between e^-25 and e^10 has this budget.

    Example:
        >>> round(mu_of_epsilon(1.0, 1e-5), 3)
        0.268
    """

    def gap(log_mu: float) -> float:
        return math.log(float(gaussian_delta(math.exp(log_mu), epsilon)) + 1e-300) - math.log(delta)

    try:
        return math.exp(optimize.brentq(gap, -25, 10, xtol=1e-10))
    except ValueError:
        raise InputError(f"Expected a less extreme budget, got epsilon={epsilon:g} and delta={delta:g}.") from None


def _search(spend: Spend, target: float, guess: float) -> float:
    """Find sigma with ``(1 - slack) target <= spend(sigma) <= target``."""

    def gap(log_sigma: float, points: int) -> float:
        try:
            value = spend(math.exp(log_sigma), points)
        except LossTooLargeError:
            value = math.inf
        return min(max(math.log(max(value, 1e-300) / target), -50.0), 50.0)

    low = high = guess
    stride = 0.1
    while gap(high, COARSE) > 0:  # up until the budget is kept
        low, high, stride = high, high + stride, 2 * stride
        if high - guess > _REACH:
            raise InputError(f"Expected a budget that noise can keep, got {target:g} at most; raise the target.")
    if low == high:
        while gap(low, COARSE) <= 0:  # down until it is not
            high, low, stride = low, low - stride, 2 * stride
            if guess - low > _REACH:
                raise _no_noise_needed(target)
    root = float(optimize.brentq(gap, low, high, args=(COARSE,), xtol=5e-4))

    fine = POINTS_PER_DEVIATION
    slope = (gap(root + 0.05, COARSE) - gap(root - 0.05, COARSE)) / 0.1
    low, high, point = -math.inf, math.inf, root
    for _ in range(60):
        value = gap(point, fine)
        if -_SLACK <= value <= 0:
            return math.exp(point)
        low, high = (point, high) if value > 0 else (low, point)
        if high - low < 1e-12:
            break
        newton = point + (-_SLACK / 3 - value) / slope if slope < 0 else math.nan
        inside = low < newton < high
        if math.isfinite(low) and math.isfinite(high):
            newton = newton if inside and abs(newton - point) < 0.9 * (high - low) else (low + high) / 2
        point = newton if math.isfinite(newton) else point + math.copysign(0.05, value)
    raise _no_noise_needed(target)


def _no_noise_needed(target: float) -> InputError:
    """The error for a budget that holds down to noise for which no loss can be computed."""
    return InputError(
        f"Expected a budget that only noise can keep, got a target of {target:g} of which less is spent at every sigma "
        "(as when target_delta exceeds the probability that a record is read at all); lower the target."
    )
