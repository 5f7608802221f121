"""Cryptographic randomness, a repeatable source for tests, and the grid of released values.

Noise, directions and batch indices come from OpenSSL's generator (AES-256 in counter mode, NIST SP 800-90A), reseeded
with 256 bits of the operating system's entropy before every draw, so that an earlier state, a fork or a memory image
does not determine the next draw. No state can be saved, logged or seeded; ``torch.manual_seed`` and
``seed_everything`` have no effect. Numbers are float64 with 53 random bits; what that leaves open:
docs/theory/numerics.md.
"""

import math
import os
import ssl

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_SEED_BYTES = 32  # of the operating system's entropy per draw
_MAX_BYTES = 2**30  # per call of OpenSSL, whose counter has 32 bits
_PAIRS = 2**16  # of normal numbers per block, which stays in the processor's cache


class SecureRandom:
    """OpenSSL's generator with fresh entropy for every draw. Safe under fork, not repeatable."""

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return ``count`` uniform 64-bit words."""
        ssl.RAND_add(os.urandom(_SEED_BYTES), float(_SEED_BYTES))
        parts = (
            ssl.RAND_bytes(min(_MAX_BYTES, 8 * count - start))
            for start in range(0, 8 * count, _MAX_BYTES)
        )
        return np.frombuffer(b"".join(parts), dtype=np.uint64)


class SeededRandom:
    """Repeatable source for tests and benchmarks. Its results are NOT PRIVATE."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.Philox(seed)

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return ``count`` uniform 64-bit words."""
        return np.asarray(self._bits.random_raw(count), dtype=np.uint64)


RandomSource = SecureRandom | SeededRandom


def random_source(noise_seed: int | None = None) -> RandomSource:
    """Return the cryptographic source, or the repeatable one if a seed is given."""
    return SecureRandom() if noise_seed is None else SeededRandom(noise_seed)


def normal(source: RandomSource, shape: tuple[int, ...]) -> Tensor:
    """Draw standard normal numbers in float64 by the Box-Muller transform, 53 bits each for radius and angle."""
    count = math.prod(shape)
    half = -(-count // 2)
    result = torch.empty(2, half, dtype=torch.float64)
    for start in range(0, half, _PAIRS):
        cosines, sines = result[:, start : start + _PAIRS]
        words = source.words(2 * len(cosines)) >> np.uint64(11)
        radius, angle = torch.from_numpy(words.view(np.int64)).double().view(2, -1)
        radius.add_(1).mul_(2.0**-53).log_().mul_(
            -2
        ).sqrt_()  # from (0, 1]: the logarithm is finite
        angle.mul_(2 * math.pi * 2.0**-53)
        torch.mul(radius, angle.cos(), out=cosines)
        torch.mul(radius, angle.sin_(), out=sines)
    return result.view(-1)[:count].view(shape)


def subset(source: RandomSource, population: int, size: int) -> NDArray[np.int64]:
    """Draw ``size`` of ``population`` indices without replacement, every ordered subset equally likely.

    The first ``size`` distinct values of a sequence of uniform draws are such a subset. For more than a quarter of the
    population, all indices are sorted by random 64-bit keys instead (drawn again after a tie).
    """
    if 4 * size > population:
        while True:
            keys = source.words(population)
            order = np.argsort(keys)
            if np.all(np.diff(keys[order]) > 0):
                return np.asarray(order[:size], dtype=np.int64)
    limit = np.uint64(
        (2**64 // population) * population - 1
    )  # rejection of larger words avoids modulo bias
    drawn = np.empty(0, dtype=np.int64)
    while len(drawn) < size:
        words = source.words(size + 16)
        fresh = (words[words <= limit] % np.uint64(population)).astype(np.int64)
        joined = np.concatenate([drawn, fresh])
        _, first = np.unique(joined, return_index=True)
        drawn = joined[np.sort(first)]
    return drawn[:size]


def noisy(exact: Tensor, noise: Tensor, sigma: float) -> Tensor:
    """Return ``exact + sigma * noise``, rounded by :func:`on_grid`; ``noise`` is overwritten."""
    return on_grid(noise.mul_(sigma).add_(exact), sigma)


def on_grid(values: Tensor, sigma: float) -> Tensor:
    """Round noisy values to multiples of a public power of two between ``sigma / 2048`` and ``sigma / 1024``.

    From all digits of a value and a guess of the exact one, an attacker can compute the 53-bit words of the noise and
    test whether they are integers (Jin2022; tests/test_numerics.py runs the attack). Rounding is post-processing, and
    adds a variance below 1e-7 sigma^2. Remaining gap: docs/theory/numerics.md.
    """
    spacing = 2.0 ** max(math.floor(math.log2(sigma)) - 10, -1000)
    return (values / spacing).round_().mul_(spacing)
