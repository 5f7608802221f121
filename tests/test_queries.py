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

FALSE_ALARM = 1e-6  # chance that a correct query fails a test here, over the choice of the seed
C, D, R = 3, 4, 0.7
BOUNDS, KINDS = [(-3, 3), (-20, 20), (-5, 30), (-1, 1)], ["integer", "numeric", "integer", "binary"]
MAKE = {
    "counts": lambda **options: ClassCounts(C, **options),
    "means": lambda **options: ClassMeans(C, D, R, **options),
    "moment": lambda **options: ClassCovariances(1, D, R, **options),
    "covariances": lambda **options: ClassCovariances(C, D, R, **options),
    "columns": lambda **options: ColumnCounts(C, BOUNDS, KINDS, 16, **options),
    "sum and norm": lambda **options: SumAndNorm(D, R, **options),
}
QUERIES = pytest.mark.parametrize("name", MAKE)


def values(name, rows, labels):
    """What a query releases, almost without noise, in the units of its sensitivity."""
    labels = labels if name in ("counts", "means", "covariances", "columns") else None
    return exact(MAKE[name](), rows, labels)


def moved(name, first, second, rest=5):
    """How far the query moves when one record, (row, class), is replaced, over its sensitivity."""
    others = (
        torch.randn(rest, D, generator=torch.Generator().manual_seed(1)),
        torch.arange(rest) % C,
    )
    one, two = (
        values(name, torch.cat([others[0], row[None]]), torch.cat([others[1], torch.tensor([y])]))
        for row, y in (first, second)
    )
    return float((one - two).norm()) / MAKE[name]().mechanism.unit_sensitivity


@QUERIES
def test_sensitivity_is_not_exceeded(name):
    """Rows of any length, clipped inside, half of them along the axes; half of the pairs change class."""
    generator, largest = torch.Generator().manual_seed(0), 0.0
    for i in range(200):
        rows = 10 * torch.randn(2, D, generator=generator)
        rows = rows if i % 4 < 2 else rows * (rows.abs() == rows.abs().amax(1, keepdim=True))
        largest = max(largest, moved(name, (rows[0], 0), (rows[1], i % 2)))
    assert 0.8 < largest <= 1 + 1e-6  # control: the search comes close


@QUERIES
def test_worst_pair_attains_the_sensitivity(name):
    query = MAKE[name](sigma=1e-13, noise_seed=0)
    one, two = (query.coordinates(booked(query).release(side)) for side in query.worst_pair(9))
    assert float((one - two).norm()) == pytest.approx(query.mechanism.unit_sensitivity, rel=1e-6)


def test_values():
    rows = torch.randn(8193, D, generator=torch.Generator().manual_seed(0))  # more than a chunk
    labels = torch.arange(8193) % C
    clipped = rows.double() * (R / rows.double().norm(dim=1, keepdim=True)).clamp(max=1)
    each = [clipped[labels == c] for c in range(C)]
    torch.testing.assert_close(values("counts", rows, labels), torch.bincount(labels).double())
    means = values("means", rows, labels)
    torch.testing.assert_close(means[:, 0] / R, torch.bincount(labels).double())
    torch.testing.assert_close(means[:, 1:], torch.stack([part.sum(0) for part in each]))
    (moment,) = values("moment", rows, labels)
    torch.testing.assert_close(moment, clipped.T @ clipped, rtol=1e-5, atol=1e-3)
    assert torch.equal(moment, moment.T)
    overall = values("sum and norm", rows, labels)
    torch.testing.assert_close(
        overall, torch.cat([clipped.sum(0), clipped.square().sum()[None] / R])
    )
    moments = torch.stack([part.T @ part for part in each])
    torch.testing.assert_close(values("covariances", rows, labels), moments, rtol=1e-5, atol=1e-3)


@QUERIES
def test_sums_do_not_depend_on_the_order_of_the_records(name, monkeypatch):
    """Control: without the rounding of rows, the last digits depend on all records."""
    rows, labels = (
        torch.randn(6000, D, generator=torch.Generator().manual_seed(0)),
        torch.arange(6000) % C,
    )
    order = torch.randperm(6000, generator=torch.Generator().manual_seed(1))
    same = [torch.equal(values(name, rows, labels), values(name, rows[order], labels[order]))]
    monkeypatch.setattr(queries, "_summable", lambda values, *_, **__: values)
    same += [torch.equal(values(name, rows, labels), values(name, rows[order], labels[order]))]
    assert same == [True, name in ("counts", "columns")]


def test_values_of_columns():
    """Bins hold what numpy's histogram counts, the ends included; every level adds up to the classes."""
    rows = 8 * torch.randn(5000, D, generator=torch.Generator().manual_seed(0))
    rows[:, [0, 2]] = rows[:, [0, 2]].round()
    labels, query = torch.arange(5000) % C, MAKE["columns"]()
    counts, bins = values("columns", rows, labels), query.bins
    parts = counts.split([groups for _, _, groups in bins.levels], dim=1)
    assert [(j, width) for j, width, _ in bins.levels] == [
        (0, 1),
        (1, 1),
        (1, 8),
        (2, 1),
        (2, 8),
        (3, 1),
    ]
    for (j, width, _), part in zip(bins.levels, parts, strict=True):
        torch.testing.assert_close(part.sum(1), torch.bincount(labels).double())
        column = rows[labels == 1, j].double().clamp(*BOUNDS[j]).numpy()
        edges = bins.edges[j, : bins.n_bins[j] + 1].clamp(max=1e9).numpy()
        found = np.histogram(column, edges)[0]
        shares = found if width == 1 else [found[:8].sum(), found[8:].sum()]
        np.testing.assert_allclose(part[1], shares, atol=1e-9)
        for value in BOUNDS[j]:
            assert value in bins.atoms[j]


def accepts_sigma_only(drawn, sigma):
    assert stats.kstest(drawn / sigma, "norm").pvalue > FALSE_ALARM
    for factor in (2 / 3, 3 / 2):
        assert stats.kstest(drawn / (sigma * factor), "norm").pvalue < FALSE_ALARM


def releases(query, rows, times):
    handle = PrivateRecords(rows, torch.zeros(len(rows), dtype=torch.int64), classes=range(2))
    booked(query)
    return torch.stack([query.coordinates(query.release(handle)) for _ in range(times)])


def test_noise_of_sums():
    counts = releases(
        ClassCounts(2, sigma=3.0, noise_seed=0), torch.zeros(20, 1), 1500
    ) - torch.tensor([20.0, 0])
    drawn = counts.flatten().numpy()
    accepts_sigma_only(drawn, 3.0)
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) * math.sqrt(len(drawn)) < stats.norm.isf(
        FALSE_ALARM / 2
    )
    for query in (
        ClassMeans(2, 2000, R, sigma=3.0, noise_seed=5),
        SumAndNorm(4000, R, sigma=3.0, noise_seed=5),
    ):
        accepts_sigma_only(releases(query, torch.zeros(4, query.dim), 1).flatten()[5:].numpy(), 3.0)


@pytest.mark.parametrize("classes", [1, 2])
def test_noise_of_symmetric_matrices(classes):
    query = ClassCovariances(classes, 6, sigma=2.0, noise_seed=0)
    drawn = releases(query, torch.zeros(3, 6), 700).numpy().reshape(-1, 6, 6)
    assert (drawn == drawn.transpose(0, 2, 1)).all()
    accepts_sigma_only(np.diagonal(drawn, axis1=1, axis2=2).ravel(), 2.0)
    above = drawn[:, *np.triu_indices(6, 1)]
    accepts_sigma_only(above.ravel(), 2.0 / math.sqrt(2))
    assert stats.kstest(above.ravel() / 2.0, "norm").pvalue < FALSE_ALARM
    # entries are independent: 21 coordinates of one release, standardised, sum to a chi-square of 21 per release
    total = (np.diagonal(drawn, axis1=1, axis2=2) ** 2).sum(1) + 2 * (above**2).sum(1)
    assert stats.kstest(total / 4, "chi2", args=(21,)).pvalue > FALSE_ALARM


@QUERIES
def test_noise_is_fresh(name):
    seen, handle = [], PrivateRecords(torch.zeros(9, D), torch.arange(9) % C, classes=range(C))
    for _ in range(2):
        L.seed_everything(0, verbose=False)
        query, state = booked(MAKE[name](sigma=1.0)), torch.get_rng_state()
        seen += [query.coordinates(query.release(handle)) for _ in range(2)]
        assert torch.equal(state, torch.get_rng_state())  # torch's generator is not touched
    for i, one in enumerate(seen):  # single entries of a grid may agree
        assert not any((one == other).float().mean() > 0.5 for other in seen[i + 1 :])


@pytest.mark.parametrize(
    ("query", "function", "match"),
    [
        (ClassCounts(3), None, "calibrate"),
        (ClassCounts(2, sigma=1.0), None, "n_classes"),
        (ClassMeans(2, 3, sigma=1.0), None, "n_classes"),
        (ClassMeans(3, 4, sigma=1.0), None, "dim=4"),
        (ColumnCounts(3, [(0, 1)], sigma=1.0), None, "1 columns"),
        (ClassCovariances(1, 2, sigma=1.0), None, "dim=2"),
        (ClassMeans(3, 3, sigma=1.0), LabelledRows(lambda x, y: (x, y + 1)), "groups"),
        (ColumnCounts(3, [(0, 1)] * 3, sigma=1.0), LabelledRows(lambda x, y: (x, y + 1)), "groups"),
    ],
)
def test_bad_records_release_nothing(query, function, match):
    options = {} if isinstance(query, ClassCounts) else {"rows": function}
    with pytest.raises(InputError, match=match):
        booked(query).release(records(), **options)
    assert (query.recorder, query.n_releases) == ([], 0)


def test_bad_options():
    for query, arguments, options, match in (
        (ColumnCounts, (2, [(0, 1)]), {"n_bins": 3}, "n_bins"),
        (ColumnCounts, (2, [(0, 1)], ["integer"] * 2), {}, "kind"),
        (ColumnCounts, (2, [(0.2, 0.8)], ["integer"]), {}, "two values"),
        (ClassCounts, (1,), {}, "n_classes"),
        (ClassCounts, (3,), {"sigma": 0.0}, "sigma"),
        (ClassCounts, (3,), {"share": 0.0}, "share"),
        (ClassCounts, (3,), {"share": 1}, "share"),
        (ClassCounts, (3,), {"noise_seed": -1}, "noise_seed"),
        (ClassCovariances, (1, 0), {}, "dim"),
        (ClassCovariances, (1, 3), {"row_norm": -1.0}, "row_norm"),
    ):
        with pytest.raises(InputError, match=match):
            query(*arguments, **options)


def test_one_group_ignores_the_classes():
    rows = torch.randn(9, D) / 9
    labelled = PrivateRecords(rows, torch.arange(9) % C, classes=range(C))
    query = booked(ClassMeans(1, D, R, sigma=1e-13))
    one, two = (
        query.coordinates(query.release(handle)) for handle in (PrivateRecords(rows), labelled)
    )
    torch.testing.assert_close(one, two)
