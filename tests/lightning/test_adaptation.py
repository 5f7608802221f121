"""Adaptation by DP-SWD in Lightning: batches, releases, gradients, files and the command line."""

import json
import sys

import lightning as L
import numpy as np
import pytest
import torch
from factories import ledger_of, refused
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch import nn
from torch.utils.data import DataLoader

from dpswd import InputError, PrivacyBudget, PrivateAdapter, PrivateRecords, ReleaseLoader
from dpswd.commands.main import main
from dpswd.errors import UtilityWarning
from dpswd.features.maps import Flatten
from dpswd.lightning import AdaptationData, AdaptationModule, ClassifierFile
from dpswd.lightning.adaptation_data import SourceLoader
from dpswd.networks.adapters import ImageAdapter, VectorAdapter
from dpswd.networks.classifiers import Head
from dpswd.networks.encoders import ConvEncoder, VectorEncoder

# A dictionary of loaders has no loader for the validation step.
pytestmark = pytest.mark.filterwarnings("ignore:.*no .val_dataloader.*")

DIM = 4
N_SOURCE = 400
N_TARGET = 300
SHIFT = 3.0


def domains(seed=0, n_classes=2):
    """Draw two classes of vectors, and a target whose first entry is moved by ``SHIFT``."""
    generator = np.random.default_rng(seed)
    labels = np.arange(N_SOURCE) % n_classes
    source = generator.normal(size=(N_SOURCE, DIM))
    source[:, 0] += 4 * labels
    target = source[:N_TARGET] + np.array([SHIFT, 0, 0, 0])
    return source.astype(np.float32), labels, target.astype(np.float32)


def module(**options):
    encoder = VectorEncoder(DIM, (8,), "tanh")
    options = {
        "adapter": VectorAdapter(DIM),
        "space": Flatten((DIM,), radius=8.0),
        "batch_size": 300,
        "n_quantiles": 20,
        **options,
    }
    return AdaptationModule(encoder, Head(8, 2, hidden=0), **options)


def loaders(n_releases=1, every=200, after=0):
    source, labels, target = domains()
    records = PrivateRecords(target)
    return {
        "source": SourceLoader(torch.from_numpy(source), torch.from_numpy(labels), batch_size=64),
        "target": ReleaseLoader(
            records, batch_size=300, n_releases=n_releases, every=every, after=after
        ),
    }


def trained(directory, pl_module, data, *, steps=200, callbacks=()):
    torch.manual_seed(0)
    trainer = L.Trainer(
        max_steps=steps,
        accelerator="cpu",
        callbacks=[PrivacyBudget(10, 1e-3), *callbacks],
        default_root_dir=directory,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    if isinstance(data, L.LightningDataModule):
        trainer.fit(pl_module, datamodule=data)
    else:
        trainer.fit(pl_module, data)
    return trainer


def accuracy_on_target(pl_module):
    _, labels, target = domains()
    pl_module.eval()
    with torch.no_grad():
        predicted = pl_module.classifier(pl_module.encoder(torch.from_numpy(target))).argmax(1)
    return float((predicted.numpy() == labels[:N_TARGET]).mean())


def test_a_module_adapts_to_a_shifted_target_within_its_budget(tmp_path):
    pl_module = module(lr=2e-2, adapter_lr=1e-1)
    trained(tmp_path, pl_module, loaders())
    privacy = json.loads((tmp_path / "privacy.json").read_text())
    assert privacy["releases_made"] == 1
    assert privacy["sound"] is True
    assert privacy["epsilon"] <= 10
    shift = float(pl_module.adapter.shift[0].detach())
    assert abs(shift - SHIFT) < 1
    assert accuracy_on_target(pl_module) > 0.85


def test_control_without_alignment_the_source_alone_is_wrong_on_the_target(tmp_path):
    pl_module = module(lr=2e-2, adapter_lr=1e-1, alignment=0.0)
    trained(tmp_path, pl_module, loaders())
    assert accuracy_on_target(pl_module) < 0.75


@pytest.mark.parametrize("mode", ["min_size", "max_size_cycle"])
def test_a_combined_loader_has_the_plan_of_its_release_loader(tmp_path, mode):
    pl_module = module()
    combined = CombinedLoader(loaders(n_releases=3, every=2), mode)
    trained(tmp_path, pl_module, combined, steps=6)
    assert json.loads((tmp_path / "privacy.json").read_text())["releases_made"] == 3


def test_a_source_that_is_longer_than_the_plan_makes_no_further_release(tmp_path):
    """Lightning starts the shorter loader again, and the budget ends the run there."""
    data = loaders(n_releases=2, every=1)
    trained(tmp_path, module(), data, steps=50)
    assert json.loads((tmp_path / "privacy.json").read_text())["releases_made"] == 2


def test_two_loaders_of_private_records_are_refused(tmp_path):
    data = loaders()
    data["other"] = data["target"]
    with pytest.raises(InputError, match="one loader of private batches"):
        trained(tmp_path, module(), data)
    assert not (tmp_path / "ledger.jsonl").exists()


def test_loaders_without_private_batches_are_refused(tmp_path):
    data = {"source": loaders()["source"], "target": DataLoader(torch.zeros(600, DIM))}
    words = r"source=SourceLoader, target=DataLoader; pass ReleaseLoader\(PrivateRecords\(X\)"
    with pytest.raises(InputError, match=words):
        trained(tmp_path, module(), data)
    assert not (tmp_path / "ledger.jsonl").exists()


def test_loaders_with_each_other_s_names_are_refused_before_a_release(tmp_path):
    data = loaders()
    data = {"source": data["target"], "target": data["source"]}
    with pytest.raises(InputError, match=r"source=SourceLoader.*got batches of source: Private"):
        trained(tmp_path, module(), data)
    assert json.loads((tmp_path / "privacy.json").read_text())["releases_made"] == 0


def test_a_loader_that_is_no_dictionary_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"dictionary of loaders.*got batches of PrivateBatch"):
        trained(tmp_path, module(), loaders()["target"])


def test_a_source_that_is_private_is_refused():
    records = PrivateRecords(torch.zeros(8, DIM))
    with pytest.raises(InputError, match=r"public source, got PrivateRecords.*as the target"):
        SourceLoader(records, torch.zeros(8).long(), batch_size=4)


def test_features_are_compared_and_the_target_has_no_gradient(tmp_path):
    """The released projections are constants; the source branch alone moves the encoder."""
    pl_module = module(align="features", adapter=None, space=None, batch_size=300)
    trained(tmp_path, pl_module, loaders(n_releases=2, every=3, after=4), steps=10)
    assert pl_module.released is not None
    assert not pl_module.released.values.requires_grad
    assert float(pl_module.features.radius) != 1
    assert json.loads((tmp_path / "privacy.json").read_text())["releases_made"] == 2


def test_the_first_steps_train_on_the_source_alone():
    batches = list(loaders(n_releases=2, every=3, after=4)["target"])
    assert [len(batch) > 0 for batch in batches] == [False] * 4 + [True, False, False] * 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"align": "outputs"}, "align"),
        ({"align": "features"}, "no space"),
        ({"alignment": -1.0}, "alignment"),
        ({"n_quantiles": 0}, "n_quantiles"),
        ({"n_projections": 0}, "n_projections"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        module(**options)


def test_an_encoder_without_dim_is_refused_before_a_release(tmp_path):
    pl_module = AdaptationModule(nn.Linear(DIM, 3), Head(3, 2), align="features", batch_size=320)
    with pytest.raises(InputError, match="attribute dim"):
        trained(tmp_path, pl_module, loaders())
    assert not (tmp_path / "ledger.jsonl").exists()


def test_parts_that_are_left_out_need_a_data_module(tmp_path):
    with pytest.raises(InputError, match="adapter and space"):
        trained(tmp_path, module(adapter=None, space=None), loaders())


@pytest.mark.parametrize(
    ("encoder", "head", "words"),
    [
        (VectorEncoder(DIM + 1, (8,)), Head(8, 2), "of shape"),
        (VectorEncoder(DIM, (8,)), Head(8, 5), "n_classes=2"),
    ],
)
def test_networks_of_other_records_are_refused_before_a_release(tmp_path, encoder, head, words):
    write_archives(tmp_path)
    pl_module = AdaptationModule(encoder, head, n_quantiles=20)
    with pytest.raises(InputError, match=words):
        trained(tmp_path / "run", pl_module, data_module(tmp_path))
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


class WrongDim(VectorEncoder):
    """An encoder whose ``dim`` is not that of its features."""

    def __init__(self):
        super().__init__(DIM, (8,))
        self.dim = 9


class HalfOfABatch(VectorEncoder):
    """An encoder that returns half of its batch."""

    def __init__(self):
        super().__init__(DIM, (8,))

    def forward(self, records):
        return super().forward(records)[::2]


MISFITS = pytest.mark.parametrize(
    ("encoder", "head", "align", "words"),
    [
        (
            VectorEncoder(DIM, (8,)),
            Head(7, 2),
            "input",
            "features of shape .8,.*RuntimeError.*input size",
        ),
        (VectorEncoder(DIM, (8,)), nn.Linear(8, 1), "input", "scores from Linear"),
        (WrongDim(), Head(8, 2), "features", "features from WrongDim"),
        (HalfOfABatch(), Head(8, 2), "features", "features from HalfOfABatch, of a batch of"),
    ],
)


@MISFITS
def test_networks_that_do_not_fit_are_refused_before_a_release(
    tmp_path, encoder, head, align, words
):
    write_archives(tmp_path)
    pl_module = AdaptationModule(encoder, head, align=align, n_quantiles=20)
    with pytest.raises(InputError, match=f"{words}.*Nothing was released"):
        trained(tmp_path / "run", pl_module, data_module(tmp_path))
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


@MISFITS
def test_plain_loaders_are_tried_at_the_first_release(tmp_path, encoder, head, align, words):
    options = {"align": align, "batch_size": 300, "n_quantiles": 20}
    if align == "input":
        options |= {"adapter": VectorAdapter(DIM), "space": Flatten((DIM,), radius=8.0)}
    pl_module = AdaptationModule(encoder, head, **options)
    with pytest.raises(InputError, match=f"{words}.*Nothing was released"):
        trained(tmp_path, pl_module, loaders())
    assert pl_module.criterion.n_releases == 0
    assert ledger_of(tmp_path).n_releases == 0


# The data module


def write_archives(folder):
    source, labels, target = domains()
    np.savez(folder / "source.npz", data=source, targets=labels)
    np.savez(folder / "target.npz", data=target)


def data_module(folder, **options):
    return AdaptationData(str(folder / "source.npz"), str(folder / "target.npz"), **options)


def test_the_data_module_keeps_a_tenth_of_the_source(tmp_path):
    write_archives(tmp_path)
    data = data_module(tmp_path)
    assert data.sample_shape == (DIM,)
    assert len(data.source_records) == 360
    assert sum(len(records) for records, _ in data.val_dataloader()) == 40
    assert len(data.records) == N_TARGET
    assert data.records.n_classes == 0


@pytest.mark.parametrize("name", ["n_source", "n_target", "release_size"])
@pytest.mark.parametrize("value", [0, -5, True, 64.0])
def test_numbers_of_records_are_checked_when_they_are_stated(tmp_path, name, value):
    with pytest.raises(InputError, match=f"Expected {name} .*, got {name}={value}"):
        data_module(tmp_path, **{name: value})


def test_a_source_needs_a_record_besides_the_one_for_validation(tmp_path):
    with pytest.raises(InputError, match="n_source >= 2"):
        data_module(tmp_path, n_source=1)
    write_archives(tmp_path)
    data = data_module(tmp_path, n_source=2)
    assert len(data.source_records) == 1


@pytest.mark.parametrize(("release_size", "batch_size"), [(110, 100), (100, 100), (None, 300)])
def test_a_release_has_as_many_records_as_the_blocks_hold(tmp_path, release_size, batch_size):
    write_archives(tmp_path)
    pl_module = module(batch_size=None)  # of 20 blocks
    data = data_module(tmp_path, release_size=release_size)
    trained(tmp_path / "run", pl_module, data, steps=1)
    assert pl_module.criterion.mechanism.batch_size == batch_size
    assert pl_module.criterion.n_releases == 1


@pytest.mark.parametrize(
    ("release_size", "options", "words"),
    [
        (100, {"batch_size": 200}, "data.release_size=200, .*got 100; leave it out"),
        (301, {"batch_size": None}, "data.release_size <= 300, .*got 301"),
        (19, {"batch_size": None}, "n_quantiles <= 19, .*got 20"),
    ],
)
def test_a_release_size_that_does_not_fit_is_refused_before_a_release(
    tmp_path, release_size, options, words
):
    write_archives(tmp_path)
    run = tmp_path / "run"
    with pytest.raises(InputError, match=words):
        trained(run, module(**options), data_module(tmp_path, release_size=release_size), steps=1)
    assert not run.exists()


def test_the_classifier_of_a_run_is_read_by_the_estimator_and_the_command(tmp_path, capfd):
    write_archives(tmp_path)
    data = data_module(tmp_path)
    pl_module = module(adapter=None, space=None, batch_size=None, lr=2e-2, adapter_lr=1e-1)
    trained(tmp_path / "run", pl_module, data, callbacks=[ClassifierFile()])
    path = tmp_path / "run" / "classifier.pt"
    adapter = PrivateAdapter.load(path)
    _, labels, target = domains()
    assert (adapter.predict(target) == labels[:N_TARGET]).mean() > 0.9
    assert adapter.guarantee_.sound
    predictions = tmp_path / "p.npz"
    assert (
        main(["predict", str(path), str(tmp_path / "target.npz"), "--out", str(predictions)]) == 0
    )
    assert "Trained on 360 source records" in capfd.readouterr().out
    with np.load(predictions) as arrays:
        np.testing.assert_array_equal(arrays["predictions"], adapter.predict(target))


class OwnEncoder(VectorEncoder):
    """An encoder of a class that the library does not know."""


@pytest.mark.parametrize(
    ("encoder", "head", "name"),
    [
        (OwnEncoder(DIM, (8,)), Head(8, 2), "OwnEncoder"),
        (VectorEncoder(DIM, (8,)), nn.Linear(8, 2), "Linear"),
    ],
)
def test_a_file_of_own_networks_is_refused_before_records_are_read(tmp_path, encoder, head, name):
    pl_module = AdaptationModule(encoder, head, n_quantiles=20)
    data = data_module(tmp_path)  # whose files do not exist
    words = f"got {name}.*library only; leave it out.*checkpoints/last.ckpt"
    with pytest.raises(InputError, match=words):
        trained(tmp_path / "run", pl_module, data, callbacks=[ClassifierFile()])


def test_images_get_the_map_of_images_and_a_space_of_low_frequencies(tmp_path):
    generator = np.random.default_rng(0)
    images = generator.random((60, 16, 16)).astype(np.float32)
    np.savez(tmp_path / "source.npz", data=images, targets=np.arange(60) % 3)
    np.savez(tmp_path / "target.npz", data=images[:40])
    data = data_module(tmp_path, augment={"shift": 1.0})
    encoder = ConvEncoder((1, 16, 16))
    pl_module = AdaptationModule(encoder, Head(encoder.dim, 3), n_quantiles=16)
    trained(tmp_path / "run", pl_module, data, steps=2, callbacks=[ClassifierFile()])
    assert pl_module.space.dim == 100
    assert pl_module.criterion.mechanism.batch_size == 32
    assert PrivateAdapter.load(tmp_path / "run" / "classifier.pt").predict(images).shape == (60,)


# Files of features


def test_files_of_features_are_read_with_the_class_last(tmp_path):
    from scipy.io import savemat

    source, labels, target = domains()
    lines = [
        ",".join([*map(str, row), f"class{label}"])
        for row, label in zip(source, labels, strict=True)
    ]
    (tmp_path / "source.csv").write_text("\n".join(lines) + "\n")
    savemat(tmp_path / "target.mat", {"fts": target, "labels": labels[:N_TARGET]})
    data = AdaptationData(str(tmp_path / "source.csv"), str(tmp_path / "target.mat"), features=True)
    assert data.class_names.tolist() == ["class0", "class1"]
    assert data.sample_shape == (DIM,)
    assert len(data.records) == N_TARGET


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1,2,a\n1,zebra,b\n", "line 2"),
        ("1,2,a\n1,b\n", "Expected 3 entries in line 2"),
        ("1,2,a\n\n1,2,b\n", "line 2"),
        ("", "got none"),
    ],
)
def test_lines_of_features_that_do_not_fit_are_named_without_their_entries(tmp_path, text, words):
    (tmp_path / "source.csv").write_text(text)
    data = AdaptationData(str(tmp_path / "source.csv"), "digits", features=True)
    with pytest.raises(InputError, match=words) as error:
        data.sample_shape  # noqa: B018  # reads the source
    assert "zebra" not in str(error.value)


# The command line


def test_fit_adapts_and_writes_a_classifier(tmp_path, capfd, monkeypatch):
    write_archives(tmp_path)
    monkeypatch.chdir(tmp_path)
    words = [
        "fit",
        "--config",
        "office31_adaptation",
        "--data.source",
        "source.npz",
        "--data.target",
        "target.npz",
        "--model.encoder.input_dim",
        str(DIM),
        "--model.classifier.n_classes",
        "2",
        "--trainer.max_steps",
        "5",
    ]
    assert main(words) == 0
    capfd.readouterr()
    assert PrivateAdapter.load("runs/office31_adaptation/classifier.pt").guarantee_.sound


def test_a_target_of_another_shape_is_refused_before_anything_is_written(
    tmp_path, capfd, monkeypatch
):
    write_archives(tmp_path)
    np.savez(tmp_path / "target.npz", data=np.zeros((50, DIM + 1), np.float32))
    monkeypatch.chdir(tmp_path)
    message = refused(
        capfd,
        "fit",
        "--config",
        "office31_adaptation",
        "--data.source",
        "source.npz",
        "--data.target",
        "target.npz",
        "--model.encoder.input_dim",
        str(DIM),
        "--model.classifier.n_classes",
        "2",
    )
    assert "as in the source" in message
    assert not (tmp_path / "runs").exists()


OWN_MODULE = """
from torch import nn

class Encoder(nn.Sequential):
    def __init__(self, dim: int = 8):
        super().__init__(nn.Flatten(), nn.Linear(64, dim), nn.ReLU())
        self.dim = dim
"""

OWN_CONFIG = """
seed_everything: 0
trainer: {max_steps: 3, default_root_dir: run, accelerator: cpu, num_sanity_val_steps: 0}
privacy: {target_epsilon: 10.0, target_delta: 1.0e-4}
model:
  class_path: dpswd.lightning.AdaptationModule
  init_args:
    encoder: {class_path: an_own_net.Encoder}
    classifier: {class_path: torch.nn.Linear, init_args: {in_features: 8, out_features: 10}}
data:
  class_path: dpswd.lightning.AdaptationData
  init_args: {source: digits, target: digits}
"""


def test_a_config_names_a_class_of_the_working_folder(tmp_path, capfd, monkeypatch):
    (tmp_path / "an_own_net.py").write_text(OWN_MODULE)
    (tmp_path / "my.yaml").write_text(OWN_CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    assert main(["fit", "--config", "my.yaml"]) == 0
    assert (tmp_path / "run" / "privacy.json").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classifier": nn.Linear(8, 1)}, r"\(n, C\) with C > 1, .* got \(64, 1\)"),
        ({"space": Flatten((DIM + 1,), radius=8.0)}, "source records of shape .* one shape"),
    ],
    ids=["too few outputs", "source of another shape"],
)
def test_parts_that_do_not_fit_loaders_are_named_before_a_release(tmp_path, options, message):
    parts = {"classifier": Head(8, 2, hidden=0), "space": Flatten((DIM,), radius=8.0), **options}
    pl_module = AdaptationModule(
        VectorEncoder(DIM, (8,), "tanh"),
        adapter=VectorAdapter(DIM),
        batch_size=300,
        n_quantiles=20,
        **parts,
    )
    with pytest.raises(InputError, match=message) as refusal:
        trained(tmp_path, pl_module, loaders(), steps=2)
    assert str(refusal.value).endswith("Nothing was released.")
    assert ".." not in str(refusal.value)


def test_classes_of_a_source_that_count_from_one_are_named_with_the_cure(tmp_path):
    data = loaders()
    data["source"].classes += 1
    with pytest.raises(InputError, match=r"if the classes are 1 to 2, pass y - 1 .* otherwise"):
        trained(tmp_path, module(), data, steps=2)


def test_a_trainer_without_a_budget_is_refused_in_words_of_lightning(tmp_path):
    options = {"max_steps": 1, "logger": False, "accelerator": "cpu", "enable_progress_bar": False}
    without = L.Trainer(default_root_dir=tmp_path, enable_checkpointing=False, **options)
    with pytest.raises(InputError, match="a PrivacyBudget among the callbacks"):
        without.fit(module(), loaders())


def test_a_run_is_resumed_with_the_same_align_only(tmp_path):
    first = trained(tmp_path, module(), loaders(every=4), steps=2)
    first.save_checkpoint(tmp_path / "x.ckpt", weights_only=False)
    other = module(align="features", space=None, adapter=None)
    resumed = L.Trainer(
        max_steps=4,
        accelerator="cpu",
        callbacks=[PrivacyBudget(10, 1e-3)],
        default_root_dir=tmp_path,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with pytest.raises(InputError, match="align='input' as in the checkpoint, got 'features'"):
        resumed.fit(other, loaders(every=4), ckpt_path=tmp_path / "x.ckpt", weights_only=False)


def image_loaders(white=1.0, side=8):
    """Grey noise as images; the pixels of the source go up to ``white``."""
    generator = torch.Generator().manual_seed(0)
    source = white * torch.rand(64, 1, 8, 8, generator=generator)
    target = torch.rand(40, 1, side, side, generator=generator)
    return {
        "source": SourceLoader(source, torch.arange(64) % 2, batch_size=32),
        "target": ReleaseLoader(PrivateRecords(target), batch_size=40, n_releases=1, every=2),
    }


def image_module():
    parts = {"adapter": ImageAdapter(), "space": Flatten((1, 8, 8), radius=5.0)}
    encoder = nn.Flatten()
    return AdaptationModule(encoder, nn.Linear(64, 2), batch_size=40, n_quantiles=20, **parts)


def test_source_images_of_other_units_are_named(tmp_path):
    with pytest.warns(UtilityWarning, match="source images with pixels in .*public constants"):
        trained(tmp_path / "run", image_module(), image_loaders(255.0), steps=2)
    trained(tmp_path / "control", image_module(), image_loaders(), steps=2)


def test_a_target_of_another_size_is_named_in_the_words_of_a_reader(tmp_path):
    with pytest.raises(InputError, match=r"as Flatten maps, got \(1, 6, 6\).*size="):
        trained(tmp_path / "run", image_module(), image_loaders(side=6), steps=2)
    assert ledger_of(tmp_path / "run").n_releases == 0


@pytest.mark.parametrize("classes", [torch.zeros(6), torch.zeros(6, 2, dtype=torch.long)])
def test_classes_of_a_source_are_whole_numbers(classes):
    with pytest.raises(InputError, match="classes of the source as whole numbers"):
        SourceLoader(torch.rand(6, 3), classes, batch_size=2)


def test_a_release_fills_whole_blocks():
    with pytest.raises(InputError, match="a multiple of n_quantiles=20, got 290; pass 280"):
        module(batch_size=290)
