"""Fast sorts of many columns, with the permutation only if a gradient needs it.

axes: k columns of the problem, each stored as a contiguous row here; n values per column.

``torch.sort`` always computes indices; NumPy's vectorised sort of the values alone takes a tenth of its time or less.
If a gradient needs the permutation, each float32 value and its position are packed into one float64 number, which takes
a fifth of that time. The order of equal values is arbitrary; it affects neither the sorted values nor a subgradient of
a distance.
"""

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

_THREADED = 2**18  # smallest number of values for which threads pay off
_BITS = 29  # of the significand of float64 that float32 does not use


def sort_rows(rows: Tensor) -> Tensor:
    """Return the sorted rows of a contiguous (k, n), without gradient; on the CPU ``rows`` is overwritten."""
    rows = rows.detach()
    if not _by_numpy(rows):
        return rows.sort(dim=1).values
    _each(rows.numpy(), lambda part: part.sort(axis=1))
    return rows


def sort_rows_with_order(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sorted rows of a contiguous (k, n) and their order, without gradient; nan and inf have no order."""
    rows = rows.detach()
    if not _by_numpy(rows) or rows.shape[1] >= 2**_BITS:
        values, order = rows.sort(dim=1)
        return values, order
    if rows.dtype == torch.float64:
        order = torch.from_numpy(rows.numpy().argsort(axis=1))
    else:
        order = rows.double().view(
            torch.int64
        )  # whose last bits, unused by float32, get the position
        order += torch.arange(
            2**52, 2**52 + rows.shape[1]
        )  # 2^52: one in the exponent, so that no key is denormal
        _each(order.view(torch.float64).numpy(), lambda part: part.sort(axis=1))
        order &= 2**_BITS - 1
    return rows.gather(1, order), order


def _by_numpy(rows: Tensor) -> bool:
    return rows.device.type == "cpu" and rows.dtype in (torch.float32, torch.float64)


def _each(rows: Any, work: Callable[[Any], Any]) -> None:
    """Call ``work`` on parts of the rows, in as many threads as torch has (NumPy's sort releases the GIL)."""
    threads = min(torch.get_num_threads(), len(rows))
    if threads == 1 or rows.size < _THREADED:
        work(rows)
        return
    list(_pool(os.getpid(), threads).map(work, np.array_split(rows, threads)))


@functools.lru_cache(maxsize=4)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Return a pool of threads per process; a forked process does not inherit threads."""
    return ThreadPoolExecutor(threads, thread_name_prefix="dpswd-sort")
