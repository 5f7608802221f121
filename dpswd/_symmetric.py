"""Functions of symmetric matrices through their eigenvalues."""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor


def of_eigenvalues(function: Callable[[Tensor], Tensor], matrix: Tensor) -> Tensor:
    """Apply a function to the ascending eigenvalues of symmetric matrices (..., d, d)."""
    values, vectors = torch.linalg.eigh(matrix)
    scaled = vectors * function(values)[..., None, :]
    return cast(Tensor, scaled @ vectors.mT)


def positive_part(matrix: Tensor, floor: float = 0.0) -> Tensor:
    """Lift the eigenvalues of symmetric matrices (..., d, d) to at least ``floor``."""

    def lifted(values: Tensor) -> Tensor:
        return values.clamp(min=floor)

    return of_eigenvalues(lifted, matrix)


def root(matrix: Tensor) -> Tensor:
    """Symmetric square root of symmetric matrices (..., d, d).

    Negative eigenvalues count as 0.
    """

    def rooted(values: Tensor) -> Tensor:
        return values.clamp(min=0).sqrt()

    return of_eigenvalues(rooted, matrix)


# Part of the mean eigenvalue by which the diagonal of a matrix is made different. Float64 tells
# eigenvalues apart that differ by a millionth of it.
_TIE_BREAK = 1e-9
# Fractional parts of the multiples of the golden ratio are different from each other, and evenly
# spread.
_GOLDEN_RATIO = (1 + 5**0.5) / 2


def principal_axes(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues (d,) in descending order and eigenvectors (d, d).

    Both are equal on every machine.

    Eigenvectors have any sign, and those of equal eigenvalues may be turned into each other: two
    processors return different ones. A run that is finished on another machine reads releases in
    the coordinates of its axes, so that the axes must be the same. The diagonal therefore gets
    entries of its own, which break ties, and an axis the sign with which its product with a fixed
    vector is positive.

    Args:
        matrix: Symmetric matrix (d, d).

    Example:
        >>> values, axes = principal_axes(torch.eye(3))
        >>> bool((axes.abs().sum(0) < 1.001).all()), values.round(decimals=6)
        (True, tensor([1., 1., 1.]))
    """
    d = len(matrix)
    exact = matrix.double()
    generic = torch.arange(1, d + 1, dtype=torch.float64, device=matrix.device) * _GOLDEN_RATIO % 1
    step = _TIE_BREAK * exact.diagonal().abs().mean()
    values, vectors = torch.linalg.eigh(exact + torch.diag(step * generic))
    values = values.flip(0)
    vectors = vectors.flip(1)
    return values.to(matrix.dtype), with_fixed_signs(vectors.T).T.to(matrix.dtype)


def with_fixed_signs(axes: Tensor) -> Tensor:
    """Return axes (k, d) with fixed signs.

    Each axis has the sign with which its product with a fixed vector is positive.

    Example:
        >>> with_fixed_signs(torch.tensor([[0.0, -1.0], [0.6, 0.8]]))
        tensor([[-0.0000, 1.0000],
                [0.6000, 0.8000]])
    """
    d = axes.shape[1]
    generic = torch.arange(1, d + 1, dtype=axes.dtype, device=axes.device) * _GOLDEN_RATIO % 1
    is_negative = axes @ (0.5 + generic) < 0
    return torch.where(is_negative[:, None], -axes, axes)
