"""Fits of wide rows: variances in place of covariances, the forecast, memory."""

import math
import resource

import pytest
import torch
from factories import fine, privacy, run_ranks

from dpswd import Budget, PrivateRecords, mixture
from dpswd.accounting.calibrate import mu_of_epsilon
from dpswd.mixture.forecast import forecast
from dpswd.networks.generator import draw

EPSILON = 10.0
DELTA = 1e-5
MU = mu_of_epsilon(EPSILON, DELTA)
N = 2000


def table(dim, n=N, seed=0):
    """Two classes whose columns have means and deviations of their own, in float32."""
    random = torch.Generator().manual_seed(seed)
    columns = torch.Generator().manual_seed(5)
    means = 0.4 * torch.randn(2, dim, generator=columns)
    deviations = 0.5 + torch.rand(dim, generator=columns)
    labels = torch.arange(n) % 2
    return means[labels] + deviations * torch.randn(n, dim, generator=random), labels


def fit(directory, values, labels, structure=None, **options):
    """Fits a table at epsilon 10."""
    records = PrivateRecords(values, labels, classes=[0, 1], bounds=options.pop("bounds", None))
    if records.bounds is None:
        options = {"radius": math.sqrt(values.shape[1])} | options
    budget = Budget(records, target_epsilon=EPSILON, target_delta=DELTA, run_dir=directory)
    return mixture.fit(records, budget, structure=structure, **options)


def structure_of(dim, n=N, **options):
    return forecast(n, (dim,), 2, MU, **options)


@pytest.mark.parametrize("bounds", [None, (-4, 4)])
def test_fit_has_means_and_variances_of_the_columns(tmp_path, bounds):
    values, labels = table(60)
    is_bounded = bounds is not None
    structure = structure_of(60, spread="variances", bounded=is_bounded, columns="scaled")
    options = {"bounds": [bounds] * 60 if is_bounded else None}
    generator = fit(tmp_path, values, labels, structure, **options)
    assert privacy(tmp_path)["releases_made"] == 3
    assert generator.roots.numel() == 0
    rows = draw(generator, labels)
    for c in (0, 1):
        own = values[labels == c]
        drawn = rows[labels == c]
        assert float((drawn.mean(0) - own.mean(0)).abs().max()) < 0.25
        ratios = drawn.var(0) / own.var(0)
        assert 0.9 < float(ratios.mean()) < 1.1
        assert float(torch.corrcoef(torch.stack([drawn.var(0), own.var(0)]))[0, 1]) > 0.9


def test_fit_of_wide_columns_releases_their_distributions_alone(tmp_path):
    """Half of the cells are zeros, which no normal law has."""
    values, labels = table(20)
    values = values.clamp(min=0)
    structure = structure_of(20, spread="variances", bounded=True, columns="own")
    generator = fit(tmp_path, values, labels, structure, bounds=[(0, 4)] * 20)
    assert privacy(tmp_path)["releases_made"] == 1
    rows = draw(generator, labels)
    for c in (0, 1):
        zeros = (values[labels == c] < 0.05).float().mean(0)
        drawn = (rows[labels == c] < 0.05).float().mean(0)
        assert float((drawn - zeros).abs().max()) < 0.15
        assert float(zeros.std()) > 0.05


def nearest_mean_accuracy(rows, row_labels, values, labels):
    """Accuracy of the nearest mean of a class, in standard deviations of the columns."""
    scale = rows.std(0) + 1e-6
    means = torch.stack([rows[row_labels == c].mean(0) for c in (0, 1)]) / scale
    nearest = torch.cdist(values / scale, means).argmin(1)
    return float((nearest == labels).float().mean())


def realised(values, labels):
    """Signal-to-noise ratios of means and variances, from the records themselves."""
    dim = values.shape[1]
    rows = values.double() - values.double().mean(0)
    rows = rows / (2 * rows.square().sum(1).mean().sqrt())  # of root mean square norm 1/2
    means = torch.stack([rows[labels == c].mean(0) for c in (0, 1)])
    sums = float(means.square().sum(1).mean().sqrt()) * len(values) / 2
    shares = structure_of(dim).shares
    noise_of_sums = 1 / (MU * math.sqrt(shares["means"]))
    squares = (rows - means[labels]).square()
    bound = 2 * 0.25 / math.sqrt(dim)
    clipped = squares * (bound / squares.norm(dim=1, keepdim=True)).clamp(max=1)
    noise_of_squares = math.sqrt(2) * bound / (MU * math.sqrt(shares["variances"]))
    return {
        "means": sums / math.sqrt(dim) / noise_of_sums,
        "variances": float(clipped.sum(0).mean()) / noise_of_squares,
    }


@pytest.mark.slow
def test_classifier_of_wide_synthetic_rows_is_right_and_was_forecast(tmp_path):
    values, labels = table(5000)
    structure = structure_of(5000)
    assert structure.is_diagonal
    ratios = realised(values, labels)
    for name, ratio in ratios.items():
        assert 0.5 < structure.signal_to_noise[name] / ratio < 2
    generator = fit(tmp_path, values, labels)
    drawn_labels = torch.arange(1000) % 2
    accuracy = nearest_mean_accuracy(
        draw(generator, drawn_labels), drawn_labels, *table(5000, 500, 1)
    )
    assert accuracy > 0.95
    exchanged = 1 - drawn_labels  # control
    assert (
        nearest_mean_accuracy(draw(generator, exchanged), drawn_labels, *table(5000, 500, 1)) < 0.05
    )


def fit_in_process(rank, directory):
    """Fits 2,000 records of 20,000 columns; returns the peak memory of the process in bytes."""
    values, labels = table(20_000)
    generator = fit(directory, values, labels)
    assert draw(generator, labels[:100]).shape == (100, 20_000)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.slow
def test_twenty_thousand_columns_fit_into_little_memory(server, tmp_path):
    """A matrix of so many rows and columns alone would take 3.2 GB."""
    (peak,) = fine(run_ranks(server, fit_in_process, tmp_path / "run", world=1))
    assert peak < 2.5e9
