"""Where private records are opened, and the path of one release: rows, ledger, noise, file."""

import ast
from pathlib import Path

import pytest
import torch
from factories import MECHANISM, B, N, X, Y, booked, exact, loader, records

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
    Recorder,
)
from dpswd._random import SecureRandom
from dpswd.records import Stored
from dpswd.release import clip_rows

PACKAGE = Path(dpswd.__file__).parent
PRIVATE = {  # names that give private values, and the modules that may use them
    "open_records": {"release.py"},
    "_values": {"records.py"},
    "_labels": {"records.py"},
}


def uses(source, name):
    """Whether an attribute is read, or spelled in a string of getattr."""
    for node in ast.walk(ast.parse(source)):
        reads = (
            isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load)
        )
        if reads or (isinstance(node, ast.Constant) and node.value == name):
            return True
    return False


@pytest.mark.parametrize("name", PRIVATE)
def test_records_are_opened_in_one_place(name):
    where = {path.name for path in PACKAGE.rglob("*.py") if uses(path.read_text(), name)}
    assert where == PRIVATE[name]
    if name == "open_records":
        for path in (
            each
            for part in ("models", "experiments")
            for each in (PACKAGE.parent / part).rglob("*.py")
        ):
            assert (
                not uses(path.read_text(), name) or path.name == "parts.py"
            )  # a benchmark, which counts them
    assert uses(f"f = records.{name}", name)  # controls
    assert uses(f"getattr(records, '{name}')(index)", name)


class CountedWords:
    """A source of noise that counts the words drawn from it."""

    drawn = 0

    def words(self, count):
        self.drawn += count
        return SecureRandom().words(count)


class Log(Recorder):
    """Writes down what it is asked, and how many words of noise were drawn before."""

    stored = refusal = None

    def __init__(self, source):
        self.source, self.seen = source, []

    def before_release(self, mechanism, handle):
        self.seen.append(("ask", self.source.drawn))
        return self.stored

    def record(self, mechanism):
        self.seen.append(("record", self.source.drawn))
        if self.refusal:
            raise self.refusal

    def store(self, mechanism, tensors):
        self.seen.append(("store", self.source.drawn))
        self.values = tensors["values"]


@pytest.mark.parametrize(
    ("part", "release"),
    [
        (ClassCounts(3, sigma=1.0), lambda part, handle: part.release(handle)),
        (ClassCovariances(1, 3, sigma=1.0), lambda part, handle: part.release(handle)),
        (
            DPSlicedWassersteinLoss(MECHANISM),
            lambda part, handle: part.release(next(iter(loader(of=handle)))).values,
        ),
    ],
    ids=["counts", "moment", "loss"],
)
def test_ledger_before_noise_and_file_after_it(part, release, monkeypatch):
    part.source = source = CountedWords()
    part.recorder = log = Log(source)
    log.refusal = BudgetExceededError("spent")
    with pytest.raises(BudgetExceededError):
        release(part, records())
    assert [what for what, _ in log.seen] == ["ask", "record"]
    assert log.seen[0][1] == part.n_releases == 0
    assert source.drawn == log.seen[1][1]  # of a loss: batch and directions
    assert source.drawn == 0 or isinstance(part, DPSlicedWassersteinLoss)
    log.seen, log.refusal, source.drawn = [], None, 0
    values = release(part, records())
    assert [what for what, _ in log.seen] == ["ask", "record", "store"]
    assert log.seen[2][1] == source.drawn > log.seen[1][1]
    assert torch.equal(log.values, values)
    log.seen, log.stored = [], {"values": values, "projections": torch.eye(3)}
    monkeypatch.setattr(PrivateRecords, "open_records", None)
    assert torch.equal(release(part, records()), values)  # of its file, without opening a record
    assert [what for what, _ in log.seen] == ["ask"]
    assert part.n_releases == 1


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


@pytest.mark.parametrize(
    "rows", [lambda x: x[:, 0], lambda x: x[:3], lambda x: None, lambda x: x[:, None]]
)
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


@pytest.mark.parametrize("most", [1, 7, N])
def test_chunks_do_not_change_a_release(monkeypatch, most):
    """Records of a chunk, in memory or on disk, as bytes or floats."""
    values = (X.abs() * 60).to(torch.uint8)
    disk = Stored(lambda index: values[index], tuple(values.shape), torch.uint8)
    expected = (values.double() / 255).T @ (values.double() / 255)
    monkeypatch.setattr(dpswd.release, "_MAX_CHUNK_RECORDS", most)
    for source in (values, disk, values.float() / 255):
        handle = PrivateRecords.from_values(source, None, classes=None, layout=records().layout)
        query = booked(ClassCovariances(1, 3, row_norm=9.0, sigma=1e-13))
        torch.testing.assert_close(query.release(handle)[0], expected, rtol=1e-5, atol=1e-4)


def test_a_row_function_is_checked_once_and_on_public_records_first(monkeypatch):
    seen, query = [], booked(ClassMeans(3, 3, sigma=1.0))

    def rows(values):
        seen.append(len(values))
        return values

    rows.__module__ = "numpy.test"  # a library's function, whose variables are not looked at
    opened = PrivateRecords.open_records
    monkeypatch.setattr(
        PrivateRecords, "open_records", lambda self, i: seen.append("opened") or opened(self, i)
    )
    query.release(records(), rows=rows)
    checks = seen.index("opened")
    assert seen[checks:] == ["opened", N]
    assert N not in seen[:checks]
    seen.clear()
    query.release(records(), rows=rows)
    assert seen == ["opened", N]


def test_batches_of_the_loss_have_the_rows_of_the_encoder():
    encoder = torch.nn.Linear(3, 3)
    made = MECHANISM.replace(
        batch_size=N, sigma=1e-12, row_norm=100.0, statistic="quantiles", n_quantiles=N
    )
    batch = next(iter(loader(batch_size=N)))
    release = booked(DPSlicedWassersteinLoss(made)).release(batch, rows=encoder)
    expected = (encoder(X).detach().double() @ release.projections).sort(dim=0).values
    torch.testing.assert_close(release.values, expected, rtol=0, atol=1e-6)
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
