"""Generators: shapes, ranges, sizes, classes, gradients."""

import pytest
import torch

from dpswd import InputError
from dpswd.generation.generators import MixtureGenerator, MLPGenerator, Table3Generator

IMAGES = [(1, 28, 28), (3, 32, 32), (1, 16, 16), (1, 13, 9), (1, 8, 8)]


@pytest.mark.parametrize("kind", [Table3Generator])
@pytest.mark.parametrize("shape", IMAGES)
@pytest.mark.parametrize("n_classes", [0, 10])
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


@pytest.mark.parametrize("kind", [Table3Generator, MLPGenerator])
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
    for kind in (Table3Generator, MLPGenerator):
        with pytest.raises(InputError, match=message):
            kind(**options)


def test_tone_curve_gives_the_released_shares_of_black_and_white():
    generator = MixtureGenerator((1, 4, 4), 0, 1, 2, n_levels=5)
    generator.tones.copy_(torch.tensor([0.2, 0.4, 0.5, 0.6]))
    values = torch.linspace(-1, 2, 301)
    generator.offset.zero_()
    generator.synthesis.zero_()
    generator.synthesis[0] = 1.0
    rows = torch.stack([values, torch.zeros_like(values)], dim=1)
    tones = generator.render(rows)[:, 0, 0, 0]
    assert bool((tones.diff() >= 0).all())
    assert bool((tones[values < 0.199] == 0).all())
    assert bool((tones[values > 0.601] == 1).all())
    expected = [0.125, 0.25, 0.375, 0.625, 0.75]  # edges of five levels at the knots, linear between them
    assert torch.allclose(
        generator.render(torch.tensor([[v, 0.0] for v in (0.2, 0.3, 0.4, 0.5, 0.55)]))[:, 0, 0, 0],
        torch.tensor(expected),
        atol=1e-5,
    )


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_contrast_is_one_factor_of_mean_square_one_for_the_rows_and_the_residual_of_a_record(shift):
    n, size, dim = 4000, 3 * 8 * 8, 6
    plain, varied = (
        MixtureGenerator((3, 8, 8), n_cells=2, n_components=4, dim=dim, residual=True, contrast=contrast, shift=shift)
        for contrast in (0.0, 0.5)
    )
    torch.manual_seed(0)
    codes = plain.latent(n)
    torch.manual_seed(0)
    factor = varied.latent(n) / codes
    row, residual, rest = factor[:, :dim], factor[:, -size:], factor[:, dim:-size]
    assert torch.allclose(rest, torch.ones_like(rest))
    assert torch.allclose(row, row[:, :1].expand_as(row), rtol=1e-4)
    assert torch.allclose(residual, row[:, :1].expand_as(residual), rtol=1e-4)
    log = row[:, 0].log()
    # log ~ N(-0.25, 0.25): five standard errors
    assert abs(float(log.std()) - 0.5) < 5 * 0.5 / (2 * n) ** 0.5
    assert abs(float(log.mean()) + 0.25) < 5 * 0.5 / n**0.5
