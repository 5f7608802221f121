"""A network that draws pixels imitates a generator that learned from released slices."""

import pytest
import torch

from dpswd import PrivateRecords
from dpswd.features.frequencies import Frequencies
from dpswd.networks.principal_generator import PrincipalGenerator
from dpswd.principal import PrincipalSlices, SlicePlan
from models.pixels import PixelGenerator, imitate, teach

SHAPE = (1, 8, 8)
N = 1_200
PLAN = SlicePlan(n_directions=6, n_bases=4, n_quantiles=40, batch_size=N)


@pytest.fixture(scope="module")
def slices(tmp_path_factory):
    """Slices of two classes: bars at the left and at the right, of random brightness."""
    source = torch.Generator().manual_seed(0)
    labels = torch.arange(N) % 2
    images = 0.05 * torch.rand(N, *SHAPE, generator=source)
    brightness = 0.4 + 0.5 * torch.rand(N, 1, 1, 1, generator=source)
    images[labels == 0, :, :, 1:3] += brightness[labels == 0]
    images[labels == 1, :, :, 5:7] += brightness[labels == 1]
    records = PrivateRecords(images, labels, classes=range(2))
    slices = PrincipalSlices(Frequencies(SHAPE, 6), 2, PLAN)
    directory = tmp_path_factory.mktemp("pixels") / "run"
    slices.release(records, target_epsilon=20, target_delta=1e-5, run_dir=directory)
    return slices


def network():
    torch.manual_seed(0)
    return PixelGenerator(SHAPE, 2, n_codes=6, hidden=32, width=8)


@torch.no_grad()
def mean_image(generator):
    """The mean images of both classes (2, 8, 8)."""
    torch.manual_seed(1)
    images = generator.eval()(generator.latent(400), torch.arange(400) % 2)
    return images[:, 0].view(-1, 2, 8, 8).mean(0)


def test_a_network_imitates_its_teacher(slices):
    teacher = PrincipalGenerator(SHAPE, 2, size=6, n_directions=6, hidden=16, outside=False)
    teach(teacher, slices, steps=20, batch=200, lr=2e-3)
    generator = network()
    before = (mean_image(generator) - mean_image(teacher)).abs().mean()
    imitate(generator, teacher, steps=80, batch=40, lr=1e-2)
    after = (mean_image(generator) - mean_image(teacher)).abs().mean()
    assert after < 0.2 * before


def test_jitter_is_for_evaluation_alone():
    generator = PixelGenerator(SHAPE, 2, n_codes=6, hidden=32, width=8, jitter={"shift": 2.0})
    codes = generator.latent(4)
    labels = torch.arange(4) % 2
    other = codes.clone()
    other[:, 6:] = generator.latent(4)[:, 6:]
    generator.eval()
    assert not torch.equal(generator(codes, labels), generator(other, labels))
    generator.train()
    assert torch.equal(generator(codes, labels), generator(other, labels))
