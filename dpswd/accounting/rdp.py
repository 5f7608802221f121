"""Renyi accounting with ``autodp``, to compare with privacy loss distributions.

Divergence of one release, subsets and conversion to epsilon: docs/theory/accounting.md, Proposition
17. Curves add up over releases.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
from autodp import rdp_acct
from scipy import optimize

from dpswd.accounting.pld import Releases

MAX_ORDER = 1024
# Orders at which epsilon is tried first; their spacing grows with them.
_ORDERS = [2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 40, 48, 64]
_ORDERS += [80, 96, 128, 192, 256, 384, 512, 768, MAX_ORDER]
# Precision of the best order.
_ORDER_WIDTH = 1e-3


class _UnsampledCurve:
    r"""Renyi divergence of one release of all records.

    .. math:: \varepsilon(\alpha) = \frac{1}{\alpha - 1}
              \ln E \exp(\tfrac12 \alpha (\alpha - 1)\, c^2 S)
    """

    def __init__(self, part: Releases) -> None:
        self.law = part.law
        self.half_scale_sq = part.scale**2 / 2
        orders = np.arange(2.0, MAX_ORDER + 2)
        divergences = self.law.log_mgf(orders * (orders - 1) * self.half_scale_sq) / (orders - 1)
        self._table = dict(zip(orders.tolist(), divergences.tolist(), strict=True))

    def __call__(self, order: float) -> float:
        """Return the divergence of an order >= 1, which may be infinite."""
        order = float(order)
        if order in self._table:
            return float(self._table[order])
        if math.isinf(order):
            return math.inf
        if order <= 1:
            return float(self.law.mean * self.half_scale_sq)  # the Kullback-Leibler divergence
        exponent = self.law.log_mgf(order * (order - 1) * self.half_scale_sq)
        return float(exponent) / (order - 1)


class _SampledCurve:
    """Renyi divergence of one release after sampling, by ``autodp``.

    Every order is computed once.
    """

    def __init__(self, part: Releases) -> None:
        unsampled = _UnsampledCurve(part)
        self._account = rdp_acct.anaRDPacct(m=2)
        self._divergences: dict[float, float] = {}
        with np.errstate(all="ignore"):  # autodp computes with an infinite pure epsilon
            if part.rate == 1:
                self._account.compose_mechanism(unsampled)
            else:
                self._account.compose_subsampled_mechanism(unsampled, part.rate)

    def __call__(self, order: float) -> float:
        """Return an upper bound on the divergence of an order > 1, which may be infinite."""
        if order not in self._divergences:
            with np.errstate(all="ignore"):
                value = float(self._account.get_rdp([order])[0])
            if not value >= 0:  # nan is no bound either
                value = math.inf
            self._divergences[order] = value
        return self._divergences[order]


@functools.lru_cache(maxsize=64)
def _one_release(part: Releases) -> _SampledCurve:
    """Return the curve of one release, with the orders that were computed before."""
    return _SampledCurve(part)


class RenyiAccount:
    """Renyi curve of a sequence of releases, of which there is at least one."""

    def __init__(self, parts: Sequence[Releases]) -> None:
        self._terms = []
        for part in parts:
            curve = _one_release(dataclasses.replace(part, n_releases=1))
            self._terms.append((curve, part.n_releases))

    def __call__(self, order: float) -> float:
        """Return an upper bound on the Renyi divergence of order ``order`` > 1."""
        return float(sum(n_releases * curve(order) for curve, n_releases in self._terms))

    def get_epsilon(self, delta: float) -> float:
        """Return the smallest epsilon over the orders, at least 0.

        An inexact minimum is safe, since the bound of every order holds.
        """
        bound = functools.partial(self._epsilon_at, delta)
        values: list[float] = []
        for order in _ORDERS:
            values.append(bound(order))
            if len(values) > 3 and values[-1] > values[-2] > values[-3]:
                break
        best = int(np.argmin(values))
        low = 1 + 1e-6
        if best > 0:
            low = _ORDERS[best - 1]
        high = _ORDERS[min(best + 1, len(values) - 1)]
        between = optimize.minimize_scalar(
            bound, bounds=(low, high), method="bounded", options={"xatol": _ORDER_WIDTH}
        )
        return float(max(0.0, min([*values, between.fun])))

    def _epsilon_at(self, delta: float, order: float) -> float:
        """Return the epsilon at ``delta`` that one order proves (Mironov2017)."""
        return self(order) - math.log(delta) / (order - 1)
