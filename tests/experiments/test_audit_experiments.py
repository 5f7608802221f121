"""Audit experiments: canaries, leaks, one-run bounds, broken mechanisms and their twins."""

import math

import numpy as np
import pytest
from scipy import stats

from experiments.audit.canaries import audit_generator
from experiments.audit.leak import Target
from experiments.audit.one_run import one_run_epsilon, one_run_p_value
from experiments.audit.zoo import ZOO, inspect


def test_audit_of_a_generator():
    row = audit_generator(slots=100, epsilon=1.0)
    assert row["passed"]
    assert 0.3 < row["guessed_right"] < 0.7  # 4 standard deviations around 1/2


@pytest.mark.parametrize("published", [0.25, 1.0])
def test_audit_of_published_records(published):
    row = audit_generator(slots=400, epsilon=1.0, published=published)
    assert not row["passed"]
    all_right = row["guessed_right"] == 1
    is_best = row["epsilon_lower"] == row["best_provable_epsilon"]
    assert all_right == is_best == (published == 1)


def test_leak_of_the_synthetic_target_scores_have_the_law_of_the_claim():
    """The ratio is normal with mean -m^2/2 and variance m^2 for the mu of this record, m <= 1."""
    target = Target(1.0)
    scores = np.array([target.run(0) for _ in range(30)])
    m = scores.std()
    assert scores.mean() < -(m**2) / 2 + 4 * m / 30**0.5  # 4 standard deviations above the mean
    assert 0.3 < scores.std() < 1 + 4 / 58**0.5  # 4 standard deviations above the claim


def test_p_value_with_delta():
    rate = math.exp(1) / (1 + math.exp(1))
    pmf = stats.binom(40, rate).pmf
    worst = max(sum(pmf(w) for w in range(35 - i, 35)) / i for i in range(1, 36))
    expected = stats.binom.sf(34, 40, rate) + 2 * 50 * 1e-4 * worst
    assert one_run_p_value(50, 40, 35, 1.0, 1e-4) == pytest.approx(expected)
    assert one_run_p_value(50, 40, 0, 1.0, 1e-4) == 1


def test_epsilon_of_randomised_response():
    rng = np.random.default_rng(0)
    epsilon = 1.0
    m = 2000
    bounds = []
    for _ in range(100):
        coins = rng.integers(0, 2, m)
        answers = np.where(rng.random(m) < 1 / (1 + math.exp(-epsilon)), coins, 1 - coins)
        bounds.append(one_run_epsilon(answers - 0.5, coins, delta=1e-6, confidence=0.95))
    alarms = sum(bound > epsilon for bound in bounds)
    assert stats.binom.sf(alarms - 1, 100, 0.05) > 1e-6
    assert np.mean(bounds) > 0.7 * epsilon
    refuted = sum(bound > 0.5 * epsilon for bound in bounds)
    assert refuted > 90  # control: a claim of half as much is refuted


def test_epsilon_of_a_perfect_attack():
    coins = np.arange(100) % 2
    rate = (0.01 / 4) ** (1 / 100)
    epsilon = one_run_epsilon(coins - 0.5, coins, delta=1e-12)
    assert epsilon == pytest.approx(math.log(rate / (1 - rate)), rel=1e-3)


@pytest.mark.repetitions
@pytest.mark.parametrize("specimen", ZOO, ids=lambda specimen: specimen.name)
def test_specimen_is_caught_and_its_twin_passes(specimen):
    trials = 1000
    row = inspect(specimen, trials=trials, seed=1)
    assert row["caught"]
    assert row["mu_lower"] > row["mu_claimed_at_fpr"]
    assert row["twin_passed"]
    assert row["twin_mu_lower"] > 0.1  # control: a blind attack gives 0
