"""PrivacyBudget: what it does with a user's own module, and which releases it refuses."""

import importlib.metadata
import signal

import lightning as L
import pytest
import torch
from factories import MECHANISM, STEPS, B, Mine, N, Records, account, loader, privacy, trainer
from lightning.pytorch.callbacks import LearningRateFinder
from torch.utils.data import DataLoader, TensorDataset

from dpswd import (
    BudgetExceededError,
    DPSlicedWassersteinLoss,
    FixedSizeSampler,
    InputError,
)
from dpswd.accounting.ledger import Ledger
from dpswd.errors import DpswdError
from dpswd.loss import BudgetWatch
from dpswd.queries import ClassCounts
from dpswd.sampling import ReleaseLoader
from dpswd.training.callback import PrivacyBudget

ROWS, LABELS = torch.zeros(B, 3), torch.zeros(N, dtype=torch.int64)
EARLY = "before training starts"
AGAIN = "one release per private batch"
HIDDEN = "recorder for every release"


@pytest.fixture(autouse=True)
def no_budget_keeps_running():
    yield
    assert BudgetWatch.running == 0
    loss = DPSlicedWassersteinLoss(MECHANISM)  # outside of runs, a loss needs no recorder
    loss.release(ROWS)
    assert loss.n_releases == 1


def ledger_of(directory):
    return Ledger.open_existing(directory / "ledger.jsonl")


def written(directory):
    """Number of releases in the ledger, or None without a ledger."""
    return ledger_of(directory).n_releases if (directory / "ledger.jsonl").exists() else None


def released(module):
    return sum(getattr(part, "n_releases", 0) for part in module.modules())


def refused(directory, module, match, *, error=DpswdError, data=None, releases=None, **changes):
    """Fits, expects a refusal, and compares ledger and privacy.json with the releases made before it."""
    with pytest.raises(error, match=match) as caught:
        trainer(directory, **changes).fit(module, loader() if data is None else data)
    assert "\n" not in str(caught.value)
    assert written(directory) == releases
    assert released(module) == (releases or 0)
    if releases is not None:
        assert privacy(directory)["releases_made"] == releases <= privacy(directory)["planned_releases"]
    else:
        assert not [path for path in directory.rglob("*") if path.is_file()]


# a run


@pytest.mark.parametrize(("every", "releases"), [(1, 6), (4, 2), (STEPS, 1)], ids=["per step", "some", "one shot"])
def test_a_users_own_module_stays_within_its_budget(tmp_path, every, releases):
    run, module = trainer(tmp_path), Mine()
    run.fit(module, loader(every=every))
    ledger, facts = ledger_of(tmp_path), privacy(tmp_path)
    assert run.global_step == STEPS
    assert ledger.groups() == [(module.criterion.mechanism, N, releases)]
    assert ledger.n_releases == module.criterion.n_releases == releases
    assert ledger.header["planned_releases"] == releases
    assert ledger.header["versions"]["torch"] == importlib.metadata.version("torch")
    fresh = account(ledger.groups())
    assert facts["epsilon"] == pytest.approx(fresh.get_epsilon(1e-5), rel=1e-12)
    assert (facts["mu"], facts["regret"]) == fresh.get_mu_and_regret()
    assert 0.99 * 5 < facts["epsilon"] <= 5  # the budget is used, and not exceeded
    assert facts["releases_made"] == facts["planned_releases"] == releases
    assert facts["sound"] is facts["private"] is True
    assert facts["mechanism"] == module.criterion.mechanism.to_dict()
    assert not list(tmp_path.rglob("*.part"))


def test_a_fixed_noise_seed_is_stated(tmp_path):
    trainer(tmp_path).fit(Mine(MECHANISM.replace(noise_seed=1)), loader(noise_seed=1))
    assert privacy(tmp_path)["private"] is privacy(tmp_path)["sound"] is False
    assert ledger_of(tmp_path).header["private"] is False


def test_more_epochs_than_planned_end_at_the_budget(tmp_path):
    run, module = trainer(tmp_path, steps=3 * STEPS), Mine()
    run.fit(module, loader())  # the loader plans a third of the steps
    assert run.global_step == module.criterion.n_releases == STEPS


# arguments and loaders


def shuffled():
    return DataLoader(TensorDataset(torch.zeros(N, 3)), batch_size=B, shuffle=True)


class Few(Records):
    def __len__(self):
        return N - 10


def of_size(size, dataset=None):
    return ReleaseLoader(dataset or Records(), FixedSizeSampler(size, B, n_steps=STEPS))


@pytest.mark.parametrize(
    ("data", "match", "changes"),
    [
        (shuffled, "fixed-size subsets", {}),
        (lambda: ReleaseLoader(Records(), FixedSizeSampler(N, B - 1, n_steps=STEPS)), "batch_size", {}),
        (lambda: loader(noise_seed=0), "noise_seed", {}),
        (loader, "overfit_batches", {"overfit_batches": 1}),
        (lambda: of_size(N - 1), "sample_size", {}),
        (lambda: of_size(N + 10), "sample_size", {}),
    ],
)
def test_a_loader_that_the_accountant_does_not_cover(tmp_path, data, match, changes):
    refused(tmp_path, Mine(), match, data=data(), **changes)


class Reloads(L.LightningDataModule):
    """Returns a valid loader in the first epoch and another one afterwards."""

    def __init__(self, *loaders):
        super().__init__()
        self.loaders = list(loaders)

    def train_dataloader(self):
        return self.loaders.pop(0) if len(self.loaders) > 1 else self.loaders[0]


@pytest.mark.parametrize(
    ("other", "match"),
    [
        (shuffled, "fixed-size subsets"),
        (lambda: loader(2, noise_seed=0), "noise_seed"),
        (lambda: of_size(N - 10, Few()), "40 records as planned"),
        (lambda: of_size(B), "sample_size"),
    ],
    ids=["shuffled", "seeded", "fewer records", "the first few records"],
)
def test_another_loader_after_the_first_epoch(tmp_path, other, match):
    data = Reloads(loader(2), other())
    refused(tmp_path, Mine(), match, data=data, releases=2, reload_dataloaders_every_n_epochs=1)


# a training step releases its batch once


class Counts(Mine):
    """Has a query beside the loss."""

    def __init__(self):
        super().__init__()
        self.lr, self.counts = 1e-2, ClassCounts(3, sigma=1.0, share=0.1)

    def on_train_start(self):
        if not self.counts.n_releases:
            self.counts.release(LABELS)

    def on_load_checkpoint(self, checkpoint):
        """Loads a checkpoint without a release."""


class Twice(Mine):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) + self.criterion(batch, self.net(torch.randn(16, 3)))


class Closure(Mine):
    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters(), max_iter=4)


class Between(Mine):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.criterion.release(batch)


class Fetches(Mine):
    def training_step(self, batch, batch_idx):
        if not len(batch):
            self.criterion.release(Records().__getitems__(torch.arange(B)))
        return super().training_step(batch, batch_idx)


class CountsAgain(Counts):
    def on_train_batch_end(self, *_):
        self.counts.release(LABELS)


class Louder(Mine):
    def training_step(self, batch, batch_idx):
        self.criterion.mechanism = self.criterion.mechanism.replace(sigma=1e-3)
        return super().training_step(batch, batch_idx)


class HidesLoss(Mine):
    def __init__(self):
        super().__init__()
        self.hidden = [DPSlicedWassersteinLoss(MECHANISM)]

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) + self.hidden[0](batch, self.net(torch.randn(16, 3)))


class HidesQuery(Mine):
    def training_step(self, batch, batch_idx):
        ClassCounts(3, sigma=1.0).release(LABELS)


@pytest.mark.parametrize(
    ("kind", "match", "releases"),
    [
        (Twice, AGAIN, 1),
        (Closure, AGAIN, 1),
        (Between, AGAIN, 1),
        (Fetches, AGAIN, 1),
        (CountsAgain, "at most 1 releases", 2),
        (Louder, "mechanism that the budget was calibrated for", 0),
        (HidesLoss, HIDDEN, 1),
        (HidesQuery, HIDDEN, 0),
    ],
)
def test_a_further_release_in_training(tmp_path, kind, match, releases):
    refused(tmp_path, kind(), match, data=loader(every=3), releases=releases)


class Two(Mine):
    def __init__(self):
        super().__init__()
        self.another = DPSlicedWassersteinLoss(MECHANISM)


class NoLoss(Mine):
    def __init__(self):
        super().__init__()
        self.hidden = [self.criterion]
        del self.criterion


@pytest.mark.parametrize(("kind", "count"), [(Two, 2), (NoLoss, 0)])
def test_no_loss_or_several(tmp_path, kind, count):
    refused(tmp_path, kind(), f"one DPSlicedWassersteinLoss or queries of all records in {kind.__name__}, got {count}")


class Validates(Mine):
    """Releases in validation, test and prediction, where ``eager``."""

    eager, late = True, False

    def training_step(self, batch, batch_idx):
        if self.late:  # keeps the permit of this step
            self.batch = batch
            return self.net(torch.randn(4, 3)).square().mean()
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        if self.eager and (not self.late or hasattr(self, "batch")):
            self.criterion.release(self.batch if self.late else batch)

    test_step = predict_step = validation_step


@pytest.mark.parametrize(("late", "releases"), [(False, 2), (True, 0)])
def test_a_release_in_validation_during_a_fit(tmp_path, late, releases):
    module, data = Validates(), DataLoader(ROWS, batch_size=B)
    module.late = late
    with pytest.raises(BudgetExceededError, match=AGAIN):
        trainer(tmp_path, num_sanity_val_steps=0, val_check_interval=2).fit(module, loader(), data)
    assert module.criterion.n_releases == written(tmp_path) == releases


@pytest.mark.filterwarnings("ignore:.*predict returned None")
@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no")
@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_a_release_in_another_stage(tmp_path, stage):
    module, run, data = Validates(), trainer(tmp_path), DataLoader(ROWS, batch_size=B)
    run.fit(module, loader())
    with pytest.raises(BudgetExceededError, match=f"outside of a fit, got one in {stage}"):
        getattr(run, stage)(module, data)
    assert released(module) == written(tmp_path) == STEPS
    module.eager = False  # control: the stage itself is allowed
    getattr(trainer(tmp_path), stage)(module, data)


def test_releases_after_training(tmp_path):
    module = Counts()
    trainer(tmp_path).fit(module, loader())
    with pytest.raises(BudgetExceededError, match=AGAIN):
        module.criterion.release(ROWS)
    with pytest.raises(BudgetExceededError, match="at most 1 releases"):
        module.counts.release(LABELS)
    assert released(module) == written(tmp_path) == STEPS + 1


class Copied(Mine):
    """Has a second writer: another process, or a copy of the loss."""

    def training_step(self, batch, batch_idx):
        if not self.criterion.recorder._probing:
            Ledger.open_existing(self.criterion.recorder._ledger.path).record(self.criterion.mechanism, N)
        return super().training_step(batch, batch_idx)


def test_a_second_writer_hides_no_release(tmp_path):
    module = Copied()
    with pytest.raises(DpswdError, match="only writer"):
        trainer(tmp_path).fit(module, loader())
    assert (module.criterion.n_releases, written(tmp_path)) == (0, 1)


# releases before the noise is calibrated


def moved(run, first):
    """Puts the budget before all other callbacks, or behind them."""
    others = [callback for callback in run.callbacks if callback is not run.budget]
    run.callbacks = [run.budget, *others] if first else [*others, run.budget]
    return run


class Calls(L.Callback):
    """Calls a function of the module in one hook."""

    def __init__(self, hook, function):
        setattr(self, hook, lambda trainer, module, *_, **__: function(module))


CALLS = {"loss": lambda module: module.criterion.release(ROWS), "query": lambda module: module.counts.release(LABELS)}


@pytest.mark.parametrize(
    ("hook", "what"), [("setup", "loss"), ("on_fit_start", "query"), ("on_sanity_check_start", "loss")]
)
@pytest.mark.parametrize("first", [True, False])
def test_a_callback_that_releases_early(tmp_path, hook, what, first):
    module, run = Counts(), moved(trainer(tmp_path, callbacks=[Calls(hook, CALLS[what])]), first)
    module.validation_step = lambda batch, batch_idx: None
    unseen = hook == "setup" and not first  # it is called before the budget, which finds the release
    with pytest.raises(DpswdError, match="without releases before the fit" if unseen else EARLY):
        run.fit(module, loader(), DataLoader(ROWS, batch_size=B))
    assert released(module) == unseen
    assert written(tmp_path) is None


@pytest.mark.parametrize("first", [True, False])
def test_a_callback_that_releases_when_training_starts_is_charged(tmp_path, first):
    module = Counts()
    run = moved(trainer(tmp_path, callbacks=[Calls("on_train_start", CALLS["query"])]), first)
    run.fit(module, loader())
    assert run.callbacks[0] is run.budget
    assert released(module) == written(tmp_path) == privacy(tmp_path)["releases_made"] == STEPS + 1
    assert module.counts.mechanism.sigma not in (None, 1.0)  # calibrated by the budget


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks")  # the finder's own checkpoint
def test_a_learning_rate_finder(tmp_path):
    module, finder = Counts(), LearningRateFinder(num_training_steps=20, early_stop_threshold=None)
    with pytest.raises(BudgetExceededError, match=EARLY):
        moved(trainer(tmp_path, callbacks=[finder]), False).fit(module, loader())
    assert (released(module), written(tmp_path)) == (0, None)


class InSetup(Counts):
    def setup(self, stage):
        self.criterion.release(ROWS)


class MadeInSetup(Mine):
    eager = True

    def setup(self, stage):
        self.criterion = DPSlicedWassersteinLoss(MECHANISM)
        if self.eager:
            self.criterion.release(ROWS)


class MadeInConfigureModel(Mine):
    def configure_model(self):
        self.criterion = DPSlicedWassersteinLoss(MECHANISM)
        self.criterion.release(ROWS)


@pytest.mark.parametrize(("kind", "match"), [(InSetup, EARLY), (MadeInSetup, HIDDEN), (MadeInConfigureModel, HIDDEN)])
def test_a_release_in_the_modules_own_hooks(tmp_path, kind, match):
    refused(tmp_path, kind(), match)


def test_a_loss_made_in_setup(tmp_path):
    module = MadeInSetup()
    module.eager = False
    trainer(tmp_path).fit(module, loader())
    assert module.criterion.n_releases == STEPS == written(tmp_path)


class InTheEnd(Mine):
    def on_fit_end(self):
        ClassCounts(3, sigma=1.0).release(LABELS)


def test_a_hidden_query_after_training(tmp_path):
    with pytest.raises(InputError, match=HIDDEN):
        trainer(tmp_path).fit(InTheEnd(), loader())


def test_two_budgets(tmp_path):
    run = trainer(tmp_path)
    run.callbacks.append(PrivacyBudget(50.0, 1e-5))  # Lightning refuses two in Trainer(callbacks=...) itself
    with pytest.raises(InputError, match="one PrivacyBudget"):
        run.fit(Mine(), loader())


# modules with releases


def test_a_release_before_the_fit(tmp_path):
    module = Mine()
    module.criterion.release(ROWS)
    with pytest.raises(InputError, match="without releases before the fit"):
        trainer(tmp_path).fit(module, loader())
    assert written(tmp_path) is None


@pytest.mark.parametrize("kind", [Mine, MadeInSetup])
def test_a_module_of_another_run(tmp_path, kind):
    module = kind(fail_at=3)
    module.eager = False
    with pytest.raises(RuntimeError, match="crash"):
        trainer(tmp_path / "a").fit(module, loader())
    module.fail_at = None
    with pytest.raises(InputError, match="without releases before a new run"):
        trainer(tmp_path / "b").fit(module, loader())
    (checkpoint,) = (tmp_path / "a" / "ckpt").glob("*step=3.ckpt")
    trainer(tmp_path / "a").fit(module, loader(), ckpt_path=checkpoint)  # control: resumed
    assert written(tmp_path / "a") == STEPS


def test_a_second_run_in_the_same_directory(tmp_path, tree):
    one, other = trainer(tmp_path), trainer(tmp_path)
    other.callbacks[other.callbacks.index(other.budget)] = one.budget  # also with the same callback object
    one.fit(Mine(), loader())
    before = tree(tmp_path)
    for run in (trainer(tmp_path), other):
        with pytest.raises(InputError, match="Expected no ledger at"):
            run.fit(Mine(), loader())
    assert tree(tmp_path) == before


# the end of a run that breaks off


class Interrupted(Mine):
    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)
        assert BudgetWatch.running == 1  # control
        raise KeyboardInterrupt


def test_an_interrupted_run_writes_its_releases(tmp_path):
    handler = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises((SystemExit, KeyboardInterrupt)):
            trainer(tmp_path).fit(Interrupted(), loader())
    finally:
        signal.signal(signal.SIGINT, handler)  # Lightning disables it
    assert written(tmp_path) == privacy(tmp_path)["releases_made"] == 1


class Breaks(L.Callback):
    def __init__(self, hook):
        setattr(self, hook, self.fail)

    def fail(self, *_):
        raise OSError("disk")


@pytest.mark.parametrize("hook", ["on_fit_start", "on_train_end"])
def test_a_callback_that_fails(tmp_path, hook):
    with pytest.raises(OSError, match="disk"):
        trainer(tmp_path, callbacks=[Breaks(hook)]).fit(Mine(), loader())


def test_a_refused_start_does_not_affect_the_next_run(tmp_path, monkeypatch):
    def full(*_):
        raise InputError("Expected room on the disk, got none.")

    with monkeypatch.context() as patched:
        patched.setattr("dpswd.training.budget.write_json", full)
        with pytest.raises(InputError, match="room on the disk"):
            trainer(tmp_path / "a").fit(Mine(), loader())
    trainer(tmp_path / "b").fit(Mine(), loader())
    assert written(tmp_path / "b") == STEPS
