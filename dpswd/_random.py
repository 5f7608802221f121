"""Randomness that a privacy guarantee may rest on, its repeatable twin for tests, and the grid for noisy values.

Noise, directions and batch indices come from OpenSSL's generator (AES-256 in counter mode, NIST SP 800-90A), into which
256 fresh bits of the operating system's entropy are mixed before every draw: a cryptographic expansion of what the
kernel gives, 13 times as fast as the kernel's own. What an earlier draw, a fork or a copy of the machine's memory knows
of its state says nothing about the next draw. (Where Python was built without OpenSSL, :func:`os.urandom` gives
everything.) No state of it is in the hands of this library, so nothing can be saved, logged or seeded;
``torch.manual_seed`` and ``seed_everything`` neither change nor repeat it. (Torch's own CPU generator keeps 32 bits of
its seed, which can be searched.) Numbers are float64 with 53 random bits each.

Declared limitation: floating-point Gaussian noise is not the real-valued one of the proofs; see docs/pitfalls.md.
"""

import math
import os
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpswd._validate import at_least
from dpswd.errors import InputError

__all__ = ["RandomSource", "SecureRandom", "SeededRandom", "normal", "on_grid", "random_source", "subset"]

_SEED_BYTES = 32  # of the operating system's entropy, for every draw
_MOST_BYTES = 2**30  # of one call of OpenSSL, which counts in 32 bits
_PAIRS = 2**18  # of normal numbers made at a time: few enough for memory, enough for torch's threads not to wait


class RandomSource(Protocol):
    """Where noise, directions and batch indices come from."""

    def words(self, count: int) -> NDArray[np.uint64]:
        """Returns ``count`` uniform 64-bit words."""


class SecureRandom:
    """OpenSSL's generator on fresh entropy of the operating system. Safe under fork, not repeatable."""

    def words(self, count: int) -> NDArray[np.uint64]:
        """Returns ``count`` uniform 64-bit words."""
        return np.frombuffer(_secret_bytes(8 * count), dtype=np.uint64)

    def __repr__(self) -> str:
        return "SecureRandom()"


def _secret_bytes(count: int) -> bytes:
    try:
        import ssl
    except ImportError:  # a Python without OpenSSL
        return os.urandom(count)
    ssl.RAND_add(os.urandom(_SEED_BYTES), float(_SEED_BYTES))
    if count <= _MOST_BYTES:
        return ssl.RAND_bytes(count)
    return b"".join(ssl.RAND_bytes(min(_MOST_BYTES, count - start)) for start in range(0, count, _MOST_BYTES))


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
    """Returns the cryptographic generator, or the repeatable one where a test gives a seed."""
    return SecureRandom() if noise_seed is None else SeededRandom(noise_seed)


def normal(source: RandomSource, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Draws standard normal numbers in float64 by Box and Muller, 53 bits for the radius and for the angle each.

    (Torch has the faster cosine and sine, NumPy the faster logarithm; all are within a unit in the last place.)
    """
    count = math.prod(shape)
    half = -(-count // 2)
    result = np.empty(2 * half)
    for start in range(0, half, _PAIRS):
        stop = min(half, start + _PAIRS)
        uniform = (source.words(2 * (stop - start)) >> np.uint64(11)).astype(np.float64)
        radius, angle = uniform[: stop - start], torch.from_numpy(uniform[stop - start :])
        radius += 1
        radius *= 2.0**-53  # (0, 1]: the logarithm is finite
        np.sqrt(-2 * np.log(radius, out=radius), out=radius)
        angle *= 2 * math.pi * 2.0**-53
        np.multiply(radius, angle.cos().numpy(), out=result[start:stop])
        np.multiply(radius, angle.sin().numpy(), out=result[half + start : half + stop])
    return result[:count].reshape(shape)


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


def on_grid(values: Tensor, sigma: float) -> Tensor:
    """Rounds noisy values to multiples of a public power of two, between ``sigma / 2048`` and ``sigma / 1024``.

    Post-processing of the ideal mechanism, and what makes the real one resemble it. Noise is computed from words of 53
    bits; whoever has a released value to all its digits, and guesses the exact one, can compute the words back and sees
    whether they are whole numbers, which tells neighbours apart however large sigma is (Jin et al. 2022; see
    tests/test_numerics.py, where it succeeds without the grid). The digits that this needs are rounded away; the
    variance that it adds is below 1e-7 sigma^2. How close to ideal: docs/pitfalls.md.

    Args:
        values: Any shape, float64.
        sigma: Deviation of the noise on them.

    Returns:
        Tensor of the same shape.
    """
    spacing = 2.0 ** max(math.floor(math.log2(sigma)) - 10, -1000)
    return (values / spacing).round_().mul_(spacing)
