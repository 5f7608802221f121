import math

import numpy as np
import pytest
from scipy import stats

from dpswd.errors import InputError
from experiments.audit.one_run import one_run_epsilon, one_run_p_value


def test_p_value_without_delta():
    for epsilon in (0.0, 0.7, 2.0):
        rate = math.exp(epsilon) / (1 + math.exp(epsilon))
        assert one_run_p_value(100, 60, 45, epsilon, 0.0) == pytest.approx(stats.binom.sf(44, 60, rate))


def test_p_value_with_delta():
    rate = math.exp(1) / (1 + math.exp(1))
    pmf = stats.binom(40, rate).pmf
    worst = max(sum(pmf(w) for w in range(35 - i, 35)) / i for i in range(1, 36))
    found = one_run_p_value(50, 40, 35, 1.0, 1e-4)
    assert found == pytest.approx(stats.binom.sf(34, 40, rate) + 2 * 50 * 1e-4 * worst)
    assert one_run_p_value(50, 40, 0, 1.0, 1e-4) == 1


def test_epsilon_of_randomised_response():
    rng, epsilon, m = np.random.default_rng(0), 1.0, 2000
    bounds = []
    for _ in range(100):
        coins = rng.integers(0, 2, m)
        answers = np.where(rng.random(m) < 1 / (1 + math.exp(-epsilon)), coins, 1 - coins)
        bounds.append(one_run_epsilon(answers - 0.5, coins, delta=1e-6, confidence=0.95))
    alarms = sum(bound > epsilon for bound in bounds)
    assert stats.binom.sf(alarms - 1, 100, 0.05) > 1e-6
    assert np.mean(bounds) > 0.7 * epsilon
    assert sum(bound > 0.5 * epsilon for bound in bounds) > 90  # control: a claim of half as much is refuted


def test_epsilon_of_a_perfect_attack():
    coins = np.arange(100) % 2
    found = one_run_epsilon(coins - 0.5, coins, delta=1e-12)
    rate = (0.01 / 4) ** (1 / 100)
    assert found == pytest.approx(math.log(rate / (1 - rate)), rel=1e-3)


@pytest.mark.parametrize(
    ("scores", "coins", "message"),
    [
        ([0.0, 1.0], [0], "scores and coins"),
        ([], [], "scores and coins"),
        ([math.nan], [1], "scores without nan"),
        ([1.0], [2], "scores without nan"),
    ],
)
def test_bad_input(scores, coins, message):
    with pytest.raises(InputError, match=message):
        one_run_epsilon(scores, coins, delta=1e-5)
    with pytest.raises(InputError, match="right <= guesses"):
        one_run_p_value(5, 2, 3, 1.0, 0.0)
