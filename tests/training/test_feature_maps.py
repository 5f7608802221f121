"""Feature maps of the shipped modules: those that learn, mix rows or keep statistics are refused."""

import lightning as L
import numpy as np
import pytest
import torch
from factories import trainer
from torch import nn

from dpswd import InputError
from dpswd.accounting.ledger import Ledger
from dpswd.data import Digits, FeatureFile
from dpswd.generation.evaluation import DownstreamEvaluation
from dpswd.generation.features import DCT, Basis, FeatureMap, Flatten
from dpswd.generation.generators import MLPGenerator
from dpswd.generation.module import GeneratorModule
from dpswd.loss import BudgetWatch


@pytest.fixture(autouse=True)
def no_leak():
    yield
    assert BudgetWatch.running == 0


def written(directory):
    path = directory / "ledger.jsonl"
    return Ledger.open_existing(path).n_releases if path.exists() else None


SHAPE = (1, 8, 8)


def generator_module(features=None, **changes):
    generator = MLPGenerator(SHAPE, latent_dim=8, hidden=16, bounded=True)
    return GeneratorModule(generator, features or Flatten(SHAPE), **{"n_quantiles": 10, "generated": 30} | changes)


def test_a_generator_module_without_a_budget(tmp_path):
    run = L.Trainer(
        default_root_dir=tmp_path,
        max_steps=2,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    module = generator_module()
    with pytest.raises(InputError, match="Expected a PrivacyBudget among the trainer's callbacks, got none"):
        run.fit(module, datamodule=Digits())
    assert module.criterion.n_releases == 0
    assert list(tmp_path.iterdir()) == []


class Normed(Flatten):
    def __init__(self, layer):
        super().__init__(SHAPE)
        self.layer = layer

    def rows(self, centered):
        return self.layer(super().rows(centered))


class Standardises(Flatten):
    def rows(self, centered):
        rows = super().rows(centered)
        return (rows - rows.mean(0)) / (rows.std(0, correction=0) + 0.1)


class LargestNorm(Flatten):
    """Divides by the largest norm of the batch, as in the published code."""

    def rows(self, centered):
        rows = super().rows(centered)
        return rows / rows.norm(dim=1).max()


class Wrapped(FeatureMap):
    """Standardises the rows of another map."""

    def __init__(self, base):
        super().__init__(base.sample_shape)
        self.base = base

    @property
    def dim(self):
        return self.base.dim

    def forward(self, records):
        rows = self.base(records)
        return (rows - rows.mean(0)) / 8


class MixedBasis(Basis):
    def forward(self, records):
        rows = super().forward(records)
        return rows - rows.mean(0)


class BytesOrPixels(Flatten):
    """Decides from the whole batch whether entries are bytes."""

    def forward(self, records):
        return super().forward(records / 255 if records.max() > 1 else records)


class Keeps(Flatten):
    """Keeps a statistic of the batch in a buffer."""

    def __init__(self, statistic):
        super().__init__(SHAPE)
        self.statistic = statistic
        self.register_buffer("kept", torch.zeros(()))

    def forward(self, records):
        self.kept.copy_(self.statistic(self.kept, records.detach()))
        return super().forward(records)


MIXED = "Expected features that treat rows one by one, got rows that depend on the rest of the batch"
KEPT = "Expected features that keep nothing of what they read, got Keeps, whose buffers change; compute every row from"


@pytest.mark.parametrize(
    ("features", "match"),
    [
        (lambda: Normed(nn.BatchNorm1d(64)), "treat rows one by one, got BatchNorm1d in layer; use GroupNorm"),
        (lambda: Normed(nn.BatchNorm1d(64, affine=False).eval()), "treat rows one by one, got BatchNorm1d in layer"),
        (lambda: Normed(nn.Linear(64, 64)), "Expected features that are fixed beforehand, got trainable parameters"),
        (lambda: Standardises(SHAPE), MIXED),
        (lambda: LargestNorm(SHAPE), MIXED),
        (lambda: Basis(Standardises(SHAPE), 5), MIXED),
        (lambda: Wrapped(Flatten(SHAPE)), MIXED),
        (lambda: Basis(Wrapped(Flatten(SHAPE)), 5), MIXED),
        (lambda: MixedBasis(Flatten(SHAPE), 5), MIXED),
        (lambda: BytesOrPixels(SHAPE), MIXED),
        (lambda: Keeps(lambda kept, records: torch.maximum(kept, records.abs().max())), KEPT),
        (lambda: Keeps(lambda kept, records: records[0, 0, 3, 3]), KEPT),
        (lambda: Basis(Normed(nn.BatchNorm1d(64)), 5), "got BatchNorm1d in base.layer"),
    ],
    ids=[
        "BatchNorm",
        "BatchNorm in eval mode",
        "trainable",
        "standardises",
        "largest norm",
        "base mixes",
        "a wrapper with a base",
        "base wraps a base",
        "directions that mix",
        "bytes or pixels",
        "keeps a maximum",
        "keeps a record",
        "base norms",
    ],
)
def test_maps_that_learn_or_mix_rows(tmp_path, features, match):
    run = trainer(tmp_path)
    with pytest.raises(InputError, match=match):
        run.fit(generator_module(features()), datamodule=Digits())
    assert written(tmp_path) is None


def test_control_rowwise_maps_are_accepted(tmp_path):
    plain = Flatten(SHAPE)
    plain.base = DCT(SHAPE, size=4)  # a name only
    accepted = [DCT(SHAPE, size=4), Normed(nn.GroupNorm(1, 64, affine=False)), plain]
    for i, features in enumerate(accepted):
        trainer(tmp_path / str(i)).fit(generator_module(features), datamodule=Digits())
        assert written(tmp_path / str(i)) == 1


def test_real_records_for_evaluation_are_refused_where_they_are_private(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "x.npz", features=rng.normal(size=(50, 8)), labels=np.arange(50) % 2)
    run = trainer(tmp_path / "run", callbacks=[DownstreamEvaluation(20, real=True)])
    module = GeneratorModule(MLPGenerator((8,), 2, 8, 16), Flatten((8,)), n_quantiles=5)
    with pytest.raises(InputError, match="Expected real: false for features, got true: classifiers trained on private"):
        run.fit(module, datamodule=FeatureFile(str(tmp_path / "x.npz")))
    assert written(tmp_path / "run") is None
