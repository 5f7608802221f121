"""Generator networks: shapes, ranges, sizes, classes, gradients."""

from functools import partial

import pytest
import torch

from dpswd import InputError
from dpswd.generators import read_generator, write_generator
from dpswd.lightning.networks import ConvGenerator, MLPGenerator, ShuffleGenerator

IMAGES = [(1, 28, 28), (3, 32, 32), (1, 16, 16), (1, 13, 9), (1, 8, 8)]


@pytest.mark.parametrize("shape", IMAGES)
@pytest.mark.parametrize("n_classes", [0, 10])
@pytest.mark.parametrize(
    "kind", [ConvGenerator, ShuffleGenerator, partial(ShuffleGenerator, jitter={"shift": 1.0, "elastic": 0.5})]
)
def test_images(kind, shape, n_classes):
    generator = kind(sample_shape=shape, n_classes=n_classes)
    labels = torch.arange(6) % max(1, n_classes)
    images = generator(generator.latent(6), labels)
    assert images.shape == (6, *shape)
    assert bool(((images >= 0) & (images <= 1)).all())
    images.square().sum().backward()
    assert [name for name, parameter in generator.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("shape", [(7,), (1, 8, 8), (3, 4, 5)])
def test_records_of_any_shape(bounded, shape):
    generator = MLPGenerator(sample_shape=shape, n_classes=3, bounded=bounded)
    records = generator(100 * generator.latent(6), torch.arange(6) % 3)
    assert records.shape == (6, *shape)
    assert bool(((records >= 0) & (records <= 1)).all()) is bounded


@pytest.mark.parametrize("kind", [ConvGenerator, MLPGenerator, ShuffleGenerator])
def test_the_class_matters_and_so_does_the_code(kind):
    generator = kind().eval()
    latent = generator.latent(1).repeat(3, 1)
    a, b, c = generator(latent, torch.tensor([0, 0, 1]))
    torch.testing.assert_close(a, b)
    assert not torch.allclose(a, c)
    d, e = generator(generator.latent(2), torch.tensor([0, 0]))
    assert not torch.allclose(d, e)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"latent_dim": 0}, r"Expected latent_dim >= 1, got latent_dim=0\."),
        ({"n_classes": -1}, r"Expected n_classes >= 0, got n_classes=-1\."),
    ],
)
def test_sizes_out_of_range(options, message):
    for kind in (ConvGenerator, MLPGenerator):
        with pytest.raises(InputError, match=message):
            kind(**options)


@pytest.mark.parametrize("options", [{"hidden": 0}, {"width": 1}, {"jitter": {"lift": 1.0}}, {"sample_shape": (64,)}])
def test_options_of_the_network_with_jitter(options):
    with pytest.raises(InputError, match=next(iter(options))):
        ShuffleGenerator(**options)


def test_the_start_has_the_stated_moments():
    """Images between 0.4 and 0.6, so that none is clamped."""
    generator = ShuffleGenerator((1, 8, 8), n_classes=2, size=4).eval()
    roots = 0.002 * torch.randn(2, 16, 16)
    means, covariances = 0.01 * torch.randn(2, 16), roots @ roots.mT
    generator.start_at(means, covariances)
    labels = torch.arange(20_000) % 2
    with torch.no_grad():
        rows = generator.features(generator(generator.latent(len(labels)), labels))
    for c in (0, 1):
        mine = rows[labels == c]
        errors = (covariances[c].diagonal() / len(mine)).sqrt()
        assert float(((mine.mean(0) - means[c]) / errors).abs().max()) < 6
        assert float((mine.T.cov() - covariances[c]).norm()) < 0.1 * float(covariances[c].norm())


def test_a_file_of_the_network_with_jitter(tmp_path):
    generator = ShuffleGenerator(
        (3, 9, 13), 4, size=6, chroma_size=3, hidden=16, width=4, jitter={"rotation": 5.0, "zoom": 0.1}
    ).eval()
    write_generator(generator, tmp_path / "generator.pt")
    again, _ = read_generator(tmp_path / "generator.pt")
    latent, labels = generator.latent(8), torch.arange(8) % 4
    torch.testing.assert_close(again(latent, labels), generator(latent, labels))
