"""Jitter: no amount changes nothing, a whole pixel is a whole pixel, amounts are kept, gradients pass, refusals."""

import math

import pytest
import torch

from dpswd import InputError
from dpswd.mixture.jitter import N_CODES, jitter

FAR = 10.0  # a code whose uniform draw is 1


def codes(**draws):
    values = torch.zeros(1, N_CODES)
    for name, value in draws.items():
        values[0, ["right", "down", "angle", "wide", "high", "slant"].index(name)] = value
    return values


def dot():
    image = torch.zeros(1, 1, 9, 9)
    image[0, 0, 4, 4] = 1
    return image


def centre_of_mass(image):
    weights = image[0, 0] / image.sum()
    along = torch.arange(9.0)
    return float(weights.sum(0) @ along), float(weights.sum(1) @ along)


def test_no_amount_changes_nothing():
    images = torch.rand(5, 3, 8, 6)
    assert torch.allclose(jitter(images, torch.randn(5, N_CODES)), images, atol=1e-6)


@pytest.mark.parametrize(("name", "expected"), [("right", (2.0, 4.0)), ("down", (4.0, 2.0))])
def test_a_shift_is_in_pixels(name, expected):
    """The map says where a pixel comes from: from the right, so that the dot goes left."""
    moved = jitter(dot(), codes(**{name: FAR}), shift=2)
    assert centre_of_mass(moved) == pytest.approx(expected, abs=1e-4)


def test_an_angle_is_in_degrees():
    image = torch.zeros(1, 1, 9, 9)
    image[0, 0, 4, 7] = 1  # three to the right of the centre
    found = centre_of_mass(jitter(image, codes(angle=FAR), rotation=90))
    assert math.dist(found, (4, 4)) == pytest.approx(3, abs=1e-3)
    assert found[0] == pytest.approx(4, abs=1e-3)


def test_elastic_displacements_have_their_standard_deviation():
    """Equal displacements at all control points are a shift; independent ones have the stated deviation."""
    same = codes()
    same[0, 6:31] = 1.0  # all points to the right
    assert centre_of_mass(jitter(dot(), same, elastic=1.5)) == pytest.approx((2.5, 4.0), abs=1e-4)
    ramp = torch.arange(9.0).expand(2000, 1, 9, 9)
    draws = torch.randn(2000, N_CODES, generator=torch.Generator().manual_seed(0))
    seen = jitter(ramp, draws, elastic=0.7)[:, 0, 4, 4] - 4  # the middle of 9 pixels is a control point
    assert float(seen.std()) == pytest.approx(0.7, abs=5 * 0.7 / math.sqrt(2 * 2000))


def test_gradients_pass():
    images = torch.rand(2, 1, 5, 5, requires_grad=True)
    jitter(images, torch.randn(2, N_CODES), shift=1, rotation=5, zoom=0.1, shear=0.1, elastic=0.5).sum().backward()
    assert bool(torch.isfinite(images.grad).all())
    assert float(images.grad.abs().sum()) > 0


@pytest.mark.parametrize(
    ("images", "given", "amounts", "said"),
    [
        (torch.rand(2, 25), torch.zeros(2, N_CODES), {"shift": 1}, "Expected images"),
        (torch.rand(2, 1, 5, 5), torch.zeros(3, N_CODES), {"shift": 1}, "and codes"),
        (torch.rand(2, 1, 5, 5), torch.zeros(2, N_CODES), {"shift": -1}, "shift"),
    ],
)
def test_refuses(images, given, amounts, said):
    with pytest.raises(InputError, match=said):
        jitter(images, given, **amounts)
