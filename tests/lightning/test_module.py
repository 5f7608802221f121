"""The two modules on embedded digits: releases during the training or before it."""

import copy
import re

import lightning as L
import numpy as np
import pytest
import torch
from factories import checkpoint_at, ledger_of, privacy, trainer
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpswd import InputError, PrivacyBudget, PrivateRecords, ReleaseLoader
from dpswd.errors import UtilityWarning
from dpswd.features.frequencies import DCT, Frequencies
from dpswd.features.maps import Flatten
from dpswd.files.generators import read_generator
from dpswd.lightning.callbacks import GeneratorFile, SampleGrid
from dpswd.lightning.data import PrivateDataModule
from dpswd.lightning.module import GeneratorModule, MomentModule, RowsWithClasses
from dpswd.networks.generator import Generator, draw
from dpswd.networks.image_generators import ConvGenerator, ShuffleGenerator
from dpswd.networks.principal_generator import PrincipalGenerator
from dpswd.report import write_report

SHAPE = (1, 8, 8)


def generator_module(n_classes=10, **changes):
    generator = ConvGenerator(SHAPE, n_classes=n_classes, latent_dim=8, hidden=32)
    features = Flatten(SHAPE, centre=0.3, radius=3.2)
    options = {"n_quantiles": 10, "generated": 30, "batch_size": 200} | changes
    return GeneratorModule(generator, features, **options)


def moment_module(batch_size=40):
    generator = ShuffleGenerator(SHAPE, hidden=16, width=8, jitter={"shift": 0.3})
    return MomentModule(generator, batch_size=batch_size)


def fit(directory, module, *, data=None, every=1, max_steps=4):
    """Trains a module on the digits, unless there are other data."""
    data = data or PrivateDataModule("digits", every=every)
    options = {"max_steps": max_steps, "enable_checkpointing": False}
    trainer(directory, **options).fit(module, datamodule=data)


# GeneratorModule


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"statistic": "rows", "kind": "iid", "n_projections": 20},
        {"kind": "structured"},
        {"labels": "concat"},
        {"labels": "none"},
    ],
    ids=["blocks", "rows", "structured", "concat", "none"],
)
def test_training_moves_every_weight(tmp_path, options):
    module = generator_module(**options)
    before = [parameter.clone() for parameter in module.generator.parameters()]
    fit(tmp_path, module)
    after = list(module.generator.parameters())
    assert not any(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert privacy(tmp_path)["sample_size"] == 1438


@pytest.mark.parametrize(("every", "n_releases"), [(1, 4), (3, 2)])
def test_a_release_is_made_every_few_steps(tmp_path, every, n_releases):
    module = generator_module()
    fit(tmp_path, module, every=every)
    assert module.criterion.n_releases == n_releases
    assert ledger_of(tmp_path).n_releases == n_releases


@pytest.mark.parametrize(
    ("labels", "dim", "n_classes"), [("blocks", 64, 10), ("concat", 74, None), ("none", 64, None)]
)
def test_mechanism_of_labels(labels, dim, n_classes):
    mechanism = generator_module(labels=labels).criterion.mechanism
    assert mechanism.dim == dim
    assert mechanism.n_classes == n_classes


def test_appended_classes():
    row_function = RowsWithClasses(generator_module().features, n_classes=10)
    grey = torch.full((2, *SHAPE), 0.3)  # the centre of the features
    rows, _ = row_function(grey, torch.tensor([1, 3]))
    assert rows[:, :64].abs().max() < 1e-6
    expected = torch.zeros(2, 10)
    expected[0, 1] = 0.25
    expected[1, 3] = 0.25
    torch.testing.assert_close(rows[:, 64:], expected)


def test_a_moment_module_without_a_data_module_is_refused_before_the_ledger(tmp_path):
    records = PrivateRecords(torch.rand(60, *SHAPE), torch.arange(60) % 10, classes=range(10))
    loader = ReleaseLoader(records, batch_size=60, n_releases=1, every=4)
    with pytest.raises(InputError, match="data module with private records"):
        trainer(tmp_path, max_steps=4, enable_checkpointing=False).fit(moment_module(), loader)
    assert not (tmp_path / "ledger.jsonl").exists()


@pytest.mark.parametrize("labels", ["blocks", "concat", "none"])
def test_a_release_copies_no_generator(tmp_path, labels):
    """Copies at every step would fill the memory of a long run."""
    module = generator_module(labels=labels)
    module.generator.uncopied = RefusesCopies()
    fit(tmp_path, module)
    assert module.criterion.n_releases == 4
    with pytest.raises(RuntimeError, match="was copied"):
        copy.deepcopy(module)


class RefusesCopies:
    """An attribute that says when it is copied."""

    def __deepcopy__(self, memo):
        raise RuntimeError("The generator was copied.")


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"generated": 0}, "generated"),
        ({"lr": 0.0}, "lr"),
        ({"n_classes": 0}, "n_classes"),
        ({"n_projections": 0}, "n_projections"),
        ({"n_projections": True}, "n_projections"),
        ({"n_projections": -64}, "n_projections"),
        ({"n_projections": 0, "kind": "structured"}, "n_projections"),
        ({"n_projections": 0, "whiten": True, "batch_size": None}, "n_projections"),
        ({"n_quantiles": 0}, "n_quantiles"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_generator_module_refuses_options_out_of_range(options, name):
    with pytest.raises(InputError, match=name):
        generator_module(**options)


def test_features_of_another_shape_are_refused():
    with pytest.raises(InputError, match="sample_shape"):
        GeneratorModule(ConvGenerator(SHAPE), Flatten((1, 9, 9), radius=3.2), batch_size=200)


class Misshaped(ConvGenerator):
    """An own network whose forward returns other records than its ``sample_shape`` says."""

    def forward(self, latent, labels):
        return super().forward(latent, labels)[..., :4]


class Half(ConvGenerator):
    """An own network whose forward returns half of its batch."""

    def forward(self, latent, labels):
        return super().forward(latent, labels)[::2]


class Broken(ConvGenerator):
    """An own network that cannot map its own codes."""

    def forward(self, latent, labels):
        return super().forward(latent[:, :-1], labels)


class OneColumn(Flatten):
    """An own map whose ``dim`` is not that of its rows."""

    def transform(self, centred):
        return super().transform(centred)[:, :1]


@pytest.mark.parametrize(
    ("generator", "features", "words"),
    [
        (Misshaped, Flatten, "records from Misshaped of shape"),
        (Half, Flatten, "Expected 2 records from Half, of a batch of 2, got 1; return one"),
        (Broken, Flatten, "Broken.*RuntimeError"),
        (ConvGenerator, OneColumn, "rows from OneColumn of shape"),
    ],
)
@pytest.mark.parametrize("options", [{"batch_size": 200, "n_quantiles": 10}, {"whiten": True}])
def test_parts_that_do_not_fit_are_refused_before_a_release(
    tmp_path, generator, features, words, options
):
    network = generator(SHAPE, latent_dim=8, hidden=32)
    module = GeneratorModule(network, features(SHAPE, centre=0.3, radius=3.2), **options)
    with pytest.raises(InputError, match=f"{words}.*Nothing was released"):
        fit(tmp_path, module)
    assert not (tmp_path / "ledger.jsonl").exists()
    assert network.training


def test_the_trial_of_the_parts_leaves_codes_and_statistics_as_they_are(tmp_path):
    networks = []
    for module in (generator_module(generated=31), generator_module(generated=31)):
        torch.manual_seed(0)
        module.trainer = trainer(tmp_path)
        if networks:  # the control has no trial
            module.on_fit_start()
        networks.append((module.generator.latent(3), dict(module.generator.named_buffers())))
    (codes, buffers), (same_codes, same_buffers) = networks
    assert torch.equal(codes, same_codes)
    assert all(torch.equal(value, same_buffers[name]) for name, value in buffers.items())


@pytest.mark.parametrize("bound", ["bernstein", "clt"])
def test_bound_reaches_the_mechanism(bound):
    module = generator_module(
        statistic="rows", kind="iid", n_projections=200, bound=bound, failure_prob=1e-8
    )
    mechanism = module.criterion.mechanism
    assert mechanism.bound == bound
    assert mechanism.failure_prob == 1e-8


# GeneratorModule on whitened rows


def whitened_module(generator=None, **changes):
    if generator is None:
        generator = PrincipalGenerator(SHAPE, size=5, hidden=16, jitter={"shift": 0.3})
    options = {"whiten": True, "generated": 40} | changes
    return GeneratorModule(generator, Frequencies(SHAPE, 5), **options)


@pytest.mark.filterwarnings("ignore::dpswd.errors.UtilityWarning")
@pytest.mark.parametrize(
    "generator", [None, ConvGenerator(SHAPE, latent_dim=8, hidden=32)], ids=["principal", "own"]
)
def test_training_on_whitened_rows_makes_three_releases(tmp_path, generator):
    module = whitened_module(generator)
    data = PrivateDataModule("digits")
    options = {"max_steps": 3, "enable_checkpointing": False}
    trainer(tmp_path, callbacks=[GeneratorFile()], **options).fit(module, datamodule=data)
    facts = privacy(tmp_path)
    assert facts["sound"]
    assert facts["epsilon"] <= 10
    assert ledger_of(tmp_path).n_releases == 3
    assert all(bool(p.isfinite().all()) for p in module.generator.parameters())
    read, _ = read_generator(tmp_path / "generator.pt")
    images = draw(read, torch.arange(20) % 10)
    assert images.shape == (20, *SHAPE)
    if generator is None:
        assert read.n_directions == module.slices.plan.n_directions


@pytest.mark.parametrize(
    ("features", "words"),
    [
        (Frequencies(SHAPE, 4), "size=5, as the generator has, got 4"),
        (Frequencies(SHAPE, 5, centre=0.2), "centre=0.5, as the generator has, got 0.2"),
        (DCT(SHAPE, 5), "class Frequencies.*got DCT"),
    ],
)
def test_a_principal_generator_needs_its_own_frequencies(features, words):
    generator = PrincipalGenerator(SHAPE, size=5, hidden=16)
    with pytest.raises(InputError, match=f"{words}.*Nothing was released"):
        GeneratorModule(generator, features, whiten=True)
    GeneratorModule(generator, features, batch_size=200)  # which maps its images


@pytest.mark.filterwarnings("ignore::dpswd.errors.UtilityWarning")
def test_run_on_whitened_rows_is_resumed_without_a_release(tmp_path):
    module = whitened_module()
    trainer(tmp_path, max_steps=2).fit(module, datamodule=PrivateDataModule("digits"))
    resumed = whitened_module()
    options = {"ckpt_path": checkpoint_at(tmp_path, 2), "weights_only": False}
    trainer(tmp_path, max_steps=4).fit(resumed, datamodule=PrivateDataModule("digits"), **options)
    assert ledger_of(tmp_path).n_releases == privacy(tmp_path)["releases_made"] == 3
    assert resumed.trainer.global_step == 4
    torch.testing.assert_close(resumed.slices.values, module.slices.values)


@pytest.mark.filterwarnings("ignore::dpswd.errors.UtilityWarning")
def test_a_checkpoint_gives_the_trained_network_without_a_trainer(tmp_path):
    module = whitened_module(ConvGenerator(SHAPE, latent_dim=8, hidden=32))
    trainer(tmp_path, max_steps=2).fit(module, datamodule=PrivateDataModule("digits"))
    fresh = {"generator": ConvGenerator(SHAPE, latent_dim=8, hidden=32)}
    loaded = GeneratorModule.load_from_checkpoint(
        checkpoint_at(tmp_path, 2),
        **fresh,
        features=Frequencies(SHAPE, 5),
        whiten=True,
        weights_only=False,
    )
    labels = torch.arange(20) % 10
    torch.manual_seed(0)
    expected = draw(module.generator, labels)
    torch.manual_seed(0)
    torch.testing.assert_close(draw(loaded.generator, labels), expected)


@pytest.mark.filterwarnings("ignore::dpswd.errors.UtilityWarning")
def test_resuming_whitened_rows_with_another_budget_is_refused(tmp_path):
    trainer(tmp_path, max_steps=2).fit(whitened_module(), datamodule=PrivateDataModule("digits"))
    options = {"ckpt_path": checkpoint_at(tmp_path, 2), "weights_only": False}
    other = trainer(tmp_path, epsilon=2.0, max_steps=4)
    with pytest.raises(InputError, match=r"follows from target_epsilon=2, .* and 1,438 records"):
        other.fit(whitened_module(), datamodule=PrivateDataModule("digits"), **options)
    assert ledger_of(tmp_path).n_releases == 3


class OwnDigits(Generator):
    """Draws digits; the number of classes is no argument of that name."""

    def __init__(self, number=10, width=18):
        super().__init__(SHAPE, number, 8)
        self.body = nn.Linear(width, 64)

    def forward(self, latent, labels):
        return self.body(self.code(latent, labels)).view(-1, *SHAPE)


def test_a_generator_without_the_argument_n_classes_is_told_where_it_stands(tmp_path):
    module = whitened_module(OwnDigits(number=3))
    with pytest.raises(InputError, match=r"write n_classes=10 in the call of super"):
        trainer(tmp_path, max_steps=1).fit(module, datamodule=PrivateDataModule("digits"))


class Bright(OwnDigits):
    """Draws pixels from 0 to 255."""

    def forward(self, latent, labels):
        return 255 * super().forward(latent, labels).sigmoid()


def test_generated_pixels_of_other_units_are_named(tmp_path):
    with pytest.warns(UtilityWarning, match="images from Bright with pixels in .*255"):
        fit(tmp_path, whitened_module(Bright()), max_steps=1)
    fit(tmp_path / "control", whitened_module(OwnDigits()), max_steps=1)


def test_a_radius_that_is_too_small_is_named(tmp_path):
    generator = ConvGenerator(SHAPE, latent_dim=8, hidden=32)
    module = GeneratorModule(generator, Flatten(SHAPE, radius=0.5), 200, n_quantiles=10)
    with pytest.warns(UtilityWarning, match=r"raise radius=0\.5 of Flatten"):
        fit(tmp_path, module, max_steps=1)


def test_records_of_another_shape_are_named_with_the_shape_to_give(tmp_path):
    network = PrincipalGenerator((1, 12, 12), n_classes=10, size=12)
    module = GeneratorModule(network, Frequencies((1, 12, 12), size=12), whiten=True)
    words = r'sample_shape "\[1, 8, 8\]" and .*, and both size=8 .*folder, pass size=12 '
    with pytest.raises(InputError, match=words):
        fit(tmp_path / "run", module)


def test_the_report_of_a_run_has_the_facts_that_were_taken(tmp_path):
    np.savez(tmp_path / "x.npz", images=np.zeros((200, 8, 8)), labels=np.arange(200) % 10)
    lines = {}
    for name, options in {"taken": {}, "stated": {"classes": range(10)}}.items():
        data = PrivateDataModule(str(tmp_path / "x.npz"), **options)
        fit(tmp_path / name, generator_module(), max_steps=1, data=data)
        lines[name] = " ".join(write_report(tmp_path / name)["public"])
    assert "taken from the records and treated as public: classes=[0, 1," in lines["taken"]
    assert "taken from the records" not in lines["stated"]


def test_a_trainer_without_a_budget_is_refused_in_words_of_lightning(tmp_path):
    options = {"max_steps": 1, "logger": False, "accelerator": "cpu", "enable_progress_bar": False}
    without = L.Trainer(default_root_dir=tmp_path, enable_checkpointing=False, **options)
    with pytest.raises(InputError, match="a PrivacyBudget among the callbacks"):
        without.fit(generator_module(), datamodule=PrivateDataModule("digits"))


def test_records_without_classes_are_named_with_the_cure(tmp_path):
    np.savez(tmp_path / "bare.npz", images=np.random.default_rng(0).random((200, 8, 8)))
    data = PrivateDataModule(str(tmp_path / "bare.npz"))
    with pytest.raises(InputError, match=r"without; pass path= \(--path\)"):
        trainer(tmp_path, max_steps=1).fit(whitened_module(), datamodule=data)


def test_labels_that_count_from_one_are_named_with_the_cure(tmp_path):
    labels = np.arange(200) % 10 + 1
    images = np.random.default_rng(0).random((200, 8, 8))
    np.savez(tmp_path / "x.npz", images=images, labels=labels)
    path = str(tmp_path / "x.npz")
    with pytest.raises(InputError, match=r"10; if the labels are 1 to 10, pass classes=\[1, 2,"):
        fit(tmp_path / "a", generator_module(), max_steps=1, data=PrivateDataModule(path))
    stated = PrivateDataModule(path, classes=range(1, 11))
    fit(tmp_path / "b", generator_module(), max_steps=1, data=stated)
    with pytest.raises(InputError, match="n_classes=11 ") as refused:
        fit(tmp_path / "c", generator_module(3), max_steps=1, data=PrivateDataModule(path))
    assert "labels are" not in str(refused.value)


def test_loaders_of_tensors_are_refused_before_a_ledger_is_written(tmp_path):
    loader = DataLoader(TensorDataset(torch.rand(200, *SHAPE)), 200)
    budget = PrivacyBudget(5.0, 1e-5, sample_size=200, n_releases=1)
    with pytest.raises(InputError, match=r"without sample_size .*PrivateDataModule"):
        trainer(tmp_path, budget=budget, max_steps=1).fit(generator_module(), loader)
    with pytest.raises(InputError, match=r"got DataLoader; .*PrivateDataModule"):
        trainer(tmp_path, max_steps=1).fit(generator_module(), loader)
    assert not (tmp_path / "ledger.jsonl").exists()
    bare = L.Trainer(max_steps=1, logger=False, accelerator="cpu", enable_checkpointing=False)
    with pytest.raises(InputError, match="private batch in GeneratorModule, got list"):
        bare.fit(generator_module(), loader)


def test_an_error_in_the_forward_of_a_generator_names_it(tmp_path):
    module = whitened_module(OwnDigits(width=26))
    with pytest.raises(InputError, match=r"OwnDigits.forward to map codes \(n, 8\)"):
        trainer(tmp_path, max_steps=1).fit(module, datamodule=PrivateDataModule("digits"))


def test_whitened_rows_of_arrays_are_those_of_a_file(tmp_path):
    """The message has the code that saves arrays, whose file the data module reads."""
    records = PrivateRecords(torch.rand(400, *SHAPE), torch.arange(400) % 10, classes=range(10))
    loader = ReleaseLoader(records, batch_size=400, n_releases=1)
    with pytest.raises(InputError, match=r"PrivateDataModule.*images=X, labels=y") as error:
        trainer(tmp_path / "arrays", max_steps=1).fit(whitened_module(), loader)
    code = re.search(r"np\.savez\(.*\)", str(error.value)).group()
    code = code.replace("records.npz", str(tmp_path / "records.npz"))
    exec(code, {"np": np, "X": np.full((400, 8, 8), 0.5), "y": np.arange(400) % 10})
    data = PrivateDataModule(str(tmp_path / "records.npz"))
    assert (data.records.shape, data.records.n_classes) == (SHAPE, 10)


def test_a_network_that_is_no_generator_is_refused():
    with pytest.raises(InputError, match=r"subclass of dpswd.*Generator, got Sequential"):
        whitened_module(nn.Sequential(nn.Linear(4, 4)))


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"batch_size": 100}, "batch_size"),
        ({"statistic": "rows"}, "statistic"),
        ({"labels": "concat"}, "labels"),
        ({"labels": "none"}, "labels"),
    ],
)
def test_options_that_whitened_rows_do_not_have_are_refused(options, name):
    with pytest.raises(InputError, match=name):
        whitened_module(**options)


@settings(max_examples=30, deadline=None)
@given(generated=st.integers(1, 1000), n_classes=st.integers(1, 12))
def test_two_batches_of_every_class_are_generated(generated, n_classes):
    generator = PrincipalGenerator(SHAPE, n_classes, size=5, hidden=4)
    module = whitened_module(generator, generated=generated)
    step = 2 * n_classes
    assert module.generated % step == 0
    assert module.generated >= step
    if generated >= step:
        assert generated - step < module.generated <= generated


def test_a_line_says_how_many_are_generated(capsys):
    generator = PrincipalGenerator(SHAPE, 3, size=5, hidden=4)
    assert whitened_module(generator, generated=500).generated == 498
    message = capsys.readouterr().err
    assert "498" in message
    assert "generated=500, the default, is no multiple of 6" in message
    whitened_module(generator, generated=498)
    assert not capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::dpswd.errors.UtilityWarning")
def test_training_by_a_rounded_number(tmp_path):
    module = whitened_module(generated=37)
    options = {"max_steps": 1, "enable_checkpointing": False}
    trainer(tmp_path, **options).fit(module, datamodule=PrivateDataModule("digits"))
    assert module.generated == 20
    assert ledger_of(tmp_path).n_releases == 3


@pytest.mark.parametrize("name", ["batch_size", "n_releases", "every"])
@pytest.mark.parametrize("value", [0, -1, True, 2.0])
def test_the_data_module_refuses_numbers_out_of_range(name, value):
    with pytest.raises(InputError, match=f"Expected {name} .*, got {name}={value}"):
        PrivateDataModule("digits", **{name: value})


def test_batch_size_is_needed_where_rows_are_not_whitened():
    with pytest.raises(InputError, match="batch_size"):
        generator_module(batch_size=None)


# MomentModule


@pytest.mark.parametrize("steps", [1, 3])
def test_training_on_moments(tmp_path, steps):
    module = moment_module()
    board = TensorBoardLogger(tmp_path)
    options = {
        "max_steps": steps,
        "enable_checkpointing": False,
        "callbacks": [SampleGrid(), GeneratorFile()],
    }
    data = PrivateDataModule("digits")
    trainer(tmp_path, epsilon=10.0, logger=board, **options).fit(module, datamodule=data)
    assert ledger_of(tmp_path).n_releases == len(module.matcher.queries()) == 3
    assert (tmp_path / "samples.png").exists()
    assert EventAccumulator(board.log_dir).Reload().Tags()["images"] == ["samples"]
    generator, statement = read_generator(tmp_path / "generator.pt")
    assert statement["sound"]
    assert statement["epsilon"] == pytest.approx(10, rel=1e-3)
    assert draw(generator, torch.arange(10)).shape == (10, *SHAPE)


def test_a_resumed_run_makes_no_release(tmp_path):
    data = PrivateDataModule("digits")
    first = moment_module()
    trainer(tmp_path, max_steps=2, epsilon=10.0).fit(first, datamodule=data)
    resumed = moment_module()
    options = {"ckpt_path": checkpoint_at(tmp_path, 2), "weights_only": False}
    trainer(tmp_path, max_steps=4, epsilon=10.0).fit(resumed, datamodule=data, **options)
    assert ledger_of(tmp_path).n_releases == privacy(tmp_path)["releases_made"] == 3
    torch.testing.assert_close(resumed.matcher.parts[0].moment, first.matcher.parts[0].moment)
    assert resumed.trainer.global_step == 4


def test_moment_module_needs_two_records_of_each_class():
    with pytest.raises(InputError, match="batch_size"):
        moment_module(batch_size=19)


class NotAGenerator(L.LightningModule):
    """A module of a user, whose network has another name and class."""

    def __init__(self):
        super().__init__()
        self.network = torch.nn.Linear(2, 2)

    def training_step(self, batch, batch_idx):
        raise AssertionError("a step was made")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


class Unread(L.LightningDataModule):
    """Private records that must not be read."""

    @property
    def records(self):
        raise AssertionError("records were read")

    def train_dataloader(self):
        return self.records


class OwnGenerator(ConvGenerator):
    """A network that no file can name."""


@pytest.mark.parametrize("options", [{"batch_size": 200}, {"whiten": True}])
def test_a_file_of_an_own_network_is_refused_before_records_are_read(tmp_path, options):
    module = GeneratorModule(OwnGenerator(SHAPE), Flatten(SHAPE, radius=3.2), **options)
    made = trainer(tmp_path, max_steps=1, callbacks=[GeneratorFile()])
    words = "OwnGenerator.*library only; leave it out.*checkpoints/last.ckpt.*SampleGrid"
    with pytest.raises(InputError, match=words):
        made.fit(module, datamodule=Unread())


class OwnData(L.LightningDataModule):
    """A data module whose ``records`` are a tensor, not a handle."""

    records = torch.zeros(5, 3)

    def train_dataloader(self):
        return torch.utils.data.DataLoader(self.records)


class OwnTraining(L.LightningModule):
    """Trains a generator of the library on nothing."""

    def __init__(self):
        super().__init__()
        self.generator = ConvGenerator((1, 8, 8), n_classes=2)

    def training_step(self, batch, batch_idx):
        labels = torch.arange(4) % 2
        return self.generator(self.generator.latent(4), labels).mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


def one_step(directory, *callbacks):
    """A trainer of one step without a budget."""
    return L.Trainer(
        max_steps=1,
        callbacks=list(callbacks),
        default_root_dir=directory,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )


def test_records_of_an_own_data_module_are_no_handle(tmp_path):
    run = one_step(tmp_path, SampleGrid(), GeneratorFile())
    run.fit(OwnTraining(), datamodule=OwnData())
    generator, _ = read_generator(tmp_path / "generator.pt")
    assert generator.class_names is None
    assert (tmp_path / "samples.png").exists()


@pytest.mark.parametrize("callback", [SampleGrid(), GeneratorFile()])
def test_callbacks_refuse_a_module_without_a_generator_before_the_first_step(tmp_path, callback):
    run = one_step(tmp_path, callback)
    with pytest.raises(InputError, match="callback"):
        run.fit(NotAGenerator(), torch.utils.data.DataLoader([0.0]))
