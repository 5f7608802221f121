import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from gdpnum import PLDConverter
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.pld import mirrored
from dpswd.errors import InputError
from dpswd.mechanism import GaussianMechanism, ProjectionMechanism
from dpswd.report.gdp import TABLE_FPR, TradeOff, closed_form_mu, round_up

FPR = np.array(TABLE_FPR)


def gaussian_tpr(fpr, mu):
    return stats.norm.sf(stats.norm.isf(fpr) - mu)


@pytest.mark.parametrize("mu", [0.1, 1.0, 5.0])
def test_gaussian_mechanism_is_found_at_every_rate_down_to_1e_10(mu):
    # dp_accounting connects the dots on a grid of h = 1e-4; chords exceed a smooth convex profile by O(h^2)
    # relative to mu^2, here 1e-6 at most; its tail mass of e^-50 is nothing beside 1e-10.
    pld = privacy_loss_distribution.from_gaussian_mechanism(1 / mu)
    curve = TradeOff.of(pld)
    tpr, true = 1 - curve.fnr(FPR), gaussian_tpr(FPR, mu)
    np.testing.assert_allclose(tpr, true, rtol=1e-4)
    assert (tpr[1:] >= true[1:] * (1 - 1e-6)).all()
    assert mu <= curve.mu * (1 + 1e-6)
    assert curve.mu == pytest.approx(mu, rel=1e-3)
    assert curve.regret < 1e-4
    assert curve.advantage == pytest.approx(2 * stats.norm.cdf(mu / 2) - 1, rel=1e-4)


def test_without_the_mirror_gdpnum_is_wrong_on_the_unsafe_side():
    """Control: this is why the lower tail is rebuilt."""
    pld = privacy_loss_distribution.from_gaussian_mechanism(1.0)
    raw = 1 - PLDConverter(pld).get_beta(np.array([1e-10]))[0]
    assert raw < 1e-3 * gaussian_tpr(1e-10, 1.0)
    wide = privacy_loss_distribution.from_gaussian_mechanism(0.1)
    assert PLDConverter(wide).get_mu() < 9.95
    assert TradeOff.of(wide).mu >= 10


def test_mirror_changes_no_delta_and_repeats_to_itself():
    mechanism = ProjectionMechanism(dim=64, n_projections=64, sigma=1.5, batch_size=10)
    pld = PrivacyAccountant().step(mechanism, sample_size=1000, n_releases=200).pld()
    once, twice = mirrored(pld), mirrored(mirrored(pld))
    for epsilon in (0.0, 0.3, 2.0):
        assert once.get_delta_for_epsilon(epsilon) == pytest.approx(pld.get_delta_for_epsilon(epsilon), rel=1e-12)
    np.testing.assert_allclose(once._pmf_remove._probs, twice._pmf_remove._probs, rtol=1e-9, atol=1e-15)
    assert once._pmf_remove._probs.sum() + once._pmf_remove._infinity_mass == pytest.approx(1, abs=1e-9)


def test_distribution_with_a_direction_is_left_alone():
    pld = privacy_loss_distribution.from_gaussian_mechanism(1.0, sampling_prob=0.1)
    assert mirrored(pld) is pld
    assert TradeOff.of(pld).mu > 0


def test_curve_is_the_envelope_of_the_privacy_profile():
    """Dong2022, Proposition 2.12: f(a) = sup over epsilon of 1 - delta - e^epsilon a and its mirror image."""
    mechanism = ProjectionMechanism(dim=64, n_projections=64, sigma=1.5, batch_size=10)
    pld = PrivacyAccountant().step(mechanism, sample_size=1000, n_releases=200).pld()
    epsilon = np.linspace(0, 15, 3001)
    delta = np.array([pld.get_delta_for_epsilon(e) for e in epsilon])
    alpha = np.array([1e-10, 1e-8, 1e-5, 1e-3, 0.05, 0.3, 0.7])[:, None]
    lines = np.maximum(1 - delta - np.exp(epsilon) * alpha, np.exp(-epsilon) * (1 - delta - alpha))
    envelope = np.maximum(lines.max(axis=1), 0)
    found = TradeOff.of(pld).fnr(alpha[:, 0])
    # the envelope over a grid of slopes lies below the curve, by at most the gap of 0.005 in epsilon
    assert (found >= envelope - 1e-12).all()
    assert (1 - found >= alpha[:, 0]).all()
    np.testing.assert_allclose(1 - found, 1 - envelope, rtol=5e-3)


def test_mu_gdp_curve_never_lies_above_the_curve():
    mechanism = ProjectionMechanism(dim=50, n_projections=100, sigma=1.567, batch_size=32)
    curve = TradeOff.of(PrivacyAccountant().step(mechanism, sample_size=497, n_releases=800).pld())
    fpr = np.geomspace(2e-10, 0.999, 500)
    assert (curve.gaussian_fnr(fpr) <= curve.fnr(fpr) + 1e-10).all()
    fpr = np.linspace(1e-3, 0.9, 200)
    shifted = curve.fnr(np.minimum(fpr + curve.regret, 1)) - curve.regret
    assert (shifted <= curve.gaussian_fnr(fpr) + 1e-6).all()
    below = 0.9 * curve.regret  # control: with less regret the statement is false somewhere
    fine = np.linspace(0, 1, 20_001)
    assert (curve.fnr(np.minimum(fine + below, 1)) - below > curve.gaussian_fnr(fine)).any()


def test_closed_form_composes_and_agrees_with_the_numbers():
    counts = GaussianMechanism(sensitivity=2**0.5, sigma=5.0)
    sketch = ProjectionMechanism(
        dim=16,
        n_projections=32,
        sigma=0.05,
        batch_size=100,
        statistic="quantiles",
        n_quantiles=10,
        kind="orthogonal",
    )
    groups = [(counts, 100, 2), (sketch, 100, 3)]
    mu = closed_form_mu(groups)
    assert mu == pytest.approx(math.sqrt(2 * 2 / 25 + 3 * 0.01 * 2 / 0.0025))
    accountant = PrivacyAccountant()
    for mechanism, size, count in groups:
        accountant.step(mechanism, sample_size=size, n_releases=count)
    exact = TradeOff.of(accountant.pld(), exact_mu=mu)
    assert exact.is_gaussian
    assert exact.mu == mu
    assert exact.regret == 0
    assert exact.tier == 1
    assert mu <= exact.mu_numerical <= 1.005 * mu
    np.testing.assert_allclose(exact.rows([1e-3])[0]["tpr"], gaussian_tpr(1e-3, mu), rtol=1e-9)


def test_closed_form_is_refused_where_something_is_random():
    subsampled = ProjectionMechanism(dim=16, n_projections=16, sigma=1.0, batch_size=10, kind="orthogonal")
    random = ProjectionMechanism(dim=16, n_projections=16, sigma=1.0, batch_size=100)
    tail = random.replace(bound="bernstein", failure_prob=1e-9)
    for mechanism in (subsampled, random, tail):
        assert closed_form_mu([(mechanism, 100, 1)]) is None


def test_high_regret_asks_for_the_table():
    mechanism = ProjectionMechanism(dim=64, n_projections=64, sigma=0.25, batch_size=20, kind="orthogonal")
    curve = TradeOff.of(PrivacyAccountant().step(mechanism, sample_size=2000, n_releases=6).pld())
    assert curve.regret > 0.1
    assert curve.tier == 2


def test_a_curve_that_shows_nothing_is_refused():
    with pytest.raises(InputError, match="error rates above 1e-10"):
        TradeOff.of(privacy_loss_distribution.from_gaussian_mechanism(0.05, value_discretization_interval=1e-2))


@given(st.floats(1e-300, 1e300), st.integers(1, 8))
def test_rounding_never_promises_more(value, digits):
    rounded = round_up(value, digits)
    assert value <= rounded <= value * (1 + 10.0 ** (1 - digits)) * (1 + 1e-15)
    assert float(f"{rounded:.{digits - 1}e}") == rounded
