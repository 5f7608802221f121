"""Random convolutions: a fixed public map of one image each, and its scale."""

import pytest
import torch

from dpswd import InputError
from dpswd.features.convolutions import RandomConvolutions
from dpswd.row_check import check_row_function

SHAPE = (3, 16, 16)


def make_features(seed=0):
    return RandomConvolutions(SHAPE, widths=(8, 16), seed=seed)


def test_faces_have_the_features_of_the_paper():
    assert RandomConvolutions().dim == 8192


def test_a_seed_fixes_the_map_whatever_the_global_state():
    images = torch.rand(4, *SHAPE)
    torch.manual_seed(1)
    first = make_features()
    torch.manual_seed(2)
    second = make_features()
    assert torch.equal(first(images), second(images))
    assert not torch.equal(first(images), make_features(seed=1)(images))


def test_rows_are_of_one_image_each():
    check_row_function(make_features(), SHAPE)


def test_rows_of_smooth_images_have_a_norm_of_about_one_half():
    coarse = torch.rand(200, 3, 4, 4)
    images = torch.nn.functional.interpolate(coarse, (16, 16), mode="bilinear")
    norm = float(make_features()(images).norm(dim=1).mean())
    assert 0.2 < norm < 0.8


def test_gradient_reaches_the_images():
    images = torch.rand(2, *SHAPE, requires_grad=True)
    features = make_features()
    features(images).square().sum().backward()
    assert bool(images.grad.abs().sum() > 0)
    assert not any(parameter.requires_grad for parameter in features.parameters())


@pytest.mark.parametrize("widths", [(), (8, 8, 8, 8, 8)])
def test_sides_that_do_not_fit_are_refused(widths):
    with pytest.raises(InputError, match="sides"):
        RandomConvolutions(SHAPE, widths=widths)
