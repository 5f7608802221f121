"""docs/errata.md, items 7 to 9: each has a run that shows it."""

import copy

import pytest
import torch
from torch import nn

from dpswd.sliced import sliced_wasserstein
from experiments.accounting.published import TABLE4
from models.networks import FaceDiscriminator


def test_discriminator_features_depend_on_one_private_record():
    """One step of training on batches that differ in one record moves the features of all other images."""
    torch.manual_seed(0)
    network = FaceDiscriminator()
    private, public = torch.rand(2, 4, 3, 64, 64).unbind()
    neighbour = torch.cat([private[:3], 1 - private[3:]])

    def trained_on(batch):
        discriminator = copy.deepcopy(network)
        optimizer = torch.optim.SGD(discriminator.parameters(), lr=0.1)
        truth = torch.tensor([1.0] * 4 + [0.0] * 4)
        logits = discriminator(torch.cat([batch, public]))
        nn.functional.binary_cross_entropy_with_logits(logits, truth).backward()
        optimizer.step()
        return discriminator.eval().features(public).detach()

    first, second = trained_on(private), trained_on(neighbour)
    assert torch.equal(first, trained_on(private))  # control: the same batch gives the same features
    assert (first - second).norm(dim=1).min() > 0
    assert first.shape[1] == 8192


def test_seed_keeps_32_bits():
    draws = [torch.randn(5, generator=torch.Generator().manual_seed(seed)) for seed in (5, 5 + 2**32, 6)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_remark_4_square_of_the_norm():
    u = nn.functional.normalize(torch.randn(7, 100_000, generator=torch.Generator().manual_seed(0)), dim=0)
    z = 3 * torch.eye(7)[0]
    mean = float((z @ u).square().mean())
    assert mean == pytest.approx(9 / 7, rel=0.02)  # E Y = 1 / d, times the square of the norm
    assert mean != pytest.approx(3 / 7, rel=0.5)


def test_property_2_fails_for_the_power():
    points = [torch.tensor([[float(value)]]) for value in (0, 1, 2)]
    power = [float(sliced_wasserstein(points[i], points[j], torch.ones(1, 1))) for i, j in ((0, 1), (1, 2), (0, 2))]
    assert power[2] > power[0] + power[1]
    assert power[2] ** 0.5 <= power[0] ** 0.5 + power[1] ** 0.5 + 1e-6


def test_table_3_reshape():
    upsampled = nn.Upsample(scale_factor=4)
    assert upsampled(torch.zeros(1, 16, 7, 7)).shape[-2:] == (28, 28)
    assert upsampled(torch.zeros(1, 1, 28, 28)).shape[-2:] == (112, 112)  # the printed reshape


def test_table_5_strides():
    channels = (32, 512, 256, 128, 64, 3)

    def size(strides, paddings):
        image = torch.zeros(1, 32, 1, 1)
        for i, (stride, padding) in enumerate(zip(strides, paddings, strict=True)):
            image = nn.ConvTranspose2d(channels[i], channels[i + 1], 4, stride, padding)(image)
        return image.shape[-1]

    assert size((1,) * 5, (0,) * 5) == 16  # as printed
    assert size((1, 2, 2, 2, 2), (0, 1, 1, 1, 1)) == 64


def test_table_4_sample_size_of_usps():
    row = next(row for row in TABLE4 if row.name == "MNIST-USPS")
    assert row.recomputed() == pytest.approx(5.360, abs=0.005)
    assert row._replace(sample_size=7_468).recomputed() == pytest.approx(5.342, abs=0.005)
