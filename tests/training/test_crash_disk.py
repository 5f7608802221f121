"""Full disk, read-only directory, second process: a refusal in one sentence, old files unchanged."""

import os
import resource
import signal
import subprocess
import time

import lightning.pytorch.cli  # noqa: F401  (at collection: its loggers keep the stderr that they find)
import pytest
from factories import fit_arguments, fork_server, run_fit

from dpswd import GaussianMechanism
from dpswd.accounting.ledger import Ledger
from dpswd.commands.main import main
from dpswd.errors import LedgerError

MECHANISM = GaussianMechanism(sensitivity=1.0, sigma=4.0)


@pytest.fixture
def disk(tmp_path):
    """A file system of 2 MB."""
    path = tmp_path / "disk"
    path.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", path], check=True, capture_output=True)
    except (subprocess.CalledProcessError, OSError):
        pytest.skip("may not mount a small file system here")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def fill(path, *, leave=0):
    """Fills the file system, except for some bytes."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            file.truncate(max(0, file.tell() - leave))


def contents(directory):
    return {path.relative_to(directory): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def refused(capfd, arguments, *words):
    assert main(arguments) == 2
    out, err = capfd.readouterr()
    last = err.strip().splitlines()[-1]
    assert last.startswith("dpswd: Expected")
    assert err.count("dpswd: ") == 1
    assert "Traceback" not in out + err
    for word in words:
        assert word in last, last


# full


def test_a_ledger_on_a_full_disk(disk):
    ledger = Ledger.create(disk / "ledger.jsonl", {})
    ledger.record(MECHANISM, 100)
    fill(disk / "filler")
    before = b""

    def until_it_is_full():
        nonlocal before
        while True:  # some lines still fit into the last page of the file
            before = (disk / "ledger.jsonl").read_bytes()
            ledger.record(MECHANISM, 100)

    with pytest.raises(LedgerError, match=r"got: No space left on device; no release was made\."):
        until_it_is_full()
    assert (disk / "ledger.jsonl").read_bytes() == before
    made = ledger.n_releases
    (disk / "filler").unlink()
    ledger.record(MECHANISM, 100)
    assert Ledger.open_existing(disk / "ledger.jsonl").n_releases == made + 1


def test_a_limit_on_the_size_of_files(tmp_path):
    """Without the right to mount: a line that does not fit is removed again."""
    ledger = Ledger.create(tmp_path / "ledger.jsonl", {})
    ledger.record(MECHANISM, 100)
    before = (tmp_path / "ledger.jsonl").read_bytes()
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 40, limits[1]))
        with pytest.raises(LedgerError, match="got: File too large; no release was made"):
            ledger.record(MECHANISM, 100)
        assert (tmp_path / "ledger.jsonl").read_bytes() == before
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    ledger.record(MECHANISM, 100)
    assert Ledger.open_existing(tmp_path / "ledger.jsonl").n_releases == 2


def test_fit_on_a_full_disk(disk, capfd):
    fill(disk / "filler")
    refused(capfd, fit_arguments(disk / "run", 4), "No space left on device")
    assert not contents(disk).keys() - {(disk / "filler").relative_to(disk)}


# read-only


@pytest.mark.filterwarnings("ignore:The dirpath has changed")  # of the checkpoint callback
def test_fit_in_a_directory_that_cannot_be_written(disk, capfd):
    assert main(fit_arguments(disk / "run", 4)) == 0
    capfd.readouterr()
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    before = contents(disk)
    refused(capfd, fit_arguments(disk / "other", 4), "Read-only file system")
    checkpoint = disk / "run" / "checkpoints" / "last.ckpt"
    assert checkpoint.exists()
    refused(capfd, ["fit", *fit_arguments(disk / "other", 5)[1:], "--ckpt_path", str(checkpoint)], "got no file")
    with pytest.raises(LedgerError, match="got: Read-only file system; no release was made"):
        Ledger.open_existing(disk / "run" / "ledger.jsonl").record(MECHANISM, 100)
    assert contents(disk) == before


# a second process


@pytest.mark.slow
def test_a_second_process_in_the_same_directory(tmp_path):
    server, run, said = fork_server(), tmp_path / "run", tmp_path / "said"

    def start(name):
        words = fit_arguments(run, 150)
        process = server.Process(target=run_fit, args=(words, str(tmp_path / name), str(tmp_path / f"{name} said")))
        process.start()
        return process

    first = start("first")
    while not (tmp_path / "first").exists() or (tmp_path / "first").stat().st_size < 5:
        time.sleep(0.005)
        assert first.is_alive()
    os.kill(first.pid, signal.SIGSTOP)  # holds its lock, however slow the second one starts
    second = start("second")
    second.join(60)
    os.kill(first.pid, signal.SIGCONT)
    said = (tmp_path / "second said").read_text().strip().splitlines()[-1]
    assert (second.exitcode, first.exitcode) == (2, None)  # the first is still running
    assert said.startswith(f"dpswd: Expected no other run in {run}, got one in progress")
    assert (tmp_path / "second").stat().st_size == 0
    first.join(60)
    assert first.exitcode == 0
    assert Ledger.open_existing(run / "ledger.jsonl").n_releases == (tmp_path / "first").stat().st_size == 150
