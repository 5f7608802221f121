"""Renyi account: closed forms, quadrature, autodp's own accountant,
bounds of the privacy loss distribution.
"""

import math

import numpy as np
import pytest
from autodp import rdp_acct
from scipy import integrate, stats

from dpswd.accounting.pld import Releases, compose_losses, gaussian_delta
from dpswd.accounting.rdp import MAX_ORDER, RenyiAccount
from dpswd.sensitivity import ConstantLaw, ProjectionLaw
from experiments.accounting.published import TABLE4

# Noise of rows of Table 4 at epsilon = 10: an own computation by docs/theory/accounting.md.
TABLE4_SIGMA = {"USPS-MNIST": 0.748, "MNIST (b)": 0.776, "Office-31": 2.73}


def test_renyi_curve_of_unsampled_gaussians_is_a_line():
    account = RenyiAccount([Releases(ConstantLaw(2.0), 0.5, 1.0, 7)])
    mu_sq = 7 * 0.25 * 2
    for order in (1.5, 2, 17, 400.25):
        assert account(order) == pytest.approx(order * mu_sq / 2, rel=1e-12)
    # the minimum of order mu^2 / 2 + ln(1 / delta) / (order - 1)
    expected = mu_sq / 2 + math.sqrt(2 * mu_sq * math.log(1e5))
    assert account.get_epsilon(1e-5) == pytest.approx(expected, rel=1e-4)
    # Mironov2017: what the curve implies holds for the Gaussian mechanism itself.
    delta = float(gaussian_delta(math.sqrt(mu_sq), expected))
    assert delta < 1e-5
    # control: the curve without ln(1 / delta) does not imply it
    assert float(gaussian_delta(math.sqrt(mu_sq), account(2))) > 1e-5


def test_renyi_divergence_of_two_normal_laws_by_quadrature():
    """Rakotomamonjy2021, Remark 2: order D^2 / (2 sigma^2) for means D apart."""
    distance, sigma, order = 0.8, 1.7, 3.5

    def integrand(x):
        first = stats.norm.logpdf(x, distance, sigma)
        return math.exp(order * first + (1 - order) * stats.norm.logpdf(x, 0, sigma))

    integral, _ = integrate.quad(integrand, -40, 40, epsabs=1e-13)
    divergence = math.log(integral) / (order - 1)
    assert divergence == pytest.approx(order * distance**2 / (2 * sigma**2), rel=1e-9)
    account = RenyiAccount([Releases(ConstantLaw(distance**2), 1 / sigma, 1.0, 1)])
    assert account(order) == pytest.approx(divergence, rel=1e-9)


def test_renyi_curve_of_a_random_law_by_quadrature():
    """One direction in d dimensions: exp(alpha (alpha - 1) c^2 y / 2) against the density of S."""
    dim, scale, order = 5, 1.3, 4
    exponent = order * (order - 1) * scale**2 / 2
    density = stats.beta(0.5, (dim - 1) / 2).pdf
    expected, _ = integrate.quad(lambda y: math.exp(exponent * y) * density(y), 0, 1)
    account = RenyiAccount([Releases(ProjectionLaw(dim, 1), scale, 1.0, 1)])
    assert account(order) == pytest.approx(math.log(expected) / (order - 1), rel=1e-6)


@pytest.mark.parametrize(
    "row", [row for row in TABLE4 if row.name in TABLE4_SIGMA], ids=lambda row: row.name
)
def test_get_epsilon_of_table4(row):
    rate = row.batch_size / row.sample_size
    part = Releases(row.mechanism.law, 1 / TABLE4_SIGMA[row.name], rate, row.n_releases)
    assert RenyiAccount([part]).get_epsilon(row.delta) == pytest.approx(10, rel=0.01)


def test_get_epsilon_agrees_with_the_accountant_of_autodp():
    theirs = rdp_acct.anaRDPacct(m=32, m_max=32)
    with np.errstate(all="ignore"):  # autodp computes with an infinite pure epsilon
        theirs.compose_subsampled_mechanism(lambda order: order / (2 * 3.0**2), 0.02, coeff=500)
        expected = theirs.get_eps(1e-5)
    part = Releases(ConstantLaw(1.0), 1 / 3.0, 0.02, 500)
    assert RenyiAccount([part]).get_epsilon(1e-5) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("rate", "scale", "releases"),
    [(1.0, 0.1, 1), (1.0, 0.6, 30), (0.1, 0.6, 1), (0.1, 0.1, 1000), (0.001, 0.6, 1000)],
)
def test_get_epsilon_is_above_that_of_the_privacy_loss(rate, scale, releases):
    part = Releases(ProjectionLaw(20, 15), scale, rate, releases)
    loss = compose_losses([part]).to_pld()
    for delta in (1e-3, 1e-6):
        assert loss.get_epsilon_for_delta(delta) <= RenyiAccount([part]).get_epsilon(delta)


@pytest.mark.parametrize("sigma", [0.02, 1.0, 100.0])
@pytest.mark.parametrize("rate", [1e-4, 0.4, 1.0])
def test_renyi_curve_is_finite_at_the_largest_sizes(sigma, rate):
    account = RenyiAccount([Releases(ProjectionLaw(12288, 10_000), 1 / sigma, rate, 10**6)])
    values = np.array([account(order) for order in (2, 3, 64, MAX_ORDER)])
    assert not np.isnan(values).any()
    assert (values > 0).all()
    assert math.isfinite(account.get_epsilon(1e-5))
