"""Privacy loss distributions: closed forms, quadrature, simulation, a slow composition,
tails, large losses.
"""

import dataclasses
import math

import mpmath
import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian
from scipy import integrate, optimize, stats

from dpswd.accounting import pld
from dpswd.accounting.pld import LossDistribution, Releases, compose_losses
from dpswd.sensitivity import ConstantLaw, ProjectionLaw

# Chance that a correct program fails a statistical test, over the choice of the seed.
FALSE_ALARM = 1e-6
DELTAS = (1e-3, 1e-5, 1e-7)


@pytest.fixture
def unmerged(monkeypatch):
    """Gaussian releases are composed by FFT, as if there were no closed form for them."""
    monkeypatch.setattr(pld, "merge_gaussians", list)


@pytest.mark.parametrize("mu", [1e-4, 0.3, 3.0, 40.0])
@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 1.0, 30.0])
def test_gaussian_delta_agrees_with_mpmath(mu, epsilon):
    with mpmath.workdps(50):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        expected = float(mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m))
    assert float(pld.gaussian_delta(mu, epsilon)) == pytest.approx(expected, rel=1e-7, abs=1e-15)


# One release


def hockey_stick(mu, rate, epsilon):
    """The integral of (1 - q) Q + q P against Q for P = N(mu, 1) and Q = N(0, 1).

    That pair is a data set of equal records against one in which a single record differs, sampled
    without replacement.
    """

    def integrand(x):
        p, q = stats.norm.pdf(x - mu), stats.norm.pdf(x)
        return max((1 - rate) * q + rate * p - math.exp(epsilon) * q, 0.0)

    start = math.log1p(math.expm1(epsilon) / rate) / mu + mu / 2
    value, _ = integrate.quad(integrand, start, max(start, mu) + 12, epsabs=1e-14, epsrel=1e-9)
    return value


@pytest.mark.parametrize(("rate", "scale"), [(1.0, 0.7), (0.3, 1.1), (0.01, 2.0)])
@pytest.mark.parametrize(("dim", "k", "rest"), [(7, 10, 3), (50, 60, 10)])
def test_compose_one_release_against_quadrature(rate, scale, dim, k, rest):
    # orthogonal directions: S = 1 + Beta(rest/2, (dim - rest)/2), at the midpoints of 50 quantiles
    quantiles = (np.arange(50) + 0.5) / 50
    s = 1 + stats.beta.ppf(quantiles, rest / 2, (dim - rest) / 2)
    loss = pld.compose_losses(
        [Releases(ProjectionLaw(dim, k, "orthogonal"), scale, rate, 1)]
    ).to_pld()
    for epsilon in (0.05, 0.5, 2.0):
        expected = np.mean([hockey_stick(mu, rate, epsilon) for mu in scale * np.sqrt(s)])
        delta = loss.get_delta_for_epsilon(epsilon)
        # midpoints miss about 1e-3 of the variance of S; S is rounded up by 1/48 of its deviation
        assert expected * (1 - 2e-3) <= delta <= expected * 1.05 + 1e-12


def simulated_losses(dim, k, sigma, rate, draws, seed):
    """Losses of one release for a worst pair of data sets:
    simulated directions, noise and sampling.

    All records are -e_1/2; in the first data set one of them is e_1/2. The release moves by the
    first row of U (k numbers) if that record is drawn. The loss is the true one, of the mixture
    over who is drawn.
    """
    rng = np.random.default_rng(seed)
    u = rng.standard_normal((draws, dim, k))
    shift = u[:, 0, :] / np.linalg.norm(u, axis=1)  # (draws, k)
    is_drawn = rng.random((draws, 1)) < rate
    released = np.where(is_drawn, shift / 2, -shift / 2)
    released += sigma * rng.standard_normal((draws, k))
    difference = (released + shift / 2) ** 2 - (released - shift / 2) ** 2
    log_ratio = difference.sum(1) / (2 * sigma**2)
    with np.errstate(divide="ignore"):  # without sampling, the record is always drawn
        return np.logaddexp(np.log1p(-rate), np.log(rate) + log_ratio)


@pytest.mark.parametrize("case", range(3))
def test_compose_one_release_against_a_simulation(case):
    rng = np.random.default_rng(100 + case)
    dim, k = int(rng.integers(2, 12)), int(rng.integers(1, 20))
    sigma = float(rng.uniform(0.3, 1.2)) * math.sqrt(k / dim)
    rate, epsilon = float(rng.uniform(0.2, 1.0)), float(rng.uniform(0.05, 0.5))
    draws = 100_000
    losses = simulated_losses(dim, k, sigma, rate, draws, seed=case)
    values = np.maximum(0.0, -np.expm1(np.minimum(epsilon - losses, 0.0)))  # their mean is delta
    # empirical Bernstein bound for values in [0, 1] (Maurer and Pontil 2009), two-sided
    log_term = math.log(4 / FALSE_ALARM)
    radius = math.sqrt(2 * values.var(ddof=1) * log_term / draws) + 7 * log_term / (3 * (draws - 1))
    part = Releases(ProjectionLaw(dim, k), 1 / sigma, rate, 1)
    delta = float(pld.compose_losses([part]).to_pld().get_delta_for_epsilon(epsilon))
    allowance = 0.01 * delta  # S is rounded up
    assert abs(delta - values.mean()) < radius + allowance
    # control: 20 % less sensitivity is distinguished
    weaker = dataclasses.replace(part, scale=0.8 * part.scale)
    weaker_delta = float(pld.compose_losses([weaker]).to_pld().get_delta_for_epsilon(epsilon))
    assert abs(weaker_delta - values.mean()) > radius + allowance


# Compositions


@pytest.mark.usefixtures("unmerged")
@pytest.mark.parametrize(("mu", "releases"), [(3.0, 1), (0.5, 30), (0.01, 60_100)])
def test_compose_gaussians_is_tight(mu, releases):
    loss = pld.compose_losses([Releases(ConstantLaw(1.0), mu, 1.0, releases)]).to_pld()
    for delta in (1e-3, 1e-6):
        exact = get_epsilon_gaussian(1 / (mu * math.sqrt(releases)), delta)
        assert exact <= loss.get_epsilon_for_delta(delta) <= 1.001 * exact


def profile(mu, rate, epsilon):
    """Delta of one sampled Gaussian release at any epsilon, one number at a time."""
    if epsilon < 0:  # replace-one has no direction
        return 1 - math.exp(epsilon) + math.exp(epsilon) * profile(mu, rate, -epsilon)
    x = math.log1p(math.expm1(epsilon) / rate)
    second = math.exp(x) * stats.norm.cdf(-mu / 2 - x / mu)
    return rate * (stats.norm.cdf(mu / 2 - x / mu) - second)


def slow_release(mu, rate, step, reach):
    """Probabilities of the losses ``-reach ... reach`` times ``step`` for chords of the profile,
    and the mass beyond.

    The slope of the profile in e^epsilon is minus the probability, under the other data set, of a
    loss beyond it.
    """
    losses = step * np.arange(-reach, reach + 1)
    delta = np.array([profile(mu, rate, loss) for loss in losses])
    beyond = np.concatenate([[1.0], -np.diff(delta) / np.diff(np.exp(losses)), [0.0]])
    return np.exp(losses) * -np.diff(beyond), delta[-1]


def slow_epsilon(mu, rate, step, releases, delta):
    """Epsilon by plain convolution, on a grid of nine deviations:
    a mass below 1e-18 is beyond it.
    """
    largest = math.log1p(rate * math.expm1(mu**2 / 2 + 9 * mu))
    probabilities, infinite = slow_release(mu, rate, step, math.ceil(largest / step))
    total = np.ones(1)
    for _ in range(releases):
        total = np.convolve(total, probabilities)
    losses = step * (np.arange(len(total)) - len(total) // 2)
    all_infinite = 1 - (1 - infinite) ** releases

    def excess(epsilon):
        finite = float(np.sum(total * np.maximum(-np.expm1(epsilon - losses), 0)))
        return all_infinite + finite - delta

    return optimize.brentq(excess, 0, losses[-1], xtol=1e-12)


@pytest.mark.usefixtures("unmerged")
@pytest.mark.parametrize(("mu", "rate", "releases"), [(1.5, 0.2, 6), (1.0, 0.5, 8), (0.5, 1.0, 5)])
def test_compose_losses_equals_the_slow_composition(mu, rate, releases):
    loss = compose_losses([Releases(ConstantLaw(1.0), mu, rate, releases)])
    for delta in DELTAS:
        expected = slow_epsilon(mu, rate, loss.step, releases, delta)
        assert loss.get_epsilon(delta) == pytest.approx(expected, rel=1e-4)
    # control: one release more is distinguished
    more = slow_epsilon(mu, rate, loss.step, releases + 1, 1e-5)
    assert loss.get_epsilon(1e-5) != pytest.approx(more, rel=1e-4)


@pytest.mark.usefixtures("unmerged")
@pytest.mark.parametrize("delta", [1e-10, 1e-12, 1e-13])
def test_compose_losses_is_accurate_at_a_small_delta(delta):
    """The FFT of 20,000 releases errs by about 8e-13 in delta; the tilted one errs relatively."""
    releases = 20_000
    part = Releases(ConstantLaw(1.0), 3.0 / math.sqrt(releases), 1.0, releases)
    exact = get_epsilon_gaussian(1 / 3.0, delta)
    accurate = compose_losses([part], delta=delta).get_epsilon(delta)
    assert exact <= accurate <= 1.002 * exact
    if delta == 1e-13:  # control: without the tail, the error of the FFT decides
        plain = compose_losses([part]).get_epsilon(delta)
        assert not exact <= plain <= 1.002 * exact


@pytest.mark.parametrize("delta", [1e-10, 1e-12])
def test_compose_losses_is_accurate_where_a_record_is_seldom_read(delta):
    """A sum of few large losses: the tilted composition must not return to the tail from
    beyond the grid.
    """
    part = Releases(ConstantLaw(1.0), 1.4434, 1 / 596, 752)
    plain = compose_losses([part])
    accurate = compose_losses([part], delta=delta)
    # the FFT errs by 3e-14 in delta
    epsilon = accurate.get_epsilon(delta)
    expected = float(plain.to_pld().get_delta_for_epsilon(epsilon))
    assert delta == pytest.approx(expected, abs=1e-13)


# Large losses


@pytest.mark.parametrize("mu", [30.0, 300.0, 1000.0])
def test_compose_losses_of_a_large_mu(mu):
    loss = compose_losses([Releases(ConstantLaw(1.0), mu, 1.0, 1)])
    for delta in DELTAS:
        quantile = float(stats.norm.isf(delta))
        upper = mu**2 / 2 + mu * quantile  # delta(epsilon) <= Phi(mu / 2 - epsilon / mu)
        lower = upper - mu * quantile * 0.1
        assert lower < loss.get_epsilon(delta) < 1.005 * upper


@pytest.mark.parametrize("n_losses", [3, 50, 2000])
@pytest.mark.parametrize("step", [0.01, 0.3, 5.0])
def test_large_epsilon_equals_that_of_dp_accounting(n_losses, step):
    rng = np.random.default_rng(n_losses)
    upper = rng.random(n_losses) * np.exp(-rng.random() * np.arange(n_losses))
    loss = LossDistribution(step, 0.3 * upper / upper.sum(), 1e-9)
    for delta in (1e-8, 1e-5, 1e-3, 0.05):
        theirs = float(loss.to_pld().get_epsilon_for_delta(delta))
        if theirs < 600:  # beyond, their e^-loss vanishes
            # the private method, which get_epsilon calls for large losses alone
            assert loss._large_epsilon(delta) == pytest.approx(theirs, rel=1e-9, abs=1e-9)


def test_get_epsilon_below_the_infinite_mass():
    loss = LossDistribution(0.1, np.array([0.2, 0.1]), 1e-3)
    assert loss.get_epsilon(0.9e-3) == math.inf
    assert loss.get_epsilon(0.5) == 0


def test_compose_losses_of_infinite_losses():
    """Without noise, a record that is read is given away:
    the mass of infinite loss is 1 - (1 - q)^T.
    """
    loss = compose_losses([Releases(ConstantLaw(1.0), 1e9, 1e-4, 30)])
    assert loss.infinite == pytest.approx(-math.expm1(30 * math.log1p(-1e-4)), rel=1e-9)
    assert not loss.upper.any()
    with pytest.raises(pld.LossTooLargeError, match="use a larger sigma"):
        compose_losses([Releases(ConstantLaw(1.0), 1e9, 0.1, 30)])
