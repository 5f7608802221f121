"""Clipping of rows to a bound on their norm, on which every sensitivity rests."""

import torch
from torch import Tensor

# Values that are clipped at a time: they stay in the processor's cache.
_CLIPPED_AT_ONCE = 2**17
# Bounds of this size and its inverse are far from the smallest and the largest square in float32.
_SMALLEST_SINGLE = 1e-12


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


def unit_rows(rows: Tensor, row_norm: float) -> Tensor:
    """Clip every row to ``row_norm`` and divide it by that norm, in float32.

    The target is a norm of ``1 - 2 (d + 8) u`` with u = 2^-24, so that rounding leaves no row above
    1 (docs/theory/sensitivity.md, Proposition 38). Each result depends on one row only. A row whose
    norm overflows becomes zero. The norms of float32 rows are computed in float32, unless squares
    of the order of ``row_norm`` would be denormal.

    Args:
        rows: Rows (n, d), d <= 2^16.
        row_norm: Bound on the norm of a row.

    Returns:
        Rows (n, d) of norm at most 1.
    """
    rows = rows.detach()
    largest = 1 - 2 * (rows.shape[1] + 8) * 2.0**-24
    if rows.dtype == torch.float32 and _SMALLEST_SINGLE <= row_norm <= 1 / _SMALLEST_SINGLE:
        norms: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        return rows * (largest / norms).clamp(max=largest / row_norm)
    units = torch.empty(rows.shape, dtype=torch.float32, device=rows.device)
    n_rows = max(1, _CLIPPED_AT_ONCE // max(1, rows.shape[1]))
    for part, target in zip(rows.split(n_rows), units.split(n_rows), strict=True):
        wide = part.to(torch.float64, copy=True)
        norms = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
        target.copy_(wide.mul_((largest / norms).clamp(max=largest / row_norm)))
    return units
