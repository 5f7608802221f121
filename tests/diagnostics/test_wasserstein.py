"""Yang2024 (equations of the arXiv version):
formulas against independent computations, refuted statements.
"""

import itertools
import math

import mpmath
import numpy as np
import ot
import pytest
from scipy import optimize, special, stats

from dpswd.diagnostics.wasserstein import (
    WassersteinAccountant,
    gaussian_distance,
    gaussian_wdp,
    laplace_wdp,
    log_absolute_moment,
    step_loss,
    theorem_2_loss,
)

RATIOS = [
    1e-6,
    1e-3,
    0.1,
    0.5,
    1.0,
    3.0,
    10.0,
    39.9,
    40.1,
    100.0,
    1e3,
]  # |mean| / std, both sides of the switch


def empirical_distance(x, y, order):
    """W of two empirical laws on the line (Definition 1)."""
    return float(ot.wasserstein_1d(np.ravel(x), np.ravel(y), p=order)) ** (1 / order)


def published_moment(order, mean, std):
    """Equation 13 in mpmath."""
    p, m, s = mpmath.mpf(order), mpmath.mpf(mean), mpmath.mpf(std)
    kummer = mpmath.hyp1f1(-p / 2, mpmath.mpf(1) / 2, -(m**2) / (2 * s**2))
    return (2 * s**2) ** (p / 2) * mpmath.gamma((p + 1) / 2) / mpmath.sqrt(mpmath.pi) * kummer


def test_lemma_1_published_form():
    with mpmath.workdps(40):
        for order, ratio in itertools.product((1, 2, 9, 16, 333.5, 1000), RATIOS):
            expected = float(mpmath.log(published_moment(order, 0.3 * ratio, 0.3)))
            assert float(log_absolute_moment(order, 0.3 * ratio, 0.3)) == pytest.approx(
                expected, abs=1e-10
            )


def test_lemma_1_printed_series():
    order, q, d, sigma = 16, 0.1, 5.0, 0.4  # finite for an even order
    variance = (2 - 2 * q + 2 * q**2) * sigma**2

    def absolute_moment(base):
        """Return the moment by the series with the denominators base^n."""
        series = sum(
            (q * d) ** (2 * n)
            / (math.factorial(n) * base**n)
            * math.prod((order - 2 * i + 2) / (2 * i - 1) for i in range(1, n + 1))
            for n in range(order // 2 + 1)
        )
        factor = (2 * variance) ** (order / 2) * math.gamma((order + 1) / 2) / math.sqrt(math.pi)
        return factor * series

    exact = math.exp(log_absolute_moment(order, q * d, math.sqrt(variance)))
    equation_14 = absolute_moment(4 * (1 - q + q**2) * sigma**2)
    assert exact == pytest.approx(equation_14, rel=1e-12)
    equation_125 = absolute_moment(4 * variance)
    assert equation_125 < 0.5 * exact  # a misprint


@pytest.mark.parametrize("order", [1, 2, 5])
def test_definition_1_is_the_least_cost_of_a_coupling(order):
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(6, 3)), rng.normal(1, 2, size=(6, 3))
    costs = np.linalg.norm(x[:, None] - y, axis=2) ** order
    # Of laws with equal masses a permutation is among the best couplings (Birkhoff).
    least = min(costs[range(6), places].mean() for places in itertools.permutations(range(6)))
    assert ot.emd2([], [], costs) == pytest.approx(least, rel=1e-9)
    assert least < 0.9 * costs.mean()  # control: the independent coupling is a worse one
    line = np.abs(x[:, :1] - y[:, 0]) ** order
    assert empirical_distance(x[:, 0], y[:, 0], order) == pytest.approx(
        ot.emd2([], [], line) ** (1 / order), rel=1e-9
    )


def jensen_shannon(p, q):
    """Return the Jensen-Shannon divergence of two laws on a finite set, in nats."""
    middle = (p + q) / 2
    return (special.rel_entr(p, middle) + special.rel_entr(q, middle)).sum() / 2


def test_root_of_the_jensen_shannon_divergence_is_a_metric():
    rng = np.random.default_rng(5)
    for _ in range(500):
        p, q, r = rng.dirichlet(np.full(4, 0.3), size=3)
        direct, first, second = jensen_shannon(p, r), jensen_shannon(p, q), jensen_shannon(q, r)
        assert direct == pytest.approx(jensen_shannon(r, p), rel=1e-12)
        assert math.sqrt(direct) <= math.sqrt(first) + math.sqrt(second) + 1e-12
    # control: the divergence itself is no metric, halfway between two sure outcomes
    p, q, r = np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
    assert jensen_shannon(p, r) > 1.5 * (jensen_shannon(p, q) + jensen_shannon(q, r))


def kantorovich_distance(x, y):
    """Supremum of E_P phi - E_Q phi over functions of Lipschitz constant 1,
    and phi on the rows of x, then of y.
    """
    x, y = np.atleast_2d(x), np.atleast_2d(y)
    points = np.concatenate([x, y])
    i, j = np.nonzero(~np.eye(len(points), dtype=bool))
    differences = np.eye(len(points))[i] - np.eye(len(points))[j]
    weights = np.concatenate([np.full(len(x), 1 / len(x)), np.full(len(y), -1 / len(y))])
    lengths = np.linalg.norm(points[i] - points[j], axis=1)
    bounds = [(0, 0)] + [(None, None)] * (len(points) - 1)  # a constant does not matter
    found = optimize.linprog(-weights, A_ub=differences, b_ub=lengths, bounds=bounds)
    return max(-found.fun, 0.0), found.x


def test_kantorovich_distance_is_w1_and_not_w2():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(13, 1)), rng.normal(0.5, 2, size=(8, 1))
    value, phi = kantorovich_distance(x, y)
    points = np.concatenate([x, y])
    assert value == pytest.approx(empirical_distance(x, y, 1), rel=1e-9)
    assert value == pytest.approx(phi[:13].mean() - phi[13:].mean(), rel=1e-9)
    assert (np.abs(phi[:, None] - phi) <= np.abs(points - points.T) + 1e-9).all()
    assert value < 0.99 * empirical_distance(x, y, 2)
    assert kantorovich_distance([[0.0, 0.0]], [[3.0, 4.0]])[0] == pytest.approx(5)


@pytest.mark.parametrize("order", [1, 2, 7])
def test_propositions_1_to_4_and_13_metric(order):
    rng = np.random.default_rng(0)
    chain = [rng.normal(i, 1 + i, size=20 + i) for i in range(4)]
    steps = [empirical_distance(a, b, order) for a, b in itertools.pairwise(chain)]
    whole = empirical_distance(chain[0], chain[3], order)
    assert 0 < whole <= sum(steps) <= 3 * max(steps)
    assert steps[0] == pytest.approx(empirical_distance(chain[1], chain[0], order), rel=1e-12)
    assert whole <= empirical_distance(chain[0], chain[3], order + 1) * (1 + 1e-12)


def distance_of_pairs(first, second, order):
    """W of two laws of independent pairs, each given by the values of both members."""
    x, y = (np.array(list(itertools.product(*pair))) for pair in (first, second))
    costs = np.linalg.norm(x[:, None] - y, axis=2) ** order
    return float(ot.emd2([], [], costs)) ** (1 / order)


@pytest.mark.parametrize("order", [1, 2, 7])
def test_propositions_5_and_6_independent_releases(order):
    rng = np.random.default_rng(3)
    x, y, u, v = rng.normal(size=(4, 5))
    both = empirical_distance(x, y, order) + empirical_distance(u, v, order)
    assert distance_of_pairs((x, u), (y, v), order) <= both
    # Disjoint blocks: one of them changes.
    one_block = distance_of_pairs((x, u), (y, u), order)
    assert one_block == pytest.approx(empirical_distance(x, y, order), rel=1e-6)


def test_proposition_6_false_for_adaptive_releases():
    first, other = [0.0] * 9 + [1.0], [0.0] * 8 + [1.0] * 2  # P(1) = 0.1 and 0.2
    alone = empirical_distance(first, other, 1)
    # Given the first output v, the second release is 1000 v for both data sets: its own distance is
    # 0.
    together, _ = kantorovich_distance(
        [[v, 1000 * v] for v in first], [[v, 1000 * v] for v in other]
    )
    assert together > 900 * (alone + 0.0)


def wdp_from_rdp(epsilon, order):
    """Proposition 10, in nats."""
    return (2 * epsilon) ** (1 / (2 * order)) / 2


def dp_from_wdp(wdp, order, lipschitz):
    """Proposition 11 at infinite alpha."""
    return lipschitz * wdp ** (order / (order + 1))


@pytest.mark.parametrize(
    ("function", "arguments", "expected"),
    [
        (laplace_wdp, (1, 1), math.sqrt(2 / math.e) / 2),  # the bracket is 1/e at scale 1
        (laplace_wdp, (4, 1), (2 / math.e) ** 0.125 / 2),
        (laplace_wdp, (1, 1, 2), math.sqrt(2 / math.e)),
        (laplace_wdp, (1, 2), math.sqrt(2 * math.exp(-0.5) - 1) / 2),
        (gaussian_wdp, (1, 2), 0.25),
        (gaussian_wdp, (3, 8), 0.25),
        (gaussian_wdp, (2, 1, 4), 1.0),
    ],
)
def test_propositions_7_and_8_by_hand(function, arguments, expected):
    assert function(*arguments) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("order", [1, 2, 16])
def test_propositions_7_and_8_below_the_distance(order):
    for noise in (1.0, 5.0, 1e3):
        assert gaussian_distance(1.0, noise, noise, order) == pytest.approx(
            1.0
        )  # a shift by 1, Laplace noise too
        assert gaussian_wdp(order, noise) <= 0.5
        assert laplace_wdp(order, noise) <= 0.5


def test_propositions_9_and_10_false_for_randomised_response():
    epsilon, order = 1.0, 50
    moved = math.tanh(
        epsilon / 2
    )  # half of the L1 distance of the answers 0 and 1, which lie 1 apart
    distance = moved ** (1 / order)
    assert wdp_from_rdp(epsilon * math.expm1(epsilon), order) < 0.51 < 0.98 < distance
    assert wdp_from_rdp(moved * epsilon, order) < 0.51
    # (36)-(37) puts the 1/2 of the total variation outside the power 1/mu; inside, Pinsker's bound
    # holds.
    assert distance <= (math.sqrt(2 * moved * epsilon) / 2) ** (1 / order)


def test_proposition_11_false_for_laplace():
    shift, lipschitz = 4.0, 1.0  # Laplace noise of scale 1: log-density with Lipschitz constant 1
    assert gaussian_distance(shift, 1.0, 1.0, 1) == shift  # the distance of any law to its shift
    true_epsilon = abs(stats.laplace(0).logpdf(-9.0) - stats.laplace(shift).logpdf(-9.0))
    assert true_epsilon == pytest.approx(4.0)
    assert dp_from_wdp(shift, 1, lipschitz) == 2.0
    # zCDP of rho = 2 would bound the Kullback-Leibler divergence, which is shift + exp(-shift) - 1,
    # by 2
    assert shift + math.exp(-shift) - 1 > dp_from_wdp(shift, 1, lipschitz) ** 2 / 2
    # (60): the log ratio is not at most L times the gap of the densities; (67) puts the sensitivity
    # of f for that gap.
    assert true_epsilon > 1e3 * lipschitz * abs(
        stats.laplace(0).pdf(-9.0) - stats.laplace(shift).pdf(-9.0)
    )


def test_proposition_12_false_for_expanding_maps():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=500), rng.normal(0.3, 1.2, size=400)
    before = empirical_distance(x, y, 2)
    assert empirical_distance(1000 * x, 1000 * y, 2) == pytest.approx(1000 * before)
    assert empirical_distance(np.tanh(x), np.tanh(y), 2) <= before  # true for 1-Lipschitz maps


def test_equal_wdp_different_attacks():
    success = {
        noise: (1 + (2 * stats.norm.cdf(1 / (2 * noise)) - 1)) / 2 for noise in (0.01, 100.0)
    }
    assert gaussian_distance(1, 0.01, 0.01, 16) == pytest.approx(
        gaussian_distance(1, 100.0, 100.0, 16)
    )
    assert success[0.01] > 1 - 1e-9
    assert success[100.0] < 0.503


def test_theorem_1_false_jensen_reversed():
    k = 1.0
    losses = np.array([0.0, k])  # W_1 is 0 or K with probability 1/2 each
    for beta in (1.0, 10.0, 100.0):
        accountant = WassersteinAccountant(order=1, beta=beta, sigma=1.0, sampling_rate=0.1)
        accountant.total_loss = losses.mean()
        claimed = accountant.get_delta(0.9 * k)
        assert claimed == pytest.approx(math.exp(-0.4 * beta * k))
        markov = np.exp(beta * losses).mean() / math.exp(beta * 0.9 * k)
        assert (
            claimed < markov
        )  # Jensen: E exp(W) >= exp(E W), so the claim lies below Markov's bound
    assert claimed < 1e-17 < (losses >= 0.9 * k).mean() == 0.5


def mixture_distance(q, d, sigma, order):
    """W of (1 - q) N(0, s^2) + q N(d, s^2) and N(0, s^2) through quantiles of the mixture."""
    grid = np.concatenate([np.linspace(-9, 9, 4001) * sigma, d + np.linspace(-9, 9, 4001) * sigma])
    z = np.unique(grid)
    levels = (1 - q) * stats.norm.cdf(z / sigma) + q * stats.norm.cdf((z - d) / sigma)
    gap = np.abs(z - sigma * stats.norm.ppf(np.clip(levels, 1e-300, 1 - 1e-16)))
    return float(np.trapezoid(gap**order, levels)) ** (1 / order)


@pytest.mark.parametrize(
    ("sigma", "formula", "distance"), [(0.001, 0.0113, 0.748), (0.01, 0.0397, 0.730)]
)
def test_theorem_2_no_upper_bound_for_subsampling(sigma, formula, distance):
    q, d, order = 0.01, 1.0, 16
    assert theorem_2_loss(order, [[d]], sigma, q) == pytest.approx(formula, rel=5e-3)
    assert mixture_distance(q, d, sigma, order) == pytest.approx(distance, abs=2e-3)
    rng = np.random.default_rng(0)
    sample = rng.normal(0, sigma, 400_000)
    mixture = rng.normal(0, sigma, 400_000) + d * (rng.random(400_000) < q)
    assert empirical_distance(mixture, sample, order) == pytest.approx(distance, abs=5e-3)
    # control: without subsampling the independent coupling is an upper bound
    assert theorem_2_loss(order, [[d]], sigma, 1.0) >= mixture_distance(1.0, d, sigma, order) * (
        1 - 1e-3
    )


def test_theorem_2_printed_form():
    differences = np.array([[1.0, -2.0, 0.5], [5.0, 5.0, 5.0]])
    losses = [step_loss(4, np.abs(row), 0.1, 1.0) for row in differences]
    assert theorem_2_loss(4, differences, 0.1, 1.0) == min(losses)
    # The infimum takes the best pair, Definition 3 the worst.
    assert min(losses) < gaussian_distance(5.0, 0.1, 0.1, 4) < max(losses)


def test_theorem_2_charges_for_noise():
    assert step_loss(16, [0.0], 10.0, 1.0) == pytest.approx(10 * step_loss(16, [0.0], 1.0, 1.0))
    revealing = step_loss(16, [5.0], 0.01, 1.0)  # neighbours 500 standard deviations apart
    idle = optimize.brentq(lambda sigma: step_loss(16, [0.0], sigma, 1.0) - revealing, 0.1, 100)
    assert step_loss(16, [0.0], idle, 1.0) == pytest.approx(
        revealing
    )  # equal outputs, equal charge


@pytest.mark.parametrize("order", [1, 2.5, 16, 50])
def test_theorem_3_and_corollary_1_mpmath(order):
    sigma, q, beta, delta = 0.2, 0.017, 3.0, 1e-5
    steps = [[0.0, 0.4, 2.0], [0.7], [30.0, 1e-3, 5.0, 5.0]]
    accountant = WassersteinAccountant(order=order, beta=beta, sigma=sigma, sampling_rate=q)
    for distances in steps:
        accountant.step(distances)
    with mpmath.workdps(40):
        std = mpmath.sqrt(2 - 2 * mpmath.mpf(q) + 2 * mpmath.mpf(q) ** 2) * mpmath.mpf(sigma)
        moments = [
            [published_moment(order, mpmath.mpf(q) * d, std) for d in distances]
            for distances in steps
        ]
        total = mpmath.fsum(mpmath.fsum(each) ** (1 / mpmath.mpf(order)) for each in moments)
        expected = float(total - mpmath.log(mpmath.mpf(delta)) / beta)
    assert accountant.get_wdp(delta) == pytest.approx(expected, rel=1e-10)
    assert accountant.get_delta(expected) == pytest.approx(delta, rel=1e-8)
    assert accountant.get_delta(0.0) == 1


def least_epsilon(sigma, delta, n_records=60_000, batch=1024, epochs=25):
    """The epsilon of 28 pairs of equal gradients, which have the least charge."""
    steps = epochs * math.ceil(n_records / batch)
    loss = step_loss(16, [0.0] * 28, sigma, batch / n_records)
    return steps * loss - math.log(delta) / 32


def test_authors_defaults_need_tiny_noise():
    assert 63 < least_epsilon(0.01, 1e-10) < 65
    # CIFAR-10 and SVHN, with the defaults of their programs
    assert 13 < least_epsilon(5e-4, 1e-10, n_records=50_000, batch=512, epochs=60) < 14
    assert 8 < least_epsilon(5e-4, 1e-10, n_records=73_257, batch=512) < 9
    # the additive term alone is above three of the four printed values
    assert least_epsilon(1e-12, 1e-10) == pytest.approx(0.7196, abs=1e-4)
    root = optimize.brentq(lambda sigma: least_epsilon(sigma, 1e-5) - 0.76, 1e-9, 1)
    assert 6e-5 < root < 6.5e-5
