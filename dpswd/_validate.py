"""Checks on arguments. The keyword is the name in the message: ``positive(sigma=sigma)``."""

import math
import operator
from typing import Any

from dpswd.errors import InputError

__all__ = ["at_least", "choice", "integer", "positive", "probability"]


def _real(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(f"Expected {name} to be a number, got {name}={value!r}.") from None


def positive(**named: Any) -> None:
    """Raises unless every value is a finite number above zero (which also catches nan)."""
    for name, value in named.items():
        number = _real(name, value)
        if not (number > 0 and math.isfinite(number)):
            raise InputError(f"Expected {name} to be finite and above 0, got {name}={value!r}.")


def integer(**named: Any) -> None:
    """Raises unless every value is an integer (``True`` is not)."""
    for name, value in named.items():
        if isinstance(value, bool):
            raise InputError(f"Expected {name} to be an integer, got {name}={value!r}.")
        try:
            operator.index(value)
        except TypeError:
            raise InputError(f"Expected {name} to be an integer, got {name}={value!r}.") from None


def at_least(lowest: int, **named: Any) -> None:
    """Raises unless every value is an integer of at least ``lowest``."""
    integer(**named)
    for name, value in named.items():
        if value < lowest:
            raise InputError(f"Expected {name} >= {lowest}, got {name}={value!r}.")


def probability(**named: Any) -> None:
    """Raises unless every value lies strictly between 0 and 1."""
    for name, value in named.items():
        if not 0 < _real(name, value) < 1:
            raise InputError(f"Expected {name} strictly between 0 and 1, got {name}={value!r}.")


def choice(allowed: tuple[str, ...], **named: Any) -> None:
    """Raises unless every value is one of ``allowed``."""
    for name, value in named.items():
        if value not in allowed:
            raise InputError(f"Expected {name} to be one of {', '.join(allowed)}, got {name}={value!r}.")
