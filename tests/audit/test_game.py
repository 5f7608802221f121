"""Upper limits of attacks; score, worst pair,
and bounds that are close to the claim and below it.
"""

import copy
import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import stats

import dpswd.audit.game
import dpswd.queries
from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.pld import gaussian_delta
from dpswd.audit.bounds import (
    Claim,
    epsilon_lower_bound,
    evaluate,
    mu_lower_bound,
    upper_limit,
)
from dpswd.audit.game import ProjectionGame, QueryGame, audit, run_game
from dpswd.errors import InputError
from dpswd.loss import DPSlicedWassersteinLoss, Release
from dpswd.mechanism import ProjectionMechanism
from dpswd.queries import (
    ClassCounts,
    ClassCovariances,
    ClassMeans,
    ColumnCounts,
    GaussianQuery,
    SumAndNorm,
)

QUANTILES = {"statistic": "quantiles", "n_quantiles": 3}


def mechanism(**changes):
    values = {
        "dim": 4,
        "n_projections": 8,
        "sigma": 0.5,
        "batch_size": 12,
        "kind": "orthogonal",
        "noise_seed": 0,
    }
    return ProjectionMechanism(**(values | changes))


def claim(made, sample_size, releases=1, delta=1e-5):
    return Claim.of(
        PrivacyAccountant().step(made, sample_size=sample_size, n_releases=releases), delta
    )


def exact(game, projections):
    """Values of both data sets without noise."""
    index = torch.arange(game.mechanism.n_rows)
    labels = torch.zeros_like(index) if game.mechanism.n_classes else None
    return [
        game.loss.exact_values(game.rows(index, replaced), labels, projections)
        for replaced in (False, True)
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        QUANTILES,
        {"n_classes": 3},
        QUANTILES | {"n_classes": 2},
        {"kind": "iid"},
        {"per_unit": 3},
        QUANTILES | {"per_unit": 3},
        QUANTILES | {"per_unit": 3, "n_classes": 2},
    ],
)
def test_score_is_the_likelihood_ratio_and_the_pair_is_the_worst(changes):
    made = mechanism(**changes)
    game = ProjectionGame(made, 12)
    projections = game.loss.draw_projections()
    first, second = exact(game, projections)
    s = float((projections.T @ game.clipped).square().sum()) / made.row_norm**2
    assert float((second - first).norm()) == pytest.approx(
        made.unit_sensitivity * math.sqrt(s), rel=1e-6
    )
    values = game.loss.discard_order(game.loss.add_noise(first))
    release = Release(values, projections, made)
    ratio = ((release.values - first).square() - (release.values - second).square()).sum() / (
        2 * made.sigma**2
    )
    assert game.log_ratio(release) == pytest.approx(float(ratio), rel=1e-6)


def test_scores_have_the_law_of_the_claim():
    made = mechanism(**QUANTILES, sigma=0.25)
    game = ProjectionGame(made, 12)
    mu = claim(made, 12).mu
    scores = np.array([(game.play(False), game.play(True)) for _ in range(1500)])
    for side, sign in ((0, -1), (1, 1)):
        assert stats.kstest(scores[:, side], stats.norm(sign * mu**2 / 2, mu).cdf).pvalue > 1e-6
        assert (
            stats.kstest(scores[:, side], stats.norm(sign * mu**2 / 2, 1.5 * mu).cdf).pvalue < 1e-6
        )  # control


@pytest.mark.parametrize(
    "changes",
    [
        QUANTILES | {"sigma": 0.15, "n_classes": 2},  # mu = 2.36
        {"kind": "iid", "n_projections": 400, "sigma": 4.0},  # mu = 2.52
        QUANTILES | {"sigma": 0.15, "per_unit": 3},  # three records of a person at once
    ],
)
def test_bound_is_close_without_subsampling(changes):
    made = mechanism(**changes)
    stated = claim(made, 12)
    evidence = run_game(ProjectionGame(made, 12), 2500)
    assert 0.85 <= evidence.mu_lower / stated.mu <= 1
    assert stated.is_consistent_with(evidence)
    assert not claim(made.replace(sigma=made.sigma * 1.3), 12).is_consistent_with(
        evidence
    )  # control


def test_subsampled_and_composed_runs_stay_below_the_claimed_curve():
    made = mechanism(sigma=0.3)
    stated = claim(made, 36, 3)
    evidence = run_game(ProjectionGame(made, 36, 3), 1000, confidence=0.999)
    assert stated.is_consistent_with(evidence)
    assert evidence.mu_lower > 0.65 * stated.mu_at(evidence.fpr)
    other = run_game(ProjectionGame(made, 36, 3), 1000, confidence=0.999)
    assert not claim(made, 36, 1).is_consistent_with(other)  # control: the claim for one release


QUERIES = [
    ClassCounts(3, sigma=0.7, noise_seed=1),
    ColumnCounts(
        2, [(0, 1), (-1, 7), (0, 99)], ["binary", "numeric", "integer"], 16, sigma=1.3, noise_seed=1
    ),
    ClassCovariances(1, 4, row_norm=2.0, sigma=2.5, noise_seed=1),
    ClassMeans(3, 4, row_norm=2.0, sigma=1.8, noise_seed=1),
    SumAndNorm(4, row_norm=2.0, sigma=1.8, noise_seed=1),
    ClassCovariances(3, 5, row_norm=2.0, sigma=2.5, noise_seed=1),
]


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: type(query).__name__)
def test_query_bound_is_close_and_a_fault_is_caught(query, monkeypatch):
    stated = Claim.of(PrivacyAccountant().step(query.mechanism, sample_size=10), 1e-5)
    game = QueryGame(query)
    assert game.moved == pytest.approx(
        query.mechanism.sensitivity / query.mechanism.sigma, rel=1e-6
    )  # the worst pair
    evidence = run_game(game, 3000)
    assert query.n_releases == 0  # the game plays a copy
    assert 0.85 <= evidence.mu_lower / stated.mu <= 1
    assert stated.is_consistent_with(evidence)
    half = copy.deepcopy(query)
    half.mechanism = dataclasses.replace(query.mechanism, sigma=query.mechanism.sigma / 2)
    assert not stated.is_consistent_with(run_game(QueryGame(half), 1000))  # control
    if query in QUERIES[2:]:
        monkeypatch.setattr(dpswd.queries, "clip_rows", lambda rows, bound: rows.detach().double())
        assert not stated.is_consistent_with(run_game(QueryGame(query), 400))
    with pytest.raises(InputError, match="worst_pair"):
        QueryGame(type("Other", (GaussianQuery,), {})("sum", 1.0, sigma=1.0))


def test_audit_shortens_long_runs(monkeypatch):
    monkeypatch.setattr(dpswd.audit.game, "_SECONDS", 0.5)
    made = mechanism(sigma=2.0, noise_seed=None)
    result = audit(made, 120, 10_000)
    assert result.releases_audited < result.n_releases == 10_000
    assert result.mu_claimed < claim(made, 120, 10_000).mu


def test_audit_of_a_broken_loss():
    """A loss of the user's is attacked; the library's own under the same claim is the control."""

    class Summing(DPSlicedWassersteinLoss):
        def compute_statistic(self, rows, labels, projections):
            return self.mechanism.block_size * super().compute_statistic(rows, labels, projections)

    made = mechanism(**QUANTILES, sigma=0.1, noise_seed=None)
    broken, sound = (
        audit(made, 12, trials=500, loss=loss) for loss in (Summing, DPSlicedWassersteinLoss)
    )
    assert not broken.passed
    assert sound.passed
    assert sound.mu_lower <= sound.mu_claimed < broken.mu_lower


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


def test_rates_of_a_gaussian_give_its_mu_and_at_most_its_epsilon():
    mu, delta = 1.7, 1e-5
    epsilon = max(e for e in np.linspace(0, 12, 4001) if gaussian_delta(mu, e) > delta)
    bounds = []
    for threshold in np.linspace(-6, 8, 1401):
        fpr, fnr = float(stats.norm.sf(threshold)), float(stats.norm.cdf(threshold - mu))
        assert mu_lower_bound(fpr, fnr) == pytest.approx(mu, abs=1e-6)
        bounds.append(epsilon_lower_bound(fpr, fnr, delta))
    assert 0.9 * epsilon < max(bounds) <= epsilon + 0.01


@pytest.mark.parametrize("mu", [1.0, 2.0, 6.0])
def test_evaluate_is_below_the_truth_and_close(mu):
    rng = np.random.default_rng(0)
    bounds = [
        evaluate(rng.normal(0, 1, 20_000), rng.normal(mu, 1, 20_000)).mu_lower / mu
        for _ in range(20)
    ]
    assert max(bounds) <= 1
    assert np.mean(bounds) > 0.9


def test_evaluate_false_alarm_rate():
    rng, runs = np.random.default_rng(1), 400

    def alarms(mu, runs):
        pairs = ((rng.normal(0, 1, 400), rng.normal(mu, 1, 400)) for _ in range(runs))
        return sum(evaluate(*pair, confidence=0.5).mu_lower > 1 for pair in pairs)

    assert stats.binom.sf(alarms(1, runs) - 1, runs, 0.5) > 1e-6
    assert alarms(2, 40) == 40  # control


def test_evaluate_separated_scores():
    evidence = evaluate(np.zeros(1000), np.ones(1000))
    assert evidence.mu_lower == pytest.approx(evidence.best_provable_mu)
    rate = 1 - (0.01 / 2) ** (1 / 850)
    assert evidence.mu_lower == pytest.approx(2 * stats.norm.isf(rate), rel=1e-9)
    infinite = evaluate(np.full(1000, -np.inf), np.full(1000, np.inf))
    assert infinite.mu_lower == pytest.approx(evidence.mu_lower)
    assert math.isfinite(infinite.epsilon_lower)


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
