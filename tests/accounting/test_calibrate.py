"""Calibration: round trips, never an overshoot, reference values, what is already spent, bad input."""

import math
import time

import pytest
from gdpnum import PLDConverter

from dpswd.accounting import PrivacyAccountant, calibrate_sigma
from dpswd.errors import InputError
from dpswd.mechanism import GaussianMechanism, ProjectionMechanism
from experiments.accounting.published import TABLE4

REFERENCE = {"USPS-MNIST": 0.492, "MNIST (b)": 0.695, "Office-31": 1.567, "VisDA": 1.833, "CelebA": 0.311}
RENYI = {"USPS-MNIST": 0.748, "MNIST (b)": 0.776, "Office-31": 2.73}
ROWS = ProjectionMechanism(dim=50, n_projections=100, sigma=123.0, batch_size=32)
SKETCH = ProjectionMechanism(
    dim=16,
    n_projections=32,
    sigma=1.0,
    batch_size=1000,
    statistic="quantiles",
    n_quantiles=20,
    kind="orthogonal",
)


def account(mechanism, sigma, size, releases, kind="pld"):
    return PrivacyAccountant(kind).step(mechanism.replace(sigma=sigma), sample_size=size, n_releases=releases)


@pytest.mark.parametrize("row", TABLE4, ids=lambda row: row.name)
def test_table4_by_pld(row):
    started = time.perf_counter()
    setting = (row.sample_size, row.n_releases)
    sigma = calibrate_sigma(row.mechanism, *setting, target_epsilon=10, target_delta=row.delta)
    assert time.perf_counter() - started < 5
    assert sigma == pytest.approx(REFERENCE[row.name], rel=0.01)
    assert 9.95 <= account(row.mechanism, sigma, *setting).get_epsilon(row.delta) <= 10


@pytest.mark.parametrize("row", [row for row in TABLE4 if row.name in RENYI], ids=lambda row: row.name)
def test_table4_by_rdp(row):
    started = time.perf_counter()
    setting = (row.sample_size, row.n_releases)
    sigma = calibrate_sigma(row.mechanism, *setting, target_epsilon=10, target_delta=row.delta, accountant="rdp")
    assert time.perf_counter() - started < 2
    assert sigma == pytest.approx(RENYI[row.name], rel=0.01)
    assert 9.95 <= account(row.mechanism, sigma, *setting, "rdp").get_epsilon(row.delta) <= 10


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 60.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-9])
@pytest.mark.parametrize(("mechanism", "size", "releases"), [(ROWS, 497, 800), (ROWS, 32, 1), (SKETCH, 1000, 1)])
def test_round_trip_never_overshoots(mechanism, size, releases, epsilon, delta):
    sigma = calibrate_sigma(mechanism, size, releases, target_epsilon=epsilon, target_delta=delta)
    found = account(mechanism, sigma, size, releases).get_epsilon(delta)
    assert 0.995 * epsilon <= found <= epsilon


@pytest.mark.parametrize("bound", ["bernstein", "clt"])
@pytest.mark.parametrize("kind", ["pld", "rdp"])
def test_bounds_keep_the_budget_with_their_tails(bound, kind):
    mechanism = ROWS.replace(bound=bound)
    sigma = calibrate_sigma(mechanism, 497, 800, target_epsilon=5, target_delta=1e-3, accountant=kind)
    assert 4.975 <= account(mechanism, sigma, 497, 800, kind).get_epsilon(1e-3) <= 5
    exact = calibrate_sigma(ROWS, 497, 800, target_epsilon=5, target_delta=1e-3, accountant=kind)
    assert exact < sigma


@pytest.mark.parametrize("mu", [0.1, 1.0, 4.0])
@pytest.mark.parametrize(("mechanism", "size", "releases"), [(ROWS, 497, 800), (SKETCH, 1000, 3)])
def test_mu(mechanism, size, releases, mu):
    sigma = calibrate_sigma(mechanism, size, releases, target_mu=mu)
    found, _ = account(mechanism, sigma, size, releases).get_mu_and_regret()
    assert 0.995 * mu <= found <= mu


def test_one_shot_mu_is_the_closed_form():
    sigma = calibrate_sigma(SKETCH, 1000, 1, target_mu=2.0)
    assert sigma == pytest.approx(1.0 * math.sqrt(2) / (50 * 2.0), rel=0.005)  # 2 row_norm sqrt(S) / (b mu)


def test_attack_bound():
    sigma = calibrate_sigma(ROWS, 497, 800, target_tpr=0.05, at_fpr=1e-3)
    reached = 1 - PLDConverter(account(ROWS, sigma, 497, 800).pld()).get_beta(1e-3)
    assert 0.995 * 0.05 <= reached <= 0.05


def test_what_is_spent_counts():
    counts = GaussianMechanism(sensitivity=math.sqrt(2), sigma=3.0, name="class counts")
    spent = PrivacyAccountant().step(counts, sample_size=497)
    alone = calibrate_sigma(ROWS, 497, 800, target_epsilon=4, target_delta=1e-5)
    sigma = calibrate_sigma(ROWS, 497, 800, target_epsilon=4, target_delta=1e-5, spent=spent)
    assert sigma > alone
    total = spent.copy().step(ROWS.replace(sigma=sigma), sample_size=497, n_releases=800)
    assert 3.98 <= total.get_epsilon(1e-5) <= 4
    assert len(spent.history) == 1
    loud = PrivacyAccountant().step(counts.__class__(sensitivity=1.0, sigma=0.1), sample_size=497)
    with pytest.raises(
        InputError, match=r"^Expected a budget that some noise uses up exactly, got a target of 4, of which"
    ):
        calibrate_sigma(ROWS, 497, 800, target_epsilon=4, target_delta=1e-5, spent=loud)


def test_gaussian_mechanism():
    sigma = calibrate_sigma(GaussianMechanism(sensitivity=3.0, sigma=1.0), 100, 1, target_mu=0.5)
    assert sigma == pytest.approx(6.0, rel=0.005)


@pytest.mark.parametrize(
    ("budget", "sentence"),
    [
        (
            {"target_epsilon": 0.0, "target_delta": 1e-5},
            "Expected target_epsilon to be finite and above 0, got target_epsilon=0.0.",
        ),
        (
            {"target_epsilon": 1.0, "target_delta": 1.0},
            "Expected target_delta strictly between 0 and 1, got target_delta=1.0.",
        ),
        ({"target_epsilon": 1.0}, "Expected target_delta to be a number, got target_delta=None."),
        ({"target_mu": -1.0}, "Expected target_mu to be finite and above 0, got target_mu=-1.0."),
        ({"target_tpr": 0.1}, "Expected at_fpr to be a number, got at_fpr=None."),
        (
            {"target_tpr": 0.1, "at_fpr": 0.1},
            "Expected target_tpr > at_fpr, got target_tpr=0.1 and at_fpr=0.1; guessing reaches at_fpr.",
        ),
        (
            {},
            "Expected one budget, (target_epsilon, target_delta) or target_mu or (target_tpr, at_fpr), got "
            "target_epsilon=None, target_delta=None, target_mu=None, target_tpr=None, at_fpr=None.",
        ),
        (
            {"target_mu": 1.0, "target_epsilon": 1.0, "target_delta": 0.1},
            "Expected one budget, (target_epsilon, target_delta) or target_mu or (target_tpr, at_fpr), got "
            "target_epsilon=1.0, target_delta=0.1, target_mu=1.0, target_tpr=None, at_fpr=None.",
        ),
        (
            {"target_mu": 1.0, "accountant": "x"},
            "Expected accountant to be one of pld, rdp, got accountant='x'.",
        ),
    ],
)
def test_bad_input_is_one_sentence(budget, sentence):
    with pytest.raises(InputError) as caught:
        calibrate_sigma(ROWS, 497, 800, **budget)
    assert str(caught.value) == sentence


def test_other_bad_input():
    tail = ROWS.replace(bound="bernstein", failure_prob=1e-6)
    with pytest.raises(
        InputError, match=r"^Expected delta above what the tails of the bound spend, got delta=1e-05 and 800"
    ):
        calibrate_sigma(tail, 497, 800, target_epsilon=1, target_delta=1e-5)
    with pytest.raises(InputError, match=r"^Expected failure_prob for a bound that spends a tail probability"):
        calibrate_sigma(ROWS.replace(bound="bernstein"), 497, 800, target_mu=1.0)
    with pytest.raises(InputError, match=r"^Expected batch_size <= sample_size, got batch_size=32 and sample_size=31"):
        calibrate_sigma(ROWS, 31, 800, target_mu=1.0)
    with pytest.raises(InputError, match=r"^Expected target_epsilon > 0.011, the least that Renyi orders"):
        calibrate_sigma(ROWS, 497, 800, target_epsilon=1e-3, target_delta=1e-5, accountant="rdp")
