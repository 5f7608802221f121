"""Clipping of rows to a bound on their norm, on which every sensitivity rests."""

import torch
from torch import Tensor

# Values that are clipped at a time: they stay in the processor's cache.
_CLIPPED_AT_ONCE = 2**17


def clip_rows(rows: Tensor, row_norm: float) -> Tensor:
    """Scale every row with an L2 norm above ``row_norm`` down to that norm.

    Rows are scaled one by one, in float64. The target is ``row_norm (1 - 1e-12 - d u)`` with u =
    2^-53, so that rounding cannot leave a row above the bound (docs/theory/sensitivity.md,
    Proposition 1). A row whose norm overflows becomes zero.
    """
    rows = rows.detach()
    clipped = torch.empty(rows.shape, dtype=torch.float64, device=rows.device)
    margin = 1e-12 + rows.shape[1] * 2.0**-53
    n_rows = max(1, _CLIPPED_AT_ONCE // max(1, rows.shape[1]))
    for part, clipped_part in zip(rows.split(n_rows), clipped.split(n_rows), strict=True):
        clipped_part.copy_(part)
        norms: Tensor = torch.linalg.vector_norm(clipped_part, dim=1, keepdim=True)
        clipped_part.mul_((row_norm * (1 - margin) / norms).clamp(max=1.0))
    return clipped
