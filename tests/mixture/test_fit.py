"""The one-shot generator: releases within the budget, cells, tones, resumption, processes, refusals."""

from unittest.mock import patch

import numpy as np
import pytest
import torch
from factories import BLOB_DIM, blobs, fine, ledger_of, privacy, run_ranks, written
from factories import BLOB_SIZE as N

from dpswd import Budget, InputError, PrivateRecords, mixture
from dpswd.accounting.calibrate import mu_of_epsilon
from dpswd.features.frequencies import reference_spectrum
from dpswd.mixture.generator import MixtureGenerator
from dpswd.mixture.structure import forecast
from dpswd.networks.generator import draw


def fit(directory, records=None, *, epsilon=20.0, delta=1e-4, resume=False, **options):
    """Fits vectors with radius 1, or images."""
    records = blobs() if records is None else records
    if len(records.shape) == 1 and records.bounds is None:
        options = {"radius": 1.0} | options
    budget = Budget(
        records, target_epsilon=epsilon, target_delta=delta, run_dir=directory, resume=resume
    )
    return mixture.fit(records, budget, **options)


@pytest.fixture
def as_if(monkeypatch):
    """Gives a fit the structure of another budget."""

    def patched(mu):
        def other(n, shape, n_classes, _, *more):
            return forecast(n, shape, n_classes, mu, *more)

        monkeypatch.setattr("dpswd.mixture.fitting.forecast", other)

    return patched


def pictures(channels=3):
    """Colour or grey images without classes; the right half is brighter."""
    values = 0.3 + 0.1 * torch.randn(N, channels, 8, 8, generator=torch.Generator().manual_seed(0))
    values[..., 4:] += 0.3
    return PrivateRecords(values.clamp(0, 1))


def unlabelled(n):
    return torch.zeros(n, dtype=torch.int64)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A generator of the blobs, and the statement of its run."""
    directory = tmp_path_factory.mktemp("run") / "run"
    return fit(directory), privacy(directory)


def test_releases_within_the_budget(fitted):
    """At epsilon 20 and N = 300 a count has a standard deviation of about 2 of 30 to 180."""
    generator, facts = fitted
    assert facts["sound"]
    assert facts["epsilon"] <= 20.0
    assert facts["planned_releases"] == facts["releases_made"] == generator.structure.n_releases
    assert list(generator.parameters()) == []
    assert not generator.training
    assert generator.proportions == pytest.approx([0.6, 0.3, 0.1], abs=0.06)
    means = draw(generator, torch.arange(3).repeat(200)).unflatten(0, (200, 3)).mean(0)
    assert bool((means[:, :3].argmax(1) == torch.arange(3)).all())
    assert torch.bincount(generator.labels(1000, "released")).tolist() == pytest.approx(
        [600, 300, 100], abs=61
    )


@pytest.mark.parametrize(("mu", "releases"), [(400.0, 7), (0.05, 3)])
def test_many_records_have_cells_and_few_have_one_moment(tmp_path, as_if, mu, releases):
    as_if(mu)
    generator = fit(tmp_path)
    assert (generator.structure.n_cells, generator.structure.pooled) == (
        (12, False) if mu > 1 else (1, True)
    )
    assert privacy(tmp_path)["releases_made"] == releases
    assert torch.isfinite(draw(generator, torch.arange(3))).all()
    if mu > 1:  # every round has its share of the budget
        queries = [part["mechanism"] for part in ledger_of(tmp_path).header["plan"]]
        mu_sq = np.array([(query["sensitivity"] / query["sigma"]) ** 2 for query in queries])
        shares = mu_sq / mu_of_epsilon(20.0, 1e-4) ** 2
        np.testing.assert_allclose(shares, [0.04, 0.05, 0.16, 0.04, 0.04, 0.04, 0.63], rtol=0.01)


def spread_within_cells(directory, rounds):
    """Mean variance of the generated rows within three cells, over that of all rows."""
    values = 0.01 * torch.randn(900, 2, generator=torch.Generator().manual_seed(0))
    values[:810, 0] += torch.rand(
        810, generator=torch.Generator().manual_seed(1)
    )  # nine in ten are uniform
    values[810:, 0] += 3
    with patch.multiple("dpswd.mixture.structure", ROUNDS=rounds, MAX_CELLS=3):
        generator = fit(directory, PrivateRecords(values), radius=3.0, noise_seed=1)
    weights, means, roots = generator.weights[0], generator.means, generator.roots
    within = float(weights @ roots.square().sum((1, 2)))
    between = float(weights @ (means - weights @ means).square().sum(1))
    return within / (within + between)


def test_rounds_move_the_cells_to_the_rows(tmp_path):
    """The first cells are those of a normal distribution, which these rows are not."""
    once, thrice = (spread_within_cells(tmp_path / str(rounds), rounds) for rounds in (1, 3))
    assert 0.01 < thrice < 0.8 * once


def test_a_reference_gives_its_cells(tmp_path):
    """Two clusters at a distance; the reference is the same up to an affine map."""
    generator = torch.Generator().manual_seed(0)

    def two(n):
        return 0.1 * torch.randn(n, 4, generator=generator) + torch.eye(4)[torch.arange(n) % 2]

    made = fit(tmp_path, PrivateRecords(two(2000)), reference=3 * two(1000) + 1)
    assert made.structure.by_reference
    assert "cell_moments" not in made.structure.shares
    rows = draw(made, unlabelled(2000))
    gap = (rows[:, 0] - rows[:, 1]).abs()  # near 1 in both clusters, rarely near 0
    assert float((gap < 0.3).float().mean()) < 0.1


@pytest.mark.parametrize("channels", [1, 3])
def test_images_without_classes(tmp_path, channels):
    generator = fit(tmp_path, pictures(channels), shift=1.0)
    assert generator.residual is (channels == 3)
    assert bool(generator.reflect)  # the border is not black
    images = draw(generator, unlabelled(200))
    assert images.shape == (200, channels, 8, 8)
    assert 0 <= float(images.min()) <= float(images.max()) <= 1
    contrast = images[..., 6:].mean() - images[..., :2].mean()
    assert 0.15 < float(contrast) < 0.45  # 0.3 in the records
    if (
        channels == 3
    ):  # frequencies that are not released: 0.6 of the reference or less, as the contrast is
        ratio = (generator.residual_scale / reference_spectrum((3, 8, 8))).flatten()
        free = ratio > 0
        assert 0 < int(free.sum()) < len(ratio)
        assert torch.allclose(ratio[free], ratio[free][0])
        assert 0.05 < float(ratio[free][0]) <= 0.6


def test_tones_of_generated_images_are_those_of_the_records(tmp_path):
    """A third of the pixels is black; a normal law has other shares of black ones."""
    values = torch.rand(N, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    generator = fit(tmp_path, PrivateRecords(values * (values > 1 / 3)))
    assert generator.structure.n_levels >= 4
    latent = generator.latent(2000)
    rows = generator.rows(latent, generator.cell(latent, unlabelled(2000)))
    # noise of a cumulated share: 2 sqrt(levels) / (mu_tones N), mu about 4 at epsilon 20
    linear = generator.linear(rows).flatten()
    tones = generator.limited(linear)
    assert float((tones == 0).float().mean()) == pytest.approx(1 / 3, abs=0.1)
    assert bool((tones[linear.argsort()].diff() >= 0).all())
    assert bool((tones[linear > generator.tones[-1]] == 1).all())
    assert abs(float((linear <= 0).float().mean()) - 1 / 3) > 0.1  # control


def test_clipped_deviations_get_the_variance_of_the_records_back(tmp_path, as_if):
    """Deviations of norm about 1/2 are clipped to 0.35, which loses half of their variance."""
    as_if(0.01)  # one cell
    values = 0.3 * torch.randn(900, 6, generator=torch.Generator().manual_seed(0))
    generator = fit(tmp_path, PrivateRecords(values))
    assert (generator.structure.n_cells, generator.structure.class_bound) == (1, 0.35)
    assert 0.85 < float(draw(generator, unlabelled(4000)).var(0).sum() / values.var(0).sum()) < 1.15


def test_bounds_give_columns_their_scale(tmp_path, capsys):
    """Columns between 0 and 4,000, and below 0.2."""
    noise = torch.rand(2000, 2, generator=torch.Generator().manual_seed(0))
    values = noise * torch.tensor([3000.0, 0.15]) + torch.tensor([500.0, 0.02])
    rows = draw(
        fit(tmp_path / "a", PrivateRecords(values, bounds=[(0, 4000), (0, 0.2)])), unlabelled(4000)
    )
    torch.testing.assert_close(rows.mean(0), values.mean(0), rtol=0.1, atol=0)
    torch.testing.assert_close(rows.std(0), values.std(0), rtol=0.15, atol=0)
    assert bool(((rows >= 0) & (rows <= torch.tensor([4000.0, 0.2]))).all())
    assert "clipped" not in capsys.readouterr().err
    fit(
        tmp_path / "b", PrivateRecords(values), radius=1.0
    )  # control: the default of 0.2, silent garbage
    assert (
        "Warning: most vectors are longer than twice radius=1 and were clipped"
        in capsys.readouterr().err
    )


def fit_there(rank, directory):
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    try:
        generator = fit(directory, noise_seed=1)
        return {name: value.tolist() for name, value in generator.state_dict().items()}
    finally:
        torch.distributed.destroy_process_group()


def test_two_processes_fit_what_one_does(server, tmp_path):
    first, second = fine(run_ranks(server, fit_there, tmp_path / "two"))
    assert first == second
    alone = fit(tmp_path / "one", noise_seed=1).state_dict()
    for name in ("weights", "tail"):  # directions have a sign
        torch.testing.assert_close(torch.tensor(first[name]), alone[name], rtol=1e-4, atol=1e-6)
    assert privacy(tmp_path / "two")["releases_made"] == privacy(tmp_path / "one")["releases_made"]


@pytest.mark.parametrize("lines", [1, 3])
def test_a_killed_run_is_finished_with_nothing_paid_twice(tmp_path, monkeypatch, lines):
    """The process dies after ``lines`` releases; the resumed one reads those from their files."""
    calls, record = iter(range(9)), Budget.record

    def dies(self, mechanism):
        if next(calls) == lines:
            raise KeyboardInterrupt
        return record(self, mechanism)

    monkeypatch.setattr(Budget, "record", dies)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path)
    monkeypatch.undo()
    before = (tmp_path / "ledger.jsonl").read_bytes()
    assert written(tmp_path) == lines
    with pytest.raises(InputError, match="ledger"):
        fit(tmp_path)
    generator = fit(tmp_path, resume=True)
    ledger = ledger_of(tmp_path)
    assert ledger.n_releases == generator.structure.n_releases
    assert (tmp_path / "ledger.jsonl").read_bytes().startswith(before)
    again = fit(tmp_path, resume=True)  # of a finished run: the same generator, and no release
    assert written(tmp_path) == ledger.n_releases
    assert all(
        torch.equal(value, again.state_dict()[name])
        for name, value in generator.state_dict().items()
    )


def test_the_generator_draws_cells_in_their_proportions():
    generator = MixtureGenerator((3,), n_classes=2, n_cells=3, n_components=2, bounded=False)
    generator.weights.copy_(torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]]))
    torch.manual_seed(0)
    cells = generator.cell(generator.latent(8000), torch.arange(8000) % 2)
    shares = torch.bincount(cells, minlength=6) / 4000
    assert torch.allclose(shares, generator.weights.flatten(), atol=5 * (0.25 / 4000) ** 0.5)


def test_spread_scales_the_noise_within_cells_and_not_the_choice_of_the_cell(fitted):
    generator, codes = fitted[0], []
    for spread in (1.0, 0.5):
        torch.manual_seed(0)
        codes.append(generator.latent(2000, spread))
    cells, same = (generator.cell(each, unlabelled(2000)) for each in codes)
    assert torch.equal(cells, same)
    means = generator.rows(torch.zeros_like(codes[0]), cells)
    whole, half = (generator.rows(each, cells) - means for each in codes)
    torch.testing.assert_close(half, 0.5 * whole)
    values = [
        len(draw(generator, unlabelled(2000), spread).round(decimals=3).unique(dim=0))
        for spread in (1.0, 1e-6)
    ]
    assert values[0] > 1000
    assert values[1] <= generator.structure.n_cells
    with pytest.raises(InputError, match="spread"):
        draw(generator, unlabelled(2), spread=0.0)


def test_contrast_is_one_factor_of_mean_square_one_for_the_rows_and_the_residual_of_a_record():
    n, size, dim = 4000, 3 * 8 * 8, 6
    options = {
        "n_cells": 2,
        "n_components": 4,
        "dim": dim,
        "residual": True,
        "jitter": {"shift": 1.0},
    }
    codes = []
    for contrast in (0.0, 0.5):
        torch.manual_seed(0)
        codes.append(MixtureGenerator((3, 8, 8), contrast=contrast, **options).latent(n))
    factor = codes[1] / codes[0]
    assert torch.allclose(factor[:, dim:-size], torch.ones(n, 1))  # cells and jitter
    varied = torch.cat([factor[:, :dim], factor[:, -size:]], dim=1)
    assert torch.allclose(varied, varied[:, :1].expand_as(varied), rtol=1e-4)
    log = varied[:, 0].log()
    # log ~ N(-0.25, 0.25): five standard errors
    assert abs(float(log.std()) - 0.5) < 5 * 0.5 / (2 * n) ** 0.5
    assert abs(float(log.mean()) + 0.25) < 5 * 0.5 / n**0.5


ROWS = PrivateRecords(torch.rand(N, BLOB_DIM))
COLUMNS = PrivateRecords(torch.rand(N, BLOB_DIM), bounds=[(0, 1)] * BLOB_DIM)


@pytest.mark.parametrize(
    ("records", "options", "said"),
    [
        (ROWS, {"radius": None}, r"bounds=\[\(low, high\), ...\].* or radius"),
        (ROWS, {"radius": 0.0}, "radius"),
        (ROWS, {"shift": 1.0}, "for jitter"),
        (ROWS, {"residual": True}, "residual"),
        (COLUMNS, {"radius": 1.0}, "both"),
        (pictures(), {"zoom": -0.1}, "zoom"),
        (pictures(), {"radius": 3.0}, "of vectors only"),
    ],
)
def test_refusals_release_nothing(tmp_path, records, options, said):
    with pytest.raises(InputError, match=said):
        fit(tmp_path / "run", records, **options)
    assert not (tmp_path / "run").exists()
