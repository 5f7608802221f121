"""Mechanisms: sensitivities by random search, calibration, invalid values."""

import math

import numpy as np
import pytest
import torch

from dpswd import DPSlicedWassersteinLoss, PrivacyAccountant
from dpswd.errors import InputError
from dpswd.mechanism import GaussianMechanism, Mechanism, ProjectionMechanism
from dpswd.sensitivity import ConstantLaw


def block_means(x, u, m):
    """(n, d), (d, k) -> (m, k): columns of x @ u sorted, means of m equal blocks."""
    projected = np.sort(x @ u, axis=0)
    return projected.reshape(m, -1, u.shape[1]).mean(1)


def clipped(x, norm):
    return x * np.minimum(1, norm / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-300))


def test_block_mean_sensitivity_is_a_bound_and_is_reached():
    rng = np.random.default_rng(0)
    worst = 0.0
    for trial in range(3000):
        d, k, m, b = rng.integers(2, 6), rng.integers(1, 8), rng.integers(1, 5), rng.integers(1, 6)
        u = rng.standard_normal((d, k))
        u /= np.linalg.norm(u, axis=0)
        norm = rng.uniform(0.1, 3)
        x = clipped(rng.standard_normal((m * b, d)) * rng.uniform(0, 2 * norm), norm)
        direction = rng.standard_normal(d)
        if trial % 3 == 0:  # everything equal but one row, which jumps across: the extreme case
            x[:] = 0
        direction *= norm / np.linalg.norm(direction)
        x[0] = direction
        y = x.copy()
        y[0] = -direction
        mechanism = ProjectionMechanism(
            dim=int(d),
            n_projections=int(k),
            sigma=1,
            batch_size=int(m * b),
            statistic="quantiles",
            n_quantiles=int(m),
            row_norm=float(norm),
        )
        s = np.sum((direction / norm @ u) ** 2)
        moved = np.linalg.norm(block_means(x, u, m) - block_means(y, u, m))
        ratio = moved / (mechanism.unit_sensitivity * np.sqrt(s))
        assert ratio <= 1 + 1e-9
        worst = max(worst, ratio)
    assert worst > 1 - 1e-9  # reached where one block holds everything


def test_block_mean_sensitivity_for_any_two_rows():
    rng = np.random.default_rng(1)
    for _ in range(1000):
        u = rng.standard_normal((4, 6))
        u /= np.linalg.norm(u, axis=0)
        x = clipped(rng.standard_normal((12, 4)), 0.5)
        y = x.copy()
        y[5] = clipped(rng.standard_normal(4), 0.5)
        moved = np.linalg.norm(block_means(x, u, 3) - block_means(y, u, 3))
        assert moved <= np.linalg.norm((x[5] - y[5]) @ u) / 4 + 1e-12


@pytest.mark.parametrize("m", [1, 3])
def test_change_of_class_costs_no_more_than_a_change_of_row(m):
    rng = np.random.default_rng(2)
    d, b, classes = 4, 5, 3
    u = np.concatenate([np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in range(2)], axis=1)  # whole bases: S = 2
    mechanism = ProjectionMechanism(
        dim=d,
        n_projections=2 * d,
        sigma=1,
        batch_size=m * b,
        statistic="quantiles",
        n_quantiles=m,
        kind="orthogonal",
        n_classes=classes,
    )
    bound = mechanism.unit_sensitivity * np.sqrt(mechanism.law.mean)
    worst_same = worst_other = 0.0
    for _ in range(1500):
        x = clipped(rng.standard_normal((m * b, d)) * 2 * rng.integers(0, 2), 0.5)
        labels = rng.integers(0, classes, m * b)

        def released(rows, classes_of):
            blocks = [block_means(rows * (classes_of == c)[:, None], u, m) for c in range(classes)]
            return np.concatenate(blocks)

        y, other = x.copy(), labels.copy()
        x[0] = clipped(rng.standard_normal(d) * 9, 0.5)
        y[0] = -x[0]
        worst_same = max(worst_same, np.linalg.norm(released(x, labels) - released(y, labels)))
        other[0] = (labels[0] + 1) % classes
        y[0] = clipped(rng.standard_normal(d) * 9, 0.5)
        worst_other = max(worst_other, np.linalg.norm(released(x, labels) - released(y, other)))
    assert worst_same <= bound * (1 + 1e-9)
    assert worst_other <= bound / np.sqrt(2) * (1 + 1e-9)  # row_norm sqrt(2 k / d) / b
    if m == 1:  # reached where one block holds everything
        assert worst_same > bound * (1 - 1e-9)


def test_noise_on_more_blocks_is_not_averaged_away():
    mechanism = ProjectionMechanism(dim=64, n_projections=128, sigma=1, batch_size=1000)
    halves = mechanism.replace(statistic="quantiles", n_quantiles=500)
    assert mechanism.unit_sensitivity == 1
    assert halves.unit_sensitivity == 0.5
    assert halves.block_size == 2
    assert mechanism.n_values == 1000


def test_bounds_pick_the_law():
    exact = ProjectionMechanism(dim=50, n_projections=100, sigma=1, batch_size=10)
    assert exact.law.mean == 2
    assert not exact.spends_tail
    bernstein = exact.replace(bound="bernstein", failure_prob=1e-6)
    assert isinstance(bernstein.law, ConstantLaw)
    assert bernstein.law.mean > 2
    assert bernstein.spends_tail
    classes = bernstein.replace(n_classes=3)
    assert classes.law.mean > bernstein.law.mean  # the union bound over two blocks
    whole = exact.replace(kind="orthogonal", bound="bernstein")
    assert not whole.spends_tail
    assert whole.law.is_constant


def test_protocol_and_dicts():
    for mechanism in (
        ProjectionMechanism(dim=5, n_projections=2, sigma=1, batch_size=10),
        GaussianMechanism(sensitivity=2, sigma=3),
    ):
        assert isinstance(mechanism, Mechanism)
        assert mechanism.is_private
        assert mechanism.to_dict()["sigma"] == mechanism.sigma
    assert not ProjectionMechanism(dim=5, n_projections=2, sigma=1, batch_size=10, noise_seed=0).is_private
    assert not GaussianMechanism(sensitivity=2, sigma=3, noise_seed=0).is_private


GOOD = {"dim": 5, "n_projections": 40, "sigma": 1.0, "batch_size": 10}


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"dim": 1}, "dim"),
        ({"n_projections": 0}, "n_projections"),
        ({"n_projections": 2.5}, "n_projections"),
        ({"sigma": 0}, "sigma"),
        ({"sigma": float("nan")}, "sigma"),
        ({"sigma": "x"}, "sigma"),
        ({"batch_size": 0}, "batch_size"),
        ({"row_norm": -1}, "row_norm"),
        ({"statistic": "means"}, "statistic"),
        ({"bound": "markov"}, "bound"),
        ({"failure_prob": 1.0}, "failure_prob"),
        ({"n_classes": 1}, "n_classes"),
        ({"noise_seed": True}, "noise_seed"),
        ({"statistic": "quantiles"}, "n_quantiles"),
        ({"statistic": "quantiles", "n_quantiles": 3}, "use batch_size=9"),
        ({"statistic": "quantiles", "n_quantiles": 12}, "use n_quantiles <= 10"),
        ({"n_quantiles": 5}, "n_quantiles"),
        ({"kind": "orthogonal", "n_projections": 7, "bound": "bernstein"}, "bound"),
    ],
)
def test_invalid_value_is_named(changes, name):
    with pytest.raises(InputError, match=name):
        ProjectionMechanism(**{**GOOD, **changes})


def test_calibrate_returns_a_copy_that_keeps_the_budget():
    uncalibrated = ProjectionMechanism(
        4, 8, batch_size=10, statistic="quantiles", n_quantiles=5, kind="orthogonal", noise_seed=1
    )
    made = uncalibrated.calibrate(sample_size=10, n_releases=4, target_mu=1.0)
    assert uncalibrated.sigma is None
    assert made == uncalibrated.replace(sigma=made.sigma)
    # T Gaussian releases with constant S = k / d: mu = sensitivity sqrt(S T) / sigma
    assert 0.995 <= made.unit_sensitivity * math.sqrt(2 * 4) / made.sigma <= 1 + 1e-15
    spent = PrivacyAccountant().step(
        uncalibrated.calibrate(sample_size=50, n_releases=3, target_epsilon=2.0, target_delta=1e-5),
        sample_size=50,
        n_releases=3,
    )
    assert 1.99 <= spent.get_epsilon(1e-5) <= 2.0


@pytest.mark.parametrize(
    "use",
    [
        lambda made: made.noise_multiplier,
        lambda made: PrivacyAccountant().step(made, sample_size=10, n_releases=1),
        lambda made: DPSlicedWassersteinLoss(made).release(torch.zeros(10, 5)),
        lambda made: DPSlicedWassersteinLoss(made)(torch.zeros(10, 5), torch.zeros(3, 5)),
    ],
)
def test_mechanism_without_sigma_is_refused(use):
    with pytest.raises(InputError, match="calibrate"):
        use(ProjectionMechanism(**{**GOOD, "sigma": None}))


def test_law_needs_a_failure_prob():
    with pytest.raises(InputError, match="Expected failure_prob for bound='bernstein', got none"):
        _ = ProjectionMechanism(**GOOD, bound="bernstein").law
