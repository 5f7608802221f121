"""Rounding of privacy numbers towards less privacy."""

import math
from decimal import ROUND_CEILING, Context, Decimal

__all__ = ["round_up"]


def round_up(value: float, digits: int) -> float:
    """Round to ``digits`` significant digits towards infinity.

    That is towards less privacy.

    Example:
        >>> round_up(0.12341, 3), round_up(float("inf"), 3)
        (0.124, inf)
    """
    if not math.isfinite(value):
        return value
    context = Context(prec=digits, rounding=ROUND_CEILING)
    return float(Decimal(repr(float(value))).normalize(context))
