"""Random directions: independent ones, and stacked orthonormal bases."""

from typing import cast

import numpy as np
import torch
from torch import Tensor

from dpswd._random import RandomSource, normal, random_source_of
from dpswd._validate import at_least, choice
from dpswd.errors import InputError

__all__ = ["random_projections"]

# Largest number of values of all directions: 8 GB.
_MAX_VALUES = 2**30
# Values of independent directions that are drawn at a time: they stay in the processor's cache.
_CACHED_VALUES = 2**17
# Dimension from which a narrow matrix of normal numbers has a condition number near its limit.
_LARGE_DIM = 256


def random_projections(
    dim: int,
    n_projections: int,
    *,
    kind: str = "iid",
    generator: torch.Generator | RandomSource | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
) -> Tensor:
    r"""Draw random unit directions.

    For a private release the directions must be drawn independently of the data and of every
    earlier release. Only then do they follow the law in :mod:`dpswd.sensitivity`.

    Args:
        dim: Dimension d >= 2.
        n_projections: Number k >= 1 of directions.
        kind: ``"iid"`` for independent directions, uniform on the sphere. ``"orthogonal"`` for
            stacked orthonormal bases, each Haar distributed; the last basis is truncated where k is
            not a multiple of d.
        generator: ``None`` for cryptographic randomness, required for private releases; a
            :class:`~dpswd._random.RandomSource`; or a ``torch.Generator`` for tests and benchmarks.
        dtype: Type of the result. The directions are computed in float64.
        device: Device of the result.

    Returns:
        Tensor (d, k) with columns of norm 1.

    Raises:
        InputError: If a size or the kind is not valid.

    Example:
        >>> u = random_projections(3, 6, kind="orthogonal")
        >>> bool(torch.allclose(u @ u.T, 2 * torch.eye(3, dtype=u.dtype)))
        True
    """
    at_least(2, dim=dim)
    at_least(1, n_projections=n_projections)
    choice(("iid", "orthogonal"), kind=kind)
    if dim * n_projections > _MAX_VALUES:
        raise InputError(
            f"Expected dim * n_projections <= {_MAX_VALUES}, got {dim} * {n_projections}; "
            "use fewer directions."
        )
    if kind == "iid":
        directions = _independent_directions(dim, n_projections, generator, dtype)
    else:
        directions = _stacked_bases(dim, n_projections, generator)
    return directions.to(device=device, dtype=dtype)


def _independent_directions(
    dim: int,
    n_projections: int,
    generator: torch.Generator | RandomSource | None,
    dtype: torch.dtype,
) -> Tensor:
    """Draw directions (d, k) that are uniform on the sphere, some at a time.

    They are computed in float64 and rounded to float32, or not rounded, for other types.
    """
    # NumPy asks for large pages, which take less time at the first access
    array = np.empty((n_projections, dim), dtype=np.float64)
    if dtype == torch.float32:
        array = np.empty((n_projections, dim), dtype=np.float32)
    directions = torch.from_numpy(array)
    for part in directions.split(max(1, _CACHED_VALUES // dim)):
        rows = _gaussian((len(part), dim), generator)
        norms: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        part.copy_(rows.mul_(norms.reciprocal_()))
    return directions.T


def _stacked_bases(
    dim: int, n_projections: int, generator: torch.Generator | RandomSource | None
) -> Tensor:
    """Draw orthonormal bases until there are k columns; the last basis is truncated."""
    bases = []
    for start in range(0, n_projections, dim):
        width = min(dim, n_projections - start)
        bases.append(_orthonormal(_gaussian((dim, width), generator)))
    return torch.cat(bases, dim=1)


def _orthonormal(matrix: Tensor) -> Tensor:
    """Return Q of the factors Q R of a matrix (d, w), where R has a positive diagonal.

    Of a matrix of independent normal numbers, Q is Haar distributed (Mezzadri2007). A narrow matrix
    is well conditioned: R follows from the Cholesky factor of its Gram matrix, which takes a third
    of the time; a second pass leaves the error of rounding alone (Yamamoto2015). Of a large matrix
    with ``4 w <= d``, whose condition number is about 3, one pass leaves less than 1e-14.
    """
    dim, width = matrix.shape
    if 2 * width > dim:
        q, r = torch.linalg.qr(matrix)
        return cast(Tensor, q * torch.sign(torch.diagonal(r)))
    n_passes = 2
    if dim >= _LARGE_DIM and 4 * width <= dim:
        n_passes = 1
    for _ in range(n_passes):
        factor, failed = torch.linalg.cholesky_ex(matrix.T @ matrix, upper=True)
        if failed:  # of the order of 1e-16 of all draws
            q, r = torch.linalg.qr(matrix)
            return cast(Tensor, q * torch.sign(torch.diagonal(r)))
        matrix = torch.linalg.solve_triangular(factor, matrix, upper=True, left=False)
    return matrix


def _gaussian(shape: tuple[int, int], generator: torch.Generator | RandomSource | None) -> Tensor:
    """Draw standard normal numbers in float64 on the CPU."""
    if isinstance(generator, torch.Generator):
        drawn = torch.randn(
            shape, generator=generator, dtype=torch.float64, device=generator.device
        )
        return drawn.cpu()
    return normal(random_source_of(generator), shape)
