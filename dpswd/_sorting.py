"""Sorting along contiguous memory, with the fastest sort at hand; the order of the values only where it is wanted.

axes: k columns of the problem, each one a contiguous row here; n values in it.

Measured on one core, 1000 x 1000 values of float32 (docs/performance.md): ``torch.sort``, which always makes indices,
takes about 30 times as long as NumPy's vectorised sort of the values alone. Where a gradient needs to know which value
went where, every float32 value and its position are packed into one float64 number: about 10 times as fast as
``torch.sort``. (Equal values may come in any order, which leaves every value and the gradient of every
distance as they are: a subgradient.)
"""

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["SortBuffer", "sort_columns", "sort_rows", "sort_rows_with_order"]

_THREADED = 2**15  # values from which several threads pay


def sort_columns(values: Tensor) -> Tensor:
    """Sorts every column.

    Args:
        values: (n, k); columns that are contiguous in memory (the transpose of a contiguous (k, n)) are not copied.

    Returns:
        Tensor (n, k), differentiable; every column contiguous in memory.
    """
    rows = values.T.contiguous()
    if torch.is_grad_enabled() and rows.requires_grad:
        result: Tensor = _Sort.apply(rows)
        return result.T
    return sort_rows(rows).T


def sort_rows(rows: Tensor, *, in_place: bool = False) -> Tensor:
    """Sorts every row of a contiguous (k, n), without a gradient. In place it needs no memory on the CPU."""
    rows = rows.detach()
    if not _by_numpy(rows):
        return rows.sort(dim=1).values
    result = rows if in_place else rows.clone(memory_format=torch.contiguous_format)
    _each(result.numpy(), lambda part: part.sort(axis=1))
    return result


class SortBuffer:
    """Memory for :func:`sort_rows_with_order` that is used again: fresh pages cost more than what is done on them."""

    def __init__(self) -> None:
        self._parts: dict[torch.dtype, Tensor] = {}

    def like(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Returns memory of the shape of ``rows``, the same one for the same type: what it held is lost."""
        held = self._parts.get(dtype)
        if held is None or held.numel() < rows.numel():
            held = self._parts[dtype] = torch.empty(rows.numel(), dtype=dtype)
        return held.detach()[: rows.numel()].view(rows.shape)


def sort_rows_with_order(rows: Tensor, space: SortBuffer | None = None) -> tuple[Tensor, Tensor]:
    """Sorts every row of a contiguous (k, n), without a gradient.

    Args:
        rows: (k, n).
        space: Where the result may lie; the next call with it writes over it. ``None`` for new memory.

    Returns:
        The values (k, n) and where they came from: ``values = rows.gather(1, order)``, both of them (k, n).
    """
    rows = rows.detach()
    if not _by_numpy(rows):
        values, order = rows.sort(dim=1)
        return values, order
    space = space or SortBuffer()
    if rows.dtype == torch.float32 and rows.shape[1] < 2**29:
        order = _packed_order(rows, space.like(rows, torch.int64))
    else:
        order = torch.empty(rows.shape, dtype=torch.int64)
        source, target = rows.numpy(), order.numpy()
        _each(np.arange(len(source)), lambda part: target.__setitem__(part, source[part].argsort(axis=1)))
    return torch.gather(rows, 1, order, out=space.like(rows, rows.dtype)), order


def _packed_order(rows: Tensor, keys: Tensor) -> Tensor:
    """Sorts float64 numbers, in the memory of ``keys``, whose last 29 bits, which float32 leaves empty, are positions.

    One is added to the exponent, so that a zero with a position is a normal number and no flushing of denormal ones
    can touch it. Order is not defined for nan and inf (every distance that sees them is nan or inf in any case).
    """
    keys.view(torch.float64).copy_(rows)
    keys += torch.arange(2**52, 2**52 + rows.shape[1])
    _each(keys.view(torch.float64).numpy(), lambda part: part.sort(axis=1))
    keys &= 2**29 - 1
    return keys


def _by_numpy(rows: Tensor) -> bool:
    return rows.device.type == "cpu" and rows.dtype in (torch.float32, torch.float64)


def _each(rows: Any, work: Callable[[Any], Any]) -> None:
    """Does the work on parts of the rows, as many at a time as torch has threads (NumPy's sort lets others run)."""
    threads = min(torch.get_num_threads(), len(rows))
    if threads == 1 or rows.size < _THREADED:
        work(rows)
        return
    list(_pool(os.getpid(), threads).map(work, np.array_split(rows, threads)))


@functools.lru_cache(maxsize=4)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Threads that are kept; a forked process, which has lost them, gets its own."""
    return ThreadPoolExecutor(threads, thread_name_prefix="dpswd-sort")


class _Sort(torch.autograd.Function):
    """Sorted rows whose gradient is scattered back to where the values came from."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        values, order = sort_rows_with_order(rows)
        ctx.save_for_backward(order)
        return values

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (order,) = ctx.saved_tensors
        return torch.empty_like(gradient).scatter(1, order, gradient)
