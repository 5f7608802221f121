"""Framing of digits: a function of one image that undoes shifts and scales."""

import pytest
import torch
from torch import nn

from dpswd import InputError
from experiments.adaptation.framing import frame

ROUNDING = 1e-5  # sums of a few hundred float32 of order 1


def test_frame_of_one_image():
    images = torch.rand(6, 1, 16, 16, generator=torch.Generator().manual_seed(1))
    images[4] = 0
    together = frame(images)
    assert together.shape == (6, 1, 28, 28)
    assert torch.allclose(together, torch.cat([frame(image[None]) for image in images]), atol=ROUNDING)
    other = images.clone()
    other[2] = images[2].flip(2)
    moved = (frame(other) - together).abs().flatten(1).amax(1) > ROUNDING
    assert moved.tolist() == [False, False, True, False, False, False]
    assert not together[4].any()
    assert torch.isfinite(together).all()


def test_frame_undoes_shift_and_scale():
    digit = torch.zeros(2, 1, 40, 40)
    digit[0, 0, 4:24, 6:18] = 1
    digit[0, 0, 8:20, 10:14] = 0
    digit[1, 0, 12:32, 20:32] = 1
    digit[1, 0, 16:28, 24:28] = 0
    first, second = frame(digit)
    assert torch.allclose(first, second, atol=1e-5)
    large = nn.functional.interpolate(digit[:1], scale_factor=2, mode="nearest")
    assert (frame(large)[0] - first).abs().mean() < 0.03
    with pytest.raises(InputError, match="Expected grey images"):
        frame(torch.zeros(2, 3, 8, 8))
