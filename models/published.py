"""The alignment of Rakotomamonjy2021 as in its code, for comparison. NOT PRIVATE (docs/errata.md, items 4 and 5)."""

import torch
from torch import Tensor, nn

from dpswd._validate import at_least, positive
from dpswd.sliced import random_projections, wasserstein_1d
from models.alignment import Side

NOT_PRIVATE = (
    "NOT PRIVATE: rows are divided by the largest norm of the private batch, which moves with one record (erratum 4).",
    "NOT PRIVATE: the gradient passes through the private branch, whose Jacobian reads raw records (erratum 5).",
)


def published_distance(source: Tensor, target: Tensor, sigma: float, n_projections: int) -> Tensor:
    """Return the smoothed squared sliced distance of features (n, d) and (B, d) as in the paper's code. NOT PRIVATE.

    Both sides are divided by twice the largest norm of the private batch, projected on fresh directions and noised;
    the gradient passes through both. The authors' code then takes the root and multiplies it by that norm.
    """
    scale = 2 * torch.linalg.vector_norm(target.detach(), dim=1).max().clamp(min=1e-12)
    directions = random_projections(source.shape[1], n_projections).to(source)
    noisy = [side @ directions / scale for side in (source, target)]
    noisy = [side + sigma * torch.randn_like(side) for side in noisy]
    return wasserstein_1d(noisy[0], noisy[1]).mean()


class PublishedTerm(nn.Module):
    """:func:`published_distance` times the dimension of the features, as a term of the unprotected training loop.

    Args:
        sigma: Standard deviation of the noise on a projection.
        n_projections: Number of directions.
    """

    def __init__(self, sigma: float, n_projections: int) -> None:
        super().__init__()
        positive(sigma=sigma)
        at_least(1, n_projections=n_projections)
        self.sigma, self.n_projections = sigma, n_projections

    def forward(self, source: Side, target: Side, progress: float) -> Tensor:
        """Return the distance; its gradient reads the raw private batch."""
        distance = published_distance(source.features, target.features, self.sigma, self.n_projections)
        return source.features.shape[1] * distance
