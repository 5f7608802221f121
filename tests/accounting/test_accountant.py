"""PrivacyAccountant: epsilon, profile, tails, mu, assumptions, small noise, invalid input."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian
from factories import REFUSED, fuzz, outcome
from scipy import optimize, stats

from dpswd.accounting import pld
from dpswd.accounting.accountant import EmptyCurveError, PrivacyAccountant
from dpswd.accounting.rdp import RenyiAccount
from dpswd.errors import InputError
from dpswd.mechanism import GaussianMechanism, ProjectionMechanism

ROWS = ProjectionMechanism(dim=50, n_projections=100, sigma=2.0, batch_size=32)
# One record of many is read; the noise is that of mu = 1.
RARE = GaussianMechanism(sensitivity=1.0, sigma=1.0, batch_size=1)
N, T, DELTA = 497, 800, 1e-3


def account(mechanism, kind="pld", releases=T, size=N):
    """An accountant of equal releases."""
    return PrivacyAccountant(kind).step(mechanism, sample_size=size, n_releases=releases)


# Epsilon and its profile


def test_profile_inverts_get_epsilon():
    accountant = account(ROWS)
    for delta in (1e-3, 1e-6):
        epsilon = accountant.get_epsilon(delta)
        assert accountant.profile([epsilon])[0] == pytest.approx(delta, rel=2e-3)
    assert accountant.get_epsilon(1e-3) < accountant.get_epsilon(1e-6)


def test_get_epsilon_of_mixed_sequences():
    rows = ProjectionMechanism(dim=30, n_projections=40, sigma=2.0, batch_size=10)
    counts = GaussianMechanism(sensitivity=math.sqrt(2), sigma=5.0, name="class counts")
    alone = account(rows, releases=300, size=200)
    both = PrivacyAccountant.from_groups(alone.history).step(counts, sample_size=200)
    other = account(counts, releases=1, size=200)
    parts = alone.get_epsilon(5e-6) + other.get_epsilon(5e-6)
    assert alone.get_epsilon(1e-5) < both.get_epsilon(1e-5) < parts
    # the order of releases does not matter, nor does splitting them
    split = account(rows, releases=100, size=200).step(counts, sample_size=200)
    split.step(rows, sample_size=200, n_releases=200)
    assert len(split.history) == 3
    assert split.get_epsilon(1e-5) == pytest.approx(both.get_epsilon(1e-5), rel=1e-3)


@pytest.mark.parametrize("mu", [0.01, 1.0, 5.0, 20.0])
@pytest.mark.parametrize("releases", [1, 100])
def test_get_epsilon_of_whole_bases_is_the_analytic_gaussian(mu, releases):
    mechanism = ProjectionMechanism(16, 16, math.sqrt(releases) / mu, 50, kind="orthogonal")
    accountant = account(mechanism, releases=releases, size=50)
    for delta in (1e-3, 1e-5, 1e-9):
        exact = get_epsilon_gaussian(1 / mu, delta)
        assert exact * (1 - 1e-9) <= accountant.get_epsilon(delta) <= exact * (1 + 1e-3)
    stated_mu, regret = accountant.get_mu_and_regret()
    assert mu * (1 - 1e-12) <= stated_mu <= mu * (1 + 1e-3)
    assert regret == 0


def test_labels_cost_nothing_with_whole_bases_and_little_without():
    whole = ROWS.replace(kind="orthogonal")
    labelled = whole.replace(n_classes=10)
    assert account(whole).get_epsilon(DELTA) == account(labelled).get_epsilon(DELTA)
    plain = account(ROWS).get_epsilon(DELTA)
    assert plain <= account(ROWS.replace(n_classes=10)).get_epsilon(DELTA) < 1.01 * plain


# Tails of bounds


def test_tail_is_charged_at_every_release():
    failure_prob = 1e-7
    bounded = account(ROWS.replace(bound="bernstein", failure_prob=failure_prob))
    assert bounded.tail == pytest.approx(T * failure_prob)
    composed = pld.compose_losses(bounded.parts()).to_pld()
    expected = float(composed.get_epsilon_for_delta(DELTA - T * failure_prob))
    assert bounded.get_epsilon(DELTA) == pytest.approx(expected)
    assert bounded.profile([expected])[0] == pytest.approx(DELTA, rel=2e-3)
    infinite_loss = bounded.pld().get_delta_for_epsilon(1e3)
    assert infinite_loss == pytest.approx(T * failure_prob, rel=1e-6)
    # a bound costs more than the exact law
    assert bounded.get_epsilon(DELTA) > account(ROWS).get_epsilon(DELTA)


@pytest.mark.parametrize(("batch", "factor"), [(100, 1.0), (300, 3 * 300 / 497), (497, 1.0)])
def test_tail_of_renyi_is_charged_three_q_times_in_the_middle(batch, factor):
    mechanism = ROWS.replace(bound="bernstein", failure_prob=1e-8, batch_size=batch, sigma=50.0)
    accountant = account(mechanism, "rdp")
    assert accountant.tail == pytest.approx(T * 1e-8 * factor)
    expected = RenyiAccount(accountant.parts()).get_epsilon(DELTA - accountant.tail)
    assert accountant.get_epsilon(DELTA) == pytest.approx(expected)


@pytest.mark.parametrize(("kind", "batch"), [("pld", 300), ("rdp", 300), ("rdp", 32)])
def test_tails_without_failure_prob_get_half_of_delta(kind, batch):
    open_tail = account(ROWS.replace(bound="bernstein", batch_size=batch, sigma=30.0), kind)
    resolved = open_tail.resolve(DELTA)
    assert resolved.tail == pytest.approx(DELTA / 2)
    assert open_tail.history[0][0].failure_prob is None
    assert open_tail.get_epsilon(DELTA) == pytest.approx(resolved.get_epsilon(DELTA))
    with pytest.raises(InputError, match="failure_prob"):
        open_tail.profile([1.0])
    assert resolved.profile([resolved.get_epsilon(DELTA)])[0] <= DELTA * 1.01


# mu


def implied_mu(loss, epsilon):
    """The mu of the Gaussian mechanism with the same delta at ``epsilon``
    (Dong2022, Corollary 2.13).
    """
    delta = float(loss.get_delta_for_epsilon(epsilon))
    return optimize.brentq(
        lambda mu: float(pld.gaussian_delta(mu, epsilon)) - delta, 1e-9, 50.0, xtol=1e-14
    )


@pytest.mark.parametrize(
    ("mechanism", "size", "releases"), [(ROWS, N, T), (RARE, 1000, 10**7), (RARE, 10**4, 10**8)]
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
    """Dong2022, Corollary 5.4, for q sqrt(T) = 1 and one release of mu = 1.
    The error is of order q.
    """
    limit = math.sqrt(2) * math.sqrt(math.e * stats.norm.cdf(1.5) + 3 * stats.norm.cdf(-0.5) - 2)
    loss = account(RARE, releases=releases, size=size).pld()
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


def test_mu_of_a_negligible_loss_is_that_of_the_rounding():
    """One record of 1e12 is read once: mu comes from masses of 1e-16 that are counted as lost."""
    mu, regret = account(RARE, releases=1, size=10**12).get_mu_and_regret()
    assert 0 < regret < mu < 1e-6


@pytest.mark.parametrize("size", [200, 1000, 60_000, 10**6])
def test_mu_of_one_subsampled_release_is_not_below_its_best_tests(size):
    """A threshold on the released number tells two neighbours of Proposition 14 apart."""
    sampled = GaussianMechanism(sensitivity=1.0, sigma=1.0, batch_size=100)
    rate = 100 / size
    false_positive = np.geomspace(1.0001e-10, 0.5, 2000)
    threshold = stats.norm.isf(false_positive)
    true_positive = (1 - rate) * false_positive + rate * stats.norm.sf(threshold - 1)
    proved = (threshold - stats.norm.isf(true_positive)).max()
    mu, _ = account(sampled, releases=1, size=size).get_mu_and_regret()
    assert proved <= mu <= 1.02 * proved


def test_mu_of_a_record_that_is_seldom_read_and_then_given_away():
    """The trade-off curve is the line 1 - q - x: its mu is that of the rate 1e-10."""
    q = 1 / 5_000
    loud = GaussianMechanism(sensitivity=1.0, sigma=1e-9, batch_size=1)
    mu, regret = account(loud, releases=1, size=5_000).get_mu_and_regret()
    assert mu == pytest.approx(stats.norm.isf(1e-10) - stats.norm.isf(q), rel=1e-3)
    assert 0.3 < regret < 0.5


# Small noise


LOUD = ROWS.replace(batch_size=N, sigma=0.05)


def test_epsilon_without_a_trade_off_curve():
    """mu is about 28 for each of the releases: no test has both error rates above 1e-10."""
    accountant = account(LOUD, releases=1)
    epsilon = accountant.get_epsilon(DELTA)
    # between the epsilon of the mean of S and that of 1.6 times the mean
    assert get_epsilon_gaussian(1 / 28.3, DELTA) < epsilon < get_epsilon_gaussian(1 / 35.8, DELTA)
    with pytest.raises(EmptyCurveError, match="empty"):
        accountant.get_mu_and_regret()
    with pytest.raises(EmptyCurveError):
        accountant.guarantee(DELTA)
    guarantee = accountant.guarantee(DELTA, with_mu=False)
    assert guarantee["epsilon"] == epsilon
    assert (guarantee["mu"], guarantee["regret"]) == (None, None)
    assert guarantee["assumptions"] == tuple(accountant.assumptions)


@pytest.mark.parametrize("sigma", [0.1, 1e-3, 1e-6, 1e-50])
def test_epsilon_of_a_gaussian_with_little_noise(sigma):
    accountant = account(GaussianMechanism(sensitivity=1.0, sigma=sigma), releases=1)
    mu = 1 / sigma
    quantile = float(stats.norm.isf(DELTA))
    epsilon = accountant.get_epsilon(DELTA)
    # the profile is at most Phi(mu / 2 - epsilon / mu); the grid is relative far from zero
    assert mu**2 / 2 + 0.9 * mu * quantile <= epsilon <= 1.005 * (mu**2 / 2 + mu * quantile)
    assert accountant.get_mu_and_regret()[0] == pytest.approx(mu, rel=1e-4)


def test_epsilon_of_sampled_releases_with_little_noise():
    """A record that is read is given away: (0, delta) holds for delta above the chance of that."""
    loud = ROWS.replace(sigma=1e-6, batch_size=1)
    chance = -math.expm1(20 * math.log1p(-1 / N))
    accountant = account(loud, releases=20)
    assert accountant.get_epsilon(1.01 * chance) == 0
    with pytest.raises(InputError, match="use a larger sigma or a larger delta"):
        accountant.get_epsilon(0.99 * chance)


SIGMAS = st.floats(-9, 3).map(lambda exponent: 10.0**exponent)


@fuzz(
    60,
    dim=st.sampled_from([2, 5, 64, 784]),
    k=st.sampled_from([1, 2, 5, 64, 65, 200]),
    sigma=SIGMAS,
    batch=st.sampled_from([1, 40, 1000]),
    kind=st.sampled_from(["iid", "orthogonal"]),
    bound=st.sampled_from(["exact", "exact", "bernstein", "clt"]),
    failure_prob=st.none() | st.floats(-20, -3).map(lambda exponent: 10.0**exponent),
    accountant=st.sampled_from(["pld", "rdp"]),
    size=st.floats(3, 7).map(lambda exponent: round(10.0**exponent)),
    releases=st.just(1) | st.floats(0, 6).map(lambda exponent: round(10.0**exponent)),
    delta=st.floats(-15, -1).map(lambda exponent: 10.0**exponent),
)
def test_any_release_has_numbers_or_a_refusal(
    dim, k, sigma, batch, kind, bound, failure_prob, accountant, size, releases, delta
):
    options = {"kind": kind, "bound": bound, "failure_prob": failure_prob}
    mechanism = outcome(ProjectionMechanism, dim, k, sigma, batch, **options)
    if mechanism is REFUSED:  # bounds are for i.i.d. directions
        return
    made = account(mechanism, accountant, releases, size)
    epsilon = outcome(made.get_epsilon, delta)
    assert epsilon is REFUSED or 0 <= epsilon < math.inf
    numbers = outcome(made.resolve(delta).get_mu_and_regret)
    if numbers is not REFUSED:
        mu, regret = numbers
        assert 0 <= mu < math.inf
        assert 0 <= regret <= 1


# Assumptions


def test_sound_and_assumptions():
    assert account(ROWS).sound
    clt = account(ROWS.replace(bound="clt"))
    assert not clt.sound
    assert "NOT SOUND" in " ".join(clt.assumptions)
    seeded = account(ROWS.replace(noise_seed=1))
    assert not seeded.sound
    assert "NOT PRIVATE" in " ".join(seeded.assumptions)
    assert seeded.shortcomings == ["A fixed noise seed makes the noise repeatable."]


def test_assumptions_of_rows():
    sampled = " ".join(account(ROWS).assumptions)
    assert "without replacement" in sampled
    assert "drawn afresh" in sampled
    whole = account(ROWS.replace(kind="orthogonal", n_classes=10, batch_size=N))
    assert whole.sound
    sentences = " ".join(whole.assumptions)
    assert "Labels are private" in sentences
    assert "whole orthonormal bases" in sentences
    assert "without replacement" not in sentences


def test_assumptions_of_several_mechanisms():
    both = account(ROWS).step(ROWS.replace(row_norm=2.0, bound="bernstein"), sample_size=N)
    sentences = " ".join(both.assumptions)
    for words in ("at most 0.5", "at most 2", "exact law", "Bernstein's", "tail of the bound"):
        assert words in sentences
    assert PrivacyAccountant().assumptions == []


# Invalid input


def test_unknown_accountant_is_refused():
    with pytest.raises(InputError, match="accountant"):
        PrivacyAccountant("glw")


def test_batch_larger_than_the_data_is_refused():
    with pytest.raises(InputError, match="batch_size"):
        account(ROWS, size=31)


@pytest.mark.parametrize("kind", ["pld", "rdp"])
def test_accountant_without_releases_is_refused(kind):
    with pytest.raises(InputError, match="step"):
        PrivacyAccountant(kind).get_epsilon(1e-5)


@pytest.mark.parametrize(
    ("changes", "delta", "message"),
    [
        ({}, 1e-18, "use a larger delta"),
        ({"bound": "bernstein", "failure_prob": 1e-5}, 1e-3, "failure_prob"),
        ({"sigma": 1e-3}, 1e-5, "use a larger sigma"),
    ],
)
def test_get_epsilon_refuses(changes, delta, message):
    with pytest.raises(InputError, match=message):
        account(ROWS.replace(**changes)).get_epsilon(delta)


def test_pld_refuses_tails():
    with pytest.raises(InputError, match="failure_prob"):
        account(ROWS.replace(bound="bernstein")).pld()
    with pytest.raises(InputError, match=r"below 1 in total, got 1\.6"):
        account(ROWS.replace(bound="bernstein", failure_prob=2e-3)).pld()
