"""Accounting experiments, errata, and statements of papers that no other test shows."""

import copy
import itertools
import json
import math
import traceback
from dataclasses import replace

import numpy as np
import pytest
import torch
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from gdpnum import PLDConverter
from scipy import stats
from torch import nn

from dpswd import PrivacyAccountant, ProjectionMechanism, random_projections
from dpswd.mechanism import GaussianMechanism
from dpswd.sensitivity import bernstein_bound
from dpswd.sliced import sliced_wasserstein, smoothed_sliced_wasserstein
from experiments.__main__ import main
from experiments.accounting import gdp, selection
from experiments.accounting.gdp import Account, dp_sgd, pure_mu, randomised_response
from experiments.accounting.poisson import update_loss
from experiments.accounting.published import TABLE4, published_bound, published_epsilon
from experiments.accounting.sensitivity import draw_sensitivities
from experiments.notions import wdp
from experiments.notions.wdp import BayesianAccountant, log_moment
from models.domains import TargetLoader
from models.networks import FaceDiscriminator

ROWS = {row.name: row for row in TABLE4}
QUICK = [
    "wdp_fig1",
    "wdp_fig2",
    "wdp_fig3",
    "fig7",
    "table4",
    "gdp_fig1",
    "gdp_fig2",
    "gdp_table3",
    "gdp_fig4",
]
SLOW = ["fig1", "bounds", "gdp_fig3", "gdp_dpsgd"]


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_quick_run(name, tmp_path):
    assert main(["run", name, "--quick", "--out", str(tmp_path)]) == 0
    assert json.loads((tmp_path / f"{name}.json").read_text())["rows"]
    pictures = {name, "wdp_fig4"} if name == "wdp_fig2" else {name}
    assert {path.stem for path in tmp_path.glob("*.png")} == pictures
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


# Table 4 by an independent computation: sigma by the conventions of the authors' code, and
# corrected, which is converted at delta / 2.
RECOMPUTED = {
    "USPS-MNIST": (4.719, 4.792),
    "MNIST-USPS": (5.360, 5.448),
    "VisDA": (6.004, 6.097),
    "Office-31": (8.140, 8.343),
    "MNIST (b)": (2.933, 2.954),
    "MNIST (c)": (0.847, 0.853),
    "CelebA (b)": (2.386, 2.408),
    "CelebA (c)": (0.369, 0.373),
}


@pytest.mark.parametrize("row", TABLE4, ids=lambda row: row.name)
def test_table4_recomputed(row):
    plain, corrected = RECOMPUTED[row.name]
    assert row.recomputed() == pytest.approx(plain, abs=0.01)
    assert row.recomputed(corrected=True) == pytest.approx(corrected, abs=0.01)
    if row.name == "VisDA":
        row = replace(row, delta=1e-6)  # 1e-5 in the table
    assert row.recomputed() == pytest.approx(row.sigma, rel=0.012)


def test_table_4_sample_size_of_usps():
    code = replace(ROWS["MNIST-USPS"], sample_size=7_468)
    assert code.recomputed() == pytest.approx(5.342, abs=0.005)  # 5.360 for the paper's 7,438


def test_erratum_1_doubled_count():
    row = ROWS["USPS-MNIST"]
    doubled = published_bound(row.dim, row.n_projections, row.delta / 2)
    lemma = bernstein_bound(row.n_projections, row.dim, row.delta / 2)
    assert doubled == pytest.approx(10.17, abs=0.01)
    assert lemma == pytest.approx(8.52, abs=0.01)
    by_lemma = row.sigma * (lemma / doubled) ** 0.5
    assert by_lemma < 0.93 * row.sigma  # Lemma 2 as printed is far from the printed sigma


@pytest.mark.parametrize("name", ["USPS-MNIST", "MNIST (b)", "Office-31"])
def test_erratum_2_tail_once(name):
    row = ROWS[name]
    once = row.mechanism.replace(bound="bernstein", failure_prob=row.delta / 2)
    every = row.mechanism.replace(bound="bernstein", failure_prob=row.delta / (2 * row.n_releases))
    assert every.law.mean > 1.4 * once.law.mean
    accountant = PrivacyAccountant().step(
        once, sample_size=row.sample_size, n_releases=row.n_releases
    )
    assert accountant.tail > 100 * row.delta


def batches_with_the_first_record(n_records, batch_size, fresh, n_batches):
    """Return whether a loader of the published algorithm has the first record in each batch."""
    loader = iter(TargetLoader(torch.arange(n_records), batch_size, fresh=fresh))
    return np.array([bool((next(loader) == 0).any()) for _ in range(n_batches)])


def test_erratum_6_shuffled_epochs():
    size, batch = 10_000, 128
    per_epoch = size // batch + 1  # 79, of which the last one is short
    assert per_epoch * 100 == ROWS["USPS-MNIST"].n_releases
    torch.manual_seed(0)
    shuffled = batches_with_the_first_record(size, batch, False, 100 * per_epoch)
    epochs = shuffled.reshape(100, per_epoch)
    # An epoch has every record once, so the first 78 batches give away the last one.
    assert epochs.sum(1).tolist() == [1] * 100
    fresh = batches_with_the_first_record(size, batch, True, 100 * per_epoch)
    counts = fresh.reshape(100, per_epoch).sum(1)
    assert counts.var() > 0.5  # binomial: 79 q (1 - q) = 1.0
    assert set(counts) > {0, 1}


@pytest.mark.parametrize(
    ("row", "epochs", "batches", "n_target", "delta", "claim"),
    [
        ("MNIST-USPS", 89, 60_000 // 128, 7_438, 1e-5, 32.66),  # drops the last batch
        ("USPS-MNIST", 89, math.ceil(7_438 / 128), 10_000, 1e-5, 7.89),
        ("VisDA", 44, math.ceil(152_397 / 128), 55_387, 1e-6, 16.05),
        ("Office-31", 39, math.ceil(2_817 / 32), 498, 1e-3, 24.95),  # A-D
        ("Office-31", 39, math.ceil(2_817 / 32), 795, 1e-3, 14.00),  # A-W
        ("Office-31", 39, math.ceil(795 / 32), 498, 1e-3, 11.60),  # W-D
        ("Office-31", 39, math.ceil(795 / 32), 2_817, 1e-3, 1.65),  # W-A
        ("Office-31", 39, math.ceil(498 / 32), 795, 1e-3, 5.09),  # D-W
        ("Office-31", 39, math.ceil(498 / 32), 2_817, 1e-3, 1.32),  # D-A
    ],
)
def test_erratum_6_epochs_are_those_of_the_source(row, epochs, batches, n_target, delta, claim):
    """Epsilon by the conventions of the code, for the epochs of the source that release."""
    printed = ROWS[row]
    mechanism = printed.mechanism.replace(bound=printed.bound, sigma=printed.sigma)
    claimed = published_epsilon(mechanism, n_target, epochs * batches, delta)
    assert claimed == pytest.approx(claim, abs=0.01)


def test_drawn_sensitivities_follow_lemma_1():
    """Kolmogorov-Smirnov at p = 1e-4 on one direction."""
    y = draw_sensitivities(5, 1, 20_000)
    assert stats.kstest(y, stats.beta(0.5, 2).cdf).pvalue > 1e-4
    next_dimension = stats.beta(0.5, 2.5)  # control
    assert stats.kstest(y, next_dimension.cdf).pvalue < 1e-4
    error = (40 * 0.0457 / 2000) ** 0.5  # of the mean of 2,000 draws
    assert draw_sensitivities(5, 40, 2000).mean() == pytest.approx(8, abs=6 * error)


def profile_of_update(noise, rate, epsilon):
    """Delta of one update of DP-SGD at epsilon, for removing and for adding a record."""

    def outcome(loss):
        growth = math.expm1(loss) / rate
        return noise**2 * math.log1p(growth) + 0.5 if growth > -1 else -math.inf

    ratio = math.exp(epsilon)
    q, other = stats.norm.sf((outcome(epsilon) - np.array([0, 1])) / noise)
    removed = (1 - rate) * q + rate * other - ratio * q
    q, other = stats.norm.cdf((outcome(-epsilon) - np.array([0, 1])) / noise)
    added = q - ratio * ((1 - rate) * q + rate * other)
    return max(removed, added)


@pytest.mark.parametrize(("noise", "rate"), [(2.0, 0.03), (0.7, 0.3), (5.0, 1.0)])
def test_loss_of_an_update_has_the_profile_of_the_normal_laws(noise, rate):
    """Chords meet the profile at the points of the grid, and lie above it between them."""
    loss = update_loss(noise, rate, 0.01)
    for epsilon in (-0.02, 0.0, 0.05):
        expected = profile_of_update(noise, rate, epsilon)
        assert float(loss.get_delta_for_epsilon(epsilon)) == pytest.approx(expected, rel=1e-9)
    exact = profile_of_update(noise, rate, 0.055)
    assert exact < float(loss.get_delta_for_epsilon(0.055)) < 1.1 * exact


@pytest.mark.parametrize(("noise", "rate"), [(2.0, 0.03), (1.0, 0.01)])
def test_regret_falls_with_compositions(noise, rate):
    """Gomez2025, Figure 3, at rates at which the loss of dp_accounting has rounding errors."""
    regrets = [gdp.Account.of(dp_sgd(noise, rate, times)).regret for times in (30, 300, 1000)]
    assert regrets == sorted(regrets, reverse=True)


def test_mu_of_dp_accounting_is_too_small_at_small_rates():
    """Rounded up, without chords, its losses have a mu that falls to ours with the step."""
    mu = gdp.Account.of(dp_sgd(1.0, 0.01, 30)).mu

    def theirs(step, *, chords):
        loss = from_gaussian_mechanism(
            1.0, sampling_prob=0.01, value_discretization_interval=step, use_connect_dots=chords
        )
        return PLDConverter(loss.self_compose(30)).get_mu()

    coarse, fine = (theirs(step, chords=False) for step in (1e-4, 5e-5))
    assert mu < fine < coarse
    assert 2 * fine - coarse == pytest.approx(mu, rel=2e-3)
    assert theirs(1e-3, chords=True) < 0.8 * mu


def test_both_ways_agree_at_the_rate_of_de_et_al():
    setting = (9.4, 16_384 / 50_000, 2000)  # CIFAR-10
    noise, rate, n_updates = setting
    loss = from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=1e-4)
    theirs = PLDConverter(loss.self_compose(n_updates)).get_mu()
    assert gdp.Account.of(dp_sgd(*setting)).mu == pytest.approx(theirs, rel=2e-4)


def test_mu_of_the_accountant_does_not_depend_on_the_step_at_small_rates():
    release = GaussianMechanism(sensitivity=1.0, sigma=1.0, batch_size=1)
    account = PrivacyAccountant().step(release, sample_size=100, n_releases=30)
    coarse, fine = (account.get_mu_and_regret(points=points)[0] for points in (8, 64))
    assert fine == pytest.approx(coarse, rel=1e-3)
    assert fine > gdp.Account.of(dp_sgd(1.0, 0.01, 30)).mu  # replaced, not added or removed


def test_curve_of_a_full_profile_is_that_of_the_mechanism():
    """The whole profile of Gaussian noise gives the curve of mu-GDP; zCDP and a pair lower ones."""
    alpha = np.array([0.01, 0.1, 0.5])
    epsilon = np.linspace(0, 8, 2000)
    exact = stats.norm.cdf(stats.norm.isf(alpha) - 1)
    delta = stats.norm.cdf(0.5 - epsilon) - np.exp(epsilon) * stats.norm.cdf(-0.5 - epsilon)
    whole = gdp.curve_of_profile(alpha, epsilon, delta)
    np.testing.assert_allclose(whole, exact, atol=1e-5)
    # Theorem 2.7: delta(epsilon) = 1 + f*(-e^epsilon), with the convex conjugate f*
    rates = np.linspace(0, 1, 200_001)
    slopes = -np.exp(epsilon[::200, None])
    conjugate = (slopes * rates - stats.norm.cdf(stats.norm.isf(rates) - 1)).max(1)
    np.testing.assert_allclose(1 + conjugate, delta[::200], atol=1e-5)
    by_zcdp = gdp.curve_of_profile(alpha, epsilon, gdp.zcdp_delta(0.5, epsilon))
    assert (gdp.zcdp_delta(0.5, epsilon) >= delta).all()
    assert (by_zcdp < whole).all()
    assert (gdp.curve_of_profile(alpha, epsilon[1000:1001], delta[1000:1001]) < whole).all()


# Rakotomamonjy2021


def test_proposition_2_bounds_one_release():
    mechanism = ProjectionMechanism(784, 200, 1.5, 100)
    delta = 1e-5
    accountant = PrivacyAccountant().step(mechanism, sample_size=100, n_releases=1)
    exact = accountant.get_epsilon(delta)

    def printed(bound):
        orders = np.geomspace(1.01, 1e3, 2000)
        renyi = orders * bound / (2 * mechanism.sigma**2)
        return (renyi + math.log(2 / delta) / (orders - 1)).min()

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
    """The smoothed distance of laws with equal means is at least that of their deviations."""
    spread = smoothed_distance(np.array([-1.0, 1.0]), np.array([0.5, 0.5]), sigma)
    assert spread >= 0.99 * (math.sqrt(sigma**2 + 1) - sigma) > 0
    assert smoothed_distance(np.zeros(2), np.array([0.5, 0.5]), sigma) < 1e-6 * sigma


def test_property_1_in_several_dimensions():
    """The smoothed sliced distance of large samples: that of one law is a control near zero."""
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 20_000, 5, generator=generator)
    spread = torch.randn(20_000, 5, generator=generator).sign()  # the same mean and variances
    spread[:, 0] *= 2  # another variance in one direction
    directions = random_projections(5, 40, generator=generator, dtype=torch.float32)
    torch.manual_seed(0)
    options = {"sigma": 1.0, "p": 2}
    equal = float(smoothed_sliced_wasserstein(first, second, directions, **options))
    different = float(smoothed_sliced_wasserstein(first, spread, directions, **options))
    assert equal < 0.002
    assert different > 10 * equal


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


def test_definition_2_10_is_a_metric():
    """The larger of both directions, on curves of which one crosses the two others."""
    alpha = np.linspace(0, 1, 2001)
    curves = [gaussian_curve(1.0), gaussian_curve(1.5), lambda a: np.maximum(0, 0.7 - a)]

    def distance(i, j):
        return max(excess(curves[i], curves[j], alpha), excess(curves[j], curves[i], alpha))

    sides = [distance(0, 1), distance(1, 2), distance(0, 2)]
    assert distance(0, 0) < 1e-12
    assert all(0 < side <= sum(sides) - side + 1e-9 for side in sides)
    assert excess(curves[0], curves[2], alpha) != pytest.approx(
        excess(curves[2], curves[0], alpha), rel=0.1
    )


def advantage(f, alpha):
    return (1 - alpha - f(alpha)).max()


GRID = np.linspace(0, 1, 100_001)


@pytest.mark.parametrize(
    "pld", [dp_sgd(1.0, 0.1, 30), randomised_response(2.0)], ids=["dp_sgd", "response"]
)
def test_equations_10_to_13_and_proposition_4_2(pld):
    converter = PLDConverter(pld)
    mu, regret = converter.get_mu_and_regret()
    curve, gaussian = converter.get_beta, gaussian_curve(mu)
    assert (curve(GRID) >= gaussian(GRID) - 1e-9).all()  # Eq. 10
    alpha = np.geomspace(1.01e-10, 0.5, 2000)
    needed = stats.norm.isf(alpha) + stats.norm.isf(curve(alpha))  # Eq. 11
    assert 0.98 * mu < needed.max() <= mu * (1 + 1e-6)
    assert regret == pytest.approx(
        excess(curve, gaussian, GRID), abs=1e-4
    )  # Algorithm 2, Theorem B.2
    assert excess(gaussian, curve, GRID) < 1e-8  # Proposition 4.1: the other direction is 0
    assert (
        abs(advantage(curve, GRID) - advantage(gaussian, GRID)) <= 2 * regret + 1e-6
    )  # Proposition 4.2


@pytest.mark.parametrize(("noise", "rate", "updates"), [(2.0, 0.01, 30), (5.0, 0.01, 100)])
def test_mu_and_regret_of_all_error_rates(noise, rate, updates):
    """At small rates the largest mu is needed at error rates that gdpnum leaves out."""
    account = Account.of(dp_sgd(noise, rate, updates))
    alpha = np.geomspace(1e-10, 0.5, 4000)
    needed = stats.norm.isf(alpha) - stats.norm.ppf(account.curve(alpha))
    assert 0.999 * account.mu < needed.max() <= account.mu * (1 + 1e-6)
    assert account.converter.get_mu() < 0.998 * account.mu  # control
    gaussian = gaussian_curve(account.mu)
    assert account.regret == pytest.approx(excess(account.curve, gaussian, GRID), abs=1e-6)


def test_a_loss_without_error_rates_that_count_has_no_account():
    with pytest.raises(ValueError, match=r"no breakpoint has both error rates above 1e-10"):
        Account.of(from_gaussian_mechanism(0.05))


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
def test_lemma_c_1_and_equation_32(mu):
    curve = gaussian_curve(mu)
    assert advantage(curve, GRID) == pytest.approx(2 * stats.norm.cdf(mu / 2) - 1, abs=1e-8)
    # half of the advantage: the factor 2 of Proposition 4.2 is attained
    assert excess(lambda alpha: 1 - alpha, curve, GRID) == pytest.approx(
        advantage(curve, GRID) / 2, abs=1e-8
    )


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 0.0), (2.0, 0.1)])
def test_equation_31(epsilon, delta):
    likely = 1 / (1 + math.exp(-epsilon))
    first = np.array([delta, (1 - delta) * likely, (1 - delta) * (1 - likely), 0.0])
    total_variation = np.abs(first - first[::-1]).sum() / 2
    assert total_variation == pytest.approx(
        (math.expm1(epsilon) + 2 * delta) / (math.exp(epsilon) + 1)
    )


def test_theorems_a_6_a_7_a_10_by_enumeration():
    """Three answers of randomised response: eight outcomes, all likelihood-ratio tests."""
    likely = 1 / (1 + math.exp(-1.0))
    outcomes = list(itertools.product((0, 1), repeat=3))
    n_ones = np.array([sum(outcome) for outcome in outcomes])
    p = likely**n_ones * (1 - likely) ** (3 - n_ones)
    q = (1 - likely) ** n_ones * likely ** (3 - n_ones)
    composed = randomised_response(1.0).self_compose(3)
    converter = PLDConverter(composed)
    for epsilon in (-1.0, 0.0, 0.5, 2.0):
        assert composed.get_delta_for_epsilon(epsilon) == pytest.approx(
            np.maximum(p - np.exp(epsilon) * q, 0).sum()
        )
    order = np.argsort(q / p)
    alpha, beta = np.cumsum(q[order]), 1 - np.cumsum(p[order])
    np.testing.assert_allclose(converter.get_beta(alpha), beta, atol=1e-9)
    breakpoints = stats.norm.isf(alpha[:-1]) - stats.norm.ppf(beta[:-1])
    assert converter.get_mu() == pytest.approx(breakpoints.max(), rel=1e-6)  # Eq. 11


def test_table_3_of_gomez2025():
    printed = {
        1e-5: [0.03, 0.14, 0.27, 0.50, 0.92, 1.31, 1.67, 2.00],
        1e-6: [0.03, 0.12, 0.24, 0.45, 0.84, 1.20, 1.53, 1.85],
        1e-9: [0.02, 0.09, 0.18, 0.35, 0.67, 0.97, 1.26, 1.54],
    }
    for delta in gdp.DELTAS:
        mus = [round(gdp.gaussian_mu(epsilon, delta), 2) for epsilon in gdp.EPSILONS]
        assert mus == printed[delta]


def choice(scores, epsilon):
    """Return the probabilities of the exponential mechanism (n,)."""
    weights = np.exp(epsilon / 2 * np.asarray(scores))
    return weights / weights.sum()


def mu_of(p, q):
    """Return the mu of two laws on a finite set, by Eq. 11 at the corners of their curve."""
    order = np.argsort(q / p)
    alpha, power = np.cumsum(q[order])[:-1], np.cumsum(p[order])[:-1]
    inside = (alpha > 1e-9) & (power < 1 - 1e-9)  # beyond, the sums are rounded
    alpha, power = alpha[inside], power[inside]
    return (stats.norm.ppf(power) - stats.norm.ppf(alpha)).max(initial=0.0)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_exponential_mechanism_has_the_mu_of_half_its_epsilon(epsilon):
    bound = selection.exponential_mu(epsilon)
    assert bound == pytest.approx(pure_mu(epsilon / 2), rel=1e-12)
    assert bound < 0.65 * pure_mu(epsilon)
    p, q = choice([0.5, -0.5], epsilon), choice([-0.5, 0.5], epsilon)
    assert mu_of(p, q) == pytest.approx(bound, rel=1e-9)  # two candidates attain it
    rng = np.random.default_rng(0)
    for _ in range(300):
        n = int(rng.integers(2, 9))
        scores = rng.normal(0, 3, n)
        change = rng.choice([-1.0, 1.0], n)
        assert mu_of(choice(scores, epsilon), choice(scores + change, epsilon)) <= bound + 1e-9
    # control: scores that move by more exceed it
    assert mu_of(choice([0.6, -0.6], epsilon), choice([-0.6, 0.6], epsilon)) > bound


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 10.0])
def test_mu_of_two_losses_is_largest_for_the_symmetric_pair(epsilon):
    """Steps 4 to 9 of the proof in docs/gdp.md: mu grows up to half of epsilon, then falls."""
    losses = np.linspace(0.01, 0.99, 99) * epsilon
    mus = [selection.two_point_mu(epsilon, float(loss)) for loss in losses]
    assert (np.diff(mus[:50]) > 0).all()
    assert (np.diff(mus[49:]) < 0).all()
    points = np.linspace(0, 8, 1000)
    growing = stats.norm.pdf(points) / (stats.norm.cdf(points) * stats.norm.sf(points))
    assert (np.diff(growing) > 0).all()


@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_noisy_max_by_proposition_6_1(epsilon):
    worst = selection.noisy_max_least_mu(epsilon)
    assert worst["mu"] < pure_mu(epsilon)
    # Two candidates: the difference of two Laplace variables has a closed form.
    likely = 1 - math.exp(-epsilon / 2) * (1 + epsilon / 4) / 2
    assert selection.noisy_max_probability(epsilon, 1.0, 2) == pytest.approx(likely, rel=1e-4)
    if epsilon < 4:  # control: the bound of the exponential mechanism does not hold
        assert worst["mu"] > 1.05 * selection.exponential_mu(epsilon)


def test_selection_has_a_row_for_every_epsilon(tmp_path):
    assert main(["run", "gdp_selection", "--quick", "--out", str(tmp_path)]) == 0
    (row,) = json.loads((tmp_path / "gdp_selection.json").read_text())["rows"]
    assert row["mu_exponential"] < row["mu_noisy_max_least"] < row["mu_pure"]


def test_table_2_of_gomez2025_by_two_ways():
    try:
        rows = gdp.gdp_table2(None, quick=True)["rows"]
    except AssertionError as error:
        # Where gdpnum mirrors a curve, it looks for the breakpoint at the diagonal. Rounding
        # decides whether it takes that one or the next, and gdpnum refuses the next: the mirrored
        # curve decreases there by 4e-5 (converter.py, _compute_symm_tradeoff_points).
        innermost = traceback.extract_tb(error.__traceback__)[-1]
        if "gdpnum" not in innermost.filename:
            raise
        pytest.skip("gdpnum refuses the curve that it mirrored, by rounding on this processor")
    for row in rows:
        assert row["regret"] < 1e-2
        # The epsilon of the account is 7 to 9 % below the printed one, which is nominal.
        assert 0.85 * row["mu_of_pair"] < row["mu"] < row["mu_of_pair"]


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_proposition_6_1_pure_dp(epsilon):
    mu = pure_mu(epsilon)
    kink = 1 / (1 + math.exp(epsilon))
    alpha = np.concatenate(
        [np.geomspace(1e-12, 0.5, 2000), 1 - np.geomspace(1e-12, 0.5, 2000), [kink]]
    )
    curve = np.maximum(1 - math.exp(epsilon) * alpha, math.exp(-epsilon) * (1 - alpha))
    assert (curve >= gaussian_curve(mu)(alpha) - 1e-12).all()
    # The curves touch at the kink: there is no smaller mu.
    assert curve[-1] == pytest.approx(gaussian_curve(mu)(kink), rel=1e-9)


def test_proposition_6_2_no_finite_mu():
    """Publishing the record with probability 1e-6 needs a mu that grows as alpha falls."""
    alpha = np.array([1e-10, 1e-100, 1e-300])
    needed = stats.norm.isf(alpha) + stats.norm.isf((1 - 1e-6) * (1 - alpha))
    assert (np.diff(needed) > 10).all()
    assert needed[-1] > 30


def test_discriminator_features_depend_on_one_private_record():
    """A step of training on a neighbouring batch moves the features of all other images."""
    torch.manual_seed(0)
    network = FaceDiscriminator()
    private, public = torch.rand(2, 4, 3, 64, 64).unbind()
    neighbour = torch.cat([private[:3], 1 - private[3:]])

    def trained_on(batch):
        discriminator = copy.deepcopy(network)
        optimizer = torch.optim.SGD(discriminator.parameters(), lr=0.1)
        truth = torch.tensor([1.0] * 4 + [0.0] * 4)
        logits = discriminator(torch.cat([batch, public]))
        nn.functional.binary_cross_entropy_with_logits(logits, truth).backward()
        optimizer.step()
        return discriminator.eval().features(public).detach()

    first, second = trained_on(private), trained_on(neighbour)
    assert torch.equal(first, trained_on(private))  # control: the same batch
    assert (first - second).norm(dim=1).min() > 0
    assert first.shape[1] == 8192


def test_seed_keeps_32_bits():
    draws = [
        torch.randn(5, generator=torch.Generator().manual_seed(seed)) for seed in (5, 5 + 2**32, 6)
    ]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_remark_4_square_of_the_norm():
    u = nn.functional.normalize(
        torch.randn(7, 100_000, generator=torch.Generator().manual_seed(0)), dim=0
    )
    z = 3 * torch.eye(7)[0]
    mean = float((z @ u).square().mean())
    assert mean == pytest.approx(9 / 7, rel=0.02)  # E Y = 1 / d, times the square of the norm
    assert mean != pytest.approx(3 / 7, rel=0.5)


def test_property_2_of_the_smoothed_distance_holds_for_the_root_only():
    """Normal laws about 0, 1 and 2 with noise: their distances are those of their means."""
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(3, 20_000, 1, generator=generator)
    samples += torch.arange(3)[:, None, None]
    direction = torch.ones(1, 1)
    torch.manual_seed(0)
    options = {"sigma": 1.0, "p": 2}
    powers = [
        float(smoothed_sliced_wasserstein(samples[i], samples[j], direction, **options))
        for i, j in ((0, 1), (1, 2), (0, 2))
    ]
    assert powers == pytest.approx([1, 1, 4], rel=0.1)
    assert powers[2] > powers[0] + powers[1]
    first, second, whole = np.sqrt(powers)
    assert whole <= (first + second) * 1.05  # sampling errors of the three distances


def test_triangle_inequality_of_the_sliced_distance_holds_for_the_root_only():
    generator = torch.Generator().manual_seed(0)
    line = torch.tensor([0.0, 1.0, 2.0])[:, None, None]
    clouds = [
        torch.randn(3, 8, 4, generator=generator) + spread * torch.arange(3)[:, None, None]
        for spread in (0, 1)
    ]
    powers = []
    for points in (line, *clouds):
        unit = nn.functional.normalize(torch.randn(points.shape[2], 20, generator=generator), dim=0)
        pairs = ((0, 1), (1, 2), (0, 2), (2, 0))
        powers.append([float(sliced_wasserstein(points[i], points[j], unit)) for i, j in pairs])
        first, second, whole, back = np.sqrt(powers[-1])
        assert whole <= first + second + 1e-6
        assert whole == pytest.approx(back)
    assert powers[0][2] > powers[0][0] + powers[0][1]  # the points 0, 1, 2


def test_comparators_against_dp_accounting():
    from dp_accounting import GaussianDpEvent, rdp

    # Without sampling it is the RDP of a Gaussian at order 17.
    moment = float(log_moment(3.0, 6.0, 1.0, 16))
    reference = rdp.RdpAccountant([17])
    reference.compose(GaussianDpEvent(2.0))
    # The conversion of dp_accounting subtracts ln(order) / (order - 1) from the classical one and
    # adds ln(1 - 1 / order).
    improvement = math.log(17) / 16 - math.log1p(-1 / 17)
    epsilon = (moment - math.log(1e-5)) / 16
    assert epsilon == pytest.approx(reference.get_epsilon(1e-5) + improvement, rel=1e-9)
    bayes = BayesianAccountant(16, n_steps=10)
    # Equal distances have no spread, which gives the classical accountant.
    bayes.step([3.0] * 5, sigma=6.0, rate=1.0)
    assert bayes.total == pytest.approx(moment, rel=1e-12)


def test_table_2_printed_rows():
    rows = {row["dataset"]: row for row in wdp.printed_rows()}
    betas = {name: row["least_beta"] for name, row in rows.items()}
    expected = {"MNIST": 30.3, "CIFAR-10": 44.3, "SVHN": 57.6, "Fashion-MNIST": 51.2}
    assert betas == pytest.approx(expected, abs=0.05)
    probability = rows["Fashion-MNIST"]["p_attack_dp_is"]
    assert probability == pytest.approx(0.9478, abs=1e-4)  # 0.623 is printed
    wrong = set()
    for name, row in rows.items():
        for notion in ("dp", "bdp", "wdp"):
            if abs(row[f"p_attack_{notion}"] - row[f"p_attack_{notion}_is"]) > 1e-3:
                wrong.add((name, notion))
    assert wrong == {("MNIST", "dp"), ("SVHN", "dp"), ("Fashion-MNIST", "dp")}
