"""Differentially private sliced Wasserstein distance: a loss, its accounting, and what goes with it.

Importing this imports neither lightning nor torchvision nor matplotlib.
"""

from dpswd.accounting import PrivacyAccountant, calibrate_sigma
from dpswd.errors import BudgetExceededError, InputError
from dpswd.loss import DPSlicedWassersteinLoss, Release
from dpswd.mechanism import GaussianMechanism, ProjectionMechanism
from dpswd.projections import random_projections
from dpswd.sampling import FixedSizeSampler
from dpswd.sliced import sliced_wasserstein

__all__ = [
    "BudgetExceededError",
    "DPSlicedWassersteinLoss",
    "FixedSizeSampler",
    "GaussianMechanism",
    "InputError",
    "PrivacyAccountant",
    "ProjectionMechanism",
    "Release",
    "calibrate_sigma",
    "random_projections",
    "sliced_wasserstein",
]

__version__ = "0.1.0"
