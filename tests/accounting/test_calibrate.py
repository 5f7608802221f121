"""calibrate_sigma: reference values, round trips, earlier releases, invalid budgets."""

import math
import time

import hypothesis.strategies as st
import pytest
from factories import REFUSED, SKETCH, TABLE4_SIGMA, fuzz, likely_mechanisms, outcome
from gdpnum import PLDConverter

from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.calibrate import calibrate_sigma, mu_of_epsilon
from dpswd.accounting.pld import gaussian_delta
from dpswd.errors import InputError
from dpswd.mechanism import GaussianMechanism, ProjectionMechanism
from experiments.accounting.published import TABLE4

ROWS = ProjectionMechanism(dim=50, n_projections=100, sigma=123.0, batch_size=32)
SKETCH = SKETCH.replace(sigma=1.0, n_quantiles=20, n_classes=None)


def account(mechanism, sigma, size, releases, kind="pld"):
    return PrivacyAccountant(kind).step(mechanism.replace(sigma=sigma), sample_size=size, n_releases=releases)


@pytest.mark.parametrize("row", [row for row in TABLE4 if row.name in TABLE4_SIGMA], ids=lambda row: row.name)
def test_table4_by_pld(row):
    started = time.process_time()
    setting = {"sample_size": row.sample_size, "n_releases": row.n_releases}
    sigma = calibrate_sigma(row.mechanism, **setting, target_epsilon=10, target_delta=row.delta)
    assert time.process_time() - started < 5
    assert sigma == pytest.approx(TABLE4_SIGMA[row.name], rel=0.01)
    assert 9.95 <= account(row.mechanism, sigma, *setting.values()).get_epsilon(row.delta) <= 10


@pytest.mark.parametrize(("epsilon", "delta"), [(0.05, 1e-2), (1.0, 1e-5), (60.0, 1e-9)])
@pytest.mark.parametrize(("mechanism", "size", "releases"), [(ROWS, 497, 800), (ROWS, 32, 1), (SKETCH, 1000, 1)])
def test_round_trip_never_overshoots(mechanism, size, releases, epsilon, delta):
    sigma = calibrate_sigma(
        mechanism, sample_size=size, n_releases=releases, target_epsilon=epsilon, target_delta=delta
    )
    found = account(mechanism, sigma, size, releases).get_epsilon(delta)
    assert 0.995 * epsilon <= found <= epsilon


@pytest.mark.parametrize("bound", ["bernstein", "clt"])
@pytest.mark.parametrize("kind", ["pld", "rdp"])
def test_bounds_and_their_tails_keep_the_budget(bound, kind):
    mechanism = ROWS.replace(bound=bound)
    sigma = calibrate_sigma(
        mechanism, sample_size=497, n_releases=800, target_epsilon=5, target_delta=1e-3, accountant=kind
    )
    assert 4.975 <= account(mechanism, sigma, 497, 800, kind).get_epsilon(1e-3) <= 5
    exact = calibrate_sigma(ROWS, sample_size=497, n_releases=800, target_epsilon=5, target_delta=1e-3, accountant=kind)
    assert exact < sigma


@pytest.mark.parametrize("mu", [0.1, 4.0])
@pytest.mark.parametrize(("mechanism", "size", "releases"), [(ROWS, 497, 800), (SKETCH, 1000, 3)])
def test_mu(mechanism, size, releases, mu):
    sigma = calibrate_sigma(mechanism, sample_size=size, n_releases=releases, target_mu=mu)
    found, _ = account(mechanism, sigma, size, releases).get_mu_and_regret()
    assert 0.995 * mu <= found <= mu


def test_attack_bound():
    sigma = calibrate_sigma(ROWS, sample_size=497, n_releases=800, target_tpr=0.05, at_fpr=1e-3)
    reached = 1 - PLDConverter(account(ROWS, sigma, 497, 800).pld()).get_beta(1e-3)
    assert 0.995 * 0.05 <= reached <= 0.05


def test_earlier_releases_share_the_budget():
    counts = GaussianMechanism(sensitivity=math.sqrt(2), sigma=3.0, name="class counts")
    spent = PrivacyAccountant().step(counts, sample_size=497)
    alone = calibrate_sigma(ROWS, sample_size=497, n_releases=800, target_epsilon=4, target_delta=1e-5)
    sigma = calibrate_sigma(ROWS, sample_size=497, n_releases=800, target_epsilon=4, target_delta=1e-5, spent=spent)
    assert sigma > alone
    total = PrivacyAccountant.from_groups(spent.history).step(
        ROWS.replace(sigma=sigma), sample_size=497, n_releases=800
    )
    assert 3.98 <= total.get_epsilon(1e-5) <= 4
    assert len(spent.history) == 1
    loud = PrivacyAccountant().step(GaussianMechanism(sensitivity=1.0, sigma=0.1), sample_size=497)
    with pytest.raises(InputError, match="raise the target"):
        calibrate_sigma(ROWS, sample_size=497, n_releases=800, target_epsilon=4, target_delta=1e-5, spent=loud)


@pytest.mark.parametrize(
    ("changes", "budget", "match"),
    [
        ({}, {"target_epsilon": 0.0, "target_delta": 1e-5}, "target_epsilon"),
        ({}, {"target_epsilon": 1.0, "target_delta": 1.0}, "target_delta"),
        ({}, {"target_tpr": 0.1}, "at_fpr"),
        ({}, {"target_tpr": 0.1, "at_fpr": 0.1}, "target_tpr"),
        ({}, {}, "one budget"),
        ({}, {"target_mu": 1.0, "target_epsilon": 1.0, "target_delta": 0.1}, "one budget"),
        ({}, {"target_epsilon": 1e-3, "target_delta": 1e-5, "accountant": "rdp"}, "target_epsilon"),
        ({"bound": "bernstein", "failure_prob": 1e-6}, {"target_epsilon": 1, "target_delta": 1e-5}, "delta"),
        ({"bound": "bernstein"}, {"target_mu": 1.0}, "failure_prob"),
        ({"batch_size": 498}, {"target_mu": 1.0}, "batch_size"),
    ],
)
def test_invalid_budget(changes, budget, match):
    with pytest.raises(InputError, match=match):
        calibrate_sigma(ROWS.replace(**changes), sample_size=497, n_releases=800, **budget)


def test_budget_that_needs_no_noise():
    """At delta >= q T, (0, delta) holds without noise: a record is read with probability at most q T."""
    with pytest.raises(InputError, match="lower the target"):
        calibrate_sigma(ROWS, sample_size=10**6, n_releases=1, target_epsilon=1e-4, target_delta=1e-4)


@fuzz(
    10,
    values=likely_mechanisms,
    size=st.sampled_from([64, 1000]),
    releases=st.sampled_from([1, 100]),
    epsilon=st.floats(0.05, 20),
    kind=st.sampled_from(["pld", "rdp"]),
)
def test_any_calibration_keeps_the_budget_or_is_refused(values, size, releases, epsilon, kind):
    made = outcome(ProjectionMechanism, **values | {"sigma": 1.0})
    if made is REFUSED:
        return
    target = {"target_epsilon": epsilon, "target_delta": 1e-5}
    sigma = outcome(calibrate_sigma, made, sample_size=size, n_releases=releases, accountant=kind, **target)
    if sigma is not REFUSED:
        assert account(made, sigma, size, releases, kind).get_epsilon(1e-5) <= epsilon


def test_mu_of_epsilon():
    mu = mu_of_epsilon(1.0, 1e-5)
    assert float(gaussian_delta(mu, 1.0)) == pytest.approx(1e-5, rel=0.02)
    with pytest.raises(InputError, match="epsilon"):
        mu_of_epsilon(1e12, 1e-5)
