"""The law of noise and subsets, and that nothing can repeat them."""

import itertools
import math
import os
import pickle
import ssl

import numpy as np
import pytest
from scipy import stats

from dpswd._random import SecureRandom, SeededRandom, normal, subset

FALSE_ALARM = 1e-6  # chance that a correct generator fails a test here, over the choice of the seed


class Fixed:
    """Hands out given words: for the corners that random words never reach."""

    def __init__(self, *words):
        self.left = list(words)

    def words(self, count):
        taken, self.left = self.left[:count], self.left[count:]
        return np.array(taken + [0] * (count - len(taken)), dtype=np.uint64)


def test_normal_law():
    draws = normal(SeededRandom(0), (500_000,)).numpy()
    assert draws.dtype == np.float64
    assert stats.kstest(draws, "norm").pvalue > FALSE_ALARM
    assert stats.kstest(draws * 1.03, "norm").pvalue < FALSE_ALARM  # control: 3% more noise is seen
    assert stats.kstest(draws + 0.02, "norm").pvalue < FALSE_ALARM


def test_normal_of_extreme_words():
    top = 2**64 - 1
    for words in itertools.product((0, top), repeat=2):
        draws = normal(Fixed(*words), (2,)).numpy()
        assert np.isfinite(draws).all()
        assert np.abs(draws).max() <= math.sqrt(2 * 53 * math.log(2)) * (1 + 1e-15)


@pytest.mark.parametrize(
    ("population", "size"), [(4, 3), (3, 3), (9, 2)], ids=["keys", "all", "rejection"]
)
def test_subset_is_uniform(population, size):
    """Every ordered subset of different indices, and nothing else, is drawn equally often."""
    ordered = list(itertools.permutations(range(population), size))
    draws, source = 400 * len(ordered), SeededRandom(2)
    counts = dict.fromkeys(ordered, 0)
    for _ in range(draws):
        counts[tuple(int(i) for i in subset(source, population, size))] += 1
    assert stats.chisquare(list(counts.values())).pvalue > FALSE_ALARM
    counts[ordered[0]] += int(0.4 * counts[ordered[0]])  # control: one subset 40% too often
    assert stats.chisquare(list(counts.values())).pvalue < FALSE_ALARM


def test_subset_rejects_biased_words_and_draws_ties_again():
    top = 2**64 - 1  # 2^64 = 6 mod 10, so the six highest words are rejected
    drawn = subset(Fixed(*[top - i for i in range(6)], top - 6, 3), 10, 2)
    assert drawn.tolist() == [(top - 6) % 10, 3]
    assert subset(Fixed(top, 0), 2**3, 2).tolist() == [7, 0]  # a power of two rejects none
    assert subset(Fixed(5, 5, 1, 9, 4, 7), 3, 3).tolist() == [
        1,
        2,
        0,
    ]  # the first three words are a tie


@pytest.mark.system_entropy
def test_secure_random_has_no_state(monkeypatch):
    source = SecureRandom()
    assert vars(source) == {}
    assert (
        normal(source, (4,)).tolist() != normal(pickle.loads(pickle.dumps(source)), (4,)).tolist()
    )
    monkeypatch.setattr("dpswd._random._MAX_BYTES", 12)  # in several calls
    assert len(set(source.words(5).tolist())) == 5


@pytest.mark.system_entropy
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings(
    "ignore:.*multi-threaded.*fork.*:DeprecationWarning"
)  # the child only draws and leaves
def test_secure_random_after_fork():
    source = SecureRandom()
    normal(source, (1,))
    read, write = os.pipe()
    if not (child := os.fork()):
        os.write(write, np.asarray(source.words(4)).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() != source.words(4).tobytes()


@pytest.mark.system_entropy
def test_secure_random_adds_entropy_to_every_draw(monkeypatch):
    taken, added = [], []
    add, urandom = ssl.RAND_add, os.urandom
    monkeypatch.setattr(os, "urandom", lambda count: taken.append(urandom(count)) or taken[-1])
    monkeypatch.setattr(
        ssl, "RAND_add", lambda seed, entropy: added.append(seed) or add(seed, entropy)
    )
    source = SecureRandom()
    drawn = [source.words(3).tolist() for _ in range(2)]
    assert drawn[0] != drawn[1]
    assert taken == added
    assert [len(seed) for seed in added] == [32, 32]
    assert taken[0] != taken[1]


@pytest.mark.parametrize("pairs", [7, 500, 1000], ids=lambda pairs: f"blocks of {pairs}")
@pytest.mark.parametrize("count", [1999, 2000])
def test_normal_equals_box_muller(pairs, count, monkeypatch):
    monkeypatch.setattr("dpswd._random._PAIRS", pairs)
    source, parts = SeededRandom(4), []
    for start in range(0, 1000, pairs):
        words = source.words(2 * min(pairs, 1000 - start)) >> np.uint64(11)
        radius, angle = words.astype(np.longdouble).reshape(2, -1)
        radius = np.sqrt(-2 * np.log((radius + 1) / 2**53))
        angle = angle * 2 * np.longdouble(math.pi) / 2**53
        parts.append(radius * np.stack([np.cos(angle), np.sin(angle)]))
    exact = np.concatenate(parts, axis=1).ravel()[:count]
    # the product 2 pi u is off by an ulp of 2 pi at most (and pi itself by 1e-16 relative); the
    # rest by a few ulps
    assert np.abs(normal(SeededRandom(4), (count,)).numpy() - exact).max() < 10 * 2.0**-53 * float(
        exact.max()
    )
