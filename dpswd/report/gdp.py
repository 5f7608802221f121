r"""mu-GDP, regret and trade-off curve of a composition, in the tiers of Gomez2025 (docs/howto/report.md).

The trade-off curve :math:`f(\alpha)` is the smallest false-negative rate of any attack with false-positive rate
:math:`\alpha` that decides which of two neighbouring data sets was used (Dong2022). The regret of :math:`\mu` is the
smallest :math:`\Delta` with :math:`f(\alpha + \Delta) - \Delta \le f_\mu(\alpha)` for all :math:`\alpha`. ``gdpnum``
makes every conversion, on the privacy loss distribution of the accountant, unless mu is known in closed form.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from gdpnum import PLDConverter
from gdpnum.converter import gaussian_fdp
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.errors import InputError

REGRET_LIMIT = 1e-2  # Gomez2025: above it, mu alone misleads
TABLE_FPR = tuple(float(f"1e-{n}") for n in range(10, 0, -1))
RESOLUTION = (
    1e-10  # gdpnum looks only at error rates above this and finds the regret to within this
)

Array = NDArray[np.float64]


@dataclass(frozen=True)
class TradeOff:
    """Trade-off curve of a composition."""

    mu: float  # the smallest one (not rounded) such that the composition is mu-GDP at error rates above 1e-10
    regret: float  # of that mu, in units of probability
    advantage: float  # largest difference of true-positive and false-positive rate, which is delta at epsilon = 0
    is_gaussian: bool  # whether the curve equals that of mu-GDP, by theorem
    _converter: Any = None

    @classmethod
    def of(cls, accountant: PrivacyAccountant) -> "TradeOff":
        """Return the curve of everything that ``accountant`` has seen, in closed form where one exists."""
        mu = accountant.gaussian_mu
        if mu is None:
            return cls.from_pld(accountant.pld())
        return cls(mu, 0.0, float(2 * stats.norm.cdf(mu / 2) - 1), True)

    @classmethod
    def from_pld(cls, pld: PrivacyLossDistribution) -> "TradeOff":
        """Convert a privacy loss distribution by ``gdpnum``.

        Raises:
            InputError: If no point of the curve has both error rates above 1e-10.
        """
        converter = PLDConverter(pld)
        try:
            mu, regret = converter.get_mu_and_regret()
        except (ValueError, AssertionError):  # gdpnum takes the extremes of an empty set
            raise InputError(
                "Expected a trade-off curve with error rates above 1e-10, got none; check sigma."
            ) from None
        return cls(float(mu), float(regret), float(converter.get_advantage()), False, converter)

    def fnr(self, fpr: ArrayLike) -> Array:
        """Return the smallest false-negative rate of any attack at each false-positive rate, any shape."""
        if self._converter is None:
            return self.gaussian_fnr(fpr)
        return np.asarray(
            np.clip(self._converter.get_beta(np.asarray(fpr, dtype=float)), 0, 1), dtype=float
        )

    def gaussian_fnr(self, fpr: ArrayLike) -> Array:
        """Return the same for the mu-GDP curve, which exceeds :meth:`fnr` nowhere by more than 1e-10."""
        return np.asarray(gaussian_fdp(self.mu)(np.asarray(fpr, dtype=float)), dtype=float)

    def rows(self, fpr: ArrayLike) -> list[dict[str, float]]:
        """Tabulate ``fpr``, ``fnr`` (at least), ``tpr`` (at most) and ``tpr_gaussian`` (of mu-GDP)."""
        fpr = np.asarray(fpr, dtype=float)
        return [
            {"fpr": float(a), "fnr": float(b), "tpr": float(1 - b), "tpr_gaussian": float(1 - g)}
            for a, b, g in zip(fpr, self.fnr(fpr), self.gaussian_fnr(fpr), strict=True)
        ]
