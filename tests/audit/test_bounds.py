import math

import numpy as np
import pytest
from scipy import stats

from dpswd.accounting.pld import gaussian_delta
from dpswd.audit.bounds import Attack, evaluate, upper_limit
from dpswd.errors import InputError


@pytest.mark.parametrize(("trials", "level"), [(20, 0.05), (300, 1e-3)])
def test_upper_limit_coverage(trials, level):
    limits = upper_limit(np.arange(trials + 1), trials, level)
    assert limits[-1] == 1
    for rate in np.linspace(0.01, 0.99, 99):
        missed = stats.binom.pmf(np.arange(trials + 1), trials, rate)[limits < rate].sum()
        assert missed <= level * (1 + 1e-9)
    # control: Wald's interval misses far more often
    errors = np.arange(trials + 1) / trials
    wald = errors + stats.norm.isf(level) * np.sqrt(errors * (1 - errors) / trials)
    assert stats.binom.pmf(np.arange(trials + 1), trials, 0.01)[wald < 0.01].sum() > 10 * level


def test_attack_on_a_gaussian_gives_its_mu_and_at_most_its_epsilon():
    mu, delta = 1.7, 1e-5
    epsilon = max(e for e in np.linspace(0, 12, 4001) if gaussian_delta(mu, e) > delta)
    bounds = []
    for threshold in np.linspace(-6, 8, 1401):
        attack = Attack(threshold, float(stats.norm.sf(threshold)), float(stats.norm.cdf(threshold - mu)))
        assert attack.mu == pytest.approx(mu, abs=1e-6)
        bounds.append(attack.epsilon(delta))
    assert 0.9 * epsilon < max(bounds) <= epsilon + 0.01


@pytest.mark.parametrize("mu", [1.0, 2.0, 6.0])
def test_evaluate_is_below_the_truth_and_close(mu):
    rng = np.random.default_rng(0)
    bounds = [evaluate(rng.normal(0, 1, 20_000), rng.normal(mu, 1, 20_000)).mu / mu for _ in range(20)]
    assert max(bounds) <= 1
    assert np.mean(bounds) > 0.9


def test_evaluate_false_alarm_rate():
    rng, runs = np.random.default_rng(1), 400

    def alarms(mu, runs):
        pairs = ((rng.normal(0, 1, 400), rng.normal(mu, 1, 400)) for _ in range(runs))
        return sum(evaluate(*pair, confidence=0.5).mu > 1 for pair in pairs)

    assert stats.binom.sf(alarms(1, runs) - 1, runs, 0.5) > 1e-6
    assert alarms(2, 40) == 40  # control


def test_evaluate_separated_scores():
    evidence = evaluate(np.zeros(1000), np.ones(1000))
    assert evidence.mu == pytest.approx(evidence.best_provable_mu)
    assert 0 < evidence.for_mu.threshold < 1
    rate = 1 - (0.01 * 0.8 / 2) ** (1 / 850)
    assert evidence.mu == pytest.approx(2 * stats.norm.isf(rate), rel=1e-9)
    infinite = evaluate(np.full(1000, -np.inf), np.full(1000, np.inf))
    assert infinite.mu == pytest.approx(evidence.mu)
    assert math.isfinite(infinite.epsilon)


@pytest.mark.parametrize(
    ("first", "second", "options", "message"),
    [
        (np.zeros(49), np.zeros(49), {}, "at least 50"),
        (np.zeros(50), np.zeros(60), {}, "scores"),
        (np.zeros((50, 1)), np.zeros((50, 1)), {}, "scores"),
        (np.full(50, np.nan), np.zeros(50), {}, "nan"),
        (np.zeros(50), np.zeros(50), {"confidence": 1.0}, "confidence"),
        (np.zeros(50), np.zeros(50), {"delta": 0.0}, "delta"),
    ],
)
def test_evaluate_bad_input(first, second, options, message):
    with pytest.raises(InputError, match=message):
        evaluate(first, second, **options)
