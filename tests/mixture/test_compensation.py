"""Jitter and the released moments: jittered images of a compensated mixture have them."""

import math

import pytest
import torch

from dpswd import Budget, PrivateRecords, mixture
from dpswd.features.frequencies import Frequencies
from dpswd.mixture.compensation import compensate_jitter
from dpswd.mixture.generator import MixtureGenerator

SIDE = 16
SHAPE = (1, SIDE, SIDE)
SIZE = 6  # frequencies per axis
DIM = SIZE**2


def blots(jitter):
    """Return a generator of blots in two cells, which vary by moves of half a pixel and more."""
    generator = MixtureGenerator(
        SHAPE, n_classes=0, n_cells=2, n_components=DIM, shapes="light", jitter=jitter
    )
    frequencies = Frequencies(SHAPE, SIZE)
    basis = frequencies.inverse(torch.eye(DIM)) - frequencies.inverse(torch.zeros(1, DIM))
    generator.synthesis.copy_(basis.flatten(1))
    place = torch.arange(SIDE) - (SIDE - 1) / 2
    for cell, width in enumerate((3.0, 4.0)):
        column = torch.exp(-place.square() / (2 * width**2))
        moved = [
            torch.outer(column, column.roll(1)) - torch.outer(column, column),
            torch.outer(column.roll(1), column) - torch.outer(column, column),
        ]
        to_rows = torch.linalg.pinv(generator.synthesis)
        generator.means[cell] = torch.outer(column, column).flatten() @ to_rows
        moves = torch.stack([move.flatten() @ to_rows for move in moved])
        covariance = moves.T @ moves + 1e-4 * torch.eye(DIM)
        generator.roots[cell] = torch.linalg.cholesky(covariance)
    return generator


def moments_after_jitter(generator, cell, n=4000):
    """Return mean and covariance of the rows of jittered images of a cell."""
    torch.manual_seed(1)
    of_rows, of_jitter = generator.latent(n // 4), generator.latent(n // 4)
    codes = torch.cat([of_rows, -of_rows, of_rows, -of_rows])
    rows = generator.mixture_rows(codes, torch.full((n,), cell))
    moves = torch.cat([of_jitter, of_jitter, -of_jitter, -of_jitter])
    images = generator.jittered(generator.linear(rows), moves)
    rows = (images.flatten(1) - generator.offset) @ torch.linalg.pinv(generator.synthesis)
    return rows.mean(0), torch.cov(rows.T)


@pytest.mark.parametrize("cell", [0, 1])
def test_jittered_images_have_the_moments_of_before(cell):
    generator = blots({"shift": 0.4})
    mean = generator.means[cell].clone()
    covariance = generator.roots[cell] @ generator.roots[cell].T
    errors = {}
    for name in ("as released", "compensated"):
        if name == "compensated":
            compensate_jitter(generator, sharpens=True)
        mean_after, covariance_after = moments_after_jitter(generator, cell)
        errors[name] = (
            float((mean_after - mean).norm() / mean.norm()),
            float((covariance_after - covariance).norm() / covariance.norm()),
        )
    for before, after in zip(errors["as released"], errors["compensated"], strict=True):
        assert after < before / 3
    assert errors["compensated"][1] < 4 * math.sqrt(2 / 1000)  # of 1,000 draws


def test_compensation_is_repeatable_and_keeps_the_random_state():
    roots = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        expected = torch.get_rng_state()
        generator = blots({"shift": 0.4, "rotation": 5.0})
        compensate_jitter(generator, sharpens=True)
        assert torch.equal(torch.get_rng_state(), expected)
        roots.append(generator.roots.clone())
    assert torch.equal(*roots)


def test_more_jitter_than_variation_leaves_a_covariance():
    generator = blots({"shift": 3.0})
    compensate_jitter(generator, sharpens=True)
    assert bool(generator.roots.isfinite().all())
    assert bool(generator.means.isfinite().all())


def test_without_sharpening_variance_is_subtracted_only():
    generator = blots({"shift": 0.4})
    means = generator.means.clone()
    before = generator.roots[0] @ generator.roots[0].T
    compensate_jitter(generator, sharpens=False)
    after = generator.roots[0] @ generator.roots[0].T
    assert torch.equal(generator.means, means)
    sharpened = blots({"shift": 0.4})
    compensate_jitter(sharpened, sharpens=True)
    assert not torch.equal(sharpened.means, means)  # control
    assert float(after.trace()) < 0.97 * float(before.trace())


@pytest.mark.filterwarnings("ignore::dpswd.errors.UtilityWarning")
@pytest.mark.parametrize(("epsilon", "sharpens"), [(1e4, True), (1.0, False)])
def test_a_fit_of_shapes_undoes_the_smoothing_of_jitter_where_noise_is_small(
    tmp_path, epsilon, sharpens
):
    side = torch.arange(SIDE)
    shifts = torch.randint(0, 5, (400,), generator=torch.Generator().manual_seed(0))
    bars = (side - 4 - shifts[:, None]).abs() < 3  # (400, 16)
    images = (bars[:, None, None, :] & (side > 3)[:, None]).float()
    generators = []
    for name, options in (("still", {}), ("jittered", {"shift": 1.0})):
        records = PrivateRecords(images).as_shapes("light")
        budget = Budget(records, target_epsilon=epsilon, target_delta=1e-5, run_dir=tmp_path / name)
        generators.append(mixture.fit(records, budget, noise_seed=0, **options))
    still, jittered = generators
    assert torch.equal(still.means, jittered.means) != sharpens
    assert not torch.equal(still.roots, jittered.roots)
