"""Non-private sliced Wasserstein alignment of features (Lee et al., CVPR 2019; Rakotomamonjy2021, Section 5.1)."""

from torch import Tensor, nn

from dpswd.projections import random_projections
from dpswd.sliced import sliced_wasserstein
from models.baselines.unprotected import Side

__all__ = ["SWDTerm"]


class SWDTerm(nn.Module):
    """d times the squared sliced Wasserstein distance of the features, along a fresh orthonormal basis."""

    def forward(self, source: Side, target: Side, progress: float) -> Tensor:
        """Returns the distance, in squared units of the features."""
        dim = source.features.shape[1]
        directions = random_projections(dim, dim, kind="orthogonal").to(source.features)
        return dim * sliced_wasserstein(source.features, target.features, directions)
