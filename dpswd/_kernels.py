"""Fast kernels of the distances, each beside a plain reference implementation.

A kernel works in place, in chunks of directions, and computes gradients with the values in one
pass. The plain function of the same name, ``plain_...``, says in a few lines of torch what it
computes; the tests compare the two.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dpswd._compiling import uncompiled
from dpswd._sorting import sort_rows, sort_rows_with_order
from dpswd.structured import StructuredProjections, add_transposed_frame, apply_frame

__all__ = ["block_means", "padded_block_means", "power_cost", "sum_over_projections"]

# Bytes per thread that are sorted and compared together: they stay in the processor's cache.
_CACHE_BYTES = 2**22
# Bytes of projected values and their copies at a time.
_MAX_BYTES = 2**27
# Blocks that are averaged by one product where they share values, at most.
_TILE = 32
# Values in them, about, unless one block has more.
_TILE_VALUES = 512
# Values in a block up to which their products are added in float32.
_FEW = 16
# Upper bound on the copies of a projected value: packed, sorted, order, residual, gradient.
_COPIES = 10

# A criterion gets a slice of the directions and the sorted projections of every sample, and returns
# a scalar.
Criterion = Callable[..., Tensor]

# Directions (d, k), or structured slices in their place.
Projections = Tensor | StructuredProjections


def project(rows: Tensor, projections: Projections) -> Tensor:
    """Return the projections (N, k) of rows (N, d), with a gradient in the rows."""
    if isinstance(projections, StructuredProjections):
        return projections.project(rows)
    return rows @ projections


# The sum of a criterion over the directions


def plain_sum_over_projections(
    criterion: Criterion, projections: Projections, *samples: Tensor, groups: int = 1
) -> Tensor:
    """Compute :func:`sum_over_projections` in one chunk, by torch's sort."""
    columns = []
    for sample in samples:
        rows = project(sample, projections).T  # (k, n)
        rows = rows.reshape(len(rows) * groups, -1)
        columns.append(rows.sort(dim=1).values.T)
    return criterion(slice(0, projections.shape[1]), *columns)


@uncompiled
def sum_over_projections(
    criterion: Criterion,
    projections: Projections,
    *samples: Tensor,
    groups: int = 1,
    blur: float = 0.0,
) -> Tensor:
    """Sum a criterion of sorted projections over chunks of the directions.

    The gradient of a chunk is propagated to the samples before the next chunk is projected, so that
    the memory is that of the gradients and of a chunk. A chunk of structured slices is a frame. The
    result can be differentiated once, in the samples only.

    Args:
        criterion: ``criterion(columns, *sorted)`` gets a slice of the directions and every sample's
            sorted projections (n, columns), which it may overwrite, and returns a scalar.
        projections: Directions (d, k) of the type of the samples, or structured slices.
        samples: Samples (n, d), whose n may differ; float32 or float64 for structured slices.
        groups: Number of consecutive parts of equal size of every sample that are sorted
            separately. They are given as (n / groups, columns * groups), all parts of a direction
            side by side.
        blur: Standard deviation of normal numbers that are added to every projection before the
            sort. They give no privacy.

    Returns:
        Scalar tensor.
    """
    needs_gradient = [torch.is_grad_enabled() and sample.requires_grad for sample in samples]
    chunks = _Chunks.of(projections, samples)
    total = _ChunkedSum(criterion, projections, needs_gradient, chunks, groups, blur)
    with torch.autocast(projections.device.type, enabled=False):
        return cast(Tensor, _WithGradients.apply(total, *samples))


@dataclass(frozen=True)
class _Chunks:
    """Numbers of directions that are projected, and that are sorted, at a time."""

    n_projected: int
    n_sorted: int

    @classmethod
    def of(cls, projections: Projections, samples: Sequence[Tensor]) -> "_Chunks":
        """Choose sizes that keep the sorts in the cache and the projections in the memory."""
        n_values = max(1, sum(len(sample) for sample in samples))
        bytes_per_direction = samples[0].element_size() * n_values
        cached = _MAX_BYTES
        if projections.device.type == "cpu":
            cached = _CACHE_BYTES * torch.get_num_threads()
        n_sorted = max(1, min(_MAX_BYTES, cached) // (_COPIES * bytes_per_direction))
        # the projections lie in the memory beside the copies of the sorts
        n_in_memory = _MAX_BYTES // bytes_per_direction - _COPIES * n_sorted
        k = projections.shape[1]
        n_chunks = _divided_up(k, max(n_sorted, n_in_memory))
        return cls(n_projected=_divided_up(k, max(1, n_chunks)), n_sorted=n_sorted)


@dataclass(frozen=True)
class _Directions:
    """Some of the directions, whose samples are projected together."""

    start: int  # index of the first one
    u: Tensor  # (d, columns)

    def project(self, sample: Tensor) -> Tensor:
        """Project a sample (n, d): (columns, n), since sorts run in contiguous memory."""
        return torch.matmul(self.u.T, sample.T)

    def add_gradient(self, rows: Tensor, total: Tensor | None) -> Tensor:
        """Add the gradient of a sample to a total (n, d), and return the total.

        Args:
            rows: Gradient (columns, n) of the sample's projections.
            total: The total so far; ``None`` for zero.
        """
        if total is None:
            return rows.T @ self.u.T
        return total.addmm_(rows.T, self.u.T)


@dataclass(frozen=True)
class _Frame:
    """A frame of structured slices; the methods are those of :class:`_Directions`."""

    start: int
    signs: Tensor  # (3, n)
    dim: int

    def project(self, sample: Tensor) -> Tensor:
        """Project a sample."""
        return apply_frame(self.signs, sample)

    def add_gradient(self, rows: Tensor, total: Tensor | None) -> Tensor:
        """Add the gradient of a sample to a total, and return the total."""
        if total is None:
            total = rows.new_zeros(rows.shape[1], self.dim)
        add_transposed_frame(self.signs, rows, total)
        return total


def _chunks_of(projections: Projections, n_projected: int) -> Iterator[_Directions | _Frame]:
    """Yield chunks of the directions; a frame is one chunk."""
    if isinstance(projections, StructuredProjections):
        size = projections.signs.shape[-1]
        for number, signs in enumerate(projections.signs):
            yield _Frame(number * size, signs, projections.dim)
        return
    directions = projections.detach()
    for start in range(0, directions.shape[1], n_projected):
        yield _Directions(start, directions[:, start : start + n_projected])


def _divided_up(number: int, divisor: int) -> int:
    """Divide and round up."""
    return -(-number // divisor)


@dataclass(frozen=True)
class _ChunkedSum:
    """The sum of :func:`sum_over_projections` as a function of the samples.

    Attributes:
        criterion: As in :func:`sum_over_projections`; so are projections, groups and blur.
        needs_gradient: Whether a gradient is needed, for every sample.
        chunks: Numbers of directions that are projected and sorted at a time.
    """

    criterion: Criterion
    projections: Projections
    needs_gradient: list[bool]
    chunks: _Chunks
    groups: int
    blur: float

    def __call__(self, *samples: Tensor) -> tuple[Tensor, list[Tensor | None]]:
        """Return the value, and the gradient of every sample that needs one."""
        gradients: list[Tensor | None] = [None] * len(samples)
        dtype = samples[0].dtype
        total = samples[0].new_zeros((), dtype=torch.promote_types(dtype, torch.float32))
        for chunk in _chunks_of(self.projections, self.chunks.n_projected):
            rows = [chunk.project(sample) for sample in samples]
            if self.blur:
                for row in rows:
                    self._add_blur(row)
            self._add_costs(total, chunk.start, rows)
            for i, row in enumerate(rows):
                if self.needs_gradient[i]:
                    gradients[i] = chunk.add_gradient(row, gradients[i])
        return total.to(dtype), gradients

    def _add_blur(self, row: Tensor) -> None:
        """Add normal numbers to projections (columns, n), some columns at a time."""
        for part in row.split(self.chunks.n_sorted):
            part.add_(torch.randn_like(part), alpha=self.blur)

    def _add_costs(self, total: Tensor, start: int, rows: list[Tensor]) -> None:
        """Add the costs of projections (columns, n), and replace these by gradients.

        ``start`` is the index of the first direction.
        """
        n_columns = len(rows[0])
        for first in range(0, n_columns, self.chunks.n_sorted):
            part = [row[first : first + self.chunks.n_sorted] for row in rows]
            columns = slice(start + first, start + first + len(part[0]))
            if self.groups > 1:
                part = [row.view(len(row) * self.groups, -1) for row in part]
            total += _chunk_cost(self.criterion, columns, part, self.needs_gradient)


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
        if outer.device.type == "cpu" and outer.item() == 1:  # saves a copy
            return None, *ctx.saved_tensors
        products = []
        for gradient in ctx.saved_tensors:
            if gradient is not None:
                gradient = outer * gradient
            products.append(gradient)
        return None, *products


def _chunk_cost(
    criterion: Criterion, columns: slice, rows: list[Tensor], needs_gradient: list[bool]
) -> Tensor:
    """Return the criterion of projected samples (columns, n).

    The projections of every sample that needs a gradient are overwritten by it.
    """
    sorted_rows = []
    orders = []
    for row, is_needed in zip(rows, needs_gradient, strict=True):
        order = None
        if is_needed:
            values, order = sort_rows_with_order(row)
        else:
            values = sort_rows(row)
        sorted_rows.append(values.requires_grad_(is_needed))
        orders.append(order)
    with torch.set_grad_enabled(any(needs_gradient)):
        value = criterion(columns, *(values.T for values in sorted_rows))
    if any(needs_gradient):
        leaves = [values for values in sorted_rows if values.requires_grad]
        gradients = iter(torch.autograd.grad(value, leaves))
        for row, order in zip(rows, orders, strict=True):
            if order is not None:
                row.scatter_(1, order, next(gradients))
    return value.detach()


# Block means


def plain_block_means(sorted_values: Tensor, blocks: int) -> Tensor:
    """Compute :func:`block_means` by repeating every value ``blocks`` times."""
    n, columns = sorted_values.shape
    repeated = sorted_values.repeat_interleave(blocks, dim=0)  # (n blocks, k)
    return repeated.reshape(blocks, n, columns).mean(dim=1)


def block_means(sorted_values: Tensor, blocks: int) -> Tensor:
    r"""Average the quantile function over ``blocks`` equal parts of [0, 1].

    If ``blocks`` divides n, a part is n / blocks neighbours. Otherwise the values at its ends are
    weighted by the fraction inside: :math:`b \int_{i/b}^{(i+1)/b} Q(t)\,dt`.

    Args:
        sorted_values: Values (n, k), every column in ascending order.
        blocks: Number b of blocks, which may be above n.

    Returns:
        Means (b, k).
    """
    n = sorted_values.shape[0]
    if n == blocks:
        return sorted_values
    if n % blocks == 0:
        rows = sorted_values.T  # contiguous, where the values were sorted
        return rows.reshape(-1, blocks, n // blocks).mean(dim=2).T
    return _weighted_means(sorted_values, _Overlaps.of(sorted_values, n, blocks, 0))


@dataclass(frozen=True)
class _Overlaps:
    """Overlaps of consecutive values of a column with equal blocks.

    The n values start at position ``first`` of a column of ``size`` values. Value j overlaps the
    interval of block i by a part of it, which is its weight in the mean. The matrix of weights is a
    band, and is multiplied with in tiles of blocks.
    """

    n: int
    size: int
    blocks: int
    first: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, sorted_values: Tensor, size: int, blocks: int, first: int) -> "_Overlaps":
        """Return the overlaps of sorted values (n, k)."""
        values = sorted_values
        return cls(len(values), size, blocks, first, values.dtype, values.device)

    def tiles(self) -> Iterator[tuple[slice, slice]]:
        """Yield consecutive slices of blocks, and of the values that overlap them."""
        touched = self.first * self.blocks // self.size
        end = _divided_up((self.first + self.n) * self.blocks, self.size)
        n_blocks = max(1, min(_TILE, _TILE_VALUES * self.blocks // self.size))
        for start in range(touched, end, n_blocks):
            stop = min(start + n_blocks, end)
            lowest = max(0, start * self.size // self.blocks - self.first)
            highest = min(self.n, _divided_up(stop * self.size, self.blocks) - self.first)
            yield slice(start, stop), slice(lowest, highest)

    def weights(self, blocks: slice, values: slice) -> Tensor:
        """Return the weights (values, blocks) of a tile.

        They are of float64 where a sum in float32 would lose digits.
        """
        block = torch.arange(blocks.start, blocks.stop, device=self.device)
        value = torch.arange(values.start, values.stop, device=self.device)[:, None] + self.first
        # in units of 1 / (size * blocks) of the column, such that ends are integers
        start = torch.maximum(block * self.size, value * self.blocks)
        stop = torch.minimum((block + 1) * self.size, (value + 1) * self.blocks)
        overlap = (stop - start).clamp(min=0)
        dtype = self.dtype
        if self.size > _FEW * self.blocks:
            dtype = torch.float64
        return (overlap.double() / self.size).to(dtype)


def _weighted_means(sorted_values: Tensor, *overlaps: _Overlaps) -> Tensor:
    """Return sums over overlaps of the means (b, k) of blocks of values (n, k).

    For two overlaps the values are their negative and their positive parts.
    """
    rows = sorted_values.T  # contiguous, where the values were sorted
    return cast(Tensor, _WeightedMeans.apply(rows, overlaps)).T


class _WeightedMeans(torch.autograd.Function):
    """Means (k, b) of blocks of rows (k, n)."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, overlaps: tuple[_Overlaps, ...]) -> Tensor:
        ctx.overlaps = overlaps
        ctx.save_for_backward(rows)
        means = rows.new_zeros(len(rows), overlaps[0].blocks)
        for overlap, part in zip(overlaps, _signed_parts(rows, len(overlaps)), strict=True):
            for blocks, values in overlap.tiles():
                weights = overlap.weights(blocks, values)
                means[:, blocks] += part[:, values].to(weights.dtype) @ weights
        return means

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        gradients = []
        for overlap in ctx.overlaps:
            gradient = torch.zeros_like(rows)
            for blocks, values in overlap.tiles():
                weights = overlap.weights(blocks, values).to(outer.dtype)
                gradient[:, values].addmm_(outer[:, blocks], weights.T)
            gradients.append(gradient)
        if len(gradients) == 1:
            return gradients[0], None
        negative_gradient, positive_gradient = gradients
        return torch.where(rows < 0, negative_gradient, positive_gradient), None


def _signed_parts(rows: Tensor, number: int) -> list[Tensor]:
    """Return the rows alone, or their negative and their positive parts."""
    if number == 1:
        return [rows]
    return [rows.clamp(max=0), rows.clamp(min=0)]


def plain_padded_block_means(sorted_values: Tensor, size: int, blocks: int) -> Tensor:
    """Compute :func:`padded_block_means` by padding and sorting again."""
    n, columns = sorted_values.shape
    zeros = sorted_values.new_zeros(size - n, columns)
    padded = torch.cat([sorted_values, zeros]).sort(dim=0).values
    return plain_block_means(padded, blocks)


def padded_block_means(sorted_values: Tensor, size: int, blocks: int) -> Tensor:
    """Compute :func:`block_means` of columns that are padded with zeros.

    The padded columns are sorted again. The zeros lie between the negative and the positive values,
    so a padded column is the sum of the negative parts followed by zeros and of zeros followed by
    the positive parts. Both are sorted.

    Args:
        sorted_values: Values (n, k), every column in ascending order.
        size: Number of values of the padded column, at least n.
        blocks: Number b of blocks.

    Returns:
        Means (b, k).
    """
    n, columns = sorted_values.shape
    if n == size:
        return block_means(sorted_values, blocks)
    if size % blocks:
        at_the_start = _Overlaps.of(sorted_values, size, blocks, 0)
        at_the_end = _Overlaps.of(sorted_values, size, blocks, size - n)
        return _weighted_means(sorted_values, at_the_start, at_the_end)
    negative = sorted_values.clamp(max=0)
    positive = sorted_values.clamp(min=0)
    # whole blocks: all but the first and the last few are zero
    width = size // blocks
    n_touched = _divided_up(n, width)
    fill = sorted_values.new_zeros(n_touched * width - n, columns)
    shape = (n_touched, width, columns)
    below = torch.cat([negative, fill]).reshape(shape).mean(dim=1)
    above = torch.cat([fill, positive]).reshape(shape).mean(dim=1)
    rest = sorted_values.new_zeros(blocks - n_touched, columns)
    return torch.cat([below, rest]) + torch.cat([rest, above])


# The cost of a direction


def plain_power_cost(ours: Tensor, theirs: Tensor, p: float = 2, weight: float = 1.0) -> Tensor:
    """Compute :func:`power_cost` without overwriting anything."""
    return (ours - theirs).abs().pow(p).mean() * weight


def power_cost(ours: Tensor, theirs: Tensor, p: float = 2, weight: float = 1.0) -> Tensor:
    """Compute ``weight`` times the mean of ``|ours - theirs| ** p``.

    For p = 2 ``ours`` is overwritten.
    """
    if p != 2:
        return plain_power_cost(ours, theirs, p, weight)
    return cast(Tensor, _MeanSquare.apply(ours, theirs, weight / ours.numel()))


class _MeanSquare(torch.autograd.Function):
    """``factor * |ours - theirs|^2``, computed in place.

    ``ours`` is overwritten by the difference, and the difference by the gradient.
    """

    @staticmethod
    def forward(ctx: Any, ours: Tensor, theirs: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        ctx.difference = ours.sub_(theirs)
        length: Tensor = torch.linalg.vector_norm(ctx.difference)
        return length.square() * factor

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        needs_ours, needs_theirs, _ = ctx.needs_input_grad
        if needs_ours:
            gradient = ctx.difference.mul_(outer * (2 * ctx.factor))
            return gradient, (-gradient if needs_theirs else None), None
        return None, ctx.difference.mul_(outer * (-2 * ctx.factor)), None
