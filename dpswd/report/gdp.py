r"""mu-GDP, regret and trade-off curve of a composition, in the tiers of Gomez2025.

The trade-off curve :math:`f(\alpha)` is the smallest false-negative rate of any attack with
false-positive rate :math:`\alpha` that decides which of two neighbouring data sets was used
(Dong2022). The regret of :math:`\mu` is the smallest :math:`\Delta` with
:math:`f(\alpha + \Delta) - \Delta \le f_\mu(\alpha)` for all :math:`\alpha`. ``gdpnum`` computes
the curve and the regret from the privacy loss distribution of the accountant, unless mu is known in
closed form. What the numbers mean: docs/howto/report.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gdpnum import PLDConverter
from gdpnum.converter import gaussian_fdp
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from dpswd.accounting.accountant import PrivacyAccountant, mu_and_regret
from dpswd.accounting.pld import LossDistribution
from dpswd.report.facts import ErrorRates

# Gomez2025: where the regret is larger, mu alone is misleading.
REGRET_LIMIT = 1e-2

# False-positive rates of the table of a report.
TABLE_FPR = tuple(float(f"1e-{n}") for n in range(10, 0, -1))

# gdpnum looks only at error rates above this. It searches the regret on a grid of rates, so that a
# regret far below 1e-4 may come out too small.
RESOLUTION = 1e-10

Array = NDArray[np.float64]


@dataclass(frozen=True)
class TradeOff:
    """Trade-off curve of a composition.

    Attributes:
        mu: The smallest one, not rounded, such that the composition is mu-GDP at error rates above
            1e-10.
        regret: Regret of that mu, in units of probability.
        advantage: Largest difference of true-positive and false-positive rate, which is delta at
            epsilon = 0.
        is_gaussian: Whether the curve equals that of mu-GDP, by theorem.
    """

    mu: float
    regret: float
    advantage: float
    is_gaussian: bool
    # A PLDConverter, which has no types; None where the curve is that of mu-GDP.
    _converter: Any = field(default=None, repr=False)

    @classmethod
    def of(cls, accountant: PrivacyAccountant) -> "TradeOff":
        """Return the curve of an accountant's releases, in closed form where one exists."""
        mu = accountant.gaussian_mu
        if mu is None:
            return cls.from_losses(accountant.losses(), accountant.unsampled_mu())
        advantage = float(2 * stats.norm.cdf(mu / 2) - 1)
        return cls(mu=mu, regret=0.0, advantage=advantage, is_gaussian=True)

    @classmethod
    def from_losses(cls, losses: LossDistribution, unsampled_mu: float = math.inf) -> "TradeOff":
        """Convert a distribution of the privacy loss; the curve is that of ``gdpnum``.

        Args:
            losses: Distribution of the privacy loss.
            unsampled_mu: Another bound on mu, as in
                :func:`~dpswd.accounting.accountant.mu_and_regret`.

        Raises:
            InputError: If no point of the curve has both error rates above 1e-10.
        """
        mu, regret = mu_and_regret(losses, unsampled_mu)
        converter = PLDConverter(losses.to_pld())
        return cls(
            mu=mu,
            regret=regret,
            advantage=float(converter.get_advantage()),
            is_gaussian=False,
            _converter=converter,
        )

    @property
    def advantage_fpr(self) -> float:
        r"""The false-positive rate :math:`\alpha^*` at which the advantage is attained.

        Replace-one has no direction, so that the curve is its own inverse. If
        :math:`1 - \alpha - f(\alpha)` is largest at :math:`\alpha`, it is so at
        :math:`f(\alpha)`, and, being concave, half-way between them: there
        :math:`f(\alpha^*) = \alpha^*` and :math:`\eta = 1 - 2 \alpha^*`.
        """
        return (1 - self.advantage) / 2

    def fnr(self, fpr: ArrayLike) -> Array:
        """Return the smallest false-negative rates of any attack.

        Args:
            fpr: False-positive rates of the attack, any shape.
        """
        if self._converter is None:
            return self.gaussian_fnr(fpr)
        rates = self._converter.get_beta(np.asarray(fpr, dtype=float))
        return np.asarray(np.clip(rates, 0, 1), dtype=float)

    def gaussian_fnr(self, fpr: ArrayLike) -> Array:
        """Return the false-negative rates of mu-GDP.

        They exceed those of :meth:`fnr` nowhere by more than 1e-10.
        """
        if self.mu == math.inf:
            return np.zeros(np.shape(fpr))
        rates = gaussian_fdp(self.mu)(np.asarray(fpr, dtype=float))
        return np.asarray(rates, dtype=float)

    def table(self, fpr: Sequence[float]) -> tuple[ErrorRates, ...]:
        """Tabulate the error rates of the curve and of mu-GDP at false-positive rates."""
        points = []
        rates = zip(fpr, self.fnr(fpr), self.gaussian_fnr(fpr), strict=True)
        for false_positive, false_negative, gaussian in rates:
            point = ErrorRates(
                fpr=float(false_positive),
                fnr=float(false_negative),
                tpr=float(1 - false_negative),
                tpr_gaussian=float(1 - gaussian),
            )
            points.append(point)
        return tuple(points)
