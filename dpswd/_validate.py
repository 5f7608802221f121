"""Checks of arguments.

The keyword is the name in the message: ``positive(sigma=sigma)``.
"""

import decimal
import math
import numbers
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpswd.errors import InputError

# Integers up to this absolute value are exact as floats.
_LARGEST_INTEGER = 2**53
# Longest representation of a value in a message, and how much of a longer one is shown.
_MAX_LENGTH = 60
_SHORTENED = 50


def _shown(value: Any) -> str:
    """Return the representation of a value in one short line."""
    text = " ".join(repr(value).split())
    if len(text) <= _MAX_LENGTH:
        return text
    return f"{text[:_SHORTENED]}... ({type(value).__name__})"


def real(name: str, value: Any) -> float:
    """Return a Python or NumPy number as a float; raise for anything else.

    ``True``, strings and arrays are no numbers. A large integer becomes infinity.
    """
    if not isinstance(value, bool) and isinstance(value, numbers.Real):
        try:
            return float(value)
        except OverflowError:  # of a large integer
            return math.inf
    remedy = ""
    if isinstance(value, decimal.Decimal):
        remedy = f"; pass float({name})"
    raise InputError(f"Expected {name} to be a number, got {name}={_shown(value)}{remedy}.")


def array(name: str, value: Any) -> NDArray[np.float64]:
    """Return numbers as an array of float64; raise for anything else."""
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        # RuntimeError: a tensor with a gradient
        raise InputError(
            f"Expected {name} to be an array of numbers without a gradient, got {_shown(value)}; "
            "pass an array of NumPy."
        ) from None


def pairs(name: str, value: Any) -> list[tuple[float, float]]:
    """Return pairs of numbers as a list of pairs of floats; raise for anything else.

    Example:
        >>> pairs("bounds", [(0, 1), (17, 90)])
        [(0.0, 1.0), (17.0, 90.0)]
    """
    try:
        numbers_of_pairs = [(low, high) for low, high in value]
    except (TypeError, ValueError):
        raise InputError(
            f"Expected {name} as a list of pairs (low, high), one for each column, got "
            f"{_shown(value)}; pass {name}=[(low, high), ...]."
        ) from None
    return [(real(name, low), real(name, high)) for low, high in numbers_of_pairs]


def positive(**named: Any) -> None:
    """Raise unless every value is a finite number above zero (which also catches nan)."""
    for name, value in named.items():
        if not 0 < real(name, value) < math.inf:
            raise InputError(
                f"Expected {name} to be finite and above 0, got {name}={_shown(value)}."
            )


def budget(**named: Any) -> None:
    """Raise unless every value is an epsilon: above zero, or infinity for no noise."""
    for name, value in named.items():
        if not real(name, value) > 0:
            raise InputError(f"Expected {name} above 0, got {name}={_shown(value)}.")


def nonnegative(**named: Any) -> None:
    """Raise unless every value is a finite number of at least zero."""
    for name, value in named.items():
        if not 0 <= real(name, value) < math.inf:
            raise InputError(
                f"Expected {name} to be finite and at least 0, got {name}={_shown(value)}."
            )


def at_least(lowest: int, **named: Any) -> None:
    """Raise unless every value is an integer of at least ``lowest``.

    ``True`` is no integer, and a float must hold the value exactly.
    """
    for name, value in named.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise InputError(f"Expected {name} to be an integer, got {name}={_shown(value)}.")
        if abs(int(value)) > _LARGEST_INTEGER:
            raise InputError(
                f"Expected {name} to be at most {_LARGEST_INTEGER} in absolute value, "
                f"got {name}={_shown(value)}."
            )
        if value < lowest:
            raise InputError(f"Expected {name} >= {lowest}, got {name}={_shown(value)}.")


def stated_at_least(lowest: int, **named: Any) -> None:
    """Raise as :func:`at_least` for values that are stated; ``None`` is not."""
    for name, value in named.items():
        if value is not None:
            at_least(lowest, **{name: value})


def probability(**named: Any) -> None:
    """Raise unless every value lies strictly between 0 and 1."""
    for name, value in named.items():
        if not 0 < real(name, value) < 1:
            raise InputError(
                f"Expected {name} strictly between 0 and 1, got {name}={_shown(value)}."
            )


def choice(allowed: tuple[str, ...], **named: Any) -> None:
    """Raise unless every value is one of ``allowed``."""
    for name, value in named.items():
        if not isinstance(value, str) or value not in allowed:
            raise InputError(
                f"Expected {name} to be one of {', '.join(allowed)}, got {name}={_shown(value)}."
            )


def padded_size(dim: int) -> int:
    """Return the least power of two that is not below ``dim``."""
    return 1 << (dim - 1).bit_length()


def whole_frames(dim: int, n_projections: int) -> tuple[int, int]:
    """Return the number of frames and the number n of structured slices per frame.

    Raises:
        InputError: If ``n_projections`` is not a multiple of n, the least power of two that is not
            below ``dim``.
    """
    size = padded_size(dim)
    n_frames, rest = divmod(n_projections, size)
    if rest:
        remedy = f"use {size * max(1, round(n_projections / size))}"
        raise InputError(
            f"Expected n_projections to be a multiple of {size}, the least power of two that is "
            f"not below dim={dim}, for structured slices, got {n_projections}; {remedy}."
        )
    return n_frames, size


def tensor(**named: Any) -> None:
    """Raise unless every value is a tensor."""
    torch = sys.modules.get("torch")  # accounting checks its arguments without importing torch
    for name, value in named.items():
        if torch is None or not isinstance(value, torch.Tensor):
            raise InputError(
                f"Expected {name} to be a tensor, got {type(value).__name__}; use torch.as_tensor."
            )


def floating(**named: Any) -> None:
    """Raise unless every value is a tensor of a real floating-point type."""
    tensor(**named)
    for name, value in named.items():
        if not value.is_floating_point():
            raise InputError(
                f"Expected {name} to hold floating-point numbers, got {value.dtype}; "
                "convert it first."
            )


def delta_caveats(delta: float | None, sample_size: int) -> list[str]:
    """Return a warning where delta is not below 1 / N, else nothing."""
    if delta is None or delta < 1 / sample_size:
        return []
    return [
        f"delta = {delta:g} is not below 1 / N = {1 / sample_size:.2g}: a mechanism that publishes "
        "a whole record would satisfy it; choose a smaller one, or read mu instead."
    ]
