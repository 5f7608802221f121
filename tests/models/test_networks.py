"""Networks of the papers: parameters, shapes and layers as Rakotomamonjy2021 states them."""

import torch

from dpswd.generation.features import check_rowwise
from dpswd.loss import clip_rows
from dpswd.rowwise import check_encoder
from models.networks import (
    PublishedDigitEncoder,
    PublishedFeatureEncoder,
    RandomConvolutions,
)


def parameters(network):
    return sum(parameter.numel() for parameter in network.parameters())


def layers(network, kind):
    return [layer for layer in network.modules() if isinstance(layer, kind)]


def test_encoders_of_appendix_8_5_2():
    digits = PublishedDigitEncoder()
    assert [c.out_channels for c in layers(digits, torch.nn.Conv2d)] == [32, 20]
    features = digits(torch.rand(2, 1, 28, 28)).detach()
    assert features.shape == (2, digits.dim) == (2, 320)
    assert 0 < float(features.min()) < float(features.max()) < 1  # sigmoid
    check_encoder(digits, torch.rand(3, 1, 28, 28), digits.dim)
    assert parameters(digits) == 32 * 26 + 20 * (32 * 25 + 1)
    for dim in (50, 100):  # Office-31, VisDA-2017
        encoder = PublishedFeatureEncoder(dim)
        assert parameters(encoder) == 2049 * 100 + 101 * dim
        assert encoder(torch.randn(3, 2048)).shape == (3, dim)
        assert float(encoder(torch.randn(3, 2048)).detach().min()) == 0  # ReLU
        check_encoder(encoder, torch.randn(3, 2048), dim)


def test_random_convolutions_are_a_constant_space_of_8192_dimensions():
    features = RandomConvolutions()
    assert features.dim == 8192
    images = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    rows = features(images)
    assert rows.shape == (3, 8192)
    check_rowwise(features)
    torch.manual_seed(5)
    assert torch.equal(RandomConvolutions()(images), rows)
    assert not torch.equal(RandomConvolutions(seed=1)(images), rows)
    assert list(features.parameters()) == []
    assert float(clip_rows(features(100 * images), 0.5).norm(dim=1).max()) <= 0.5
