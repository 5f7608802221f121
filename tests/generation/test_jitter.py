"""Jitter: no amount changes nothing, a whole pixel is a whole pixel, amounts are kept, gradients pass, refusals."""

import pytest
import torch

from dpswd import InputError
from dpswd.generation.jitter import N_CODES, jitter

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
    assert torch.allclose(jitter(images, torch.randn(5, N_CODES), 0, 0, 0, 0), images, atol=1e-6)


@pytest.mark.parametrize(("name", "expected"), [("right", (2.0, 4.0)), ("down", (4.0, 2.0))])
def test_a_shift_is_in_pixels(name, expected):
    """The map says where a pixel comes from: from the right, so that the dot goes left."""
    moved = jitter(dot(), codes(**{name: FAR}), 2, 0, 0, 0)
    assert centre_of_mass(moved) == pytest.approx(expected, abs=1e-4)


def test_gradients_pass():
    images = torch.rand(2, 1, 5, 5, requires_grad=True)
    jitter(images, torch.randn(2, N_CODES), 1, 5, 0.1, 0.1).sum().backward()
    assert bool(torch.isfinite(images.grad).all())
    assert float(images.grad.abs().sum()) > 0


@pytest.mark.parametrize(
    ("images", "given", "amounts", "said"),
    [
        (torch.rand(2, 25), torch.zeros(2, N_CODES), (1, 0, 0, 0), "Expected images"),
        (torch.rand(2, 1, 5, 5), torch.zeros(3, N_CODES), (1, 0, 0, 0), "and codes"),
        (torch.rand(2, 1, 5, 5), torch.zeros(2, N_CODES), (-1, 0, 0, 0), "shift"),
    ],
)
def test_refuses(images, given, amounts, said):
    with pytest.raises(InputError, match=said):
        jitter(images, given, *amounts)
