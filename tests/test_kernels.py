"""Fast kernels against the plain ones beside them, numerical integration,
and finite differences.
"""

import itertools
import math

import numpy as np
import pytest
import torch

from dpswd import random_projections
from dpswd._kernels import (
    block_means,
    padded_block_means,
    plain_block_means,
    plain_padded_block_means,
    plain_power_cost,
    plain_sum_over_projections,
    power_cost,
    sum_over_projections,
)
from dpswd._random import SeededRandom
from dpswd._sorting import plain_sort_rows_with_order, sort_rows, sort_rows_with_order


def cloud(n, d, seed=0):
    """Normal rows in float64."""
    return torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def sorted_columns(n, columns, shift=0.0):
    """Columns in ascending order."""
    return (cloud(n, columns, seed=n) + shift).sort(dim=0).values


# Sums over directions


def mean_cost(cost, p):
    """The mean over 37 directions, as :func:`dpswd.sliced_wasserstein` has it."""

    def criterion(_columns, x, y):
        return cost(x, y, p, x.shape[1] / 37)

    return criterion


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize(("groups", "n", "m"), [(1, 30, 30), (5, 30, 30), (3, 12, 12)])
@pytest.mark.parametrize("moving", list(itertools.product([True, False], repeat=2)))
def test_sum_over_projections_equals_the_plain_one(p, groups, n, m, moving):
    samples = [cloud(n, 6, 1), cloud(m, 6, 2)]
    projections = random_projections(6, 37, generator=SeededRandom(2))
    results = []
    for function, cost in (
        (sum_over_projections, power_cost),
        (plain_sum_over_projections, plain_power_cost),
    ):
        leaves = [
            sample.clone().requires_grad_(moves)
            for sample, moves in zip(samples, moving, strict=True)
        ]
        value = function(mean_cost(cost, p), projections, *leaves, groups=groups)
        moved = [leaf for leaf in leaves if leaf.requires_grad]
        gradients = torch.autograd.grad(2.5 * value, moved) if moved else ()
        results.append([value.detach(), *gradients])
    for fast, plain in zip(*results, strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-12, atol=1e-14)


# Bytes of a chunk: of one direction, and of seven, for two samples of 50 rows in float32.
@pytest.mark.parametrize("max_bytes", [1, 40 * 2 * 50 * 7], ids=["one direction", "seven"])
@pytest.mark.parametrize("threads", [1, 2], indirect=True)
@pytest.mark.usefixtures("threads")
def test_sum_over_projections_does_not_depend_on_the_chunks(max_bytes, monkeypatch):
    monkeypatch.setattr("dpswd._kernels._MAX_BYTES", max_bytes)  # the limit on memory, else 128 MB
    projections = random_projections(9, 61, generator=SeededRandom(0)).float()
    x = cloud(50, 9, 1).float()
    y = cloud(50, 9, 2).float().requires_grad_()
    value = sum_over_projections(mean_cost(power_cost, 2), projections, x, y)
    plain = plain_sum_over_projections(mean_cost(plain_power_cost, 2), projections, x, y)
    assert float(value.detach()) == pytest.approx(float(plain.detach()), rel=1e-6)
    (gradient,), (expected,) = torch.autograd.grad(value, y), torch.autograd.grad(plain, y)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-8)


def test_sum_over_projections_names_the_columns_of_every_chunk(monkeypatch):
    monkeypatch.setattr("dpswd._kernels._MAX_BYTES", 1)  # one direction at a time
    projections = random_projections(3, 5, generator=SeededRandom(0))
    columns = []

    def criterion(part, x):
        columns.append((part.start, part.stop))
        return x.sum()

    sum_over_projections(criterion, projections, cloud(4, 3))
    assert columns == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]


def test_sum_over_projections_with_blur_adds_normal_numbers():
    projections = torch.eye(2, dtype=torch.float64)
    x = torch.zeros(20_000, 2, dtype=torch.float64)

    def mean_square(_columns, values):
        return values.square().sum() / 40_000

    torch.manual_seed(0)
    blurred = sum_over_projections(mean_square, projections, x, blur=0.3)
    # the mean of 40,000 squares of normal numbers, which has a standard error of 0.7 %
    assert float(blurred) == pytest.approx(0.3**2, rel=0.05)
    assert float(sum_over_projections(mean_square, projections, x)) == 0


# Block means


def integral_of_quantiles(values, blocks, steps):
    """Midpoint rule for the mean of the quantile function over each block of
    ``steps / blocks`` points.

    Every jump of the step function misplaces at most one point, or two by rounding.
    """
    t = (np.arange(steps) + 0.5) / steps
    quantiles = np.sort(values)[np.minimum((t * len(values)).astype(int), len(values) - 1)]
    return quantiles.reshape(blocks, -1).mean(axis=1)


BLOCKS = pytest.mark.parametrize(
    ("n", "blocks"), [(12, 4), (10, 4), (5, 8), (1, 4), (64, 5), (7, 7), (9, 1), (90, 70)]
)


@BLOCKS
def test_block_means_integrate_the_quantile_function(n, blocks):
    values = sorted_columns(n, 3)
    means = block_means(values, blocks)
    assert means.shape == (blocks, 3)
    steps = 60_000 * blocks
    for column in range(3):
        span = float(values[-1, column] - values[0, column])
        exact = integral_of_quantiles(values[:, column].numpy(), blocks, steps)
        error = np.abs(means[:, column].numpy() - exact).max()
        assert error <= 2 * span * blocks / steps + 1e-12
    torch.testing.assert_close(means.mean(0), values.mean(0), rtol=1e-12, atol=1e-14)


@BLOCKS
def test_block_means_equal_the_plain_ones(n, blocks):
    values = sorted_columns(n, 3)
    torch.testing.assert_close(
        block_means(values, blocks), plain_block_means(values, blocks), rtol=0, atol=1e-13
    )


@BLOCKS
def test_block_means_have_a_gradient(n, blocks):
    values = sorted_columns(n, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda v: block_means(v, blocks), values)


@pytest.mark.parametrize("n", [0, 1, 5, 12])
@pytest.mark.parametrize("blocks", [1, 3, 5, 12])
@pytest.mark.parametrize("shift", [-9.0, 0.0, 9.0], ids=["negative", "mixed", "positive"])
def test_padded_block_means_equal_the_plain_ones(n, blocks, shift):
    values = sorted_columns(n, 4, shift)
    means = padded_block_means(values, 12, blocks)
    expected = plain_padded_block_means(values, 12, blocks)
    torch.testing.assert_close(means, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("function", [padded_block_means, plain_padded_block_means])
@pytest.mark.parametrize(("n", "size", "blocks"), [(5, 12, 5), (5, 12, 4), (60, 500, 200)])
def test_padded_block_means_have_a_gradient(function, n, size, blocks):
    values = sorted_columns(n, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda v: function(v, size, blocks), values)


def test_padded_block_means_of_many_blocks_equal_the_plain_ones_in_float32():
    values = sorted_columns(321, 4).float()
    means = padded_block_means(values, 1003, 417)
    expected = plain_padded_block_means(values, 1003, 417)
    torch.testing.assert_close(means, expected, rtol=0, atol=1e-5)


# Costs


@pytest.mark.parametrize("p", [1, 1.5, 2, 3])
@pytest.mark.parametrize("moving", [(True, False), (False, True), (True, True)])
def test_power_cost_equals_the_plain_one(p, moving):
    results = []
    for function in (power_cost, plain_power_cost):
        leaves = [cloud(11, 5, seed).requires_grad_(moves) for seed, moves in enumerate(moving)]
        ours = leaves[0] * 1.0  # which the fast one overwrites
        value = function(ours, leaves[1], p, 0.7)
        moved = [leaf for leaf in leaves if leaf.requires_grad]
        results.append([value.detach(), *torch.autograd.grad(value, moved)])
    for fast, plain in zip(*results, strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-12, atol=1e-15)


# Sorts


VALUES = torch.randn(300, 1000, generator=torch.Generator().manual_seed(0))
EDGES = torch.tensor([[0.0, -0.0, 1e-45, -1e-45, 3e38, -3e38, 0.0, 1.0, -1.0, 1.0]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "rows",
    [VALUES, EDGES, VALUES[:, :1], VALUES[:, :0], VALUES.round()],
    ids=["many", "edges", "one value", "empty", "ties"],
)
@pytest.mark.parametrize("threads", [1, 3], indirect=True)
@pytest.mark.usefixtures("threads")
def test_sorts_equal_the_plain_one(rows, dtype):
    rows = rows.to(dtype)
    expected, _ = plain_sort_rows_with_order(rows)
    values, order = sort_rows_with_order(rows)
    assert torch.equal(values, expected)
    assert torch.equal(rows.gather(1, order), values)
    positions = torch.arange(rows.shape[1]).expand_as(order)
    assert torch.equal(order.sort(dim=1).values, positions)  # a permutation
    assert torch.equal(sort_rows(rows.clone()), expected)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_value_that_is_not_finite_stays_in_the_sorted_row(dtype, value):
    rows = torch.tensor([[3.0, value, 1.0], [2.0, 1.0, 0.0]], dtype=dtype)
    expected, _ = plain_sort_rows_with_order(rows)
    values, order = sort_rows_with_order(rows)
    torch.testing.assert_close(values, expected, equal_nan=True, rtol=0, atol=0)
    torch.testing.assert_close(values, rows.gather(1, order), equal_nan=True, rtol=0, atol=0)


def test_sort_rows_with_order_where_denormals_are_flushed():
    rows = torch.cat([torch.zeros(1, 500), VALUES[:1]], dim=1)
    torch.set_flush_denormal(True)
    try:
        _, order = sort_rows_with_order(rows)
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(order.sort(dim=1).values[0], torch.arange(1500))
