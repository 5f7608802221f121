"""Trade-off curves against closed forms, the privacy profile, and the definition of regret."""

import math

import numpy as np
import pytest
from factories import ROWS, SKETCH
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpswd.accounting.accountant import PrivacyAccountant, round_up
from dpswd.accounting.pld import Releases, compose_losses
from dpswd.mechanism import GaussianMechanism, ProjectionMechanism
from dpswd.report.gdp import TABLE_FPR, TradeOff
from dpswd.sensitivity import ConstantLaw

FPR = np.array(TABLE_FPR)


def gaussian_tpr(fpr, mu):
    return stats.norm.sf(stats.norm.isf(fpr) - mu)


@pytest.mark.parametrize("mu", [0.1, 1.0, 5.0])
def test_curve_of_a_gaussian_down_to_1e_10(mu):
    # 512 points per standard deviation: chords exceed a smooth convex profile by O(h^2) relative to
    # mu^2
    curve = TradeOff.from_losses(
        compose_losses([Releases(ConstantLaw(1.0), mu, 1.0, 1)], points=128)
    )
    tpr, true = 1 - curve.fnr(FPR), gaussian_tpr(FPR, mu)
    np.testing.assert_allclose(tpr, true, rtol=1e-4)
    # gdpnum sums some 1e4 probabilities up to 1 - tpr: rounding of about 1e-14
    assert (tpr[1:] >= true[1:] * (1 - 1e-6) - 5e-14).all()
    assert mu <= curve.mu * (1 + 1e-6)
    assert curve.mu == pytest.approx(mu, rel=1e-3)
    assert curve.regret < 1e-4
    assert curve.advantage == pytest.approx(2 * stats.norm.cdf(mu / 2) - 1, rel=1e-4)


def test_curve_is_the_envelope_of_the_privacy_profile():
    """Compare with f(a) = sup over epsilon of 1 - delta - e^epsilon a and its mirror image.

    Dong2022, Proposition 2.12.
    """
    losses = PrivacyAccountant().step(ROWS, sample_size=1000, n_releases=200).losses()
    pld = losses.to_pld()
    epsilon = np.linspace(0, 15, 3001)
    delta = np.array([pld.get_delta_for_epsilon(e) for e in epsilon])
    alpha = np.array([1e-10, 1e-8, 1e-5, 1e-3, 0.05, 0.3, 0.7])[:, None]
    lines = np.maximum(1 - delta - np.exp(epsilon) * alpha, np.exp(-epsilon) * (1 - delta - alpha))
    envelope = np.maximum(lines.max(axis=1), 0)
    fnr = TradeOff.from_losses(losses).fnr(alpha[:, 0])
    # the envelope over a grid of slopes lies below the curve, by at most the gap of 0.005 in
    # epsilon
    assert (fnr >= envelope - 1e-12).all()
    assert (1 - fnr >= alpha[:, 0]).all()
    np.testing.assert_allclose(1 - fnr, 1 - envelope, rtol=5e-3)


def test_mu_and_regret_bound_the_curve_from_both_sides():
    mechanism = ProjectionMechanism(dim=50, n_projections=100, sigma=1.567, batch_size=32)
    curve = TradeOff.of(PrivacyAccountant().step(mechanism, sample_size=497, n_releases=800))
    fpr = np.geomspace(2e-10, 0.999, 500)
    assert (curve.gaussian_fnr(fpr) <= curve.fnr(fpr) + 1e-10).all()
    fpr = np.linspace(1e-3, 0.9, 200)
    shifted = curve.fnr(np.minimum(fpr + curve.regret, 1)) - curve.regret
    assert (shifted <= curve.gaussian_fnr(fpr) + 1e-6).all()
    below = 0.9 * curve.regret  # control: with less regret the statement is false somewhere
    fine = np.linspace(0, 1, 20_001)
    assert (curve.fnr(np.minimum(fine + below, 1)) - below > curve.gaussian_fnr(fine)).any()


def test_closed_form_agrees_with_the_numerical_account():
    counts = GaussianMechanism(sensitivity=2**0.5, sigma=5.0)
    sketch = SKETCH.replace(sigma=0.05, batch_size=100, n_classes=None)
    accountant = PrivacyAccountant.from_groups([(counts, 100, 2), (sketch, 100, 3)])
    curve, numerical = TradeOff.of(accountant), TradeOff.from_losses(accountant.losses())
    assert curve.is_gaussian
    assert curve.mu == pytest.approx(math.sqrt(2 * 2 / 25 + 3 * 0.01 * 2 / 0.0025))
    assert curve.regret == 0
    assert curve.mu <= numerical.mu <= 1.005 * curve.mu
    assert curve.advantage == pytest.approx(numerical.advantage, rel=5e-3)
    (point,) = curve.table([1e-3])
    assert point.tpr == pytest.approx(gaussian_tpr(1e-3, curve.mu), rel=1e-9)


def test_mu_is_that_of_the_accountant_where_the_curve_is_rounded():
    mechanism = SKETCH.replace(sigma=1e5, batch_size=990, n_classes=None)
    accountant = PrivacyAccountant().step(mechanism, sample_size=1000)
    mu, regret = accountant.get_mu_and_regret()
    curve = TradeOff.of(accountant)
    assert curve.mu == pytest.approx(mu, rel=1e-4)  # rounded up
    assert curve.regret == regret


def test_rate_of_the_advantage():
    mechanism = ProjectionMechanism(dim=50, n_projections=100, sigma=1.567, batch_size=32)
    accountant = PrivacyAccountant().step(mechanism, sample_size=497, n_releases=800)
    curves = [
        TradeOff.from_losses(accountant.losses()),
        TradeOff(1.0, 0.0, 0.3829249225480262, True),
    ]
    grid = np.linspace(0, 1, 2001)
    for curve in curves:
        rate = curve.advantage_fpr
        assert 1 - rate - float(curve.fnr(rate)) == pytest.approx(curve.advantage, abs=1e-6)
        advantages = 1 - grid - curve.fnr(grid)
        assert advantages.max() <= curve.advantage + 1e-9
        # control: it is the middle of the rates that attain it, and no other rate beside them does
        best = grid[advantages > curve.advantage - 1e-6]
        assert abs(best.mean() - rate) < 2e-3
        assert advantages[0] < 0.5 * curve.advantage


@given(st.floats(1e-300, 1e300), st.integers(1, 8))
def test_round_up_never_rounds_down(value, digits):
    rounded = round_up(value, digits)
    assert value <= rounded <= value * (1 + 10.0 ** (1 - digits)) * (1 + 1e-15)
    assert float(f"{rounded:.{digits - 1}e}") == rounded
