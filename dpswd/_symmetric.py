"""Functions of symmetric matrices through their eigenvalues."""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor


def of_eigenvalues(function: Callable[[Tensor], Tensor], matrix: Tensor) -> Tensor:
    """Apply a function to the ascending eigenvalues (..., d) of symmetric matrices (..., d, d)."""
    values, vectors = torch.linalg.eigh(matrix)
    return cast(Tensor, (vectors * function(values)[..., None, :]) @ vectors.mT)


def positive_part(matrix: Tensor, floor: float = 0.0) -> Tensor:
    """Lift the eigenvalues of symmetric matrices (..., d, d) to at least ``floor``."""
    return of_eigenvalues(lambda values: values.clamp(min=floor), matrix)


def root(matrix: Tensor) -> Tensor:
    """Symmetric square root of symmetric matrices (..., d, d); negative eigenvalues count as 0."""
    return of_eigenvalues(lambda values: values.clamp(min=0).sqrt(), matrix)
