"""kill -9 at random moments of a run, then resume: every release is in the ledger, every file readable."""

import json
import os
import random
import time

import pytest
import torch
import yaml
from factories import fit_arguments, fork_server, run_fit

from dpswd.accounting.ledger import Ledger

pytestmark = pytest.mark.slow  # each run starts a process that has to plan before it trains
STEPS = 100
RUNS = int(os.environ.get("DPSWD_KILLED_RUNS", "1"))  # 5 gives fifty kills, which takes minutes


@pytest.fixture(scope="module")
def server():
    return fork_server()


class Victim:
    """A run that is started, killed and resumed in its directory."""

    def __init__(self, server, directory):
        self.server, self.directory = server, directory
        directory.mkdir()
        self.witness, self.said = directory / "witness", directory / "said"
        self.witness.touch()
        self.run = directory / "run"

    def start(self, *more):
        words = fit_arguments(self.run, STEPS, *more)
        process = self.server.Process(target=run_fit, args=(words, str(self.witness), str(self.said)))
        process.start()
        return process

    def kill(self, chance):
        """Starts and kills the run; returns whether it was releasing."""
        before, process = self.made, self.start()
        if chance.random() < 0.4:  # somewhere in starting up, planning, calibrating, resuming
            time.sleep(chance.uniform(0, 1.5))
        else:  # while it releases and saves
            until = time.monotonic() + 20
            while self.made == before and process.is_alive() and time.monotonic() < until:
                time.sleep(0.002)
            time.sleep(chance.uniform(0, 0.25))
        process.kill()
        process.join()
        assert process.exitcode in (-9, 0), self.said.read_text()
        return self.made > before and process.exitcode == -9

    @property
    def made(self):
        """Number of times that noise was drawn, independent of the ledger."""
        return self.witness.stat().st_size

    @property
    def checkpoint(self):
        path = self.run / "checkpoints" / "last.ckpt"
        return torch.load(path, weights_only=True) if path.exists() else None

    def check(self):
        """Reads every file and compares the counts."""
        for name, read in (("privacy.json", json.loads), ("config.yaml", yaml.safe_load)):
            if (self.run / name).exists():
                assert read((self.run / name).read_text())
        checkpoint, ledger = self.checkpoint, self.run / "ledger.jsonl"
        written = Ledger.open_existing(ledger).n_releases if ledger.exists() and ledger.read_bytes() else 0
        assert written >= self.made
        if checkpoint is not None:
            (state,) = (each for each in checkpoint["callbacks"].values() if "ledger_head" in each)
            assert written >= state["releases"]
        else:
            assert self.made == 0  # there is a checkpoint before the first release
        return written

    def finish(self):
        """Resumes the run and compares its end with the plan."""
        before = self.checkpoint
        process = self.start()
        process.join(60)
        assert process.exitcode == 0, self.said.read_text()
        written, after = self.check(), self.checkpoint
        assert written == STEPS  # the whole budget; releases since the last checkpoint are lost steps
        assert json.loads((self.run / "privacy.json").read_text())["epsilon"] <= 10
        if before is not None and before["global_step"] < after["global_step"]:
            name = next(name for name in after["state_dict"] if name.endswith("weight"))
            assert not torch.equal(before["state_dict"][name], after["state_dict"][name])
        assert all(torch.isfinite(value).all() for value in after["state_dict"].values())
        return after["global_step"]


def kill_and_finish(server, directory, kills, chance):
    victim, during, written = Victim(server, directory), 0, 0
    for _ in range(kills):
        during += victim.kill(chance)
        now = victim.check()
        assert now >= written
        written = now
    return victim.finish(), during, victim.made


def test_kills_at_random_moments(server, tmp_path):
    chance, during, steps = random.Random(0), 0, []
    for number in range(RUNS):
        found, hits, _ = kill_and_finish(server, tmp_path / str(number), 10, chance)
        during, steps = during + hits, [*steps, found]
    assert during >= 2 * RUNS
    assert min(steps) > 0


ONE_SHOT = ("--model.init_args.release_every", "0", "--trainer.callbacks", "dpswd.generation.export.GeneratorFile")


def test_one_shot_runs_killed_at_random_moments(server, tmp_path):
    """A run killed and resumed until it ends has made its releases once, and its generator states the planned budget.

    A kill between ledger and file, some milliseconds of the run, loses the release; then the run must fail.
    """
    chance, finished, kills = random.Random(1), 0, 0
    for number in range(2 * RUNS):
        victim = Victim(server, tmp_path / str(number))
        for _ in range(4):
            process = victim.start(*ONE_SHOT)
            time.sleep(chance.uniform(0, 3))
            process.kill()
            process.join()
            kills += process.exitcode == -9
            assert victim.made <= 1  # the noise is drawn once
        process = victim.start(*ONE_SHOT)
        process.join(120)
        stored = (victim.run / "releases" / "0001.pt").exists()
        assert process.exitcode == (0 if stored else 1), victim.said.read_text()
        assert Ledger.open_existing(victim.run / "ledger.jsonl").n_releases == 1
        assert victim.made <= 1
        assert (victim.run / "generator.pt").exists() is stored
        if stored:
            finished += 1
            facts = json.loads((victim.run / "privacy.json").read_text())
            assert facts["releases_made"] == facts["planned_releases"] == 1
            assert facts["epsilon"] <= facts["target_epsilon"]
    assert finished >= RUNS
    assert kills >= 2 * RUNS
