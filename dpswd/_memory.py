"""Sizes that the memory of a machine does not hold are refused before work begins."""

import math
import os

from dpswd.errors import InputError

GIGABYTE = 1e9

# Part of the memory of the machine that a computation may take.
PART = 0.8

# Bytes that one number of a record takes while records are drawn or mapped: the record, its noise
# and what is computed from both, in single and double precision.
_BYTES_PER_NUMBER = 32


# Commands draw as many synthetic records as there are private ones, but at most this number, which
# is that of MNIST: a file of 47 MB that takes a minute.
MAX_SYNTHETIC = 60_000


def machine_memory() -> float:
    """Return the bytes of physical memory; infinite where the system does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):  # not on Windows
        return math.inf


def check_record_size(shape: tuple[int, ...], remedy: str, memory: float | None = None) -> None:
    """Refuse records of which the machine cannot hold one.

    Args:
        shape: Shape of a record.
        remedy: What to do, for the message.
        memory: Bytes of memory; by default, those of this machine.

    Raises:
        InputError: If a record has more numbers than fit.
    """
    largest = _most_numbers(memory)
    if math.prod(shape) > largest:
        raise InputError(
            f"Expected records of at most {largest:,.0f} numbers on this machine, got "
            f"{math.prod(shape):,} of shape {shape}; {remedy}."
        )


def check_drawing(n: int, shape: tuple[int, ...], memory: float | None = None) -> None:
    """Refuse to draw more records than the machine can hold.

    Args:
        n: Number of records.
        shape: Shape of a record.
        memory: Bytes of memory; by default, those of this machine.

    Raises:
        InputError: If they do not fit. The message has the number that does.
    """
    largest = max(1, math.floor(min(_most_numbers(memory), 2**53) / math.prod(shape)))
    if n > largest:
        raise InputError(
            f"Expected n of at most {largest:,} records of shape {shape} on this machine, got "
            f"n={n:,}; draw fewer, several times if you need more."
        )


def _most_numbers(memory: float | None) -> float:
    """Return how many numbers of records the machine can hold."""
    if memory is None:
        memory = machine_memory()
    return PART * memory / _BYTES_PER_NUMBER
