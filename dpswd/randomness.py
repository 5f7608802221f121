"""Randomness that a privacy guarantee may rest on, and its repeatable twin for tests. NumPy only.

Noise, directions and batch indices come from :func:`os.urandom`: the kernel's cryptographic generator, keyed by the
machine's entropy. It has no state in this process, so nothing of it can be saved, logged, forked or seeded;
``torch.manual_seed`` and ``seed_everything`` neither change nor repeat it. (Torch's own CPU generator keeps 32 bits of
its seed, which can be searched.) Numbers are float64 with 53 random bits each.

Declared limitation: floating-point Gaussian noise is not the real-valued one of the proofs; see docs/pitfalls.md.
"""

import math
import os
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpswd._validate import at_least
from dpswd.errors import InputError

__all__ = ["RandomSource", "SecureRandom", "SeededRandom", "random_source"]


class RandomSource(Protocol):
    """Where noise, directions and batch indices come from."""

    def words(self, count: int) -> NDArray[np.uint64]:
        """Returns ``count`` uniform 64-bit words."""


class SecureRandom:
    """The operating system's generator. Stateless, safe under fork, not repeatable."""

    def words(self, count: int) -> NDArray[np.uint64]:
        """Returns ``count`` uniform 64-bit words."""
        return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)

    def __repr__(self) -> str:
        return "SecureRandom()"


class SeededRandom:
    """A repeatable source for tests and benchmarks. Whatever it touches is NOT PRIVATE."""

    def __init__(self, seed: int) -> None:
        at_least(0, noise_seed=seed)
        self._bits = np.random.Philox(seed)

    def words(self, count: int) -> NDArray[np.uint64]:
        """Returns ``count`` uniform 64-bit words."""
        return np.asarray(self._bits.random_raw(count), dtype=np.uint64)

    def __repr__(self) -> str:
        return "SeededRandom(...)"


def random_source(noise_seed: int | None = None) -> RandomSource:
    """Returns the operating system's generator, or the repeatable one where a test gives a seed."""
    return SecureRandom() if noise_seed is None else SeededRandom(noise_seed)


def normal(source: RandomSource, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Draws standard normal numbers in float64 by Box and Muller, 53 bits for the radius and for the angle each."""
    count = math.prod(shape)
    half = -(-count // 2)
    uniform = (source.words(2 * half) >> np.uint64(11)).astype(np.float64)
    radius = np.sqrt(-2 * np.log((uniform[:half] + 1) * 2.0**-53))  # (0, 1]: the logarithm is finite
    angle = uniform[half:] * (2 * math.pi * 2.0**-53)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count].reshape(shape)


def subset(source: RandomSource, population: int, size: int) -> NDArray[np.int64]:
    """Draws ``size`` of ``population`` indices without replacement, every ordered subset equally likely.

    The first ``size`` distinct values of a sequence of uniform draws are such a subset. Where more than a quarter is
    wanted all indices are ordered by random 64-bit keys instead (drawn again in the event of a tie).

    Raises:
        InputError: If ``size`` exceeds ``population``.
    """
    at_least(1, population=population, size=size)
    if size > population:
        raise InputError(f"Expected at most {population} rows in a batch (the records there are), got {size}.")
    if 4 * size > population:
        while True:
            keys = source.words(population)
            order = np.argsort(keys)
            if np.all(np.diff(keys[order]) > 0):
                return np.asarray(order[:size], dtype=np.int64)
    limit = np.uint64((2**64 // population) * population - 1)  # words above would favour small remainders
    drawn = np.empty(0, dtype=np.int64)
    while len(drawn) < size:
        words = source.words(size + 16)
        fresh = (words[words <= limit] % np.uint64(population)).astype(np.int64)
        joined = np.concatenate([drawn, fresh])
        _, first = np.unique(joined, return_index=True)
        drawn = joined[np.sort(first)]
    return drawn[:size]
