"""Fast kernels of the distances: chunks of directions, gradients in one pass, block means."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dpswd._sorting import sort_rows, sort_rows_with_order

__all__ = ["block_means", "padded_block_means", "power_cost", "sum_over_projections"]

_CACHE_BYTES = (
    2**24
)  # per thread: values that are sorted and compared together stay in the processor's cache


_MAX_BYTES = 2**27  # of projected values and their copies at a time


_COPIES = (
    10  # upper bound on the copies of a projected value: packed, sorted, order, residual, gradient
)


def sum_over_projections(
    criterion: Callable[..., Tensor],
    projections: Tensor,
    *samples: Tensor,
    groups: int = 1,
    blur: float = 0.0,
) -> Tensor:
    """Sum a criterion of sorted projections over chunks of the directions.

    The gradient of a chunk is propagated to the samples before the next chunk is projected, so that the memory is that
    of the gradients and of a chunk. The result can be differentiated once, in the samples (n, d) only.

    ``criterion(columns, *sorted)`` gets a slice of the directions and every sample's sorted projections (n, columns),
    which it may overwrite, and returns a scalar. With ``groups``, consecutive parts of equal size are sorted separately
    and given as (n / groups, columns * groups), all parts of a direction side by side. ``blur`` is the standard
    deviation of normal numbers that are added to every projection before the sort; they give no privacy.
    """
    k = projections.shape[1]
    per_direction = projections.element_size() * max(
        1, sum(len(sample) for sample in samples)
    )  # bytes
    cached = (
        _CACHE_BYTES * torch.get_num_threads() if projections.device.type == "cpu" else _MAX_BYTES
    )
    n_sorted = max(1, min(_MAX_BYTES, cached) // (_COPIES * per_direction))  # directions at a time
    n_chunks = -(-k // max(n_sorted, _MAX_BYTES // per_direction - _COPIES * n_sorted))
    n_projected = -(-k // max(1, n_chunks))  # beside the copies of the sorts within the memory
    projections = projections.detach()
    moving = [torch.is_grad_enabled() and sample.requires_grad for sample in samples]

    def compute(*samples: Tensor) -> tuple[Tensor, list[Tensor | None]]:
        """Return value and gradients; matrix products for ``n_projected`` directions, sorts for ``n_sorted``."""
        gradients = [
            torch.zeros_like(sample) if moves else None
            for sample, moves in zip(samples, moving, strict=True)
        ]
        total = projections.new_zeros(
            (), dtype=torch.promote_types(projections.dtype, torch.float32)
        )
        for start in range(0, k, n_projected):
            u = projections[:, start : start + n_projected]
            rows = [
                torch.matmul(u.T, sample.T) for sample in samples
            ]  # (columns, n): sorts run in contiguous memory
            for row in rows if blur else ():
                row.add_(torch.randn_like(row), alpha=blur)
            for at in range(0, u.shape[1], n_sorted):
                some = [row[at : at + n_sorted] for row in rows]
                columns = slice(start + at, start + at + len(some[0]))
                some = [row.view(len(row) * groups, -1) for row in some] if groups > 1 else some
                total += _chunk_cost(criterion, columns, some, moving)
            for gradient, row in zip(gradients, rows, strict=True):
                if gradient is not None:
                    gradient.addmm_(row.T, u.T)
        return total.to(projections.dtype), gradients

    with torch.autocast(projections.device.type, enabled=False):
        return cast(Tensor, _WithGradients.apply(compute, *samples))


class _WithGradients(torch.autograd.Function):
    """Value of a function that returns the gradients of the samples with it."""

    @staticmethod
    def forward(
        ctx: Any, compute: Callable[..., tuple[Tensor, list[Tensor | None]]], *samples: Tensor
    ) -> Tensor:
        value, gradients = compute(*samples)
        ctx.save_for_backward(*gradients)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        one = outer.device.type == "cpu" and outer.item() == 1  # saves a copy
        return None, *(each if each is None or one else outer * each for each in ctx.saved_tensors)


def _chunk_cost(
    criterion: Callable[..., Tensor], columns: slice, rows: list[Tensor], moving: list[bool]
) -> Tensor:
    """Return the criterion of projected samples (columns, n) and overwrite each with its gradient if it has one."""
    pairs = [
        sort_rows_with_order(row) if moves else (sort_rows(row), None)
        for row, moves in zip(rows, moving, strict=True)
    ]
    leaves = [
        values.requires_grad_(moves) for (values, _), moves in zip(pairs, moving, strict=True)
    ]
    with torch.set_grad_enabled(any(moving)):
        value = criterion(columns, *(leaf.T for leaf in leaves))
    if any(moving):
        wrt = iter(torch.autograd.grad(value, [leaf for leaf in leaves if leaf.requires_grad]))
        for row, (_, order) in zip(rows, pairs, strict=True):
            if order is not None:
                row.scatter_(1, order, next(wrt))
    return value.detach()


def block_means(sorted_values: Tensor, blocks: int) -> Tensor:
    r"""Average the quantile function over ``blocks`` equal parts of [0, 1].

    If ``blocks`` divides n, a part is n / blocks neighbours. Otherwise the values at its ends are weighted by the
    fraction inside: :math:`b \int_{i/b}^{(i+1)/b} Q(t)\,dt`, computed from the piecewise linear integral of Q.
    Maps (n, k), every column in ascending order, to (b, k), also for b > n.
    """
    n = sorted_values.shape[0]
    if n == blocks:
        return sorted_values
    if n % blocks == 0:
        return sorted_values.reshape(blocks, n // blocks, -1).mean(dim=1)
    exact = sorted_values.to(torch.float64)  # differences of cumulative sums cancel in float32
    integral = torch.cat(
        [torch.zeros_like(exact[:1]), exact.cumsum(dim=0)]
    )  # n times the integral of Q
    edges = (
        torch.arange(1, blocks, device=sorted_values.device) * n
    )  # in units of 1 / blocks of a value
    below = edges // blocks
    inside = ((edges % blocks).to(exact.dtype) / blocks)[:, None]
    cuts = integral[below] + inside * exact[below]
    cuts = torch.cat([integral[:1], cuts, integral[-1:]])
    return (cuts.diff(dim=0) * (blocks / n)).to(sorted_values.dtype)


def padded_block_means(sorted_values: Tensor, size: int, blocks: int) -> Tensor:
    """Compute :func:`block_means` of a column padded with zeros to ``size`` values and sorted again.

    The zeros lie between the negative and the positive values, so the padded column is the sum of the negative parts
    followed by zeros and of zeros followed by the positive parts. Both are sorted.
    """
    n, columns = sorted_values.shape
    if n == size:
        return block_means(sorted_values, blocks)
    negative, positive = sorted_values.clamp(max=0), sorted_values.clamp(min=0)
    if size % blocks:
        zeros = sorted_values.new_zeros(size - n, columns)
        return block_means(torch.cat([negative, zeros]) + torch.cat([zeros, positive]), blocks)
    # whole blocks: all but the first and the last few are zero
    width = size // blocks
    touched = -(-n // width)
    fill = sorted_values.new_zeros(touched * width - n, columns)
    below, above = torch.cat([negative, fill]), torch.cat([fill, positive])
    below, above = (part.reshape(touched, width, columns).mean(dim=1) for part in (below, above))
    rest = sorted_values.new_zeros(blocks - touched, columns)
    return torch.cat([below, rest]) + torch.cat([rest, above])


def power_cost(ours: Tensor, theirs: Tensor, p: float = 2, weight: float = 1.0) -> Tensor:
    """Compute ``weight`` times the mean of ``|ours - theirs| ** p``. For p = 2 ``ours`` is overwritten."""
    if p != 2:
        return (ours - theirs).abs().pow(p).mean() * weight
    return cast(Tensor, _MeanSquare.apply(ours, theirs, weight / ours.numel()))


class _MeanSquare(torch.autograd.Function):
    """``factor * |ours - theirs|^2``, computed in place: ``ours`` is overwritten by the difference."""

    @staticmethod
    def forward(ctx: Any, ours: Tensor, theirs: Tensor, factor: float) -> Tensor:
        ctx.factor, ctx.difference = factor, ours.sub_(theirs)
        length: Tensor = torch.linalg.vector_norm(ctx.difference)
        return length.square() * factor

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        first, second, _ = ctx.needs_input_grad
        gradient = ctx.difference.mul_(outer * ((2 if first else -2) * ctx.factor))
        return (
            gradient if first else None,
            (-gradient if first else gradient) if second else None,
            None,
        )
