"""Rows of a user's own module: batch statistics, buffers, repeated records (findings 2 and 6 of the privacy review)."""

import logging

import pytest
import torch
from factories import STEPS, Mine, N, Records, loader, trainer
from torch import nn

from dpswd import FixedSizeSampler, InputError
from dpswd.accounting.ledger import Ledger
from dpswd.sampling import ReleaseLoader


class Encoded(Mine):
    """Releases what ``rows`` makes of the private batch."""

    def __init__(self, rows=None, encoder=None):
        super().__init__()
        self.encoder = encoder
        self.rows = rows or (lambda module, batch: module.encoder(batch))

    def training_step(self, batch, batch_idx):
        return self.criterion(self.rows(self, batch), self.net(torch.randn(16, 3)))


def divide_by_maximum(module, batch):
    return batch / batch.norm(dim=1).max()


def without_gradient(module, batch):
    with torch.no_grad():
        return (batch - batch.mean(0)) / batch.std(0)


def attend(module, batch):
    return (batch @ batch.T).softmax(1) @ batch


class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


@pytest.mark.parametrize(
    ("module", "match"),
    [
        (lambda: Encoded(encoder=nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))), r"BatchNorm1d \(encoder\.1\)"),
        (lambda: Encoded(encoder=Centred()), "statistic of the batch"),
        (lambda: Encoded(divide_by_maximum), "statistic of the batch"),
        (lambda: Encoded(without_gradient), "statistic of the batch"),
        (lambda: Encoded(attend), "statistic of the batch"),
    ],
    ids=["BatchNorm", "centred", "maximum", "no gradient", "attention"],
)
def test_rows_with_batch_statistics_are_refused(tmp_path, module, match):
    made = module()
    with pytest.raises(InputError, match=match):
        trainer(tmp_path).fit(made, loader())
    assert made.criterion.n_releases == Ledger.open_existing(tmp_path / "ledger.jsonl").n_releases == 0


class Remembers(nn.Module):
    """Maps rows one by one, but keeps a statistic of the batch in a buffer."""

    def __init__(self, name="largest"):
        super().__init__()
        self.name = name
        self.register_buffer(name, torch.zeros(()))

    def forward(self, x):
        getattr(self, self.name).copy_(x.max())
        return x


def test_a_buffer_that_reads_the_batch_is_refused(tmp_path):
    made = Encoded(encoder=Remembers())
    with pytest.raises(InputError, match=r"encoder\.largest"):
        trainer(tmp_path).fit(made, loader())
    assert made.criterion.n_releases == 0
    named = Encoded(encoder=Remembers())
    named.public_buffers = ("encoder.largest",)  # control: the owner states that it is public
    trainer(tmp_path / "named").fit(named, loader())
    assert named.criterion.n_releases == STEPS


@pytest.mark.filterwarnings("ignore:Found 1 module.s. in eval mode")
@pytest.mark.parametrize(
    "encoder",
    [nn.Linear(3, 3), nn.BatchNorm1d(3).eval(), nn.GroupNorm(1, 3), nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 3))],
    ids=["Linear", "BatchNorm in eval mode", "GroupNorm", "Dropout"],
)
def test_encoders_that_map_rows_one_by_one_are_accepted(tmp_path, encoder, caplog):
    made = Encoded(encoder=encoder)
    with caplog.at_level(logging.WARNING, "dpswd"):
        trainer(tmp_path).fit(made, loader())
    assert made.criterion.n_releases == STEPS
    assert "not checked" not in caplog.text


@pytest.mark.parametrize("kind", ["raises", "random", "no release"])
def test_rows_that_cannot_be_checked_are_reported(tmp_path, caplog, kind):
    noise = iter(torch.randn(1000, 1, 1))

    class Odd(Mine):
        def training_step(self, batch, batch_idx):
            probing = self.criterion.recorder._probing
            if kind == "raises" and probing:
                raise ValueError("out of range")
            if kind == "no release" and probing:
                return self.net(torch.randn(4, 3)).sum()
            return super().training_step(batch + next(noise)[0] if kind == "random" else batch, batch_idx)

    made = Odd()
    with caplog.at_level(logging.WARNING, "dpswd"):
        trainer(tmp_path).fit(made, loader())
    assert "not checked" in caplog.text
    assert made.criterion.n_releases == STEPS


# repeated records


class Repeated(Records):
    def __getitems__(self, index):
        return super().__getitems__(torch.as_tensor(index) // 4)


def test_repeated_records_are_counted_on_the_screen_only(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "dpswd"):
        trainer(tmp_path / "a").fit(Mine(), loader())
        assert not caplog.records  # control: all records differ
        data = ReleaseLoader(Repeated(), FixedSizeSampler(N, 8, n_steps=STEPS))
        trainer(tmp_path / "b").fit(Mine(), data)
    assert f"{N - N // 4} of {N} records repeat" in caplog.text
    files = [path for path in (tmp_path / "b").rglob("*") if path.is_file()]
    assert not any(f"{N - N // 4} of {N}".encode() in path.read_bytes() for path in files)
