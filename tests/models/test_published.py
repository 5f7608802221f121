"""Networks of the papers, the published alignment with errata 4 and 5, class-wise Gaussian and DP-MERF."""

import pytest
import torch

from dpswd.data import benchmark
from dpswd.evaluation.accuracy import scores
from dpswd.features.maps import Flatten
from dpswd.networks.image_generators import ConvGenerator
from dpswd.records import Records
from models.dp_merf import DPMERF
from models.gaussian import ClassGaussian
from models.networks import PublishedDigitEncoder, Table3Generator, Table5Generator
from models.published import published_distance, published_loss


def test_algorithm_1_adds_noise_to_both_sides():
    torch.manual_seed(0)
    distance = published_distance(torch.zeros(1, 6), torch.zeros(1, 6), 0.5, 20_000)
    assert float(distance) == pytest.approx(
        2 * 0.5**2, rel=0.05
    )  # the difference of two noises; 0.25 with one


def test_scalings_of_algorithms_1_and_2():
    """Rows twice as far out: Algorithm 1 has four times the power; Algorithm 2 does not see them move."""
    source, target = torch.randn(2, 64, 6, generator=torch.Generator().manual_seed(0)).unbind()

    def distance(scaling, factor=1.0):
        torch.manual_seed(0)
        return float(published_distance(source, factor * target, 0.0, 500, scaling=scaling))

    assert distance("none") == pytest.approx(
        distance("target") * (2 * float(target.norm(dim=1).max())) ** 2
    )
    assert distance("own") == pytest.approx(distance("own", 2.0))
    torch.manual_seed(0)
    assert float(published_distance(2 * target, target, 0.0, 50, scaling="own")) == pytest.approx(
        0, abs=1e-10
    )
    torch.manual_seed(0)
    assert float(published_distance(2 * target, target, 0.0, 50, scaling="target")) > 0.001


def test_groups_are_compared_separately():
    torch.manual_seed(0)
    rows = torch.randn(6, 5)
    swapped = torch.cat([rows[3:], rows[:3]])  # the same six rows, but other threes
    assert float(published_distance(rows, swapped, 0.0, 50)) == pytest.approx(0, abs=1e-12)
    apart = [
        published_distance(rows, swapped, 0.0, 20_000, groups=2),
        published_distance(rows[:3], rows[3:], 0.0, 20_000),
    ]
    scales = [rows.norm(dim=1).max(), rows[3:].norm(dim=1).max()]
    values = [float(each * scale**2) for each, scale in zip(apart, scales, strict=True)]
    assert values[0] == pytest.approx(values[1], rel=0.05)


def test_published_loss_is_the_root_in_units_of_the_rows():
    rows = torch.randn(32, 6, generator=torch.Generator().manual_seed(0))
    moved = rows + 3.0  # by 3 sqrt(6), of which a direction sees a sixth of the square
    torch.manual_seed(0)
    assert float(published_loss(moved, rows, 0.0, 20_000)) == pytest.approx(3.0, rel=0.03)


def test_erratum_4_one_record_scales_all_rows():
    source, target = torch.randn(2, 32, 6, generator=torch.Generator().manual_seed(0)).unbind()
    far = target.clone()
    far[0] *= 1000
    sizes = []
    for batch in (target, far):
        rows = source.clone().requires_grad_(True)
        published_distance(rows, batch, 1e-6, 12).backward()
        sizes.append(rows.grad[1:].norm())
    assert sizes[1] < sizes[0] / 50  # rows that were not replaced


def test_erratum_5_the_gradient_reads_the_raw_batch():
    """With equal noise, a pixel that only one private record inks shows in the gradient."""
    encoder = torch.nn.Linear(5, 3)
    target = torch.rand(16, 5)
    target[:, 4] = 0
    inked = target.clone()
    inked[0, 4] = 1e-6
    source = torch.rand(16, 5)
    source[:, 4] = 0
    shown = []
    for batch in (target, inked):
        torch.manual_seed(0)
        (gradient,) = torch.autograd.grad(
            published_loss(encoder(source), encoder(batch), 50.0, 8), encoder.weight
        )
        shown.append(bool(gradient[:, 4].any()))
    assert shown == [False, True]


def parameters(network):
    return sum(parameter.numel() for parameter in network.parameters())


def layers(network, kind):
    return [layer for layer in network.modules() if isinstance(layer, kind)]


def test_encoder_of_appendix_8_5_2():
    """Erratum 3: what is projected are 320 features, not 784 pixels."""
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
    assert [layer.stride[0] for layer in layers(generator, torch.nn.ConvTranspose2d)] == [
        1,
        2,
        2,
        2,
        2,
    ]  # printed: 1
    norms = layers(generator, torch.nn.BatchNorm2d)
    assert [layer.num_features for layer in norms] == [512, 256, 128, 64, 3]
    assert parameters(generator) == 3_019_654 == 3_019_648 + parameters(norms[-1])
    assert generator(torch.randn(2, 32)).shape == (2, 3, 64, 64)


def learnt(sample, n=2000):
    labels, test = torch.arange(n) % 10, benchmark("digits").test
    return scores("logreg", Records(torch.as_tensor(sample(labels)), labels), test)["accuracy"]


def test_gaussian_finds_means_and_covariances(tmp_path):
    """Two classes with known laws; a budget so large that sampling error is what is left."""
    generator = torch.Generator().manual_seed(0)
    n, roots = 20_000, torch.tensor([[[0.05, 0.0], [0.03, 0.02]], [[0.02, 0.0], [0.0, 0.06]]])
    labels = torch.arange(n) % 2
    centres = torch.tensor([[0.1, -0.1], [-0.15, 0.0]])
    rows = centres[labels] + (roots[labels] @ torch.randn(n, 2, 1, generator=generator))[:, :, 0]
    model = ClassGaussian(Flatten((2,), radius=0.5), n_classes=2, spread=0.4)
    model.fit(Records(rows, labels).private(classes=range(2)), tmp_path, 100.0, 1e-5)
    torch.testing.assert_close(model.means, centres, rtol=0, atol=0.005)
    torch.testing.assert_close(model.roots @ model.roots.mT, roots @ roots.mT, rtol=0.1, atol=2e-4)
    torch.manual_seed(0)
    drawn = model.sample(labels)
    for c in range(2):
        torch.testing.assert_close(
            torch.cov(drawn[labels == c].T), roots[c] @ roots[c].T, rtol=0.1, atol=2e-4
        )


def test_dp_merf_digits(tmp_path):
    torch.manual_seed(0)
    generator = ConvGenerator((1, 8, 8), latent_dim=5)
    model = DPMERF(generator, n_frequencies=300, lengthscale=2.0, generated=200)
    budget = model.release(
        benchmark("digits").train.private(classes=range(10)), tmp_path, 50.0, 1e-5
    )
    assert budget.statement()["sound"] is True
    assert budget.n_releases == 1
    before = learnt(model.sample)
    model.train_generator(150)
    assert learnt(model.sample) > max(70, before + 30)
