r"""The least noise that keeps a budget: calibration to (epsilon, delta), to mu, or to a bound on attacks.

Every budget is one number that falls as sigma grows. A search in :math:`\ln\sigma` on a coarse grid of losses
is followed by the fine grid, and ends on the private side: the sigma returned has been accounted for on the
fine grid, keeps the budget, and spends at least 99.5% of it.
"""

import dataclasses
import math
from collections.abc import Callable

from gdpnum import PLDConverter
from scipy import optimize, stats

from dpswd._validate import at_least, choice, positive, probability
from dpswd.accounting import pld as pld_module
from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.rdp import MAX_ORDER, RenyiAccount
from dpswd.errors import InputError
from dpswd.mechanism import GaussianMechanism, ProjectionMechanism

__all__ = ["calibrate_sigma"]

_SLACK = 0.004  # of the budget may stay unspent; the promise is 0.5%
_REACH = 40.0  # e^40 is noise beyond anything meant
_FINE, _COARSE = pld_module.POINTS_PER_DEVIATION, pld_module.COARSE

Spend = Callable[[float, int], float]  # (sigma, grid points per deviation) -> what of the budget is spent


def calibrate_sigma(
    mechanism: ProjectionMechanism | GaussianMechanism,
    sample_size: int,
    n_releases: int,
    *,
    target_epsilon: float | None = None,
    target_delta: float | None = None,
    target_mu: float | None = None,
    target_tpr: float | None = None,
    at_fpr: float | None = None,
    accountant: str = "pld",
    spent: PrivacyAccountant | None = None,
) -> float:
    """Finds the least sigma for which ``n_releases`` releases, together with ``spent``, keep a budget.

    Formal guarantee:
        The accountant, asked about the returned sigma, answers with at most the budget and with at least
        99.5% of it.

    Args:
        mechanism: What is to be released; its ``sigma`` is ignored.
        sample_size: Number N of records.
        n_releases: Number T of releases.
        target_epsilon: Budget, together with ``target_delta``.
        target_delta: See ``target_epsilon``.
        target_mu: Budget of Gaussian differential privacy; always through the privacy loss distribution. It
            is kept at error rates above 1e-10, where ``gdpnum`` looks; below, nothing is said of mu (every
            epsilon and delta still holds). Where the composition is exactly Gaussian (every record read,
            constant S) it is kept at all of them.
        target_tpr: Largest true-positive rate that an attacker on one record may reach at false-positive rate
            ``at_fpr``; always through the privacy loss distribution.
        at_fpr: See ``target_tpr``.
        accountant: ``"pld"`` or ``"rdp"``.
        spent: Releases already made, or planned with noise of their own, that share the budget.

    Returns:
        sigma, in the units of what is released.

    Raises:
        InputError: If a target is missing, doubled or out of range, if what is spent leaves nothing, or if a
            bound spends tails, the target is not epsilon, and its ``failure_prob`` is not chosen.

    Example:
        >>> from dpswd.mechanism import ProjectionMechanism
        >>> mechanism = ProjectionMechanism(dim=784, n_projections=200, sigma=1.0, batch_size=128)
        >>> round(calibrate_sigma(mechanism, 10_000, 7_900, target_epsilon=10, target_delta=1e-5), 2)
        0.49
    """
    at_least(1, sample_size=sample_size, n_releases=n_releases)
    choice(("pld", "rdp"), accountant=accountant)
    base = PrivacyAccountant(accountant)
    base.history = list(spent.history) if spent is not None else []

    def account(sigma: float) -> PrivacyAccountant:
        candidate = dataclasses.replace(mechanism, sigma=sigma)
        return base.copy().step(candidate, sample_size=sample_size, n_releases=n_releases)

    spend: Spend
    if _epsilon_wanted(target_epsilon, target_delta, target_mu, target_tpr, at_fpr):
        assert target_epsilon is not None
        assert target_delta is not None
        target = float(target_epsilon)
        least = -math.log(target_delta) / (MAX_ORDER - 1)  # what the conversion adds at the largest order
        if accountant == "rdp" and target <= 1.01 * least:
            raise InputError(
                f"Expected target_epsilon > {1.01 * least:.2g}, the least that Renyi orders up to "
                f"{MAX_ORDER} can "
                f"show, got target_epsilon={target_epsilon!r}; use a larger one or accountant='pld'."
            )
        mu = _mu_of_epsilon(target, target_delta)
        spend = _spend_epsilon(account, target_delta)
    else:
        account(1.0)._require_failure_prob()
        if target_mu is not None:
            target = mu = float(target_mu)
            spend = _spend_mu(account)
        else:
            assert target_tpr is not None
            assert at_fpr is not None
            target, mu = float(target_tpr), float(stats.norm.isf(at_fpr) - stats.norm.isf(target_tpr))
            spend = _spend_tpr(account, at_fpr)

    resolved = account(1.0).resolve(target_delta or 0.5)
    part = resolved._parts()[-1]  # with sigma 1, so that its scale is the unit sensitivity
    amplified = mu / (part.rate * math.sqrt(n_releases))
    per_release = math.log1p(amplified**2) if part.rate < 1 else amplified**2
    guess = math.log(part.scale) + 0.5 * math.log(part.law.mean / per_release)
    return _search(spend, target, guess)


def _epsilon_wanted(
    epsilon: float | None, delta: float | None, mu: float | None, tpr: float | None, fpr: float | None
) -> bool:
    """Checks that one budget is given, completely; says whether it is (epsilon, delta)."""
    if [epsilon is not None or delta is not None, mu is not None, tpr is not None or fpr is not None].count(True) != 1:
        raise InputError(
            "Expected one budget, (target_epsilon, target_delta) or target_mu or (target_tpr, at_fpr), got "
            f"target_epsilon={epsilon!r}, target_delta={delta!r}, target_mu={mu!r}, target_tpr={tpr!r}, "
            f"at_fpr={fpr!r}."
        )
    if mu is not None:
        positive(target_mu=mu)
        return False
    if epsilon is not None or delta is not None:
        positive(target_epsilon=epsilon)
        probability(target_delta=delta)
        return True
    probability(target_tpr=tpr, at_fpr=fpr)
    assert tpr is not None
    assert fpr is not None
    if tpr <= fpr:
        raise InputError(
            f"Expected target_tpr > at_fpr, got target_tpr={tpr:g} and at_fpr={fpr:g}; guessing reaches at_fpr."
        )
    return False


def _spend_epsilon(account: Callable[[float], PrivacyAccountant], delta: float) -> Spend:
    left = account(1.0).resolve(delta)._left_of(delta)  # raises where the tails alone use up delta

    def spend(sigma: float, points: int) -> float:
        candidate = account(sigma).resolve(delta)
        if candidate.accountant == "rdp":
            return RenyiAccount(candidate._parts()).get_epsilon(left)
        return float(pld_module.compose(candidate._parts(), points=points).get_epsilon_for_delta(left))

    return spend


def _spend_mu(account: Callable[[float], PrivacyAccountant]) -> Spend:
    def spend(sigma: float, points: int) -> float:
        candidate = account(sigma)
        if points == _FINE:
            return candidate.get_mu_and_regret()[0]
        loss = pld_module.compose(candidate._parts(), points=points, infinity_mass=candidate._pld_tail)
        try:
            return float(PLDConverter(loss).get_mu())
        except ValueError:  # both error rates vanish everywhere
            return math.inf

    return spend


def _spend_tpr(account: Callable[[float], PrivacyAccountant], fpr: float) -> Spend:
    def spend(sigma: float, points: int) -> float:
        candidate = account(sigma)
        loss = pld_module.compose(candidate._parts(), points=points, infinity_mass=candidate._pld_tail)
        return 1 - float(PLDConverter(loss).get_beta(fpr))

    return spend


def _mu_of_epsilon(epsilon: float, delta: float) -> float:
    """The mu of a Gaussian mechanism with this budget, to a few digits: where the search starts."""

    def gap(log_mu: float) -> float:
        return math.log(float(pld_module.gaussian_delta(math.exp(log_mu), epsilon)) + 1e-300) - math.log(delta)

    try:
        return math.exp(optimize.brentq(gap, -25, 10, xtol=1e-3))
    except ValueError:
        return 1.0


def _search(spend: Spend, target: float, guess: float) -> float:
    """Finds sigma with ``(1 - slack) target <= spend(sigma) <= target``."""

    def gap(log_sigma: float, points: int) -> float:
        try:
            value = spend(math.exp(log_sigma), points)
        except pld_module.LossTooLargeError:
            value = math.inf
        return min(max(math.log(max(value, 1e-300) / target), -50.0), 50.0)

    low = high = guess
    for direction in (1, -1):  # first up until the budget is kept, then down until it is not
        stride = 0.1
        while (gap(high, _COARSE) > 0) if direction == 1 else (gap(low, _COARSE) <= 0):
            if direction == 1:
                low, high = high, high + stride
            else:
                high, low = low, low - stride
            stride *= 2
            if abs((high if direction == 1 else low) - guess) > _REACH:
                raise InputError(
                    f"Expected a budget that some noise uses up exactly, got a target of {target:g}, of "
                    "which any noise spends "
                    f"{'more' if direction == 1 else 'less'}; raise the target or release less."
                )
        if direction == 1 and low < high:
            break
    root = float(optimize.brentq(gap, low, high, args=(_COARSE,), xtol=5e-4))

    slope = (gap(root + 0.05, _COARSE) - gap(root - 0.05, _COARSE)) / 0.1
    low, high, point = -math.inf, math.inf, root
    for _ in range(60):
        value = gap(point, _FINE)
        if -_SLACK <= value <= 0:
            return math.exp(point)
        low, high = (point, high) if value > 0 else (low, point)
        newton = point + (-_SLACK / 3 - value) / slope if slope < 0 else math.nan
        inside = low < newton < high
        if math.isfinite(low) and math.isfinite(high):
            newton = newton if inside and abs(newton - point) < 0.9 * (high - low) else (low + high) / 2
        point = newton if math.isfinite(newton) else point + math.copysign(0.05, value)
    raise InputError(
        f"Expected a budget that the search can meet within 0.5%, got a target of {target:g}; change it slightly."
    )
