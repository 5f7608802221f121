"""Fast sorts of many columns, with the permutation only if a gradient needs it.

axes: k columns of the problem, each stored as a contiguous row here; n values per column.

``torch.sort`` always computes indices. NumPy's vectorised sort of the values alone takes a tenth of
its time or less. If a gradient needs the permutation, each float32 value and its position are
packed into one float64 number, whose sort takes a fifth of that time. The order of equal values is
arbitrary; it affects neither the sorted values nor a subgradient of a distance.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpswd._threads import run_in_threads

# Smallest number of values for which threads pay off.
_THREADED = 2**18
# Bits of the significand of float64 that float32 does not use.
_BITS = 29


def plain_sort_rows_with_order(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sorted rows of (k, n) and their order by torch, without gradient."""
    values, order = rows.detach().sort(dim=1)
    return values, order


def sort_rows(rows: Tensor) -> Tensor:
    """Return the sorted rows of a contiguous (k, n), without gradient.

    On the CPU ``rows`` is overwritten.
    """
    rows = rows.detach()
    if not _by_numpy(rows):
        values, _ = plain_sort_rows_with_order(rows)
        return values
    _sort_in_place(rows.numpy())
    return rows


def sort_rows_with_order(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sorted rows of a contiguous (k, n) and their order, without gradient.

    Rows with nan keep it, so that a loss of them is nan.
    """
    rows = rows.detach()
    if not _by_numpy(rows) or rows.shape[1] >= 2 ** (_BITS - 1):
        return plain_sort_rows_with_order(rows)
    if rows.dtype == torch.float64:
        order = torch.from_numpy(rows.numpy().argsort(axis=1))
        return rows.gather(1, order), order
    if not math.isfinite(rows.sum()):  # nan and infinity cannot be packed
        return plain_sort_rows_with_order(rows)
    return _sorted_packed(rows)


def _sorted_packed(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Sort float32 values (k, n) and their positions, packed into float64 numbers."""
    # the last bits, which float32 does not use, get the position
    keys = rows.double().view(torch.int64)
    # 2^52 is one in the exponent, so that no key is denormal; it doubles the value
    keys += torch.arange(2**52, 2**52 + rows.shape[1])
    doubled = keys.view(torch.float64)
    _sort_in_place(doubled.numpy())
    # the position is less than half of the last bit of float32, which the conversion rounds away
    values = doubled.mul(0.5).float()
    keys &= 2**_BITS - 1
    return values, keys


def _by_numpy(rows: Tensor) -> bool:
    """Return whether NumPy's sort can be used."""
    return rows.device.type == "cpu" and rows.dtype in (torch.float32, torch.float64)


def _sort_in_place(rows: NDArray[np.floating]) -> None:
    """Sort the rows in as many threads as torch has; NumPy's sort releases the GIL."""
    if rows.size < _THREADED:
        rows.sort(axis=1)
        return
    run_in_threads(_sort_part, np.array_split(rows, torch.get_num_threads()))


def _sort_part(rows: NDArray[np.floating]) -> None:
    """Sort the rows of one thread."""
    rows.sort(axis=1)
