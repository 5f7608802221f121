"""Private generators, a differentially private sliced Wasserstein loss, accounting.

Public names are imported on first use, so that accounting works without importing torch, and the core without
lightning, torchvision, scikit-learn or matplotlib.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpswd.accounting.accountant import PrivacyAccountant
    from dpswd.accounting.calibrate import calibrate_sigma
    from dpswd.adaptation.estimator import PrivateAdapter
    from dpswd.budget import Budget
    from dpswd.errors import BudgetExceededError, DpswdError, InputError, LedgerError, ProcessLostError
    from dpswd.estimators import PrivateGenerator
    from dpswd.lightning.budget import PrivacyBudget
    from dpswd.loss import DPSlicedWassersteinLoss, Release
    from dpswd.mechanism import GaussianMechanism, ProjectionMechanism
    from dpswd.queries import ClassCounts, ClassCovariances, ClassMeans, ColumnCounts, SumAndNorm
    from dpswd.records import PrivateBatch, PrivateRecords, Records
    from dpswd.release import LabelledRows, Recorder
    from dpswd.sampling import FixedSizeSampler, ReleaseLoader
    from dpswd.sliced import random_projections, sliced_wasserstein

__version__ = "0.3.0"

_MODULES = {
    "Budget": "budget",
    "BudgetExceededError": "errors",
    "ClassCounts": "queries",
    "ClassCovariances": "queries",
    "ClassMeans": "queries",
    "ColumnCounts": "queries",
    "DPSlicedWassersteinLoss": "loss",
    "DpswdError": "errors",
    "FixedSizeSampler": "sampling",
    "GaussianMechanism": "mechanism",
    "InputError": "errors",
    "LedgerError": "errors",
    "PrivacyAccountant": "accounting.accountant",
    "LabelledRows": "release",
    "PrivacyBudget": "lightning.budget",
    "PrivateAdapter": "adaptation.estimator",
    "PrivateBatch": "records",
    "PrivateGenerator": "estimators",
    "PrivateRecords": "records",
    "ProcessLostError": "errors",
    "ProjectionMechanism": "mechanism",
    "Recorder": "release",
    "Records": "records",
    "Release": "loss",
    "ReleaseLoader": "sampling",
    "SumAndNorm": "queries",
    "calibrate_sigma": "accounting.calibrate",
    "random_projections": "sliced",
    "sliced_wasserstein": "sliced",
}

__all__ = [
    "Budget",
    "BudgetExceededError",
    "ClassCounts",
    "ClassCovariances",
    "ClassMeans",
    "ColumnCounts",
    "DPSlicedWassersteinLoss",
    "DpswdError",
    "FixedSizeSampler",
    "GaussianMechanism",
    "InputError",
    "LabelledRows",
    "LedgerError",
    "PrivacyAccountant",
    "PrivacyBudget",
    "PrivateAdapter",
    "PrivateBatch",
    "PrivateGenerator",
    "PrivateRecords",
    "ProcessLostError",
    "ProjectionMechanism",
    "Recorder",
    "Records",
    "Release",
    "ReleaseLoader",
    "SumAndNorm",
    "calibrate_sigma",
    "random_projections",
    "sliced_wasserstein",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'dpswd' has no attribute {name!r}")
    try:
        module = import_module(f"dpswd.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        raise ImportError(f"Expected the packages for training, got: {error}; pip install 'dpswd[train]'.") from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
