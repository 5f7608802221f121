"""Wasserstein DP (Yang2024) and tangent DP (Ying2024): diagnostics, not guarantees.

``gibbs`` has the classifiers in torch, and is imported from its module.
"""

from dpswd.diagnostics.tangent import gibbs_distribution, removal_changes, tangent_norms
from dpswd.diagnostics.wasserstein import WassersteinAccountant, gaussian_wdp, laplace_wdp

__all__ = [
    "WassersteinAccountant",
    "gaussian_wdp",
    "gibbs_distribution",
    "laplace_wdp",
    "removal_changes",
    "tangent_norms",
]
