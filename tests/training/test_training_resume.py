"""What a crash, a resume, an old checkpoint or a damaged ledger can do to a budget: waste it, and nothing else."""

import shutil

import pytest
import torch
from factories import MECHANISM, STEPS, Mine, account, loader, privacy, trainer

from dpswd import InputError
from dpswd.accounting.ledger import Ledger
from dpswd.errors import DpswdError


@pytest.fixture
def crashed(tmp_path):
    """A run that crashed in step 3 (its fourth), after the release of that step."""
    module = Mine(fail_at=3)
    with pytest.raises(RuntimeError, match="crash"):
        trainer(tmp_path).fit(module, loader())
    assert module.criterion.n_releases == Ledger.open_existing(tmp_path / "ledger.jsonl").n_releases == 4
    assert privacy(tmp_path)["releases_made"] == 4
    (checkpoint,) = (tmp_path / "ckpt").glob("*step=3.ckpt")
    return checkpoint


def resume(checkpoint, module=None, data=None, directory=None, **changes):
    directory = directory or checkpoint.parents[1]
    run, module = trainer(directory, **changes), module or Mine()
    run.fit(module, data or loader(), ckpt_path=checkpoint)
    return run, module


def test_a_resumed_run_takes_the_stored_release(tmp_path, crashed):
    before = Ledger.open_existing(tmp_path / "ledger.jsonl").groups()[0][0]
    run, module = resume(crashed)
    ledger = Ledger.open_existing(tmp_path / "ledger.jsonl")
    assert module.criterion.mechanism == before  # the noise of the resumed run
    assert module.criterion.n_releases == 2  # the fourth release was stored before the crash
    assert ledger.n_releases == 6 == privacy(tmp_path)["releases_made"]
    assert run.global_step == 6
    assert privacy(tmp_path)["epsilon"] == pytest.approx(account(ledger.groups()).get_epsilon(1e-5), rel=1e-12)


def test_a_lost_release_counts(tmp_path, crashed):
    (tmp_path / "releases" / "0004.pt").unlink()  # a crash between ledger and file
    run, module = resume(crashed)
    assert module.criterion.n_releases == 2
    assert Ledger.open_existing(tmp_path / "ledger.jsonl").n_releases == 6
    assert run.global_step == 5  # one step less than planned


@pytest.mark.filterwarnings("ignore:Total length of .CombinedLoader. across ranks is zero")  # nothing is left to do
def test_a_resumed_run_without_a_crash_makes_exactly_the_planned_releases(tmp_path):
    trainer(tmp_path).fit(Mine(), loader())
    (checkpoint,) = (tmp_path / "ckpt").glob("*step=6.ckpt")
    run, module = resume(checkpoint)
    assert (run.global_step, module.criterion.n_releases) == (6, 0)
    assert Ledger.open_existing(tmp_path / "ledger.jsonl").n_releases == 6


def test_an_old_checkpoint_pays_nothing_twice(tmp_path):
    first = Mine()
    trainer(tmp_path).fit(first, loader())
    (checkpoint,) = (tmp_path / "ckpt").glob("*step=2.ckpt")
    run, module = resume(checkpoint)
    assert (run.global_step, module.criterion.n_releases) == (6, 0)
    assert torch.equal(module.released.values, first.released.values)
    assert Ledger.open_existing(tmp_path / "ledger.jsonl").n_releases == 6


def test_an_old_checkpoint_without_stored_releases_cannot_release(tmp_path):
    trainer(tmp_path).fit(Mine(), loader())
    shutil.rmtree(tmp_path / "releases")
    (checkpoint,) = (tmp_path / "ckpt").glob("*step=2.ckpt")
    run, module = resume(checkpoint)
    assert (run.global_step, module.criterion.n_releases) == (2, 0)
    assert Ledger.open_existing(tmp_path / "ledger.jsonl").n_releases == 6


def test_a_resumed_one_shot_run_makes_no_second_release(tmp_path):
    first = Mine(fail_at=4)
    with pytest.raises(RuntimeError, match="crash"):
        trainer(tmp_path).fit(first, loader(every=STEPS))
    (checkpoint,) = (tmp_path / "ckpt").glob("*step=4.ckpt")
    run, module = resume(checkpoint, data=loader(every=STEPS))
    assert (run.global_step, module.criterion.n_releases) == (6, 0)
    assert torch.equal(module.released.values, first.released.values)
    assert Ledger.open_existing(tmp_path / "ledger.jsonl").n_releases == 1 == privacy(tmp_path)["releases_made"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 6.0}, "target_epsilon"),
        ({"data": "longer"}, "planned_releases"),
        ({"module": "other"}, "mechanisms of the resumed run"),
    ],
)
def test_refuses_to_resume_with_another_plan(tmp_path, crashed, tree, changes, message):
    before = tree(tmp_path)
    if "data" in changes:
        changes = {"data": loader(7), "steps": 7}
    if "module" in changes:
        changes = {"module": Mine(MECHANISM.replace(row_norm=1.0))}
    with pytest.raises(InputError, match=message):
        resume(crashed, **changes)
    assert tree(tmp_path) == before


def cut(path):
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))


def edited(path):
    path.write_bytes(path.read_bytes().replace(b'"target_epsilon": 5.0', b'"target_epsilon": 9.0'))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, "the ledger was cut"),
        (edited, "the ledger was edited or a line is missing; do not rely on it"),
        (lambda path: path.unlink(), "Expected a ledger at"),
    ],
    ids=["cut", "edited", "missing"],
)
def test_refuses_to_resume_on_a_damaged_ledger(tmp_path, crashed, tree, damage, message):
    damage(tmp_path / "ledger.jsonl")
    before, module = tree(tmp_path), Mine()
    with pytest.raises(DpswdError, match=message):
        resume(crashed, module)
    assert module.criterion.n_releases == 0
    assert tree(tmp_path) == before


@pytest.mark.filterwarnings("ignore:The dirpath has changed")  # of the checkpoint callback
def test_refuses_the_ledger_of_another_run(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for directory in (one, other):
        trainer(directory).fit(Mine(), loader())
    (checkpoint,) = (one / "ckpt").glob("*step=3.ckpt")
    module = Mine()
    with pytest.raises(InputError, match="got the ledger of a different run"):
        resume(checkpoint, module, directory=other)
    assert module.criterion.n_releases == 0


@pytest.mark.filterwarnings("ignore:The dirpath has changed")  # of the checkpoint callback
def test_a_run_directory_may_be_moved(tmp_path, crashed):
    shutil.move(tmp_path, moved := tmp_path.with_name(tmp_path.name + "_moved"))
    resume(moved / "ckpt" / crashed.name)
    assert Ledger.open_existing(moved / "ledger.jsonl").n_releases == 6
