"""Releases before the noise is set, and in stages that train nothing: by hooks, by other callbacks, by hand.

None of them is charged, so each is refused; and what is honest beside it goes on working.
"""

import lightning as L
import pytest
import torch
import yaml
from factories import MECHANISM, STEPS, B, Mine, N, loader, privacy, trainer
from lightning.pytorch.callbacks import LearningRateFinder
from torch.utils.data import DataLoader

from dpswd import BudgetExceededError, DPSlicedWassersteinLoss, InputError
from dpswd.accounting.ledger import Ledger
from dpswd.commands.main import main
from dpswd.errors import DpswdError
from dpswd.loss import BudgetWatch
from dpswd.queries import ClassCounts
from dpswd.training.callback import PrivacyBudget
from dpswd.training.cli import PrivateCLI

BEFORE = "Expected no release before training starts, got one; the noise is not calibrated yet"
ROWS, LABELS = torch.zeros(B, 3), torch.zeros(N, dtype=torch.int64)


@pytest.fixture(autouse=True)
def no_leak():
    yield
    assert BudgetWatch.running == 0
    loss = DPSlicedWassersteinLoss(MECHANISM)  # by hand, without a trainer: allowed, before and after any run
    loss(ROWS, torch.zeros(4, 3, requires_grad=True)).backward()
    assert loss.n_releases == 1


class Counts(Mine):
    """Has a query beside the loss."""

    def __init__(self):
        super().__init__()
        self.lr = 1e-2
        self.counts = ClassCounts(3, share=0.1)

    def on_train_start(self):
        if not self.counts.n_releases:
            self.counts.release(LABELS)

    def on_load_checkpoint(self, checkpoint):
        """Takes what a finder restores, which holds no release."""


def released(module):
    return sum(getattr(part, "n_releases", 0) for part in module.modules())


def moved(run, first):
    """Puts the budget before all other callbacks, or behind them."""
    others = [callback for callback in run.callbacks if callback is not run.budget]
    run.callbacks = [run.budget, *others] if first else [*others, run.budget]
    return run


# other callbacks


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks")  # the finder's own checkpoint
@pytest.mark.parametrize("first", [True, False])
def test_a_learning_rate_finder(tmp_path, tree, first):
    module = Counts()
    finder = LearningRateFinder(num_training_steps=20, early_stop_threshold=None)
    with pytest.raises(BudgetExceededError, match=BEFORE):
        moved(trainer(tmp_path, callbacks=[finder]), first).fit(module, loader())
    assert released(module) == 0
    assert not [name for name in tree(tmp_path) if name.endswith(("ledger.jsonl", "privacy.json"))]


class Calls(L.Callback):
    """Calls a function of the module in one hook."""

    def __init__(self, hook, function):
        setattr(self, hook, lambda trainer, module, *_, **__: function(module))


@pytest.mark.parametrize("what", ["loss", "query"])
@pytest.mark.parametrize("hook", ["setup", "on_fit_start", "on_sanity_check_start"])
@pytest.mark.parametrize("first", [True, False])
def test_a_callback_that_releases_early(tmp_path, hook, what, first):
    module = Counts()
    calls = {
        "loss": lambda module: module.criterion.release(ROWS),
        "query": lambda module: module.counts.release(LABELS),
    }
    run = moved(trainer(tmp_path, callbacks=[Calls(hook, calls[what])]), first)
    module.validation_step = lambda batch, batch_idx: None
    match, seen = BEFORE, 0
    if hook == "setup" and not first:  # it comes before the budget: what was released is found
        match, seen = "Expected a module without releases before the fit", 1
    with pytest.raises(DpswdError, match=match) as caught:
        run.fit(module, loader(), DataLoader(torch.zeros(B, 3), batch_size=B))
    assert "\n" not in str(caught.value)
    assert released(module) == seen
    assert not (tmp_path / "ledger.jsonl").exists()


@pytest.mark.parametrize("first", [True, False])
def test_a_callback_that_releases_when_training_starts_is_charged(tmp_path, first):
    module, sigmas = Counts(), []

    def release(module):
        sigmas.append(module.counts.mechanism.sigma)
        module.counts.release(LABELS)

    run = moved(trainer(tmp_path, callbacks=[Calls("on_train_start", release)]), first)
    run.fit(module, loader())
    assert run.callbacks[0] is run.budget
    ledger = Ledger.open_existing(tmp_path / "ledger.jsonl")
    assert released(module) == ledger.n_releases == privacy(tmp_path)["releases_made"] == STEPS + 1
    assert sigmas == [module.counts.mechanism.sigma] != [ClassCounts(3).mechanism.sigma]  # the budget's


def test_two_budgets(tmp_path):
    other = PrivacyBudget(50.0, 1e-5, run_dir=str(tmp_path / "other"))
    run = trainer(tmp_path)
    run.callbacks.append(other)  # given to Trainer(callbacks=...) Lightning refuses them itself
    with pytest.raises(InputError, match="Expected one PrivacyBudget among the trainer's callbacks, got several"):
        run.fit(Mine(), loader())


# the module's own hooks


class InSetup(Counts):
    def setup(self, stage):
        self.counts.release(LABELS)


class LossInSetup(Counts):
    def setup(self, stage):
        self.criterion.release(ROWS)


class MadeInSetup(Mine):
    def setup(self, stage):
        self.criterion = DPSlicedWassersteinLoss(MECHANISM)
        if self.eager:
            self.criterion.release(ROWS)

    eager = True


class MadeInConfigureModel(Mine):
    def configure_model(self):
        self.criterion = DPSlicedWassersteinLoss(MECHANISM)
        self.criterion.release(ROWS)


WATCHED = "Expected a ledger for every release while a PrivacyBudget runs, got a loss without one"


@pytest.mark.parametrize(
    ("kind", "match"),
    [(InSetup, BEFORE), (LossInSetup, BEFORE), (MadeInSetup, WATCHED), (MadeInConfigureModel, WATCHED)],
)
def test_a_release_in_setup(tmp_path, kind, match):
    module = kind()
    with pytest.raises(DpswdError, match=match):
        trainer(tmp_path).fit(module, loader())
    assert released(module) == 0
    assert not (tmp_path / "ledger.jsonl").exists()


def test_a_loss_that_is_made_in_setup_is_fine(tmp_path):
    module = MadeInSetup()
    module.eager = False
    trainer(tmp_path).fit(module, loader())
    assert module.criterion.n_releases == STEPS == Ledger.open_existing(tmp_path / "ledger.jsonl").n_releases


class InTheEnd(Mine):
    def on_fit_end(self):
        ClassCounts(3).release(LABELS)


def test_a_hidden_query_when_training_is_over(tmp_path):
    with pytest.raises(InputError, match=r"Expected a ledger for every release .*, got a query without one"):
        trainer(tmp_path).fit(InTheEnd(), loader())


# modules that have released before


def test_by_hand_before_the_fit(tmp_path):
    module = Mine()
    module.criterion.release(ROWS)
    with pytest.raises(InputError, match="Expected a module without releases before the fit"):
        trainer(tmp_path).fit(module, loader())
    assert not (tmp_path / "ledger.jsonl").exists()


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
@pytest.mark.parametrize("kind", [Mine, MadeInSetup])
def test_a_module_of_another_run_but_not_one_that_is_resumed(tmp_path, kind):
    module = kind(fail_at=3)
    module.eager = False
    with pytest.raises(RuntimeError, match="crash"):
        trainer(tmp_path / "a").fit(module, loader())
    module.fail_at = None
    with pytest.raises(InputError, match="Expected a module without releases before a new run"):
        trainer(tmp_path / "b").fit(module, loader())
    (checkpoint,) = (tmp_path / "a" / "ckpt").glob("*step=3.ckpt")
    trainer(tmp_path / "a").fit(module, loader(), ckpt_path=checkpoint)
    assert Ledger.open_existing(tmp_path / "a" / "ledger.jsonl").n_releases == STEPS


# stages that train nothing


class Looks(Mine):
    """Releases in validation, test and prediction, where ``eager``."""

    eager = True

    def validation_step(self, batch, batch_idx):
        if self.eager:
            self.criterion.release(batch)

    test_step = predict_step = validation_step


@pytest.mark.filterwarnings("ignore:.*predict returned None")
@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_a_release_in_another_stage(tmp_path, stage):
    module, data = Looks(), DataLoader(torch.zeros(B, 3), batch_size=B)
    with pytest.raises(BudgetExceededError, match=f"Expected no release outside of a fit, got one in {stage}"):
        getattr(trainer(tmp_path), stage)(module, data)
    assert released(module) == 0
    module.eager = False  # control: the stage itself is fine
    getattr(trainer(tmp_path), stage)(module, data)


class Own(L.LightningModule):
    """A module of the command line."""

    def __init__(self):
        super().__init__()
        self.net, self.lr = torch.nn.Linear(3, 3), 1e-2
        self.criterion = DPSlicedWassersteinLoss(MECHANISM)

    def training_step(self, batch, batch_idx):
        return self.criterion(batch, self.net(torch.randn(16, 3)))

    def validation_step(self, batch, batch_idx):
        self.log("loss", self.criterion(batch, torch.zeros(16, 3)))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


class Data(L.LightningDataModule):
    """Its records."""

    def train_dataloader(self):
        return loader()

    def val_dataloader(self):
        return DataLoader(torch.zeros(B, 3), batch_size=B)


class NoValidation(Data):
    """Records without those for validation."""

    val_dataloader = L.LightningDataModule.val_dataloader


def arguments(directory, stage, data, *more):
    quiet = dict.fromkeys(("enable_progress_bar", "enable_model_summary", "logger", "enable_checkpointing"), False)
    config = {
        "trainer": {"max_steps": STEPS, "accelerator": "cpu", "default_root_dir": str(directory / "run"), **quiet},
        "privacy": {"target_epsilon": 1.0, "target_delta": 1e-5},
        "model": {"class_path": f"{__name__}.Own"},
        "data": {"class_path": f"{__name__}.{data}"},
    }
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    return [stage, "--seed_everything", "1", "--config", str(directory / "config.yaml"), *more]


FINDER = ("--trainer.callbacks", "[{class_path: lightning.pytorch.callbacks.LearningRateFinder}]")


@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no")
@pytest.mark.parametrize(
    ("stage", "data", "more", "status", "says"),
    [
        ("validate", "Data", (), 1, "got one in validate"),
        ("fit", "NoValidation", FINDER, 1, "before training starts"),
        ("fit", "NoValidation", (), 0, ""),
    ],
)
def test_the_command_line(tmp_path, capsys, stage, data, more, status, says):
    assert main(arguments(tmp_path, stage, data, *more)) == status
    said = capsys.readouterr().err  # the finder's progress bar may stand before it
    assert said.count("dpswd: Expected") == (status > 0)
    assert says in said
    assert (tmp_path / "run" / "ledger.jsonl").exists() == (status == 0)


@pytest.mark.filterwarnings("ignore:LightningCLI's args parameter is intended")
def test_the_command_line_puts_the_budget_first(tmp_path):
    _, *rest = arguments(tmp_path, "fit", "Data", *FINDER)
    kinds = [type(callback) for callback in PrivateCLI(rest, run=False).trainer.callbacks]
    assert LearningRateFinder in kinds  # control
    assert kinds[0] is PrivacyBudget
