"""Networks of the papers: layers, numbers of parameters and shapes."""

import torch

from models.networks import (
    FaceDiscriminator,
    PublishedDigitEncoder,
    Table3Generator,
    Table5Generator,
)


def n_parameters(network):
    return sum(parameter.numel() for parameter in network.parameters())


def layers(network, kind):
    return [layer for layer in network.modules() if isinstance(layer, kind)]


def test_encoder_of_appendix_8_5_2():
    """As in the code, with 320 features (erratum 3); without the second pooling it has 1,280."""
    encoder = PublishedDigitEncoder()
    assert [layer.out_channels for layer in layers(encoder, torch.nn.Conv2d)] == [32, 20]
    features = encoder(torch.rand(2, 1, 28, 28)).detach()
    assert features.shape == (2, encoder.dim) == (2, 320)
    assert 0 < float(features.min()) < float(features.max()) < 1  # sigmoid
    assert n_parameters(encoder) == 32 * 26 + 20 * (32 * 25 + 1)
    first_pooling, second_pooling = layers(encoder, torch.nn.MaxPool2d)
    of_the_text = [layer for layer in encoder if layer is not second_pooling]
    assert first_pooling in of_the_text
    features = torch.nn.Sequential(*of_the_text)(torch.rand(2, 1, 28, 28))
    assert features.shape == (2, 20 * 8 * 8) == (2, 1280)


def test_table_3_generator():
    """The order of MERF's code: a ReLU after the first batch normalisation only."""
    generator = Table3Generator()
    assert n_parameters(generator) == 167_161
    assert n_parameters(Table3Generator(latent_dim=100)) == 185_161  # "approximately 180K"
    (reshape,) = layers(generator, torch.nn.Unflatten)
    assert reshape.unflattened_size == (16, 7, 7)  # 28 x 28 is printed
    kinds = [type(layer).__name__ for layer in generator.body]
    assert kinds[:6] == ["Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d", "Unflatten"]
    assert all(layer.align_corners for layer in layers(generator, torch.nn.UpsamplingBilinear2d))
    assert generator(generator.latent(2), torch.tensor([0, 1])).shape == (2, 1, 28, 28)


def test_table_5_generator():
    """A batch normalisation after every layer but the last one; the printed strides are all 1."""
    generator = Table5Generator()
    convolutions = layers(generator, torch.nn.ConvTranspose2d)
    assert [layer.stride[0] for layer in convolutions] == [1, 2, 2, 2, 2]
    norms = layers(generator, torch.nn.BatchNorm2d)
    assert [layer.num_features for layer in norms] == [512, 256, 128, 64]
    assert n_parameters(generator) == 3_019_648
    assert generator(torch.randn(2, 32)).shape == (2, 3, 64, 64)


def test_face_discriminator():
    discriminator = FaceDiscriminator()
    images = torch.rand(2, 3, 64, 64)
    assert n_parameters(discriminator) == 2_765_569
    assert discriminator.features(images).shape == (2, discriminator.dim) == (2, 8192)
    assert discriminator(images).shape == (2,)
