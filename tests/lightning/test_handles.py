"""What a Lightning module, its hooks and its checkpoints can do with handles of private records."""

import copy
import io
import pickle
from collections.abc import Collection, Iterable

import lightning as L
import numpy as np
import pandas as pd
import pytest
import torch
from factories import (
    MECHANISM,
    STEPS,
    B,
    Mine,
    N,
    X,
    Y,
    agree,
    loader,
    privacy,
    records,
    released,
    trainer,
    written,
)
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

from dpswd import (
    BudgetExceededError,
    DPSlicedWassersteinLoss,
    FixedSizeSampler,
    InputError,
    PrivacyBudget,
)
from dpswd.report.render import write_report


def make_batch():
    return next(iter(loader()))


class Normalised(Mine):
    """Has a layer of batch normalisation of its own."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)


def normalise(module, batch, index):
    return module.norm(batch)


def standardise(module, batch, index):
    return (batch - batch.mean(0)) / batch.std(0)


@pytest.mark.parametrize("hook", ["on_before_batch_transfer", "on_after_batch_transfer"])
@pytest.mark.parametrize("change", [normalise, standardise])
def test_hook_on_a_batch_sees_no_record(tmp_path, hook, change):
    module = type("Hooked", (Normalised,), {hook: change})()
    with pytest.raises((TypeError, AttributeError)):
        trainer(tmp_path).fit(module, loader())
    assert written(tmp_path) == 0
    assert released(module) == 0
    assert torch.equal(module.norm.running_mean, torch.zeros(3))


def save(handle):
    torch.save(handle, io.BytesIO())


@pytest.mark.parametrize("make", [records, make_batch])
@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy, save])
def test_handle_is_neither_pickled_nor_copied(make, copied):
    with pytest.raises(InputError, match="save_hyperparameters"):
        copied(make())


def first(handle):
    return handle[0]


@pytest.mark.parametrize("make", [records, make_batch])
@pytest.mark.parametrize("read", [first, list, np.asarray])
def test_records_of_a_handle_are_not_shown(make, read):
    with pytest.raises(InputError, match="no look at the records"):
        read(make())


@pytest.mark.parametrize("make", [records, make_batch])
def test_a_handle_is_no_collection(make):
    """Lightning and torch would look for tensors in one."""
    assert not isinstance(make(), Iterable | Collection)
    with pytest.raises(ValueError, match="could not determine the shape"):
        torch.as_tensor(make())


@pytest.mark.parametrize("copied", [pickle.dumps, copy.deepcopy, save])
def test_loader_is_neither_pickled_nor_copied(copied):
    with pytest.raises(InputError, match="save_hyperparameters"):
        copied(loader())


class Saves(Mine):
    """A module that saves its argument as a hyperparameter."""

    def __init__(self, argument):
        super().__init__()
        self.save_hyperparameters()


class SavesData(L.LightningDataModule):
    """A data module that saves its argument as a hyperparameter."""

    def __init__(self, argument):
        super().__init__()
        self.save_hyperparameters()

    def train_dataloader(self):
        return loader()


def itself(handle):
    return handle


def in_a_list(handle):
    return [handle]


def in_a_dictionary(handle):
    return {"records": handle}


@pytest.mark.parametrize("kind", [Saves, SavesData])
@pytest.mark.parametrize("wrap", [itself, in_a_list, in_a_dictionary])
def test_save_hyperparameters_refuses_a_handle(kind, wrap):
    with pytest.raises(InputError, match="save_hyperparameters"):
        kind(wrap(records()))


RECORDS = {
    "tensor": X,
    "array": X.numpy(),
    "frame": pd.DataFrame(X.numpy()),
    "series": pd.Series(Y.numpy()),
    "dictionary": {"train": X},
    "list": X.tolist() * 20,
    "data set": TensorDataset(X),
    "loader": DataLoader(TensorDataset(X)),
}


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("kind", [Saves, SavesData])
def test_records_among_hyperparameters_are_refused(tmp_path, kind, name):
    module = Mine()
    data = loader()
    if kind is Saves:
        module = Saves(RECORDS[name])
    else:
        data = SavesData(RECORDS[name])
    with pytest.raises(InputError, match=r"got argument, .*hparams of Saves"):
        trainer(tmp_path).fit(module, data)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_plain_values_among_hyperparameters_are_accepted(tmp_path):
    module = Saves({"lr": 1e-3, "sizes": [8, 8], "name": "x"})
    trainer(tmp_path).fit(module, loader())
    assert written(tmp_path) == STEPS


class UsesBatch(Mine):
    """Uses the private batch again in the step of its release."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.use(batch)
        return loss


class Reconstructs(UsesBatch):
    def use(self, batch):
        return (self.net(batch) - batch).square().mean()


class CopiesToABuffer(UsesBatch):
    def use(self, batch):
        self.encoder[0].running_mean.copy_(batch.mean(0))


class Logs(UsesBatch):
    def use(self, batch):
        self.log("mean", batch.mean())


class LogsACount(UsesBatch):
    def use(self, batch):
        self.log("n", float(sum(len(row) for row in batch)))


def fit_fails(directory, module, error, match, releases):
    """Check that a training ends with an error after some releases, all of which are counted."""
    with pytest.raises(error, match=match):
        trainer(directory).fit(module, loader())
    assert written(directory) == releases
    assert privacy(directory)["releases_made"] == releases
    assert released(module) == releases


@pytest.mark.parametrize("kind", [Reconstructs, CopiesToABuffer, Logs, LogsACount])
def test_batch_holds_no_record(tmp_path, kind):
    fit_fails(tmp_path, kind(), (TypeError, AttributeError, InputError), None, releases=1)


class ReleasesTwice(UsesBatch):
    def use(self, batch):
        self.criterion(batch, self.net(X))


class ReleasesInAClosure(Mine):
    """Its optimiser calls the training step several times with one batch."""

    def configure_optimizers(self):
        return torch.optim.LBFGS(self.net.parameters(), max_iter=4)


class ReleasesInAHook(Mine):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.criterion.release(batch)


@pytest.mark.parametrize("kind", [ReleasesTwice, ReleasesInAClosure, ReleasesInAHook])
def test_batch_is_released_once(tmp_path, kind):
    fit_fails(tmp_path, kind(), InputError, "one release", releases=1)


class ReleasesAnEarlierBatch(UsesBatch):
    first = None

    def use(self, batch):
        if self.first is None:
            self.first = batch
        else:
            self.criterion.release(self.first)


def test_batch_of_an_earlier_step_is_released_once(tmp_path):
    fit_fails(tmp_path, ReleasesAnEarlierBatch(), InputError, "one release", releases=2)


class ReleasesOtherRecords(UsesBatch):
    def use(self, batch):
        self.criterion.release(next(iter(loader())))


class ReleasesATensor(UsesBatch):
    def use(self, batch):
        self.criterion.release(X[:B])


class ReleasesWithAnotherLoss(UsesBatch):
    def use(self, batch):
        DPSlicedWassersteinLoss(MECHANISM).release(next(iter(loader())))


class ReleasesWithLessNoise(UsesBatch):
    def use(self, batch):
        self.criterion.mechanism = self.criterion.mechanism.replace(sigma=1e-3)


@pytest.mark.parametrize(
    ("kind", "error", "match"),
    [
        (ReleasesOtherRecords, InputError, "another handle"),
        (ReleasesATensor, InputError, "got a tensor"),
        (ReleasesWithAnotherLoss, InputError, "within a budget"),
        (ReleasesWithLessNoise, BudgetExceededError, "plan of this budget"),
    ],
)
def test_release_that_is_not_planned_is_refused(tmp_path, kind, error, match):
    fit_fails(tmp_path, kind(), error, match, releases=1)


def test_loader_of_tensors_is_refused(tmp_path):
    sampler = FixedSizeSampler(N, B, n_steps=STEPS)
    data = DataLoader(TensorDataset(X, Y), batch_sampler=sampler)
    with pytest.raises(InputError, match="ReleaseLoader"):
        trainer(tmp_path).fit(Mine(), data)
    assert written(tmp_path) is None


class HandsOver(L.LightningModule):
    """Hands tensors of its own loader to the loss, and uses them besides."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(3, 3)
        self.criterion = DPSlicedWassersteinLoss(MECHANISM)

    def training_step(self, batch, batch_idx):
        (rows,) = batch
        loss = self.criterion(rows, self.net(torch.randn(16, 3)))
        self.log("mean", rows.mean())
        return loss + (self.net(rows) - rows).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-2)


def test_guarantee_of_tensors_is_conditional(tmp_path):
    sampler = FixedSizeSampler(N, B, n_steps=STEPS)
    data = DataLoader(TensorDataset(X), batch_sampler=sampler)
    budget = PrivacyBudget(5.0, 1e-5, sample_size=N, n_releases=STEPS)
    trainer(tmp_path, budget=budget).fit(HandsOver(), data)
    agree(tmp_path, STEPS)
    facts = privacy(tmp_path)
    assert facts["sound"] is False
    assert facts["private"] is True
    assert facts["records"] == "handed over by the caller"
    assert len(facts["conditions"]) == 3
    assert write_report(tmp_path)["sound"] is False
    page = (tmp_path / "report.html").read_text()
    assert "handed over by the caller" in page
    for condition in facts["conditions"]:
        assert condition.split(",")[0] in page


def test_guarantee_of_handles_is_unconditional(tmp_path):
    trainer(tmp_path).fit(Mine(), loader())
    facts = privacy(tmp_path)
    assert facts["sound"] is True
    assert facts["records"] == "behind a handle"
    assert facts["conditions"] == []
    assert write_report(tmp_path)["sound"] is True


class LogsRows(Mine):
    """Logs a statistic of its private features."""

    def encode(self, values):
        self.log("features", values.mean())
        return values

    def training_step(self, batch, batch_idx):
        return self.criterion(batch, self.net(torch.randn(16, 3)), rows=self.encode)


def test_encoder_that_logs_is_refused(tmp_path):
    with pytest.raises(InputError, match="log"):
        trainer(tmp_path).fit(LogsRows(), loader())
    assert written(tmp_path) == 0


class LogsLater(LogsRows):
    """Keeps and logs its features in the third step only, which the check does not see."""

    values = None
    step = 0

    def encode(self, values):
        if self.step == 2:
            self.values = values
            for logger in self.loggers:
                logger.log_metrics({"features": float(values.mean())})
        return values

    def on_train_batch_start(self, batch, batch_idx):
        self.step = batch_idx


def test_copy_of_an_encoder_has_no_logger_and_keeps_nothing(tmp_path):
    module = LogsLater()
    trainer(tmp_path, logger=CSVLogger(tmp_path)).fit(module, loader())
    assert module.step == STEPS - 1
    assert module.values is None
    assert released(module) == STEPS
    assert "features" not in (tmp_path / "lightning_logs/version_0/metrics.csv").read_text()


def ignore(*_):
    """A forward hook."""


class AddsAHookLater(Mine):
    def training_step(self, batch, batch_idx):
        if batch_idx == 2:
            self.encoder.register_forward_hook(ignore)
        return super().training_step(batch, batch_idx)


def test_encoder_with_a_later_hook_is_refused(tmp_path):
    with pytest.raises(InputError, match="hooks"):
        trainer(tmp_path).fit(AddsAHookLater(), loader())
    assert written(tmp_path) == 2


class Validates(Mine):
    """Releases in validation, test and prediction."""

    def validation_step(self, batch, batch_idx):
        self.criterion.release(batch)

    test_step = validation_step
    predict_step = validation_step


@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no")
@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_other_stages_release_nothing(tmp_path, stage):
    module = Validates()
    handle = records()
    run = trainer(tmp_path)
    run.fit(module, loader(of=handle))
    run_stage = getattr(run, stage)
    with pytest.raises(BudgetExceededError, match=f"training steps only, got one in {stage[:5]}"):
        run_stage(module, loader(of=handle))
    assert released(module) == STEPS
    assert written(tmp_path) == STEPS


@pytest.mark.parametrize(
    ("sanity_steps", "releases"), [(0, 2), (1, None)], ids=["validation", "sanity check"]
)
def test_validation_during_a_fit_releases_nothing(tmp_path, sanity_steps, releases):
    """In the sanity check the mechanism is not calibrated yet."""
    module = Validates(MECHANISM.replace(sigma=None))
    handle = records()
    run = trainer(tmp_path, num_sanity_val_steps=sanity_steps, val_check_interval=2)
    message = r"training steps only, got one in (validate|sanity_check)"
    with pytest.raises(BudgetExceededError, match=message):
        run.fit(module, loader(of=handle), loader(of=handle))
    assert written(tmp_path) == releases


@pytest.mark.parametrize("precision", ["bf16-true", "64-true"])
def test_encoder_gets_records_in_the_precision_of_the_trainer(tmp_path, precision):
    module = Mine()
    module.encoder = torch.nn.Linear(3, 3)
    trainer(tmp_path, precision=precision).fit(module, loader())
    assert written(tmp_path) == STEPS
