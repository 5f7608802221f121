"""Adapter of images: 32 parameters, the identity at first."""

import torch

from dpswd.networks.adapters import ImageAdapter


def test_image_adapter_starts_as_the_identity():
    images = torch.rand(5, 3, 12, 9)
    adapter = ImageAdapter()
    assert sum(parameter.numel() for parameter in adapter.parameters()) == 6 + 25 + 1
    torch.testing.assert_close(adapter(images), images)


def test_image_adapter_limits_pixels_to_the_unit_interval():
    adapter = ImageAdapter()
    with torch.no_grad():
        adapter.log_gain.fill_(2.0)
        images = adapter(torch.rand(5, 1, 8, 8))
    assert float(images.max()) == 1.0
    assert float(images.min()) >= 0.0
