"""Generators of images: shapes, gradients, refusals, start of ShuffleGenerator."""

from functools import partial

import pytest
import torch

from dpswd.errors import InputError
from dpswd.networks.image_generators import ConvGenerator, ShuffleGenerator

SHAPES = [(1, 28, 28), (3, 32, 32), (1, 16, 16), (1, 13, 9), (1, 8, 8)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n_classes", [0, 10])
@pytest.mark.parametrize(
    "kind",
    [
        ConvGenerator,
        ShuffleGenerator,
        partial(ShuffleGenerator, jitter={"shift": 1.0, "elastic": 0.5}),
    ],
    ids=["conv", "shuffle", "shuffle with jitter"],
)
def test_images_have_shape_range_and_a_gradient_of_every_weight(kind, shape, n_classes):
    generator = kind(sample_shape=shape, n_classes=n_classes)
    labels = torch.arange(6) % max(1, n_classes)
    images = generator(generator.latent(6), labels)
    assert images.shape == (6, *shape)
    assert bool(((images >= 0) & (images <= 1)).all())
    images.square().sum().backward()
    without_gradient = [
        name for name, parameter in generator.named_parameters() if parameter.grad is None
    ]
    assert without_gradient == []


@pytest.mark.parametrize(
    ("kind", "options", "name"),
    [
        (ShuffleGenerator, {"jitter": {"lift": 1.0}}, "jitter"),
        (ShuffleGenerator, {"sample_shape": (64,)}, "sample_shape"),
        (ConvGenerator, {"latent_dim": 0}, "latent_dim"),
    ],
)
def test_options_out_of_range_are_refused(kind, options, name):
    with pytest.raises(InputError, match=name):
        kind(**options)


def test_shuffle_generator_starts_at_the_stated_moments():
    """Images lie between 0.4 and 0.6, so that none is clamped."""
    torch.manual_seed(0)
    generator = ShuffleGenerator((1, 8, 8), n_classes=2, size=4).eval()
    roots = 0.002 * torch.randn(2, 16, 16)
    means = 0.01 * torch.randn(2, 16)
    covariances = roots @ roots.mT
    generator.start_at(means, covariances)
    labels = torch.arange(20_000) % 2
    with torch.no_grad():
        rows = generator.features(generator(generator.latent(len(labels)), labels))
    for c in (0, 1):
        members = rows[labels == c]
        standard_errors = (covariances[c].diagonal() / len(members)).sqrt()
        z_scores = (members.mean(0) - means[c]) / standard_errors
        # 32 normal numbers exceed 6 with probability 6e-8.
        assert float(z_scores.abs().max()) < 6
        error = float((members.T.cov() - covariances[c]).norm())
        assert error < 0.1 * float(covariances[c].norm())
