"""Where private records are opened, and the path of one release: rows, ledger, noise, file."""

import ast
from pathlib import Path

import pytest
import torch
from factories import MECHANISM, B, Book, CountedWords, N, X, Y, booked, exact, loader, records

import dpswd
import dpswd.release
from dpswd import (
    BudgetExceededError,
    ClassCounts,
    ClassCovariances,
    ClassMeans,
    DPSlicedWassersteinLoss,
    InputError,
    LabelledRows,
    PrivateRecords,
)
from dpswd.records import Stored
from dpswd.release import clip_rows

PACKAGE = Path(dpswd.__file__).parent
PRIVATE = {  # names that give private values, and the modules that may use them
    "open_records": {"release.py"},
    "_values": {"records.py"},
    "_labels": {"records.py"},
}


def uses(source, name):
    """Lines in which an attribute is read, or a name is imported, or spelled in a string of getattr."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load):
            found.append(node.lineno)
        elif isinstance(node, ast.Constant) and node.value == name:
            found.append(node.lineno)
    return found


@pytest.mark.parametrize("name", ["open_records", "_values", "_labels"])
def test_records_are_opened_in_one_place(name):
    where = {
        path.relative_to(PACKAGE).as_posix(): lines
        for path in PACKAGE.rglob("*.py")
        if (lines := uses(path.read_text(), name))
    }
    assert set(where) == PRIVATE[name]
    assert uses("f = records.open_records", "open_records") == [1]  # controls
    assert uses("getattr(records, 'open_records')(index)", "open_records") == [1]


def test_models_and_experiments_do_not_open_records():
    root = PACKAGE.parent
    for path in [*(root / "models").rglob("*.py"), *(root / "experiments").rglob("*.py")]:
        if path.name != "parts.py":  # a benchmark, which counts the records that are opened
            assert not uses(path.read_text(), "open_records"), path


def parts():
    return [
        (ClassCounts(3, sigma=1.0), lambda part, handle: part.release(handle)),
        (ClassCovariances(1, 3, sigma=1.0), lambda part, handle: part.release(handle)),
        (DPSlicedWassersteinLoss(MECHANISM), lambda part, handle: part.release(next(iter(loader(of=handle))))),
    ]


PARTS = pytest.mark.parametrize(("part", "release"), parts(), ids=["counts", "moment", "loss"])


@PARTS
def test_ledger_before_noise_and_file_after_it(part, release):
    source, seen = CountedWords(), []

    class Log(Book):
        def before_release(self, mechanism, handle):
            seen.append(("ask", source.drawn))

        def record(self, mechanism):
            seen.append(("record", source.drawn, part.n_releases))

        def store(self, mechanism, tensors):
            seen.append(("store", source.drawn, tensors["values"]))

    part.recorder, before = Log(), part.n_releases
    secret = part._source
    part._source = source
    if isinstance(part, DPSlicedWassersteinLoss):
        part.draw_projections = lambda: torch.eye(3).repeat(1, 2).double()
    out = release(part, records())
    part._source = secret
    (_, start), (_, recorded, count), (_, stored, values) = seen
    assert [each[0] for each in seen] == ["ask", "record", "store"]
    assert start == 0
    assert stored == source.drawn > recorded
    assert recorded == (0 if not isinstance(part, DPSlicedWassersteinLoss) else recorded)  # the batch is drawn before
    assert (count, part.n_releases) == (before, before + 1)
    assert torch.equal(values, out.values if hasattr(out, "projections") else out)


@PARTS
def test_a_refusal_draws_no_noise(part, release):
    part.n_releases, part._source = 0, CountedWords()
    booked(part, BudgetExceededError("spent"))
    with pytest.raises(BudgetExceededError):
        release(part, records())
    needed = part._source.drawn
    assert part.n_releases == 0
    part._source = CountedWords()
    booked(part)
    release(part, records())
    assert part._source.drawn > needed  # control: the noise is drawn behind the refusal


@PARTS
def test_a_stored_release_opens_no_record(part, release, monkeypatch):
    class Store(Book):
        def before_release(self, mechanism, handle):
            return {
                "values": torch.zeros(3 if isinstance(part, ClassCounts) else (1, 3, 3)),
                "projections": torch.eye(3),
            }

    part.recorder, part.n_releases = Store(), 0
    monkeypatch.setattr(PrivateRecords, "open_records", None)
    release(part, records())
    assert (part.n_releases, part.recorder) == (0, [])


def test_rows_are_clipped_one_by_one():
    x = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x *= 0.4 / x.norm(dim=1, keepdim=True)
    x[1] *= 1e30
    x[2] = 1e300  # the norm overflows
    x[3] = 0
    x[4] = 5e-324  # the norm underflows
    clipped = clip_rows(x, 0.5)
    assert clipped.dtype == torch.float64
    assert torch.equal(clipped[[0, 3, 5]], x[[0, 3, 5]])  # rows inside the bound stay, bit by bit
    assert float(clipped[1].norm()) == pytest.approx(0.5, rel=1e-11)
    assert bool(torch.isfinite(clipped).all())
    assert float(clipped[[2, 4]].norm(dim=1).max()) <= 0.5


@pytest.mark.parametrize("rows", [lambda x: x[:, 0], lambda x: x[:3], lambda x: None, lambda x: x[:, None]])
def test_row_functions_of_another_shape_are_refused(rows):
    with pytest.raises(InputError, match=r"rows \(n, d\)"):
        exact(ClassMeans(3, 3), X, Y, function=rows)


def test_labelled_rows_choose_the_group_of_a_record():
    def cells(values, labels):
        return values, labels * 2 + (values[:, 0] > 0)

    found = exact(ClassMeans(6, 3, row_norm=9.0), X, Y, function=LabelledRows(cells))
    groups = Y * 2 + (X[:, 0] > 0)
    expected = torch.stack([X[groups == g].double().sum(0) for g in range(6)])
    torch.testing.assert_close(found[:, 1:], expected)
    torch.testing.assert_close(found[:, 0] / 9, torch.bincount(groups).double())
    with pytest.raises(InputError, match="groups"):
        exact(ClassMeans(5, 3), X, Y, function=LabelledRows(cells))


@pytest.mark.parametrize("most", [1, 7, N])
def test_chunks_do_not_change_a_release(monkeypatch, most):
    """Records of a chunk, in memory or on disk, as bytes or floats."""
    values = (X.abs() * 60).to(torch.uint8)
    disk = Stored(lambda index: values[index], tuple(values.shape), torch.uint8)
    expected = (values.double() / 255).T @ (values.double() / 255)
    monkeypatch.setattr(dpswd.release, "_MOST_RECORDS", most)
    for source in (values, disk, values.float() / 255):
        handle = PrivateRecords.from_values(source, None, classes=None, layout=records().layout)
        query = booked(ClassCovariances(1, 3, row_norm=9.0, sigma=1e-13))
        torch.testing.assert_close(query.release(handle)[0], expected, rtol=1e-6, atol=1e-6)


def test_a_row_function_is_checked_once_and_on_public_records_first(monkeypatch):
    seen, query = [], booked(ClassMeans(3, 3, sigma=1.0))

    def rows(values):
        seen.append(len(values))
        return values

    rows.__module__ = "numpy.test"  # a library's function, whose variables are not looked at
    opened = PrivateRecords.open_records
    monkeypatch.setattr(PrivateRecords, "open_records", lambda self, i: seen.append("opened") or opened(self, i))
    query.release(records(), rows=rows)
    checks = seen.index("opened")
    assert seen[checks:] == ["opened", N]
    assert N not in seen[:checks]
    seen.clear()
    query.release(records(), rows=rows)
    assert seen == ["opened", N]


def test_batches_of_the_loss_have_the_rows_of_the_encoder():
    double = torch.nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        double.weight.copy_(2 * torch.eye(3))
    made = MECHANISM.replace(batch_size=N, sigma=1e-12, row_norm=100.0, statistic="quantiles", n_quantiles=N)
    batch = next(iter(loader(batch_size=N)))
    release = booked(DPSlicedWassersteinLoss(made)).release(batch, rows=double)
    expected = (2 * X.double() @ release.projections).sort(dim=0).values
    torch.testing.assert_close(release.values, expected, rtol=0, atol=1e-9)
    assert not release.values.requires_grad


@pytest.mark.parametrize(
    ("options", "changes", "match"),
    [
        ({"batch_size": B - 1}, {}, "batch_size"),
        ({}, {"n_classes": 2}, "n_classes"),
        ({}, {"dim": 4, "n_projections": 8}, r"\(n, 4\)"),
    ],
)
def test_batches_that_do_not_fit_the_mechanism(options, changes, match):
    loss = booked(DPSlicedWassersteinLoss(MECHANISM.replace(**changes)))
    with pytest.raises(InputError, match=match):
        loss.release(next(iter(loader(**options))))
    assert (loss.recorder, loss.n_releases) == ([], 0)
