"""Generators of images: shapes, gradients, refusals, and where they start."""

from functools import partial

import pytest
import torch

from dpswd.errors import InputError
from dpswd.networks.image_generators import ConvGenerator, ShuffleGenerator, TransposedGenerator
from dpswd.networks.principal_generator import PrincipalGenerator

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


@pytest.mark.parametrize(("shape", "n_classes"), [((3, 64, 64), 0), ((1, 8, 8), 10)])
def test_transposed_generator_makes_images_of_its_shape(shape, n_classes):
    generator = TransposedGenerator(shape, n_classes, width=4)
    images = generator(generator.latent(5), torch.arange(5) % max(1, n_classes))
    assert images.shape == (5, *shape)
    assert bool(((images >= 0) & (images <= 1)).all())


@pytest.mark.parametrize("shape", [(3, 28, 28), (3, 64, 32), (64,), (1, 4, 4)])
def test_sides_that_transposed_convolutions_do_not_have_are_refused(shape):
    with pytest.raises(InputError, match="side"):
        TransposedGenerator(shape)


def test_principal_generator_starts_at_the_stated_normal_law():
    torch.manual_seed(0)
    generator = PrincipalGenerator((1, 8, 8), n_classes=2, size=4, n_directions=3).eval()
    means = 0.01 * torch.randn(2, 16)
    vectors, _ = torch.linalg.qr(torch.randn(16, 16))
    deviations = torch.tensor([0.5, 0.4, 0.3])
    rest = 0.001 * vectors[:, 3:] @ vectors[:, 3:].T
    generator.start_at(means, 0.01 * vectors[:, :3], deviations, rest)
    labels = torch.arange(20_000) % 2
    with torch.no_grad():
        latent = generator.latent(len(labels))
        rows = generator.features(generator(latent, labels)) - means[labels]
        coordinates = generator.coordinates(latent, labels)
    inside = rows @ vectors[:, :3] / 0.01
    torch.testing.assert_close(inside, coordinates, atol=1e-3, rtol=0)
    torch.testing.assert_close(coordinates.std(0), deviations, atol=0, rtol=0.05)
    outside = rows @ vectors[:, 3:]
    torch.testing.assert_close(outside.std(0), torch.full((13,), 0.001), atol=0, rtol=0.05)


def test_principal_generator_leaves_out_what_is_outside_of_the_directions():
    """A control has it."""
    rows = []
    for outside in (False, True):
        generator = PrincipalGenerator((1, 8, 8), 0, size=4, n_directions=3, outside=outside)
        vectors = torch.eye(16)
        rest = torch.diag(torch.tensor([0.0] * 3 + [0.01] * 13))
        generator.start_at(torch.zeros(1, 16), 0.01 * vectors[:, :3], torch.ones(3), rest)
        labels = torch.zeros(50, dtype=torch.int64)
        with torch.no_grad():
            rows.append(generator.features(generator(generator.latent(50), labels))[:, 3:])
    assert float(rows[0].abs().max()) < 1e-6
    assert float(rows[1].std()) > 0.005


def test_principal_generator_with_other_directions_has_the_same_options():
    generator = PrincipalGenerator(
        (1, 8, 8), 2, size=4, hidden=9, jitter={"shift": 1.0}, outside=False
    )
    other = generator.with_directions(5)
    assert other.n_directions == 5
    for name in ("sample_shape", "n_classes", "size", "chroma_size", "hidden", "jitter", "outside"):
        assert getattr(other, name) == getattr(generator, name)
