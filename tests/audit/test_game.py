"""The game: its score is the likelihood ratio, its pair is the worst one, its bounds come close and stay below."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

import dpswd.loss
import dpswd.queries
from dpswd import InputError, PrivacyAccountant, ProjectionMechanism
from dpswd.audit import Claim, audit, contest
from dpswd.audit.game import ProjectionGame, _affordable
from dpswd.audit.query_game import QueryGame
from dpswd.queries import ClassCounts, ClassCovariances, ClassMeans, GaussianQuery, SecondMoment

QUANTILES = {"statistic": "quantiles", "n_quantiles": 3}


def mechanism(**changes):
    values = {"dim": 4, "n_projections": 8, "sigma": 0.5, "batch_size": 12, "kind": "orthogonal", "noise_seed": 0}
    return ProjectionMechanism(**(values | changes))


def claim(made, sample_size, releases=1, delta=1e-5):
    return Claim.of(PrivacyAccountant().step(made, sample_size=sample_size, n_releases=releases), delta)


def means(game, projections):
    """What is released on both data sets without noise, by the code that releases."""
    rows = game.record.expand(game.mechanism.batch_size, -1).clone()
    exact = []
    for sign in (1, -1):
        rows[0] = sign * game.record
        exact.append(game.loss.exact_values(rows, game.labels, projections))
    return exact


@pytest.mark.parametrize("changes", [{}, QUANTILES, {"n_classes": 3}, QUANTILES | {"n_classes": 2}, {"kind": "iid"}])
def test_the_score_is_the_likelihood_ratio_and_the_pair_is_the_worst(changes):
    game = ProjectionGame(mechanism(**changes), 12)
    projections = game.loss.draw_projections()
    first, second = means(game, projections)
    made = game.mechanism
    s = float((projections.T @ game.clipped).square().sum()) / made.row_norm**2
    assert float((second - first).norm()) == pytest.approx(made.unit_sensitivity * math.sqrt(s), rel=1e-6)
    release = game.loss.publish(first, projections)
    ratio = ((release.values - first).square() - (release.values - second).square()).sum() / (2 * made.sigma**2)
    assert game._log_ratio(release) == pytest.approx(float(ratio), rel=1e-6)


def test_the_score_of_sorted_rows_is_the_likelihood_ratio():
    made = mechanism(batch_size=3, n_projections=4)
    game = ProjectionGame(made, 3, as_released=True)
    projections = game.loss.draw_projections()
    first, second = means(game, projections)
    sorted_values = game.loss.publish(first, projections).values.sort(dim=0).values
    release = dpswd.loss.Release(sorted_values, projections, made)
    ratio = 0.0
    for j in range(4):  # every order in which the noisy rows may have come
        orders = np.array(list(itertools.permutations(sorted_values[:, j].tolist())))
        one, two = (
            stats.norm.pdf(orders, exact[:, j].numpy(), made.sigma).prod(axis=1).sum() for exact in (first, second)
        )
        ratio += math.log(two / one)
    assert game._log_ratio(release) == pytest.approx(ratio, rel=1e-5)


def test_scores_have_the_law_of_the_claim():
    made = mechanism(**QUANTILES, sigma=0.25)
    game = ProjectionGame(made, 12)
    mu = claim(made, 12).mu
    scores = np.array([(game.play(False), game.play(True)) for _ in range(1500)])
    for side, sign in ((0, -1), (1, 1)):
        assert stats.kstest(scores[:, side], stats.norm(sign * mu**2 / 2, mu).cdf).pvalue > 1e-6
        assert stats.kstest(scores[:, side], stats.norm(sign * mu**2 / 2, 1.3 * mu).cdf).pvalue < 1e-6


@pytest.mark.parametrize(
    ("changes", "least"),
    [
        (QUANTILES | {"sigma": 0.15}, 0.85),  # mu = 2.36
        ({"sigma": 0.5}, 0.85),  # mu = 2.83
        ({"sigma": 0.5, "n_classes": 2}, 0.85),
        ({"kind": "iid", "n_projections": 400, "sigma": 4.0}, 0.85),  # mu = 2.52
    ],
)
def test_close_where_all_records_are_read(changes, least):
    made = mechanism(**changes)
    stated = claim(made, 12)
    evidence = contest(ProjectionGame(made, 12), 2500)
    assert least <= evidence.mu / stated.mu <= 1
    assert stated.stands(evidence)
    assert not claim(made.replace(sigma=made.sigma * 1.3), 12).stands(evidence)  # control


def test_sorted_rows_give_less_away_than_is_claimed():
    made = mechanism(sigma=0.5)
    evidence = contest(ProjectionGame(made, 12, as_released=True), 1500)
    assert 0.2 < evidence.mu < 0.6 * claim(made, 12).mu


@pytest.mark.parametrize("changes", [QUANTILES | {"sigma": 0.1}, {"sigma": 0.3}])
def test_subsampled_and_composed_runs_stay_below_the_claimed_curve(changes):
    made = mechanism(**changes)
    stated = claim(made, 36, 3)
    evidence = contest(ProjectionGame(made, 36, 3), 1000, confidence=0.999)
    assert stated.stands(evidence)
    assert evidence.mu > 0.65 * stated.mu_at(evidence.for_mu.fpr)  # the attack is no straw man
    other = contest(ProjectionGame(made, 36, 3), 1000, confidence=0.999)
    assert not claim(made, 36, 1).stands(other)  # control: three releases are not one


@pytest.mark.parametrize("bound", ["bernstein", "clt"])
def test_bounds_in_place_of_the_law_stand(bound):
    made = mechanism(kind="iid", n_projections=400, sigma=4.0, bound=bound)
    evidence = contest(ProjectionGame(made, 12), 1000)
    stated = claim(made, 12)
    assert stated.stands(evidence)
    assert 0.3 < evidence.mu / stated.mu < 1


def test_a_clip_that_does_nothing_is_noticed(monkeypatch):
    monkeypatch.setattr(dpswd.loss, "clip_rows", lambda rows, bound: rows.detach().double())
    made = mechanism(**QUANTILES)
    assert not claim(made, 12).stands(contest(ProjectionGame(made, 12), 400))


QUERIES = [
    ClassCounts(3, sigma=0.7, noise_seed=1),
    SecondMoment(4, row_norm=2.0, sigma=2.5, noise_seed=1),
    ClassMeans(3, 4, row_norm=2.0, sigma=1.8, noise_seed=1),
    ClassCovariances(3, 5, row_norm=2.0, sigma=2.5, noise_seed=1),
]


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: type(query).__name__)
def test_queries(query):
    stated = Claim.of(PrivacyAccountant().step(query.mechanism, sample_size=10), 1e-5)
    game = QueryGame(query)
    assert game.moved == pytest.approx(query.mechanism.sensitivity / query.mechanism.sigma, rel=1e-6)  # the worst pair
    assert query.n_releases == 0  # finding the exact values is none
    evidence = contest(game, 3000)
    assert query.n_releases == 6000
    assert 0.85 <= evidence.mu / stated.mu <= 1
    assert stated.stands(evidence)
    smaller = dataclasses.replace(query.mechanism, sensitivity=query.mechanism.sensitivity / 1.3)
    assert not Claim.of(PrivacyAccountant().step(smaller, sample_size=10), 1e-5).stands(evidence)  # control


def pairs_of_classes(row_norm):
    """Neighbours that differ within a class, or off the diagonal only; every one attains the sensitivity."""
    rows, labels = torch.full((6, 4), 0.1, dtype=torch.float64), torch.arange(6) % 3
    centers = torch.zeros(3, 4, dtype=torch.float64)

    def replaced(row):
        changed = rows.clone()
        changed[0] = torch.tensor(row, dtype=torch.float64)
        return [(changed, labels)]

    means, moments = ClassMeans(3, 4, row_norm, 1.0, noise_seed=2), ClassCovariances(3, 4, row_norm, 1.0, noise_seed=2)
    yield means, ((replaced([9, 0, 0, 0]),), (replaced([-9, 0, 0, 0]),))
    yield moments, ((replaced([9, 0, 0, 0]), centers), (replaced([0, 9, 0, 0]), centers))
    yield moments, ((replaced([9, 9, 0, 0]), centers), (replaced([9, -9, 0, 0]), centers))


@pytest.mark.parametrize("number", range(3))
def test_other_worst_pairs_of_classes(number):
    query, pair = list(pairs_of_classes(0.7))[number]
    query.mechanism = dataclasses.replace(query.mechanism, sigma=query.mechanism.sensitivity / 2)
    game = QueryGame(query, pair=pair)
    assert game.moved == pytest.approx(2, rel=1e-6)
    evidence = contest(game, 2000)
    assert 0.85 * 2 <= evidence.mu
    assert Claim.of(PrivacyAccountant().step(query.mechanism, sample_size=6), 1e-5).stands(evidence)


@pytest.mark.parametrize("query", QUERIES[2:], ids=lambda query: type(query).__name__)
def test_class_queries_without_a_clip_or_with_half_the_noise_are_refuted(query, monkeypatch):
    stated = Claim.of(PrivacyAccountant().step(query.mechanism, sample_size=10), 1e-5)
    with monkeypatch.context() as patch:
        patch.setattr(dpswd.queries, "clip_rows", lambda rows, bound: rows.double())
        assert not stated.stands(contest(QueryGame(query), 400))
    draw = query._normal
    monkeypatch.setattr(query, "_normal", lambda *shape: draw(*shape) / 2)
    assert not stated.stands(contest(QueryGame(query), 1500))


def test_a_query_without_a_worst_pair_is_refused():
    with pytest.raises(InputError, match="Expected a query that states its worst pair, got GaussianQuery; define"):
        QueryGame(GaussianQuery(QUERIES[0].mechanism, 0.1))
    with pytest.raises(InputError, match=r"Expected a GaussianQuery, got str\."):
        QueryGame("counts")
    with pytest.raises(InputError, match="Expected dim >= 2, got dim=1"):
        QueryGame(SecondMoment(1))


def test_a_whole_audit_on_fresh_noise():
    made = mechanism(**QUANTILES, noise_seed=None)
    result = audit(made, 24, 2, trials=300, seed=3, confidence=0.999)
    facts = result.to_dict()
    assert facts["mu_lower"] == result.evidence.mu
    assert facts["mu_claimed"] == facts["mu_claimed_of_all"] == pytest.approx(claim(made, 24, 2).mu)
    assert facts["releases_audited"] == 2
    assert facts["attacked"] == "noisy block means, as they leave"
    assert result.passed  # at 0.999; what is exceeded by chance must be exceeded by both limits


def test_long_runs_are_cut_short_and_say_so():
    made = mechanism(sigma=2.0, noise_seed=None)
    result = audit(made, 120, 10_000, seconds=0.5)
    assert result.releases_audited < 10_000
    assert result.claim.mu < result.claim_of_all.mu
    assert result.to_dict()["mu_claimed"] == result.claim.mu


def test_what_is_affordable():
    assert _affordable(1e-4, 1, 1.0, 40) == (20_000, 1)
    assert _affordable(1e-4, 1, 0.5, 40) == (80_000, 1)  # a small mu wants more runs
    assert _affordable(1e-4, 1, 0.01, 400) == (200_000, 1)
    assert _affordable(1e-4, 1, 5.0, 400) == (200_000, 1)  # and a large one, whose errors are rare
    assert _affordable(1e-2, 1, 1.0, 40) == (4000, 1)
    assert _affordable(1e-2, 60_000, 1.0, 40) == (1000, 4)
    assert _affordable(10.0, 60_000, 1.0, 40) == (50, 1)


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, {}, "Expected secret noise, got a mechanism with noise_seed"),
        ({"noise_seed": None}, {"trials": 10}, r"Expected trials >= 50, got trials=10\."),
        ({"noise_seed": None}, {"seed": -1, "trials": 50}, r"Expected seed >= 0, got seed=-1\."),
        ({"noise_seed": None}, {"seconds": 0}, "Expected seconds to be finite and above 0"),
        ({"noise_seed": None}, {"sample_size": 5}, "Expected batch_size <= sample_size"),
    ],
)
def test_bad_input(changes, options, message):
    with pytest.raises(InputError, match=message):
        audit(mechanism(**changes), **({"sample_size": 12} | options))


def test_the_seed_chooses_the_record_only():
    one, two, other = (ProjectionGame(mechanism(noise_seed=None), 12, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.record, two.record)
    assert not torch.equal(one.record, other.record)
    assert one.play(False) != two.play(False)
