"""MixtureGenerator: choice of the cell, spread, contrast."""

import pytest
import torch

from dpswd import InputError
from dpswd.features.shapes import from_distances, inconsistency
from dpswd.mixture.generator import MixtureGenerator
from dpswd.networks.generator import draw


def unlabelled(n):
    return torch.zeros(n, dtype=torch.int64)


@pytest.fixture
def generator():
    """Three cells of vectors without classes, one standard deviation wide."""
    generator = MixtureGenerator((2,), n_classes=0, n_cells=3, n_components=2, bounded=False)
    generator.means.copy_(torch.tensor([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0]]))
    generator.roots.copy_(torch.eye(2).expand(3, 2, 2))
    generator.synthesis.copy_(torch.eye(2))
    return generator


def test_cells_are_drawn_in_their_proportions():
    generator = MixtureGenerator((3,), n_classes=2, n_cells=3, n_components=2, bounded=False)
    generator.weights.copy_(torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]]))
    torch.manual_seed(0)
    n = 8000
    cells = generator.cells(generator.latent(n), torch.arange(n) % 2)
    shares = torch.bincount(cells, minlength=6) / (n / 2)
    five_errors = 5 * (0.25 / (n / 2)) ** 0.5
    assert torch.allclose(shares, generator.weights.flatten(), atol=five_errors)


def test_latent_spread_scales_the_noise_within_cells_and_not_the_choice_of_the_cell(generator):
    labels = unlabelled(2000)
    torch.manual_seed(0)
    codes = generator.latent(2000)
    torch.manual_seed(0)
    half_codes = generator.latent(2000, spread=0.5)
    cells = generator.cells(codes, labels)
    assert torch.equal(cells, generator.cells(half_codes, labels))
    means = generator.mixture_rows(torch.zeros_like(codes), cells)
    whole = generator.mixture_rows(codes, cells) - means
    half = generator.mixture_rows(half_codes, cells) - means
    torch.testing.assert_close(half, 0.5 * whole)


def test_draw_of_a_tiny_spread_has_as_many_values_as_cells(generator):
    values = draw(generator, unlabelled(2000), 1.0).round(decimals=3)
    assert len(values.unique(dim=0)) > 1000
    values = draw(generator, unlabelled(2000), 1e-6).round(decimals=3)
    assert len(values.unique(dim=0)) == generator.n_cells
    with pytest.raises(InputError, match="spread"):
        draw(generator, unlabelled(2), spread=0.0)


def test_latent_contrast_is_one_factor_for_the_rows_and_the_residual_of_a_record():
    """Its mean square is 1: the logarithm is N(-0.25, 0.25) at contrast 0.5."""
    n = 4000
    n_pixels = 3 * 8 * 8
    dim = 6

    def codes(contrast):
        generator = MixtureGenerator(
            (3, 8, 8),
            n_cells=2,
            n_components=4,
            dim=dim,
            residual=True,
            contrast=contrast,
            jitter={"shift": 1.0},
        )
        torch.manual_seed(0)
        return generator.latent(n)

    factor = codes(0.5) / codes(0.0)
    assert torch.allclose(factor[:, dim:-n_pixels], torch.ones(n, 1))  # cells and jitter
    varied = torch.cat([factor[:, :dim], factor[:, -n_pixels:]], dim=1)
    assert torch.allclose(varied, varied[:, :1].expand_as(varied), rtol=1e-4)
    logarithm = varied[:, 0].log()
    assert abs(float(logarithm.std()) - 0.5) < 5 * 0.5 / (2 * n) ** 0.5
    assert abs(float(logarithm.mean()) + 0.25) < 5 * 0.5 / n**0.5


SHAPE = (1, 8, 8)
N_PIXELS = 64


def of_shapes(n_draws):
    """Return a generator of shapes in two cells, with one row coordinate for each pixel."""
    options = {"n_classes": 0, "n_cells": 2, "n_components": N_PIXELS, "shapes": "light"}
    generator = MixtureGenerator(SHAPE, n_draws=n_draws, **options)
    generator.synthesis.copy_(torch.eye(N_PIXELS))
    generator.means.copy_(torch.tensor([[0.45], [0.55]]).expand(2, N_PIXELS))
    generator.roots.copy_(0.2 * torch.eye(N_PIXELS).expand(2, -1, -1))
    return generator


def test_the_most_consistent_of_several_draws_is_drawn():
    n_draws = 3
    generator = of_shapes(n_draws)
    torch.manual_seed(0)
    codes = generator.latent(40)
    images = generator(codes, unlabelled(40))
    draws = []
    for part in codes.split(N_PIXELS + 1, dim=1):
        rows = generator.mixture_rows(part, generator.cells(part, unlabelled(40)))
        draws.append(generator.limit(generator.linear(rows)))
    largest = generator.largest_distance
    values = torch.stack([inconsistency(drawn, largest) for drawn in draws])
    best = torch.stack(draws)[values.argmin(0), torch.arange(40)]
    assert torch.equal(images, from_distances(best, largest=largest))
    assert len(values.argmin(0).unique()) == n_draws
    # Control: one draw has the first of them.
    first = from_distances(draws[0], largest=largest)
    assert torch.equal(of_shapes(1)(codes, unlabelled(40)), first)


def test_files_that_state_no_largest_distance_have_that_of_0_4_0():
    assert of_shapes(4).largest_distance == 4


def test_spread_scales_the_rows_of_every_draw():
    generator = of_shapes(3)
    torch.manual_seed(0)
    codes = generator.latent(5)
    torch.manual_seed(0)
    ratio = (generator.latent(5, spread=0.5) / codes).unflatten(1, (3, N_PIXELS + 1))
    torch.testing.assert_close(ratio[:, :, :-1], torch.full((5, 3, N_PIXELS), 0.5))
    torch.testing.assert_close(ratio[:, :, -1], torch.ones(5, 3))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_draws": 2}, "one draw"),
        ({"n_draws": 0}, "draws"),
        ({"n_draws": 10**6}, "draws"),
        ({"largest_distance": 0}, "largest_distance"),
        ({"largest_distance": 9.0}, "largest_distance"),
        ({"largest_distance": float("nan")}, "largest_distance"),
    ],
)
def test_draws_and_distances_that_are_not_possible_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        MixtureGenerator(SHAPE, **options)
