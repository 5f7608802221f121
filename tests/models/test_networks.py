"""Networks of the papers: parameters, shapes and layers as Rakotomamonjy2021 and the code that it names state them."""

import torch

from models.networks import PublishedDigitEncoder, Table3Generator, Table5Generator


def parameters(network):
    return sum(parameter.numel() for parameter in network.parameters())


def layers(network, kind):
    return [layer for layer in network.modules() if isinstance(layer, kind)]


def test_encoder_of_appendix_8_5_2():
    digits = PublishedDigitEncoder()
    assert [c.out_channels for c in layers(digits, torch.nn.Conv2d)] == [32, 20]
    features = digits(torch.rand(2, 1, 28, 28)).detach()
    assert features.shape == (2, digits.dim) == (2, 320)
    assert 0 < float(features.min()) < float(features.max()) < 1  # sigmoid
    assert parameters(digits) == 32 * 26 + 20 * (32 * 25 + 1)


def test_table_3_generator():
    """Layers in the order of MERF's code: one ReLU after a batch normalisation, none after the second."""
    generator = Table3Generator()
    assert parameters(generator) == 167_161
    kinds = [type(layer).__name__ for layer in generator.body]
    assert kinds[:6] == ["Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d", "Unflatten"]
    assert all(layer.align_corners for layer in layers(generator, torch.nn.UpsamplingBilinear2d))
    assert generator(generator.latent(2), torch.tensor([0, 1])).shape == (2, 1, 28, 28)


def test_table_5_generator():
    """A batch normalisation after every layer, as printed; the code that the paper builds on has none at the end."""
    generator = Table5Generator()
    norms = layers(generator, torch.nn.BatchNorm2d)
    assert [layer.num_features for layer in norms] == [512, 256, 128, 64, 3]
    assert parameters(generator) == 3_019_654 == 3_019_648 + parameters(norms[-1])
    assert generator(torch.randn(2, 32)).shape == (2, 3, 64, 64)
