"""Options of a Trainer that mean something else where releases are real."""

import re
import warnings

import pytest
import torch
from factories import (
    MECHANISM,
    STEPS,
    B,
    Calls,
    Mine,
    N,
    X,
    fit_arguments,
    loader,
    trainer,
    written,
)
from lightning.pytorch.callbacks import EarlyStopping
from torch.utils.data import DataLoader, TensorDataset

from dpswd import (
    Budget,
    DPSlicedWassersteinLoss,
    FixedSizeSampler,
    InputError,
    PrivacyBudget,
    PrivateBatch,
    PrivateRecords,
)
from dpswd.commands.main import main
from dpswd.errors import PrivacyWarning, UtilityWarning
from dpswd.lightning import AdaptationData, PrivateDataModule


@pytest.mark.parametrize("option", [True, 3])
def test_a_trial_run_is_refused_before_a_release(tmp_path, option):
    with pytest.raises(InputError, match=r"no fast_dev_run.*target_epsilon=inf"):
        trainer(tmp_path, fast_dev_run=option).fit(Mine(), loader())
    assert written(tmp_path) is None


@pytest.mark.filterwarnings("ignore:NOT PRIVATE")
def test_a_trial_run_without_noise_is_allowed(tmp_path):
    run = trainer(tmp_path, fast_dev_run=True, budget=PrivacyBudget(float("inf"), 1e-5))
    run.fit(Mine(), loader())
    assert run.global_step == 1


@pytest.mark.parametrize(
    ("changes", "every", "words"),
    [
        ({"max_steps": 2}, 1, f"after 2 of {STEPS} .* Raise trainer.max_steps, or"),
        ({"max_steps": 2, "accumulate_grad_batches": 2}, 1, f"after 4 of {STEPS} "),
        ({"max_steps": 4}, 3, f"after 2 of {STEPS} "),
        ({"max_epochs": 2, "limit_train_batches": 2}, 1, "after 4 of .*trainer.limit_train_batch"),
        ({"max_steps": STEPS}, 1, None),
        ({"max_steps": 3, "accumulate_grad_batches": 2}, 1, None),
        ({"max_steps": 3 * STEPS - 2}, 3, None),  # the last release needs one step
        ({"max_epochs": 3, "limit_train_batches": 2}, 1, None),
        ({"max_steps": -1, "max_epochs": -1}, 1, None),
    ],
)
def test_too_few_steps_are_said_before_the_first_release(tmp_path, changes, every, words):
    messages = []  # with the number of releases at their time
    with warnings.catch_warnings():
        warnings.filterwarnings("always", category=UtilityWarning)
        warnings.showwarning = lambda text, *_: messages.append((str(text), written(tmp_path)))
        trainer(tmp_path, **changes).fit(Mine(), loader(every=every))
    if words is None:
        assert messages == []
        assert written(tmp_path) == STEPS
        return
    ((text, n_before),) = messages
    assert re.search(words, text)
    assert n_before is None  # before there is a ledger
    n_reached = int(re.search(r"after (\d+) of", text)[1])
    assert written(tmp_path) == n_reached < STEPS


class Validates(Mine):
    """A module that validates on tensors of its own."""

    def validation_step(self, batch, batch_idx):
        (rows,) = batch
        self.log("mean", rows.mean())

    def val_dataloader(self):
        return DataLoader(TensorDataset(X), batch_size=B)


def test_validation_is_said_once_to_need_public_records(tmp_path):
    with pytest.warns(PrivacyWarning, match="validation steps of Validates") as messages:
        trainer(tmp_path, val_check_interval=2).fit(Validates(), loader())
    said = [message for message in messages if "validation steps" in str(message.message)]
    assert len(said) == 1


def test_a_run_without_validation_says_nothing_of_it(tmp_path):
    trainer(tmp_path).fit(Mine(), loader())  # a warning is an error in the tests


class OwnLoader(Mine):
    """A module that hands tensors of its own loader to the loss."""

    def training_step(self, batch, batch_idx):
        (rows,) = batch
        return self.criterion(rows, self.encoder(torch.rand(4, 3)))


def own_loader(shuffle, batch_size=B):
    return DataLoader(TensorDataset(X), batch_size=batch_size, shuffle=shuffle, drop_last=True)


def handed_over(directory, batches, batch_size=B, n_releases=2):
    """Fits a module whose loader has tensors."""
    budget = PrivacyBudget(5.0, 1e-5, sample_size=N, n_releases=n_releases)
    module = OwnLoader(MECHANISM.replace(batch_size=batch_size))
    run = trainer(directory, budget=budget)
    run.fit(module, batches)
    return module


@pytest.mark.parametrize("shuffle", [True, False])
def test_epochs_of_tensors_are_refused_before_a_release(tmp_path, shuffle):
    with pytest.raises(InputError, match=rf"in epochs.*FixedSizeSampler\({N}, {B}"):
        handed_over(tmp_path, own_loader(shuffle))
    assert written(tmp_path) is None


def test_fresh_subsets_of_tensors_are_accepted(tmp_path):
    batches = DataLoader(TensorDataset(X), batch_sampler=FixedSizeSampler(N, B, n_steps=2))
    assert handed_over(tmp_path, batches).criterion.n_releases == 2


def fresh_subsets(sample_size=N):
    sampler = FixedSizeSampler(sample_size, B, n_steps=2)
    return DataLoader(TensorDataset(X), batch_sampler=sampler)


class OfTwoLoaders(OwnLoader):
    """A module whose private batches are those of the loader ``target``."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch["target"], batch_idx)


def of_two_loaders(directory, **loaders):
    budget = PrivacyBudget(5.0, 1e-5, sample_size=N, n_releases=2)
    module = OfTwoLoaders(MECHANISM)
    trainer(directory, budget=budget, limit_train_batches=2).fit(module, loaders)
    return module


def test_epochs_of_several_loaders_are_refused_unless_one_has_fresh_subsets(tmp_path):
    with pytest.raises(InputError, match="in epochs"):
        of_two_loaders(tmp_path / "epochs", source=own_loader(True), target=own_loader(True))
    assert written(tmp_path / "epochs") is None
    module = of_two_loaders(tmp_path / "fresh", source=own_loader(True), target=fresh_subsets())
    assert module.criterion.n_releases == 2


def test_subsets_of_another_number_of_records_are_refused(tmp_path):
    with pytest.raises(InputError, match=rf"sample_size={N - 1}, .*FixedSizeSampler.*got {N}"):
        handed_over(tmp_path, fresh_subsets(N - 1))
    assert written(tmp_path) is None


def test_all_tensors_at_once_are_accepted(tmp_path):
    module = handed_over(tmp_path, own_loader(True, N), batch_size=N, n_releases=1)
    assert module.criterion.n_releases == 1


def test_early_stopping_in_one_epoch_is_said_to_stop_nothing(tmp_path):
    stop = EarlyStopping("target_epsilon", patience=1)
    with pytest.warns(UtilityWarning, match="it stops nothing"):
        trainer(tmp_path, callbacks=[stop]).fit(Mine(), loader())
    # Control: it looks at the end of each epoch. A warning is an error in the tests.
    epochs = trainer(tmp_path / "epochs", callbacks=[stop], limit_train_batches=2, max_epochs=2)
    epochs.fit(Mine(), loader(4))


@pytest.mark.filterwarnings("ignore:EarlyStopping looks")
def test_a_metric_that_is_not_logged_is_named_with_the_way_to_go_on(tmp_path, capfd):
    stop = "--trainer.callbacks+=EarlyStopping"
    words = fit_arguments(tmp_path / "run", 2, stop, "--trainer.callbacks.monitor", "val_loss")
    assert main(words) == 2
    text = capfd.readouterr().err
    assert "val_loss" in text
    assert f"--ckpt_path {tmp_path / 'run' / 'checkpoints' / 'last.ckpt'}" in text


@pytest.mark.parametrize("k", [1, 2])
def test_accumulated_batches_keep_the_steps_and_the_plan(tmp_path, k):
    data = PrivateDataModule("digits", every=2)
    data.trainer = trainer(tmp_path, max_steps=6, accumulate_grad_batches=k)
    batches = data.train_dataloader()
    assert len(batches) == 6 * k  # of one release, since no module states batch_size
    pairs = AdaptationData("digits", "digits", first_release=2, n_releases=2)
    pairs.trainer = data.trainer
    target = pairs.train_dataloader()["target"]
    assert len(target) == 6 * k
    made = [step for step, batch in enumerate(target) if len(batch)]
    assert made == [2 * k, 4 * k]


def test_the_end_by_another_option_is_not_called_the_plan(tmp_path, capfd):
    once = loader(1, STEPS)
    stop = Calls("on_train_batch_end", lambda module: setattr(module.trainer, "should_stop", True))
    trainer(tmp_path, callbacks=[stop], max_steps=STEPS).fit(Mine(), once)
    text = capfd.readouterr().err
    assert f"The run ends at step 1 of {STEPS}." in text
    assert "planned release" not in text


def test_a_data_set_in_place_of_an_array_is_named():
    dataset = TensorDataset(X, torch.zeros(N))
    for value in (dataset, DataLoader(dataset)):
        with pytest.raises(InputError, match=rf"a {type(value).__name__} of torch.*torch\.stack"):
            PrivateRecords(value)


def test_arrays_in_place_of_a_path_are_named():
    with pytest.raises(InputError, match=r"source as a folder.*got Tensor.*SourceLoader"):
        AdaptationData(X, X)
    with pytest.raises(InputError, match=r"path as a folder.*got Tensor.*np\.savez.*images=X"):
        PrivateDataModule(X)


def test_a_compiled_step_has_the_same_distance(tmp_path):
    records = PrivateRecords(X)
    loss = DPSlicedWassersteinLoss(MECHANISM)
    public = torch.rand(B, 3, requires_grad=True)
    step = torch.compile(loss.distance, backend="eager")
    plan = {"target_epsilon": 5.0, "target_delta": 1e-5, "n_releases": 1}
    with Budget(records, [loss], run_dir=tmp_path / "run", **plan):
        release = torch.compile(loss.release, backend="eager")(PrivateBatch(records, B))
    values = []
    for function in (step, loss.distance):
        torch.manual_seed(0)  # public rows of this statistic get noise, too
        values.append(function(release, public))
    values[0].backward()
    assert torch.isfinite(public.grad).all()
    assert torch.equal(*values)
