"""Statements of Rakotomamonjy2021 and Gomez2025 that docs/reproductions.md lists and no other test shows."""

import itertools
import math

import numpy as np
import pytest
from gdpnum import PLDConverter
from scipy import stats

from dpswd import PrivacyAccountant, ProjectionMechanism
from dpswd.sensitivity import bernstein_bound
from experiments.accounting.gdp import dp_sgd, pure_mu, randomised_response

# Rakotomamonjy2021


def test_proposition_2_bounds_one_release():
    made, delta = ProjectionMechanism(784, 200, 1.5, 100), 1e-5
    exact = PrivacyAccountant().step(made, sample_size=100, n_releases=1).get_epsilon(delta)

    def printed(bound):
        orders = np.geomspace(1.01, 1e3, 2000)
        return (orders * bound / (2 * made.sigma**2) + math.log(2 / delta) / (orders - 1)).min()

    assert exact < printed(bernstein_bound(200, 784, delta / 2))
    assert exact > printed(0.5 * 200 / 784)  # control: half of the mean of S is no bound


def smoothed_distance(points, weights, sigma):
    """W_2 of N(0, sigma^2) and of a mixture of N(points, sigma^2) by quantiles."""
    grid = np.linspace(-12 * sigma, 12 * sigma, 200_001)
    levels = stats.norm.cdf((grid[:, None] - points) / sigma) @ weights
    gap = grid - sigma * stats.norm.ppf(np.clip(levels, 1e-16, 1 - 1e-16))
    return math.sqrt(np.trapezoid(gap**2, levels))


@pytest.mark.parametrize("sigma", [1.0, 5.0, 25.0])
def test_property_1_noise_hides_no_difference(sigma):
    """Laws with equal means: their smoothed distance is at least the difference of the standard deviations."""
    spread = smoothed_distance(np.array([-1.0, 1.0]), np.array([0.5, 0.5]), sigma)
    assert spread >= 0.99 * (math.sqrt(sigma**2 + 1) - sigma) > 0
    assert smoothed_distance(np.zeros(2), np.array([0.5, 0.5]), sigma) < 1e-6 * sigma


# Gomez2025


def gaussian_curve(mu):
    return lambda alpha: stats.norm.cdf(stats.norm.isf(alpha) - mu)


def excess(f, g, alpha):
    """Definition 2.10: least k with f(a + k) - k <= g(a) for all a, by one bisection per a."""
    low, high = np.zeros_like(alpha), np.ones_like(alpha)
    for _ in range(60):
        k = (low + high) / 2
        holds = f(np.minimum(alpha + k, 1)) - k <= g(alpha)
        low, high = np.where(holds, low, k), np.where(holds, k, high)
    return high.max()


def advantage(f, alpha):
    return (1 - alpha - f(alpha)).max()


GRID = np.linspace(0, 1, 100_001)


@pytest.mark.parametrize("pld", [dp_sgd(1.0, 0.1, 30), randomised_response(2.0)], ids=["dp_sgd", "response"])
def test_equations_10_to_13_and_proposition_4_2(pld):
    converter = PLDConverter(pld)
    mu, regret = converter.get_mu_and_regret()
    curve, gaussian = converter.get_beta, gaussian_curve(mu)
    assert (curve(GRID) >= gaussian(GRID) - 1e-9).all()  # Eq. 10
    alpha = np.geomspace(1.01e-10, 0.5, 2000)
    needed = stats.norm.isf(alpha) + stats.norm.isf(curve(alpha))  # Eq. 11
    assert 0.98 * mu < needed.max() <= mu * (1 + 1e-6)
    assert regret == pytest.approx(excess(curve, gaussian, GRID), abs=1e-4)  # Algorithm 2, Theorem B.2
    assert excess(gaussian, curve, GRID) < 1e-8  # Proposition 4.1: the other direction is 0
    assert abs(advantage(curve, GRID) - advantage(gaussian, GRID)) <= 2 * regret + 1e-6  # Proposition 4.2


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
def test_lemma_c_1_and_equation_32(mu):
    curve = gaussian_curve(mu)
    assert advantage(curve, GRID) == pytest.approx(2 * stats.norm.cdf(mu / 2) - 1, abs=1e-8)
    # half of the advantage: the factor 2 of Proposition 4.2 is attained
    assert excess(lambda alpha: 1 - alpha, curve, GRID) == pytest.approx(advantage(curve, GRID) / 2, abs=1e-8)


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 0.0), (2.0, 0.1)])
def test_equation_31(epsilon, delta):
    likely = 1 / (1 + math.exp(-epsilon))
    first = np.array([delta, (1 - delta) * likely, (1 - delta) * (1 - likely), 0.0])
    total_variation = np.abs(first - first[::-1]).sum() / 2
    assert total_variation == pytest.approx((math.expm1(epsilon) + 2 * delta) / (math.exp(epsilon) + 1))


def test_theorems_a_6_a_7_a_10_by_enumeration():
    """Three answers of randomised response: eight outcomes, all likelihood-ratio tests."""
    likely = 1 / (1 + math.exp(-1.0))
    outcomes = list(itertools.product((0, 1), repeat=3))
    p = np.array([math.prod(likely if bit else 1 - likely for bit in outcome) for outcome in outcomes])
    q = np.array([math.prod(1 - likely if bit else likely for bit in outcome) for outcome in outcomes])
    converter = PLDConverter(composed := randomised_response(1.0).self_compose(3))
    for epsilon in (-1.0, 0.0, 0.5, 2.0):
        assert composed.get_delta_for_epsilon(epsilon) == pytest.approx(np.maximum(p - np.exp(epsilon) * q, 0).sum())
    order = np.argsort(q / p)
    alpha, beta = np.cumsum(q[order]), 1 - np.cumsum(p[order])
    np.testing.assert_allclose(converter.get_beta(alpha), beta, atol=1e-9)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_proposition_6_1_pure_dp(epsilon):
    mu, kink = pure_mu(epsilon), 1 / (1 + math.exp(epsilon))
    alpha = np.concatenate([np.geomspace(1e-12, 0.5, 2000), 1 - np.geomspace(1e-12, 0.5, 2000), [kink]])
    curve = np.maximum(1 - math.exp(epsilon) * alpha, math.exp(-epsilon) * (1 - alpha))
    assert (curve >= gaussian_curve(mu)(alpha) - 1e-12).all()
    assert curve[-1] == pytest.approx(gaussian_curve(mu)(kink), rel=1e-9)  # they touch at the kink: no smaller mu


def test_proposition_6_2_no_finite_mu():
    """A mechanism that publishes the record with probability 1e-6 needs a mu that grows as alpha falls."""
    alpha = np.array([1e-10, 1e-100, 1e-300])
    needed = stats.norm.isf(alpha) + stats.norm.isf((1 - 1e-6) * (1 - alpha))
    assert (np.diff(needed) > 10).all()
    assert needed[-1] > 30
