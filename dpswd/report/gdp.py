r"""A composition as a reviewer wants it stated: mu-GDP with its regret, and the trade-off curve.

The trade-off curve :math:`f(\alpha)` is the smallest false-negative rate that any attack with false-positive
rate :math:`\alpha` can reach when it decides which of two neighbouring data sets was used (Dong2022). A
mechanism is :math:`\mu`-GDP where :math:`f \ge f_\mu`, :math:`f_\mu(\alpha) = \Phi(\Phi^{-1}(1 - \alpha) -
\mu)`. Gomez2025 report

- Tier I: the smallest such :math:`\mu`, rounded up, and its regret: how far the Gaussian curve lies below the
  true one, the smallest :math:`\Delta` with :math:`f(\alpha + \Delta) - \Delta \le f_\mu(\alpha)` for all
  :math:`\alpha`;
- Tier II, where the regret is above 1e-2: the curve itself, at false-positive rates from 1e-10 to 1e-1.

Every conversion is made by ``gdpnum`` on the privacy loss distribution of ``dp_accounting``; nothing is
converted here (see :func:`dpswd.accounting.pld.mirrored` for why the distribution that the accountant gives is
symmetric to the last digit). No torch.

References:
    | Gomez2025 (arXiv:2503.10945), Dong2022 (arXiv:1905.02383).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from gdpnum import PLDConverter
from gdpnum.converter import gaussian_fdp
from numpy.typing import ArrayLike, NDArray

from dpswd.accounting.pld import mirrored
from dpswd.errors import InputError
from dpswd.mechanism import Mechanism

__all__ = ["REGRET_LIMIT", "TABLE_FPR", "TradeOff", "closed_form_mu", "round_up"]

REGRET_LIMIT = 1e-2  # Gomez2025: above it mu alone misleads, and the curve is reported (Tier II)
TABLE_FPR = tuple(float(f"1e-{n}") for n in range(10, 0, -1))
RESOLUTION = 1e-10  # gdpnum looks at error rates above this only; regret is found to within it

Group = tuple[Mechanism, int, int]
Array = NDArray[np.float64]


def round_up(value: float, digits: int = 3) -> float:
    """Rounds to ``digits`` significant digits, towards infinity (towards less privacy).

    Example:
        >>> round_up(0.57201), round_up(1.3e-7, 1), round_up(2.0)
        (0.573, 2e-07, 2.0)
    """
    if not math.isfinite(value):
        return value
    return float(Decimal(repr(float(value))).normalize(Context(prec=digits, rounding=ROUND_CEILING)))


@dataclass(frozen=True)
class TradeOff:
    """The trade-off curve of a composition.

    Attributes:
        mu: The smallest mu such that the composition is mu-GDP (not rounded), at error rates above 1e-10.
        regret: Regret of that mu, in units of probability.
        advantage: Largest value of true-positive rate minus false-positive rate: delta at epsilon = 0.
        mu_numerical: What gdpnum finds; differs from ``mu`` only where the composition is exactly Gaussian.
        is_gaussian: Whether the curve IS that of mu-GDP, by theorem.
    """

    mu: float
    regret: float
    advantage: float
    mu_numerical: float
    is_gaussian: bool
    _converter: Any

    @classmethod
    def of(cls, pld: PrivacyLossDistribution, *, exact_mu: float | None = None) -> "TradeOff":
        """Converts a privacy loss distribution.

        Args:
            pld: The composition.
            exact_mu: What :func:`closed_form_mu` says of it, if anything: then nothing is left to numerics.

        Returns:
            The curve.

        Raises:
            InputError: If every error rate lies within 1e-10 of 0 (no privacy) or of blind guessing (no
                release).
        """
        converter = PLDConverter(mirrored(pld))
        try:
            mu, regret = converter.get_mu_and_regret()
        except ValueError:  # gdpnum took the extremes of an empty set
            raise InputError(
                "Expected a trade-off curve with error rates above 1e-10, got a composition that hides "
                "everything or nothing to that precision; check sigma against the sensitivity."
            ) from None
        advantage = float(converter.get_advantage())
        if exact_mu is not None:
            return cls(exact_mu, 0.0, advantage, float(mu), True, converter)
        return cls(float(mu), float(regret), advantage, float(mu), False, converter)

    @property
    def tier(self) -> int:
        """Tier of Gomez2025: 1 where mu says it all, 2 where the curve must be reported too."""
        return 2 if self.regret > REGRET_LIMIT else 1

    def fnr(self, fpr: ArrayLike) -> Array:
        """Smallest false-negative rate of any attack at the given false-positive rates, any shape."""
        if self.is_gaussian:
            return self.gaussian_fnr(fpr)
        fnr = self._converter.get_beta(np.asarray(fpr, dtype=float))
        return np.asarray(np.clip(fnr, 0.0, 1.0), dtype=float)

    def gaussian_fnr(self, fpr: ArrayLike) -> Array:
        """The same of the mu-GDP curve, which is nowhere above by more than 1e-10."""
        return np.asarray(gaussian_fdp(self.mu)(np.asarray(fpr, dtype=float)), dtype=float)

    def rows(self, fpr: ArrayLike) -> list[dict[str, float]]:
        """Tabulates ``fpr``, ``fnr`` (at least), ``tpr`` (at most) and ``tpr_gaussian``, that of mu-GDP."""
        fpr = np.asarray(fpr, dtype=float)
        fnr, gaussian = self.fnr(fpr), self.gaussian_fnr(fpr)
        return [
            {"fpr": float(a), "fnr": float(b), "tpr": float(1 - b), "tpr_gaussian": float(1 - g)}
            for a, b, g in zip(fpr, fnr, gaussian, strict=True)
        ]


def closed_form_mu(groups: Sequence[Group]) -> float | None:
    r"""Computes mu of a composition that is exactly Gaussian, as a cross-check that needs no numerics.

    Where S is constant and every release reads all N records, release i is exactly :math:`\mu_i`-GDP with
    :math:`\mu_i = c_i \sqrt{S_i} / \sigma_i`, and :math:`\mu = \sqrt{\sum_i T_i \mu_i^2}` (Dong2022,
    Corollary 3.3).

    Args:
        groups: Triples of mechanism, number of records N, number of releases T.

    Returns:
        mu, or ``None`` where the composition is not exactly Gaussian.
    """
    total = 0.0
    for mechanism, sample_size, count in groups:
        subsampled = mechanism.batch_size is not None and mechanism.batch_size < sample_size
        if subsampled or not mechanism.law.is_constant or getattr(mechanism, "spends_tail", False):
            return None
        total += count * mechanism.unit_sensitivity**2 * mechanism.law.mean / mechanism.sigma**2
    return math.sqrt(total)
