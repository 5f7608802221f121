"""Privacy loss distributions and Renyi account: closed forms, slow oracles, simulation, bounds of each other."""

import dataclasses
import math

import mpmath
import numpy as np
import pytest
from autodp import rdp_acct
from scipy import integrate, optimize, stats

from dpswd.accounting import pld
from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.pld import Releases
from dpswd.accounting.rdp import MAX_ORDER, RenyiAccount
from dpswd.mechanism import GaussianMechanism, ProjectionMechanism
from dpswd.sensitivity import ConstantLaw, ProjectionLaw
from experiments.accounting.published import TABLE4

FALSE_ALARM = 1e-6


def gaussian_epsilon(mu, delta):
    """Balle and Wang (2018), Theorem 8, solved for epsilon with SciPy: independent of the code under test."""

    def gap(epsilon):
        upper = stats.norm.logcdf(mu / 2 - epsilon / mu)
        lower = epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu)
        return upper + np.log1p(-np.exp(lower - upper)) - math.log(delta)

    return optimize.brentq(gap, 1e-9, mu**2 / 2 + 12 * mu)


@pytest.mark.parametrize("mu", [1e-4, 0.3, 3.0, 40.0])
@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 1.0, 30.0])
def test_gaussian_delta_agrees_with_mpmath(mu, epsilon):
    with mpmath.workdps(50):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        expected = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
    assert float(pld.gaussian_delta(mu, epsilon)) == pytest.approx(
        float(expected), rel=1e-7, abs=1e-15
    )


@pytest.mark.parametrize("mu", [0.01, 1.0, 5.0, 20.0])
@pytest.mark.parametrize("releases", [1, 100])
def test_whole_bases_without_sampling_are_the_analytic_gaussian(mu, releases):
    mechanism = ProjectionMechanism(16, 16, math.sqrt(releases) / mu, 50, kind="orthogonal")
    accountant = PrivacyAccountant().step(mechanism, sample_size=50, n_releases=releases)
    for delta in (1e-3, 1e-5, 1e-9):
        expected = gaussian_epsilon(mu, delta)
        found = accountant.get_epsilon(delta)
        assert expected * (1 - 1e-9) <= found <= expected * (1 + 1e-3)
    found_mu, regret = accountant.get_mu_and_regret()
    assert mu * (1 - 1e-12) <= found_mu <= mu * (1 + 1e-3)
    assert regret == 0


def oracle_delta(mus, rate, epsilon):
    """The hockey-stick integral of (1 - q) Q + q P against Q for P = N(mu, 1), Q = N(0, 1), averaged over mu.

    That pair is a data set of equal records against one in which a single record differs, sampled without
    replacement.
    """

    def one(mu):
        def hockey(x):
            p, q = stats.norm._pdf(x - mu), stats.norm._pdf(x)
            return max((1 - rate) * q + rate * p - math.exp(epsilon) * q, 0.0)

        start = math.log1p(math.expm1(epsilon) / rate) / mu + mu / 2
        return integrate.quad(hockey, start, max(start, mu) + 12, epsabs=1e-14, epsrel=1e-9)[0]

    return float(np.mean([one(mu) for mu in mus]))


@pytest.mark.parametrize(("rate", "scale"), [(1.0, 0.7), (0.3, 1.1), (0.01, 2.0)])
@pytest.mark.parametrize(("dim", "k", "rest"), [(7, 10, 3), (50, 60, 10)])
def test_one_release_against_quadrature(rate, scale, dim, k, rest):
    # orthogonal directions: S = 1 + Beta(rest/2, (dim-rest)/2), taken at the midpoints of 50 equal quantiles
    s = 1 + stats.beta.ppf((np.arange(50) + 0.5) / 50, rest / 2, (dim - rest) / 2)
    loss = pld.compose([Releases(ProjectionLaw(dim, k, "orthogonal"), scale, rate, 1)])
    for epsilon in (0.05, 0.5, 2.0):
        expected = oracle_delta(scale * np.sqrt(s), rate, epsilon)
        found = loss.get_delta_for_epsilon(epsilon)
        # midpoints miss about 1e-3 of the variance of S; S is rounded up by 1/48 of its deviation on average
        assert expected * (1 - 2e-3) <= found <= expected * 1.05 + 1e-12


def simulated_losses(dim, k, sigma, rate, draws, seed):
    """Losses of one release for a worst pair of data sets, from simulated directions, noise and sampling.

    All records are -e_1/2; in the first data set one of them is e_1/2. The release moves by the first row of
    U (k numbers) if that record is drawn. The loss is the true one, of the mixture over who is drawn.
    """
    rng = np.random.default_rng(seed)
    u = rng.standard_normal((draws, dim, k))
    shift = u[:, 0, :] / np.linalg.norm(u, axis=1)  # (draws, k)
    drawn = rng.random((draws, 1)) < rate
    released = np.where(drawn, shift / 2, -shift / 2) + sigma * rng.standard_normal((draws, k))
    log_ratio = ((released + shift / 2) ** 2 - (released - shift / 2) ** 2).sum(1) / (2 * sigma**2)
    return np.logaddexp(np.log1p(-rate) if rate < 1 else -np.inf, np.log(rate) + log_ratio)


@pytest.mark.parametrize("case", range(3))
def test_one_sampled_release_lies_in_the_confidence_interval_of_a_simulation(case):
    rng = np.random.default_rng(100 + case)
    dim, k = int(rng.integers(2, 12)), int(rng.integers(1, 20))
    sigma = float(rng.uniform(0.3, 1.2)) * math.sqrt(k / dim)
    rate, epsilon = float(rng.uniform(0.2, 1.0)), float(rng.uniform(0.05, 0.5))
    draws = 100_000
    losses = simulated_losses(dim, k, sigma, rate, draws, seed=case)
    values = np.maximum(
        0.0, -np.expm1(np.minimum(epsilon - losses, 0.0))
    )  # in [0, 1]; their mean is delta
    log_term = math.log(4 / FALSE_ALARM)  # empirical Bernstein (Maurer and Pontil 2009), two-sided
    radius = math.sqrt(2 * values.var(ddof=1) * log_term / draws) + 7 * log_term / (3 * (draws - 1))
    part = Releases(ProjectionLaw(dim, k), 1 / sigma, rate, 1)
    found = float(pld.compose([part]).get_delta_for_epsilon(epsilon))
    allowance = 0.01 * found  # S is rounded up
    assert abs(found - values.mean()) < radius + allowance
    weaker = float(
        pld.compose([dataclasses.replace(part, scale=0.8 * part.scale)]).get_delta_for_epsilon(
            epsilon
        )
    )
    assert (
        abs(weaker - values.mean()) > radius + allowance
    )  # control: 20% less sensitivity is distinguished


@pytest.mark.parametrize(
    ("rate", "scale", "releases"),
    [(1.0, 0.1, 1), (1.0, 0.6, 30), (0.1, 0.6, 1), (0.1, 0.1, 1000), (0.001, 0.6, 1000)],
)
def test_pld_is_below_renyi(rate, scale, releases):
    part = Releases(ProjectionLaw(20, 15), scale, rate, releases)
    for delta in (1e-3, 1e-6):
        assert pld.compose([part]).get_epsilon_for_delta(delta) <= RenyiAccount([part]).get_epsilon(
            delta
        )


@pytest.mark.parametrize(("mu", "releases"), [(3.0, 1), (0.5, 30), (0.01, 60_100)])
def test_composition_of_gaussians_is_tight(monkeypatch, mu, releases):
    monkeypatch.setattr(
        pld, "merge_gaussians", list
    )  # composed by FFT, as if there were no closed form
    loss = pld.compose([Releases(ConstantLaw(1.0), mu, 1.0, releases)])
    for delta in (1e-3, 1e-6):
        exact = gaussian_epsilon(mu * math.sqrt(releases), delta)
        assert exact <= loss.get_epsilon_for_delta(delta) <= 1.001 * exact


def test_mixed_sequences():
    releases = ProjectionMechanism(dim=30, n_projections=40, sigma=2.0, batch_size=10)
    counts = GaussianMechanism(sensitivity=math.sqrt(2), sigma=5.0, name="class counts")
    alone = PrivacyAccountant().step(releases, sample_size=200, n_releases=300)
    both = PrivacyAccountant.from_groups(alone.history).step(counts, sample_size=200)
    other = PrivacyAccountant().step(counts, sample_size=200)
    assert (
        alone.get_epsilon(1e-5)
        < both.get_epsilon(1e-5)
        < alone.get_epsilon(5e-6) + other.get_epsilon(5e-6)
    )
    # the order of releases does not matter, nor does splitting them
    split = (
        PrivacyAccountant()
        .step(releases, sample_size=200, n_releases=100)
        .step(counts, sample_size=200)
    )
    split.step(releases, sample_size=200, n_releases=200)
    assert len(split.history) == 3
    assert split.get_epsilon(1e-5) == pytest.approx(both.get_epsilon(1e-5), rel=1e-3)


# Against a slow version: a loop over grid points, and plain convolution


def profile(mu, rate, epsilon):
    """Delta of one sampled Gaussian release at any epsilon, one number at a time."""
    if epsilon < 0:  # replace-one has no direction
        return 1 - math.exp(epsilon) + math.exp(epsilon) * profile(mu, rate, -epsilon)
    x = math.log1p(math.expm1(epsilon) / rate)
    return rate * (
        stats.norm._cdf(mu / 2 - x / mu) - math.exp(x) * stats.norm._cdf(-mu / 2 - x / mu)
    )


def one_release(mu, rate, step, reach):
    """Probabilities of the losses ``-reach ... reach`` times ``step``, and the mass beyond, for chords of the profile.

    The slope of the profile in e^epsilon is minus the probability, under the other data set, of a loss beyond it.
    """
    losses = step * np.arange(-reach, reach + 1)
    delta = np.array([profile(mu, rate, loss) for loss in losses])
    beyond = np.concatenate([[1.0], -np.diff(delta) / np.diff(np.exp(losses)), [0.0]])
    return np.exp(losses) * -np.diff(beyond), delta[-1]


def slow_epsilon(mu, rate, step, reach, releases, delta):
    probabilities, infinite = one_release(mu, rate, step, reach)
    total = np.ones(1)
    for _ in range(releases):
        total = np.convolve(total, probabilities)
    losses = step * (np.arange(len(total)) - len(total) // 2)
    lost = 1 - (1 - infinite) ** releases

    def gap(epsilon):
        return lost + float(np.sum(total * np.maximum(-np.expm1(epsilon - losses), 0))) - delta

    return optimize.brentq(gap, 0, losses[-1], xtol=1e-12)


@pytest.mark.parametrize(("mu", "rate", "releases"), [(1.5, 0.2, 6), (1.0, 0.5, 8), (0.5, 1.0, 5)])
def test_composition_equals_the_slow_one(monkeypatch, mu, rate, releases):
    monkeypatch.setattr(pld, "merge_gaussians", list)  # the closed form has its own test
    steps, make = [], pld.DensePLDPmf
    monkeypatch.setattr(
        pld, "DensePLDPmf", lambda step, *more: steps.append(step) or make(step, *more)
    )
    found = pld.compose([Releases(ConstantLaw(1.0), mu, rate, releases)])
    (step,) = steps
    top = math.log1p(rate * math.expm1(mu**2 / 2 + 9 * mu))  # nine deviations: a mass below 1e-18
    for delta in (1e-3, 1e-5, 1e-7):
        expected = slow_epsilon(mu, rate, step, math.ceil(top / step), releases, delta)
        assert found.get_epsilon_for_delta(delta) == pytest.approx(expected, rel=1e-4)
    # control: one release more is distinguished
    more = slow_epsilon(mu, rate, step, math.ceil(top / step), releases + 1, 1e-5)
    assert found.get_epsilon_for_delta(1e-5) != pytest.approx(more, rel=1e-4)


REFERENCE = {
    "USPS-MNIST": 0.748,
    "MNIST (b)": 0.776,
    "Office-31": 2.73,
}  # DESIGN 2.3, at epsilon 10


def test_unsampled_gaussian_is_alpha_mu_sq_over_two():
    account = RenyiAccount([Releases(ConstantLaw(2.0), 0.5, 1.0, 7)])
    for order in (1.5, 2, 17, 400.25):
        assert account(order) == pytest.approx(order * 7 * 0.25 * 2 / 2, rel=1e-12)
    # the minimum of order mu^2/2 + ln(1/delta)/(order - 1) is mu^2/2 + mu sqrt(2 ln(1/delta))
    mu_sq, log_inverse = 3.5, math.log(1e5)
    assert account.get_epsilon(1e-5) == pytest.approx(
        mu_sq / 2 + math.sqrt(2 * mu_sq * log_inverse), rel=1e-4
    )


def test_divergence_of_a_random_law_by_quadrature():
    # one direction in d dimensions: S = Y; integrate exp(alpha (alpha - 1) c^2 y / 2) against the Beta density
    dim, scale, order = 5, 1.3, 4
    rate, density = order * (order - 1) * scale**2 / 2, stats.beta(0.5, (dim - 1) / 2).pdf
    expected = integrate.quad(lambda y: math.exp(rate * y) * density(y), 0, 1)[0]
    account = RenyiAccount([Releases(ProjectionLaw(dim, 1), scale, 1.0, 1)])
    assert account(order) == pytest.approx(math.log(expected) / (order - 1), rel=1e-6)


@pytest.mark.parametrize(
    "row", [row for row in TABLE4 if row.name in REFERENCE], ids=lambda row: row.name
)
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


@pytest.mark.parametrize("sigma", [0.02, 1.0, 100.0])
@pytest.mark.parametrize("rate", [1e-4, 0.4, 1.0])
def test_finite_at_the_largest_sizes(sigma, rate):
    account = RenyiAccount([Releases(ProjectionLaw(12288, 10_000), 1 / sigma, rate, 10**6)])
    values = np.array([account(order) for order in (2, 3, 64, MAX_ORDER)])
    assert not np.isnan(values).any()
    assert (values > 0).all()
    assert math.isfinite(account.get_epsilon(1e-5))
