"""Ying2024: operators, Theorems 3 to 6, the bound on finite changes, and the estimators."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpswd.diagnostics.tangent import gibbs_distribution, removal_changes, tangent_norms
from experiments.notions.gibbs import (
    LOSS_BOUNDS,
    estimate_sobolev_bound,
    estimate_tv_bound,
    exponential_mechanism_epsilon,
    margin_loss,
)


def graph_gradient(data, edges, lengths):
    """G with |phi|_H1(p) = |phi^T G|: an edge (i, j) of length l adds sqrt((p_i + p_j) / 2)
    (phi_i - phi_j) / l.
    """
    i, j = np.transpose(edges)
    p = np.asarray(data)
    return (
        (np.eye(len(p))[i] - np.eye(len(p))[j]).T * np.sqrt((p[i] + p[j]) / 2) / np.asarray(lengths)
    )


def tangent_operator(risk, beta, q, *, log=False):
    """D A_p, or D(log A)_p, as a matrix."""
    derivative = -beta * (risk - q @ risk)
    return derivative if log else q[:, None] * derivative


def h_minus1_norm(perturbation, gradient):
    """The least norm of a flow along the edges that causes a zero-sum perturbation."""
    flow = np.linalg.pinv(gradient) @ perturbation
    caused = np.abs(gradient @ flow - perturbation).max() <= 1e-8 * np.abs(perturbation).max()
    return float(np.linalg.norm(flow)) if caused else np.inf


def instance(seed):
    """A random risk (m, n), beta, data weights and the gradient of a path with a chord."""
    rng = np.random.default_rng(seed)
    m, n = int(rng.integers(2, 8)), int(rng.integers(2, 11))
    risk = rng.random((m, n)) ** rng.uniform(0.2, 5)
    data = rng.dirichlet(np.ones(n))
    edges = [(i, i + 1) for i in range(n - 1)] + [(0, n - 1)] * (n > 2)
    gradient = graph_gradient(data, edges, rng.uniform(0.2, 2, len(edges)))
    return risk, float(rng.uniform(0.1, 20)), data, gradient


@pytest.mark.parametrize("seed", range(5))
def test_operators(seed):
    risk, beta, data, _ = instance(seed)
    direction = (
        np.random.default_rng(seed + 1000).normal(size=len(data)) * data
    )  # stays inside the simplex
    direction -= data * direction.sum()
    q = gibbs_distribution(risk, beta, data=data)
    up, down = (gibbs_distribution(risk, beta, data=data + s * 1e-5 * direction) for s in (1, -1))
    np.testing.assert_allclose(
        tangent_operator(risk, beta, q) @ direction, (up - down) / 2e-5, atol=1e-6
    )
    slope = (np.log(up) - np.log(down)) / 2e-5
    log = tangent_operator(risk, beta, q, log=True)
    np.testing.assert_allclose(log @ direction, slope, atol=1e-6)
    printed = -beta * (np.diag(q) - np.outer(q, q)) @ risk
    np.testing.assert_allclose(tangent_operator(risk, beta, q), printed, atol=1e-12)
    np.testing.assert_allclose(
        log, -beta * (np.eye(len(q)) - np.outer(np.ones(len(q)), q)) @ risk, atol=1e-12
    )


def dense_norms(risk, beta, q, gradient):
    """Norms of the printed matrices, with TV as half of the L1 norm,
    from extreme points and signs.
    """
    one, log = tangent_operator(risk, beta, q), tangent_operator(risk, beta, q, log=True)
    n = risk.shape[1]
    pairs = (np.eye(n)[:, None] - np.eye(n)).reshape(-1, n).T
    signs = np.array(list(itertools.product((1, -1), repeat=len(q))))
    return {
        3: np.abs(one @ pairs).sum(axis=0).max() / 2,
        4: np.abs(log @ pairs).max(),
        5: np.linalg.norm(signs @ one @ gradient, axis=1).max() / 2,
        6: np.linalg.norm(log @ gradient, axis=1).max(),
    }


def test_theorems_3_to_6_on_1000_instances():
    tightness = {theorem: [] for theorem in (3, 4, 5, 6)}
    of_printed = {theorem: [] for theorem in (3, 4, 6)}  # exact norm over the printed bound
    for seed in range(1000):
        risk, beta, data, gradient = instance(seed)
        q = gibbs_distribution(risk, beta, data=data)
        norms = tangent_norms(risk, beta, q=q, gradients=risk @ gradient)
        dense = dense_norms(risk, beta, q, gradient)
        direction = np.random.default_rng(seed).normal(size=len(data))
        direction -= direction.mean()
        move = np.abs(tangent_operator(risk, beta, q) @ direction).sum() / 2
        log_move = np.abs(tangent_operator(risk, beta, q, log=True) @ direction).max()
        tv, sobolev = np.abs(direction).sum() / 2, h_minus1_norm(direction, gradient)
        seen = {3: move / tv, 4: log_move / tv, 5: move / sobolev, 6: log_move / sobolev}
        for theorem, exact in norms.exact.items():
            assert exact == pytest.approx(dense[theorem], rel=1e-9)
            assert seen[theorem] <= exact * (1 + 1e-7)
            assert exact <= norms.centred[theorem] * (1 + 1e-9)
            if theorem != 5:
                assert exact <= norms.printed[theorem] * (1 + 1e-9)
                of_printed[theorem].append(exact / norms.printed[theorem])
            tightness[theorem].append(exact / norms.centred[theorem])
        assert norms.centred[5] <= beta * np.linalg.norm(risk @ gradient, axis=1).max()  # Remark 5a
    assert all(np.median(values) > 0.5 and max(values) > 0.99 for values in tightness.values())
    # The least ratio, the median and the largest one, as docs/notions.md has them.
    expected = {3: (5e-5, 0.20, 0.49), 4: (0.03, 0.25, 0.46), 6: (0.07, 0.49, 0.96)}
    for theorem, ratios in of_printed.items():
        assert np.quantile(ratios, [0, 0.5, 1]) == pytest.approx(expected[theorem], rel=0.1)


def test_theorem_5_false_as_printed():
    w, x = np.array([1.0, -1.0]), np.array([-0.5, 0.5])
    risk = 1 + np.outer(w, x)
    gradient = graph_gradient([0.5, 0.5], [(0, 1)], [1.0])
    norms = tangent_norms(risk, 1.0, gradients=risk @ gradient)
    assert norms.printed[5] < 1e-15  # E_q r is constant: R = 0
    assert norms.exact[5] == pytest.approx(0.354, abs=5e-4)  # 0.707 with TV as the whole L1 norm
    assert norms.exact[5] <= norms.centred[5]
    assert norms.exact[6] <= norms.printed[6]


def test_sobolev_norms_are_dual():
    _, _, data, gradient = instance(5)
    rng = np.random.default_rng(0)
    v = rng.normal(size=len(data))
    v -= v.mean()
    functions = rng.normal(size=(500, len(data)))
    dual = h_minus1_norm(v, gradient)
    assert (np.abs(functions @ v) / np.linalg.norm(functions @ gradient, axis=1)).max() <= dual * (
        1 + 1e-9
    )
    best = np.linalg.pinv(gradient @ gradient.T) @ v
    assert abs(best @ v) / np.linalg.norm(best @ gradient) == pytest.approx(dual, rel=1e-8)
    # by hand: moving mass 0.1 along one edge of length 3 and weight 1/2
    assert h_minus1_norm([0.1, -0.1], graph_gradient([0.5, 0.5], [(0, 1)], [3.0])) == pytest.approx(
        0.3 / 0.5**0.5
    )
    apart = graph_gradient([0.25] * 4, [(0, 1), (2, 3)], [1.0, 1.0])
    assert h_minus1_norm([1, 0, -1, 0], apart) == np.inf


def finite_change(seed):
    """Ratios of the finite change to norm times step:
    log norm in TV and H^-1, Definition 1 in TV.
    """
    risk, beta, data, gradient = instance(seed)
    rng = np.random.default_rng(seed + 10_000)
    other = rng.dirichlet(np.full(len(data), rng.choice([0.1, 1.0])))
    q = gibbs_distribution(risk, beta, data=data)
    moved = gibbs_distribution(risk, beta, data=other)
    norms = tangent_norms(risk, beta, q=q, gradients=risk @ gradient)
    log_change = np.abs(np.log(moved / q)).max()
    tv = np.abs(other - data).sum() / 2
    steps = np.array([norms.exact[4] * tv, norms.exact[6] * h_minus1_norm(other - data, gradient)])
    return (
        log_change / steps,
        np.abs(moved - q).sum() / 2 / (norms.exact[3] * tv),
        log_change,
        steps,
    )


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**31))
def test_definition_2_bounds_finite_changes(seed):
    ratios, _, log_change, steps = finite_change(seed)
    assert (ratios <= 2 + 1e-9).all()
    assert log_change <= (steps + np.minimum(steps, steps**2 / 2)).min() * (
        1 + 1e-9
    )  # the sharper form


def test_definition_1_does_not_bound_finite_changes():
    ratios, differentiability = zip(*(finite_change(seed)[:2] for seed in range(1000)), strict=True)
    assert 1.2 < np.max(ratios) <= 2  # control: a factor of 1 is not enough
    assert max(differentiability) > 10  # Definition 1 has no such factor


def test_definition_2_sees_the_removal_that_definition_1_misses():
    risk = np.zeros((2, 10))
    risk[1, 0], risk[0, 1] = 1.0, 0.05
    beta = 1e4
    norms, change = tangent_norms(risk, beta), removal_changes(risk, beta)
    assert norms.exact[3] < 1e-30
    assert change.total_variation[0] > 1 - 1e-9
    assert change.log_ratio.max() <= 2 * norms.exact[4] * change.step


@pytest.mark.parametrize("beta", [0.5, 5.0, 50.0])
def test_removal_changes(beta):
    risk = np.random.default_rng(4).random((30, 40))
    change, norms = removal_changes(risk, beta), tangent_norms(risk, beta)
    q, left = gibbs_distribution(risk, beta), gibbs_distribution(np.delete(risk, 7, axis=1), beta)
    assert change.total_variation[7] == pytest.approx(np.abs(q - left).sum() / 2, rel=1e-9)
    assert change.log_ratio[7] == pytest.approx(np.abs(np.log(q / left)).max(), rel=1e-9)
    assert change.log_ratio.max() <= 2 * norms.exact[4] * change.step
    assert change.total_variation.max() <= np.tanh(norms.exact[4] * change.step)


def test_report_entry_is_definition_2():
    risk, beta, _, _ = instance(17)
    norms = tangent_norms(risk, beta, gradients=risk)
    entry = norms.to_dict()
    assert entry["tangent_dp"]["total_variation"]["exact"] == norms.exact[4]
    assert entry["tangent_dp"]["sobolev"]["printed_bound"] == norms.printed[6]
    assert entry["differentiability"]["total_variation"]["exact"] == norms.exact[3]
    assert "sobolev" not in tangent_norms(risk, beta).to_dict()["tangent_dp"]


def test_remark_3_scale_and_condition():
    """At a fixed q the norms grow with beta R; a risk that is large where q is small leaves R of
    Theorem 3 small.
    """
    risk, beta, data, _ = instance(3)
    q = gibbs_distribution(risk, beta, data=data)
    one, three = tangent_norms(risk, beta, q=q), tangent_norms(risk, 3 * beta, q=q)
    larger = tangent_norms(3 * risk, beta, q=q)
    for theorem in (3, 4):
        assert three.exact[theorem] == pytest.approx(3 * one.exact[theorem])
        assert larger.printed[theorem] == pytest.approx(3 * one.printed[theorem])
    rare = np.array([[0.0, 0.0], [1.0, 1.0]])
    norms = tangent_norms(rare, 10.0)
    assert norms.printed[3] < 1e-3 * 2 * 10.0 * rare.max()


def test_estimators_as_printed():
    risk, beta, data, gradient = instance(3)
    q = gibbs_distribution(risk, beta, data=data)
    norms = tangent_norms(risk, beta, q=q, gradients=risk @ gradient)
    drawn = np.random.default_rng(0).choice(len(q), 200_000, p=q)
    assert estimate_tv_bound(risk[drawn], beta).printed == pytest.approx(norms.printed[3], rel=0.02)
    assert estimate_sobolev_bound(risk[drawn] @ gradient, beta).printed == pytest.approx(
        norms.printed[5], rel=0.02
    )


def test_exponential_mechanism_epsilon_bounds_every_replacement():
    rng = np.random.default_rng(2)
    worst = 0.0
    for _ in range(300):
        risk = (rng.random((6, 10)) < 0.5).astype(float)
        other = risk.copy()
        other[:, 3] = 1 - other[:, 3]
        worst = max(
            worst,
            np.abs(np.log(gibbs_distribution(risk, 5.0) / gibbs_distribution(other, 5.0))).max(),
        )
    bound = exponential_mechanism_epsilon(5.0, "zero_one", 10)
    assert 0.5 * bound < worst <= bound * (1 + 1e-12)


def test_margin_losses_are_bounded():
    margins = torch.linspace(-1e4, 1e4, 20_001, dtype=torch.float64)
    for loss, bound in LOSS_BOUNDS.items():
        values = margin_loss(loss, margins)
        assert 0 <= values.min()
        assert bound * 0.99 < values.max() <= bound
    zero = torch.zeros(1, dtype=torch.float64)
    assert [float(margin_loss(loss, zero)) for loss in ("savage", "tangent", "zero_one")] == [
        0.25,
        1.0,
        1.0,
    ]
