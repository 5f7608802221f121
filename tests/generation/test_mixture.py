"""A mixture from releases: cells, shrinking, the module's five releases, resume, refusals."""

import json

import pytest
import torch
from factories import BLOB_DIM as D
from factories import BLOB_SIZE as N
from factories import Blobs, principal
from factories import blob_trainer as trainer

from dpswd import InputError
from dpswd.generation import mixture
from dpswd.generation.export import read_generator, write_generator
from dpswd.generation.generators import MixtureGenerator, MLPGenerator
from dpswd.generation.mixture_module import MixtureModule


def module(n_cells=2, **changes):
    generator = MixtureGenerator((D,), n_classes=3, n_cells=n_cells, components=4, hidden=8, bounded=False)
    options = {"n_particles": 60, "flow_steps": 3, "n_quantiles": 5, "generated": 40} | changes
    return MixtureModule(generator, principal(), **options)


@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")
def test_five_releases_within_the_budget(tmp_path):
    model = module()
    trainer(tmp_path, 6).fit(model, datamodule=Blobs(batch_size=N))
    facts = json.loads((tmp_path / "privacy.json").read_text())
    assert facts["sound"]
    assert facts["epsilon"] <= 20.0
    lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert len(lines) == 1 + 2 * 5  # the header; each mechanism once, and a line for its release
    assert bool(model.mixed)
    assert torch.isfinite(model.sample(torch.arange(3))).all()
    assert bool(model.moved.abs().sum() > 0)  # the flow moved them
    assert bool(model.generator.bend[-1].weight.abs().sum() > 0)  # and the network learnt it


@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")
def test_proportions_and_means_of_classes_are_found(tmp_path):
    """At epsilon 20 and N = 300 a count has a standard deviation of about 1.4 of 30 to 180."""
    model = module(n_cells=1, flow_steps=1, step_size=1e-6)
    trainer(tmp_path, 2).fit(model, datamodule=Blobs(batch_size=N))
    assert torch.allclose(model.proportions.cpu(), torch.tensor([0.6, 0.3, 0.1]), atol=0.06)


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


def _noisy(truth, noise, seed):
    generator = torch.Generator().manual_seed(seed)
    g = torch.randn(truth.shape, generator=generator, dtype=torch.float64)
    return truth + noise * (g + g.mT) / 2


@pytest.mark.parametrize(("noise", "factor"), [(0.01, 1.5), (3.0, 0.05)])
def test_shrinking_beats_what_it_starts_from(noise, factor):
    """With little noise it keeps the estimate; of much noise it takes 95% of the squared error away."""
    generator = torch.Generator().manual_seed(1)
    a = torch.randn(4, 8, 8, generator=generator, dtype=torch.float64) / 8**0.5
    truth = torch.eye(8, dtype=torch.float64) + 0.3 * (a + a.mT)
    truth = mixture.positive_part(truth, 0.05)
    counts = torch.ones(4, dtype=torch.float64)
    shared = truth.mean(0)
    found = mixture.covariances(counts, _noisy(truth, noise, 2), shared, 2, noise)
    raw = (_noisy(truth, noise, 2) - truth).square().sum()
    error = (found - truth).square().sum()
    assert error < factor * raw
    assert bool((torch.linalg.eigvalsh(found) > 0).all())


def test_cell_means_fall_back_to_their_priors():
    priors = torch.zeros(2, 3, dtype=torch.float64)
    sums = torch.tensor([[10.0, 0.0, 0.0], [0.01, 0.0, 0.0]], dtype=torch.float64)
    found = mixture.cell_means(
        torch.ones(2, dtype=torch.float64), sums, priors, torch.ones(3, dtype=torch.float64), 0.1
    )
    assert abs(found[0, 0] - 10) < 0.1
    assert found[1].abs().max() < 1e-9


def test_root_and_positive_part():
    matrix = torch.tensor([[2.0, 0.5], [0.5, -1.0]], dtype=torch.float64)
    half = mixture.root(matrix)
    assert torch.allclose(half @ half, mixture.positive_part(matrix))
    assert torch.linalg.eigvalsh(mixture.positive_part(matrix, 0.1)).min() >= 0.1 - 1e-12


def test_the_generator_draws_cells_in_their_proportions():
    generator = MixtureGenerator((3,), n_classes=2, n_cells=3, components=2, hidden=4, bounded=False)
    generator.weights.copy_(torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]]))
    torch.manual_seed(0)
    labels = torch.arange(8000) % 2
    cells = generator.cell(generator.latent(8000), labels)
    shares = torch.bincount(cells, minlength=6) / 4000
    assert torch.allclose(shares, generator.weights.flatten(), atol=5 * (0.25 / 4000) ** 0.5)


def test_inflation_multiplies_the_deviations(tmp_path):
    plain, wide = module(noise_seed=1), module(noise_seed=1, inflation=2.0)
    for name, model in (("a", plain), ("b", wide)):
        trainer(tmp_path / name, 1).fit(model, datamodule=Blobs(batch_size=N))
    assert torch.allclose(wide.generator.roots, 2 * plain.generator.roots, rtol=1e-4, atol=1e-6)


def test_the_generator_survives_its_file(tmp_path):
    generator = MixtureGenerator((1, 4, 4), n_classes=2, n_cells=2, components=2, hidden=4, shift=1.0, rotation=5.0)
    generator.means.normal_()
    generator.synthesis.normal_()
    write_generator(generator, tmp_path / "generator.pt")
    again, _ = read_generator(tmp_path / "generator.pt")
    latent, labels = generator.latent(5), torch.tensor([0, 1, 0, 1, 1])
    assert torch.equal(generator(latent, labels), again(latent, labels))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: MixtureModule(MLPGenerator((D,)), principal()), "Expected a MixtureGenerator"),
        (lambda: MixtureModule(MixtureGenerator((D,), components=3), principal()), "Expected components=4"),
        (lambda: module(inflation=0.0), "inflation"),
        (lambda: MixtureGenerator((3,), shift=1.0), "for jitter"),
        (lambda: MixtureGenerator(zoom=-0.1), "zoom"),
        (lambda: module(cell_radius=0.0), "cell_radius"),
        (lambda: module(n_particles=0), "n_particles"),
        (lambda: MixtureGenerator(n_cells=0), "n_cells"),
    ],
)
def test_bad_input_is_one_sentence(make, said):
    with pytest.raises(InputError, match=said):
        make()
