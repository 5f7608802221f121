r"""Walsh-Hadamard transforms on the CPU, as products with small matrices.

axes: n entries of a column, a power of two; N columns; K order of a small matrix, at most 32.

The Walsh-Hadamard matrix of order n is a Kronecker product of small ones. Each of these multiplies
one part of the bits of an index. A *step* is such a product; two or three steps are a transform.
Signs and scales stand in the small matrices, so that they take no pass of their own.

Products are by NumPy, in float32 or float64, since torch can be set to lower precision. A small
matrix has one entry and its negative, which is a power of two for private rows. Sums of integers
then have no rounding error where their absolute values add up to at most 2^24, or 2^53
(docs/theory/sensitivity.md, Proposition 33); :func:`products_are_exact` checks that.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import torch
from numpy.typing import NDArray

from dpswd._threads import run_in_threads

# Bits of an index that a step transforms, at most.
_MOST_BITS = 5
# Columns that a small matrix is multiplied with at a time: the fastest for its order.
_WIDTH = 256
# Values that are transformed at a time: they stay in the processor's cache.
_CACHED_VALUES = 2**18
# Columns that are transformed at a time, at least.
_FEWEST_COLUMNS = 32
# Numbers after each part of a working array. Without them, parts share few lines of the cache.
_GAP = 16

Array = NDArray[np.floating]
FloatType = np.dtype[np.floating]


@dataclass(frozen=True)
class _Step:
    """Product with small matrices.

    Columns (n, N) have the shape (b, n / b, N) here, with b the order of the last step.

    Attributes:
        matrices: Matrices (b, n / (b K), K, K) for consecutive parts of a column, or one for all
            (1, 1, K, K).
        stride: Distance of the entries of a column that one product combines.
    """

    matrices: Array
    stride: int

    def multiply(self, columns: Array, out: Array) -> None:
        """Write the product with columns (b, n / b, N) to ``out`` of the same shape."""
        n_first, n_inner, n_columns = columns.shape
        order = self.matrices.shape[-1]
        width = n_columns
        if columns[0].flags.c_contiguous and out[0].flags.c_contiguous:
            width = _width(self.stride, n_columns)
        n_parts = self.stride * n_columns // width
        shape = (n_first, n_inner // (order * self.stride), order, n_parts, width)
        if self.stride == n_inner:
            shape = (1, 1, order, n_parts, width)
        # these are views: axes are split, or those of a contiguous array
        parts = columns.reshape(shape).swapaxes(2, 3)
        out_parts = out.reshape(shape).swapaxes(2, 3)
        np.matmul(self.matrices[:, :, None], parts, out=out_parts)

    def transposed(self) -> "_Step":
        """Return the step of the transposed matrices."""
        return _Step(self.matrices.swapaxes(2, 3), self.stride)


@dataclass(frozen=True)
class Rounds:
    """Rounds of signs, a transform and a scale: a matrix (n, n) for columns.

    Attributes:
        steps: The steps of every round.
        truncates: Whether entries are rounded towards zero between the rounds.
    """

    steps: list[list[_Step]]
    truncates: bool = False

    @classmethod
    def of(
        cls,
        signs: NDArray[np.int8],
        scales: Sequence[float],
        dtype: FloatType,
        *,
        truncates: bool = False,
    ) -> "Rounds":
        """Return the rounds of signs (r, n), each with its scale at its end."""
        size = signs.shape[1]
        rounds = []
        for round_signs, scale in zip(signs, scales, strict=True):
            steps = []
            stride = 1
            orders = _orders(size)
            for order in orders:
                matrices = _hadamard(order, dtype)[None, None]
                if stride == 1:
                    n_first = 1
                    if len(orders) > 1:
                        n_first = orders[-1]
                    matrices = matrices * round_signs.reshape(n_first, -1, 1, order)
                if stride * order == size:
                    matrices = matrices * scale
                steps.append(_Step(matrices, stride))
                stride *= order
            rounds.append(steps)
        return cls(rounds, truncates)

    def transposed(self) -> "Rounds":
        """Return the rounds of the transposed matrix."""
        rounds = []
        for steps in reversed(self.steps):
            rounds.append([step.transposed() for step in reversed(steps)])
        return Rounds(rounds, self.truncates)

    def project(
        self, rows: Array, out: Array, load: Callable[[Array, Array], None] = np.copyto
    ) -> None:
        """Write the product with rows (N, d) to ``out`` (n, N).

        The rows are transposed and padded with zeros.

        Args:
            rows: Rows (N, d).
            out: Array (n, N).
            load: ``load(target, rows)`` writes some of the rows to an array of the type of ``out``.
        """
        run_in_threads(partial(self._project_parts, rows, out, load), _shares(*out.shape))

    def _project_parts(
        self,
        rows: Array,
        out: Array,
        load: Callable[[Array, Array], None],
        parts: Sequence[slice],
    ) -> None:
        """Project some of the rows, part by part."""
        memory = _Memory.of(len(out), parts, out.dtype)
        dim = rows.shape[1]
        for part in parts:
            padded = memory.rows(part)
            load(padded[:, :dim], rows[part])
            padded[:, dim:] = 0
            self._multiply(padded.T, out[:, part], memory)

    def add_rows(self, columns: Array, total: Array) -> None:
        """Add d entries of the product with columns (n, N) to ``total`` (N, d)."""
        run_in_threads(partial(self._add_parts, columns, total), _shares(*columns.shape))

    def _add_parts(self, columns: Array, total: Array, parts: Sequence[slice]) -> None:
        """Add the products of some of the columns, part by part."""
        memory = _Memory.of(len(columns), parts, columns.dtype)
        for part in parts:
            product = memory.rows(part)
            self._multiply(columns[:, part], product.T, memory)
            total[part] += product[:, : total.shape[1]]

    def _multiply(self, columns: Array, out: Array, memory: "_Memory") -> None:
        """Write the product with columns (n, N) to ``out`` (n, N)."""
        memories = memory.columns(out.shape[1])
        columns = columns.reshape(memories[0].shape)
        out = out.reshape(memories[0].shape)
        n_left = sum(len(steps) for steps in self.steps)
        for number, steps in enumerate(self.steps):
            if number and self.truncates:
                np.trunc(columns, out=columns)
            for step in steps:
                n_left -= 1
                target = out
                if n_left:
                    target = memories[n_left % 2]
                step.multiply(columns, target)
                columns = target


@dataclass(frozen=True)
class _Memory:
    """Working memory of one thread.

    Memory that is new takes time at the first access.

    Attributes:
        size: Number n of entries of a column.
        flat: Two arrays (b, n / b N + gap) for the results of steps, b as in :class:`_Step`.
        padded_rows: Array (N, n) for rows.
    """

    size: int
    flat: tuple[Array, Array]
    padded_rows: Array

    @classmethod
    def of(cls, size: int, parts: Sequence[slice], dtype: FloatType) -> "_Memory":
        """Return memory for columns of ``size``, as many as a part has."""
        most = max(part.stop - part.start for part in parts)
        n_first = _orders(size)[-1]
        shape = (n_first, size // n_first * most + _GAP)
        padded_rows = np.empty((most, size + _GAP), dtype)[:, :size]
        return cls(size, (np.empty(shape, dtype), np.empty(shape, dtype)), padded_rows)

    def columns(self, n_columns: int) -> list[Array]:
        """Return two arrays (b, n / b, N) for N columns."""
        n_first = len(self.flat[0])
        n_inner = self.size // n_first
        arrays = []
        for flat in self.flat:
            arrays.append(flat[:, : n_inner * n_columns].reshape(n_first, n_inner, n_columns))
        return arrays

    def rows(self, part: slice) -> Array:
        """Return the array for the rows of a part."""
        return self.padded_rows[: part.stop - part.start]


@lru_cache(maxsize=2)
def products_are_exact(dtype: FloatType) -> bool:
    """Return whether products of signs and integers are exact.

    They have rounding errors where the library of linear algebra is set to lower precision.
    """
    order = 2**_MOST_BITS
    n_bits = int(np.finfo(dtype).nmant) + 1 - _MOST_BITS
    integers = 2**n_bits - np.arange(order * _WIDTH, dtype=np.int64).reshape(order, _WIDTH)
    signs = _hadamard(order, dtype)
    exact = signs.astype(np.int64) @ integers
    product = np.matmul(signs, integers.astype(dtype))
    return np.array_equal(product, exact)


def _orders(size: int) -> list[int]:
    """Return the orders of the small matrices, the smallest one first."""
    n_bits = size.bit_length() - 1
    n_steps = -(-n_bits // _MOST_BITS)
    return [2 ** ((n_bits + number) // n_steps) for number in range(n_steps)]


@lru_cache(maxsize=16)
def _hadamard(order: int, dtype: FloatType) -> Array:
    """Return the Walsh-Hadamard matrix of this order."""
    matrix = np.ones((1, 1), dtype)
    while len(matrix) < order:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def _width(stride: int, n_columns: int) -> int:
    """Return the number of neighbouring values that one product takes.

    It divides ``stride * n_columns``, where n_columns is below or a multiple of ``_WIDTH``.
    """
    if n_columns >= _WIDTH:
        return _WIDTH
    n_bits = int(math.log2(_WIDTH / n_columns))
    return n_columns * min(stride, 1 << n_bits)


def _shares(size: int, n_columns: int) -> list[list[slice]]:
    """Return slices of columns to transform at a time, for every thread its share.

    A slice of more than ``_WIDTH`` columns has a multiple of it.
    """
    n_at_a_time = max(_FEWEST_COLUMNS, _CACHED_VALUES // size)
    parts = []
    start = 0
    while start < n_columns:
        count = min(n_at_a_time, n_columns - start)
        if count > _WIDTH:
            count -= count % _WIDTH
        parts.append(slice(start, start + count))
        start += count
    n_threads = min(torch.get_num_threads(), len(parts))
    return [parts[first::n_threads] for first in range(n_threads)]
