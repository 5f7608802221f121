"""Checks on tensors, with the keyword as the name in the message, like :mod:`dpswd._validate`."""

from typing import Any

import torch
from torch import Tensor

from dpswd.errors import InputError

__all__ = ["floating", "floating_type", "tensor"]


def tensor(**named: Any) -> None:
    """Raises unless every value is a tensor."""
    for name, value in named.items():
        if not isinstance(value, Tensor):
            raise InputError(
                f"Expected {name} to be a tensor, got {type(value).__name__}; use torch.as_tensor or torch.from_numpy."
            )


def floating(**named: Any) -> None:
    """Raises unless every value is a tensor of real floating-point numbers."""
    tensor(**named)
    for name, value in named.items():
        if not value.is_floating_point():
            raise InputError(f"Expected {name} to hold floating-point numbers, got {value.dtype}; convert them first.")


def floating_type(**named: Any) -> None:
    """Raises unless every value is a floating-point type of torch."""
    for name, value in named.items():
        if not isinstance(value, torch.dtype) or not value.is_floating_point:
            raise InputError(f"Expected {name} to be a floating-point type of torch, got {value!r}.")
