"""Sliced Wasserstein distance against POT and finite differences."""

import ot
import pytest
import torch

from dpswd import random_projections, sliced_wasserstein
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
