"""PrivacyAccountant and calibrate_sigma: tails, mu, assumptions, reference values, round trips, invalid input."""

import math
import time

import pytest
from factories import SKETCH
from scipy import optimize, stats

from dpswd.accounting import pld
from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.calibrate import calibrate_sigma, mu_of_epsilon
from dpswd.accounting.rdp import RenyiAccount
from dpswd.errors import InputError
from dpswd.mechanism import GaussianMechanism, ProjectionMechanism
from experiments.accounting.published import TABLE4

ROWS = ProjectionMechanism(dim=50, n_projections=100, sigma=2.0, batch_size=32)
N, T, DELTA = 497, 800, 1e-3


def account(mechanism, kind="pld", releases=T, size=N):
    return PrivacyAccountant(kind).step(mechanism, sample_size=size, n_releases=releases)


def test_profile_inverts_get_epsilon():
    accountant = account(ROWS)
    for delta in (1e-3, 1e-6):
        epsilon = accountant.get_epsilon(delta)
        assert accountant.profile([epsilon])[0] == pytest.approx(delta, rel=2e-3)
    assert accountant.get_epsilon(1e-3) < accountant.get_epsilon(1e-6)


def test_tail_is_charged_at_every_release():
    failure_prob = 1e-7
    fixed = ROWS.replace(bound="bernstein", failure_prob=failure_prob)
    bounded = account(fixed)
    assert bounded.tail == pytest.approx(T * failure_prob)
    expected = float(pld.compose(bounded.parts()).get_epsilon_for_delta(DELTA - T * failure_prob))
    assert bounded.get_epsilon(DELTA) == pytest.approx(expected)
    assert bounded.profile([expected])[0] == pytest.approx(DELTA, rel=2e-3)
    assert bounded.pld().get_delta_for_epsilon(1e3) == pytest.approx(
        T * failure_prob, rel=1e-6
    )  # infinite loss
    assert bounded.get_epsilon(DELTA) > account(ROWS).get_epsilon(
        DELTA
    )  # a bound costs more than the exact law


@pytest.mark.parametrize(("batch", "factor"), [(100, 1.0), (300, 3 * 300 / 497), (497, 1.0)])
def test_renyi_charges_the_tail_three_q_times_in_the_middle(batch, factor):
    mechanism = ROWS.replace(bound="bernstein", failure_prob=1e-8, batch_size=batch, sigma=50.0)
    accountant = account(mechanism, "rdp")
    assert accountant.tail == pytest.approx(T * 1e-8 * factor)
    expected = RenyiAccount(accountant.parts()).get_epsilon(DELTA - accountant.tail)
    assert accountant.get_epsilon(DELTA) == pytest.approx(expected)


def test_tails_without_failure_prob_get_half_of_delta():
    for kind, batch in [("pld", 300), ("rdp", 300), ("rdp", 32)]:
        open_bound = account(ROWS.replace(bound="bernstein", batch_size=batch, sigma=30.0), kind)
        resolved = open_bound.resolve(DELTA)
        assert resolved.tail == pytest.approx(DELTA / 2)
        assert open_bound.history[0][0].failure_prob is None
        assert open_bound.get_epsilon(DELTA) == pytest.approx(resolved.get_epsilon(DELTA))
        with pytest.raises(InputError, match="failure_prob"):
            open_bound.profile([1.0])
        assert resolved.profile([resolved.get_epsilon(DELTA)])[0] <= DELTA * 1.01


def implied_mu(loss, epsilon):
    """The mu of the Gaussian mechanism with the same delta at ``epsilon`` (Dong2022, Corollary 1)."""
    delta = float(loss.get_delta_for_epsilon(epsilon))
    return optimize.brentq(
        lambda mu: float(pld.gaussian_delta(mu, epsilon)) - delta, 1e-9, 50.0, xtol=1e-14
    )


@pytest.mark.parametrize(
    ("mechanism", "size", "releases"),
    [
        (ROWS, N, T),
        (GaussianMechanism(sensitivity=1.0, sigma=1.0, batch_size=1), 1000, 10**7),
        (GaussianMechanism(sensitivity=1.0, sigma=1.0, batch_size=1), 10**4, 10**8),
    ],
)
def test_mu_is_not_below_the_privacy_profile(mechanism, size, releases):
    accountant = account(mechanism, releases=releases, size=size)
    mu, regret = accountant.get_mu_and_regret()
    assert account(mechanism, "rdp", releases, size).get_mu_and_regret() == (mu, regret)
    assert 0 <= regret < 0.02
    loss = accountant.pld()
    for epsilon in (1e-6, 0.1 * mu, mu, 3 * mu):
        assert implied_mu(loss, epsilon) <= mu


@pytest.mark.parametrize(("size", "releases"), [(10**3, 10**6), (10**4, 10**8)])
def test_many_releases_approach_the_central_limit(size, releases):
    """Dong2022, Corollary 5.4, for q sqrt(T) = 1 and one release of mu = 1. The error is of order q."""
    limit = math.sqrt(2) * math.sqrt(math.e * stats.norm.cdf(1.5) + 3 * stats.norm.cdf(-0.5) - 2)
    noise = GaussianMechanism(sensitivity=1.0, sigma=1.0, batch_size=1)
    loss = account(noise, releases=releases, size=size).pld()
    assert implied_mu(loss, 1e-6) == pytest.approx(limit, rel=5 / size)


def test_gaussian_mu_needs_constant_sensitivity_and_all_records():
    counts = GaussianMechanism(sensitivity=2.0, sigma=4.0)
    whole = ROWS.replace(kind="orthogonal", batch_size=N, sigma=2.0)  # S = k / d = 2
    accountant = PrivacyAccountant.from_groups([(counts, N, 4), (whole, N, 2)])
    assert accountant.gaussian_mu == pytest.approx(math.sqrt(4 * 0.25 + 2 * 2 / 4))
    assert accountant.get_mu_and_regret() == (1.4143, 0.0)  # sqrt(2), rounded up
    for mechanism in (ROWS, ROWS.replace(batch_size=N), whole.replace(batch_size=10)):
        assert account(mechanism).gaussian_mu is None
    assert PrivacyAccountant().gaussian_mu is None


def test_sound_and_assumptions():
    assert account(ROWS).sound
    clt, seeded = account(ROWS.replace(bound="clt")), account(ROWS.replace(noise_seed=1))
    assert not clt.sound
    assert "NOT SOUND" in " ".join(clt.assumptions)
    assert not seeded.sound
    assert "NOT PRIVATE" in " ".join(seeded.assumptions)
    whole = account(ROWS.replace(kind="orthogonal", n_classes=10, batch_size=N))
    assert whole.sound
    assert "Labels are private" in " ".join(whole.assumptions)
    assert "without replacement" not in " ".join(whole.assumptions)
    assert "without replacement" in " ".join(account(ROWS).assumptions)


def test_labels_cost_nothing_with_whole_bases_and_little_without():
    whole = ROWS.replace(kind="orthogonal")
    assert account(whole).get_epsilon(DELTA) == account(whole.replace(n_classes=10)).get_epsilon(
        DELTA
    )
    plain, classes = (
        account(ROWS).get_epsilon(DELTA),
        account(ROWS.replace(n_classes=10)).get_epsilon(DELTA),
    )
    assert plain <= classes < 1.01 * plain


def calibrate(target_epsilon=None, target_delta=None, target_mu=None, accountant="pld", **changes):
    target = {
        "target_epsilon": target_epsilon,
        "target_delta": target_delta,
        "target_mu": target_mu,
    }
    return calibrate_sigma(ROWS.replace(**changes), **PLAN, **target, accountant=accountant)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: PrivacyAccountant("glw"), "accountant"),
        (lambda: account(ROWS, size=31), "batch_size"),
        (lambda: account(ROWS).get_epsilon(1e-18), "delta"),
        (lambda: PrivacyAccountant().get_epsilon(1e-5), "step"),
        (lambda: PrivacyAccountant("rdp").get_epsilon(1e-5), "step"),
        (
            lambda: account(ROWS.replace(bound="bernstein", failure_prob=1e-5)).get_epsilon(1e-3),
            "failure_prob",
        ),
        (lambda: account(ROWS.replace(bound="bernstein")).pld(), "failure_prob"),
        (lambda: account(ROWS.replace(sigma=1e-3)).get_epsilon(1e-5), "larger sigma"),
        (
            lambda: account(ROWS.replace(sigma=0.1, batch_size=N), releases=1).get_mu_and_regret(),
            "larger sigma",
        ),
        (lambda: mu_of_epsilon(1e12, 1e-5), "epsilon"),
        # at delta >= q T, (0, delta) holds without noise: a record is read with probability at most q T
        (
            lambda: ROWS.calibrate(
                sample_size=10**6, n_releases=1, target_epsilon=1e-4, target_delta=1e-4
            ),
            "lower the",
        ),
        (lambda: calibrate(0.0, 1e-5), "target_epsilon"),
        (lambda: calibrate(1.0, 1.0), "target_delta"),
        (lambda: calibrate(), "or target_mu"),
        (lambda: calibrate(1.0, 0.1, 1.0), "or target_mu"),
        (lambda: calibrate(1e-3, 1e-5, accountant="rdp"), "raise the target"),
        (lambda: calibrate(1, 1e-5, bound="bernstein", failure_prob=1e-6), "delta"),
        (lambda: calibrate(target_mu=1.0, bound="bernstein"), "failure_prob"),
        (lambda: calibrate(target_mu=1.0, batch_size=498), "batch_size"),
    ],
)
def test_invalid_input(call, match):
    with pytest.raises(InputError, match=match):
        call()


BLOCKS = SKETCH.replace(sigma=1.0, n_quantiles=20, n_classes=None)
PLAN = {"sample_size": N, "n_releases": T}
PLANS = pytest.mark.parametrize(
    ("mechanism", "size", "releases"), [(ROWS, N, T), (ROWS, 32, 1), (BLOCKS, 1000, 3)]
)


# exact sigma of rows of Table 4: own computation by docs/theory/accounting.md, independent of the package
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
def test_table4_by_pld(row):
    started, setting = (
        time.process_time(),
        {"sample_size": row.sample_size, "n_releases": row.n_releases},
    )
    sigma = calibrate_sigma(row.mechanism, **setting, target_epsilon=10, target_delta=row.delta)
    assert time.process_time() - started < 5
    assert sigma == pytest.approx(TABLE4_SIGMA[row.name], rel=0.01)
    found = account(row.mechanism.replace(sigma=sigma), "pld", row.n_releases, row.sample_size)
    assert 9.95 <= found.get_epsilon(row.delta) <= 10


@PLANS
@pytest.mark.parametrize(
    ("target", "delta"), [(0.05, 1e-2), (1.0, 1e-5), (60.0, 1e-9), (0.1, None), (4.0, None)]
)
def test_round_trip_never_overshoots(mechanism, size, releases, target, delta):
    """To epsilon at a delta, and to mu without one."""
    budget = {"target_epsilon": target, "target_delta": delta} if delta else {"target_mu": target}
    sigma = calibrate_sigma(mechanism, sample_size=size, n_releases=releases, **budget)
    spent = account(mechanism.replace(sigma=sigma), "pld", releases, size)
    assert (
        0.995 * target
        <= (spent.get_epsilon(delta) if delta else spent.get_mu_and_regret()[0])
        <= target
    )


@pytest.mark.parametrize("bound", ["bernstein", "clt"])
@pytest.mark.parametrize("kind", ["pld", "rdp"])
def test_bounds_and_their_tails_keep_the_budget(bound, kind):
    target, mechanism = (
        {"target_epsilon": 5, "target_delta": DELTA, "accountant": kind},
        ROWS.replace(bound=bound),
    )
    sigma = calibrate_sigma(mechanism, **PLAN, **target)
    assert 4.975 <= account(mechanism.replace(sigma=sigma), kind).get_epsilon(DELTA) <= 5
    assert calibrate_sigma(ROWS, **PLAN, **target) < sigma


def test_earlier_releases_share_the_budget():
    target = {"target_epsilon": 4, "target_delta": 1e-5}
    spent = account(
        GaussianMechanism(sensitivity=math.sqrt(2), sigma=3.0, name="class counts"), releases=1
    )
    sigma = calibrate_sigma(ROWS, **PLAN, **target, spent=spent)
    assert sigma > calibrate_sigma(ROWS, **PLAN, **target)
    total = PrivacyAccountant.from_groups(spent.history).step(ROWS.replace(sigma=sigma), **PLAN)
    assert 3.98 <= total.get_epsilon(1e-5) <= 4
    assert len(spent.history) == 1
    loud = account(GaussianMechanism(sensitivity=1.0, sigma=0.1), releases=1)
    with pytest.raises(InputError, match="raise the target"):
        calibrate_sigma(ROWS, **PLAN, **target, spent=loud)
