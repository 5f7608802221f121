"""Resumed runs: Ctrl-C, stored and lost releases, checkpoints and ledgers that do not fit."""

import json
import shutil
import signal

import lightning as L
import pytest
import torch
from factories import (
    MECHANISM,
    STEPS,
    Mine,
    N,
    X,
    account,
    agree,
    checkpoint_at,
    drawn,
    ledger_of,
    loader,
    privacy,
    records,
    trainer,
    witness_noise,
    written,
)

from dpswd import ClassCounts, ClassCovariances, InputError
from dpswd.errors import DpswdError
from dpswd.lightning.checkpoints import LastCheckpoint

pytestmark = [
    pytest.mark.filterwarnings("ignore:Total length of .CombinedLoader. across ranks is zero"),  # no step is left
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),  # of the checkpoint callback
    pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended"),
]
PLAN = 30


@pytest.fixture
def sigint():
    """Lightning disables the handler of a run that was interrupted."""
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)


def run(directory, module, changes, n_releases=PLAN, every=1, of=None):
    """Starts a run, or resumes it where there is a checkpoint."""
    made = trainer(directory, **changes)
    made.callbacks = [made.budget, LastCheckpoint(directory, n_releases)]
    path = directory / "checkpoints" / "last.ckpt"
    made.fit(module, loader(n_releases, every, of), ckpt_path=path if path.exists() else None)
    return made


@pytest.mark.parametrize(
    "changes",
    [{"max_epochs": 1}, {"max_epochs": 3}, {"max_steps": PLAN}, {"max_steps": 3 * PLAN, "max_epochs": 3}],
    ids=lambda changes: " ".join(changes),
)
@pytest.mark.parametrize("at", [0, 10, PLAN - 1])
@pytest.mark.usefixtures("sigint")
def test_ctrl_c_and_resume_make_the_planned_releases(tmp_path, monkeypatch, changes, at):
    """On 0.2.0 a run of one epoch ended silently at 40 of 60 releases."""
    witness_noise(tmp_path / "witness", monkeypatch.setattr)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        run(tmp_path, Mine(fail_at=at, error=KeyboardInterrupt), changes)
    assert written(tmp_path) == privacy(tmp_path)["releases_made"] == drawn(tmp_path / "witness") == at + 1
    module = Mine()
    made = run(tmp_path, module, changes)
    assert made.global_step == PLAN
    assert module.criterion.n_releases == PLAN - at - 1  # the release of the interrupted step is stored
    assert drawn(tmp_path / "witness") == PLAN
    agree(tmp_path, PLAN)


@pytest.mark.usefixtures("sigint")
def test_ctrl_c_twice_with_free_steps(tmp_path, monkeypatch):
    witness_noise(tmp_path / "witness", monkeypatch.setattr)
    for at in (4, 5):  # a free step, and one with a release
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            run(tmp_path, Mine(fail_at=at, error=KeyboardInterrupt), {"max_epochs": 1}, 4, every=5)
    assert run(tmp_path, Mine(), {"max_epochs": 1}, 4, every=5).global_step == 20
    agree(tmp_path, 4)
    assert drawn(tmp_path / "witness") == 4


@pytest.mark.usefixtures("sigint")
@pytest.mark.parametrize("where", ["record", "store"])
def test_ctrl_c_between_ledger_and_file(tmp_path, monkeypatch, where):
    """The last line's value was seen by nothing that survives: it is drawn again, under the same line."""
    module, budget = Mine(), None

    def interrupted(method, calls):
        def call(*arguments):
            if len(calls) == 3 and where == "store":
                raise KeyboardInterrupt
            calls.append(method(*arguments))
            if len(calls) == 4:
                raise KeyboardInterrupt

        return call

    made = trainer(tmp_path)
    budget = made.budget
    setattr(budget, where, interrupted(getattr(budget, where), []))
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        made.fit(module, loader())
    assert written(tmp_path) == 4
    assert len(list((tmp_path / "releases").glob("*.pt"))) == 3
    again = Mine()
    trainer(tmp_path).fit(again, loader(), ckpt_path=checkpoint_at(tmp_path, 3))
    assert again.criterion.n_releases == STEPS - 3
    agree(tmp_path, STEPS)


# stored releases


@pytest.fixture
def crashed(tmp_path):
    """Checkpoint of a run that crashed in its fourth step, after the release of that step."""
    module = Mine(fail_at=3)
    with pytest.raises(RuntimeError, match="crash"):
        trainer(tmp_path).fit(module, loader())
    assert module.criterion.n_releases == written(tmp_path) == privacy(tmp_path)["releases_made"] == 4
    return checkpoint_at(tmp_path, 3)


def finished(directory, epsilon=5.0):
    module = Mine()
    trainer(directory, epsilon=epsilon).fit(module, loader())
    return module, checkpoint_at(directory, STEPS)


def resume(checkpoint, module=None, data=None, directory=None, **changes):
    made, module = trainer(directory or checkpoint.parents[1], **changes), module or Mine()
    made.fit(module, data or loader(), ckpt_path=checkpoint)
    return made, module


def test_a_resumed_run_takes_the_stored_release(tmp_path, crashed):
    before = ledger_of(tmp_path).groups()[0][0]
    made, module = resume(crashed)
    assert module.criterion.mechanism == before  # the noise of the interrupted run
    assert module.criterion.n_releases == 2  # the fourth release was stored before the crash
    assert made.global_step == STEPS
    agree(tmp_path, STEPS)


def test_lost_files_count(tmp_path, crashed):
    (tmp_path / "releases" / "000004.pt").unlink()  # without a marker: its value was returned
    made, module = resume(crashed)
    assert (module.criterion.n_releases, made.global_step) == (2, STEPS - 1)
    agree(tmp_path, STEPS)


@pytest.mark.parametrize("stored", ["all", "none", "all but the last"])
@pytest.mark.parametrize("step", [2, STEPS])
def test_an_old_checkpoint_pays_nothing_twice(tmp_path, stored, step):
    """A release whose value was returned is not drawn again, also where the user has removed its file."""
    first, _ = finished(tmp_path)
    files = sorted((tmp_path / "releases").iterdir())
    for path in files if stored == "none" else files[-1:] if stored == "all but the last" else []:
        path.unlink()
    made, module = resume(checkpoint_at(tmp_path, step))
    assert module.criterion.n_releases == 0
    assert made.global_step == {"all": STEPS, "none": step, "all but the last": max(step, STEPS - 1)}[stored]
    if stored == "all":
        assert torch.equal(module.released.values, first.released.values)
    agree(tmp_path, STEPS)


def test_a_one_shot_run_whose_file_was_removed_is_not_drawn_again(tmp_path):
    trainer(tmp_path).fit(Mine(), loader(1, every=4))
    shutil.rmtree(tmp_path / "releases")
    for step in (2, 4):
        _, module = resume(checkpoint_at(tmp_path, step), data=loader(1, every=4))
        assert module.criterion.n_releases == 0
    agree(tmp_path, 1)


def test_long_runs_store_no_release(tmp_path, monkeypatch):
    monkeypatch.setattr("dpswd.budget.STORED_BYTES", 0)
    trainer(tmp_path).fit(Mine(), loader(21))
    assert not (tmp_path / "releases").exists()
    _, module = resume(checkpoint_at(tmp_path, 20), data=loader(21))
    assert module.criterion.n_releases == 0  # the last one was seen by a checkpoint, or lost: it counts
    agree(tmp_path, 21)
    trainer(tmp_path / "control").fit(Mine(), loader(20))
    assert len(list((tmp_path / "control" / "releases").iterdir())) == 20


def test_a_damaged_or_foreign_stored_release_is_refused(tmp_path, crashed):
    path = tmp_path / "releases" / "000004.pt"
    whole = path.read_bytes()
    finished(tmp_path / "other")
    for content in (whole[:-40], (tmp_path / "other" / "releases" / "000004.pt").read_bytes()):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"000004\.pt"):
            resume(crashed)
    assert written(tmp_path) == 4
    path.write_bytes(whole)
    assert resume(crashed)[0].global_step == STEPS  # control


class Queried(Mine):
    """Releases queries before the projections."""

    def __init__(self, of, **options):
        super().__init__(**options)
        self.counts, self.moment, self.of = ClassCounts(3, share=0.1), ClassCovariances(1, 3, share=0.2), of

    def on_train_start(self):
        super().on_train_start()
        if self.released is None:
            self.values = self.counts.release(self.of), self.moment.release(self.of)


def test_a_resumed_run_keeps_its_noise_and_repeats_no_query(tmp_path):
    of = records()
    first, second = Queried(of, fail_at=0), Queried(of)
    with pytest.raises(RuntimeError, match="crash"):
        run(tmp_path, first, {}, STEPS, of=of)
    run(tmp_path, second, {}, STEPS, of=of)
    for name in ("counts", "moment", "criterion"):
        assert getattr(second, name).mechanism == getattr(first, name).mechanism
        assert getattr(second, name).mechanism.sigma not in (None, 1)  # control: as constructed
    assert second.counts.n_releases == second.moment.n_releases == 0
    assert all(torch.equal(a, b) for a, b in zip(first.values, second.values, strict=True))
    agree(tmp_path, STEPS + 2)


# checkpoints


def state_of(path):
    """State of the budget in a checkpoint."""
    states = torch.load(path, weights_only=True)["callbacks"]
    (state,) = (state for name, state in states.items() if name.startswith("PrivacyBudget"))
    return state


class Saves(L.Callback):
    def __init__(self, path):
        self.path = path

    def on_fit_start(self, trainer, pl_module):
        trainer.save_checkpoint(self.path)


def test_a_checkpoint_states_no_fewer_releases_than_the_one_it_came_from(tmp_path):
    _, checkpoint = finished(tmp_path)
    again, _ = resume(checkpoint, callbacks=[Saves(tmp_path / "early.ckpt")])
    again.save_checkpoint(tmp_path / "late.ckpt")
    wanted = state_of(checkpoint)
    assert (wanted["releases"], wanted["ledger_head"]) == (STEPS, ledger_of(tmp_path).head)
    assert state_of(tmp_path / "early.ckpt") == state_of(tmp_path / "late.ckpt") == wanted


def test_a_checkpoint_needs_the_ledger_of_its_run(tmp_path):
    """Otherwise weights that cost epsilon 50 would be stated to cost 0.1."""
    _, checkpoint = finished(tmp_path / "dear", epsilon=50.0)
    finished(tmp_path / "cheap", epsilon=0.1)
    module = Mine()
    with pytest.raises(InputError, match="different run"):
        resume(checkpoint, module, directory=tmp_path / "cheap", epsilon=50.0)
    assert module.criterion.n_releases == 0


def test_a_checkpoint_without_a_budget_is_refused(tmp_path, tree):
    class Raw(Mine):
        def training_step(self, batch, batch_idx):
            return self.net(X).square().mean()

    bare = trainer(tmp_path / "raw")
    bare.callbacks = [callback for callback in bare.callbacks if callback is not bare.budget]
    bare.fit(Raw(), loader())
    module, before = Mine(), tree(tmp_path)
    with pytest.raises(InputError, match="within a PrivacyBudget"):
        resume(checkpoint_at(tmp_path / "raw", 2), module, directory=tmp_path / "run")
    assert module.criterion.n_releases == 0
    assert {name for name in tree(tmp_path) if not name.startswith("run/ckpt")} - {"run"} == set(before)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"epsilon": 6.0}, "target_epsilon"),
        ({"data": lambda: loader(7)}, "planned_releases"),
        ({"module": lambda: Mine(MECHANISM.replace(row_norm=1.0))}, "mechanisms"),
        ({"data": lambda: loader(of=records(X[:-1]))}, "sample_size"),
    ],
)
def test_another_plan_is_refused(tmp_path, crashed, tree, changes, match):
    before = tree(tmp_path)
    with pytest.raises(InputError, match=match):
        resume(crashed, **{name: value() if callable(value) else value for name, value in changes.items()})
    assert tree(tmp_path) == before


def test_a_cut_ledger_is_refused(tmp_path, crashed, tree):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))
    before, module = tree(tmp_path), Mine()
    with pytest.raises(DpswdError, match="ledger"):
        resume(crashed, module)
    assert module.criterion.n_releases == 0
    assert tree(tmp_path) == before


def test_a_run_directory_may_be_moved(tmp_path, crashed):
    shutil.move(tmp_path, moved := tmp_path.with_name(tmp_path.name + "_moved"))
    resume(moved / "ckpt" / crashed.name)
    agree(moved, STEPS)


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
