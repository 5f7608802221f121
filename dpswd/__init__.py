"""Differentially private sliced Wasserstein distance: a loss, its accounting, and what goes with it.

Names are imported when they are first used: accounting needs no torch, and nothing here imports lightning, torchvision
or matplotlib.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpswd.accounting.accountant import PrivacyAccountant
    from dpswd.accounting.calibrate import calibrate_sigma
    from dpswd.errors import BudgetExceededError, DpswdError, InputError, LedgerError, ProcessLostError
    from dpswd.loss import DPSlicedWassersteinLoss, Release
    from dpswd.mechanism import GaussianMechanism, ProjectionMechanism
    from dpswd.sampling import FixedSizeSampler
    from dpswd.sliced import random_projections, sliced_wasserstein

__all__ = [
    "BudgetExceededError",
    "DPSlicedWassersteinLoss",
    "DpswdError",
    "FixedSizeSampler",
    "GaussianMechanism",
    "InputError",
    "LedgerError",
    "PrivacyAccountant",
    "ProcessLostError",
    "ProjectionMechanism",
    "Release",
    "calibrate_sigma",
    "random_projections",
    "sliced_wasserstein",
]

__version__ = "0.1.0"

_MODULES = {
    "BudgetExceededError": "errors",
    "DPSlicedWassersteinLoss": "loss",
    "FixedSizeSampler": "sampling",
    "DpswdError": "errors",
    "GaussianMechanism": "mechanism",
    "InputError": "errors",
    "LedgerError": "errors",
    "PrivacyAccountant": "accounting.accountant",
    "ProcessLostError": "errors",
    "ProjectionMechanism": "mechanism",
    "Release": "loss",
    "calibrate_sigma": "accounting.calibrate",
    "random_projections": "sliced",
    "sliced_wasserstein": "sliced",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'dpswd' has no attribute {name!r}")
    return getattr(import_module(f"dpswd.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
