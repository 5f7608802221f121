"""Random directions: independent ones, and stacked orthonormal bases."""

import torch
from torch import Tensor

from dpswd._random import RandomSource, SecureRandom, normal
from dpswd._validate import at_least, choice
from dpswd.errors import InputError

__all__ = ["random_projections"]

_MAX_PROJECTION_VALUES = 2**30  # 8 GB


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

    For a private release the directions must be drawn independently of the data and of every earlier release. Only
    then do they follow the law in :mod:`dpswd.sensitivity`.

    Args:
        dim: Dimension d >= 2.
        n_projections: Number k >= 1 of directions.
        kind: ``"iid"`` for independent directions, uniform on the sphere. ``"orthogonal"`` for stacked orthonormal
            bases, each Haar distributed; the last basis is truncated where k is not a multiple of d.
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
    if dim * n_projections > _MAX_PROJECTION_VALUES:
        raise InputError(
            f"Expected dim * n_projections <= {_MAX_PROJECTION_VALUES}, got {dim} * {n_projections}."
        )
    if kind == "iid":
        columns = _gaussian((n_projections, dim), generator)
        norms: Tensor = torch.linalg.vector_norm(columns, dim=1, keepdim=True)
        return columns.mul_(norms.reciprocal_()).T.to(device=device, dtype=dtype)
    bases = []
    for start in range(0, n_projections, dim):
        width = min(dim, n_projections - start)
        q, r = torch.linalg.qr(_gaussian((dim, width), generator))
        bases.append(q * torch.sign(torch.diagonal(r)))  # makes Q Haar distributed (Mezzadri2007)
    return torch.cat(bases, dim=1).to(device=device, dtype=dtype)


def _gaussian(shape: tuple[int, int], generator: torch.Generator | RandomSource | None) -> Tensor:
    if isinstance(generator, torch.Generator):
        return torch.randn(
            shape, generator=generator, dtype=torch.float64, device=generator.device
        ).cpu()
    if generator is not None and not hasattr(generator, "words"):
        raise InputError(
            f"Expected generator to be None, a RandomSource or a torch.Generator, got {generator!r}."
        )
    return normal(generator or SecureRandom(), shape)
