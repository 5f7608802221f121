"""Values as JSON files hold them: JSON has no word for infinity."""

import math
from typing import Any

# An infinite number in files.
INFINITE = "inf"


def plain_number(value: float | None) -> float | str | None:
    """Return a number as files hold it: ``"inf"`` for infinity, ``None`` for NaN."""
    if value is None or math.isnan(value):
        return None
    if math.isfinite(value):
        return value
    if value < 0:
        return f"-{INFINITE}"
    return INFINITE


def plain_values(value: Any) -> Any:
    """Return nested values with all numbers as files hold them.

    Example:
        >>> plain_values({"epsilon": float("inf"), "sizes": (1, 2.5)})
        {'epsilon': 'inf', 'sizes': [1, 2.5]}
    """
    if isinstance(value, dict):
        return {name: plain_values(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(part) for part in value]
    if isinstance(value, float):
        return plain_number(value)
    return value


def as_dict(value: Any) -> dict[str, Any]:
    """Return a value of a file if it is a dictionary, else an empty one."""
    if isinstance(value, dict):
        return value
    return {}
