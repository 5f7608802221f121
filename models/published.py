"""The distances of Rakotomamonjy2021 as printed and as in its code, for comparison. NOT PRIVATE (docs/errata.md).

They differ in what divides the rows before they are projected:

- Algorithm 1: nothing. It returns the q-th power (Eq. 4), here q = 2.
- Algorithm 2: each side by twice its own largest norm.
- the authors' code: both sides by twice the largest norm of the private batch, which multiplies the root afterwards.

A largest norm moves with one record (item 4). The gradient passes through the private branch, whose Jacobian reads raw
records (item 5).
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
    """Return the squared sliced distance of noisy projections of features (n, d). NOT PRIVATE.

    Both sides are scaled, projected on fresh directions and noised; the gradient passes through both. Consecutive
    ``groups`` of rows are compared separately; ``scaling`` is that of Algorithm 1, 2 or of the authors' code.
    """
    if scaling != "none":
        source = source / _scale(source if scaling == "own" else target)
        target = target / _scale(target)
    directions = F.normalize(
        torch.randn(n_projections, source.shape[1], device=source.device), dim=1
    ).T

    def cost(columns: slice, ours: Tensor, theirs: Tensor) -> Tensor:
        return power_cost(ours, theirs, 2, ours.shape[1] / (n_projections * groups))

    return sum_over_projections(cost, directions, source, target, groups=groups, blur=sigma)


def published_loss(
    source: Tensor, target: Tensor, sigma: float, n_projections: int, groups: int = 1
) -> Tensor:
    """Return what the authors' code minimises: the root of :func:`published_distance`, in units of the rows."""
    return _scale(target) * published_distance(source, target, sigma, n_projections, groups).sqrt()


def _scale(target: Tensor) -> Tensor:
    return 2 * torch.linalg.vector_norm(target.detach(), dim=1).max().clamp(min=1e-12)
