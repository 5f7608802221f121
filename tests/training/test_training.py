"""The budget callback: what it makes of a user's own module, and what it refuses."""

import importlib.metadata
import json
import math

import lightning as L
import pytest
import torch
from factories import MECHANISM, STEPS, B, Mine, N, Records, WatchEpsilon, account, loader, privacy, trainer
from torch.utils.data import DataLoader, TensorDataset

from dpswd import (
    BudgetExceededError,
    DPSlicedWassersteinLoss,
    FixedSizeSampler,
    InputError,
    ProjectionMechanism,
)
from dpswd.accounting.ledger import Ledger
from dpswd.errors import DpswdError
from dpswd.sampling import ReleaseLoader
from dpswd.training.callback import PrivacyBudget


@pytest.mark.parametrize(("every", "releases"), [(1, 6), (4, 2), (STEPS, 1)], ids=["per step", "some", "one shot"])
def test_a_users_own_module_stays_within_its_budget(tmp_path, every, releases):
    run, module = trainer(tmp_path), Mine()
    run.fit(module, loader(every=every))
    assert run.global_step == STEPS
    ledger = Ledger.open_existing(tmp_path / "ledger.jsonl")
    assert ledger.n_releases == module.criterion.n_releases == releases
    assert ledger.header["target_epsilon"] == 5
    assert ledger.header["planned_releases"] == releases
    assert ledger.header["versions"]["torch"] == importlib.metadata.version("torch")
    (group,) = ledger.groups()
    assert group == (module.criterion.mechanism, N, releases)
    facts, fresh = privacy(tmp_path), account(ledger.groups())
    assert facts["epsilon"] == pytest.approx(fresh.get_epsilon(1e-5), rel=1e-12)
    assert (facts["mu"], facts["regret"]) == fresh.get_mu_and_regret()
    assert 0.99 * 5 < facts["epsilon"] <= 5  # the budget is used, and not overrun
    assert facts["releases_made"] == facts["planned_releases"] == releases
    assert facts["sound"] is facts["private"] is True
    assert facts["mechanism"] == module.criterion.mechanism.to_dict()
    assert not list(tmp_path.glob("*.part"))


def test_epsilon_that_is_shown_is_never_below_the_real_one(tmp_path):
    watch = WatchEpsilon()
    run = trainer(tmp_path, steps=11, callbacks=[watch])
    run.fit(Mine(), loader(11))
    assert [count for count, _ in watch.seen] == list(range(1, 12))
    mechanism = run.budget.mechanism
    for count, shown in watch.seen:
        real = account([(mechanism, N, count)]).get_epsilon(1e-5)
        assert shown >= real * (1 - 1e-6)  # callback_metrics are float32
        assert shown <= 5 * (1 + 1e-6)
    assert watch.seen[-1][1] == pytest.approx(privacy(tmp_path)["epsilon"], rel=1e-6)


def test_seed_everything_repeats_weights_and_nothing_else(tmp_path):
    seen = []
    for name in ("a", "b"):
        L.seed_everything(0, verbose=False)
        module = Mine()
        weights = module.net.weight.detach().clone()
        trainer(tmp_path / name, steps=2).fit(module, loader(2))
        seen.append((weights, module.released, module.net.weight.detach()))
    (w1, r1, t1), (w2, r2, t2) = seen
    assert torch.equal(w1, w2)
    assert not torch.equal(r1.values, r2.values)
    assert not torch.any(r1.projections == r2.projections)
    assert not torch.equal(t1, t2)


def test_a_fixed_noise_seed_marks_everything(tmp_path):
    trainer(tmp_path).fit(Mine(MECHANISM.replace(noise_seed=1)), loader(noise_seed=1))
    assert privacy(tmp_path)["private"] is privacy(tmp_path)["sound"] is False
    assert Ledger.open_existing(tmp_path / "ledger.jsonl").header["private"] is False


@pytest.mark.parametrize("bound", ["bernstein", "clt"])
def test_bounds_that_spend_a_tail(tmp_path, bound):
    made = ProjectionMechanism(3, 40, 1.0, B, bound=bound)
    trainer(tmp_path).fit(Mine(made), loader())
    facts = privacy(tmp_path)
    assert facts["epsilon"] <= 5
    assert facts["sound"] is (bound == "bernstein")
    ledger = Ledger.open_existing(tmp_path / "ledger.jsonl")
    assert facts["epsilon"] == pytest.approx(account(ledger.groups()).get_epsilon(1e-5))


def test_nothing_secret_is_in_the_checkpoint(tmp_path):
    module = Mine()
    trainer(tmp_path).fit(module, loader())
    (path,) = (tmp_path / "ckpt").glob("*step=6.ckpt")
    checkpoint = torch.load(path, weights_only=True)
    assert set(checkpoint["state_dict"]) == {"net.weight", "net.bias"}
    released = checkpoint.pop("released")
    assert set(released) == {"values", "projections", "mechanism"}
    flat = json.dumps(checkpoint, default=lambda value: str(getattr(value, "shape", type(value))))
    assert '"start": 6' in flat  # the step, and no indices
    assert "indices" not in flat


# refusals


def refused(directory, module, data, match, tree, error=InputError, **changes):
    before = tree(directory)
    with pytest.raises(error, match=match) as caught:
        trainer(directory, **changes).fit(module, data)
    assert "\n" not in str(caught.value)
    assert tree(directory) == before
    assert module.criterion.n_releases == 0 if hasattr(module, "criterion") else True


def test_refuses_shuffled_epochs(tmp_path, tree):
    data = DataLoader(TensorDataset(torch.zeros(N, 3)), batch_size=B, shuffle=True)
    refused(tmp_path, Mine(), data, "fixed-size subsets", tree)


def test_refuses_a_loader_of_another_batch_size(tmp_path, tree):
    data = ReleaseLoader(Records(), FixedSizeSampler(N, B - 1, n_steps=STEPS))
    refused(tmp_path, Mine(), data, "batch_size", tree)


def test_refuses_seeded_batches_for_a_private_mechanism(tmp_path, tree):
    refused(tmp_path, Mine(), loader(noise_seed=0), "Expected secret batches, got a sampler with noise_seed", tree)


def test_refuses_a_repeated_batch(tmp_path, tree):
    refused(tmp_path, Mine(), loader(), "overfit_batches", tree, overfit_batches=1)


class Two(Mine):
    def __init__(self):
        super().__init__()
        self.another = DPSlicedWassersteinLoss(MECHANISM)


class Hidden(Mine):
    def __init__(self):
        super().__init__()
        self.hidden = [self.criterion]
        del self.criterion


@pytest.mark.parametrize(("kind", "count"), [(Two, 2), (Hidden, 0)])
def test_refuses_any_number_of_losses_but_one(tmp_path, tree, kind, count):
    message = f"Expected exactly one DPSlicedWassersteinLoss in {kind.__name__}, got {count}; make it an attribute"
    refused(tmp_path, kind(), loader(), message, tree)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1e-5), "Expected target_epsilon to be finite and above 0, got target_epsilon=0"),
        ((math.nan, 1e-5), "Expected target_epsilon to be finite and above 0, got target_epsilon=nan"),
        ((1.0, 0), "Expected target_delta strictly between 0 and 1, got target_delta=0"),
        ((1.0, 1.0), "Expected target_delta strictly between 0 and 1, got target_delta=1"),
        ((1.0, 1e-5, "gdp"), "Expected accountant to be one of"),
    ],
)
def test_budgets_out_of_range(arguments, message):
    with pytest.raises(InputError, match=message):
        PrivacyBudget(*arguments)


def test_refuses_a_second_run_in_the_same_directory(tmp_path, tree):
    trainer(tmp_path).fit(Mine(), loader())
    refused(tmp_path, Mine(), loader(), "Expected no ledger at", tree)


class Greedy(Mine):
    """Makes two releases a step."""

    def training_step(self, batch, batch_idx):
        self.criterion.release(batch)
        return super().training_step(batch, batch_idx)


def test_refuses_a_release_that_the_budget_does_not_cover(tmp_path):
    module = Greedy()
    with pytest.raises(BudgetExceededError, match="Expected one release per private batch"):
        trainer(tmp_path, steps=5).fit(module, loader(5))
    assert module.criterion.n_releases == Ledger.open_existing(tmp_path / "ledger.jsonl").n_releases == 1
    assert privacy(tmp_path)["releases_made"] == 1


def test_more_epochs_than_were_planned_stop_at_the_budget(tmp_path):
    module = Mine()
    run = trainer(tmp_path, steps=3 * STEPS)
    run.fit(module, loader())  # a loader for a third of the steps: what it plans is what is paid for
    assert run.global_step == module.criterion.n_releases == STEPS


class Louder(Mine):
    def training_step(self, batch, batch_idx):
        self.criterion.mechanism = self.criterion.mechanism.replace(sigma=1e-3)
        return super().training_step(batch, batch_idx)


def test_refuses_another_mechanism_in_the_middle(tmp_path):
    module = Louder()
    with pytest.raises(BudgetExceededError, match="Expected the mechanism that the budget was calibrated for"):
        trainer(tmp_path).fit(module, loader())
    assert module.criterion.n_releases == 0


class Early(Mine):
    """Releases before training: in Lightning's sanity check of the validation loop."""

    def validation_step(self, batch, batch_idx):
        self.criterion.release(batch)


def test_refuses_a_release_before_the_budget_is_open(tmp_path):
    module = Early()
    data = DataLoader(torch.zeros(B, 3), batch_size=B)
    with pytest.raises(BudgetExceededError, match="Expected no release before training starts, got one"):
        trainer(tmp_path, num_sanity_val_steps=1).fit(module, loader(), data)
    assert module.criterion.n_releases == 0


class Copied(Mine):
    """Another writer beside the run: a second process, or a copy of the loss."""

    def training_step(self, batch, batch_idx):
        if self.criterion.recorder._probed and not self.criterion.recorder._probing:
            Ledger.open_existing(self.criterion.recorder._ledger.path).record(self.criterion.mechanism, N)
        return super().training_step(batch, batch_idx)


def test_a_second_writer_hides_no_release(tmp_path):
    module = Copied()
    with pytest.raises(DpswdError, match=r"Expected to be the only writer of .*; no release was made"):
        trainer(tmp_path).fit(module, loader())
    assert module.criterion.n_releases == 0
    assert Ledger.open_existing(tmp_path / "ledger.jsonl").n_releases == 1
