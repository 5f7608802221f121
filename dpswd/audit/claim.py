"""What an accountant claims, as a curve that an attack can be held against."""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.audit.bounds import Attack, Evidence
from dpswd.report.gdp import TradeOff

__all__ = ["Claim"]


@dataclass(frozen=True)
class Claim:
    """The claim: no test has error rates below the trade-off curve.

    Attributes:
        mu: mu of Gaussian differential privacy.
        epsilon: At ``delta``.
        delta: As given.
        curve: The trade-off curve; stronger than mu wherever mu alone is not tight.
        assumptions: What the accountant says that it rests on.
    """

    mu: float
    epsilon: float
    delta: float
    curve: TradeOff
    assumptions: list[str]

    @classmethod
    def of(cls, account: PrivacyAccountant, delta: float) -> "Claim":
        """Reads the claim off an accountant. Bounds that spend a tail take half of ``delta`` for it."""
        epsilon = account.get_epsilon(delta)
        resolved = account.resolve(delta)
        curve = TradeOff.of(resolved)
        return cls(resolved.get_mu_and_regret()[0], epsilon, delta, curve, resolved.assumptions)

    def mu_at(self, fpr: float) -> float:
        """Claimed mu at one false-positive rate: that of the Gaussian curve through the claimed point there."""
        fnr = max(float(self.curve.fnr(np.asarray([fpr]))[0]), 1e-300)
        return min(self.mu, max(0.0, float(stats.norm.isf(fpr) - stats.norm.ppf(fnr))))

    def allows(self, attack: Attack) -> bool:
        """Whether error rates up to these limits are possible: false is a refutation."""
        return attack.fnr >= float(self.curve.fnr(np.asarray([attack.fpr]))[0])

    def stands(self, evidence: Evidence) -> bool:
        """Whether nothing in the evidence exceeds the claim."""
        return (
            evidence.mu <= self.mu
            and evidence.epsilon <= max(self.epsilon, 0.0)
            and self.allows(evidence.for_mu)
            and self.allows(evidence.for_epsilon)
        )
