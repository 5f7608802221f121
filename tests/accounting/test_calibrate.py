"""Calibration: round trips, budgets that are shared, extreme budgets, refusals."""

import dataclasses
import math
import time
import warnings

import hypothesis.strategies as st
import pytest
from factories import REFUSED, SKETCH, fuzz, outcome
from hypothesis import assume

from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.calibrate import calibrate_sigma, mu_of_epsilon
from dpswd.errors import InputError, PrivacyWarning
from dpswd.mechanism import GaussianMechanism, ProjectionMechanism
from experiments.accounting.published import TABLE4

ROWS = ProjectionMechanism(dim=50, n_projections=100, sigma=2.0, batch_size=32)
BLOCKS = SKETCH.replace(sigma=1.0, n_quantiles=20, n_classes=None)
PLAN = {"sample_size": 497, "n_releases": 800}
PLANS = pytest.mark.parametrize(
    ("mechanism", "size", "releases"), [(ROWS, 497, 800), (ROWS, 32, 1), (BLOCKS, 1000, 3)]
)
# Subsampled rows of MNIST, of which a release reads 100 of 60,000.
MNIST = {"sample_size": 60_000, "n_releases": 6_000}


def account(mechanism, sample_size, n_releases, accountant="pld"):
    """An accountant of some releases."""
    accountant = PrivacyAccountant(accountant)
    return accountant.step(mechanism, sample_size=sample_size, n_releases=n_releases)


def spent_epsilon(mechanism, sigma, delta, accountant="pld", **plan):
    """The epsilon of a plan with this sigma."""
    mechanism = dataclasses.replace(mechanism, sigma=sigma)
    return account(mechanism, **plan, accountant=accountant).get_epsilon(delta)


# Exact sigma of rows of Table 4: an own computation by docs/theory/accounting.md.
TABLE4_SIGMA = {
    "USPS-MNIST": 0.492,
    "MNIST (b)": 0.695,
    "Office-31": 1.567,
    "VisDA": 1.833,
    "CelebA (b)": 0.311,
}


@pytest.mark.parametrize(
    "row", [row for row in TABLE4 if row.name in TABLE4_SIGMA], ids=lambda row: row.name
)
def test_calibrate_sigma_of_table4(row):
    started = time.process_time()
    plan = {"sample_size": row.sample_size, "n_releases": row.n_releases}
    sigma = calibrate_sigma(row.mechanism, **plan, target_epsilon=10, target_delta=row.delta)
    assert time.process_time() - started < 5
    assert sigma == pytest.approx(TABLE4_SIGMA[row.name], rel=0.01)
    assert 9.95 <= spent_epsilon(row.mechanism, sigma, row.delta, **plan) <= 10


@PLANS
@pytest.mark.parametrize(("target", "delta"), [(0.05, 1e-2), (1.0, 1e-5), (60.0, 1e-9)])
def test_calibrate_sigma_to_epsilon_never_overshoots(mechanism, size, releases, target, delta):
    plan = {"sample_size": size, "n_releases": releases}
    sigma = calibrate_sigma(mechanism, **plan, target_epsilon=target, target_delta=delta)
    assert 0.995 * target <= spent_epsilon(mechanism, sigma, delta, **plan) <= target


@PLANS
@pytest.mark.parametrize("target", [0.1, 4.0])
def test_calibrate_sigma_to_mu_never_overshoots(mechanism, size, releases, target):
    plan = {"sample_size": size, "n_releases": releases}
    sigma = calibrate_sigma(mechanism, **plan, target_mu=target)
    mu, _ = account(mechanism.replace(sigma=sigma), **plan).get_mu_and_regret()
    assert 0.995 * target <= mu <= target


@pytest.mark.parametrize("bound", ["bernstein", "clt"])
@pytest.mark.parametrize("kind", ["pld", "rdp"])
def test_calibrate_sigma_with_tails_keeps_the_budget(bound, kind):
    mechanism = ROWS.replace(bound=bound)
    target = {"target_epsilon": 5, "target_delta": 1e-3, "accountant": kind}
    sigma = calibrate_sigma(mechanism, **PLAN, **target)
    assert 4.975 <= spent_epsilon(mechanism, sigma, 1e-3, kind, **PLAN) <= 5
    assert calibrate_sigma(ROWS, **PLAN, **target) < sigma


def test_calibrate_sigma_shares_the_budget_with_earlier_releases():
    target = {"target_epsilon": 4, "target_delta": 1e-5}
    counts = GaussianMechanism(sensitivity=math.sqrt(2), sigma=3.0, name="class counts")
    spent = account(counts, 497, 1)
    sigma = calibrate_sigma(ROWS, **PLAN, **target, spent=spent)
    assert sigma > calibrate_sigma(ROWS, **PLAN, **target)
    total = PrivacyAccountant.from_groups(spent.history).step(ROWS.replace(sigma=sigma), **PLAN)
    assert 3.98 <= total.get_epsilon(1e-5) <= 4
    assert len(spent.history) == 1


def test_calibrate_sigma_refuses_where_earlier_releases_leave_nothing():
    loud = account(GaussianMechanism(sensitivity=1.0, sigma=0.1), 497, 1)
    spent = loud.get_epsilon(1e-5)
    target = {"target_epsilon": 4, "target_delta": 1e-5}
    with pytest.raises(InputError, match=f"other releases alone spend epsilon={spent:.3g}"):
        calibrate_sigma(ROWS, **PLAN, **target, spent=loud)


# Extreme budgets


@pytest.mark.parametrize("kind", ["iid", "orthogonal"])
@pytest.mark.parametrize(("dim", "k"), [(64, 64), (64, 200), (50, 200), (784, 200)])
def test_calibrate_sigma_to_a_tiny_delta(dim, k, kind):
    """The FFT of 6,000 releases errs by 2e-13 in delta, which moved epsilon by 1 %."""
    mechanism = ProjectionMechanism(dim, k, batch_size=100, kind=kind)
    target = {"target_epsilon": 10, "target_delta": 1e-12}
    sigma = calibrate_sigma(mechanism, **MNIST, **target)
    assert 9.95 <= spent_epsilon(mechanism, sigma, 1e-12, **MNIST) <= 10
    # the Renyi bound, which has no such error, agrees
    assert sigma < calibrate_sigma(mechanism, **MNIST, **target, accountant="rdp") < 1.35 * sigma


@pytest.mark.parametrize("target", [300.0, 1000.0, 1e5])
def test_calibrate_sigma_to_a_large_epsilon(target):
    mechanism = ProjectionMechanism(50, 60, batch_size=100)
    sigma = calibrate_sigma(mechanism, **MNIST, target_epsilon=target, target_delta=1e-5)
    assert 0.995 * target <= spent_epsilon(mechanism, sigma, 1e-5, **MNIST) <= target


def test_calibrate_sigma_to_an_epsilon_beyond_the_accountant():
    """The least sigma of which the accountant computes an epsilon keeps any larger budget."""
    mechanism = ProjectionMechanism(50, 60, batch_size=100)
    sigma = calibrate_sigma(mechanism, **MNIST, target_epsilon=1e12, target_delta=1e-5)
    assert 1e6 < spent_epsilon(mechanism, sigma, 1e-5, **MNIST) < 1e12
    with pytest.raises(InputError, match="use a larger sigma"):
        spent_epsilon(mechanism, 0.999 * sigma, 1e-5, **MNIST)


def test_calibrate_sigma_where_every_sigma_keeps_the_budget():
    """With delta above q T, (0, delta) holds without noise, since a record is hardly ever read."""
    plan = {"sample_size": 10**6, "n_releases": 1}
    with pytest.warns(PrivacyWarning, match="target_delta below 1 / N = 1e-06"):
        sigma = calibrate_sigma(ROWS, **plan, target_epsilon=1.0, target_delta=1e-4)
    assert spent_epsilon(ROWS, sigma, 1e-4, **plan) == 0
    # as if the release read all records
    unsampled = ROWS.replace(batch_size=10**6)
    assert spent_epsilon(unsampled, sigma, 1e-4, **plan) == pytest.approx(1.0, rel=0.1)


def test_calibrate_sigma_where_every_sigma_keeps_mu():
    plan = {"sample_size": 10**9, "n_releases": 1}
    with pytest.warns(PrivacyWarning, match="smaller target_mu"):
        calibrate_sigma(ROWS, **plan, target_mu=2.0)


def test_calibrate_sigma_warns_and_refuses_again():
    """The search for a sigma is made once in a process; warnings and refusals come each time."""
    plan = {"sample_size": 10**6, "n_releases": 1, "target_epsilon": 1.0, "target_delta": 1e-4}
    loud = account(GaussianMechanism(sensitivity=1.0, sigma=0.1), 497, 1)
    sigmas = []
    for _ in range(2):
        with pytest.warns(PrivacyWarning, match="target_delta"):
            sigmas.append(calibrate_sigma(ROWS, **plan))
        with pytest.raises(InputError, match="other releases alone spend"):
            calibrate_sigma(ROWS, **PLAN, target_epsilon=4, target_delta=1e-5, spent=loud)
    assert sigmas[0] == sigmas[1]
    # another number of releases or another budget is another search
    plan = {"sample_size": 32, "n_releases": 1, "target_epsilon": 1.0, "target_delta": 1e-5}
    sigma = calibrate_sigma(ROWS, **plan)
    for change in ({"n_releases": 3}, {"target_epsilon": 2.0}, {"target_delta": 1e-6}):
        assert calibrate_sigma(ROWS, **(plan | change)) != sigma


@st.composite
def mechanisms(draw):
    """Rows of any kind of directions, with any bound."""
    dim = draw(st.sampled_from([2, 5, 64]))
    batch_size = draw(st.sampled_from([1, 30, 1000]))
    kind = draw(st.sampled_from(["iid", "orthogonal"]))
    if kind == "iid":
        k = draw(st.sampled_from([64, 128]))
        bound = draw(st.sampled_from(["exact", "exact", "bernstein", "clt"]))
        return ProjectionMechanism(dim, k, 1.0, batch_size, kind=kind, bound=bound)
    k = draw(st.sampled_from([1, 64, 65]))
    return ProjectionMechanism(dim, k, 1.0, batch_size, kind=kind)


def powers(lowest, highest):
    """Numbers whose decimal logarithm is uniform."""
    return st.floats(lowest, highest).map(lambda exponent: 10.0**exponent)


@fuzz(
    40,
    mechanism=mechanisms(),
    sigma=powers(-9, 3),
    delta=powers(-15, -1),
    size=powers(3, 7).map(round),
    releases=st.just(1) | powers(0, 6).map(round),
    kind=st.sampled_from(["pld", "rdp"]),
    slack=st.sampled_from([1.001, 1.1, 3.0, 1000.0]),
)
def test_calibrate_sigma_never_fails_where_some_sigma_holds(
    mechanism, sigma, delta, size, releases, kind, slack
):
    # A record that is read more rarely has a loss that takes minutes to account for.
    assume(size <= 10**5 * mechanism.batch_size)
    plan = {"sample_size": size, "n_releases": releases}
    epsilon = outcome(spent_epsilon, mechanism, sigma, delta, kind, **plan)
    if epsilon is REFUSED:
        return
    assert math.isfinite(epsilon)
    assert epsilon >= 0
    target = slack * max(epsilon, 1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # every sigma may keep the budget
        calibrated = calibrate_sigma(
            mechanism, **plan, target_epsilon=target, target_delta=delta, accountant=kind
        )
    assert spent_epsilon(mechanism, calibrated, delta, kind, **plan) <= target


# Refusals


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ({"target_epsilon": 0.0, "target_delta": 1e-5}, "target_epsilon"),
        ({"target_epsilon": 1.0, "target_delta": 1.0}, "target_delta"),
        ({}, "or target_mu"),
        ({"target_epsilon": 1.0, "target_delta": 0.1, "target_mu": 1.0}, "or target_mu"),
        ({"target_epsilon": 1.0}, "or target_mu, got target_epsilon"),
    ],
)
def test_calibrate_sigma_refuses_a_target(target, name):
    with pytest.raises(InputError, match=name):
        calibrate_sigma(ROWS, **PLAN, **target)


@pytest.mark.parametrize(
    ("changes", "target", "message"),
    [
        # half of delta is the sum of the tails: 800 times 1e-6
        ({"bound": "bernstein", "failure_prob": 1e-6}, {"target_delta": 1e-5}, "delta"),
        ({"bound": "bernstein"}, {"target_mu": 1.0}, "failure_prob"),
        ({"batch_size": 498}, {"target_mu": 1.0}, "batch_size"),
        ({}, {"target_delta": 1e-18}, "use a larger delta"),
    ],
)
def test_calibrate_sigma_refuses_a_mechanism(changes, target, message):
    if "target_delta" in target:
        target = {"target_epsilon": 1.0} | target
    with pytest.raises(InputError, match=message):
        calibrate_sigma(ROWS.replace(**changes), **PLAN, **target)


def test_calibrate_sigma_refuses_what_is_no_mechanism():
    with pytest.raises(InputError, match="got NoneType"):
        calibrate_sigma(None, **PLAN, target_mu=1.0)


def test_calibrate_sigma_refuses_less_than_an_accountant_can_prove():
    """The Renyi orders end at 1024: ln(1e5) / 1023 is the least epsilon at delta = 1e-5."""
    target = {"target_delta": 1e-5, "accountant": "rdp"}
    with pytest.raises(InputError, match=r"at least epsilon=0\.0112.*raise the target"):
        calibrate_sigma(ROWS, **PLAN, target_epsilon=0.011, **target)
    calibrate_sigma(ROWS, **PLAN, target_epsilon=0.012, **target)  # control


@pytest.mark.parametrize("delta", [1e-300, 1e-5, 0.999])
@pytest.mark.parametrize("epsilon", [1e6, 1e12, 1e160, 1e300])
def test_mu_of_epsilon_refuses_an_extreme_budget(epsilon, delta):
    with pytest.raises(InputError, match="at most 450,000"):
        mu_of_epsilon(epsilon, delta)
    assert mu_of_epsilon(450_000, delta) <= 1000  # control


def test_mu_of_epsilon_refuses_a_budget_for_nothing():
    with pytest.raises(InputError, match="larger epsilon"):
        mu_of_epsilon(1e-13, 1e-30)
