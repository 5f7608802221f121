"""Private generators, a differentially private sliced Wasserstein loss, accounting.

Public names are imported on first use, so that accounting works without importing torch, and the core without
lightning, torchvision, scikit-learn or matplotlib.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpswd.accounting.accountant import PrivacyAccountant
    from dpswd.accounting.calibrate import calibrate_sigma
    from dpswd.errors import BudgetExceededError, DpswdError, InputError, LedgerError, ProcessLostError
    from dpswd.estimators import PrivateAdapter, PrivateGenerator
    from dpswd.loss import DPSlicedWassersteinLoss, Release
    from dpswd.mechanism import GaussianMechanism, ProjectionMechanism
    from dpswd.queries import ClassCounts, ClassCovariances, ClassMeans, SecondMoment
    from dpswd.sampling import FixedSizeSampler, ReleaseLoader
    from dpswd.sketch import release_sketch
    from dpswd.sliced import random_projections, sliced_wasserstein
    from dpswd.training.budget import Budget
    from dpswd.training.callback import PrivacyBudget

__version__ = "0.2.0"

_MODULES = {
    "Budget": "training.budget",
    "BudgetExceededError": "errors",
    "ClassCounts": "queries",
    "ClassCovariances": "queries",
    "ClassMeans": "queries",
    "DPSlicedWassersteinLoss": "loss",
    "DpswdError": "errors",
    "FixedSizeSampler": "sampling",
    "GaussianMechanism": "mechanism",
    "InputError": "errors",
    "LedgerError": "errors",
    "PrivacyAccountant": "accounting.accountant",
    "PrivacyBudget": "training.callback",
    "PrivateAdapter": "estimators",
    "PrivateGenerator": "estimators",
    "ProcessLostError": "errors",
    "ProjectionMechanism": "mechanism",
    "Release": "loss",
    "ReleaseLoader": "sampling",
    "SecondMoment": "queries",
    "calibrate_sigma": "accounting.calibrate",
    "random_projections": "sliced",
    "release_sketch": "sketch",
    "sliced_wasserstein": "sliced",
}

__all__ = [
    "Budget",
    "BudgetExceededError",
    "ClassCounts",
    "ClassCovariances",
    "ClassMeans",
    "DPSlicedWassersteinLoss",
    "DpswdError",
    "FixedSizeSampler",
    "GaussianMechanism",
    "InputError",
    "LedgerError",
    "PrivacyAccountant",
    "PrivacyBudget",
    "PrivateAdapter",
    "PrivateGenerator",
    "ProcessLostError",
    "ProjectionMechanism",
    "Release",
    "ReleaseLoader",
    "SecondMoment",
    "calibrate_sigma",
    "random_projections",
    "release_sketch",
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
