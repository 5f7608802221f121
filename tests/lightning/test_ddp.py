"""Two processes under gloo: one subset, release, draw of noise and ledger, as in one process."""

import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from factories import (
    MECHANISM,
    STEPS,
    Mine,
    X,
    Y,
    agree,
    booked,
    deadly,
    drawn,
    fine,
    fit_arguments,
    ledger_of,
    loader,
    privacy,
    records,
    run_or_resume,
    run_ranks,
    trainer,
    witness_noise,
    written,
)

import dpswd.release
from dpswd import (
    Budget,
    ClassMeans,
    DPSlicedWassersteinLoss,
    InputError,
    PrivacyBudget,
    PrivateRecords,
)
from dpswd.budget.budget import RunBudget

CHILDREN = "/proc/{0}/task/{0}/children"
pytestmark = pytest.mark.slow  # two processes, which meet over a network


def release_twice(rank, mechanism, rows=None):
    """Makes two releases, of the part of tensors or of batches of a handle;
    they see the same source of noise.
    """
    dist.init_process_group("gloo")
    loss, opened = booked(DPSlicedWassersteinLoss(mechanism)), []
    method = PrivateRecords.open_records
    PrivateRecords.open_records = lambda self, index: (
        opened.extend(index.tolist()) or method(self, index)
    )
    batches = (
        loader(2, batch_size=mechanism.batch_size)
        if rows is None
        else [torch.tensor_split(rows, 2)[rank]] * 2
    )
    made = [loss.release(batch) for batch in batches]
    return [(r.values.numpy(), r.projections.numpy()) for r in made], len(loss.recorder), opened


def release_query(rank, directory, of_each_rank=None, bad=None):
    """Releases a query of all records within a Budget."""
    dist.init_process_group("gloo")
    witness_noise(directory / "witness")
    handle = records(X if of_each_rank is None else of_each_rank[rank])
    query = ClassMeans(3, 3, row_norm=9.0, noise_seed=1)
    with Budget(
        handle, [query], target_epsilon=5, target_delta=1e-5, run_dir=directory / "run"
    ) as budget:
        function = (lambda x: x[:, :2]) if rank == bad else None
        counts, sums = query.release(handle, rows=function)
    return counts.tolist(), sums.tolist(), query.n_releases, budget.n_releases


MECHANISMS = {
    "rows": MECHANISM.replace(batch_size=9, noise_seed=4),  # parts of 5 and 4 rows
    "row": MECHANISM.replace(batch_size=1, noise_seed=4),  # no row for the second process
    "quantiles": MECHANISM.replace(
        batch_size=12, statistic="quantiles", n_quantiles=4, noise_seed=4
    ),
    "classes": MECHANISM.replace(
        batch_size=12, statistic="quantiles", n_quantiles=3, n_classes=3, noise_seed=4
    ),
}


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("kind", ["tensor", "handle"])
def test_a_release_equals_that_of_one_process(server, name, kind):
    mechanism = MECHANISMS[name]
    alone = booked(DPSlicedWassersteinLoss(mechanism))
    if kind == "tensor" and name != "classes":
        rows = X[: mechanism.batch_size]
        expected = [alone.release(rows) for _ in range(2)]
        found = fine(run_ranks(server, release_twice, mechanism, rows))
    else:
        expected = [alone.release(batch) for batch in loader(2, batch_size=mechanism.batch_size)]
        found = fine(run_ranks(server, release_twice, mechanism))
        opened = [each[2] for each in found]
        assert not {*opened[0][: len(opened[0]) // 2]} & {
            *opened[1][: len(opened[1]) // 2]
        }  # of the first batch
        assert len(opened[0]) + len(opened[1]) == 2 * mechanism.batch_size
    for made, in_ledger, _ in found:
        assert in_ledger == 2
        for (values, projections), one in zip(made, expected, strict=True):
            np.testing.assert_array_equal(projections, one.projections.numpy())
            np.testing.assert_array_equal(
                values, one.values.numpy()
            )  # the grid hides rounding, and all is in order


def test_a_query_equals_that_of_one_process(server, tmp_path):
    first, second = fine(run_ranks(server, release_query, tmp_path))
    assert first == second
    assert (*first[2:], drawn(tmp_path / "witness")) == (1, 1, 1)
    agree(tmp_path / "run", 1)
    alone = ClassMeans(3, 3, row_norm=9.0, noise_seed=1)
    alone.mechanism = ledger_of(tmp_path / "run").groups()[0][0]
    counts, sums = booked(alone).release(records())
    assert (counts.tolist(), sums.tolist()) == first[:2]


def release_query_of_units(rank, directory):
    """Release class means of twenty units of two records each, within a Budget."""
    dist.init_process_group("gloo")
    return sums_of_units(directory)


def sums_of_units(directory):
    handle = PrivateRecords(X, Y, classes=range(3), unit=np.arange(len(X)) // 2, per_unit=2)
    query = ClassMeans(3, 3, row_norm=9.0, noise_seed=1)
    with Budget(handle, [query], target_epsilon=5, target_delta=1e-5, run_dir=directory):
        counts, sums = query.release(handle)
    return counts.tolist(), sums.tolist()


def test_a_query_of_units_equals_that_of_one_process(server, tmp_path):
    """The two entries of a unit are its two records, in the order that each process draws."""
    first, second = fine(run_ranks(server, release_query_of_units, tmp_path / "two"))
    assert first == second
    counts, sums = sums_of_units(tmp_path / "one")
    assert first[0] == pytest.approx(counts)
    np.testing.assert_allclose(first[1], sums, rtol=1e-6, atol=1e-6)
    assert ledger_of(tmp_path / "two").header["unit"] == "one person, at most 2 records"
    assert privacy(tmp_path / "two")["releases_made"] == 1


@pytest.mark.parametrize("bad", [0, 1])
def test_a_refusal_by_one_rank(server, tmp_path, bad):
    _, errors = run_ranks(server, release_query, tmp_path, None, bad)
    assert all("dim=3" in error for error in errors)
    assert errors[1 - bad].startswith(f"InputError: process {bad}: ")
    assert (written(tmp_path / "run"), drawn(tmp_path / "witness")) == (0, 0)


def test_ranks_with_different_records_are_refused(server, tmp_path):
    _, errors = run_ranks(server, release_query, tmp_path, [X, X.flip(0)])
    assert all("the same list of records in every process" in error for error in errors)
    assert not (tmp_path / "run").exists()


def test_wrong_number_of_rows(server):
    _, errors = run_ranks(server, release_twice, MECHANISM, X[:9])
    assert all("got 9 in all processes together" in error for error in errors)


class Watched(Mine):
    """Keeps what was released, and the loss to it."""

    def training_step(self, batch, batch_idx):
        value = super().training_step(batch, batch_idx)
        self.seen = [
            *getattr(self, "seen", []),
            (self.released.values.numpy().copy(), float(value.detach())),
        ]
        return value


class Twice(Watched):
    """The second rank calls the loss twice in a step."""

    def training_step(self, batch, batch_idx):
        if self.global_rank == 1 and self.global_step == 2:
            self.criterion.release(batch)
        return super().training_step(batch, batch_idx)


def train(rank, directory, kind=Watched, fail=None, die=None, world=2, **options):
    """Fits as one rank; rank 1 is killed at the moment ``die``."""
    warnings.simplefilter("ignore")
    witness_noise(directory.parent / "witness")
    budget = PrivacyBudget(5.0, 1e-5)
    if fail and rank == 0:
        budget.before_ledger = full
    if die is not None and rank == 1:
        deadly({"budget": RunBudget, "release": dpswd.release}[die[0]], *die[1:])
    several = {"devices": world, "strategy": "ddp_find_unused_parameters_true"} if world > 1 else {}
    run_or_resume(directory, module := kind(), STEPS, budget=budget, **several, **options)
    weights = torch.cat([value.flatten() for value in module.state_dict().values()]).tolist()
    return getattr(module, "seen", None), weights, module.criterion.n_releases, budget.n_releases


def full():
    raise InputError("Expected room on the disk, got none; make room.")


def test_training(server, tmp_path):
    trainer(tmp_path / "one").fit(Mine(), loader())
    (seen, weights, *counts), (theirs, others, *_) = fine(
        run_ranks(server, train, tmp_path / "two")
    )
    alone, facts = privacy(tmp_path / "one"), privacy(tmp_path / "two")
    ids = {"run", "weights_from_runs"}
    assert {
        name for name in alone if facts[name] != alone[name]
    } == ids  # epsilon, mu, sigma, releases are equal
    assert counts == [STEPS, STEPS]
    assert ledger_of(tmp_path / "two").groups() == ledger_of(tmp_path / "one").groups()
    agree(tmp_path / "two", STEPS)
    assert drawn(tmp_path / "witness") == STEPS
    assert weights == others  # one model
    assert all(np.array_equal(ours[0], other[0]) for ours, other in zip(seen, theirs, strict=True))
    assert all(
        ours[1] != other[1] for ours, other in zip(seen, theirs, strict=True)
    )  # own public samples


def test_refusal_by_the_first_rank(server, tmp_path):
    run = tmp_path / "run"
    _, errors = run_ranks(server, train, run, Watched, True)
    assert errors == ["InputError: Expected room on the disk, got none; make room."] * 2
    assert written(run) is None
    _, errors = run_ranks(server, train, run, Twice)
    assert errors[0] is not None
    assert "one release" in errors[1] or "ProcessLost" in errors[1]
    assert written(run) <= 3  # steps 0, 1 and at most the one in question


@pytest.mark.parametrize(
    ("die", "world"),
    [
        (("budget", "before_release", 2), 2),
        (("budget", "record", 2), 1),
        (("release", "_choose_entries", 4), 2),
    ],
    ids=lambda value: str(value),
)
def test_a_killed_rank_ends_the_run_which_is_finished(server, tmp_path, die, world):
    run = tmp_path / "run"
    _, (error,) = run_ranks(server, train, run, Watched, None, die, killed=1)
    assert error.startswith(
        "ProcessLostError: Expected all processes of the run to respond, got a lost connection"
    )
    before = drawn(tmp_path / "witness")
    assert len(list((run / "releases").glob("*.pt"))) <= before <= written(run) <= before + 1
    fine(run_ranks(server, train, run, Watched, None, None, world, world=world))
    agree(run, STEPS)
    assert drawn(tmp_path / "witness") == STEPS


def test_the_command_prints_one_object(tmp_path):
    run = tmp_path / "run"
    words = fit_arguments(run, 2, "--trainer.devices", "2", "--trainer.strategy", "ddp")
    command = [sys.executable, "-m", "dpswd", *words, "--json"]
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        environment.pop(name, None)
    done = subprocess.run(command, capture_output=True, env=environment, timeout=150, check=True)
    assert json.loads(done.stdout)["run_dir"] == str(run)


def running(pid):
    """Whether a process has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(
    not Path(CHILDREN.format(os.getpid())).exists(), reason="looks for the other process in /proc"
)
def test_a_killed_process_of_the_command_ends_the_run(tmp_path):
    run, log = tmp_path / "run", tmp_path / "log"
    words = fit_arguments(run, 3000, "--trainer.devices", "2", "--trainer.strategy", "ddp")
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("LOCAL_RANK", "WORLD_SIZE")
    }
    with log.open("wb") as file:
        command = [sys.executable, "-m", "dpswd", *words]
        process = subprocess.Popen(
            command, stdout=file, stderr=file, env=environment | {"OMP_NUM_THREADS": "1"}
        )
    ledger, until = run / "ledger.jsonl", time.monotonic() + 150
    try:
        while not ledger.exists() or ledger.read_bytes().count(b'"release"') < 20:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, "timed out"
            time.sleep(0.05)
        (other,) = filter(running, Path(CHILDREN.format(process.pid)).read_text().split())
        process.kill()
        process.wait()
        while running(other):
            assert time.monotonic() < until, "timed out"
            time.sleep(0.05)
    finally:
        process.kill()
    assert "lost connection" in log.read_text()
    assert "Traceback" not in log.read_text()
    assert written(run) >= 20
    assert json.loads(ledger.read_text().splitlines()[0])["planned_releases"] == 3000
