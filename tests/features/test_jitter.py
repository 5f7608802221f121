"""Jitter of images: shifts in pixels, angles in degrees, elastic displacements."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from dpswd import InputError
from dpswd.features.jitter import N_CODES, check_amounts, jitter
from dpswd.mixture.generator import MixtureGenerator

FAR = 10.0  # a code whose uniform draw is 1
AFFINE = ["right", "down", "angle", "wide", "high", "slant"]  # codes, in their order


def codes(**values):
    """Codes (1, N_CODES) of one image, 0 but for the named ones."""
    result = torch.zeros(1, N_CODES)
    for name, value in values.items():
        result[0, AFFINE.index(name)] = value
    return result


def dot():
    """An image with one bright pixel, in the middle of 9 x 9."""
    image = torch.zeros(1, 1, 9, 9)
    image[0, 0, 4, 4] = 1
    return image


def centre_of_mass(image):
    weights = image[0, 0] / image.sum()
    positions = torch.arange(9.0)
    return float(weights.sum(0) @ positions), float(weights.sum(1) @ positions)


@pytest.mark.parametrize(("name", "expected"), [("right", (2.0, 4.0)), ("down", (4.0, 2.0))])
def test_shift_is_in_pixels(name, expected):
    """The map says where a pixel comes from: from the right, so that the dot goes left."""
    moved = jitter(dot(), codes(**{name: FAR}), shift=2)
    assert centre_of_mass(moved) == pytest.approx(expected, abs=1e-4)


def test_rotation_is_in_degrees():
    right_of_the_centre = dot().roll(3, 3)  # by three pixels
    x, y = centre_of_mass(jitter(right_of_the_centre, codes(angle=FAR), rotation=90))
    assert x == pytest.approx(4, abs=1e-3)
    assert abs(y - 4) == pytest.approx(3, abs=1e-3)


def test_jitter_of_no_amount_changes_nothing():
    images = torch.rand(5, 3, 8, 6)
    assert torch.allclose(jitter(images, torch.randn(5, N_CODES)), images, atol=1e-6)


def test_equal_elastic_displacements_are_a_shift():
    same = codes()
    same[0, 6:31] = 1.0  # all control points to the right
    moved = jitter(dot(), same, elastic=1.5)
    assert centre_of_mass(moved) == pytest.approx((2.5, 4.0), abs=1e-4)


def test_elastic_displacements_have_their_standard_deviation():
    ramp = torch.arange(9.0).expand(2000, 1, 9, 9)
    draws = torch.randn(2000, N_CODES, generator=torch.Generator().manual_seed(0))
    moved = jitter(ramp, draws, elastic=0.7)
    displacements = moved[:, 0, 4, 4] - 4  # the middle of 9 pixels is a control point
    error = 0.7 / math.sqrt(2 * 2000)
    assert float(displacements.std()) == pytest.approx(0.7, abs=5 * error)


@pytest.mark.parametrize("amounts", [{"lift": 1.0}, {"zoom": -0.1}], ids=str)
def test_check_amounts_refuses_unknown_and_negative_ones(amounts):
    (name,) = amounts
    with pytest.raises(InputError, match=name):
        check_amounts(amounts)


LIMITS = {"shift": 14.0, "rotation": 180.0, "zoom": 0.9, "shear": 1.0, "elastic": 14.0}


@given(st.sampled_from(sorted(LIMITS)), st.floats(0, 1e12))
def test_check_amounts_refuses_what_leaves_nothing_of_an_image(name, amount):
    """Pixels are limited by half of the shorter side of 28, in images of 28 x 40."""
    if amount <= LIMITS[name]:
        check_amounts({name: amount}, (1, 28, 40))
        return
    with pytest.raises(InputError, match=f"Expected {name} of at most {LIMITS[name]:g}"):
        check_amounts({name: amount}, (1, 28, 40))


def test_generators_know_the_side_of_their_images():
    with pytest.raises(InputError, match="of at most 4 pixels, half of the shorter side"):
        MixtureGenerator((1, 8, 8), n_classes=2, jitter={"elastic": 5.0})
    with pytest.raises(InputError, match="Expected elastic of at most 1000"):
        check_amounts({"elastic": 1e9})  # before the side is known


def test_bicubic_resampling_keeps_the_slopes_of_distances():
    down, right = torch.meshgrid(torch.arange(17.0), torch.arange(17.0), indexing="ij")

    def wave(move):
        return (0.5 + 0.3 * (1.2 * (right - move)).sin() * (0.9 * down).cos())[None, None]

    half_a_pixel = codes(right=FAR)
    inside = (..., slice(3, -3), slice(3, -3))
    errors = {}
    for resampling in ("bilinear", "bicubic"):
        moved = jitter(wave(0.0), half_a_pixel, shift=0.5, resampling=resampling)
        errors[resampling] = float((moved - wave(-0.5))[inside].abs().max())
    assert errors["bicubic"] < errors["bilinear"] / 2
