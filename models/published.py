"""The alignment of Rakotomamonjy2021 as its code has it, for comparison. NOT PRIVATE (docs/errata.md, 4 and 5)."""

import torch
from torch import Tensor

from dpswd.sliced import random_projections, wasserstein_1d

__all__ = ["NOT_PRIVATE", "published_distance"]

NOT_PRIVATE = (
    "NOT PRIVATE: rows are divided by the largest norm of the private batch, which moves with one record (erratum 4).",
    "NOT PRIVATE: the gradient passes through the private branch, whose Jacobian reads raw records (erratum 5).",
)


def published_distance(source: Tensor, target: Tensor, sigma: float, n_projections: int) -> Tensor:
    """Smoothed squared sliced distance of features (n, d) and (B, d) as the paper's code has it. NOT PRIVATE.

    Both sides are divided by twice the largest norm of the private batch, projected on fresh directions and noised;
    the gradient passes through both.
    """
    scale = 2 * torch.linalg.vector_norm(target.detach(), dim=1).max().clamp(min=1e-12)
    directions = random_projections(source.shape[1], n_projections).to(source)
    noisy = [side @ directions / scale for side in (source, target)]
    noisy = [side + sigma * torch.randn_like(side) for side in noisy]
    return wasserstein_1d(noisy[0], noisy[1]).mean()
