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
    """Symmetric square root of symmetric matrices (..., d, d); negative eigenvalues count as 0."""

    def rooted(values: Tensor) -> Tensor:
        return values.clamp(min=0).sqrt()

    return of_eigenvalues(rooted, matrix)
