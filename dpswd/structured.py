r"""Structured slices: signs and transforms in place of stored directions.

Signs are random, and transforms are those of Walsh and Hadamard.

axes: d dimension, n the least power of two that is not below d, a frames, k = a n slices, N rows.

A frame maps a row x to n numbers,

.. math:: F x = \frac{1}{n \sqrt d}\, H D_3 H D_2 H D_1 \binom x0, \qquad
          \|F x\|^2 = \frac nd\, \|x\|^2 \text{ for every } x,

with random diagonal matrices :math:`D_i` of signs and the Walsh-Hadamard matrix H of entries 1 and
-1. So a frames have :math:`S = k / d` for every move of a row, whatever the signs are. A frame
takes :math:`3 n \log_2 n` additions per row, and 3 n signs of memory. On the CPU, products with
small matrices do the same in less time (:mod:`dpswd._hadamard`).

Private rows are projected in fixed-point numbers whose sums are exact: :func:`fixed_point_frame`
(docs/theory/sensitivity.md, Proposition 33).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from dpswd._hadamard import Rounds, products_are_exact
from dpswd._random import RandomSource, random_source_of
from dpswd._validate import at_least, floating, padded_size, tensor, whole_frames
from dpswd.errors import InputError

__all__ = ["StructuredProjections"]

# Rounds of signs and a transform.
_N_ROUNDS = 3
# Values that are transformed at a time: they stay in the processor's cache.
_CACHED_VALUES = 2**18
# Values that are scaled at a time.
_LOADED_AT_ONCE = 2**14
# Rows that are transformed at a time, at least.
_FEWEST_ROWS = 32
# Largest n whose fixed-point numbers are float32; in those of larger n, rounding shortens rows.
_LARGEST_FLOAT32 = 2**14


@dataclass(frozen=True, eq=False)
class StructuredProjections:
    """Tight frames of structured slices, whose mean squared norm is one.

    Attributes:
        signs: Signs (a, 3, n), int8 of 1 and -1; n is the least power of two that is not below d.
        dim: Dimension d >= 2 of the rows.

    Raises:
        InputError: If the signs are of another type or shape, or not 1 and -1.

    References:
        | Choromanski2017 (three rounds of signs and transforms).

    Example:
        >>> projections = StructuredProjections.draw(6, 16)
        >>> rows = torch.randn(5, 6, dtype=torch.float64)
        >>> projected = projections.project(rows)
        >>> squares = projected.square().sum(1)
        >>> bool(torch.allclose(squares, 16 / 6 * rows.square().sum(1)))
        True
    """

    signs: Tensor
    dim: int

    def __post_init__(self) -> None:
        at_least(2, dim=self.dim)
        tensor(signs=self.signs)
        shape = tuple(self.signs.shape)
        size = padded_size(self.dim)
        if self.signs.dtype != torch.int8 or shape[1:] != (_N_ROUNDS, size) or shape[0] == 0:
            raise InputError(
                f"Expected signs to be an int8 tensor (a, {_N_ROUNDS}, {size}), a >= 1, for "
                f"dim={self.dim}, got {self.signs.dtype} of shape {shape}."
            )
        if not bool((self.signs.abs() == 1).all()):
            raise InputError("Expected signs of 1 and -1, got values that are neither; use draw().")

    @classmethod
    def draw(
        cls,
        dim: int,
        n_projections: int,
        *,
        generator: torch.Generator | RandomSource | None = None,
        device: torch.device | str | None = None,
    ) -> "StructuredProjections":
        """Draw the signs.

        Args:
            dim: Dimension d >= 2.
            n_projections: Number k of slices, a multiple of the least power of two that is not
                below d.
            generator: As in :func:`dpswd.random_projections`.
            device: Device of the signs.

        Raises:
            InputError: If a size is not valid.
        """
        at_least(2, dim=dim)
        at_least(1, n_projections=n_projections)
        n_frames, size = whole_frames(dim, n_projections)
        shape = (n_frames, _N_ROUNDS, size)
        count = n_frames * _N_ROUNDS * size
        if isinstance(generator, torch.Generator):
            bits = torch.randint(0, 2, (count,), generator=generator, device=generator.device)
            signs = (2 * bits - 1).to(torch.int8)
        else:
            source = random_source_of(generator)
            words = source.words(math.ceil(count / 64))
            unpacked = np.unpackbits(words.view(np.uint8))[:count].astype(np.int8)
            signs = torch.from_numpy(2 * unpacked - 1)
        return cls(signs.view(shape).to(device), dim)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers d of dimensions and k of slices, as the shape of a matrix of directions."""
        return self.dim, len(self.signs) * self.signs.shape[-1]

    @property
    def device(self) -> torch.device:
        """Device of the signs."""
        return self.signs.device

    def to(self, device: torch.device | str) -> "StructuredProjections":
        """Return the slices with their signs on ``device``."""
        return StructuredProjections(self.signs.to(device), self.dim)

    def project(self, rows: Tensor) -> Tensor:
        """Project rows (N, d) on all slices.

        Args:
            rows: Rows (N, d), floating-point; at least float32 is computed in.

        Returns:
            Projections (N, k), differentiable once.

        Raises:
            InputError: If the rows are not of dimension d.
        """
        floating(rows=rows)
        if rows.ndim != 2 or rows.shape[1] != self.dim:
            raise InputError(
                f"Expected rows (N, {self.dim}), got shape {tuple(rows.shape)}; flatten them."
            )
        rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
        return cast(Tensor, _Projection.apply(rows, self))

    def dense(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return the matrix (d, k) of the slices, which :meth:`project` multiplies with."""
        return self.project(torch.eye(self.dim, dtype=dtype, device=self.device))


class _Projection(torch.autograd.Function):
    """Projection of rows on structured slices, with its gradient."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, projections: StructuredProjections) -> Tensor:
        ctx.projections = projections
        frames = [apply_frame(signs, rows) for signs in projections.signs]
        return torch.cat(frames).T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None]:
        projections = ctx.projections
        gradient = outer.new_zeros(len(outer), projections.dim)
        parts = outer.T.split(projections.signs.shape[-1])
        for signs, part in zip(projections.signs, parts, strict=True):
            add_transposed_frame(signs, part, gradient)
        return gradient, None


def apply_frame(signs: Tensor, rows: Tensor) -> Tensor:
    """Project rows (N, d) on the n slices of one frame, (n, N), without gradient.

    Args:
        signs: Signs (3, n) of the frame.
        rows: Rows of float32 or float64.
    """
    rows = rows.detach()
    projected = rows.new_empty(signs.shape[-1], len(rows))
    if rows.device.type == "cpu":
        _rounds_on_cpu(signs, rows).project(rows.numpy(), projected.numpy())
        return projected
    factors = _factors(signs, rows.shape[1], rows.dtype)
    for columns, values in _parts(projected):
        _fill(values, rows[columns])
        for factor in factors:
            values.mul_(factor)
            _transform(values)
        projected[:, columns] = values
    return projected


def add_transposed_frame(signs: Tensor, values: Tensor, total: Tensor) -> None:
    """Add the transposed frame of values (n, N) to ``total`` (N, d), without gradient."""
    values = values.detach()
    if values.device.type == "cpu":
        array = values.contiguous().numpy()
        _rounds_on_cpu(signs, total).transposed().add_rows(array, total.numpy())
        return
    dim = total.shape[1]
    factors = _factors(signs, dim, values.dtype).flip(0)
    for columns, part in _parts(values):
        part.copy_(values[:, columns])
        for factor in factors:
            _transform(part)
            part.mul_(factor)
        total[columns] += part[:dim].T


def fixed_point_frame(signs: Tensor, rows: Tensor, bound: float) -> tuple[Tensor, float]:
    """Project private rows on one frame in fixed-point numbers, whose sums are exact.

    Rows are rounded towards zero to integers, and again before every later round, which lengthens
    no row; between, integers of at most 24 bits (53 in float64) are added. So the result of a row
    depends on that row only, in any order and on any device, and its norm is at most
    ``bound * sqrt(n / d)`` (docs/theory/sensitivity.md, Proposition 33).

    Args:
        signs: Signs (3, n).
        rows: Clipped rows (N, d) of norm at most ``bound``, float64.
        bound: Bound on the norm of a row.

    Returns:
        Integers (n, N), and the number that they must be multiplied by.
    """
    size = signs.shape[-1]
    dtype = torch.float32
    integer = torch.int32
    n_bits = 24
    if size > _LARGEST_FLOAT32:
        dtype = torch.float64
        integer = torch.int64
        n_bits = 53
    half = size.bit_length() // 2  # the least with 2^half >= sqrt(n)
    largest = 2.0 ** (n_bits - half)  # norm of a row before a round
    factor = bound / largest * 2.0 ** (half * (_N_ROUNDS - 1)) / (size * rows.shape[1] ** 0.5)
    integers = torch.empty(size, len(rows), dtype=dtype, device=rows.device)
    if rows.device.type == "cpu" and products_are_exact(integers.numpy().dtype):
        scales = (2.0**-half, 2.0**-half, 1.0)  # such that the rounds lengthen no row
        rounds = Rounds.of(signs.numpy(), scales, integers.numpy().dtype, truncates=True)
        load = partial(_load_integers, scale=largest / bound)
        rounds.project(rows.numpy(), integers.numpy(), load)
        return integers, factor
    factors = signs[:, :, None].to(dtype)
    factors[1:] *= 2.0**-half
    for columns, values in _parts(integers):
        # a conversion to integers rounds towards zero, and is faster than trunc
        scaled = rows[columns] * (largest / bound)
        _fill(values, scaled.to(integer).to(dtype))
        for round_factors in factors:
            values.mul_(round_factors)
            values.copy_(values.to(integer))
            _transform(values)
        integers[:, columns] = values
    return integers, factor


def _load_integers(
    target: NDArray[np.floating], rows: NDArray[np.float64], *, scale: float
) -> None:
    """Write scaled rows to the target, rounded towards zero to integers."""
    n_at_a_time = max(1, _LOADED_AT_ONCE // rows.shape[1])
    for start in range(0, len(rows), n_at_a_time):
        part = slice(start, start + n_at_a_time)
        scaled = rows[part] * scale
        target[part] = np.trunc(scaled, out=scaled)


def _rounds_on_cpu(signs: Tensor, rows: Tensor) -> Rounds:
    """Return the rounds of a frame, of the type of rows (N, d)."""
    size = signs.shape[-1]
    scales = (size**-0.5, size**-0.5, rows.shape[1] ** -0.5)
    return Rounds.of(signs.numpy(), scales, rows.numpy().dtype)


def _factors(signs: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """Return the factors (3, n, 1) of the rounds of a frame.

    Their product is 1 / (n sqrt d).
    """
    size = signs.shape[-1]
    exact = signs[:, :, None].double()
    exact[:-1] /= math.sqrt(size)
    exact[-1] /= math.sqrt(dim)
    return exact.to(dtype)


def _parts(values: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield parts of the columns of values (n, N).

    Each part comes with a working array (n, part).
    """
    size, n_rows = values.shape
    n_at_a_time = min(max(_FEWEST_ROWS, _CACHED_VALUES // size), max(1, n_rows))
    memory = values.new_empty(size * n_at_a_time)
    for start in range(0, n_rows, n_at_a_time):
        n_columns = min(n_at_a_time, n_rows - start)
        array = memory[: size * n_columns].view(size, n_columns)
        yield slice(start, start + n_columns), array


def _fill(values: Tensor, rows: Tensor) -> None:
    """Write rows (N, d), transposed and padded with zeros, into values (n, N)."""
    dim = rows.shape[1]
    values[:dim] = rows.T
    values[dim:] = 0


def _transform(values: Tensor) -> None:
    """Multiply values (n, N) by the Walsh-Hadamard matrix.

    This is done in place, by additions alone.
    """
    size, n_rows = values.shape
    n_parts = 1
    while n_parts < size:
        parts = values.view(n_parts, 2, size // (2 * n_parts), n_rows)
        upper = parts[:, 0]
        lower = parts[:, 1]
        upper.add_(lower)
        torch.sub(upper, lower, alpha=2, out=lower)
        n_parts *= 2
