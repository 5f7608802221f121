"""kill -9 at every moment of a release, full disk, second process: the run is finished with nothing paid twice."""

import os
import random
import resource
import signal
import time
import warnings

import lightning.pytorch.cli  # noqa: F401  (at collection: its loggers keep the stderr that they find)
import pytest
import torch
from factories import (
    Mine,
    agree,
    deadly,
    drawn,
    fit_arguments,
    fork_server,
    ledger_of,
    loader,
    privacy,
    run_fit,
    trainer,
    witness_noise,
    written,
)

import dpswd.budget
import dpswd.lightning.checkpoints
from dpswd import DPSlicedWassersteinLoss, GaussianMechanism, PrivacyBudget, PrivateRecords
from dpswd.accounting.ledger import Ledger
from dpswd.errors import LedgerError
from dpswd.lightning.checkpoints import LastCheckpoint

PLAN = 8
OWNERS = {
    "budget": PrivacyBudget,
    "checkpoint": dpswd.lightning.checkpoints,
    "file": dpswd.budget,
    "ledger": Ledger,
    "loss": DPSlicedWassersteinLoss,
    "records": PrivateRecords,
}
MOMENTS = [
    ("ledger", "create", 0),
    ("checkpoint", "atomic_write", 0),  # before the first release
    ("records", "open_records", 3),
    ("ledger", "record", 3),
    ("ledger", "record", 3, "after"),  # in the ledger, and no noise
    ("loss", "add_noise", 3, "after"),
    ("budget", "store", 3),  # noise, and no file
    ("file", "atomic_write", 3, "after"),
    ("loss", "distance", 3),  # a file, and no step
    ("checkpoint", "atomic_write", 4),
    ("checkpoint", "atomic_write", 4, "after"),
    ("ledger", "record", PLAN - 1, "after"),  # the last release
    ("budget", "store", 0),  # the first one
    ("budget", "_write", 1),  # privacy.json at the end
]


@pytest.fixture(scope="module")
def server():
    return fork_server()


def fit(directory, moment=None):
    """A run that saves after every step, in a process that dies at a moment."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    witness_noise(directory / "witness")
    if moment is not None:
        owner, *rest = moment
        deadly(OWNERS[owner], *rest)
    run = directory / "run"
    made = trainer(run, plugins=[dpswd.lightning.checkpoints.AtomicCheckpointIO()])
    made.callbacks = [made.budget, LastCheckpoint(run, PLAN)]
    checkpoint = run / "checkpoints" / "last.ckpt"
    made.fit(Mine(), loader(PLAN), ckpt_path=checkpoint if checkpoint.exists() else None)
    (directory / "steps").write_text(str(made.global_step))


def in_process(server, *arguments):
    process = server.Process(target=fit, args=arguments)
    process.start()
    process.join(60)
    return process.exitcode


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: " ".join(map(str, moment)))
def test_a_killed_run_is_finished_and_pays_nothing_twice(server, tmp_path, moment):
    run, witness = tmp_path / "run", tmp_path / "witness"
    assert in_process(server, tmp_path, moment) == -9
    before = {path.name: path.read_bytes() for path in (run / "releases").glob("*.pt")}
    made = written(run) or 0
    lost = drawn(witness) - len(before)
    assert len(before) <= drawn(witness) <= made <= len(before) + 1
    assert in_process(server, tmp_path) == 0
    agree(run, PLAN)
    assert drawn(witness) == PLAN + lost  # a value that was lost is drawn again, under the same line
    assert all((run / "releases" / name).read_bytes() == content for name, content in before.items())
    assert int((tmp_path / "steps").read_text()) == PLAN


@pytest.mark.slow
def test_the_command_killed_at_random_moments(server, tmp_path):
    """``dpswd fit``: every file stays readable, and the ledger never has less than what was drawn."""
    chance, run, witness, during = random.Random(0), tmp_path / "run", tmp_path / "witness", 0
    steps = 60

    def start():
        process = server.Process(target=run_fit, args=(fit_arguments(run, steps), witness, tmp_path / "said"))
        process.start()
        return process

    for _ in range(int(os.environ.get("DPSWD_KILLS", "4"))):
        before, process, until = drawn(witness), start(), time.monotonic() + 30
        while drawn(witness) == before and process.is_alive() and time.monotonic() < until:
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.25))
        process.kill()
        process.join()
        assert process.exitcode in (-9, 0), (tmp_path / "said").read_text()
        during += process.exitcode == -9
        if (run / "ledger.jsonl").exists():
            assert written(run) <= drawn(witness) + 1
            torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    process = start()
    process.join(90)
    assert process.exitcode == 0, (tmp_path / "said").read_text()
    agree(run, steps)
    assert steps <= drawn(witness) <= steps + during
    assert during
    assert (run / "generator.pt").exists()


@pytest.mark.slow
def test_a_second_process_in_the_same_directory(server, tmp_path):
    run = tmp_path / "run"

    def start(name):
        arguments = (fit_arguments(run, 100), tmp_path / name, tmp_path / f"{name} said")
        process = server.Process(target=run_fit, args=arguments)
        process.start()
        return process

    first = start("first")
    while drawn(tmp_path / "first") < 5:
        time.sleep(0.005)
        assert first.is_alive()
    os.kill(first.pid, signal.SIGSTOP)  # holds its lock, however slow the second one starts
    second = start("second")
    second.join(60)
    os.kill(first.pid, signal.SIGCONT)
    said = (tmp_path / "second said").read_text().strip().splitlines()[-1]
    assert (second.exitcode, first.exitcode) == (2, None)  # the first is still running
    assert said.startswith(f"dpswd: Expected no other run in {run}, got one in progress")
    assert drawn(tmp_path / "second") == 0
    first.join(60)
    assert first.exitcode == 0
    assert written(run) == drawn(tmp_path / "first") == privacy(run)["releases_made"] == 100


def test_a_limit_on_the_size_of_files(tmp_path):
    """As a full disk: a line that does not fit is removed again, and a new ledger leaves no file."""
    mechanism = GaussianMechanism(sensitivity=1.0, sigma=4.0)
    ledger = Ledger.create(tmp_path / "ledger.jsonl", {})
    ledger.record(mechanism, 100)
    before = (tmp_path / "ledger.jsonl").read_bytes()
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 40, limits[1]))
        with pytest.raises(LedgerError, match="File too large"):
            ledger.record(mechanism, 100)
        assert (tmp_path / "ledger.jsonl").read_bytes() == before
        with pytest.raises(LedgerError, match="File too large"):
            Ledger.create(tmp_path / "other.jsonl", {"long": "x" * len(before)})
        assert [path.name for path in tmp_path.iterdir()] == ["ledger.jsonl"]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    ledger.record(mechanism, 100)
    assert ledger_of(tmp_path).n_releases == 2
