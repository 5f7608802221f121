r"""Guarantee of a ledger, computed once more with ``dp_accounting``.

It follows from the plan alone. A reviewer who has the ledger of a run needs no number that the run
states. Releases of all records with a constant sensitivity compose to one Gaussian mechanism with
:math:`\mu^2 = \sum_i T_i \Delta_i^2 / \sigma_i^2` (Dong2022, Corollary 3.3), whose privacy loss
distribution is ``dp_accounting``'s. Subsets and random sensitivities, which ``dp_accounting`` has
no mechanism for, enter it as distributions of :mod:`dpswd.accounting.pld`.

The trade-off curve follows from the privacy profile :math:`\delta(\varepsilon)`. Every attack with
false-positive rate :math:`\alpha` has a false-negative rate of at least

.. math:: f(\alpha) = \sup_{\varepsilon \ge 0} \max\{1 - \delta(\varepsilon) - e^\varepsilon \alpha,
          \; e^{-\varepsilon} (1 - \delta(\varepsilon) - \alpha)\}

(Gomez2025, Corollary 2.8). It is evaluated on a grid, which only makes the bound weaker.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from numpy.typing import NDArray
from scipy import stats

from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.ledger import Ledger

__all__ = ["CURVE_FPR", "Recomputed", "recompute"]

# False-positive rates of the curve, those of a report.
CURVE_FPR = tuple(float(f"1e-{n}") for n in range(10, 0, -1))

BY_DISTRIBUTION = "dp_accounting: privacy loss distributions of subsets or random sensitivities"

_SPACING = 1e-3  # of the losses of a Gaussian mechanism, in their standard deviations
_N_EPSILONS = 4001  # at which the privacy profile is evaluated
_LEAST_DELTA = 1e-12  # the profile ends there
_N_RATES = 2001  # false-positive rates at which mu is evaluated
_LEAST_RATE = 1e-10  # of both errors, for mu

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Recomputed:
    """Numbers of a guarantee, each an upper bound.

    Attributes:
        epsilon: At ``delta``; infinite where nothing is bounded.
        delta: The delta of the budget.
        mu: Least mu of Gaussian differential privacy at error rates above 1e-10; infinite where
            no mu holds.
        fnr: Least false-negative rates of any attack, at the rates of :data:`CURVE_FPR`.
        method: How the numbers were computed.
    """

    epsilon: float
    delta: float
    mu: float
    fnr: tuple[float, ...]
    method: str


def by_gaussian(n_releases: int) -> str:
    """Say how the numbers of Gaussian releases are computed.

    Example:
        >>> by_gaussian(4)
        'dp_accounting: 4 Gaussian releases, which together are one Gaussian mechanism'
    """
    if n_releases == 1:
        return "dp_accounting: one Gaussian mechanism"
    releases = f"{n_releases:,} Gaussian releases"
    return f"dp_accounting: {releases}, which together are one Gaussian mechanism"


def recompute(ledger: Ledger) -> Recomputed:
    """Return the guarantee of all releases that count in a ledger.

    These are the plan, or the releases made where they exceed the plan.

    Raises:
        InputError: If the ledger plans no release, or no bound holds at its delta.
    """
    groups = ledger.planned()
    accountant = PrivacyAccountant.from_groups(groups, "pld").resolve(ledger.delta)
    mu = accountant.gaussian_mu
    method = by_gaussian(sum(count for _, _, count in groups))
    if mu == math.inf:
        return Recomputed(math.inf, ledger.delta, math.inf, (0.0,) * len(CURVE_FPR), method)
    if mu is None:
        loss = accountant.pld()
        method = BY_DISTRIBUTION
    else:
        loss = privacy_loss_distribution.from_gaussian_mechanism(
            1 / mu, value_discretization_interval=_SPACING * mu
        )
    curve = _Curve(loss)
    if mu is None:
        mu = curve.mu()
    return Recomputed(
        epsilon=float(loss.get_epsilon_for_delta(ledger.delta)),
        delta=ledger.delta,
        mu=mu,
        fnr=tuple(curve.fnr(CURVE_FPR).tolist()),
        method=method,
    )


class _Curve:
    """Trade-off curve of a privacy loss distribution."""

    def __init__(self, loss: PrivacyLossDistribution) -> None:
        largest = float(loss.get_epsilon_for_delta(_LEAST_DELTA))
        if not math.isfinite(largest):  # a part of the loss is infinite
            largest = _largest_epsilon(loss)
        self._epsilons = np.linspace(0.0, largest, _N_EPSILONS)
        with np.errstate(all="ignore"):  # e^epsilon overflows for a large loss
            deltas = np.asarray(loss.get_delta_for_epsilon(self._epsilons))
        self._deltas = np.where(np.isnan(deltas), 1.0, deltas)

    def fnr(self, fpr: Sequence[float]) -> Array:
        """Return the least false-negative rates at false-positive rates."""
        rates = []
        for rate in fpr:
            detected = 1 - self._deltas - rate
            below = np.exp(-self._epsilons) * detected
            # 1 - delta - e^epsilon rate, without an overflow
            above = 1 - self._deltas - np.exp(np.minimum(self._epsilons + math.log(rate), 1.0))
            rates.append(max(0.0, float(np.maximum(above, below).max())))
        return np.array(rates)

    def mu(self) -> float:
        """Return the least mu whose curve lies below this one, at error rates above 1e-10."""
        fpr = np.geomspace(_LEAST_RATE, 0.5, _N_RATES)
        fnr = self.fnr(fpr.tolist())
        is_half = fpr <= fnr  # the curve is symmetric
        if not is_half.any():
            return math.inf
        return float(np.max(stats.norm.isf(fpr[is_half]) - stats.norm.ppf(fnr[is_half])))


def _largest_epsilon(loss: PrivacyLossDistribution) -> float:
    """Return epsilon at the smallest of some deltas that has one."""
    for delta in np.geomspace(_LEAST_DELTA, 0.1, 12):
        epsilon = float(loss.get_epsilon_for_delta(float(delta)))
        if math.isfinite(epsilon):
            return epsilon
    return 1.0
