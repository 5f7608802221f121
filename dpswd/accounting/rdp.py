"""Renyi accounting with ``autodp``: an upper bound to compare with the privacy loss distribution.

Divergence of one release, subsets and conversion to epsilon: docs/theory/accounting.md, Proposition 17. Curves add up
over releases.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
from autodp import rdp_acct
from numpy.typing import NDArray
from scipy import optimize

from dpswd.accounting.pld import Releases

MAX_ORDER = 1024
_ORDERS = [
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    10,
    12,
    14,
    16,
    20,
    24,
    32,
    40,
    48,
    64,
    80,
    96,
    128,
    192,
    256,
    384,
    512,
    768,
    MAX_ORDER,
]


@functools.lru_cache(maxsize=64)
def _one_release(part: Releases) -> Callable[[float], float]:
    """Return the Renyi curve of one release of ``part`` after sampling; every order is computed once."""
    half_scale_sq = part.scale**2 / 2
    orders = np.arange(2.0, MAX_ORDER + 2)
    exponents: NDArray[np.float64] = part.law.log_mgf(orders * (orders - 1) * half_scale_sq) / (
        orders - 1
    )
    table = dict(zip(orders.tolist(), exponents.tolist(), strict=True))

    def unsampled(order: float) -> float:
        order = float(order)
        if order in table:
            return float(table[order])
        if math.isinf(order):
            return math.inf
        if order <= 1:
            return float(part.law.mean * half_scale_sq)  # the Kullback-Leibler divergence
        return float(part.law.log_mgf(order * (order - 1) * half_scale_sq)) / (order - 1)

    account = rdp_acct.anaRDPacct(m=2)
    with np.errstate(all="ignore"):  # autodp computes with an infinite pure epsilon
        if part.rate == 1:
            account.compose_mechanism(unsampled)
        else:
            account.compose_subsampled_mechanism(unsampled, part.rate)

    @functools.cache
    def curve(order: float) -> float:
        with np.errstate(all="ignore"):
            value = float(account.get_rdp([order])[0])
        return value if value >= 0 else math.inf  # nan, too, is no bound at this order

    return curve


class RenyiAccount:
    """Renyi curve of a sequence of releases, of which there is at least one."""

    def __init__(self, parts: Sequence[Releases]) -> None:
        self._terms = [
            (_one_release(dataclasses.replace(part, n_releases=1)), part.n_releases)
            for part in parts
        ]

    def __call__(self, order: float) -> float:
        """Return an upper bound on the Renyi divergence of order ``order`` > 1."""
        return float(sum(count * curve(order) for curve, count in self._terms))

    def get_epsilon(self, delta: float) -> float:
        """Return the smallest epsilon over the orders, at least 0. An inexact minimum is safe: every order is valid."""

        def bound(order: float) -> float:
            return self(order) - math.log(delta) / (order - 1)

        values: list[float] = []
        for order in _ORDERS:
            values.append(bound(order))
            if len(values) > 3 and values[-1] > values[-2] > values[-3]:
                break
        best = int(np.argmin(values))
        low = _ORDERS[best - 1] if best else 1 + 1e-6
        high = _ORDERS[min(best + 1, len(values) - 1)]
        fine = optimize.minimize_scalar(
            bound, bounds=(low, high), method="bounded", options={"xatol": 1e-3}
        )
        return float(max(0.0, min([*values, fine.fun])))
