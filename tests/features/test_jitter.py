"""Jitter of images: shifts in pixels, angles in degrees, elastic displacements."""

import math

import pytest
import torch

from dpswd.features.jitter import N_CODES, jitter

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


def test_a_shift_is_in_pixels_and_an_angle_in_degrees():
    """The map says where a pixel comes from: from the right, so that the dot goes left."""
    for name, expected in (("right", (2.0, 4.0)), ("down", (4.0, 2.0))):
        assert centre_of_mass(jitter(dot(), codes(**{name: FAR}), shift=2)) == pytest.approx(
            expected, abs=1e-4
        )
    found = centre_of_mass(
        jitter(dot().roll(3, 3), codes(angle=FAR), rotation=90)
    )  # three to the right of the centre
    assert (abs(found[1] - 4), found[0]) == pytest.approx((3, 4), abs=1e-3)
    images = torch.rand(5, 3, 8, 6)
    assert torch.allclose(
        jitter(images, torch.randn(5, N_CODES)), images, atol=1e-6
    )  # of no amount


def test_elastic_displacements_have_their_standard_deviation():
    """Equal displacements at all control points are a shift; independent ones have the stated deviation."""
    same = codes()
    same[0, 6:31] = 1.0  # all points to the right
    assert centre_of_mass(jitter(dot(), same, elastic=1.5)) == pytest.approx((2.5, 4.0), abs=1e-4)
    ramp = torch.arange(9.0).expand(2000, 1, 9, 9)
    draws = torch.randn(2000, N_CODES, generator=torch.Generator().manual_seed(0))
    seen = (
        jitter(ramp, draws, elastic=0.7)[:, 0, 4, 4] - 4
    )  # the middle of 9 pixels is a control point
    assert float(seen.std()) == pytest.approx(0.7, abs=5 * 0.7 / math.sqrt(2 * 2000))
