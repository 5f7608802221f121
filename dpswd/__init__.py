"""Differentially private sliced Wasserstein loss, generators and accounting.

Public names are imported on first use, so that accounting works without importing torch, and the
core without lightning, torchvision, scikit-learn or matplotlib.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # explicit names, for type checkers
    from dpswd.accounting.accountant import PrivacyAccountant as PrivacyAccountant
    from dpswd.accounting.calibrate import calibrate_sigma as calibrate_sigma
    from dpswd.budget.budget import Budget as Budget
    from dpswd.distance import PrivateDistance as PrivateDistance
    from dpswd.distance import private_distance as private_distance
    from dpswd.errors import BudgetExceededError as BudgetExceededError
    from dpswd.errors import DpswdError as DpswdError
    from dpswd.errors import InputError as InputError
    from dpswd.errors import LedgerError as LedgerError
    from dpswd.errors import ProcessLostError as ProcessLostError
    from dpswd.estimators.adapter import PrivateAdapter as PrivateAdapter
    from dpswd.estimators.generator import PrivateGenerator as PrivateGenerator
    from dpswd.lightning.adaptation import AdaptationModule as AdaptationModule
    from dpswd.lightning.budget import PrivacyBudget as PrivacyBudget
    from dpswd.lightning.module import GeneratorModule as GeneratorModule
    from dpswd.loss import DPSlicedWassersteinLoss as DPSlicedWassersteinLoss
    from dpswd.loss import Release as Release
    from dpswd.mechanism import GaussianMechanism as GaussianMechanism
    from dpswd.mechanism import ProjectionMechanism as ProjectionMechanism
    from dpswd.queries import ClassCounts as ClassCounts
    from dpswd.queries import ClassCovariances as ClassCovariances
    from dpswd.queries import ClassMeans as ClassMeans
    from dpswd.queries import ColumnCounts as ColumnCounts
    from dpswd.queries import SumAndNorm as SumAndNorm
    from dpswd.records import PrivateBatch as PrivateBatch
    from dpswd.records import PrivateRecords as PrivateRecords
    from dpswd.records import Records as Records
    from dpswd.release import Recorder as Recorder
    from dpswd.row_copy import LabelledRows as LabelledRows
    from dpswd.sampling import FixedSizeSampler as FixedSizeSampler
    from dpswd.sampling import ReleaseLoader as ReleaseLoader
    from dpswd.sliced import sliced_wasserstein as sliced_wasserstein
    from dpswd.sliced import smoothed_sliced_wasserstein as smoothed_sliced_wasserstein
    from dpswd.slices import random_projections as random_projections
    from dpswd.structured import StructuredProjections as StructuredProjections

__version__ = "0.4.0"

_NAMES = {  # by module
    "accounting.accountant": ["PrivacyAccountant"],
    "accounting.calibrate": ["calibrate_sigma"],
    "estimators.adapter": ["PrivateAdapter"],
    "budget.budget": ["Budget"],
    "distance": ["PrivateDistance", "private_distance"],
    "errors": [
        "BudgetExceededError",
        "DpswdError",
        "InputError",
        "LedgerError",
        "ProcessLostError",
    ],
    "estimators.generator": ["PrivateGenerator"],
    "lightning.adaptation": ["AdaptationModule"],
    "lightning.budget": ["PrivacyBudget"],
    "lightning.module": ["GeneratorModule"],
    "loss": ["DPSlicedWassersteinLoss", "Release"],
    "mechanism": ["GaussianMechanism", "ProjectionMechanism"],
    "queries": ["ClassCounts", "ClassCovariances", "ClassMeans", "ColumnCounts", "SumAndNorm"],
    "records": ["PrivateBatch", "PrivateRecords", "Records"],
    "release": ["Recorder"],
    "row_copy": ["LabelledRows"],
    "sampling": ["FixedSizeSampler", "ReleaseLoader"],
    "sliced": ["sliced_wasserstein", "smoothed_sliced_wasserstein"],
    "slices": ["random_projections"],
    "structured": ["StructuredProjections"],
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'dpswd' has no attribute {name!r}")
    try:
        module = import_module(f"dpswd.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        raise ImportError(
            f"Expected the packages for training, got: {error}; pip install 'dpswd[train]'."
        ) from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
