"""Wasserstein DP (Yang2024) and tangent DP (Ying2024): diagnostics, not guarantees.

``callback`` has the Lightning callback and ``gibbs`` the classifiers in torch; both are imported from their modules.
"""

from dpswd.diagnostics.tangent import gibbs_distribution, removal_changes, tangent_norms
from dpswd.diagnostics.wasserstein import WassersteinAccountant

__all__ = ["WassersteinAccountant", "gibbs_distribution", "removal_changes", "tangent_norms"]
