"""Distances against POT, closed forms and numerical integration; sorts of many columns; random projections."""

from functools import partial

import numpy as np
import ot
import pytest
import torch
from scipy import stats

from dpswd import random_projections, sliced_wasserstein
from dpswd._kernels import block_means, padded_block_means
from dpswd._random import SeededRandom
from dpswd._sorting import sort_rows, sort_rows_with_order
from dpswd.errors import InputError


def cloud(n, d, seed=0):
    return torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def directions(d, k, seed=0):
    return random_projections(d, k, generator=SeededRandom(seed))


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize(("n", "m"), [(17, 17), (12, 31), (40, 7), (1, 5), (1, 1)])
def test_equals_pot(n, m, p):
    x, y, u = cloud(n, 5, 1), cloud(m, 5, 2) * 2 + 1, directions(5, 13)
    theirs = ot.sliced_wasserstein_distance(x.numpy(), y.numpy(), projections=u.numpy(), p=p) ** p
    # sums of at most 40 + 31 terms of size about 1: far below 1e-12 relative
    assert float(sliced_wasserstein(x, y, u, p)) == pytest.approx(theirs, rel=1e-12)


@pytest.mark.parametrize(("n", "m"), [(8, 8), (6, 9)])
@pytest.mark.parametrize("p", [2, 3])
def test_gradient(n, m, p):
    x, y, u = cloud(n, 3, 1).requires_grad_(), cloud(m, 3, 2).requires_grad_(), directions(3, 5)
    assert torch.autograd.gradcheck(
        lambda a, b: sliced_wasserstein(a, b, u, p), (x, y)
    )  # finite differences


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("max_bytes", [1, 40 * 2 * 50 * 7], ids=["a direction", "seven"])
def test_memory_limit_keeps_value_and_gradient(max_bytes, threads, monkeypatch):
    x, y, u = (
        cloud(50, 9, 1).float(),
        cloud(50, 9, 2).float().requires_grad_(),
        directions(9, 61).float(),
    )
    whole = sliced_wasserstein(x, y, u)
    (expected,) = torch.autograd.grad(whole, y)
    monkeypatch.setattr("dpswd._kernels._MAX_BYTES", max_bytes)
    torch.set_num_threads(threads)
    try:
        value = sliced_wasserstein(x, y, u)
        (gradient,) = torch.autograd.grad(value, y)
    finally:
        torch.set_num_threads(1)
    assert float(value.detach()) == pytest.approx(float(whole.detach()), rel=1e-6)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-8)


def integral_of_quantiles(values, blocks, steps):
    """Midpoint rule for the mean of the quantile function over each block of ``steps / blocks`` points.

    Every jump of the step function misplaces at most one point, or two by rounding.
    """
    t = (np.arange(steps) + 0.5) / steps
    quantiles = np.sort(values)[np.minimum((t * len(values)).astype(int), len(values) - 1)]
    return quantiles.reshape(blocks, -1).mean(axis=1)


@pytest.mark.parametrize(("n", "blocks"), [(12, 4), (10, 4), (5, 8), (1, 4), (64, 5)])
def test_block_means_integrate_the_quantile_function_and_its_gradient(n, blocks):
    values = cloud(n, 3).sort(dim=0).values
    steps = 60_000 * blocks
    ours = block_means(values, blocks)
    assert ours.shape == (blocks, 3)
    for column in range(3):
        span = float(values[-1, column] - values[0, column])
        exact = integral_of_quantiles(values[:, column].numpy(), blocks, steps)
        assert np.abs(ours[:, column].numpy() - exact).max() <= 2 * span * blocks / steps + 1e-12
    torch.testing.assert_close(ours.mean(0), values.mean(0), rtol=1e-12, atol=1e-14)
    assert torch.autograd.gradcheck(lambda v: block_means(v, blocks), values.requires_grad_())


@pytest.mark.parametrize("n", [0, 1, 5, 12])
@pytest.mark.parametrize("blocks", [1, 3, 5, 12])
@pytest.mark.parametrize("shift", [-9.0, 0.0, 9.0], ids=["negative", "mixed", "positive"])
def test_padded_block_means_are_those_of_the_sorted_padded_column(n, blocks, shift):
    values = (cloud(n, 4) + shift).sort(dim=0).values
    padded = torch.cat([values, torch.zeros(12 - n, 4, dtype=torch.float64)]).sort(dim=0).values
    torch.testing.assert_close(
        padded_block_means(values, 12, blocks), block_means(padded, blocks), rtol=0, atol=1e-13
    )


SHAPES = [
    ((5,), (5, 3), (3, 2)),
    ((5, 3), (5, 4), (3, 2)),
    ((5, 3), (5, 3), (2, 3)),
    ((0, 3), (5, 3), (3, 2)),
]


@pytest.mark.parametrize(
    ("function", "arguments", "match"),
    [
        *((sliced_wasserstein, map(torch.zeros, shapes), "got shapes") for shapes in SHAPES),
        (
            sliced_wasserstein,
            (torch.zeros(3, 2), torch.zeros(3, 2), torch.zeros(2, 1), 0.5),
            "order p >= 1",
        ),
        (partial(random_projections, kind="haar"), (3, 3), "kind"),
        (partial(random_projections, generator=0), (3, 3), "generator"),
    ],
)
def test_arguments_that_do_not_fit(function, arguments, match):
    with pytest.raises(InputError, match=match):
        function(*arguments)


FALSE_ALARM = 1e-6
KINDS = ("iid", "orthogonal")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("d", "k"), [(2, 1), (7, 3), (5, 5), (6, 18), (3, 11), (64, 200)])
def test_columns_are_unit(kind, d, k):
    u = random_projections(d, k, kind=kind)
    assert (u.shape, u.dtype) == ((d, k), torch.float64)
    torch.testing.assert_close(
        u.norm(dim=0), torch.ones(k, dtype=torch.float64), rtol=0, atol=1e-14
    )
    if kind == "orthogonal" and k % d == 0:  # whole bases see every move alike
        torch.testing.assert_close(u @ u.T, k / d * torch.eye(d, dtype=u.dtype), rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_entries_have_the_law_of_a_uniform_direction(kind):
    d, k = 5, 20_000
    u = random_projections(d, k, kind=kind, generator=SeededRandom(0))
    # the square of one entry of a uniform direction is Beta(1/2, (d-1)/2), in every column and row
    for row, column in ((0, slice(0, None, 5)), (3, slice(2, None, 5)), (4, slice(4, None, 5))):
        squares = u[row, column].square().numpy()  # one column of every basis: independent
        assert stats.kstest(squares, stats.beta(0.5, (d - 1) / 2).cdf).pvalue > FALSE_ALARM
        assert (
            stats.kstest(squares, stats.beta(0.5, d / 2).cdf).pvalue < FALSE_ALARM
        )  # control: one dimension more
        signs = int((u[row, column] > 0).sum())
        assert (
            stats.binomtest(signs, len(squares)).pvalue > FALSE_ALARM
        )  # QR alone would fail: see below


def test_bases_are_uniform_and_qr_alone_is_not():
    generator = torch.Generator().manual_seed(0)
    ours = random_projections(4, 4 * 4000, kind="orthogonal", generator=generator).T.reshape(
        4000, 4, 4
    )
    raw = torch.linalg.qr(torch.randn(4000, 4, 4, generator=generator, dtype=torch.float64)).Q.mT

    def p_value(bases):  # the trace of a uniform orthogonal matrix is symmetric about 0
        return stats.ks_2samp(trace := bases.diagonal(dim1=1, dim2=2).sum(1).numpy(), -trace).pvalue

    assert p_value(ours) > FALSE_ALARM
    assert p_value(raw) < FALSE_ALARM  # control: LAPACK's sign convention


@pytest.mark.parametrize("kind", KINDS)
def test_fresh_unless_a_test_says_otherwise(kind):
    torch.manual_seed(0)
    first = random_projections(4, 6, kind=kind)
    torch.manual_seed(0)
    assert not torch.equal(first, random_projections(4, 6, kind=kind))
    for make in (SeededRandom, torch.Generator().manual_seed):
        one, two = (random_projections(4, 6, kind=kind, generator=make(3)) for _ in range(2))
        assert torch.equal(one, two)


VALUES = torch.randn(300, 1000, generator=torch.Generator().manual_seed(0))
EDGES = torch.tensor([[0.0, -0.0, 1e-45, -1e-45, 3e38, -3e38, 0.0, 1.0, -1.0, 1.0]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "rows", [VALUES, EDGES, VALUES[:, :1], VALUES[:, :0], VALUES.round()], ids=lambda r: r.shape
)
@pytest.mark.parametrize("threads", [1, 3])
def test_sorts_equal_torch(rows, dtype, threads):
    rows = rows.to(dtype)
    torch.set_num_threads(threads)
    try:
        (values, order), alone = sort_rows_with_order(rows), sort_rows(rows.clone())
    finally:
        torch.set_num_threads(1)
    assert torch.equal(values, rows.sort(dim=1).values)
    assert torch.equal(rows.gather(1, order), values)
    assert torch.equal(
        order.sort(dim=1).values, torch.arange(rows.shape[1]).expand_as(order)
    )  # a permutation
    assert torch.equal(alone, values)


def test_order_with_flushed_denormals():
    rows = torch.cat([torch.zeros(1, 500), VALUES[:1]], dim=1)
    torch.set_flush_denormal(True)
    try:
        _, order = sort_rows_with_order(rows)
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(order.sort(dim=1).values[0], torch.arange(1500))
