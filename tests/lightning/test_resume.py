"""Resumed runs: Ctrl-C, kill -9 at every moment of a release, stored and lost releases,
other checkpoints.
"""

import json
import os
import random
import re
import signal
import time
import warnings

import lightning.pytorch.cli  # noqa: F401  (at collection: its loggers keep the stderr that they find)
import pytest
import torch
from factories import (
    STEPS,
    Calls,
    Mine,
    N,
    Queried,
    account,
    agree,
    checkpoint_at,
    deadly,
    drawn,
    fit_arguments,
    kill_and_finish,
    ledger_of,
    loader,
    privacy,
    records,
    run_fit,
    run_or_resume,
    trainer,
    untouched,
    witness_noise,
    written,
)

import dpswd.budget.run_directory
import dpswd.lightning.checkpoints
from dpswd import DPSlicedWassersteinLoss, InputError, PrivateRecords
from dpswd._files import atomic_write
from dpswd.accounting.ledger import Ledger
from dpswd.budget.budget import RunBudget
from dpswd.errors import DpswdError

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:Total length of .CombinedLoader. across ranks is zero"
    ),  # no step is left
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),  # of the checkpoint callback
    pytest.mark.filterwarnings(
        "ignore:You're resuming from a checkpoint that ended before the epoch ended"
    ),
]
PLAN, FOR_EVER = 30, {"max_steps": -1, "max_epochs": -1}


@pytest.fixture
def sigint():
    """Lightning disables the handler of a run that was interrupted."""
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.mark.parametrize(
    "changes",
    [
        {"max_epochs": 1},
        {"max_epochs": 3},
        {"max_steps": PLAN},
        {"max_steps": 3 * PLAN, "max_epochs": 3},
        FOR_EVER,
    ],
    ids=str,
)
@pytest.mark.parametrize("at", [0, 10, PLAN - 1])
@pytest.mark.usefixtures("sigint")
def test_ctrl_c_and_resume_make_the_planned_releases(tmp_path, monkeypatch, changes, at):
    """On 0.2.0 a run of one epoch ended silently at 40 of 60 releases."""
    witness_noise(tmp_path / "witness", monkeypatch.setattr)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        run_or_resume(tmp_path, Mine(fail_at=at, error=KeyboardInterrupt), PLAN, **changes)
    assert (
        written(tmp_path)
        == privacy(tmp_path)["releases_made"]
        == drawn(tmp_path / "witness")
        == at + 1
    )
    module = Mine()
    made = run_or_resume(tmp_path, module, PLAN, **changes)
    assert made.global_step == PLAN
    assert (
        module.criterion.n_releases == PLAN - at - 1
    )  # the release of the interrupted step is stored
    assert drawn(tmp_path / "witness") == PLAN
    agree(tmp_path, PLAN)


@pytest.mark.usefixtures("sigint")
def test_ctrl_c_twice_with_free_steps(tmp_path, monkeypatch):
    witness_noise(tmp_path / "witness", monkeypatch.setattr)
    for at in (4, 5):  # a free step, and one with a release
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            run_or_resume(tmp_path, Mine(fail_at=at, error=KeyboardInterrupt), 4, every=5)
    assert run_or_resume(tmp_path, Mine(), 4, every=5).global_step == 20
    agree(tmp_path, 4)
    assert drawn(tmp_path / "witness") == 4


@pytest.mark.usefixtures("sigint")
@pytest.mark.parametrize("has_checkpoints", [True, False])
def test_ctrl_c_says_how_to_finish_the_run(tmp_path, capsys, has_checkpoints):
    made = trainer(tmp_path, enable_checkpointing=has_checkpoints)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        made.fit(Mine(fail_at=4, error=KeyboardInterrupt), loader(PLAN))
    error = capsys.readouterr().err
    assert f"interrupted after 5 of {PLAN} planned releases" in error
    if not has_checkpoints:
        assert "no checkpoint to go on from" in error
        return
    (path,) = re.findall(r"ckpt_path='([^']*)'", error)
    trainer(tmp_path).fit(Mine(), loader(PLAN), ckpt_path=path)
    agree(tmp_path, PLAN)


def finished(directory, epsilon=5.0):
    module = Mine()
    trainer(directory, epsilon=epsilon).fit(module, loader())
    return module, checkpoint_at(directory, STEPS)


def resume(checkpoint, module=None, data=None, directory=None, **changes):
    made, module = trainer(directory or checkpoint.parents[1], **changes), module or Mine()
    made.fit(module, data or loader(), ckpt_path=checkpoint)
    return made, module


@pytest.mark.parametrize("stored", ["all", "none", "all but the last"])
@pytest.mark.parametrize("step", [2, STEPS])
def test_an_old_checkpoint_pays_nothing_twice(tmp_path, stored, step):
    """A release whose value was returned is not drawn again,
    also where the user has removed its file.
    """
    first, _ = finished(tmp_path)
    files = sorted((tmp_path / "releases").iterdir())
    for path in files if stored == "none" else files[-1:] if stored == "all but the last" else []:
        path.unlink()
    made, module = resume(checkpoint_at(tmp_path, step))
    assert module.criterion.n_releases == 0
    assert (
        made.global_step
        == {"all": STEPS, "none": step, "all but the last": max(step, STEPS - 1)}[stored]
    )
    if stored == "all":
        assert torch.equal(module.released.values, first.released.values)
    agree(tmp_path, STEPS)


def test_long_runs_store_no_release(tmp_path, monkeypatch):
    monkeypatch.setattr("dpswd.budget.plan.STORED_BYTES", 0)
    trainer(tmp_path).fit(Mine(), loader(21))
    assert not (tmp_path / "releases").exists()
    atomic_write(
        tmp_path / "releases" / "000021.drawing", ledger_of(tmp_path).header["run"].encode()
    )  # of a query
    _, module = resume(checkpoint_at(tmp_path, 20), data=loader(21))
    assert (
        module.criterion.n_releases == 0
    )  # the last one was seen by a checkpoint, or lost: it counts
    agree(tmp_path, 21)
    trainer(tmp_path / "control").fit(Mine(), loader(20))
    assert len(list((tmp_path / "control" / "releases").iterdir())) == 20


def test_a_resumed_run_keeps_its_noise_and_repeats_no_query(tmp_path):
    of = records()
    first, second = Queried(of, fail_at=0), Queried(of)
    with pytest.raises(RuntimeError, match="crash"):
        run_or_resume(tmp_path, first, STEPS, of=of)
    run_or_resume(tmp_path, second, STEPS, of=of)
    for name in ("counts", "moment", "criterion"):
        assert getattr(second, name).mechanism == getattr(first, name).mechanism
        assert getattr(second, name).mechanism.sigma not in (None, 1)  # control: as constructed
    assert second.counts.n_releases == second.moment.n_releases == 0
    assert all(torch.equal(a, b) for a, b in zip(first.queried, second.queried, strict=True))
    agree(tmp_path, STEPS + 2)


def state_of(path):
    """State of the budget in a checkpoint."""
    states = torch.load(path, weights_only=True)["callbacks"]
    (state,) = (state for name, state in states.items() if name.startswith("PrivacyBudget"))
    return state


def test_a_checkpoint_states_no_fewer_releases_than_the_one_it_came_from(tmp_path):
    _, checkpoint = finished(tmp_path)
    early = Calls(
        "on_fit_start", lambda module: module.trainer.save_checkpoint(tmp_path / "early.ckpt")
    )
    again, _ = resume(checkpoint, callbacks=[early])
    again.save_checkpoint(tmp_path / "late.ckpt")
    assert again.budget.statement().to_dict() == privacy(tmp_path)  # no ledger was opened
    wanted = state_of(checkpoint)
    assert wanted["ledger_head"] == ledger_of(tmp_path).head
    assert state_of(tmp_path / "early.ckpt") == state_of(tmp_path / "late.ckpt") == wanted


def test_epsilon_of_a_resumed_run_is_never_less_than_what_it_has_spent(tmp_path):
    seen = []
    watch = Calls("on_train_batch_start", lambda module: seen.append(module.trainer.budget.epsilon))
    with pytest.raises(RuntimeError, match="crash"):
        trainer(tmp_path, callbacks=[watch]).fit(Mine(fail_at=3), loader())
    assert seen[0] == 0  # of a new run
    seen.clear()
    made, _ = resume(checkpoint_at(tmp_path, 3), callbacks=[watch])
    agree(tmp_path, STEPS)
    epsilon = privacy(tmp_path)["epsilon"]
    assert seen[0] == made.budget.epsilon == epsilon > 4.9  # the run costs its plan
    again, _ = resume(checkpoint_at(tmp_path, STEPS))  # no step is left to train
    assert again.budget.epsilon == epsilon


def test_epsilon_of_a_run_that_breaks_off_is_that_of_its_plan(tmp_path):
    run = trainer(tmp_path)
    with pytest.raises(RuntimeError, match="crash"):
        run.fit(Mine(fail_at=1), loader())
    assert run.budget.epsilon == privacy(tmp_path)["epsilon"] > 4.9


def test_a_checkpoint_needs_a_budget_and_the_ledger_of_its_run(tmp_path):
    """Otherwise weights that cost epsilon 50 would be stated to cost 0.1."""
    _, checkpoint = finished(tmp_path / "dear", epsilon=50.0)
    finished(tmp_path / "cheap", epsilon=0.1)
    module = Mine()
    path = tmp_path / "dear" / "ledger.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))
    for directory in (
        tmp_path / "cheap",
        tmp_path / "dear",
    ):  # of a different run, and one that was cut
        with untouched(tmp_path), pytest.raises(DpswdError, match="different run"):
            resume(checkpoint, module, directory=directory, epsilon=50.0)
    content = torch.load(checkpoint, weights_only=True)
    torch.save(content | {"callbacks": {}}, tmp_path / "bare.ckpt")  # saved without a budget
    with pytest.raises(InputError, match="within a PrivacyBudget"):
        resume(tmp_path / "bare.ckpt", module, directory=tmp_path / "run")
    assert module.criterion.n_releases == 0
    assert not [path for path in (tmp_path / "run").rglob("*") if path.is_file()]


def test_a_resumed_run_in_another_directory_names_that_of_its_ledger(tmp_path):
    _, checkpoint = finished(tmp_path / "run")
    with pytest.raises(InputError, match=r"set trainer\.default_root_dir to .*, \S+/run\.$"):
        resume(checkpoint, directory=tmp_path / "other")
    assert not [path for path in (tmp_path / "other").rglob("*") if path.is_file()]


def test_nothing_secret_is_in_a_checkpoint(tmp_path):
    _, path = finished(tmp_path)
    checkpoint = torch.load(path, weights_only=True)
    assert all(name.startswith(("net", "encoder")) for name in checkpoint["state_dict"])
    assert torch.equal(checkpoint["state_dict"]["encoder.0.running_mean"], torch.zeros(3))
    assert set(checkpoint.pop("released")) == {"values", "projections", "mechanism"}
    tensors = []
    json.dumps(checkpoint, default=lambda value: tensors.append(value) or "", skipkeys=True)
    assert max(tensor.numel() for tensor in tensors if isinstance(tensor, torch.Tensor)) < N
    assert account(ledger_of(tmp_path).groups()).get_epsilon(1e-5) <= 5


SHORT = 8
OWNERS = {
    "budget": RunBudget,
    "checkpoint": dpswd.lightning.checkpoints,
    "file": dpswd.budget.run_directory,
    "ledger": Ledger,
    "loss": DPSlicedWassersteinLoss,
    "records": PrivateRecords,
}
MOMENTS = [
    ("ledger", "create", 0),
    ("checkpoint", "atomic_write", 0),  # before the first release
    ("records", "open_records", 3),
    ("ledger", "write_draw", 3),
    ("ledger", "write_draw", 3, "after"),  # in the ledger, and no noise
    ("loss", "add_noise", 3, "after"),
    ("budget", "store", 3),  # noise, and no file
    ("file", "atomic_write", 3, "after"),
    ("loss", "distance", 3),  # a file, and no step
    ("checkpoint", "atomic_write", 4),
    ("checkpoint", "atomic_write", 4, "after"),
    ("ledger", "write_draw", SHORT - 1, "after"),  # the last release
    ("budget", "store", 0),  # the first one
    ("budget", "write_statement", 1),  # privacy.json at the end
]


def fit(directory, moment=None):
    """A run that saves after every step, in a process that dies at a moment."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    witness_noise(directory / "witness")
    if moment is not None:
        owner, *rest = moment
        deadly(OWNERS[owner], *rest)
    plugins = [dpswd.lightning.checkpoints.AtomicCheckpointIO()]
    made = run_or_resume(directory / "run", Mine(), SHORT, plugins=plugins)
    (directory / "steps").write_text(str(made.global_step))


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: " ".join(map(str, moment)))
def test_a_killed_run_is_finished_and_pays_nothing_twice(server, tmp_path, moment):
    kill_and_finish(server, fit, tmp_path, moment, SHORT)
    assert int((tmp_path / "steps").read_text()) == SHORT


def started(server, directory, steps, name):
    """A process that runs the command, with its draws of noise and its words in files."""
    arguments = (
        fit_arguments(directory / "run", steps),
        directory / name,
        directory / f"{name} said",
    )
    process = server.Process(target=run_fit, args=arguments)
    process.start()
    return process


@pytest.mark.slow
def test_the_command_killed_at_random_moments(server, tmp_path):
    """``dpswd fit``: every file stays readable,
    and the ledger never has less than what was drawn.
    """
    chance, run, witness, during = random.Random(0), tmp_path / "run", tmp_path / "witness", 0
    steps = 60

    for _ in range(int(os.environ.get("DPSWD_KILLS", "4"))):
        before, process, until = (
            drawn(witness),
            started(server, tmp_path, steps, "witness"),
            time.monotonic() + 30,
        )
        while drawn(witness) == before and process.is_alive() and time.monotonic() < until:
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.25))
        process.kill()
        process.join()
        assert process.exitcode in (-9, 0), (tmp_path / "witness said").read_text()
        during += process.exitcode == -9
        if (run / "ledger.jsonl").exists():
            assert written(run) <= drawn(witness) + 1
            torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    process = started(server, tmp_path, steps, "witness")
    process.join(90)
    assert process.exitcode == 0, (tmp_path / "witness said").read_text()
    agree(run, steps)
    assert steps <= drawn(witness) <= steps + during
    assert during
    assert (run / "generator.pt").exists()


@pytest.mark.slow
def test_a_second_process_in_the_same_directory(server, tmp_path):
    run = tmp_path / "run"
    first = started(server, tmp_path, 100, "first")
    while drawn(tmp_path / "first") < 5:
        time.sleep(0.005)
        assert first.is_alive()
    os.kill(first.pid, signal.SIGSTOP)  # holds its lock, however slow the second one starts
    second = started(server, tmp_path, 100, "second")
    second.join(60)
    os.kill(first.pid, signal.SIGCONT)
    said = (tmp_path / "second said").read_text().strip().splitlines()[-1]
    assert (second.exitcode, first.exitcode) == (2, None)  # the first is still running
    assert said.startswith(f"dpswd: Expected no other run in {run}, got one in progress")
    assert drawn(tmp_path / "second") == 0
    first.join(60)
    assert first.exitcode == 0
    assert written(run) == drawn(tmp_path / "first") == privacy(run)["releases_made"] == 100
