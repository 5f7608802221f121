"""Choice of the structure from public numbers:
the stated inequalities, monotony, shares, limits.
"""

import math

import pytest

from dpswd import InputError
from dpswd.features.frequencies import Frequencies
from dpswd.mixture.forecast import forecast

IMAGES = [(1, 28, 28), (3, 32, 32), (1, 8, 8)]
SHAPES = [*IMAGES, (64,)]
SIZES = [(300, 10), (5000, 10), (60_000, 10), (1800, 0)]  # records and classes


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mu", [0.06, 0.27, 2.0])
@pytest.mark.parametrize(("n", "n_classes"), SIZES)
def test_forecast_shares_are_those_of_the_whole_budget(shape, mu, n, n_classes):
    structure = forecast(n, shape, n_classes, mu, n_reference=2000)
    assert sum(structure.shares.values()) == pytest.approx(1)
    assert min(structure.shares.values()) > 0
    assert set(structure.signal_to_noise) == set(structure.shares)
    assert 1 <= structure.n_components <= structure.dim


@pytest.mark.parametrize("shape", IMAGES)
def test_forecast_frequencies_keep_the_inequality_and_grow_with_the_budget(shape):
    dims = []
    for mu in (0.06, 0.27, 2.0, 50.0):
        structure = forecast(5000, shape, 10, mu)
        most = (mu * 5000 / math.sqrt(10)) ** (2 / 3)
        assert structure.dim <= 1.3 * most + 6  # a square of frequencies is rounded
        assert structure.dim == Frequencies(shape, structure.size, structure.chroma_size).dim
        dims.append(structure.dim)
    assert dims == sorted(dims)


def test_forecast_levels_of_the_histogram_grow_with_the_budget_and_need_images():
    levels = [forecast(1438, (1, 8, 8), 10, mu).n_levels for mu in (0.06, 0.269, 0.5, 50.0)]
    assert levels == sorted(levels)
    assert (levels[0], levels[-1]) == (0, 32)
    assert "tones" not in forecast(60_000, (64,), 10, 2.0).shares


def test_forecast_cells_of_a_reference_keep_the_noise_of_a_mean():
    structure = forecast(1800, (32,), 0, 2.0, n_reference=2000)
    mu_sums = 2.0 * math.sqrt(structure.shares["cell_means"])
    noise = 2 * 1.3 * math.sqrt(32) * structure.n_cells / (mu_sums * 1800)
    assert 0.24 < noise <= 0.25  # in root mean square norms
    assert structure.by_reference
    assert "cell_moments" not in structure.shares
    assert structure.n_rounds == 1
    assert forecast(1800, (32,), 0, 2.0, n_reference=200).n_cells == 20  # ten records per cell


@pytest.mark.parametrize(
    ("shape", "n_classes", "mu", "n_reference"),
    [
        pytest.param((32,), 0, 0.27, 2000, id="small budget"),
        pytest.param((32,), 0, 2.0, 100, id="small reference"),
        pytest.param((1, 8, 8), 0, 2.0, 2000, id="images"),
        pytest.param((32,), 10, 2.0, 2000, id="classes"),
    ],
)
def test_forecast_leaves_a_reference_out(shape, n_classes, mu, n_reference):
    without = forecast(1800, shape, n_classes, mu)
    assert forecast(1800, shape, n_classes, mu, n_reference) == without


@pytest.mark.parametrize(
    ("n", "dim", "n_classes", "mu", "text"),
    [
        (25_000, 8, 2, 0.24, "each class"),
        (398, 30, 2, 2.0, "all classes together"),
        (400, 8, 0, 2.0, "each class"),
        (1257, 64, 10, 2.0, "scaled only"),  # one second moment for all classes
        (124, 13, 3, 2.0, "scaled only"),
    ],
)
def test_forecast_of_columns_follows_the_signal(n, dim, n_classes, mu, text):
    """The signal N mu / sqrt(2 d) is 140 C for each class, 90 for all classes together."""
    structure = forecast(n, (dim,), n_classes, mu, bounded=True)
    has_columns = text != "scaled only"
    assert structure.column_signal == pytest.approx(n * mu / math.sqrt(2 * dim))
    assert text in str(structure)
    assert (structure.n_bins > 0) is has_columns
    assert ("columns" in structure.shares) is has_columns
    assert ("overall" in structure.shares) is not has_columns
    assert structure.own_columns is (text == "each class")
    assert ("means" in structure.shares) is not structure.own_columns
    assert sum(structure.shares.values()) == pytest.approx(1)
    assert set(structure.shares) == set(structure.signal_to_noise)


def test_forecast_bins_grow_with_the_number_of_records_and_need_bounds():
    sizes = [forecast(n, (8,), 2, 2.0, bounded=True).n_bins for n in (100, 200, 400, 600, 4000)]
    assert sizes == [0, 64, 64, 64, 256]
    assert forecast(25_000, (8,), 2, 0.24).n_bins == 0
    assert "Columns" not in str(forecast(25_000, (8,), 2, 0.24))


def test_forecast_of_a_table_has_no_cells_but_its_entries():
    """Elsewhere a part of a class is a cell; on the screen of a table, a cell is an entry."""
    structure = forecast(60_000, (20,), 2, 2.0)
    assert structure.n_cells > 1  # control
    assert "groups of similar records in every class" in structure.releases_in_words
    assert "cell" not in structure.releases_in_words


def test_forecast_keeps_the_limits_that_are_passed():
    limited = forecast(60_000, (1, 28, 28), 10, 2.0, max_cells=3, n_rounds=1, max_levels=8)
    assert (limited.n_cells, limited.n_rounds, limited.n_levels) == (3, 1, 8)
    assert forecast(60_000, (1, 28, 28), 10, 2.0, max_cells=1).n_rounds == 0
    assert "tones" not in forecast(60_000, (1, 28, 28), 10, 2.0, max_levels=0).shares


def test_forecast_releases_columns_as_it_is_told():
    own, common, scaled = (
        forecast(400, (8,), 2, 2.0, bounded=True, columns=columns)
        for columns in ("own", "common", "scaled")
    )
    assert own.own_columns
    assert common.n_bins > 0
    assert not common.own_columns
    assert scaled.n_bins == 0
    with pytest.raises(InputError, match="columns"):
        forecast(400, (8,), 2, 2.0, bounded=True, columns="none")


def test_forecast_has_variances_in_place_of_covariances_of_wide_rows():
    for n, mu in ((2000, 2.0), (100, 0.2), (10**6, 5.0)):  # the dimension alone decides
        structure = forecast(n, (20_000,), 2, mu)
        assert structure.is_diagonal
        assert set(structure.shares) == {"overall", "means", "variances"}
        assert "No covariances: 20,000 columns are too many." in str(structure)
        assert not forecast(n, (4000,), 2, mu).is_diagonal
    assert not forecast(2000, (3, 256, 256), 2, 2.0).is_diagonal  # frequencies are few


def test_forecast_releases_spread_as_it_is_told():
    moments = forecast(2000, (20_000,), 2, 2.0, spread="moments")
    variances = forecast(2000, (20,), 2, 2.0, spread="variances")
    assert "moments" in moments.shares
    assert "variances" in variances.shares
    with pytest.raises(InputError, match="spread"):
        forecast(400, (8,), 2, 2.0, spread="none")


def test_forecast_of_wide_columns_with_distributions_needs_nothing_else():
    """Normal scores of a class have mean 0 and variance 1."""
    structure = forecast(200_000, (5000,), 2, 2.0, bounded=True)
    assert structure.is_diagonal
    assert dict(structure.shares) == {"columns": 1.0}
    common = forecast(200_000, (5000,), 2, 2.0, bounded=True, columns="common")
    assert set(common.shares) == {"columns", "means", "variances"}
    assert sum(common.shares.values()) == pytest.approx(1)


@pytest.mark.parametrize("n_classes", [0, 2, 10])
def test_forecast_of_wide_rows_says_how_many_records_would_do(n_classes):
    refused = forecast(20, (20_000,), n_classes, 2.0).refusal(20)
    enough = int(refused.split("at least ")[1].split(" ")[0].replace(",", ""))
    assert forecast(enough, (20_000,), n_classes, 2.0).refusal(enough) is None
    fewer = enough // (2 * max(n_classes, 1))  # at most: variances are seen before the means
    assert forecast(fewer, (20_000,), n_classes, 2.0).refusal(fewer) is not None
    assert "Expect noise" not in str(forecast(enough, (20_000,), n_classes, 2.0))
    assert forecast(20, (20,), n_classes, 2.0).refusal(20) is None  # noise, and not wide


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"n": 0}, "n"),
        ({"shape": (0,)}, "shape_0"),
        ({"n_classes": -1}, "n_classes"),
        ({"mu": 0.0}, "mu"),
        ({"max_cells": 0}, "max_cells"),
        ({"n_rounds": 0}, "n_rounds"),
    ],
)
def test_forecast_refuses_numbers_out_of_range(changes, name):
    numbers = {"n": 100, "shape": (3,), "n_classes": 2, "mu": 1.0}
    with pytest.raises(InputError, match=f"Expected {name} "):
        forecast(**numbers | changes)


def test_classes_of_images_have_one_cell_or_more_than_a_few():
    grey = {forecast(n, (1, 32, 32), 2, mu=2.0).n_cells for n in range(500, 10_500, 250)}
    colour = {forecast(n, (3, 32, 32), 2, mu=2.0).n_cells for n in range(500, 10_500, 250)}
    assert grey == {1, 8, 9}
    assert min(colour - {1}) == 4
    # control: vectors may have two or three
    assert {forecast(n, (1000,), 2, mu=2.0).n_cells for n in (2500, 4000)} == {2, 3}
