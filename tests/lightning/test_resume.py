"""Resumed runs: stored releases, lost releases, checkpoints and ledgers that do not fit."""

import json
import shutil

import lightning as L
import lightning.pytorch.cli
import pytest
import torch
from factories import MECHANISM, STEPS, B, Mine, N, Records, account, fit_arguments, loader, privacy, trainer

from dpswd import FixedSizeSampler, InputError
from dpswd.accounting.ledger import Ledger
from dpswd.commands.main import main
from dpswd.errors import DpswdError
from dpswd.generation.module import GeneratorModule
from dpswd.sampling import ReleaseLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:Total length of .CombinedLoader. across ranks is zero"),  # no step is left
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),  # of the checkpoint callback
]


def ledger_of(directory):
    return Ledger.open_existing(directory / "ledger.jsonl")


def checkpoint_at(directory, step):
    (path,) = (directory / "ckpt").glob(f"*step={step}.ckpt")
    return path


def record(path):
    """State of the budget in a checkpoint."""
    states = torch.load(path, weights_only=True)["callbacks"]
    (state,) = (state for name, state in states.items() if name.startswith("PrivacyBudget"))
    return state


@pytest.fixture
def crashed(tmp_path):
    """Checkpoint of a run that crashed in its fourth step, after the release of that step."""
    module = Mine(fail_at=3)
    with pytest.raises(RuntimeError, match="crash"):
        trainer(tmp_path).fit(module, loader())
    assert module.criterion.n_releases == ledger_of(tmp_path).n_releases == privacy(tmp_path)["releases_made"] == 4
    return checkpoint_at(tmp_path, 3)


def finished(directory, epsilon=5.0):
    module = Mine()
    trainer(directory, epsilon=epsilon).fit(module, loader())
    return module, checkpoint_at(directory, STEPS)


def resume(checkpoint, module=None, data=None, directory=None, **changes):
    run, module = trainer(directory or checkpoint.parents[1], **changes), module or Mine()
    run.fit(module, data or loader(), ckpt_path=checkpoint)
    return run, module


# stored releases


def test_a_resumed_run_takes_the_stored_release(tmp_path, crashed):
    before = ledger_of(tmp_path).groups()[0][0]
    run, module = resume(crashed)
    assert module.criterion.mechanism == before  # the noise of the interrupted run
    assert module.criterion.n_releases == 2  # the fourth release was stored before the crash
    assert run.global_step == ledger_of(tmp_path).n_releases == privacy(tmp_path)["releases_made"] == STEPS
    assert privacy(tmp_path)["epsilon"] == pytest.approx(account(ledger_of(tmp_path).groups()).get_epsilon(1e-5))


def test_a_lost_release_counts(tmp_path, crashed):
    (tmp_path / "releases" / "0004.pt").unlink()  # a crash between ledger and file
    run, module = resume(crashed)
    assert module.criterion.n_releases == 2
    assert ledger_of(tmp_path).n_releases == STEPS
    assert run.global_step == STEPS - 1


@pytest.mark.parametrize("stored", [True, False])
def test_an_old_checkpoint_pays_nothing_twice(tmp_path, stored):
    first, _ = finished(tmp_path)
    if not stored:
        shutil.rmtree(tmp_path / "releases")
    run, module = resume(checkpoint_at(tmp_path, 2))
    assert (run.global_step, module.criterion.n_releases) == (STEPS if stored else 2, 0)
    assert torch.equal(module.released.values, first.released.values) is stored
    assert ledger_of(tmp_path).n_releases == STEPS


def test_long_runs_store_no_release(tmp_path):
    trainer(tmp_path, steps=21).fit(Mine(), loader(21))
    assert not (tmp_path / "releases").exists()
    trainer(tmp_path / "control", steps=20).fit(Mine(), loader(20))
    assert len(list((tmp_path / "control" / "releases").iterdir())) == 20


def test_a_damaged_or_foreign_stored_release_is_refused(tmp_path, crashed):
    path = tmp_path / "releases" / "0004.pt"
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    with pytest.raises(InputError, match=r"0004\.pt"):
        resume(crashed)
    other = tmp_path / "other"
    finished(other)
    path.write_bytes((other / "releases" / "0004.pt").read_bytes())
    with pytest.raises(InputError, match=r"0004\.pt"):
        resume(crashed)
    assert ledger_of(tmp_path).n_releases == 4
    path.write_bytes(whole)
    assert resume(crashed)[0].global_step == STEPS  # control


@pytest.mark.parametrize("stored", [True, False], ids=["after the file", "between ledger and file"])
def test_a_one_shot_run_killed_before_its_first_checkpoint(tmp_path, stored, monkeypatch, capfd):
    """Finding 8: the release is taken from its file; without one the run fails and no generator is written."""
    run = tmp_path / "run"
    options = ("--model.init_args.release_every", "0", "--trainer.callbacks", "dpswd.generation.export.GeneratorFile")

    def arguments():
        words = fit_arguments(run, 6, *options)
        del words[words.index("--trainer.callbacks") : words.index("--trainer.callbacks") + 2]  # of the factory
        return words

    with monkeypatch.context() as patched:
        patched.setattr("dpswd.training.checkpoints.LastCheckpoint.on_exception", lambda *_: None)
        patched.setattr(GeneratorModule, "distance", lambda *_: (_ for _ in ()).throw(RuntimeError("killed")))
        with pytest.raises(RuntimeError, match="killed"):
            main(arguments())
    assert ledger_of(run).n_releases == 1
    assert not (run / "generator.pt").exists()
    if not stored:
        (run / "releases" / "0001.pt").unlink()
    capfd.readouterr()
    status = main(arguments())
    assert ledger_of(run).n_releases == 1
    assert (run / "generator.pt").exists() is stored
    if stored:
        assert status == 0
        last = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
        released = torch.load(run / "releases" / "0001.pt", weights_only=True)["tensors"]["values"]
        assert torch.equal(last["released"]["values"], released)
        assert last["global_step"] == 6
    else:
        assert status == 1
        assert "a crash lost" in capfd.readouterr().err


# checkpoints


class Saves(L.Callback):
    def __init__(self, path):
        self.path = path

    def on_fit_start(self, trainer, pl_module):
        trainer.save_checkpoint(self.path)


def test_a_checkpoint_states_no_fewer_releases_than_the_one_it_came_from(tmp_path):
    _, checkpoint = finished(tmp_path)
    again, _ = resume(checkpoint, callbacks=[Saves(tmp_path / "early.ckpt")])
    again.save_checkpoint(tmp_path / "late.ckpt")
    wanted = record(checkpoint)
    assert wanted["releases"] == STEPS
    assert wanted["ledger_head"] == ledger_of(tmp_path).head
    assert record(tmp_path / "early.ckpt") == record(tmp_path / "late.ckpt") == wanted


class Forgiving(Mine):
    """Loads a checkpoint without a release."""

    def on_load_checkpoint(self, checkpoint):
        pass


def test_a_checkpoint_needs_the_ledger_of_its_run(tmp_path):
    """Otherwise weights that cost epsilon 50 would be stated to cost 0.1."""
    _, checkpoint = finished(tmp_path / "dear", epsilon=50.0)
    early = Saves(tmp_path / "early.ckpt")
    trainer(tmp_path / "cheap", epsilon=0.1, callbacks=[early]).fit(Mine(), loader())
    for path, module in ((checkpoint, Mine()), (early.path, Forgiving())):
        with pytest.raises(InputError, match="different run"):
            resume(path, module, directory=tmp_path / ("cheap" if path is checkpoint else "dear"), epsilon=50.0)
        assert module.criterion.n_releases == 0


def test_the_statement_verifies_the_ledger_again(tmp_path):
    _, checkpoint = finished(tmp_path / "one")
    finished(tmp_path / "other")
    again, _ = resume(checkpoint)
    (tmp_path / "one" / "ledger.jsonl").write_bytes((tmp_path / "other" / "ledger.jsonl").read_bytes())
    with pytest.raises(InputError, match="different run"):
        again.budget.statement()


def test_a_checkpoint_without_a_budget_is_refused(tmp_path, tree):
    class Raw(Forgiving):
        def training_step(self, batch, batch_idx):
            return self.net(batch).square().mean()

    bare = trainer(tmp_path / "raw")
    bare.callbacks = [callback for callback in bare.callbacks if callback is not bare.budget]
    bare.fit(Raw(), loader())
    module, before = Forgiving(), tree(tmp_path)
    with pytest.raises(InputError, match="Expected a checkpoint of a run within a PrivacyBudget"):
        resume(checkpoint_at(tmp_path / "raw", 2), module, directory=tmp_path / "run")
    assert module.criterion.n_releases == 0
    assert {name for name in tree(tmp_path) if not name.startswith("run/ckpt")} == set(before)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"epsilon": 6.0}, "target_epsilon"),
        ({"data": lambda: loader(7), "steps": 7}, "planned_releases"),
        ({"module": lambda: Mine(MECHANISM.replace(row_norm=1.0))}, "mechanisms"),
        ({"data": lambda: ReleaseLoader(More(), FixedSizeSampler(N + 1, B, n_steps=STEPS))}, "sample_size"),
    ],
)
def test_another_plan_is_refused(tmp_path, crashed, tree, changes, match):
    before = tree(tmp_path)
    with pytest.raises(InputError, match=match):
        resume(crashed, **{name: value() if callable(value) else value for name, value in changes.items()})
    assert tree(tmp_path) == before


class More(Records):
    def __len__(self):
        return N + 1


def test_a_damaged_ledger_is_refused(tmp_path, crashed, tree):
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
    assert ledger_of(moved).n_releases == STEPS


def test_nothing_secret_is_in_a_checkpoint(tmp_path):
    _, path = finished(tmp_path)
    checkpoint = torch.load(path, weights_only=True)
    assert set(checkpoint["state_dict"]) == {"net.weight", "net.bias"}
    released = checkpoint.pop("released")
    assert set(released) == {"values", "projections", "mechanism"}
    flat = json.dumps(checkpoint, default=lambda value: str(getattr(value, "shape", type(value))))
    assert f'"start": {STEPS}' in flat  # the step; no indices
    assert "indices" not in flat
