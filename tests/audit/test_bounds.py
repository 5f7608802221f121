"""From scores to bounds: exact coverage, conversions against closed forms, thresholds."""

import math

import numpy as np
import pytest
from scipy import stats

from dpswd.accounting.pld import gaussian_delta
from dpswd.audit import Attack, weigh
from dpswd.audit.bounds import upper_limit
from dpswd.errors import InputError


@pytest.mark.parametrize(("trials", "level"), [(20, 0.05), (300, 1e-3)])
def test_limits_cover_exactly(trials, level):
    limits = upper_limit(np.arange(trials + 1), trials, level)
    assert limits[-1] == 1
    for rate in np.linspace(0.01, 0.99, 99):
        missed = stats.binom.pmf(np.arange(trials + 1), trials, rate)[limits < rate].sum()
        assert missed <= level * (1 + 1e-9)
    # control: Wald's interval, which everybody knows, misses far more often than it says
    errors = np.arange(trials + 1) / trials
    wald = errors + stats.norm.isf(level) * np.sqrt(errors * (1 - errors) / trials)
    assert stats.binom.pmf(np.arange(trials + 1), trials, 0.01)[wald < 0.01].sum() > 10 * level


def test_no_test_of_a_gaussian_gives_more_than_its_mu_and_epsilon():
    mu, delta = 1.7, 1e-5
    epsilon = max(e for e in np.linspace(0, 12, 4001) if gaussian_delta(mu, e) > delta)
    bounds = []
    for threshold in np.linspace(-6, 8, 1401):
        attack = Attack(threshold, float(stats.norm.sf(threshold)), float(stats.norm.cdf(threshold - mu)))
        assert attack.mu == pytest.approx(mu, abs=1e-6)
        bounds.append(attack.epsilon(delta))
    assert max(bounds) <= epsilon + 0.01
    assert max(bounds) > 0.9 * epsilon  # and the best test comes close


@pytest.mark.parametrize("mu", [1.0, 2.0, 6.0])
def test_bounds_stay_below_the_truth_and_come_close(mu):
    rng = np.random.default_rng(0)
    bounds = [weigh(rng.normal(0, 1, 20_000), rng.normal(mu, 1, 20_000)).mu / mu for _ in range(20)]
    assert max(bounds) <= 1
    assert np.mean(bounds) > 0.9


def test_the_false_alarm_rate_is_what_is_said():
    rng, confidence, runs = np.random.default_rng(1), 0.5, 400
    alarms = sum(weigh(rng.normal(0, 1, 400), rng.normal(1, 1, 400), confidence=confidence).mu > 1 for _ in range(runs))
    assert stats.binom.sf(alarms - 1, runs, 1 - confidence) > 1e-6
    caught = sum(weigh(rng.normal(0, 1, 400), rng.normal(2, 1, 400), confidence=confidence).mu > 1 for _ in range(40))
    assert caught == 40  # control


def test_scores_that_separate_the_runs_prove_what_so_many_runs_can():
    evidence = weigh(np.zeros(1000), np.ones(1000))
    assert evidence.mu == pytest.approx(evidence.best_provable_mu)
    assert 0 < evidence.for_mu.threshold < 1
    counted = 850
    rate = 1 - (0.01 * 0.8 / 2) ** (1 / counted)
    assert evidence.mu == pytest.approx(2 * stats.norm.isf(rate), rel=1e-9)
    infinite = weigh(np.full(1000, -np.inf), np.full(1000, np.inf))
    assert infinite.mu == pytest.approx(evidence.mu)
    assert math.isfinite(infinite.epsilon)


def test_scores_that_say_nothing_prove_nothing():
    for scores in (np.zeros(100), np.arange(100.0)):
        evidence = weigh(scores, scores)
        assert evidence.mu == evidence.epsilon == 0


@pytest.mark.parametrize(
    ("first", "second", "options", "message"),
    [
        (np.zeros(49), np.zeros(49), {}, "Expected as many runs on both data sets, at least 50"),
        (np.zeros(50), np.zeros(60), {}, "Expected as many runs on both data sets"),
        (np.zeros((50, 1)), np.zeros((50, 1)), {}, "Expected as many runs on both data sets"),
        (np.full(50, np.nan), np.zeros(50), {}, "Expected scores that are numbers, got nan"),
        (np.zeros(50), np.zeros(50), {"confidence": 1.0}, "Expected confidence strictly between 0 and 1"),
        (np.zeros(50), np.zeros(50), {"delta": 0.0}, "Expected delta strictly between 0 and 1"),
    ],
)
def test_bad_input(first, second, options, message):
    with pytest.raises(InputError, match=message):
        weigh(first, second, **options)
