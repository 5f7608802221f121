"""The default generator: shrinking, cells, releases within the budget, structure, checkpoint, file, refusals."""

import json
from unittest.mock import patch

import numpy as np
import pytest
import torch
from factories import BLOB_SIZE as N
from factories import Blobs, spy_on_exact_values
from factories import blob_trainer as trainer
from PIL import Image

from dpswd import InputError
from dpswd.accounting.calibrate import mu_of_epsilon
from dpswd.accounting.ledger import Ledger
from dpswd.data import FeatureFile, ImageFolder
from dpswd.data.base import PrivateData, Records, Stored
from dpswd.generation import mixture
from dpswd.generation.export import read_generator, write_generator
from dpswd.generation.features import reference_spectrum
from dpswd.generation.generators import MixtureGenerator
from dpswd.generation.mixture_module import MixtureModule

pytestmark = pytest.mark.filterwarnings(
    "ignore:The 'train_dataloader' does not have many workers", "ignore:Using ModelCheckpoint with manual optimization"
)


def module(**changes):
    return MixtureModule(**({"n_classes": 3} | changes))


class Pictures(Blobs):
    """Colour or grey images without classes; the right half is brighter."""

    channels = 3

    def load(self):
        generator = torch.Generator().manual_seed(0)
        values = 0.3 + 0.1 * torch.randn(N, self.channels, 8, 8, generator=generator)
        values[..., 4:] += 0.3
        return Records(values.clamp(0, 1), torch.zeros(N, dtype=torch.int64)), None


def test_releases_within_the_budget_and_one_step(tmp_path):
    model = module()
    run = trainer(tmp_path, 6)
    run.fit(model, datamodule=Blobs(batch_size=N))
    facts = json.loads((tmp_path / "privacy.json").read_text())
    assert facts["sound"]
    assert facts["epsilon"] <= 20.0
    assert facts["planned_releases"] == facts["releases_made"] == model.structure.n_releases
    assert bool(model.fitted)
    assert run.fit_loop.batch_idx == 0  # the run ends after one step
    assert torch.isfinite(model.sample(torch.arange(3))).all()


def test_proportions_and_means_of_classes_are_found(tmp_path):
    """At epsilon 20 and N = 300 a count has a standard deviation of about 2 of 30 to 180."""
    model = module()
    trainer(tmp_path, 1).fit(model, datamodule=Blobs(batch_size=N))
    assert torch.allclose(model.proportions.cpu(), torch.tensor([0.6, 0.3, 0.1]), atol=0.06)
    records = model.sample(torch.arange(3).repeat(200)).detach()
    means = records.unflatten(0, (200, 3)).mean(0)
    assert bool((means[:, :3].argmax(1) == torch.arange(3)).all())


def test_many_records_have_cells_and_few_have_one_moment(tmp_path, monkeypatch):
    for mu, releases in ((400.0, 7), (0.05, 3)):
        model = module()
        monkeypatch.setattr(model, "_mu", lambda mu=mu: mu)  # the structure of another budget
        trainer(tmp_path / str(mu), 2).fit(model, datamodule=Blobs(batch_size=N))
        assert model.structure.n_cells == (12 if mu > 1 else 1)
        assert model.structure.pooled is (mu < 1)
        assert json.loads((tmp_path / str(mu) / "privacy.json").read_text())["releases_made"] == releases
        assert torch.isfinite(model.sample(torch.arange(3))).all()


def test_every_round_has_its_share_of_the_budget(tmp_path, monkeypatch):
    model = module()
    monkeypatch.setattr(model, "_mu", lambda: 400.0)  # with cells
    trainer(tmp_path, 2).fit(model, datamodule=Blobs(batch_size=N))
    queries = [part["mechanism"] for part in Ledger.open_existing(tmp_path / "ledger.jsonl").header["plan"]]
    mu_sq = [(query["sensitivity"] / query["sigma"]) ** 2 for query in queries]
    whole = mu_of_epsilon(20.0, 1e-3) ** 2
    np.testing.assert_allclose(np.array(mu_sq) / whole, [0.04, 0.05, 0.16, 0.04, 0.04, 0.04, 0.63], rtol=0.01)


class Skewed(PrivateData):
    """Nine in ten rows are uniform on [0, 1], the others near 3."""

    def load(self):
        generator = torch.Generator().manual_seed(0)
        values = 0.01 * torch.randn(900, 2, generator=generator)
        values[:810, 0] += torch.rand(810, generator=generator)
        values[810:, 0] += 3
        return Records(values, torch.zeros(900, dtype=torch.int64)), None


def spread_within_cells(directory, rounds):
    """Mean variance of the generated rows within three cells, over that of all rows."""
    model = module(n_classes=0, radius=3.0, noise_seed=1)
    with patch.multiple("dpswd.generation.structure", ROUNDS=rounds, MAX_CELLS=3):
        trainer(directory, 1).fit(model, datamodule=Skewed(batch_size=900))
    generator = model.generator
    weights, means, roots = generator.weights[0], generator.means.detach(), generator.roots.detach()
    within = float(weights @ roots.square().sum((1, 2)))
    between = float(weights @ (means - weights @ means).square().sum(1))
    return within / (within + between)


def test_rounds_move_the_cells_to_the_rows(tmp_path):
    """The first cells are those of a normal distribution, which these rows are not."""
    once, thrice = (spread_within_cells(tmp_path / str(rounds), rounds) for rounds in (1, 3))
    assert 0.01 < thrice < 0.8 * once


@pytest.mark.parametrize("channels", [1, 3])
def test_images_without_classes(tmp_path, channels):
    data = Pictures(batch_size=N)
    data.channels = channels
    model = module(n_classes=0, shift=1.0)
    trainer(tmp_path, 4).fit(model, datamodule=data)
    assert model.generator.residual is (channels == 3)
    assert bool(model.generator.reflect)  # the border is not black
    images = model.sample(torch.zeros(200, dtype=torch.int64)).detach()
    assert images.shape == (200, channels, 8, 8)
    assert 0 <= float(images.min()) <= float(images.max()) <= 1
    contrast = images[..., 6:].mean() - images[..., :2].mean()
    assert 0.15 < float(contrast) < 0.45  # 0.3 in the records
    write_generator(model.generator, tmp_path / "generator.pt")
    again, _ = read_generator(tmp_path / "generator.pt")
    latent, labels = model.generator.latent(5), torch.zeros(5, dtype=torch.int64)
    assert torch.equal(model.generator(latent, labels), again(latent, labels))


def test_frequencies_that_are_not_released_are_weaker_than_in_the_reference(tmp_path):
    """The records have the contrast of the reference or less, so that the ratio is 0.6 or less."""
    data = Pictures(batch_size=N)
    data.channels = 3
    model = module(n_classes=0)
    trainer(tmp_path, 1).fit(model, datamodule=data)
    released = torch.zeros(3, 8, 8, dtype=torch.bool).flatten()
    released[model.features.base.kept.cpu()] = True
    ratio = (model.generator.residual_scale.cpu() / reference_spectrum((3, 8, 8))).flatten()
    assert 0 < int(released.sum()) < len(released)
    assert bool((ratio[released] == 0).all())
    assert torch.allclose(ratio[~released], ratio[~released][0])
    assert 0.05 < float(ratio[~released][0]) <= 0.6


def exact_releases(directory, monkeypatch, data):
    """Values of all releases before noise, which has a seed."""
    seen = spy_on_exact_values(monkeypatch.setattr)
    model = module(n_classes=None, noise_seed=1)
    monkeypatch.setattr(model, "_mu", lambda: 400.0)  # with cells
    trainer(directory, 1).fit(model, datamodule=data)
    assert len(seen) == 7 + (data.sample_shape[0] == 1)
    monkeypatch.undo()
    return seen


def test_records_on_disk_have_the_releases_of_those_in_memory(tmp_path, monkeypatch):
    numbers = np.random.default_rng(0).integers(0, 200, (N, 8, 8), dtype=np.uint8)
    for i, pixels in enumerate(numbers):
        (tmp_path / "images" / "abc"[i % 3]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "images" / "abc"[i % 3] / f"{i}.png")
    np.savez(tmp_path / "vectors.npz", features=numbers[:, 0] / 255, labels=np.arange(N) % 3)

    def data():
        return ImageFolder(str(tmp_path / "images"), test_split=False), FeatureFile(str(tmp_path / "vectors.npz"))

    memory = [exact_releases(tmp_path / f"memory{i}", monkeypatch, each) for i, each in enumerate(data())]
    for i, each in enumerate(data()):
        monkeypatch.setattr("dpswd.data.base.IN_MEMORY", 0)
        monkeypatch.setattr("dpswd.generation.mixture_module._PART", 50)
        found = exact_releases(tmp_path / f"disk{i}", monkeypatch, each)
        for value, expected in zip(found, memory[i], strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
        assert isinstance(each.private.values, Stored)


def test_a_record_on_disk_that_cannot_be_read(tmp_path, monkeypatch):
    """The run ends before a file is written."""
    values = np.random.default_rng(0).random((N, 5))
    values[-1, 2] = np.nan
    np.savez(tmp_path / "vectors.npz", features=values)
    monkeypatch.setattr("dpswd.data.base.IN_MEMORY", 0)
    with pytest.raises(InputError, match="finite records"):
        trainer(tmp_path / "run", 1).fit(
            module(n_classes=0), FeatureFile(str(tmp_path / "vectors.npz"), test_split=False)
        )
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_rebuilds_the_module(tmp_path):
    run = trainer(tmp_path, 4, enable_checkpointing=True)
    model = module()
    run.fit(model, datamodule=Blobs(batch_size=N))
    run.save_checkpoint(tmp_path / "made.ckpt")
    again = MixtureModule.load_from_checkpoint(tmp_path / "made.ckpt", weights_only=False)
    assert again.structure == model.structure
    latent, labels = model.generator.latent(6), torch.arange(6) % 3
    assert torch.equal(model.generator(latent, labels), again.generator(latent, labels))


def test_cells_depend_on_the_record_alone():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(50, 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (50,), generator=generator)
    centres = torch.randn(3, 2, 4, generator=generator, dtype=torch.float64)
    cells = mixture.cell_of(rows, labels, centres)
    assert bool((cells // 2 == labels).all())
    alone = torch.cat(
        [mixture.cell_of(row[None], label[None], centres) for row, label in zip(rows, labels, strict=True)]
    )
    assert torch.equal(cells, alone)


def test_centres_are_the_same_in_every_process():
    means, shape = torch.eye(3, 4, dtype=torch.float64), torch.eye(4, dtype=torch.float64)
    first = mixture.centres(means, shape, 3)
    torch.manual_seed(5)
    assert torch.equal(first, mixture.centres(means, shape, 3))
    assert torch.equal(mixture.centres(means, shape, 1)[:, 0], means)
    assert torch.allclose(mixture.centres(means, 0 * shape, 3), means[:, None], atol=1e-3)  # all noise, and no warning


def test_a_reference_gets_the_released_moments():
    generator = torch.Generator().manual_seed(0)
    reference = torch.randn(300, 4, generator=generator, dtype=torch.float64) * torch.tensor([3.0, 2.0, 1.0, 0.5])
    half = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    mean, covariance = half[0], half @ half.T
    moved = mixture.like_reference(reference, mean, covariance)
    assert torch.allclose(moved.mean(0), mean)
    assert torch.allclose(torch.cov(moved.T, correction=0), covariance)
    own = mixture.like_reference(reference, reference.mean(0), torch.cov(reference.T, correction=0))
    assert torch.allclose(own, reference)  # the transport of a normal law to itself moves nothing


def test_cells_of_a_reference():
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(2, 400, 3, generator=generator, dtype=torch.float64)
    parts = [noise[0], 50 + 0.1 * noise[1]]
    centres, covariances = mixture.reference_cells(torch.cat(parts), 2)
    order = centres[:, 0].argsort()
    within = sum(torch.cov(part.T, correction=0) for part in parts) / 2
    for cell, part in zip(order.tolist(), parts, strict=True):
        assert torch.allclose(centres[cell], part.mean(0))
        expected = (400 * torch.cov(part.T, correction=0) + 5 * within) / 405
        assert torch.allclose(covariances[cell], expected)


def test_cell_means_fall_back_to_the_centres():
    sums = torch.tensor([[10.0, 0.0, 0.0], [0.01, 0.0, 0.0]], dtype=torch.float64)
    ones = torch.ones(3, dtype=torch.float64)
    found = mixture.cell_means(ones[:2], sums, ones, 0.1)
    assert abs(found[0, 0] - 10) < 0.1
    assert found[1].abs().max() < 1e-9


def test_class_means_are_pulled_together_as_far_as_the_noise_asks():
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(10, 50, generator=generator, dtype=torch.float64)
    counts, reference = torch.full((10,), 100.0, dtype=torch.float64), torch.ones(50, dtype=torch.float64)
    for noise, factor in ((1.0, 1.05), (500.0, 0.2)):
        sums = counts[:, None] * truth + noise * torch.randn(10, 50, generator=generator, dtype=torch.float64)
        error = (mixture.class_means(counts, sums, reference, noise) - truth).square().mean()
        assert error < factor * (noise / 100) ** 2


def test_the_nearest_spectrum_keeps_the_trace():
    matrix = torch.diag(torch.tensor([3.0, 1.0, -1.0], dtype=torch.float64))
    found = mixture.nearest_spectrum(matrix)
    assert float(found.trace()) == pytest.approx(3.0)
    assert torch.linalg.eigvalsh(found).min() >= -1e-12
    assert torch.allclose(mixture.nearest_spectrum(found), found)
    assert float(mixture.nearest_spectrum(-matrix @ matrix).abs().max()) == 0


def test_root_and_positive_part():
    matrix = torch.tensor([[2.0, 0.5], [0.5, -1.0]], dtype=torch.float64)
    half = mixture.root(matrix)
    assert torch.allclose(half @ half, mixture.positive_part(matrix))
    assert torch.linalg.eigvalsh(mixture.positive_part(matrix, 0.1)).min() >= 0.1 - 1e-12


def test_the_generator_draws_cells_in_their_proportions():
    generator = MixtureGenerator((3,), n_classes=2, n_cells=3, n_components=2, bounded=False)
    generator.weights.copy_(torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]]))
    torch.manual_seed(0)
    labels = torch.arange(8000) % 2
    cells = generator.cell(generator.latent(8000), labels)
    shares = torch.bincount(cells, minlength=6) / 4000
    assert torch.allclose(shares, generator.weights.flatten(), atol=5 * (0.25 / 4000) ** 0.5)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: MixtureGenerator((3,), shift=1.0), "for jitter"),
        (lambda: MixtureGenerator((3,), residual=True), "residual"),
        (lambda: MixtureGenerator(zoom=-0.1), "zoom"),
        (lambda: MixtureGenerator(n_components=4, dim=3), "dim"),
        (lambda: MixtureGenerator(n_cells=0), "n_cells"),
        (lambda: module(n_classes=-1), "n_classes"),
        (lambda: module(radius=0.0), "radius"),
    ],
)
def test_bad_input(make, said):
    with pytest.raises(InputError, match=said):
        make()


@pytest.mark.parametrize("n_classes", [None, 2])
def test_classes_that_do_not_fit(tmp_path, n_classes):
    with pytest.raises(InputError, match="n_classes"):
        trainer(tmp_path, 2).fit(module(n_classes=n_classes), datamodule=Blobs(batch_size=N))
    assert not (tmp_path / "ledger.jsonl").exists()


def test_covariances_of_cells_weigh_the_cell_against_its_class():
    """With noise as large as the difference between cells, Wiener's weight halves the squared error of either."""
    generator = torch.Generator().manual_seed(0)
    d, n, n_cells = 6, 400.0, 100
    two = torch.stack([torch.diag(torch.arange(1.0, d + 1)), torch.diag(torch.arange(d, 0.0, -1))]).double()
    truth, of_class = two.repeat(n_cells // 2, 1, 1), two.mean(0)[None]
    draws = torch.randn(n_cells, d, d, generator=generator, dtype=torch.float64)
    counts, means = torch.full((n_cells,), n).double(), torch.zeros(n_cells, d).double()
    weights = torch.full((1, n_cells), 1 / n_cells).double()

    def error_sq(estimate):
        return float((estimate - truth).square().sum((1, 2)).mean())

    noise = n * (error_sq(of_class) / (d * (d + 1) / 2)) ** 0.5
    moments = n * truth + noise * (draws + draws.mT) / 2
    found = mixture.cell_covariances(counts, moments, noise, weights, means, of_class)
    assert error_sq(found) < 0.7 * min(error_sq(of_class), error_sq(moments / n))
    exact = mixture.cell_covariances(counts, n * truth, 1e-9, weights, means, of_class)
    assert error_sq(exact) < 1e-9
    clipped = mixture.cell_covariances(counts, 0.4 * n * truth, 1e-9, weights, means, of_class)
    assert error_sq(clipped) < 1e-9  # has the variance of its class again


def test_tones_of_generated_images_are_those_of_the_records(tmp_path):
    """A third of the pixels is black; without the tone curve a normal law has no black pixels beyond half of them."""

    class Spots(Pictures):
        channels = 1

        def load(self):
            values = torch.rand(N, 1, 8, 8, generator=torch.Generator().manual_seed(0))
            return Records(values * (values > 1 / 3), torch.zeros(N, dtype=torch.int64)), None

    model = module(n_classes=0)
    trainer(tmp_path, 4).fit(model, datamodule=Spots(batch_size=N))
    assert model.structure.n_levels >= 4
    latent = model.generator.latent(2000)
    rows = model.generator.rows(latent, model.generator.cell(latent, torch.zeros(2000, dtype=torch.int64))).detach()
    images = model.generator.render(rows)
    # noise of a cumulated share: 2 sqrt(levels) / (mu_tones N), mu about 4 at epsilon 20
    assert float((images == 0).float().mean()) == pytest.approx(1 / 3, abs=0.1)
    clamped = model.generator.linear(rows)
    assert abs(float((clamped <= 0).float().mean()) - 1 / 3) > 0.1  # control


def test_clipped_deviations_get_the_variance_of_the_records_back(tmp_path, monkeypatch):
    """Deviations of norm about 1/2 are clipped to 0.35, which loses half of their variance."""

    class Normal(Blobs):
        def load(self):
            generator = torch.Generator().manual_seed(0)
            return Records(0.3 * torch.randn(900, 6, generator=generator), torch.zeros(900).long()), None

    model = module(n_classes=0)
    monkeypatch.setattr(model, "_mu", lambda: 0.01)  # one cell
    data = Normal()
    trainer(tmp_path, 1).fit(model, datamodule=data)
    assert (model.structure.n_cells, model.structure.class_bound) == (1, 0.35)
    drawn = model.sample(torch.zeros(4000).long()).detach()
    assert 0.85 < float(drawn.var(0).sum() / data.private.values.var(0).sum()) < 1.15
