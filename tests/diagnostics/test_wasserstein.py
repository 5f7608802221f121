import math

import mpmath
import numpy as np
import pytest
from scipy import integrate, stats

from dpswd.diagnostics.accountant import WassersteinAccountant, step_loss
from dpswd.diagnostics.wasserstein import (
    advanced_composition_delta,
    attack_probability,
    dp_from_wdp,
    empirical_distance,
    gaussian_distance,
    gaussian_wdp,
    group_privacy,
    kantorovich_dual,
    laplace_wdp,
    log_absolute_moment,
    parallel_composition,
    rdp_from_wdp,
    sequential_composition,
    wdp_from_dp,
    wdp_from_rdp,
)
from dpswd.errors import InputError

RATIOS = [
    1e-6,
    1e-3,
    1e-1,
    0.5,
    1.0,
    3.0,
    10.0,
    39.9,
    40.1,
    100.0,
    1e3,
]  # |mean| / std, on both sides of the switch


@pytest.mark.parametrize("ratio", RATIOS)
def test_lemma_1_equals_numerical_integration(ratio: float) -> None:
    for order in range(1, 51):
        check_against_integration(order, ratio)


def check_against_integration(order: int, ratio: float) -> None:
    # E|Z|^p relative to its own size: the integrand is taken at its peak, so that nothing overflows
    peak = (ratio + math.sqrt(ratio**2 + 4 * order)) / 2

    def log_density(z: float) -> float:
        return order * math.log(abs(z)) - (z - ratio) ** 2 / 2 if z else -math.inf

    top = log_density(peak)
    right, _ = integrate.quad(
        lambda z: math.exp(log_density(z) - top),
        0,
        peak + 40,
        points=[max(peak - 6, 0.0), peak, peak + 6],
        epsabs=0,
        limit=400,
    )
    left, _ = integrate.quad(
        lambda z: math.exp(log_density(z) - top), -40 - math.sqrt(order), 0, epsabs=1e-14, limit=400
    )
    expected = top + math.log((left + right) / math.sqrt(2 * math.pi))
    assert float(log_absolute_moment(order, ratio, 1.0)) == pytest.approx(expected, abs=1e-8)


def test_lemma_1_equals_the_published_kummer_form() -> None:
    with mpmath.workdps(40):
        for order in (*range(1, 51), 333.5, 1000):
            for ratio in RATIOS:
                p, m, s = mpmath.mpf(order), mpmath.mpf(ratio) * mpmath.mpf("0.3"), mpmath.mpf("0.3")
                kummer = mpmath.hyp1f1(-p / 2, mpmath.mpf(1) / 2, -(m**2) / (2 * s**2))
                moment = (2 * s**2) ** (p / 2) * mpmath.gamma((p + 1) / 2) / mpmath.sqrt(mpmath.pi) * kummer
                got = float(log_absolute_moment(order, float(m), 0.3))
                assert got == pytest.approx(float(mpmath.log(moment)), abs=1e-10)


def test_lemma_1_without_noise_is_a_power() -> None:
    np.testing.assert_allclose(log_absolute_moment(3, [-2.0, 0.5], 0.0), [3 * math.log(2), -3 * math.log(2)])
    assert log_absolute_moment(3, 0.0, 0.0) == -math.inf


# by hand: one half times (1/sigma)^(1/mu), then a sensitivity of 4
@pytest.mark.parametrize(
    ("order", "sigma", "sensitivity", "expected"),
    [(1, 1, 1, 0.5), (1, 2, 1, 0.25), (1, 5, 1, 0.1), (2, 4, 1, 0.25), (3, 8, 1, 0.25), (2, 1, 4, 1.0)],
)
def test_proposition_8_by_hand(order: float, sigma: float, sensitivity: float, expected: float) -> None:
    assert gaussian_wdp(order, sigma, sensitivity) == pytest.approx(expected, rel=1e-14)


# the bracket 1/lambda + exp(-1/lambda) - 1 is 1/e at lambda = 1, 1 + e^-2 at 1/2 and e^-1/2 - 1/2 at 2
@pytest.mark.parametrize(
    ("order", "scale", "sensitivity", "expected"),
    [
        (1, 1, 1, math.sqrt(2 / math.e) / 2),
        (2, 1, 1, (2 / math.e) ** 0.25 / 2),
        (1, 1, 2, math.sqrt(2 / math.e)),
        (1, 0.5, 1, math.sqrt(2 + 2 * math.exp(-2)) / 2),
        (1, 2, 1, math.sqrt(2 * math.exp(-0.5) - 1) / 2),
        (4, 1, 1, (2 / math.e) ** 0.125 / 2),
    ],
)
def test_proposition_7_by_hand(order: float, scale: float, sensitivity: float, expected: float) -> None:
    assert laplace_wdp(order, scale, sensitivity) == pytest.approx(expected, rel=1e-13)


# 2 epsilon (e^epsilon - 1) is 2 ln 2 at ln 2, 2 (e - 1) at 1 and 4 ln 3 at ln 3
@pytest.mark.parametrize(
    ("epsilon", "order", "sensitivity", "expected"),
    [
        (0, 1, 1, 0.0),
        (math.log(2), 1, 1, math.sqrt(2 * math.log(2)) / 2),
        (math.log(2), 2, 1, (2 * math.log(2)) ** 0.25 / 2),
        (1, 1, 1, math.sqrt(2 * (math.e - 1)) / 2),
        (1, 1, 2, math.sqrt(2 * (math.e - 1))),
        (math.log(3), 1, 1, math.sqrt(math.log(3))),
    ],
)
def test_proposition_9_by_hand(epsilon: float, order: float, sensitivity: float, expected: float) -> None:
    assert wdp_from_dp(epsilon, order, sensitivity) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize(
    ("rdp", "order", "sensitivity", "expected"),
    [(0.5, 1, 1, 0.5), (2, 1, 1, 1.0), (8, 2, 1, 1.0), (8, 1, 1, 2.0), (0.125, 1, 3, 0.75), (0, 2, 1, 0.0)],
)
def test_proposition_10_by_hand(rdp: float, order: float, sensitivity: float, expected: float) -> None:
    assert wdp_from_rdp(rdp, order, sensitivity) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(
    ("wdp", "order", "lipschitz", "alpha", "expected"),
    [
        (4, 1, 1, math.inf, 2.0),
        (4, 1, 1, 2, 4.0),
        (8, 2, 0.5, math.inf, 2.0),
        (8, 2, 0.5, 3, 3.0),
        (1, 7, 3, 4, 4.0),
        (0, 1, 1, 2, 0.0),
    ],
)
def test_proposition_11_by_hand(wdp: float, order: float, lipschitz: float, alpha: float, expected: float) -> None:
    assert rdp_from_wdp(wdp, order, lipschitz, alpha) == pytest.approx(expected, rel=1e-14)
    assert dp_from_wdp(wdp, order, lipschitz) <= expected


def test_propositions_7_8_and_10_agree_at_sensitivity_1() -> None:
    assert gaussian_wdp(3, 2.5) == pytest.approx(wdp_from_rdp(1 / (2 * 2.5**2), 3), rel=1e-14)
    kl = 1 / 1.7 + math.exp(-1 / 1.7) - 1
    assert laplace_wdp(3, 1.7) == pytest.approx(wdp_from_rdp(kl, 3), rel=1e-14)
    density, shifted = stats.laplace(0, 1.7), stats.laplace(1, 1.7)
    integral, _ = integrate.quad(
        lambda z: density.pdf(z) * (density.logpdf(z) - shifted.logpdf(z)), -60, 60, points=[0, 1]
    )
    assert kl == pytest.approx(integral, rel=1e-8)


def test_figure_1_order_of_curves() -> None:
    for order in (1, 2, 5, 10):  # more noise, smaller value; at sigma = 1 the curve is flat
        assert gaussian_wdp(order, 1) > gaussian_wdp(order, 2) > gaussian_wdp(order, 3) > gaussian_wdp(order, 5)
        assert laplace_wdp(order, 1) > laplace_wdp(order, 2) > laplace_wdp(order, 3) > laplace_wdp(order, 5)
        assert gaussian_wdp(order, 1) == 0.5


def test_proposition_4_monotone_in_the_order() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=31), rng.normal(1, 2, size=17)
    distances = [empirical_distance(x, y, order) for order in (1, 1.5, 2, 4, 9, 40)]
    assert distances == sorted(distances)
    published = [gaussian_wdp(order, 2.0) for order in (1, 2, 4, 8)]
    assert published == sorted(published)
    # below sigma = 1 Proposition 8 falls with the order, against Proposition 4: it is no distance at all
    assert gaussian_wdp(1, 0.25) > gaussian_wdp(2, 0.25)


@pytest.mark.parametrize("order", [1.0, 2.0, 3.5])
def test_the_kantorovich_form_is_the_distance(order: float) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(13, 1)), rng.normal(0.5, 2, size=(8, 1))
    dual = kantorovich_dual(x, y, order)
    assert dual.value == pytest.approx(empirical_distance(x, y, order), rel=1e-9)
    assert (dual.phi[:, None] + dual.psi <= np.abs(x - y.T) ** order + 1e-12).all()
    wide = kantorovich_dual(rng.normal(size=(9, 3)), rng.normal(size=(5, 3)), order)
    assert wide.phi.shape == (9,)
    assert wide.psi.shape == (5,)


def test_empirical_distance_against_scipy_and_by_hand() -> None:
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=23), rng.exponential(size=14)
    assert empirical_distance(x, y, 1) == pytest.approx(stats.wasserstein_distance(x, y), rel=1e-12)
    assert empirical_distance(x, x + 3, 5) == pytest.approx(3, rel=1e-12)
    assert empirical_distance([0, 4], [0], 2) == pytest.approx(math.sqrt(8), rel=1e-12)
    assert empirical_distance([1.0], [1.0], 2) == 0


def test_gaussian_distance_is_the_bures_distance_at_order_2() -> None:
    assert gaussian_distance(3, 1, 5, 2) == pytest.approx(5, rel=1e-12)
    grid = stats.norm.ppf((np.arange(200_000) + 0.5) / 200_000)
    assert empirical_distance(1.5 + 2 * grid, 0.7 * grid, 3) == pytest.approx(
        gaussian_distance(1.5, 2, 0.7, 3), rel=1e-3
    )


def test_composition() -> None:
    assert parallel_composition([0.1, 0.4, 0.2]) == 0.4
    assert sequential_composition([0.1, 0.4, 0.2]) == pytest.approx(0.7)
    assert group_privacy(0.3, 4) == pytest.approx(1.2)
    assert advanced_composition_delta([1, 2], 5, beta=2) == pytest.approx(math.exp(-4))
    assert advanced_composition_delta([1, 2], 2, beta=2) == 1
    assert attack_probability(0) == 0.5
    assert attack_probability(0.87) == pytest.approx(0.7047456979980911)  # the authors' notebook


@pytest.mark.parametrize("order", [1, 2.5, 16, 50])
def test_the_accountant_equals_corollary_1_in_mpmath(order: float) -> None:
    sigma, q, beta, delta = 0.2, 0.017, 3.0, 1e-5
    steps = [[0.0, 0.4, 2.0], [0.7], [30.0, 1e-3, 5.0, 5.0]]
    accountant = WassersteinAccountant(order=order, beta=beta, sigma=sigma, sampling_rate=q)
    for distances in steps:
        accountant.step(distances)
    with mpmath.workdps(40):
        p, variance, total = (
            mpmath.mpf(order),
            (2 - 2 * mpmath.mpf(q) + 2 * mpmath.mpf(q) ** 2) * mpmath.mpf(sigma) ** 2,
            mpmath.mpf(0),
        )
        for distances in steps:
            moments = [
                (2 * variance) ** (p / 2)
                * mpmath.gamma((p + 1) / 2)
                / mpmath.sqrt(mpmath.pi)
                * mpmath.hyp1f1(-p / 2, mpmath.mpf(1) / 2, -((mpmath.mpf(q) * mpmath.mpf(d)) ** 2) / (2 * variance))
                for d in distances
            ]
            total += mpmath.fsum(moments) ** (1 / p)
        epsilon = total - mpmath.log(mpmath.mpf(delta)) / beta
    assert accountant.get_epsilon(delta) == pytest.approx(float(epsilon), rel=1e-10)
    assert accountant.get_delta(float(epsilon)) == pytest.approx(delta, rel=1e-8)
    assert accountant.get_delta(0.0) == 1


def test_the_accountant_survives_save_and_load() -> None:
    accountant = WassersteinAccountant(order=4, beta=2.0, sigma=0.5, sampling_rate=0.1)
    accountant.step([1.0, 2.0], n_steps=7)
    other = WassersteinAccountant(order=1, beta=1.0, sigma=1.0, sampling_rate=1.0)
    other.load_state_dict(accountant.state_dict())
    accountant.step([3.0])
    other.step([3.0])
    assert other.state_dict() == accountant.state_dict()
    assert other.n_steps == 8
    with pytest.raises(InputError, match="total_loss"):
        other.load_state_dict({"order": 1, "beta": 1.0, "sigma": 1.0, "sampling_rate": 0.5, "n_steps": 1})
    assert other.state_dict() == accountant.state_dict()
    entry = accountant.to_dict(1e-5)
    assert entry["is_guarantee"] is False
    assert not [key for key in entry if "epsilon" in key]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: gaussian_wdp(0.5, 1), "order >= 1"),
        (lambda: empirical_distance([1], [], 1), "at least one each"),
        (lambda: gaussian_wdp(1, 0), "sigma"),
        (lambda: step_loss(0.9, [1.0], 1.0, 0.1), "order >= 1"),
        (lambda: step_loss(2, [], 1.0, 0.1), "empty list"),
        (lambda: step_loss(2, [-1.0], 1.0, 0.1), "negative"),
        (lambda: step_loss(2, [1.0], 1.0, 1.1), r"sampling_rate in \[0, 1\]"),
        (lambda: step_loss(2, [1.0], 1.0, -0.1), r"sampling_rate in \[0, 1\]"),
        (lambda: step_loss(2, [1.0], 1.0, math.nan), r"sampling_rate in \[0, 1\]"),
        (lambda: WassersteinAccountant(order=2, beta=0, sigma=1.0, sampling_rate=0.1), "beta"),
        (lambda: WassersteinAccountant(order=2, beta=-1, sigma=1.0, sampling_rate=0.1), "beta"),
        (lambda: sequential_composition([]), "at least one"),
        (lambda: parallel_composition([-1.0]), "at least 0"),
        (lambda: rdp_from_wdp(1, 1, 1, 1), "alpha > 1"),
        (lambda: group_privacy(1.0, 0), "group_size"),
        (lambda: log_absolute_moment(1001, 1.0, 1.0), "order <= 1000"),
        (lambda: step_loss(2, [1e308], 1.0, 1.0), "overflow"),
        (lambda: log_absolute_moment(2, math.nan, 1.0), "finite means"),
    ],
)
def test_bad_input_is_one_sentence(call, match: str) -> None:
    with pytest.raises(InputError, match=match) as caught:
        call()
    assert "\n" not in str(caught.value)
