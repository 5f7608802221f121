"""The one-shot generator: releases within the budget, cells, tones, resumption,
processes, refusals.
"""

import itertools

import numpy as np
import pytest
import torch
from factories import BLOB_DIM, blobs, fine, ledger_of, privacy, run_ranks, written
from factories import BLOB_SIZE as N

from dpswd import Budget, InputError, PrivateRecords, mixture
from dpswd.accounting.calibrate import mu_of_epsilon
from dpswd.errors import UtilityWarning
from dpswd.features.frequencies import reference_spectrum
from dpswd.mixture.forecast import forecast
from dpswd.networks.generator import draw
from dpswd.queries import ClassMeans

EPSILON = 20.0
DELTA = 1e-4
MU = mu_of_epsilon(EPSILON, DELTA)


def fit(directory, records=None, *, resume=False, **options):
    """Fits vectors with radius 1, or images."""
    if records is None:
        records = blobs()
    if len(records.shape) == 1 and records.bounds is None:
        options = {"radius": 1.0} | options
    budget = Budget(
        records, target_epsilon=EPSILON, target_delta=DELTA, run_dir=directory, resume=resume
    )
    return mixture.fit(records, budget, **options)


def structure_of(records, mu=MU, **limits):
    """The structure of records, at another budget than that of the run or within limits."""
    return forecast(len(records), records.shape, records.n_classes, mu, **limits)


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


def test_fit_releases_within_the_budget(fitted):
    generator, statement = fitted
    assert statement["sound"]
    assert statement["epsilon"] <= EPSILON
    assert statement["planned_releases"] == generator.structure.n_releases
    assert statement["releases_made"] == generator.structure.n_releases


def test_fit_has_the_means_and_the_proportions_of_the_classes(fitted):
    """At epsilon 20 and N = 300 a count has a standard deviation of about 2 of 30 to 180."""
    generator, _ = fitted
    assert list(generator.parameters()) == []
    assert not generator.training
    assert generator.proportions == pytest.approx([0.6, 0.3, 0.1], abs=0.06)
    means = draw(generator, torch.arange(3).repeat(200)).unflatten(0, (200, 3)).mean(0)
    assert bool((means[:, :3].argmax(1) == torch.arange(3)).all())
    counts = torch.bincount(generator.labels(1000, "released"))
    assert counts.tolist() == pytest.approx([600, 300, 100], abs=61)


def test_fit_of_many_records_has_cells(tmp_path):
    generator = fit(tmp_path, structure=structure_of(blobs(), mu=400.0))
    assert generator.structure.n_cells == 12
    assert not generator.structure.pooled
    assert privacy(tmp_path)["releases_made"] == 7
    assert torch.isfinite(draw(generator, torch.arange(3))).all()


@pytest.mark.parametrize("pair", [(0.0, -3.0), (0.0, 0.0), (1.0, -2.0)])
def test_counts_of_cells_that_add_up_to_zero_or_less_leave_finite_records(
    tmp_path, monkeypatch, pair
):
    """The noise of a few records makes such counts."""
    structure = structure_of(blobs(), mu=400.0)
    n_all_cells = structure.n_groups * structure.n_cells
    release = ClassMeans.release

    def release_little(query, *arguments, **options):
        counts, sums = release(query, *arguments, **options)
        if len(counts) == n_all_cells:
            counts = torch.tensor(pair, dtype=counts.dtype).repeat(n_all_cells // 2)
        return counts, sums

    monkeypatch.setattr(ClassMeans, "release", release_little)
    generator = fit(tmp_path, structure=structure)
    assert bool((generator.weights > 0).all())
    assert bool(torch.isfinite(draw(generator, torch.arange(3))).all())


def test_fit_gives_every_round_its_share_of_the_budget(tmp_path):
    fit(tmp_path, structure=structure_of(blobs(), mu=400.0))
    mechanisms = [part["mechanism"] for part in ledger_of(tmp_path).header["plan"]]
    mu_sq = np.array([(each["sensitivity"] / each["sigma"]) ** 2 for each in mechanisms])
    shares = [0.04, 0.05, 0.16, 0.04, 0.04, 0.04, 0.63]
    np.testing.assert_allclose(mu_sq / MU**2, shares, rtol=0.01)


def test_fit_of_few_records_has_one_moment_and_warns_of_noise(tmp_path):
    with pytest.warns(UtilityWarning, match="Expect noise"):
        generator = fit(tmp_path, structure=structure_of(blobs(), mu=0.05))
    assert generator.structure.n_cells == 1
    assert generator.structure.pooled
    assert privacy(tmp_path)["releases_made"] == 3
    assert torch.isfinite(draw(generator, torch.arange(3))).all()


def spread_within_cells(directory, n_rounds):
    """Mean variance of the generated rows within three cells, over that of all rows."""
    values = 0.01 * torch.randn(900, 2, generator=torch.Generator().manual_seed(0))
    uniform = torch.rand(810, generator=torch.Generator().manual_seed(1))
    values[:810, 0] += uniform  # nine rows in ten
    values[810:, 0] += 3
    records = PrivateRecords(values)
    structure = structure_of(records, max_cells=3, n_rounds=n_rounds)
    generator = fit(directory, records, structure=structure, radius=3.0, noise_seed=1)
    weights = generator.weights[0]
    means = generator.means
    within = float(weights @ generator.roots.square().sum((1, 2)))
    between = float(weights @ (means - weights @ means).square().sum(1))
    return within / (within + between)


def test_fit_moves_the_cells_to_the_rows_in_rounds(tmp_path):
    """The first cells are those of a normal distribution, which these rows are not."""
    once = spread_within_cells(tmp_path / "once", n_rounds=1)
    thrice = spread_within_cells(tmp_path / "thrice", n_rounds=3)
    assert 0.01 < thrice < 0.8 * once


def test_fit_has_the_cells_of_a_reference(tmp_path):
    """Two clusters at a distance; the reference is the same up to an affine map."""
    random = torch.Generator().manual_seed(0)

    def two_clusters(n):
        centres = torch.eye(4)[torch.arange(n) % 2]
        return centres + 0.1 * torch.randn(n, 4, generator=random)

    records = PrivateRecords(two_clusters(2000))
    generator = fit(tmp_path, records, reference=3 * two_clusters(1000) + 1)
    assert generator.structure.by_reference
    assert "cell_moments" not in generator.structure.shares
    rows = draw(generator, unlabelled(2000))
    gap = (rows[:, 0] - rows[:, 1]).abs()  # near 1 in both clusters, rarely near 0
    assert float((gap < 0.3).float().mean()) < 0.1


@pytest.mark.parametrize("channels", [1, 3])
def test_fit_of_images_without_classes(tmp_path, channels):
    generator = fit(tmp_path, pictures(channels), shift=1.0)
    assert generator.residual is (channels == 3)
    assert bool(generator.reflect)  # the border is not black
    images = draw(generator, unlabelled(200))
    assert images.shape == (200, channels, 8, 8)
    assert 0 <= float(images.min()) <= float(images.max()) <= 1
    contrast = images[..., 6:].mean() - images[..., :2].mean()
    assert 0.15 < float(contrast) < 0.45  # 0.3 in the records


def test_fit_draws_the_frequencies_that_are_not_released(tmp_path):
    """Their amplitude is 0.6 of the reference, or less where the contrast of the
    records is lower.
    """
    generator = fit(tmp_path, pictures(3))
    ratio = (generator.residual_scale / reference_spectrum((3, 8, 8))).flatten()
    drawn = ratio > 0
    assert 0 < int(drawn.sum()) < len(ratio)
    assert torch.allclose(ratio[drawn], ratio[drawn][0])
    assert 0.05 < float(ratio[drawn][0]) <= 0.6


def test_fit_takes_residual_amplitude_and_contrast_as_arguments(tmp_path):
    generator = fit(tmp_path, pictures(3), residual_amplitude=0.0, contrast=0.1)
    assert float(generator.residual_scale.abs().max()) == 0
    assert generator.contrast == 0.1


def test_fit_gives_generated_images_the_tones_of_the_records(tmp_path):
    """A third of the pixels is black; a normal law has other shares of black ones."""
    values = torch.rand(N, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    generator = fit(tmp_path, PrivateRecords(values * (values > 1 / 3)))
    assert generator.structure.n_levels >= 4
    latent = generator.latent(2000)
    rows = generator.mixture_rows(latent, generator.cells(latent, unlabelled(2000)))
    linear = generator.linear(rows).flatten()
    tones = generator.limit(linear)
    # The noise of a cumulated share is 2 sqrt(levels) / (mu_tones N), mu about 4 at epsilon 20.
    assert float((tones == 0).float().mean()) == pytest.approx(1 / 3, abs=0.1)
    assert bool((tones[linear.argsort()].diff() >= 0).all())
    assert bool((tones[linear > generator.tones[-1]] == 1).all())
    assert abs(float((linear <= 0).float().mean()) - 1 / 3) > 0.1  # control


def test_fit_gives_clipped_deviations_their_variance_back(tmp_path):
    """Deviations of norm about 1/2 are clipped to 0.35, which loses half of their variance."""
    values = 0.3 * torch.randn(900, 6, generator=torch.Generator().manual_seed(0))
    records = PrivateRecords(values)
    generator = fit(tmp_path, records, structure=structure_of(records, max_cells=1))
    assert generator.structure.class_bound == 0.35
    generated = draw(generator, unlabelled(4000)).var(0).sum()
    assert 0.85 < float(generated / values.var(0).sum()) < 1.15


WIDE_AND_NARROW = torch.rand(2000, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor(
    [3000.0, 0.15]
) + torch.tensor([500.0, 0.02])


def test_fit_of_columns_has_their_scale(tmp_path):
    """Columns between 0 and 4,000, and below 0.2."""
    records = PrivateRecords(WIDE_AND_NARROW, bounds=[(0, 4000), (0, 0.2)])
    rows = draw(fit(tmp_path, records), unlabelled(4000))
    torch.testing.assert_close(rows.mean(0), WIDE_AND_NARROW.mean(0), rtol=0.1, atol=0)
    torch.testing.assert_close(rows.std(0), WIDE_AND_NARROW.std(0), rtol=0.15, atol=0)
    assert bool(((rows >= 0) & (rows <= torch.tensor([4000.0, 0.2]))).all())


def test_fit_warns_of_vectors_that_were_clipped(tmp_path):
    with pytest.warns(UtilityWarning, match="longer than twice radius=1 and were clipped"):
        fit(tmp_path, PrivateRecords(WIDE_AND_NARROW), radius=1.0)


def fit_there(rank, directory):
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    try:
        generator = fit(directory, noise_seed=1)
        return {name: value.tolist() for name, value in generator.state_dict().items()}
    finally:
        torch.distributed.destroy_process_group()


def test_fit_in_two_processes_is_that_of_one(server, tmp_path):
    first, second = fine(run_ranks(server, fit_there, tmp_path / "two"))
    assert first == second
    alone = fit(tmp_path / "one", noise_seed=1).state_dict()
    for name in ("weights", "tail"):  # directions have a sign
        torch.testing.assert_close(torch.tensor(first[name]), alone[name], rtol=1e-4, atol=1e-6)
    assert privacy(tmp_path / "two")["releases_made"] == privacy(tmp_path / "one")["releases_made"]


@pytest.mark.parametrize("lines", [1, 3])
def test_fit_that_was_killed_is_finished_with_nothing_paid_twice(tmp_path, monkeypatch, lines):
    """The process dies after ``lines`` releases; the resumed one reads those from their files."""
    n_calls = itertools.count()
    record = Budget.record

    def dies(self, mechanism):
        if next(n_calls) == lines:
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
    for name, value in generator.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])


VECTORS = torch.rand(N, BLOB_DIM, generator=torch.Generator().manual_seed(0))
ROWS = PrivateRecords(VECTORS)
COLUMNS = PrivateRecords(VECTORS, bounds=[(0, 1)] * BLOB_DIM)
OTHER = structure_of(PrivateRecords(torch.rand(N, BLOB_DIM + 1)))
WITH_CLASSES = structure_of(blobs())
WITH_COLUMNS = forecast(N, (BLOB_DIM,), 0, MU, bounded=True)
WITH_REFERENCE = forecast(2000, (BLOB_DIM,), 0, MU, n_reference=1000)


@pytest.mark.parametrize(
    ("records", "options", "message"),
    [
        pytest.param(ROWS, {"radius": None}, r"bounds=\[.*\].* or radius", id="no limits"),
        pytest.param(ROWS, {"radius": 0.0}, "radius", id="radius 0"),
        pytest.param(ROWS, {"shift": 1.0}, "for jitter", id="jitter of vectors"),
        pytest.param(ROWS, {"residual": True}, "residual", id="residual of vectors"),
        pytest.param(COLUMNS, {"radius": 1.0}, "both", id="bounds and radius"),
        pytest.param(pictures(), {"zoom": -0.1}, "zoom", id="negative jitter"),
        pytest.param(pictures(), {"radius": 3.0}, "of vectors only", id="radius of images"),
        pytest.param(ROWS, {"structure": OTHER}, "of shape", id="structure of another shape"),
        pytest.param(ROWS, {"structure": WITH_CLASSES}, "classes", id="structure with classes"),
        pytest.param(ROWS, {"structure": WITH_COLUMNS}, "bounds", id="structure of columns"),
        pytest.param(ROWS, {"structure": WITH_REFERENCE}, "reference", id="no reference"),
        pytest.param(ROWS, {"reference": VECTORS.numpy()}, "tensor", id="reference of NumPy"),
        pytest.param(ROWS, {"reference": VECTORS[:, 1:]}, "of shape", id="narrow reference"),
        pytest.param(ROWS, {"reference": VECTORS[:0]}, "got 0", id="empty reference"),
        pytest.param(ROWS, {"reference": VECTORS / 0}, "finite", id="infinite reference"),
    ],
)
def test_fit_refuses_before_a_release(tmp_path, records, options, message):
    with pytest.raises(InputError, match=message):
        fit(tmp_path / "run", records, **options)
    assert not (tmp_path / "run").exists()
