"""Privacy accounting: composition, calibration, plans and the ledger.

It imports no torch.
"""

from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.calibrate import calibrate_sigma

__all__ = ["PrivacyAccountant", "calibrate_sigma"]
