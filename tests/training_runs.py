"""A user's own module, its records and its trainer, for the tests of the budget callback."""

import json

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from dpswd import DPSlicedWassersteinLoss, FixedSizeSampler, PrivacyAccountant, ProjectionMechanism
from dpswd.loss import Release
from dpswd.sampling import ReleaseLoader
from dpswd.training.callback import PrivacyBudget

N, B, STEPS = 40, 8, 6
MECHANISM = ProjectionMechanism(3, 6, 1.0, B, kind="orthogonal")


class Records(torch.utils.data.Dataset):
    """Forty private rows, batched by index tensor."""

    def __len__(self):
        return N

    def __getitems__(self, index):
        rows = torch.randn(N, 3, generator=torch.Generator().manual_seed(0))
        return rows[index]


class Mine(L.LightningModule):
    """A user's own module; ``fail_at`` crashes a step after its release."""

    def __init__(self, mechanism=MECHANISM, fail_at=None):
        super().__init__()
        self.net, self.fail_at, self.released = torch.nn.Linear(3, 3), fail_at, None
        self.criterion = DPSlicedWassersteinLoss(mechanism)

    def training_step(self, batch, batch_idx):
        if len(batch):
            self.released = self.criterion.release(batch)
        if self.global_step == self.fail_at:
            raise RuntimeError("crash")
        return self.criterion.distance(self.released, self.net(torch.randn(16, 3)))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)

    def on_save_checkpoint(self, checkpoint):
        if self.released is not None:
            checkpoint["released"] = self.released.state_dict()

    def on_load_checkpoint(self, checkpoint):
        self.released = Release.from_state_dict(checkpoint["released"])


def loader(steps=STEPS, every=1, **changes):
    return ReleaseLoader(Records(), FixedSizeSampler(N, B, n_steps=steps, every=every, **changes))


def trainer(directory, *, steps=STEPS, epsilon=5.0, callbacks=(), **changes):
    budget = PrivacyBudget(epsilon, 1e-5)
    options = {"max_steps": steps, "accelerator": "cpu", "logger": False, "log_every_n_steps": 1} | changes
    made = L.Trainer(
        default_root_dir=directory,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[budget, ModelCheckpoint(directory / "ckpt", every_n_train_steps=1, save_top_k=-1), *callbacks],
        **options,
    )
    made.budget = budget
    return made


def privacy(directory):
    return json.loads((directory / "privacy.json").read_text())


def account(groups):
    made = PrivacyAccountant("pld")
    for mechanism, size, count in groups:
        made.step(mechanism, sample_size=size, n_releases=count)
    return made
