"""What an attacker, or a careless author of a module, may try: one batch serves one release, and nothing else leaves.

Every run here is refused, and no refusal leaves a budget running in this process.
"""

import signal

import lightning as L
import pytest
import torch
from factories import MECHANISM, STEPS, B, Mine, N, Records, loader, privacy, trainer
from torch.utils.data import DataLoader, TensorDataset

from dpswd import BudgetExceededError, DPSlicedWassersteinLoss, FixedSizeSampler, InputError
from dpswd.accounting.ledger import Ledger
from dpswd.loss import BudgetWatch
from dpswd.queries import ClassCounts
from dpswd.sampling import ReleaseLoader

ONE = "Expected one release per private batch"


@pytest.fixture(autouse=True)
def no_leak():
    assert BudgetWatch.running == 0
    yield
    assert BudgetWatch.running == 0
    loss = DPSlicedWassersteinLoss(MECHANISM)  # outside of runs a loss without a ledger is allowed
    loss.release(torch.zeros(B, 3))
    assert loss.n_releases == 1


def written(directory):
    """Releases in the ledger, or none where no ledger was begun."""
    path = directory / "ledger.jsonl"
    return Ledger.open_existing(path).n_releases if path.exists() else None


def refused(directory, module, match, *, error=InputError, data=None, releases=1, **changes):
    """Fits, wants a refusal, and the releases that were made before it in the ledger and in privacy.json."""
    with pytest.raises(error, match=match) as caught:
        trainer(directory, **changes).fit(module, loader() if data is None else data)
    assert "\n" not in str(caught.value)
    assert written(directory) == releases
    if releases is not None:
        assert privacy(directory)["releases_made"] == releases
        assert privacy(directory)["planned_releases"] >= releases
    return module


# the training step


class Twice(Mine):
    def training_step(self, batch, batch_idx):
        y = self.net(torch.randn(16, 3))
        return self.criterion(batch, y) + self.criterion(batch, y)


def test_two_calls_in_one_step(tmp_path):
    module = refused(tmp_path, Twice(), ONE, error=BudgetExceededError)
    assert module.criterion.n_releases == 1


class Closure(Mine):
    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters(), max_iter=4)


def test_a_closure_that_runs_again(tmp_path):
    module = refused(tmp_path, Closure(), ONE, error=BudgetExceededError)
    assert module.criterion.n_releases == 1


class Keeps(Mine):
    """Releases the batch of the step before when the step is over."""

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.criterion.release(batch)


def test_a_release_between_steps(tmp_path):
    refused(tmp_path, Keeps(), ONE, error=BudgetExceededError)


class Free(Mine):
    """Releases records that it fetched itself in a step that was given none."""

    def training_step(self, batch, batch_idx):
        if not len(batch):
            self.criterion.release(Records().__getitems__(torch.arange(B)))
        return super().training_step(batch, batch_idx)


def test_records_fetched_by_hand_in_a_free_step(tmp_path):
    refused(tmp_path, Free(), ONE, error=BudgetExceededError, data=loader(every=3))


class Validates(Mine):
    def validation_step(self, batch, batch_idx):
        self.criterion.release(batch)


def test_the_loss_in_a_validation_step(tmp_path):
    module = Validates()
    with pytest.raises(BudgetExceededError, match=ONE):
        trainer(tmp_path, num_sanity_val_steps=0, val_check_interval=2).fit(
            module, loader(), DataLoader(torch.zeros(B, 3), batch_size=B)
        )
    assert module.criterion.n_releases == written(tmp_path) == 2


@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no")  # in the fit
@pytest.mark.parametrize("stage", ["validate", "test"])
def test_the_loss_in_a_loop_after_training(tmp_path, stage):
    class Looks(Validates):
        test_step = Validates.validation_step

    module, run = Looks(), trainer(tmp_path)
    run.fit(module, loader())
    with pytest.raises(BudgetExceededError, match=f"Expected no release outside of a fit, got one in {stage}"):
        getattr(run, stage)(module, DataLoader(torch.zeros(B, 3), batch_size=B), verbose=False)
    assert module.criterion.n_releases == written(tmp_path) == STEPS


class Counts(Mine):
    """Pays for class counts before the projections."""

    def __init__(self):
        super().__init__()
        self.counts = ClassCounts(3, share=0.1)

    def on_train_start(self):
        self.counts.release(torch.zeros(N, dtype=torch.int64))


def test_releases_after_training_ended(tmp_path):
    module = Counts()
    trainer(tmp_path).fit(module, loader())
    with pytest.raises(BudgetExceededError, match=ONE):
        module.criterion.release(torch.zeros(B, 3))
    with pytest.raises(BudgetExceededError, match="Expected at most 1 releases within epsilon=5, got a further one"):
        module.counts.release(torch.zeros(N, dtype=torch.int64))
    assert (module.criterion.n_releases, module.counts.n_releases, written(tmp_path)) == (STEPS, 1, STEPS + 1)


class CountsAgain(Counts):
    def on_train_batch_end(self, *_):
        self.counts.release(torch.zeros(N, dtype=torch.int64))


def test_a_query_a_second_time(tmp_path):
    module = refused(tmp_path, CountsAgain(), "Expected at most 1 releases", error=BudgetExceededError, releases=2)
    assert (module.counts.n_releases, module.criterion.n_releases) == (1, 1)


# losses and queries that are hidden from the budget


class HidesLoss(Mine):
    def __init__(self):
        super().__init__()
        self.hidden = [DPSlicedWassersteinLoss(MECHANISM)]

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) + self.hidden[0](batch, self.net(torch.randn(16, 3)))


class HidesQuery(Mine):
    def training_step(self, batch, batch_idx):
        ClassCounts(3).release(torch.zeros(N, dtype=torch.int64))


@pytest.mark.parametrize(("kind", "releases"), [(HidesLoss, 1), (HidesQuery, 0)])
def test_what_is_hidden_in_a_list_or_made_on_the_spot(tmp_path, kind, releases):
    match = "Expected a ledger for every release while a PrivacyBudget runs, got a (loss|query) without one"
    module = refused(tmp_path, kind(), match, releases=releases)
    assert all(loss.n_releases == 0 for loss in getattr(module, "hidden", []))


# loaders


class Reloads(L.LightningDataModule):
    """Gives an honest loader in the first epoch and another one afterwards."""

    def __init__(self, *loaders):
        super().__init__()
        self.loaders = list(loaders)

    def train_dataloader(self):
        return self.loaders.pop(0) if len(self.loaders) > 1 else self.loaders[0]


def shuffled():
    return DataLoader(TensorDataset(torch.zeros(N, 3)), batch_size=B, shuffle=True)


class Few(Records):
    def __len__(self):
        return N - 10


@pytest.mark.parametrize(
    ("other", "match"),
    [
        (shuffled, "fixed-size subsets"),
        (lambda: loader(2, noise_seed=0), "Expected secret batches, got a sampler with noise_seed"),
        (lambda: ReleaseLoader(Few(), FixedSizeSampler(N - 10, B, n_steps=2)), "Expected 40 records as planned, got"),
        (
            lambda: ReleaseLoader(Records(), FixedSizeSampler(B, B, n_steps=2)),
            "sample_size",
        ),
    ],
    ids=["shuffled", "seeded", "fewer records", "the first few records"],
)
def test_another_loader_after_the_first_epoch(tmp_path, other, match):
    data = Reloads(loader(2), other())
    refused(tmp_path, Mine(), match, data=data, releases=2, reload_dataloaders_every_n_epochs=1)


@pytest.mark.parametrize("size", [N - 1, N + 10])
def test_a_sampler_of_another_size_than_the_data(tmp_path, size):
    data = ReleaseLoader(Records(), FixedSizeSampler(size, B, n_steps=STEPS))
    match = "sample_size"
    refused(tmp_path, Mine(), match, data=data, releases=None)


# nothing is left running


class Interrupted(Mine):
    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)
        assert BudgetWatch.running == 1  # control: it does run
        raise KeyboardInterrupt


def test_an_interrupt_ends_the_watch_and_is_written_down(tmp_path):
    handler = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises((SystemExit, KeyboardInterrupt)):
            trainer(tmp_path).fit(Interrupted(), loader())
    finally:
        signal.signal(signal.SIGINT, handler)  # Lightning switches it off
    assert BudgetWatch.running == 0
    assert written(tmp_path) == privacy(tmp_path)["releases_made"] == 1


class Breaks(L.Callback):
    """Fails in one hook."""

    def __init__(self, hook):
        setattr(self, hook, self.fail)

    def fail(self, *_):
        raise OSError("disk")


@pytest.mark.parametrize("hook", ["on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_end"])
def test_a_callback_that_fails_ends_the_watch(tmp_path, hook):
    with pytest.raises(OSError, match="disk"):
        trainer(tmp_path, callbacks=[Breaks(hook)]).fit(Mine(), loader())


def test_a_refused_start_ends_the_watch_and_the_next_run_is_fine(tmp_path, monkeypatch):
    def full(*_):
        raise InputError("Expected room on the disk, got none.")

    with monkeypatch.context() as patched:
        patched.setattr("dpswd.training.budget.write_json", full)
        with pytest.raises(InputError, match="Expected room on the disk"):
            trainer(tmp_path / "a").fit(Mine(), loader())
    assert BudgetWatch.running == 0
    with pytest.raises(InputError, match="fixed-size subsets"):
        trainer(tmp_path / "b").fit(Mine(), shuffled())
    assert BudgetWatch.running == 0
    trainer(tmp_path / "c").fit(Mine(), loader())
    assert written(tmp_path / "c") == STEPS


def test_one_callback_for_two_trainers(tmp_path):
    one, other = trainer(tmp_path), trainer(tmp_path)
    other.callbacks[other.callbacks.index(other.budget)] = one.budget
    one.fit(Mine(), loader())
    with pytest.raises(InputError, match="Expected no ledger at"):
        other.fit(Mine(), loader())
    assert written(tmp_path) == STEPS
