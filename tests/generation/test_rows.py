"""Rows at a release: every one by itself even where a map passes the probe, and nothing that is kept."""

from types import SimpleNamespace

import pytest
import torch
from factories import privacy, trainer
from torch import nn

from dpswd import DPSlicedWassersteinLoss
from dpswd.data import Records
from dpswd.data.base import PrivateData
from dpswd.generation.features import DCT, Basis, Flatten, check_rowwise
from dpswd.generation.generators import MLPGenerator
from dpswd.generation.mixture_module import MixtureModule
from dpswd.generation.module import GeneratorModule
from dpswd.generation.rows import known_rowwise, private_rows, rows_in_parts
from dpswd.queries import ClassMeans

N, D = 40, 6
RECORDS = torch.rand(N, D, generator=torch.Generator().manual_seed(0))
FAR = RECORDS.clone()
FAR[7, 2] = 5e4  # beyond what the probe tries


class Sly(Flatten):
    """Mixes rows, and keeps a maximum in a buffer and in an attribute, but only beyond 1e4: no probe finds it."""

    def __init__(self):
        super().__init__((D,))
        self.register_buffer("top", torch.ones(()))
        self.seen = 1.0

    def forward(self, records):
        if float(records.detach().max()) > 1e4:
            self.top.copy_(records.max().detach())
            self.seen = float(self.top)
        return records / self.top / self.seen


class Fixed(Flatten):
    """A map of a user's own that does nothing of the kind."""

    def rows(self, centered):
        return centered.tanh()


def others_moved(map_of):
    moved = (map_of(FAR) - map_of(RECORDS)).abs().amax(1) > 1e-6
    return int(moved.sum()) - int(moved[7])


def test_private_rows_replaced_record():
    sly = Sly()
    check_rowwise(sly)
    assert others_moved(lambda records: private_rows(sly, records)) == 0
    assert (float(sly.top), sly.seen) == (1.0, 1.0)
    assert others_moved(lambda records: Sly()(records)) == N - 1  # control: as a batch
    control = Sly()
    control(FAR)
    assert float(control.top) == control.seen == 5e4


def test_private_rows_of_own_map():
    for features in (Fixed((D,)), Basis(Fixed((D,)), 3)):
        torch.testing.assert_close(private_rows(features, RECORDS), features(RECORDS), rtol=0, atol=1e-6)
        assert not private_rows(features, RECORDS.clone().requires_grad_()).requires_grad


def test_known_rowwise():
    ours = [Flatten((D,)), DCT((1, 8, 8), size=4), Basis(Flatten((D,)), 3)]
    assert all(map(known_rowwise, ours))
    theirs = [Fixed((D,)), Basis(Fixed((D,)), 3), nn.Identity()]
    for change in (
        lambda features: features.register_forward_hook(lambda module, given, rows: rows - rows.mean(0)),
        lambda features: features.register_forward_pre_hook(lambda module, given: given[0] / given[0].max()),
        lambda features: setattr(features, "rows", lambda centered: centered - centered.mean(0)),
        lambda features: features.add_module("more", nn.BatchNorm1d(D)),
    ):
        theirs.append(Flatten((D,)))
        change(theirs[-1])
    assert not any(map(known_rowwise, theirs))


def test_rows_in_parts_replaced_record():
    labels = torch.zeros(N, dtype=torch.int64)

    def queried(records):
        return torch.cat([rows for rows, _ in rows_in_parts(Sly(), records, labels)])

    def mixture(records):
        run = SimpleNamespace(datamodule=SimpleNamespace(private=Records(records, labels)))
        parts = SimpleNamespace(
            trainer=run, features=Basis(Sly(), D), generator=SimpleNamespace(n_classes=1), device="cpu"
        )
        parts._parts = lambda *arguments: MixtureModule._parts(parts, *arguments)
        return torch.cat([rows for rows, _ in MixtureModule._rows(parts)])

    assert others_moved(queried) == others_moved(mixture) == 0


class Far(PrivateData):
    def __init__(self, values):
        super().__init__()
        self.values = values

    def load(self):
        return Records(self.values, torch.arange(N) % 2), None


@pytest.mark.parametrize("nested", [False, True])
def test_private_rows_of_a_run(tmp_path, monkeypatch, nested):
    released = []

    def run(values, name):
        features = Basis(Sly(), D) if nested else Sly()
        made = GeneratorModule(MLPGenerator((D,), 2, 4, 8), features, n_quantiles=10, generated=20)
        original, seen = DPSlicedWassersteinLoss.release, []

        def record(loss, rows, labels):
            seen.append(rows)
            return original(loss, rows, labels)

        monkeypatch.setattr(DPSlicedWassersteinLoss, "release", record)
        trainer(tmp_path / name, steps=2, callbacks=[]).fit(made, datamodule=Far(values))
        monkeypatch.undo()
        released.append(seen[-1])  # earlier ones are of the row probe of PrivacyBudget
        sly = features.base if nested else features
        assert (float(sly.top), sly.seen) == (1.0, 1.0)
        assert privacy(tmp_path / name)["sound"] is True

    run(FAR, "far")
    run(RECORDS, "near")
    far, near = (rows.sort(dim=0).values for rows in released)  # a release takes records in an order of its own
    assert released[0].shape == (N, D)
    assert all(torch.isin(near[:, i], far[:, i]).sum() >= N - 1 for i in range(D))


def test_rows_in_parts_equals_whole():
    records = torch.randint(0, 256, (20_000, 4), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    labels = torch.arange(20_000) % 3
    flat = torch.nn.Identity()
    assert len(list(rows_in_parts(flat, records, labels))) == 3
    whole = ClassMeans(3, 4, sigma=1.0, noise_seed=0).release([(records.float() / 255, labels)])
    parts = ClassMeans(3, 4, sigma=1.0, noise_seed=0).release(rows_in_parts(flat, records, labels))
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-3)  # the grid of released values


def test_private_rows_overflow():
    """An error would tell neighbours apart: float32 holds 3e38 but not its sums and multiples."""
    extreme = RECORDS.clone()
    extreme[7] = torch.finfo(torch.float32).max
    features = Basis(Flatten((D,)), D)
    features.scale.fill_(3.0)
    assert not torch.isfinite(features(extreme)[7]).all()  # the case that is tested
    rows = private_rows(features, extreme)
    assert torch.equal(rows[7], torch.zeros(D))
    rest = torch.arange(N) != 7
    assert torch.equal(rows[rest], private_rows(features, RECORDS)[rest])
