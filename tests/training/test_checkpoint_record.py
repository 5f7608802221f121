"""What a checkpoint vouches for: never less than the one it was resumed from, and nothing without a budget's record."""

import lightning as L
import pytest
import torch
from factories import MECHANISM, STEPS, B, Mine, N, Records, loader, privacy, trainer

from dpswd import BudgetExceededError, FixedSizeSampler, InputError
from dpswd.accounting.ledger import Ledger
from dpswd.sampling import ReleaseLoader

NOTHING_LEFT = "ignore:Total length of .CombinedLoader. across ranks is zero"
ANOTHER_RUN = "got the ledger of a different run"


def record(path):
    """What the budget wrote into a checkpoint."""
    states = torch.load(path, weights_only=True)["callbacks"]
    (state,) = (state for name, state in states.items() if name.startswith("PrivacyBudget"))
    return state


def finished(directory, epsilon=5.0):
    """A run to its end, and its last checkpoint."""
    trainer(directory, epsilon=epsilon).fit(Mine(), loader())
    (checkpoint,) = (directory / "ckpt").glob(f"*step={STEPS}.ckpt")
    return checkpoint


class Saves(L.Callback):
    """Saves a checkpoint at the start of a fit, as Lightning does when a run is interrupted there."""

    def __init__(self, path):
        self.path = path

    def on_fit_start(self, trainer, pl_module):
        trainer.save_checkpoint(self.path)


@pytest.mark.filterwarnings(NOTHING_LEFT)
def test_a_resumed_run_hands_on_what_it_got_until_its_ledger_is_open(tmp_path):
    checkpoint = finished(tmp_path)
    again = trainer(tmp_path, callbacks=[Saves(tmp_path / "early.ckpt")])
    again.fit(Mine(), loader(), ckpt_path=checkpoint)
    again.save_checkpoint(tmp_path / "late.ckpt")
    wanted = record(checkpoint)
    assert wanted["releases"] == STEPS
    assert wanted["ledger_head"] == Ledger.open_existing(tmp_path / "ledger.jsonl").head
    assert record(tmp_path / "early.ckpt") == record(tmp_path / "late.ckpt") == wanted


@pytest.mark.filterwarnings(NOTHING_LEFT)
@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_a_resumed_run_with_nothing_left_to_do_needs_its_own_ledger_too(tmp_path):
    """Else weights that cost epsilon = 50 would be handed out with the statement of a run at 0.1."""
    dear, cheap = tmp_path / "dear", tmp_path / "cheap"
    checkpoint = finished(dear, epsilon=50.0)
    finished(cheap, epsilon=0.1)
    again = trainer(dear, epsilon=50.0)
    again.fit(Mine(), loader(), ckpt_path=checkpoint)
    again.save_checkpoint(dear / "again.ckpt")
    for each in (checkpoint, dear / "again.ckpt"):
        with pytest.raises(InputError, match=ANOTHER_RUN):
            trainer(cheap, epsilon=0.1).fit(Mine(), loader(), ckpt_path=each)


@pytest.mark.filterwarnings(NOTHING_LEFT)
def test_the_statement_of_a_resumed_run_looks_at_its_ledger_again(tmp_path):
    checkpoint = finished(tmp_path / "one")
    finished(tmp_path / "other")
    again = trainer(tmp_path / "one")
    again.fit(Mine(), loader(), ckpt_path=checkpoint)
    assert again.budget.statement()["releases_made"] == STEPS
    (tmp_path / "one" / "ledger.jsonl").write_bytes((tmp_path / "other" / "ledger.jsonl").read_bytes())
    with pytest.raises(InputError, match=ANOTHER_RUN):
        again.budget.statement()


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_a_checkpoint_from_before_the_first_release_vouches_for_nothing(tmp_path):
    finished(tmp_path / "one")
    trainer(tmp_path / "two", callbacks=[Saves(tmp_path / "early.ckpt")]).fit(Mine(), loader())
    assert record(tmp_path / "early.ckpt")["ledger_head"] == ""
    with pytest.raises(InputError, match=ANOTHER_RUN):
        trainer(tmp_path / "one").fit(Forgiving(), loader(), ckpt_path=tmp_path / "early.ckpt")


class Forgiving(Mine):
    """Takes a checkpoint without a release."""

    def on_load_checkpoint(self, checkpoint):
        pass


class Raw(Forgiving):
    """Trains on the private records as they are."""

    def training_step(self, batch, batch_idx):
        return self.net(batch).square().mean()


def test_a_checkpoint_without_a_record_is_refused(tmp_path, tree):
    bare = L.Trainer(
        max_steps=2, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=tmp_path / "raw", enable_checkpointing=False,
    )  # fmt: skip
    bare.fit(Raw(), loader())
    bare.save_checkpoint(tmp_path / "raw.ckpt")
    module, before = Forgiving(), tree(tmp_path)
    with pytest.raises(InputError, match="Expected a checkpoint of a run within a PrivacyBudget"):
        trainer(tmp_path / "run").fit(module, loader(), ckpt_path=tmp_path / "raw.ckpt")
    assert module.criterion.n_releases == 0
    assert {name for name in tree(tmp_path) if not name.startswith("run/ckpt")} == set(before)


def test_refuses_to_resume_on_another_number_of_records(tmp_path):
    module = Mine(fail_at=3)
    with pytest.raises(RuntimeError, match="crash"):
        trainer(tmp_path).fit(module, loader())
    (checkpoint,) = (tmp_path / "ckpt").glob("*step=3.ckpt")

    class More(Records):
        def __len__(self):
            return N + 1

    more = ReleaseLoader(More(), FixedSizeSampler(N + 1, B, n_steps=STEPS))
    with pytest.raises(InputError, match="sample_size"):
        trainer(tmp_path).fit(Mine(), more, ckpt_path=checkpoint)


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
@pytest.mark.filterwarnings(NOTHING_LEFT)
def test_a_budget_that_served_a_resumed_run_begins_a_new_one_afresh(tmp_path):
    checkpoint = finished(tmp_path / "one")
    again = trainer(tmp_path / "one")
    again.fit(Mine(), loader(), ckpt_path=checkpoint)
    fresh = L.Trainer(
        max_steps=STEPS, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=tmp_path / "two", callbacks=[again.budget], enable_checkpointing=False,
    )  # fmt: skip
    fresh.fit(Mine(), loader())
    assert privacy(tmp_path / "two")["releases_made"] == STEPS
    heads = [Ledger.open_existing(tmp_path / name / "ledger.jsonl").head for name in ("one", "two")]
    assert heads[0] != heads[1]


class Hasty(L.Callback):
    """Releases as soon as it is set up."""

    def setup(self, trainer, pl_module, stage):
        pl_module.criterion.release(torch.zeros(B, 3))


def test_a_budget_that_served_a_run_allows_nothing_before_the_next_one_begins(tmp_path):
    first = trainer(tmp_path / "one")
    first.fit(Mine(), loader())
    second, module = trainer(tmp_path / "two", callbacks=[Hasty()]), Mine()
    second.callbacks[second.callbacks.index(second.budget)] = first.budget
    with pytest.raises(BudgetExceededError, match="Expected no release before training starts, got one"):
        second.fit(module, loader())
    assert module.criterion.n_releases == 0
    assert not (tmp_path / "two" / "ledger.jsonl").exists()


class Late(Mine):
    """Keeps its permit of the last step for the validation that follows in the same fit."""

    def training_step(self, batch, batch_idx):
        self.batch = batch
        return self.net(torch.randn(4, 3)).square().mean()

    def validation_step(self, batch, batch_idx):
        if hasattr(self, "batch"):  # not in the sanity check
            self.criterion.release(self.batch)


def test_a_step_that_released_nothing_leaves_no_permit_behind(tmp_path):
    module = Late()
    with pytest.raises(BudgetExceededError, match="Expected one release per private batch"):
        trainer(tmp_path).fit(module, loader(), torch.zeros(2, 3))
    assert module.criterion.n_releases == 0
    assert module.criterion.mechanism != MECHANISM  # training had begun
