"""RenyiAccount: closed forms, quadrature, autodp's own accountant, extreme sizes."""

import math

import numpy as np
import pytest
from autodp import rdp_acct
from scipy import integrate, stats

from dpswd.accounting.pld import Releases
from dpswd.accounting.rdp import MAX_ORDER, RenyiAccount
from dpswd.sensitivity import ConstantLaw, ProjectionLaw
from experiments.accounting.published import TABLE4

REFERENCE = {"USPS-MNIST": 0.748, "MNIST (b)": 0.776, "Office-31": 2.73}  # DESIGN 2.3, at epsilon 10


def test_unsampled_gaussian_is_alpha_mu_sq_over_two():
    account = RenyiAccount([Releases(ConstantLaw(2.0), 0.5, 1.0, 7)])
    for order in (1.5, 2, 17, 400.25):
        assert account(order) == pytest.approx(order * 7 * 0.25 * 2 / 2, rel=1e-12)
    # the minimum of order mu^2/2 + ln(1/delta)/(order - 1) is mu^2/2 + mu sqrt(2 ln(1/delta))
    mu_sq, log_inverse = 3.5, math.log(1e5)
    assert account.get_epsilon(1e-5) == pytest.approx(mu_sq / 2 + math.sqrt(2 * mu_sq * log_inverse), rel=1e-4)
    assert account.get_delta(account.get_epsilon(1e-5)) == pytest.approx(1e-5, rel=1e-3)


def test_divergence_of_a_random_law_by_quadrature():
    # one direction in d dimensions: S = Y; integrate exp(alpha (alpha - 1) c^2 y / 2) against the Beta
    # density
    dim, scale, order = 5, 1.3, 4
    expected = integrate.quad(
        lambda y: math.exp(order * (order - 1) * scale**2 * y / 2) * stats.beta.pdf(y, 0.5, (dim - 1) / 2),
        0,
        1,
    )[0]
    account = RenyiAccount([Releases(ProjectionLaw(dim, 1), scale, 1.0, 1)])
    assert account(order) == pytest.approx(math.log(expected) / (order - 1), rel=1e-6)


@pytest.mark.parametrize("row", [row for row in TABLE4 if row.name in REFERENCE], ids=lambda row: row.name)
def test_table4(row):
    rate = row.batch_size / row.sample_size
    part = Releases(row.mechanism.law, 1 / REFERENCE[row.name], rate, row.n_releases)
    assert RenyiAccount([part]).get_epsilon(row.delta) == pytest.approx(10, rel=0.01)


def test_agrees_with_the_accountant_of_autodp():
    part = Releases(ConstantLaw(1.0), 1 / 3.0, 0.02, 500)
    theirs = rdp_acct.anaRDPacct(m=32, m_max=32)
    with np.errstate(all="ignore"):
        theirs.compose_subsampled_mechanism(lambda order: order / (2 * 3.0**2), 0.02, coeff=500)
        expected = theirs.get_eps(1e-5)
    assert RenyiAccount([part]).get_epsilon(1e-5) == pytest.approx(expected, rel=1e-3)


def test_mixed_sequences_add_up():
    a, b = Releases(ProjectionLaw(20, 30), 0.2, 0.1, 50), Releases(ConstantLaw(1.0), 0.3, 1.0, 2)
    for order in (2, 9, 33.0):
        assert RenyiAccount([a, b])(order) == pytest.approx(RenyiAccount([a])(order) + RenyiAccount([b])(order))
    assert RenyiAccount([a._replace(times=100)])(5) == pytest.approx(2 * RenyiAccount([a])(5))


@pytest.mark.parametrize("sigma", [0.02, 1.0, 100.0])
@pytest.mark.parametrize("rate", [1e-4, 0.4, 1.0])
def test_finite_at_the_largest_sizes(sigma, rate):
    account = RenyiAccount([Releases(ProjectionLaw(12288, 10_000), 1 / sigma, rate, 10**6)])
    values = np.array([account(order) for order in (2, 3, 64, MAX_ORDER)])
    assert not np.isnan(values).any()
    assert (values > 0).all()
    assert math.isfinite(account.get_epsilon(1e-5))
