"""Random directions on the sphere: independent, or in whole orthonormal bases.

axes: d dimension, k number of directions.

For privacy the directions must be drawn afresh for every release, independently of the data and of everything
released before: only then is the law of :mod:`dpswd.sensitivity` theirs. They are published with the release.
"""

import torch
from torch import Tensor

from dpswd._random import RandomSource, SecureRandom, normal
from dpswd._tensors import floating_type
from dpswd._validate import at_least, choice
from dpswd.errors import InputError

__all__ = ["random_projections"]

_MOST = 2**30  # 8 GB


def random_projections(
    dim: int,
    n_projections: int,
    *,
    kind: str = "iid",
    generator: torch.Generator | RandomSource | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
) -> Tensor:
    r"""Draws unit directions.

    Args:
        dim: Dimension d >= 2.
        n_projections: Number k >= 1 of directions.
        kind: ``"iid"``, uniform on the sphere and independent; or ``"orthogonal"``, stacked bases, each one uniform
            (Haar) on the orthogonal group, the last one cut off where k is no multiple of d.
        generator: ``None`` for the operating system's entropy (wanted for private releases), a
            :class:`~dpswd._random.RandomSource`, or a ``torch.Generator`` for tests and benchmarks.
        dtype: Type of the result; directions are always computed in float64.
        device: Device of the result.

    Returns:
        Tensor (d, k) with columns of norm 1.

    Raises:
        InputError: If a size or the kind is out of range.

    Example:
        >>> u = random_projections(3, 6, kind="orthogonal")
        >>> bool(torch.allclose(u @ u.T, 2 * torch.eye(3, dtype=u.dtype)))
        True
    """
    at_least(2, dim=dim)
    at_least(1, n_projections=n_projections)
    choice(("iid", "orthogonal"), kind=kind)
    floating_type(dtype=dtype)
    if dim * n_projections > _MOST:
        raise InputError(
            f"Expected at most {_MOST} numbers in all directions, got {n_projections} directions of {dim}; use fewer."
        )
    if kind == "iid":
        columns = _gaussian((n_projections, dim), generator)
        norms: Tensor = torch.linalg.vector_norm(columns, dim=1, keepdim=True)
        return columns.div_(norms).T.to(device=device, dtype=dtype)
    bases = []
    for start in range(0, n_projections, dim):
        width = min(dim, n_projections - start)
        q, r = torch.linalg.qr(_gaussian((dim, width), generator))
        bases.append(q * torch.sign(torch.diagonal(r)))  # the sign makes the law of Q uniform (Mezzadri 2007)
    return torch.cat(bases, dim=1).to(device=device, dtype=dtype)


def _gaussian(shape: tuple[int, int], generator: torch.Generator | RandomSource | None) -> Tensor:
    if isinstance(generator, torch.Generator):
        return torch.randn(shape, generator=generator, dtype=torch.float64, device=generator.device).cpu()
    if generator is not None and not hasattr(generator, "words"):
        raise InputError(f"Expected generator to be None, a RandomSource or a torch.Generator, got {generator!r}.")
    return torch.from_numpy(normal(generator or SecureRandom(), shape))
