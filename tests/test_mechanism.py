"""Mechanisms in JSON, calibrated and refused;
the law of S against mpmath, exact laws and simulation.
"""

import json
import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from dpswd import DPSlicedWassersteinLoss, PrivacyAccountant
from dpswd.errors import InputError
from dpswd.mechanism import GaussianMechanism, ProjectionMechanism, mechanism_from_dict
from dpswd.sensitivity import ConstantLaw, ProjectionLaw, bernstein_bound, clt_bound, log_kummer

GOOD = {"dim": 5, "n_projections": 40, "sigma": 1.0, "batch_size": 10}


def quantiles(d, k, m, b, **changes):
    values = {"sigma": 1, "batch_size": m * b, "statistic": "quantiles", "n_quantiles": m} | changes
    return ProjectionMechanism(d, k, **values)


def test_bound_selects_the_law():
    exact = ProjectionMechanism(dim=50, n_projections=100, sigma=1, batch_size=10)
    assert exact.law.mean == 2
    assert not exact.spends_tail
    with pytest.raises(InputError, match="failure_prob"):
        _ = exact.replace(bound="bernstein").law
    bernstein = exact.replace(bound="bernstein", failure_prob=1e-6)
    assert isinstance(bernstein.law, ConstantLaw)
    assert bernstein.law.mean > 2
    assert bernstein.spends_tail
    assert (
        bernstein.replace(n_classes=3).law.mean > bernstein.law.mean
    )  # the union bound over two blocks
    whole = exact.replace(kind="orthogonal", bound="bernstein")
    assert not whole.spends_tail
    assert whole.law.is_constant


@pytest.mark.parametrize("cast", [int, float, np.int64, np.float32, np.float64])
@pytest.mark.parametrize(
    "changes",
    [
        {"row_norm": 1 / 3, "noise_seed": 7},
        {"statistic": "quantiles", "n_quantiles": 5, "n_classes": 2, "kind": "orthogonal"},
        {"bound": "bernstein", "failure_prob": 1e-7},
    ],
)
def test_mechanism_survives_json(changes, cast):
    """NumPy scalars are accepted and stored as Python numbers."""
    made = ProjectionMechanism(**GOOD | changes | {"sigma": cast(3), "dim": np.int64(5)})
    again = mechanism_from_dict(json.loads(json.dumps(made.to_dict(), allow_nan=False)))
    assert again == made
    assert hash(again) == hash(made)
    assert made.n_values * made.block_size == made.batch_size
    query = GaussianMechanism(sensitivity=cast(2), sigma=cast(3), name="x", batch_size=4)
    assert mechanism_from_dict(json.loads(json.dumps(query.to_dict()))) == query


@pytest.mark.parametrize(
    "changes",
    [
        {"mechanism": "laplace"},
        {"mechanism": None},
        {"x": 1},
        {"dim": None},
        {"sigma": math.nan},
        {"kind": ["iid"]},
    ],
)
def test_damaged_dict_is_refused(changes):
    values = ProjectionMechanism(**GOOD).to_dict()
    for damaged in (values | changes, {}, [values], None):
        with pytest.raises(InputError):
            mechanism_from_dict(damaged)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"dim": 1}, "dim"),
        ({"sigma": math.nan}, "sigma"),
        ({"sigma": 1e60}, "sigma"),
        ({"batch_size": 0}, "batch_size"),
        ({"row_norm": -1}, "row_norm"),
        ({"statistic": "means"}, "statistic"),
        ({"bound": "markov"}, "bound"),
        ({"noise_seed": True}, "noise_seed"),
        ({"statistic": "quantiles"}, "n_quantiles"),
        ({"statistic": "quantiles", "n_quantiles": 3}, "use batch_size=9"),
        ({"statistic": "quantiles", "n_quantiles": 12}, "use n_quantiles <= 10"),
        ({"kind": "orthogonal", "n_projections": 7, "bound": "bernstein"}, "bound"),
    ],
)
def test_invalid_value_is_named(changes, name):
    with pytest.raises(InputError, match=name):
        ProjectionMechanism(**{**GOOD, **changes})


def test_calibrate_returns_a_copy_that_keeps_the_budget():
    uncalibrated = quantiles(4, 8, 5, 2, sigma=None, kind="orthogonal", noise_seed=1)
    made = uncalibrated.calibrate(sample_size=10, n_releases=4, target_mu=1.0)
    assert uncalibrated.sigma is None
    assert made == uncalibrated.replace(sigma=made.sigma)
    # T Gaussian releases with constant S = k / d: mu = sensitivity sqrt(S T) / sigma
    assert 0.995 <= made.unit_sensitivity * math.sqrt(2 * 4) / made.sigma <= 1 + 1e-15
    plan = {"sample_size": 50, "n_releases": 3}
    spent = PrivacyAccountant().step(
        uncalibrated.calibrate(**plan, target_epsilon=2.0, target_delta=1e-5), **plan
    )
    assert 1.99 <= spent.get_epsilon(1e-5) <= 2.0


def test_mechanism_without_sigma_is_refused():
    made, rows = ProjectionMechanism(**{**GOOD, "sigma": None}), torch.zeros(10, 5)
    with pytest.raises(InputError, match="calibrate"):
        PrivacyAccountant().step(made, sample_size=10, n_releases=1)
    for use in (
        DPSlicedWassersteinLoss(made).release,
        lambda rows: DPSlicedWassersteinLoss(made)(rows, rows),
    ):
        with pytest.raises(InputError, match="calibrate"):
            use(rows)


FALSE_ALARM = 1e-6  # chance that a correct law fails a statistical test, over the choice of seed


@pytest.mark.parametrize(
    ("r", "dim"), [(1, 2), (1, 3), (1, 50), (49, 50), (7, 20), (1, 784), (1, 4096), (5000, 12288)]
)
@pytest.mark.parametrize("t", [0.0, 1e-8, 4.9, 5.1, 77.0, 3e6])
def test_log_kummer_agrees_with_mpmath(r, dim, t):
    with mpmath.workdps(40):
        expected = float(
            mpmath.log(mpmath.hyp1f1(mpmath.mpf(r) / 2, mpmath.mpf(dim) / 2, t, maxterms=10**6))
        )
    assert float(log_kummer(r, dim, t)) == pytest.approx(expected, rel=1e-10, abs=0)


def simulate(dim, k, kind, draws, seed):
    """||z^T U||^2 for z = e_1: only the first row of U matters."""
    rng = np.random.default_rng(seed)
    if kind == "iid":
        u = rng.standard_normal((draws, k, dim))
        return (u[..., 0] ** 2 / (u**2).sum(-1)).sum(-1)
    whole, rest = divmod(k, dim)
    total = np.full(draws, float(whole))
    if rest:
        basis = np.linalg.qr(rng.standard_normal((draws, dim, dim)))[0]
        total += (basis[:, 0, :rest] ** 2).sum(-1)
    return total


@pytest.mark.parametrize(
    ("dim", "k", "kind"), [(6, 11, "iid"), (24, 5, "iid"), (3, 40, "iid"), (6, 9, "orthogonal")]
)
def test_survival_matches_simulation(dim, k, kind):
    draws = 20_000
    s = simulate(dim, k, kind, draws, seed=dim * k)
    law = ProjectionLaw(dim, k, kind)
    band = math.sqrt(
        math.log(2 / FALSE_ALARM) / (2 * draws)
    )  # Dvoretzky-Kiefer-Wolfowitz, uniform in s
    points = np.quantile(s, np.linspace(0.01, 0.99, 50))
    empirical = (s[:, None] > points).mean(0)
    assert (
        np.abs(law.survival(points) - empirical).max() < band + 0.01
    )  # the law rounds up by up to a grid step
    wrong = ProjectionLaw(dim, k + max(1, k // 8), kind)  # control: another k is rejected
    assert np.abs(wrong.survival(points) - empirical).max() > band + 0.01


def test_one_direction_and_orthogonal_ones_have_closed_forms():
    points = np.array([0.01, 0.2, 0.5, 0.9])
    for dim in (2, 3, 50):
        expected = stats.beta.sf(points, 0.5, (dim - 1) / 2)
        np.testing.assert_allclose(ProjectionLaw(dim, 1).survival(points), expected, rtol=1e-12)
    assert ProjectionLaw(5, 15, "orthogonal").is_constant
    assert ProjectionLaw(5, 15, "orthogonal").mean == 3
    law = ProjectionLaw(7, 10, "orthogonal")
    points = np.array([1.1, 1.4, 1.9])
    np.testing.assert_allclose(
        law.survival(points), stats.beta.sf(points - 1, 1.5, 2.0), rtol=1e-12
    )
    t = np.array([0.1, 3.0, 40.0])
    grid = stats.beta.ppf((np.arange(200_000) + 0.5) / 200_000, 1.5, 2.0)
    expected = [np.log(np.exp(x * grid).mean()) + x for x in t]
    np.testing.assert_allclose(law.log_mgf(t), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("dim", "k", "kind", "classes"),
    [
        *[
            (784, 200, "iid", False),
            (50, 100, "iid", True),
            (2, 3, "iid", False),
            (3, 1, "iid", True),
        ],
        (64, 100, "orthogonal", True),
    ],
)
def test_atoms_dominate_and_have_the_law_at_each_of_them(dim, k, kind, classes):
    law = ProjectionLaw(dim, k, kind, labelled=classes)
    upper, weights = law.atoms()
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    assert (np.diff(upper) > 0).all()
    assert upper[-1] <= law.maximum
    points = np.linspace(0, upper[-1], 1000)[:-1]
    above = np.array([weights[upper > s].sum() for s in points])
    survival = law.survival(points)
    assert (above >= survival - 1e-12).all()
    at_atoms = [weights[upper > s].sum() for s in upper[:-1]]
    np.testing.assert_allclose(at_atoms, law.survival(upper[:-1]), rtol=1e-6, atol=1e-12)


def test_class_blocks_dominate_both_cases():
    rng = np.random.default_rng(3)
    dim, k, draws = 5, 4, 40_000
    rows = rng.standard_normal((2, draws, k, dim))
    first, second = (rows[..., 0] ** 2 / (rows**2).sum(-1)).sum(-1)
    points = np.linspace(0.05, 3.5, 40)
    survival = ProjectionLaw(dim, k, labelled=True).survival(points)
    slack = math.sqrt(math.log(2 / FALSE_ALARM) / (2 * draws))
    assert (survival >= (first[:, None] > points).mean(0) - slack).all()
    assert (survival >= (((first + second) / 4)[:, None] > points).mean(0) - slack).all()


def test_bernstein_is_a_bound_and_the_normal_approximation_is_not():
    for k, dim in [(200, 784), (1000, 784), (100, 50)]:
        law = ProjectionLaw(dim, k)
        for tail in (1e-3, 1e-6, 1e-9):
            assert law.survival(bernstein_bound(k, dim, tail)) <= tail
    # control: the CLT value is not a bound
    assert ProjectionLaw(784, 40).survival(clt_bound(40, 784, 1e-6)) > 1e-6
