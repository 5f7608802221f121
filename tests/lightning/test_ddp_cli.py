"""``dpswd fit --trainer.devices 2``, as a user starts it: a killed process, a refusal, a resumed run."""

import os
import subprocess
import sys
import time
from pathlib import Path

import lightning.pytorch.cli  # noqa: F401  (at collection: its loggers keep the stderr that they find)
import pytest
import torch
from factories import fit_arguments

from dpswd.accounting.ledger import Ledger
from dpswd.commands.main import main

pytestmark = pytest.mark.slow
SEVERAL = ["--trainer.devices", "2", "--trainer.strategy", "ddp", "--trainer.accelerator", "cpu"]


def start(directory, steps, log):
    words = fit_arguments(directory, steps, *SEVERAL)
    environment = {name: value for name, value in os.environ.items() if name not in ("LOCAL_RANK", "WORLD_SIZE")}
    with log.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "dpswd.commands.main", *words],
            stdout=file,
            stderr=file,
            env=environment | {"OMP_NUM_THREADS": "1"},
        )


def child_of(process):
    """Returns the process identifier of the child."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if fields[1] == str(process.pid) and fields[0] != "Z":
            return int(status.parent.name)
    return None


def wait_for(condition, seconds):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "timed out"
        time.sleep(0.02)


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for the other process in /proc")
def test_a_killed_process_ends_the_run(tmp_path):
    run, log = tmp_path / "run", tmp_path / "log"
    process = start(run, 4000, log)
    ledger = run / "ledger.jsonl"
    try:
        wait_for(lambda: ledger.exists() and ledger.read_bytes().count(b'"release"') > 20, 80)
        other = child_of(process)
        process.kill()
        process.wait()
        wait_for(lambda: gone(other), 60)
    finally:
        process.kill()
    said = log.read_text()
    assert "lost connection" in said
    assert "Traceback" not in said
    written = Ledger.open_existing(ledger).n_releases
    checkpoint = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    (state,) = (each for each in checkpoint["callbacks"].values() if "ledger_head" in each)
    assert written >= state["releases"]


@pytest.mark.filterwarnings("ignore:Total length of .CombinedLoader. across ranks is zero")  # nothing is left to do
def test_a_run_of_two_is_refused_resumed_and_finished(tmp_path, capfd):
    run, log = tmp_path / "run", tmp_path / "log"
    process = start(run, 8, log)
    assert process.wait(80) == 0, log.read_text()
    assert Ledger.open_existing(run / "ledger.jsonl").n_releases == 8
    assert torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] == 8
    (run / "checkpoints" / "last.ckpt").rename(tmp_path / "kept")
    before = (run / "ledger.jsonl").read_bytes()
    process = start(run, 8, log)  # a new run in the old directory
    assert process.wait(80) == 2, log.read_text()
    said = [line for line in log.read_text().splitlines() if line.startswith("dpswd: ")]
    assert len(said) == 1
    assert said[0].startswith("dpswd: Expected no ledger at")
    assert "Traceback" not in log.read_text()
    assert (run / "ledger.jsonl").read_bytes() == before
    (tmp_path / "kept").rename(run / "checkpoints" / "last.ckpt")
    assert main(fit_arguments(run, 8)) == 0  # one process may resume a run of two
    assert (run / "ledger.jsonl").read_bytes() == before
    capfd.readouterr()
    assert main(["predict", *fit_arguments(run, 8, *SEVERAL)[1:]]) == 2
    assert "Expected one process for predict" in capfd.readouterr().err
