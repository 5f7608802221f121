"""Copies of a run directory on one shared ledger,
and two processes in one directory without file locks.

However a run is killed, copied and resumed, each planned release has one value, and one directory
finishes the run.
"""

import itertools
import shutil

import numpy as np
import pytest
import torch
from factories import X, ledger_of, records, written

import dpswd.budget.run_directory
import dpswd.release
from dpswd import Budget, ClassCounts, ClassCovariances, DPSlicedWassersteinLoss, ReleaseLoader
from dpswd.accounting.ledger import Ledger
from dpswd.accounting.shared_ledger import RunLedger, SharedLedger
from dpswd.budget.run_directory import RunDirectory
from dpswd.errors import DpswdError, InputError, LedgerError
from dpswd.mechanism import ProjectionMechanism

N_RELEASES = 3


class Killed(BaseException):
    """Ends a run as kill -9 does: no code of the library catches it."""


@pytest.fixture
def shared(tmp_path):
    return SharedLedger.create(tmp_path / "all.jsonl", target_epsilon=9.0, target_delta=1e-5).path


def test_budget_of_numpy_numbers_is_written_as_json(tmp_path):
    path = tmp_path / "all.jsonl"
    SharedLedger.create(path, target_epsilon=np.float32(9), target_delta=np.float64(1e-5))
    assert SharedLedger.open_existing(path).header["target_epsilon"] == 9.0


def release_all(directory, shared=None, *, resume=True):
    """Releases three queries in a run directory, and returns their values."""
    handle = records()
    queries = [ClassCounts(3), ClassCovariances(1, 3), ClassCovariances(1, 3, row_norm=1.0)]
    budget = Budget(
        handle,
        queries,
        target_epsilon=2.0,
        target_delta=1e-5,
        run_dir=directory,
        shared_ledger=shared,
        resume=resume,
    )
    with budget:
        return [query.release(handle) for query in queries]


def refused(directory, shared):
    """Resumes a run that another copy has gone on with."""
    n_lines = written(directory)
    with pytest.raises(LedgerError, match="a copy of this run directory has gone on"):
        release_all(directory, shared)
    assert written(directory) == n_lines


OWNERS = {
    "budget": Budget,
    "confirmation": RunLedger,
    "file": dpswd.budget.run_directory,
    "line": Ledger,
    "noise": dpswd.release,
}
# A moment is a function, the number of its call (from 0), and whether it is before or after the
# call. The lines of the first release are written by the calls 0 (ledger of the run) and 1 (shared
# ledger) of write_draw.
MOMENTS = [
    ("budget", "record", 0, "before"),
    ("file", "atomic_write", 0, "after"),
    ("line", "write_draw", 0, "before"),
    ("line", "write_draw", 0, "after"),
    ("line", "write_draw", 1, "after"),
    ("noise", "normal", 0, "after"),
    ("file", "atomic_write", 1, "after"),
    ("confirmation", "confirm", 0, "after"),
    ("budget", "store", 0, "after"),
    ("line", "write_draw", 2, "after"),
    ("noise", "normal", 2, "before"),
    ("file", "atomic_write", 5, "after"),
    ("budget", "store", 2, "after"),
    ("budget", "close", 0, "after"),
]


def interrupt(monkeypatch, moment, action):
    """Calls ``action`` at a moment of a run."""
    owner, name, number, when = moment
    function = getattr(OWNERS[owner], name)
    calls = itertools.count()

    def interrupted(*arguments, **options):
        is_moment = next(calls) == number
        if is_moment and when == "before":
            action()
        result = function(*arguments, **options)
        if is_moment and when == "after":
            action()
        return result

    monkeypatch.setattr(OWNERS[owner], name, interrupted)


def kill(monkeypatch, moment, directory, shared):
    """Starts a run and kills it at a moment."""

    def die():
        raise Killed

    with monkeypatch.context() as patched:
        # kill -9 leaves no privacy.json
        patched.setattr(RunDirectory, "write_statement", lambda *_: None)
        interrupt(patched, moment, die)
        with pytest.raises(Killed):
            release_all(directory, shared, resume=False)


def name_of(moment):
    return " ".join(map(str, moment))


@pytest.mark.parametrize("moment", MOMENTS, ids=name_of)
@pytest.mark.parametrize("first", ["original", "copy"])
def test_one_of_two_copies_of_a_killed_run_finishes_it(
    tmp_path, monkeypatch, shared, moment, first
):
    """On 0.3.0 both did: the second one made the remaining releases again."""
    kill(monkeypatch, moment, tmp_path / "original", shared)
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    last = "copy" if first == "original" else "original"
    was_finished = Ledger.open_existing(shared).n_releases == N_RELEASES
    values = release_all(tmp_path / first, shared)
    assert written(tmp_path / first) == N_RELEASES
    if was_finished and len(list((tmp_path / last / "releases").glob("*.pt"))) == N_RELEASES:
        # A finished run is read from its files, in each copy.
        assert all(map(torch.equal, values, release_all(tmp_path / last, shared)))
    else:
        refused(tmp_path / last, shared)
    assert all(map(torch.equal, values, release_all(tmp_path / first, shared)))


@pytest.mark.parametrize("moment", MOMENTS, ids=name_of)
def test_a_copy_of_a_running_run_makes_no_fresh_release(tmp_path, monkeypatch, shared, moment):
    with monkeypatch.context() as patched:
        copy = [tmp_path / "original", tmp_path / "copy"]
        interrupt(patched, moment, lambda: shutil.copytree(*copy))
        values = release_all(tmp_path / "original", shared, resume=False)
    n_files = len(list((tmp_path / "copy" / "releases").glob("*.pt")))
    if n_files == N_RELEASES:
        assert all(map(torch.equal, values, release_all(tmp_path / "copy", shared)))
    else:  # also where the last line is in the copy and its value is not
        n_lines = Ledger.open_existing(shared).n_releases
        with pytest.raises(DpswdError):
            release_all(tmp_path / "copy", shared)
        assert Ledger.open_existing(shared).n_releases == n_lines


OUTSIDE_LOCKS = [
    ("budget", "before_release", 1, "after"),
    ("noise", "normal", 0, "after"),
    ("file", "atomic_write", 1, "after"),
]


@pytest.mark.parametrize("moment", OUTSIDE_LOCKS, ids=name_of)
def test_a_run_is_refused_after_its_copy_has_gone_on(tmp_path, monkeypatch, shared, moment):
    values = []

    def overtake():
        shutil.copytree(tmp_path / "original", tmp_path / "copy")
        patched.undo()
        values.extend(release_all(tmp_path / "copy", shared))

    with monkeypatch.context() as patched:
        interrupt(patched, moment, overtake)
        with pytest.raises(LedgerError, match="a copy of this run directory has gone on"):
            release_all(tmp_path / "original", shared, resume=False)
    assert len(values) == N_RELEASES


def test_a_backup_is_refused_and_a_cut_shared_ledger_too(tmp_path, shared):
    mechanism = ProjectionMechanism(3, 6, batch_size=len(X), kind="orthogonal")

    def train(directory, n_steps, *, resume=False):
        handle = records()
        loss = DPSlicedWassersteinLoss(mechanism)
        options = {"target_epsilon": 4, "target_delta": 1e-5, "n_releases": 8, "resume": resume}
        with Budget(handle, [loss], run_dir=directory, shared_ledger=shared, **options):
            batches = ReleaseLoader(handle, batch_size=len(X), n_releases=8)
            return [loss.release(batch).values for batch in itertools.islice(batches, n_steps)]

    train(tmp_path / "run", 1)
    shutil.copytree(tmp_path / "run", tmp_path / "backup")
    values = train(tmp_path / "run", 8, resume=True)
    with pytest.raises(LedgerError, match="got 1 and 8"):
        train(tmp_path / "backup", 8, resume=True)
    assert all(map(torch.equal, values, train(tmp_path / "run", 8, resume=True)))
    assert Ledger.open_existing(shared).n_releases == 8
    lines = shared.read_bytes().splitlines(keepends=True)
    shared.write_bytes(b"".join(lines[:-4]))
    with pytest.raises(LedgerError, match="put its last state back"):
        train(tmp_path / "run", 8, resume=True)


def test_a_run_of_an_earlier_version_is_finished(tmp_path, shared, monkeypatch):
    """Its lines have no session, and its shared ledger does not say what is stored."""
    kill(monkeypatch, MOMENTS[5], tmp_path / "run", shared)

    def without_sessions(path):
        ledger = Ledger(path)
        lines = []
        for line in path.read_text().splitlines():
            entry = dpswd.accounting.ledger.json.loads(line)
            del entry["hash"]
            entry.pop("session", None)
            if entry["kind"] == "header":
                entry["format"] = 3
                entry.pop("unit", None)
            ledger.heads.append(dpswd.accounting.ledger.digest(ledger.head, entry))
            lines.append(dpswd.accounting.ledger.json.dumps(entry | {"hash": ledger.head}))
        path.write_text("\n".join(lines) + "\n")

    without_sessions(tmp_path / "run" / "ledger.jsonl")
    without_sessions(shared)
    release_all(tmp_path / "run", shared)
    assert written(tmp_path / "run") == Ledger.open_existing(shared).n_releases == N_RELEASES


def test_a_value_that_the_ledger_does_not_name_is_refused(tmp_path, shared, monkeypatch):
    """The value of a release that was drawn twice is that of the last line."""
    kill(monkeypatch, MOMENTS[5], tmp_path / "run", shared)
    release_all(tmp_path / "run", shared)
    value = "releases/000001.pt"
    other = torch.load(tmp_path / "run" / value, weights_only=True)
    torch.save(other | {"session": "0" * 16}, tmp_path / "run" / value)
    with pytest.raises(InputError, match="another process has drawn"):
        release_all(tmp_path / "run", shared)


# Two processes in one directory, where flock is missing


@pytest.fixture
def no_locks(monkeypatch):
    """As on Windows: neither directory nor ledger is locked."""
    monkeypatch.setattr("dpswd._files.fcntl", None)
    monkeypatch.setattr("dpswd.accounting.ledger.fcntl", None)


def opened(directory):
    """A resumed run with one query, within its budget."""
    handle = records()
    query = ClassCounts(3)
    options = {"target_epsilon": 2.0, "target_delta": 1e-5, "resume": True}
    budget = Budget(handle, [query], run_dir=directory, **options)
    budget.__enter__()
    return lambda: query.release(handle)


@pytest.fixture
def unfinished(tmp_path, monkeypatch, no_locks):
    """Directory of a run that was killed while it drew the noise of its only release."""
    with monkeypatch.context() as patched:
        patched.setattr("dpswd.release.normal", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            opened(tmp_path / "run")()
    return tmp_path / "run"


def redraws(directory):
    return sum(draw.is_redraw for draw in ledger_of(directory).draws())


def test_a_redraw_has_a_line_of_its_own(unfinished):
    assert (written(unfinished), redraws(unfinished)) == (1, 0)
    opened(unfinished)()
    assert (written(unfinished), redraws(unfinished)) == (1, 1)


def test_two_processes_redraw_a_release_once(unfinished):
    """On 0.3.0 both values were returned, and the ledger held one line."""
    first, second = opened(unfinished), opened(unfinished)
    value = first()
    with pytest.raises(LedgerError, match="second process"):
        second()
    assert torch.equal(opened(unfinished)(), value)
    assert redraws(unfinished) == 1


@pytest.mark.parametrize("moment", ["noise", "value", "marker"])
def test_a_process_that_is_overtaken_returns_no_other_value(unfinished, monkeypatch, moment):
    """A second process redraws while the first one draws,
    or reads the value before the first one returns it.
    """
    values = []
    first = opened(unfinished)
    moments = {
        "noise": ("noise", "normal", 0, "before"),
        "value": ("file", "atomic_write", 0, "after"),
        "marker": ("confirmation", "confirm", 0, "after"),
    }

    def overtake():
        monkeypatch.setattr(dpswd.release, "normal", normal)
        values.append(opened(unfinished)())

    normal = dpswd.release.normal
    interrupt(monkeypatch, moments[moment], overtake)
    if moment == "noise":
        with pytest.raises(LedgerError, match="second process"):
            first()
        assert torch.equal(opened(unfinished)(), values[0])
    else:
        assert torch.equal(first(), values[0])


def test_a_process_that_finds_the_value_of_another_one_draws_none(unfinished, monkeypatch):
    """The second process writes its line between the last check and the return of the first one."""
    first = opened(unfinished)
    seconds = []

    def overtake():
        with pytest.raises(LedgerError, match="second process"):
            seconds[0]()

    interrupt(
        monkeypatch, ("noise", "normal", 0, "before"), lambda: seconds.append(opened(unfinished))
    )
    interrupt(monkeypatch, ("confirmation", "confirm", 0, "after"), overtake)
    assert first().shape == (3,)
    assert redraws(unfinished) == 2
    with pytest.raises(InputError, match="another process has drawn"):
        opened(unfinished)


def test_a_run_that_was_killed_before_its_first_release_keeps_its_part_of_the_shared_budget(
    tmp_path, monkeypatch
):
    """The shared ledger has room for one run of this plan;
    the resumed run reserves no second one.
    """
    shared = SharedLedger.create(
        tmp_path / "all.jsonl", target_epsilon=2.01, target_delta=1e-5
    ).path
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(dpswd.release, "_choose_entries", killed)
        with pytest.raises(Killed):
            release_all(run, shared, resume=False)
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    assert len(release_all(run, shared)) == N_RELEASES
    assert list(SharedLedger.open_existing(shared).runs) == [
        Ledger.open_existing(run / "ledger.jsonl").header["run"]
    ]
    refused(copy, shared)


def killed(*_):
    raise Killed
