"""Full disk and second process: a refusal in one sentence, old files unchanged."""

import os
import resource
import signal
import time

import lightning.pytorch.cli  # noqa: F401  (at collection: its loggers keep the stderr that they find)
import pytest
from factories import fit_arguments, fork_server, run_fit

from dpswd import GaussianMechanism
from dpswd.accounting.ledger import Ledger
from dpswd.errors import LedgerError

MECHANISM = GaussianMechanism(sensitivity=1.0, sigma=4.0)


def test_a_limit_on_the_size_of_files(tmp_path):
    """As a full disk: a line that does not fit is removed again, and a new ledger leaves no file."""
    ledger = Ledger.create(tmp_path / "ledger.jsonl", {})
    ledger.record(MECHANISM, 100)
    before = (tmp_path / "ledger.jsonl").read_bytes()
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 40, limits[1]))
        with pytest.raises(LedgerError, match="got: File too large; no release was made"):
            ledger.record(MECHANISM, 100)
        assert (tmp_path / "ledger.jsonl").read_bytes() == before
        with pytest.raises(LedgerError, match="got: File too large"):
            Ledger.create(tmp_path / "other.jsonl", {"long": "x" * len(before)})
        assert [path.name for path in tmp_path.iterdir()] == ["ledger.jsonl"]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    ledger.record(MECHANISM, 100)
    assert Ledger.open_existing(tmp_path / "ledger.jsonl").n_releases == 2


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
