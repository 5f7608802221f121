"""Runs without a release, which are NOT PRIVATE,
and sums of a batch that are released at every step.
"""

import math

import lightning as L
import pytest
import torch
from factories import B, Mine, N, X, loader, privacy, trainer
from torch.utils.data import DataLoader, TensorDataset

from dpswd import GaussianMechanism, InputError, PrivacyBudget
from dpswd.errors import PrivacyWarning
from dpswd.release import RecordSum, make_release
from dpswd.sampling import FixedSizeSampler


class Unprotected(L.LightningModule):
    """Reads tensors without a release."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(3, 3)

    def training_step(self, batch, batch_idx):
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=1e-2)


def fit_unprotected(tmp_path, target_epsilon):
    module = Unprotected()
    budget = PrivacyBudget(target_epsilon, 1e-5)
    fit = trainer(tmp_path, budget=budget, max_steps=3)
    fit.fit(module, DataLoader(TensorDataset(X), batch_size=B))
    return fit, module, budget


def test_module_without_release_is_trained_without_a_budget_only(tmp_path):
    """It is marked NOT PRIVATE on the screen and in its checkpoint, and has no ledger."""
    with pytest.warns(PrivacyWarning, match="NOT PRIVATE: the module makes no release"):
        fit, _, budget = fit_unprotected(tmp_path / "free", math.inf)
    assert budget.is_unprotected
    assert budget.epsilon == math.inf
    assert not (tmp_path / "free" / "ledger.jsonl").exists()
    fit.save_checkpoint(tmp_path / "last.ckpt")
    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=False)
    assert checkpoint["dpswd_notice"] == budget.notice
    assert budget.notice.startswith("NOT PRIVATE")
    # Control: a finite budget refuses the module.
    with pytest.raises(InputError, match="one DPSlicedWassersteinLoss or queries"):
        fit_unprotected(tmp_path / "finite", 1.0)


def test_weights_of_an_unprotected_run_start_no_private_run(tmp_path):
    with pytest.warns(PrivacyWarning, match="NOT PRIVATE"):
        _, module, _ = fit_unprotected(tmp_path / "free", math.inf)
    mine = Mine()
    mine.net = module.net
    with pytest.raises(InputError, match="weights"):
        trainer(tmp_path / "run", epsilon=1.0).fit(mine, loader())


class GradientSum(RecordSum):
    """Sum of rows of a batch at every step, of fixed size."""

    def __init__(self, n_entries):
        super().__init__(GaussianMechanism(sensitivity=2.0, name="gradients", batch_size=B))
        self.shape = (n_entries,)

    def contribution(self, rows, groups, n_records):
        return rows.double().sum(0)


class Summing(Unprotected):
    """Releases a sum at every step."""

    def __init__(self):
        super().__init__()
        self.gradients = GradientSum(3)

    def training_step(self, batch, batch_idx):
        total = make_release(self.gradients, batch[0])["values"]
        return self.net(total.float()).sum()


def test_sum_of_a_batch_is_released_at_every_step_and_not_stored(tmp_path):
    """The plan counts the steps; the guarantee is conditional, since tensors are handed over."""
    n_steps = 25
    budget = PrivacyBudget(5.0, 1e-5, sample_size=N, n_releases=n_steps)
    trainer(tmp_path, budget=budget, max_steps=n_steps).fit(Summing(), fresh_subsets(n_steps))
    statement = privacy(tmp_path)
    assert statement["releases_made"] == n_steps
    assert statement["epsilon"] <= 5.0
    assert not statement["sound"]
    assert statement["conditions"]
    assert not list((tmp_path / "releases").glob("*"))


def fresh_subsets(n_steps):
    """Loads tensors in the batches that the account assumes."""
    return DataLoader(TensorDataset(X), batch_sampler=FixedSizeSampler(N, B, n_steps=n_steps))


class Late(Summing):
    """Releases a sum from the third step on."""

    def training_step(self, batch, batch_idx):
        if self.global_step < 2:
            return self.net(batch[0]).sum()
        return super().training_step(batch, batch_idx)


def test_epsilon_is_shown_before_the_first_release_as_after_it(tmp_path):
    """Lightning refuses a value that is logged in two ways."""
    budget = PrivacyBudget(5.0, 1e-5, sample_size=N, n_releases=3)
    trainer(tmp_path, budget=budget, max_steps=5).fit(Late(), fresh_subsets(5))
    assert privacy(tmp_path)["releases_made"] == 3
