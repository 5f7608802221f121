"""Sliced Wasserstein distance against POT and finite differences."""

import math

import ot
import pytest
import torch

from dpswd import random_projections, sliced_wasserstein, smoothed_sliced_wasserstein
from dpswd._random import SeededRandom
from dpswd.errors import InputError


def cloud(n, d, seed=0):
    """Normal rows in float64."""
    return torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def directions(d, k):
    return random_projections(d, k, generator=SeededRandom(0))


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize(("n", "m"), [(17, 17), (12, 31), (40, 7), (1, 5), (1, 1)])
def test_sliced_wasserstein_equals_pot(n, m, p):
    x, y, u = cloud(n, 5, 1), cloud(m, 5, 2) * 2 + 1, directions(5, 13)
    theirs = ot.sliced_wasserstein_distance(x.numpy(), y.numpy(), projections=u.numpy(), p=p) ** p
    # sums of at most 40 + 31 terms of size about 1: far below 1e-12 relative
    assert float(sliced_wasserstein(x, y, u, p)) == pytest.approx(theirs, rel=1e-12)


@pytest.mark.parametrize(("n", "m"), [(8, 8), (6, 9)])
@pytest.mark.parametrize("p", [2, 3])
def test_sliced_wasserstein_has_a_gradient(n, m, p):
    """Compared with finite differences."""
    x, y, u = cloud(n, 3, 1).requires_grad_(), cloud(m, 3, 2).requires_grad_(), directions(3, 5)
    assert torch.autograd.gradcheck(lambda a, b: sliced_wasserstein(a, b, u, p), (x, y))


@pytest.mark.parametrize(
    "shapes",
    [
        ((5,), (5, 3), (3, 2)),
        ((5, 3), (5, 4), (3, 2)),
        ((5, 3), (5, 3), (2, 3)),
        ((0, 3), (5, 3), (3, 2)),
    ],
)
def test_sliced_wasserstein_refuses_shapes(shapes):
    with pytest.raises(InputError, match="got shapes"):
        sliced_wasserstein(*map(torch.zeros, shapes))


def test_sliced_wasserstein_refuses_an_order_below_one():
    with pytest.raises(InputError, match="order p >= 1"):
        sliced_wasserstein(torch.zeros(3, 2), torch.zeros(3, 2), torch.zeros(2, 1), 0.5)


# Smoothed distance


@pytest.mark.parametrize(("n", "m"), [(30_000, 30_000), (30_000, 20_000)])
def test_smoothed_distance_of_two_points_is_their_squared_distance(n, m):
    """Both laws are normal with the same variance, so that only the means differ."""
    torch.manual_seed(0)
    x = torch.zeros(n, 2, dtype=torch.float64)
    y = torch.tensor([2.0, 0.0], dtype=torch.float64).expand(m, 2)
    u = torch.tensor([[1.0, 0.6], [0.0, 0.8]], dtype=torch.float64)
    distance = float(smoothed_sliced_wasserstein(x, y, u, sigma=0.5))
    assert distance == pytest.approx((2.0**2 + 1.2**2) / 2, rel=0.02)


def test_smoothed_distance_of_two_spreads_falls_with_the_noise():
    """W_2 of N(0, a^2) and N(0, b^2) is |a - b|, and noise adds its variance to both."""
    torch.manual_seed(0)
    x = 0.1 * torch.randn(50_000, 1, dtype=torch.float64)
    y = torch.randn(50_000, 1, dtype=torch.float64)
    u = torch.ones(1, 1, dtype=torch.float64)
    plain = float(smoothed_sliced_wasserstein(x, y, u, sigma=0.0))
    smooth = float(smoothed_sliced_wasserstein(x, y, u, sigma=2.0))
    assert plain == pytest.approx(0.9**2, rel=0.03)
    expected = (math.hypot(1.0, 2.0) - math.hypot(0.1, 2.0)) ** 2
    assert smooth == pytest.approx(expected, rel=0.3)


def test_smoothed_distance_has_a_gradient_in_both_samples():
    x = torch.randn(20, 3, requires_grad=True)
    y = torch.randn(30, 3, requires_grad=True)
    u = random_projections(3, 6, dtype=torch.float32)
    smoothed_sliced_wasserstein(x, y, u, sigma=0.3, p=1).backward()
    assert bool(x.grad.abs().sum() > 0)
    assert bool(y.grad.abs().sum() > 0)


@pytest.mark.parametrize(("options", "name"), [({"sigma": -1.0}, "sigma"), ({"p": 0.5}, "p")])
def test_smoothed_distance_refuses_numbers_out_of_range(options, name):
    arguments = {"sigma": 1.0} | options
    with pytest.raises(InputError, match=name):
        smoothed_sliced_wasserstein(torch.zeros(3, 2), torch.zeros(3, 2), torch.eye(2), **arguments)
