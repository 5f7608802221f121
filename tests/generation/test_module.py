"""The generator module on embedded digits: one shot and per step, label embeddings, resumption."""

import json

import lightning as L
import numpy as np
import pytest
import torch

from dpswd import InputError
from dpswd.accounting.ledger import Ledger
from dpswd.data import Digits, FeatureFile
from dpswd.generation.evaluation import DownstreamEvaluation
from dpswd.generation.export import SampleGrid, SyntheticWriter
from dpswd.generation.features import Flatten
from dpswd.generation.generators import MLPGenerator
from dpswd.generation.module import GeneratorModule
from dpswd.training.callback import PrivacyBudget


def module(n_classes=10, **changes):
    shape = (1, 8, 8)
    generator = MLPGenerator(shape, n_classes=n_classes, latent_dim=8, hidden=32, bounded=True)
    options = {"n_quantiles": 10, "generated": 30} | changes
    return GeneratorModule(generator, Flatten(shape, center=0.3, radius=3.2), **options)


def trainer(directory, steps=4, callbacks=(), **changes):
    return L.Trainer(
        default_root_dir=directory,
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        callbacks=[PrivacyBudget(10.0, 1e-5), *callbacks],
        **{"enable_checkpointing": False} | changes,
    )


@pytest.mark.parametrize(
    ("options", "batch_size", "releases"),
    [
        ({}, None, 1),
        ({"release_every": 1}, 200, 4),
        ({"release_every": 3}, 200, 2),
        ({"release_every": 1, "statistic": "rows", "kind": "iid", "n_projections": 20}, 50, 4),
        ({"labels": "concat"}, None, 1),
        ({"labels": "none"}, None, 1),
    ],
    ids=["one shot", "per step", "some", "rows", "concat", "none"],
)
def test_training(tmp_path, options, batch_size, releases):
    made, data = module(**options), Digits(batch_size=batch_size)
    run = trainer(tmp_path)
    before = [parameter.clone() for parameter in made.generator.parameters()]
    run.fit(made, datamodule=data)
    assert run.global_step == 4
    assert made.criterion.n_releases == Ledger.open_existing(tmp_path / "ledger.jsonl").n_releases == releases
    facts = json.loads((tmp_path / "privacy.json").read_text())
    assert 9.9 < facts["epsilon"] <= 10
    assert facts["sample_size"] == 1438
    mechanism = made.criterion.mechanism
    assert mechanism.n_classes == (10 if options.get("labels", "blocks") == "blocks" else None)
    assert mechanism.dim == 64 + 10 * (options.get("labels") == "concat")
    assert all(not torch.equal(a, b) for a, b in zip(before, made.generator.parameters(), strict=True))


def test_appended_classes_are_clipped_with_the_row(tmp_path):
    made = module(labels="concat", label_scale=0.25)
    rows = made.rows(torch.full((2, 1, 8, 8), 0.3), torch.tensor([1, 3]))
    assert rows[:, :64].abs().max() < 1e-6
    assert rows[:, 64:].tolist() == [[0.25 * (i == c) for i in range(10)] for c in (1, 3)]


def test_nothing_of_the_records_is_in_a_checkpoint(tmp_path):
    made = module()
    run = trainer(tmp_path)
    run.fit(made, datamodule=Digits())
    run.save_checkpoint(tmp_path / "last.ckpt")
    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=False)
    assert all(name.startswith("generator.") for name in checkpoint["state_dict"])
    sizes = {tuple(value.shape) for value in checkpoint["released"].values() if hasattr(value, "shape")}
    assert sizes == {(10, 10, 64), (64, 64)}  # classes x blocks x directions, and the directions


def test_pictures_and_synthetic_records(tmp_path, capsys):
    made, data = module(), Digits(n_synthetic=25)
    callbacks = [SampleGrid(3, every_n_steps=2), SyntheticWriter(), DownstreamEvaluation(60, real=True)]
    run = trainer(tmp_path, callbacks=callbacks)
    run.fit(made, datamodule=data)
    run.predict(made, datamodule=data, return_predictions=False)
    assert "25 synthetic records" in capsys.readouterr().out
    from PIL import Image

    with Image.open(tmp_path / "samples.png") as image:
        assert image.size[0] < image.size[1]  # three columns, ten rows
    with np.load(tmp_path / "synthetic.npz", allow_pickle=False) as made:
        assert made["data"].shape == (25, 8, 8)
        assert made["data"].dtype == np.uint8
        assert made["targets"].tolist() == [i % 10 for i in range(25)]
    rows = json.loads((tmp_path / "evaluation.json").read_text())["rows"]
    assert {(row["train"], row["classifier"]) for row in rows} == {
        (source, name) for source in ("synthetic", "real") for name in ("logreg", "mlp")
    }
    assert all(0 <= row["accuracy"] <= 100 and row["n_test"] == 359 and row["n_train"] == 60 for row in rows)
    assert not list(tmp_path.glob("*.part*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"release_every": -1}, r"Expected release_every >= 0, got release_every=-1\."),
        ({"generated": 0}, r"Expected generated >= 1, got generated=0\."),
        ({"lr": 0.0}, "Expected lr to be finite and above 0, got lr=0"),
        ({"label_scale": -1.0}, "Expected label_scale to be finite and above 0"),
        ({"n_classes": 0}, "Expected a generator with n_classes for private labels, got 0; or set labels: none"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(InputError, match=message):
        module(**options)


def test_a_data_module_of_another_kind(tmp_path, tree):
    class Other(L.LightningDataModule):
        def train_dataloader(self):
            return []

    with pytest.raises(InputError, match=r"Expected a data module with release_size .*, got none; pass --data"):
        trainer(tmp_path).fit(module(), datamodule=Other())
    assert tree(tmp_path) == {}


class Centred(Flatten):
    def rows(self, centered):
        return super().rows(centered - centered.mean(0))


def test_unsound_runs_are_refused_before_a_release(tmp_path):
    """Features that mix rows, no budget, and real private records for an evaluation."""
    np.savez(tmp_path / "x.npz", features=np.random.default_rng(0).normal(size=(50, 8)), labels=np.arange(50) % 2)
    vectors = GeneratorModule(MLPGenerator((8,), 2, 8, 16), Flatten((8,)), n_quantiles=5)
    mixed, bare, real = trainer(tmp_path / "a"), trainer(tmp_path / "b"), trainer(tmp_path / "c")
    bare.callbacks = [callback for callback in bare.callbacks if not isinstance(callback, PrivacyBudget)]
    real.callbacks.append(DownstreamEvaluation(20, real=True))
    centred = GeneratorModule(MLPGenerator((1, 8, 8), latent_dim=8, hidden=8), Centred((1, 8, 8)), n_quantiles=10)
    for run, made, data, match in (
        (mixed, centred, Digits(), "depend on the rest of the batch"),
        (bare, module(), Digits(), "Expected a PrivacyBudget"),
        (real, vectors, FeatureFile(str(tmp_path / "x.npz")), "classifiers trained on private"),
    ):
        with pytest.raises(InputError, match=match):
            run.fit(made, datamodule=data)
        assert getattr(made.criterion, "n_releases", 0) == 0
        assert not list(tmp_path.rglob("ledger.jsonl"))
