"""Privacy accounting: what was released costs what. No torch in here."""

from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.calibrate import calibrate_sigma

__all__ = ["PrivacyAccountant", "calibrate_sigma"]
