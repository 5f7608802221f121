"""Where private records are opened, and the steps of one release in their order."""

import ast
import io
import sys
from pathlib import Path

import pytest
import torch
from factories import MECHANISM, B, N, X, Y, booked, exact, loader, records, written

import dpswd
import dpswd.release
from dpswd import (
    Budget,
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
from dpswd.clipping import clip_rows
from dpswd.records import Stored

PACKAGE = Path(dpswd.__file__).parent

# Names that give private values, and the only file of the package that may use each of them.
PRIVATE_NAMES = {"open_records": "release.py", "_values": "records.py", "_labels": "records.py"}


def uses(source, name):
    """Whether code reads an attribute, or spells it in a string, as for getattr."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr == name:
            return True
        if isinstance(node, ast.Constant) and node.value == name:
            return True
    return False


def files_that_use(name, folder):
    """Names of the files below a folder whose code uses an attribute."""
    return {path.name for path in folder.rglob("*.py") if uses(path.read_text(), name)}


@pytest.mark.parametrize("name", PRIVATE_NAMES)
def test_private_values_are_used_in_one_file(name):
    assert files_that_use(name, PACKAGE) == {PRIVATE_NAMES[name]}


def test_records_are_not_opened_outside_the_package():
    root = PACKAGE.parent
    assert files_that_use("open_records", root / "models") == set()
    # a benchmark counts the calls
    assert files_that_use("open_records", root / "experiments") == {"parts.py"}


def test_search_for_private_names_finds_attributes_and_strings():
    assert uses("f = records.open_records", "open_records")
    assert uses("getattr(records, 'open_records')(index)", "open_records")
    assert not uses("def open_records(self): pass", "open_records")


def test_records_are_opened_by_one_line():
    """The line is in the function that opens the chunks of a release."""
    calls = []
    for node in ast.walk(ast.parse((PACKAGE / "release.py").read_text())):
        if isinstance(node, ast.FunctionDef):
            attributes = [part for part in ast.walk(node) if isinstance(part, ast.Attribute)]
            calls += [node.name for part in attributes if part.attr == "open_records"]
    assert calls == ["_open_chunks"]


class CountingSource:
    """A source of noise that counts the words drawn from it."""

    def __init__(self):
        self.n_words = 0

    def words(self, count):
        self.n_words += count
        return SecureRandom().words(count)


class StepRecorder(Recorder):
    """Writes down its calls, and the number of random words that were drawn before each of them."""

    def __init__(self, source, stored=None, refusal=None):
        self.source = source
        self.stored = stored
        self.refusal = refusal
        self.steps = []
        self.words = []

    def note(self, step):
        self.steps.append(step)
        self.words.append(self.source.n_words)

    def before_release(self, mechanism, handle):
        self.note("ask")
        return self.stored

    def record(self, mechanism):
        self.note("record")
        if self.refusal:
            raise self.refusal

    def store(self, mechanism, tensors):
        self.note("store")
        self.values = tensors["values"]


def make_counts():
    return ClassCounts(3, sigma=1.0)


def make_covariances():
    return ClassCovariances(1, 3, sigma=1.0)


def make_loss():
    return DPSlicedWassersteinLoss(MECHANISM)


def release(module, handle):
    """Values of one release of a query, or of a batch by a loss."""
    if isinstance(module, DPSlicedWassersteinLoss):
        return module.release(next(iter(loader(of=handle)))).values
    return module.release(handle)


MODULES = pytest.mark.parametrize("make", [make_counts, make_covariances, make_loss])


@MODULES
def test_release_asks_records_draws_noise_and_stores(make):
    module = make()
    module.source = CountingSource()
    module.recorder = StepRecorder(module.source)
    values = release(module, records())
    _, at_record, at_store = module.recorder.words
    assert module.recorder.steps == ["ask", "record", "store"]
    assert at_record < at_store == module.source.n_words  # the noise lies between them
    assert torch.equal(module.recorder.values, values)
    assert module.n_releases == 1


@MODULES
def test_release_that_the_recorder_refuses_draws_no_noise(make):
    module = make()
    module.source = CountingSource()
    module.recorder = StepRecorder(module.source, refusal=BudgetExceededError("spent"))
    with pytest.raises(BudgetExceededError):
        release(module, records())
    assert module.recorder.steps == ["ask", "record"]
    assert module.source.n_words == module.recorder.words[1]
    if not isinstance(module, DPSlicedWassersteinLoss):  # which has drawn its batch and directions
        assert module.source.n_words == 0
    assert module.n_releases == 0


@MODULES
def test_release_that_is_stored_opens_no_record(make, monkeypatch):
    module = make()
    module.source = CountingSource()
    module.recorder = StepRecorder(module.source)
    values = release(module, records())
    stored = {"values": values, "projections": torch.eye(3)}
    module.recorder = StepRecorder(module.source, stored=stored)
    monkeypatch.setattr(PrivateRecords, "open_records", None)
    assert torch.equal(release(module, records()), values)
    assert module.recorder.steps == ["ask"]
    assert module.n_releases == 1


def test_stored_release_of_another_query_is_refused():
    query = make_counts()
    stored = {"values": torch.zeros(4)}
    query.recorder = StepRecorder(CountingSource(), stored=stored)
    with pytest.raises(InputError, match="query of the interrupted run"):
        query.release(records())


@MODULES
def test_release_of_a_handle_without_a_budget_is_refused(make):
    module = make()
    with pytest.raises(InputError, match="within a budget"):
        release(module, records())
    assert module.n_releases == 0


def test_release_of_a_tensor_needs_no_budget():
    """The drop-in of the paper, whose conditions the caller answers for."""
    loss = make_loss()
    loss.release(X[:B])
    assert loss.n_releases == 1


def test_budget_permits_the_planned_release_of_its_records(tmp_path):
    handle = records()
    query = ClassCounts(3)
    with Budget(handle, [query], target_epsilon=1, target_delta=1e-4, run_dir=tmp_path):
        with pytest.raises(InputError, match=r"another handle; pass the one that the budget"):
            query.release(records())
        query.release(handle)
        with pytest.raises(BudgetExceededError, match="at most 1"):
            query.release(handle)
        with pytest.raises(InputError, match="within a budget"):
            ClassMeans(3, 3, sigma=1.0).release(handle)
    with pytest.raises(BudgetExceededError, match="outside"):
        query.release(handle)
    assert query.n_releases == 1
    assert written(tmp_path) == 1


def test_clip_rows_scales_rows_one_by_one():
    rows = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows *= 0.4 / rows.norm(dim=1, keepdim=True)
    rows[1] *= 1e30
    rows[2] = 1e300  # the norm overflows
    rows[3] = 0
    rows[4] = 5e-324  # the norm underflows
    clipped = clip_rows(rows, 0.5)
    inside = [0, 3, 5]
    assert clipped.dtype == torch.float64
    assert torch.equal(clipped[inside], rows[inside])  # bit by bit
    assert float(clipped[1].norm()) == pytest.approx(0.5, rel=1e-11)
    assert bool(torch.isfinite(clipped).all())
    assert float(clipped[[2, 4]].norm(dim=1).max()) <= 0.5


@pytest.mark.parametrize(
    "function",
    [
        lambda values: values[:, 0],
        lambda values: values[:3],
        lambda values: None,
        lambda values: values[:, None],
    ],
    ids=["vector", "too few rows", "none", "three axes"],
)
def test_row_function_of_another_shape_is_refused(function):
    with pytest.raises(InputError, match=r"rows \(n, d\)"):
        exact(ClassMeans(3, 3), X, Y, function=function)


def test_labelled_rows_choose_the_group_of_a_record():
    def six_groups(values, labels):
        return values, labels * 2 + (values[:, 0] > 0)

    query = booked(ClassMeans(6, 3, row_norm=9.0, sigma=1e-13))
    released = query.coordinates(query.release(records(), rows=LabelledRows(six_groups)))
    groups = Y * 2 + (X[:, 0] > 0)
    sums = torch.stack([X[groups == g].double().sum(0) for g in range(6)])
    torch.testing.assert_close(released[:, 1:], sums)
    torch.testing.assert_close(released[:, 0] / 9, torch.bincount(groups).double())


@pytest.mark.parametrize("n_records", [1, 7, N])
@pytest.mark.parametrize("place", ["memory", "disk", "floats"])
def test_chunks_do_not_change_a_release(monkeypatch, n_records, place):
    pixels = (X.abs() * 60).to(torch.uint8)
    floats = pixels.double() / 255
    values = pixels
    if place == "disk":
        values = Stored(lambda index: pixels[index], tuple(pixels.shape), torch.uint8)
    elif place == "floats":
        values = floats.float()
    # a public option would let a user make chunks that do not fit the memory
    monkeypatch.setattr(dpswd.release, "_MAX_CHUNK_RECORDS", n_records)
    handle = PrivateRecords.from_values(values, None)
    query = booked(ClassCovariances(1, 3, row_norm=9.0, sigma=1e-13))
    released = query.release(handle)
    torch.testing.assert_close(released[0], floats.T @ floats, rtol=1e-5, atol=1e-4)


def test_row_function_is_checked_once_and_before_records_are_opened(monkeypatch):
    calls = []

    def row_function(values):
        calls.append(len(values))
        return values

    def open_records(handle, index):
        calls.append("opened")
        return original(handle, index)

    row_function.__module__ = "numpy.test"  # a library's function, whose variables are not copied
    original = PrivateRecords.open_records
    monkeypatch.setattr(PrivateRecords, "open_records", open_records)
    query = booked(ClassMeans(3, 3, sigma=1.0))
    query.release(records(), rows=row_function)
    n_checks = calls.index("opened")
    assert n_checks > 0
    assert N not in calls[:n_checks]
    assert calls[n_checks:] == ["opened", N]
    calls.clear()
    query.release(records(), rows=row_function)
    assert calls == ["opened", N]


def test_loss_releases_the_rows_of_the_encoder():
    encoder = torch.nn.Linear(3, 3)
    mechanism = MECHANISM.replace(
        batch_size=N, sigma=1e-12, row_norm=100.0, statistic="quantiles", n_quantiles=N
    )
    batch = next(iter(loader(batch_size=N)))
    release = booked(DPSlicedWassersteinLoss(mechanism)).release(batch, rows=encoder)
    rows = encoder(X).detach().double()
    expected = (rows @ release.projections).sort(dim=0).values
    torch.testing.assert_close(release.values, expected, rtol=0, atol=1e-6)
    assert not release.values.requires_grad


@pytest.mark.parametrize(
    ("batch_size", "changes", "message"),
    [
        (B - 1, {}, "batch_size"),
        (B, {"n_classes": 2}, "n_classes"),
        (B, {"dim": 4, "n_projections": 8}, r"\(n, 4\)"),
    ],
)
def test_batch_that_does_not_fit_the_mechanism_is_refused(batch_size, changes, message):
    loss = booked(DPSlicedWassersteinLoss(MECHANISM.replace(**changes)))
    with pytest.raises(InputError, match=message):
        loss.release(next(iter(loader(batch_size=batch_size))))
    assert loss.recorder == []
    assert loss.n_releases == 0


def test_compiled_module_traces_no_noise(monkeypatch):
    """Random words in a traced graph stand in guards and messages of the compiler."""
    traced = []
    draw = dpswd.release.normal

    def noise(*arguments):
        traced.append(torch.compiler.is_compiling())
        return draw(*arguments)

    class Compiled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.loss = booked(DPSlicedWassersteinLoss(MECHANISM))

        def forward(self, batch):
            return self.loss(batch, torch.zeros(4, 3))

    monkeypatch.setattr(dpswd.release, "normal", noise)
    torch.compile(Compiled(), backend="eager")(next(iter(loader())))
    assert traced == [False]


class Terminal(io.StringIO):
    """A stderr that says it is a terminal."""

    def isatty(self):
        return True


def test_the_progress_bar_names_what_is_released(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stderr", Terminal())
    records = PrivateRecords(torch.rand(2000, 3), torch.arange(2000) % 2, classes=[0, 1])
    booked(ClassMeans(2, 3, sigma=1.0)).release(records)
    assert "Reading records: counts and sums of 2 classes" in sys.stderr.getvalue()
