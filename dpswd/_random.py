"""Cryptographic randomness, a repeatable source, and the grid of released values.

Noise, directions and batch indices come from OpenSSL's generator (AES-256 in counter mode, NIST SP
800-90A), reseeded with 256 bits of the operating system's entropy before every draw, so that an
earlier state, a fork or a memory image does not determine the next draw. No state can be saved,
logged or seeded; ``torch.manual_seed`` and ``seed_everything`` have no effect. Numbers are float64
with 53 random bits; what that leaves open: docs/theory/numerics.md.
"""

import math
import os
import ssl
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpswd.errors import InputError

# Bytes of the operating system's entropy per draw.
_SEED_BYTES = 32
# Bytes per call of OpenSSL, whose counter has 32 bits.
_MAX_BYTES = 2**30
# Pairs of normal numbers per block, which stays in the processor's cache.
_PAIRS = 2**16
# Noisy values that are computed at a time.
_AT_ONCE = 2**16
# Random bits of a uniform number, and how far a word of 64 bits is shifted for them.
_BITS = 53
_SHIFT = np.uint64(64 - _BITS)


class SecureRandom:
    """OpenSSL's generator with fresh entropy for every draw.

    It is safe under fork and not repeatable.
    """

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return ``count`` uniform 64-bit words."""
        ssl.RAND_add(os.urandom(_SEED_BYTES), float(_SEED_BYTES))
        n_bytes = 8 * count
        parts = []
        for start in range(0, n_bytes, _MAX_BYTES):
            parts.append(ssl.RAND_bytes(min(_MAX_BYTES, n_bytes - start)))
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
    if noise_seed is None:
        return SecureRandom()
    return SeededRandom(noise_seed)


def random_source_of(generator: Any) -> RandomSource:
    """Return a source that a caller passes; the cryptographic one for ``None``.

    Raises:
        InputError: If it is not a source.
    """
    if generator is None:
        return SecureRandom()
    if hasattr(generator, "words"):
        return cast(RandomSource, generator)
    raise InputError(
        f"Expected generator to be None, a RandomSource or a torch.Generator, got {generator!r}; "
        "leave it out for cryptographic randomness."
    )


def normal(source: RandomSource, shape: tuple[int, ...]) -> Tensor:
    r"""Draw standard normal numbers in float64 by the Box-Muller transform.

    .. math:: (\sqrt{-2 \ln u} \cos 2 \pi v,\; \sqrt{-2 \ln u} \sin 2 \pi v)

    with u in (0, 1] and v in [0, 1) of 53 random bits each. All cosines come before all sines.
    """
    count = math.prod(shape)
    n_pairs = math.ceil(count / 2)
    result = torch.empty(2, n_pairs, dtype=torch.float64)
    # memory that is new takes time at the first access
    memory = np.empty(2 * min(_PAIRS, n_pairs), dtype=np.uint64)
    for start in range(0, n_pairs, _PAIRS):
        cosines, sines = result[:, start : start + _PAIRS]
        bits = memory[: 2 * len(cosines)]
        np.right_shift(source.words(len(bits)), _SHIFT, out=bits)
        numbers = bits.view(np.float64)
        numbers[:] = bits.view(np.int64)  # faster than torch's conversion
        radius, angle = torch.from_numpy(numbers).view(2, -1)
        radius.add_(1).mul_(2.0**-_BITS)  # u in (0, 1], whose logarithm is finite
        radius.log_().mul_(-2).sqrt_()
        angle.mul_(2 * math.pi * 2.0**-_BITS)
        torch.cos(angle, out=cosines)
        torch.sin(angle, out=sines)
        cosines.mul_(radius)
        sines.mul_(radius)
    return result.view(-1)[:count].view(shape)


def subset(source: RandomSource, population: int, size: int) -> NDArray[np.int64]:
    """Draw indices without replacement, every ordered subset equally likely.

    The first ``size`` distinct values of a sequence of uniform draws are such a subset. For more
    than a quarter of the population, all indices are shuffled instead.

    Args:
        source: Source of the random words.
        population: Number of indices to draw from.
        size: Number of indices to draw, at most ``population``.

    Returns:
        Indices (size,) from 0 to ``population - 1``.
    """
    if 4 * size > population:
        return _shuffled(source, population)[:size]
    # rejection of larger words avoids the bias of the remainder
    limit = np.uint64((2**64 // population) * population - 1)
    indices = np.empty(0, dtype=np.int64)
    while len(indices) < size:
        words = source.words(size + 16)
        unbiased = words[words <= limit] % np.uint64(population)
        candidates = np.concatenate([indices, unbiased.astype(np.int64)])
        _, first = np.unique(candidates, return_index=True)
        indices = candidates[np.sort(first)]
    return indices[:size]


def _shuffled(source: RandomSource, population: int) -> NDArray[np.int64]:
    """Return all indices in the order of random 64-bit keys, drawn again after a tie."""
    while True:
        keys = source.words(population)
        order = np.argsort(keys)
        if np.all(np.diff(keys[order]) > 0):
            return np.asarray(order, dtype=np.int64)


def noisy(exact: Tensor, noise: Tensor, sigma: float) -> Tensor:
    """Return ``exact + sigma * noise`` on the grid; ``noise`` is overwritten."""
    for exact_part, part in zip(_parts(exact, noise), _parts(noise, noise), strict=True):
        part.mul_(sigma).add_(exact_part)
        part.copy_(on_grid(part, sigma))
    return noise


def _parts(values: Tensor, noise: Tensor) -> Sequence[Tensor]:
    """Split values along the slowest dimension of the noise, for the cache."""
    if noise.numel() <= _AT_ONCE:
        return [values]
    strides = noise.stride()
    slowest = strides.index(max(strides))
    n_at_a_time = max(1, _AT_ONCE // max(strides))
    return torch.split(values, n_at_a_time, dim=slowest)


def on_grid(values: Tensor, sigma: float) -> Tensor:
    """Round noisy values to multiples of a public power of two.

    It lies between ``sigma / 2048`` and ``sigma / 1024``.

    From all digits of a value and a guess of the exact one, an attacker can compute the 53-bit
    words of the noise and test whether they are integers (Jin2022; tests/test_numerics.py runs the
    attack). Rounding is post-processing, and adds a variance below 1e-7 sigma^2. Remaining gap:
    docs/theory/numerics.md.
    """
    exponent = max(math.floor(math.log2(sigma)) - 10, -1000)
    spacing = 2.0**exponent
    return (values / spacing).round_().mul_(spacing)
