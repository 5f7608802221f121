"""The distances of Rakotomamonjy2021 as printed and as in its code. NOT PRIVATE.

They are here for comparison (docs/errata.md), and differ in what divides the rows before they are
projected:

- Algorithm 1: nothing. It returns the q-th power (Eq. 4), here q = 2.
- Algorithm 2: each side by twice its own largest norm.
- the authors' code: both sides by twice the largest norm of the private batch, which multiplies the
  root afterwards.

A largest norm moves with one record (item 4). The gradient passes through the private branch, whose
Jacobian reads raw records (item 5).
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from dpswd._kernels import power_cost, sum_over_projections


def published_distance(
    source: Tensor,
    target: Tensor,
    sigma: float,
    n_projections: int,
    groups: int = 1,
    scaling: Literal["none", "own", "target"] = "target",
) -> Tensor:
    """Return the squared sliced distance of noisy projections. NOT PRIVATE.

    Both sides are scaled, projected on fresh directions and noised; the gradient passes through
    both.

    Args:
        source: Features (n, d).
        target: Features (n, d) of private records.
        sigma: Standard deviation of the noise.
        n_projections: Number of directions.
        groups: Number of parts of consecutive rows that are compared separately.
        scaling: That of Algorithm 1, of Algorithm 2, or of the authors' code.

    Returns:
        Scalar tensor.
    """
    if scaling == "own":
        source = source / _scale(source)
        target = target / _scale(target)
    elif scaling == "target":
        scale = _scale(target)
        source = source / scale
        target = target / scale
    normal = torch.randn(n_projections, source.shape[1], device=source.device)
    directions = F.normalize(normal, dim=1).T

    def cost(columns: slice, source_columns: Tensor, target_columns: Tensor) -> Tensor:
        # Costs of the directions of a chunk add up to their mean over all directions and groups.
        weight = source_columns.shape[1] / (n_projections * groups)
        return power_cost(source_columns, target_columns, 2, weight)

    return sum_over_projections(cost, directions, source, target, groups=groups, blur=sigma)


def published_loss(
    source: Tensor, target: Tensor, sigma: float, n_projections: int, groups: int = 1
) -> Tensor:
    """Return what the authors' code minimises, in units of the rows. NOT PRIVATE.

    It is the root of :func:`published_distance`, times the scale of the target.
    """
    distance = published_distance(source, target, sigma, n_projections, groups)
    return _scale(target) * distance.sqrt()


def _scale(rows: Tensor) -> Tensor:
    """Return twice the largest norm of rows (n, d), a scalar without a gradient."""
    norms = torch.linalg.vector_norm(rows.detach(), dim=1)
    return 2 * norms.max().clamp(min=1e-12)
