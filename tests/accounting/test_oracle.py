"""Accounting of random plans against dp_accounting,
and against contour integrals that share no code with it.

The oracle uses no grid of losses, no FFT of them and no rounding. With the moment generating
function M of the loss of one release, the profile of T of them is (Zhu2022)

    delta(epsilon) = 1 / (2 pi i)  integral  M(z)^T e^(-z epsilon) / (z (z + 1)) dz
        along  Re z = c > 0.

For a symmetric loss (replace-one), M follows from the profile of one release:

    M(z) = 1 + z (z + 1)  integral over epsilon > 0
        (e^(z epsilon) + e^(-(z + 1) epsilon)) delta_1(epsilon).

With delta_1(epsilon) = q E_S delta_Gauss(x), x = ln(1 + (e^epsilon - 1) / q), the integral is one
over x.
"""

import dataclasses
import functools
import math
import random

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from scipy import fft, optimize, special, stats

from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.errors import InputError
from dpswd.mechanism import GaussianMechanism, ProjectionMechanism

N_PLANS = 150
# The contour ends at so many times the order c. The relative error of epsilon is then below 1e-5.
LENGTH = 40
ORACLE_ERROR = 1e-5
# What the discretisation of the accountant may cost.
COST = 1.02


# The law of S: nodes and weights whose first moments in every cell are exact


def beta_nodes(r, dim):
    """Gauss-Jacobi quadrature of Beta(r / 2, (dim - r) / 2)."""
    nodes, weights = special.roots_jacobi(120, (dim - r) / 2 - 1, r / 2 - 1)
    return (1 + nodes) / 2, weights / weights.sum()


def sum_of_betas(dim, k):
    """The law of a sum of k Beta(1/2, (dim - 1)/2) on a lattice;
    both neighbours share a mass so that the mean is kept.
    """
    step = 0.01 / dim
    edges = np.arange(0, min(1.0, 80 / dim) + step, step)
    mass = np.diff(stats.beta.cdf(edges, 0.5, (dim - 1) / 2))
    mean = np.diff(stats.beta.cdf(edges, 1.5, (dim - 1) / 2)) / dim
    upper_part = mean / step - mass * np.arange(len(mass))
    one = np.append(mass - upper_part, 0.0)
    one[1:] += upper_part
    size = fft.next_fast_len(int((k + 60 * math.sqrt(k) + 100) / dim / step))
    weights = fft.irfft(fft.rfft(one, size) ** k, size)
    nodes = step * np.arange(size)
    relevant = weights > 1e-15
    return grouped(nodes[relevant], weights[relevant])


@functools.cache
def law_of_s(dim, k, kind):
    """Nodes and weights of S."""
    whole, rest = divmod(k, dim)
    if kind == "iid":
        return beta_nodes(1, dim) if k == 1 else sum_of_betas(dim, k)
    if rest == 0:
        return np.array([float(whole)]), np.array([1.0])
    nodes, weights = beta_nodes(rest, dim)
    return whole + nodes, weights


def grouped(nodes, weights, n_groups=400):
    """Replace neighbouring nodes by their mean, for at most so many groups of equal width."""
    width = (nodes[-1] - nodes[0]) / n_groups
    group = ((nodes - nodes[0]) / max(width, 1e-300)).astype(int)
    mass = np.bincount(group, weights)
    mean = np.bincount(group, weights * nodes)
    return (mean[mass > 0] / mass[mass > 0]), mass[mass > 0]


# The profile of one release, and the integrals


class Sampled:
    """One release: ``delta_1(epsilon(x))`` for x >= 0, and its moment generating function."""

    def __init__(self, mechanism, sample_size):
        s, weights = np.array([1.0]), np.array([1.0])
        scale = 1 / mechanism.sigma
        if isinstance(mechanism, ProjectionMechanism):
            s, weights = law_of_s(mechanism.dim, mechanism.n_projections, mechanism.kind)
            scale *= 2 * mechanism.row_norm / mechanism.block_size
        else:
            scale *= mechanism.sensitivity
        self.rate = 1.0 if mechanism.batch_size is None else mechanism.batch_size / sample_size
        self.mu = scale * np.sqrt(s[s > 0])
        self.weights = weights[s > 0]
        self.typical = float(np.sqrt(self.weights @ self.mu**2))

    def delta(self, x):
        """q E_S delta_Gauss(x) at x (n,)."""
        total = np.zeros_like(x)
        for mu, weight in zip(self.mu, self.weights, strict=True):
            z = x / mu - mu / 2
            is_far = z > 0
            # Phi(-z) - e^x Phi(-z - mu), for z > 0 by the scaled complementary error function
            far = z[is_far]
            scaled = special.erfcx(far / math.sqrt(2)) - special.erfcx((far + mu) / math.sqrt(2))
            total[is_far] += weight * np.exp(-np.minimum(far**2, 1400) / 2) * scaled / 2
            near = z[~is_far]
            growth = np.exp(np.minimum(x[~is_far], 600))
            total[~is_far] += weight * (special.ndtr(-near) - growth * special.ndtr(-near - mu))
        return self.rate * total

    def x(self, epsilon):
        return math.log1p(math.expm1(epsilon) / self.rate)

    def with_nodes(self, order, highest):
        """Prepare the integral for z with a real part of ``order`` and an imaginary one of at
        most ``highest``.

        e^(order x) delta_Gauss(x) has its maximum near x = mu^2 (order + 1/2) and a width of mu.
        """
        log_parts = np.log(self.weights) + order * (order + 1) * self.mu**2 / 2
        relevant = self.mu[log_parts > log_parts.max() - 45]
        end = relevant.max() ** 2 * (order + 1 / 2) + 9.5 * relevant.max()
        width = min(self.typical / 4, 12 / highest)
        edges = width * np.arange(math.ceil(end / width))
        nodes, node_weights = np.polynomial.legendre.leggauss(16)
        x = (edges[:, None] + (nodes + 1) / 2 * width).ravel()
        growth = np.expm1(x)
        jacobian = self.rate * (growth + 1) / (1 + self.rate * growth)  # d epsilon / dx
        self.epsilon = np.log1p(self.rate * growth)
        self.weighted_delta = (
            self.delta(x) * jacobian * np.tile(node_weights / 2 * width, len(edges))
        )
        return self

    def log_mgf(self, z):
        """ln M at complex z (m,)."""
        chunks = []
        values = np.atleast_1d(np.asarray(z, dtype=complex))
        for part in np.array_split(values, min(len(values), 50)):
            exponents = np.exp(np.multiply.outer(part, self.epsilon))
            mirrored = np.exp(np.multiply.outer(-(part + 1), self.epsilon))
            integral = (exponents + mirrored) @ self.weighted_delta
            chunks.append(np.log(1 + part * (part + 1) * integral))
        return np.concatenate(chunks)


def minimum(function, low, high):
    """The minimum of a function with one, by golden sections of the logarithm.

    Every section has one new point: the other one is that of the section before.
    """
    golden = (math.sqrt(5) - 1) / 2
    low, high = math.log(low), math.log(high)
    first = high - golden * (high - low)
    second = low + golden * (high - low)
    at_first = function(math.exp(first))
    at_second = function(math.exp(second))
    while high - low > 0.02:
        if at_first <= at_second:  # also where both are infinite
            high = second
            second = first
            at_second = at_first
            first = high - golden * (high - low)
            at_first = function(math.exp(first))
        else:
            low = first
            first = second
            at_first = at_second
            second = low + golden * (high - low)
            at_second = function(math.exp(second))
    return math.exp(first if at_first <= at_second else second)


def true_epsilon(plan, delta):
    """Epsilon of a plan ``[(mechanism, sample_size, n_releases), ...]``."""
    if len(plan) == 1 and plan[0][2] == 1:
        (mechanism, size, _), *_ = plan
        one = Sampled(mechanism, size)
        return optimize.brentq(
            lambda epsilon: float(one.delta(np.array([one.x(epsilon)]))[0]) - delta, 1e-9, 100
        )
    parts = [(Sampled(mechanism, size), count) for mechanism, size, count in plan]

    def log_mgf(z, highest=1.0):
        order = float(np.real(np.atleast_1d(z)[0]))
        return sum(count * one.with_nodes(order, highest).log_mgf(z) for one, count in parts)

    def chernoff(order):
        with np.errstate(over="ignore", invalid="ignore"):  # of orders that are far too large
            bound = (log_mgf(order)[0].real - math.log(delta)) / order
        return bound if math.isfinite(bound) else math.inf

    order = minimum(chernoff, 0.01, 3.0 / min(one.typical for one, _ in parts) + 3.0)
    high = chernoff(order)
    step = 1e-3 * order
    below, at, above = (log_mgf(order + shift)[0].real for shift in (-step, 0, step))
    deviation = math.sqrt(max(below - 2 * at + above, 0.0)) / step
    spacing = 2 * math.pi / (40 / order + 14 * deviation)  # the images of epsilon lie so far away
    z = order + 1j * spacing * np.arange(math.ceil(LENGTH * order / spacing))
    log_mgfs = log_mgf(z, LENGTH * order)

    def profile(epsilon):
        integrand = np.exp(log_mgfs - z * epsilon) / (z * (z + 1))
        integrand[0] /= 2
        return float(integrand.real.sum()) * spacing / math.pi

    # Far below the solution the contour is too short for the profile.
    while profile(0.98 * high) < delta:
        high *= 0.98
    return optimize.brentq(lambda epsilon: profile(epsilon) - delta, 0.98 * high, high, rtol=1e-12)


# Random plans


def random_mechanism(rng, size, n_releases):
    """Projections with a mu between 0.02 and 2 per release.

    The record is in at least one release on average: far below that the contour integral cancels.
    """
    dim = rng.choice([2, 3, 7, 50, 784])
    k = rng.choice([1, 2, dim - 1, dim, dim + 2, 2 * dim, 60])
    lowest_rate = 1 / n_releases if n_releases > 1 else 1e-3
    sampled = max(1, math.ceil(size * lowest_rate ** rng.uniform(0, 1)))
    batch = rng.choice([size, sampled])
    options = {"kind": rng.choice(["iid", "orthogonal"])}
    if rng.random() < 0.5:
        divisors = [m for m in range(1, min(batch, 50) + 1) if batch % m == 0]
        options |= {"statistic": "quantiles", "n_quantiles": rng.choice(divisors)}
    row_norm = rng.choice([0.5, 2.0])
    mechanism = ProjectionMechanism(dim, k, 1.0, batch, row_norm=row_norm, **options)
    mu = 10 ** rng.uniform(-1.7, 0.3)
    sigma = mechanism.unit_sensitivity * math.sqrt(mechanism.law.mean) / mu
    return mechanism.replace(sigma=sigma)


def random_plan(seed):
    """Groups of releases with an epsilon between 0.01 and 60, a delta, and that epsilon."""
    rng = random.Random(seed)
    while True:
        size = round(10 ** rng.uniform(1, 5))
        plan = []
        for _ in range(rng.choice([1, 1, 2])):
            n_releases = round(10 ** rng.uniform(0, 4.5))
            plan.append((random_mechanism(rng, size, n_releases), size, n_releases))
        if rng.random() < 0.3:
            plan.append((GaussianMechanism(sensitivity=1.4, sigma=rng.uniform(2, 9)), size, 1))
        delta = 10 ** rng.uniform(-12, -2)
        try:
            epsilon = PrivacyAccountant.from_groups(plan).get_epsilon(delta)
        except InputError:  # too large a loss
            continue
        if 0.01 < epsilon < 60:
            return plan, delta, epsilon


def louder(plan, factor):
    """The plan with all noise multiplied."""
    changed = []
    for mechanism, size, n_releases in plan:
        mechanism = dataclasses.replace(mechanism, sigma=factor * mechanism.sigma)
        changed.append((mechanism, size, n_releases))
    return changed


def check_plan(seed):
    plan, delta, stated = random_plan(seed)
    true = true_epsilon(plan, delta)
    assert 1 - ORACLE_ERROR <= stated / true <= COST, (seed, plan, delta)
    by_renyi = PrivacyAccountant.from_groups(plan, "rdp").get_epsilon(delta)
    assert by_renyi >= true * (1 - ORACLE_ERROR), (seed, plan, delta)
    # control: an epsilon that is stated for 4 % more noise than there is
    understated = PrivacyAccountant.from_groups(louder(plan, 1.04)).get_epsilon(delta)
    assert understated < true * (1 - ORACLE_ERROR), (seed, plan, delta)


@pytest.mark.parametrize("seed", range(8))
def test_random_plan_is_bounded_closely(seed):
    check_plan(seed)


@pytest.mark.slow
@pytest.mark.repetitions
@pytest.mark.parametrize("seed", range(8, N_PLANS))
def test_many_random_plans_are_bounded_closely(seed):
    check_plan(seed)


@pytest.mark.parametrize("delta", [1e-9, 1e-11, 1e-13, 1e-14])
@pytest.mark.parametrize(("size", "n_releases"), [(100_000, 60_000), (10_000, 1000)])
def test_profile_of_many_releases_is_not_below_the_true_one(size, n_releases, delta):
    """The FFT errs by 1e-12 and more here; the true delta is that of the contour integral."""
    mechanism = GaussianMechanism(sensitivity=1.0, sigma=1.0, batch_size=100)
    epsilon = true_epsilon([(mechanism, size, n_releases)], delta)
    accountant = PrivacyAccountant().step(mechanism, sample_size=size, n_releases=n_releases)
    (stated,) = accountant.profile([epsilon])
    assert delta * (1 - 1e-4) <= stated <= 1.1 * delta + 2e-15


def test_one_direction_at_a_small_epsilon_costs_more():
    """S is rounded up by a part of its deviation, which is large for a single direction."""
    mechanism = ProjectionMechanism(784, 1, sigma=1 / (0.05 * math.sqrt(784)), batch_size=100)
    plan = [(mechanism, 100, 1)]
    stated = PrivacyAccountant.from_groups(plan).get_epsilon(0.01)
    assert 1.05 < stated / true_epsilon(plan, 0.01) < 1.08


@pytest.mark.parametrize(("mu", "n_releases"), [(0.05, 400), (0.4, 9), (2.0, 3)])
def test_oracle_of_gaussians_is_their_closed_form(mu, n_releases):
    plan = [(GaussianMechanism(sensitivity=mu, sigma=1.0), 10, n_releases)]
    for delta in (1e-3, 1e-9):
        expected = dp_accounting.get_epsilon_gaussian(1 / (mu * math.sqrt(n_releases)), delta)
        assert true_epsilon(plan, delta) == pytest.approx(expected, rel=ORACLE_ERROR)


@pytest.mark.parametrize("seed", range(20))
def test_unsampled_whole_bases_agree_with_dp_accounting(seed):
    rng = random.Random(seed)
    dim, bases, size = rng.choice([2, 7, 50]), rng.randint(1, 4), rng.randint(5, 500)
    n_releases = round(10 ** rng.uniform(0, 3))
    total_mu = 10 ** rng.uniform(-1, 0.7)
    mechanism = ProjectionMechanism(dim, bases * dim, 1.0, size, kind="orthogonal", row_norm=1.5)
    noise_multiplier = math.sqrt(n_releases) / total_mu  # sigma over the sensitivity 3 sqrt(bases)
    mechanism = mechanism.replace(sigma=noise_multiplier * 3 * math.sqrt(bases))
    ours = PrivacyAccountant().step(mechanism, sample_size=size, n_releases=n_releases)
    theirs = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    theirs.compose(dp_accounting.GaussianDpEvent(noise_multiplier), n_releases)
    delta = 10 ** rng.uniform(-8, -2)
    assert ours.get_epsilon(delta) == pytest.approx(theirs.get_epsilon(delta), rel=2e-3)
