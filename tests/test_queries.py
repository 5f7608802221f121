"""Gaussian releases of all records: sensitivity by search, the law of the noise, refusals."""

import math

import lightning as L
import numpy as np
import pytest
import torch
from factories import booked, exact, records
from scipy import stats

from dpswd import (
    ClassCounts,
    ClassCovariances,
    ClassMeans,
    ColumnCounts,
    InputError,
    LabelledRows,
    PrivateRecords,
    SumAndNorm,
    queries,
)
from dpswd.queries import ClassSquares

# Chance that a correct query fails a statistical test here, over the choice of the seed.
FALSE_ALARM = 1e-6

C = 3
D = 4
R = 0.7
BOUNDS = [(-3, 3), (-20, 20), (-5, 30), (-1, 1)]
KINDS = ["integer", "numeric", "integer", "binary"]
NAMES = ["counts", "means", "moment", "covariances", "squares", "columns", "sum and norm"]
QUERIES = pytest.mark.parametrize("name", NAMES)


def make_query(name, **options):
    """A query of rows of D dimensions in C classes, or of all records for a moment and a norm."""
    if name == "counts":
        return ClassCounts(C, **options)
    if name == "means":
        return ClassMeans(C, D, R, **options)
    if name == "moment":
        return ClassCovariances(1, D, R, **options)
    if name == "covariances":
        return ClassCovariances(C, D, R, **options)
    if name == "squares":
        return ClassSquares(C, D, R, **options)
    if name == "columns":
        return ColumnCounts(C, BOUNDS, KINDS, 16, **options)
    return SumAndNorm(D, R, **options)


def exact_values(name, rows, labels):
    """What a query releases, almost without noise, in the units of its sensitivity."""
    query = make_query(name)
    if query.n_classes == 1:
        return exact(query, rows)
    return exact(query, rows, labels)


def distance(name, rows, labels):
    """How far a query moves when a record is replaced, over its sensitivity.

    The two rows (2, D) and labels (2,) are those of the record and of the one in its place.
    """
    others = torch.randn(5, D, generator=torch.Generator().manual_seed(1))
    other_labels = torch.arange(5) % C
    values = []
    for row, label in zip(rows, labels, strict=True):
        all_rows = torch.cat([others, row[None]])
        all_labels = torch.cat([other_labels, torch.tensor([label])])
        values.append(exact_values(name, all_rows, all_labels))
    return float((values[0] - values[1]).norm()) / make_query(name).mechanism.unit_sensitivity


@QUERIES
def test_query_moves_by_its_sensitivity_at_most(name):
    """Rows are long, so that they are clipped, half of them along an axis; classes may change."""
    generator = torch.Generator().manual_seed(0)
    largest = 0.0
    for i in range(200):
        rows = 10 * torch.randn(2, D, generator=generator)
        if i % 4 >= 2:
            rows = rows * (rows.abs() == rows.abs().amax(1, keepdim=True))
        largest = max(largest, distance(name, rows, [0, i % 2]))
    assert largest <= 1 + 1e-6
    assert largest > 0.8  # control: the search comes close


@QUERIES
def test_worst_pair_attains_the_sensitivity(name):
    query = booked(make_query(name, sigma=1e-13, noise_seed=0))
    first, second = query.worst_pair(9)
    moved = query.coordinates(query.release(first)) - query.coordinates(query.release(second))
    assert float(moved.norm()) == pytest.approx(query.mechanism.unit_sensitivity, rel=1e-6)


@pytest.fixture(scope="module")
def many():
    """Rows and labels of more records than a chunk holds, and the clipped rows in float64."""
    rows = torch.randn(8193, D, generator=torch.Generator().manual_seed(0))
    norms = rows.double().norm(dim=1, keepdim=True)
    return rows, torch.arange(8193) % C, rows.double() * (R / norms).clamp(max=1)


def test_class_counts_are_counts(many):
    rows, labels, _ = many
    counts = torch.bincount(labels).double()
    torch.testing.assert_close(exact_values("counts", rows, labels), counts)


def test_class_means_are_counts_and_sums(many):
    rows, labels, clipped = many
    values = exact_values("means", rows, labels)
    sums = torch.stack([clipped[labels == c].sum(0) for c in range(C)])
    torch.testing.assert_close(values[:, 0] / R, torch.bincount(labels).double())
    torch.testing.assert_close(values[:, 1:], sums)


def test_class_covariances_are_second_moments(many):
    rows, labels, clipped = many
    (moment,) = exact_values("moment", rows, labels)
    torch.testing.assert_close(moment, clipped.T @ clipped, rtol=1e-5, atol=1e-3)
    assert torch.equal(moment, moment.T)
    moments = torch.stack([clipped[labels == c].T @ clipped[labels == c] for c in range(C)])
    values = exact_values("covariances", rows, labels)
    torch.testing.assert_close(values, moments, rtol=1e-5, atol=1e-3)


def test_class_covariances_without_a_record_of_a_class_are_zero():
    values = exact_values("covariances", torch.ones(4, D), torch.tensor([0, 2, 2, 0]))
    assert float(values[1].abs().max()) < 1e-11
    assert float(values[0].abs().max()) > 0.1


def test_class_squares_are_sums_of_clipped_squares(many):
    rows, labels, _ = many
    squares = rows.double().square()
    clipped = squares * (R / squares.norm(dim=1, keepdim=True)).clamp(max=1)
    sums = torch.stack([clipped[labels == c].sum(0) for c in range(C)])
    torch.testing.assert_close(exact_values("squares", rows, labels), sums)


def test_squares_of_far_rows_do_not_overflow():
    """The norm of their squares is infinite in float64; they count as other clipped rows do."""
    rows = 1e100 * torch.ones(2, D, dtype=torch.float64)
    query = make_query("squares", sigma=1.0)
    contribution = query.contribution(rows, torch.tensor([0, 1]), 2)
    expected = torch.full((2, D), R / math.sqrt(D), dtype=torch.float64)
    torch.testing.assert_close(contribution[:2], expected)


def test_squares_move_by_more_where_terms_may_be_negative():
    """Control: the sensitivity rests on squares without a sign."""
    squares = make_query("squares")
    sums = make_query("means")
    assert squares.mechanism.sensitivity == pytest.approx(math.sqrt(2) * R)
    rows = torch.zeros(3, D)
    rows[0, 0] = R
    labels = torch.arange(3)
    moved = exact(sums, rows, labels) - exact(sums, -rows, labels)
    assert float(moved.norm()) > squares.mechanism.sensitivity


def test_sum_and_norm_are_the_sum_and_the_squared_norms(many):
    rows, labels, clipped = many
    expected = torch.cat([clipped.sum(0), clipped.square().sum()[None] / R])
    torch.testing.assert_close(exact_values("sum and norm", rows, labels), expected)


def differs_by_order(name):
    """Whether a sum over 6,000 records changes when they come in another order."""
    rows = torch.randn(6000, D, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(6000) % C
    order = torch.randperm(6000, generator=torch.Generator().manual_seed(1))
    values = exact_values(name, rows, labels)
    return not torch.equal(values, exact_values(name, rows[order], labels[order]))


@QUERIES
def test_sums_do_not_depend_on_the_order_of_the_records(name):
    assert not differs_by_order(name)


@pytest.mark.parametrize("name", ["means", "moment", "covariances", "squares", "sum and norm"])
def test_sums_of_rows_that_are_not_rounded_depend_on_the_order(name, monkeypatch):
    """Control: the last digits then depend on all records."""
    # the rounding cannot be switched off otherwise
    monkeypatch.setattr(queries, "_summable", lambda values, *_, **__: values)
    assert differs_by_order(name)


@pytest.fixture(scope="module")
def table():
    """Rows and labels of records with integer columns, and their counts."""
    rows = 8 * torch.randn(5000, D, generator=torch.Generator().manual_seed(0))
    rows[:, [0, 2]] = rows[:, [0, 2]].round()
    labels = torch.arange(5000) % C
    return rows, labels, exact_values("columns", rows, labels)


def test_column_counts_of_bins_equal_a_histogram(table):
    """Bins hold what NumPy's histogram counts, values beyond the bounds included."""
    rows, labels, counts = table
    bins = make_query("columns").bins
    start = 0
    for level in bins.levels:
        part = counts[1, start : start + level.n_groups]
        start += level.n_groups
        low, high = BOUNDS[level.column]
        column = rows[labels == 1, level.column].double().clamp(low, high).numpy()
        edges = bins.edges[level.column, : bins.n_bins[level.column] + 1].clamp(max=1e9).numpy()
        histogram = np.histogram(column, edges)[0]
        groups = np.add.reduceat(histogram, np.arange(0, len(histogram), level.width))
        np.testing.assert_allclose(part, groups, atol=1e-9)


def test_column_counts_of_every_level_add_up_to_the_classes(table):
    _, labels, counts = table
    levels = make_query("columns").bins.levels
    for part in counts.split([level.n_groups for level in levels], dim=1):
        torch.testing.assert_close(part.sum(1), torch.bincount(labels).double())


def test_column_counts_have_the_levels_of_the_columns():
    bins = make_query("columns").bins
    levels = [(level.column, level.width) for level in bins.levels]
    assert levels == [(0, 1), (1, 1), (1, 8), (2, 1), (2, 8), (3, 1)]
    for column, bounds in enumerate(BOUNDS):
        assert set(bounds) <= set(bins.atoms[column].tolist())


def check_law(noise, sigma):
    """Check that numbers are normal with this standard deviation, and with no other."""
    assert stats.kstest(noise / sigma, "norm").pvalue > FALSE_ALARM
    for factor in (2 / 3, 3 / 2):  # controls
        assert stats.kstest(noise / (sigma * factor), "norm").pvalue < FALSE_ALARM


def releases(query, rows, times):
    """Coordinates of several releases of rows in class 0."""
    labels = torch.zeros(len(rows), dtype=torch.int64)
    handle = PrivateRecords(rows, labels, classes=range(2))
    booked(query)
    return torch.stack([query.coordinates(query.release(handle)) for _ in range(times)])


def test_noise_of_counts_is_normal_and_independent():
    query = ClassCounts(2, sigma=3.0, noise_seed=0)
    counts = releases(query, torch.zeros(20, 1), 1500)
    noise = (counts - torch.tensor([20.0, 0])).flatten().numpy()
    check_law(noise, 3.0)
    correlation = np.corrcoef(noise[:-1], noise[1:])[0, 1]
    assert abs(correlation) * math.sqrt(len(noise)) < stats.norm.isf(FALSE_ALARM / 2)


@pytest.mark.parametrize(
    "query",
    [
        ClassMeans(2, 2000, R, sigma=3.0, noise_seed=5),
        SumAndNorm(4000, R, sigma=3.0, noise_seed=5),
    ],
    ids=["means", "sum and norm"],
)
def test_noise_of_sums_is_normal(query):
    values = releases(query, torch.zeros(4, query.dim), 1).flatten().numpy()
    check_law(values[5:], 3.0)  # the first ones are counts, or sums that are not zero


@pytest.mark.parametrize("n_classes", [1, 2])
def test_noise_of_covariances_is_normal_and_symmetric(n_classes):
    query = ClassCovariances(n_classes, 6, sigma=2.0, noise_seed=0)
    noise = releases(query, torch.zeros(3, 6), 700).numpy().reshape(-1, 6, 6)
    assert (noise == noise.transpose(0, 2, 1)).all()
    diagonal = np.diagonal(noise, axis1=1, axis2=2)
    above = noise[:, *np.triu_indices(6, 1)]
    check_law(diagonal.ravel(), 2.0)
    check_law(above.ravel(), 2.0 / math.sqrt(2))
    # entries are independent: the 21 of a release, standardised, sum to a chi-square of 21
    total = (diagonal**2).sum(1) + 2 * (above**2).sum(1)
    assert stats.kstest(total / 4, "chi2", args=(21,)).pvalue > FALSE_ALARM


@QUERIES
def test_noise_is_fresh_whatever_the_seed_of_torch(name):
    handle = PrivateRecords(torch.zeros(9, D), torch.arange(9) % C, classes=range(C))
    values = []
    for _ in range(2):
        L.seed_everything(0, verbose=False)
        state = torch.get_rng_state()
        query = booked(make_query(name, sigma=1.0))
        values += [query.coordinates(query.release(handle)) for _ in range(2)]
        assert torch.equal(state, torch.get_rng_state())  # torch's generator is not used
    for i, value in enumerate(values):
        for other in values[:i]:  # some entries may agree, since they are rounded to a grid
            assert float((value == other).float().mean()) <= 0.5


def one_group_more(values, labels):
    """A row function whose groups lie outside those of the query."""
    return values, labels + 1


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (ClassCounts(3), "calibrate"),
        (ClassCounts(2, sigma=1.0), "n_classes"),
        (ClassMeans(2, 3, sigma=1.0), "n_classes"),
        (ClassMeans(3, 4, sigma=1.0), "dim=4"),
        (ColumnCounts(3, [(0, 1)], sigma=1.0), "1 columns"),
        (ClassCovariances(1, 2, sigma=1.0), "dim=2"),
    ],
)
def test_records_that_do_not_fit_release_nothing(query, message):
    with pytest.raises(InputError, match=message):
        booked(query).release(records())
    assert query.recorder == []
    assert query.n_releases == 0


@pytest.mark.parametrize(
    "query", [ClassMeans(3, 3, sigma=1.0), ColumnCounts(3, [(0, 1)] * 3, sigma=1.0)]
)
def test_groups_outside_release_nothing(query):
    with pytest.raises(InputError, match="groups"):
        booked(query).release(records(), rows=LabelledRows(one_group_more))
    assert query.recorder == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ColumnCounts(2, [(0, 1)], n_bins=3), "n_bins"),
        (lambda: ColumnCounts(2, [(0, 1)], ["integer"] * 2), "kind"),
        (lambda: ColumnCounts(2, [(0.2, 0.8)], ["integer"]), "two values"),
        (lambda: ClassCounts(1), "n_classes"),
        (lambda: ClassCounts(3, sigma=0.0), "sigma"),
        (lambda: ClassCounts(3, share=0.0), "share"),
        (lambda: ClassCounts(3, share=1), "share"),
        (lambda: ClassCounts(3, noise_seed=-1), "noise_seed"),
        (lambda: ClassCovariances(1, 0), "dim"),
        (lambda: ClassCovariances(1, 3, row_norm=-1.0), "row_norm"),
    ],
)
def test_options_out_of_range_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_bound_of_a_query_cannot_be_changed():
    with pytest.raises(AttributeError):
        ClassMeans(1, 4).row_norm = 2.0


def test_query_of_one_class_ignores_the_classes():
    rows = torch.randn(9, D) / 9
    labelled = PrivateRecords(rows, torch.arange(9) % C, classes=range(C))
    query = booked(ClassMeans(1, D, R, sigma=1e-13))
    without = query.coordinates(query.release(PrivateRecords(rows)))
    torch.testing.assert_close(query.coordinates(query.release(labelled)), without)
