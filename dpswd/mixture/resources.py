"""Memory and time of a fit, forecast before anything is spent.

The second moments of D dimensions are D x D numbers, and their eigenvectors take D^3 operations.
The variances of D columns, which wide rows have in their place, are D numbers.
"""

import math

from dpswd._memory import GIGABYTE, PART, machine_memory
from dpswd.errors import InputError
from dpswd.mixture.structure import Structure

__all__ = ["check_memory", "cost_line", "memory_of_fit", "seconds_of_fit"]

# Matrices (D, D) in float64 that a fit holds at its peak, besides two for each second moment.
# Measured with 2,000 records at D = 1,000, 2,000 and 3,000: 9 to 16.
_MATRICES = 16
# Bytes of a fit of images for each number of an image and each of their D frequencies: the images
# of the D unit vectors, in single precision, four times.
_MAP_BYTES = 16
# The part of the largest side of images that is named: the rest of the memory does not shrink.
_MARGIN = 0.99
# Seconds of a core over D^3: 6 to 11 s were measured at D = 2,000, and 15 s at D = 3,000.
_SECONDS = 1.5e-9
# Vectors (D,) in float64 that a fit without second moments holds, besides two for each class.
_VECTORS = 64
# Dimensions from which on memory and time are worth a line.
_WIDE = 1000


def memory_of_fit(structure: Structure) -> float:
    """Return the bytes that a fit needs at its peak, besides the records."""
    if structure.is_diagonal:
        return float((_VECTORS + 2 * structure.n_groups) * 8 * structure.dim)
    n_moments = 1
    if not structure.pooled:
        n_moments = structure.n_groups
    needed = float((_MATRICES + 2 * n_moments) * 8 * structure.dim**2)
    if len(structure.sample_shape) == 3:
        needed += _MAP_BYTES * structure.dim * math.prod(structure.sample_shape)
    return needed


def seconds_of_fit(structure: Structure) -> float:
    """Return seconds of a core for the eigenvectors of a fit; 0 without them."""
    if structure.is_diagonal:
        return 0.0
    return float(_SECONDS * structure.dim**3)


def cost_line(structure: Structure) -> str | None:
    """Return a line on memory and time; ``None`` of few dimensions.

    Example:
        >>> from dpswd.mixture.forecast import forecast
        >>> print(cost_line(forecast(50_000, (3000,), n_classes=2, mu=2.0)))
        The fit needs at most about 1.3 GB of memory besides the records, and 40 s of a core.
    """
    if structure.dim < _WIDE or structure.is_diagonal:
        return None
    gigabytes = memory_of_fit(structure) / GIGABYTE
    seconds = seconds_of_fit(structure)
    return (
        f"The fit needs at most about {gigabytes:.1f} GB of memory besides the records, and "
        f"{seconds:.0f} s of a core."
    )


def check_memory(structure: Structure, memory: float | None = None) -> None:
    """Refuse a fit that needs more memory than the machine has.

    Args:
        structure: What the fit releases.
        memory: Bytes of memory; by default, those of this machine.

    Raises:
        InputError: If the memory does not suffice. The message has the number that would.
    """
    if memory is None:
        memory = machine_memory()
    needed = memory_of_fit(structure)
    if needed <= PART * memory:
        return
    part = (PART * memory / needed) ** 0.5
    if len(structure.sample_shape) == 3:
        height, width = structure.sample_shape[1:]
        largest = int(_MARGIN * part * max(height, width))
        raise InputError(
            f"Expected images of at most {largest:,} pixels a side on this "
            f"machine of {memory / GIGABYTE:.0f} GB, got {height:,} x {width:,}, of which a fit "
            f"needs {needed / GIGABYTE:.0f} GB; scale them by size= (--size)."
        )
    largest = int(structure.dim * part)
    raise InputError(
        f"Expected records of at most {largest:,} numbers on this machine of "
        f"{memory / GIGABYTE:.0f} GB, got {structure.dim:,}, whose second moment needs "
        f"{needed / GIGABYTE:.0f} GB ({structure.n_surviving:,} directions are above the noise); "
        "map every record to fewer numbers first, by principal directions of public records or by "
        "leaving columns out."
    )
