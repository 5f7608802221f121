"""SampleGrid of modules of a user: the file, TensorBoard, and what is refused."""

import io

import lightning as L
import numpy as np
import pytest
import torch
from factories import trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from dpswd import (
    DPSlicedWassersteinLoss,
    InputError,
    PrivateRecords,
    ProjectionMechanism,
    ReleaseLoader,
)
from dpswd.features.maps import Flatten
from dpswd.files.pictures import save_samples
from dpswd.lightning import AdaptationData, AdaptationModule, GeneratorModule, SampleGrid
from dpswd.networks.classifiers import Head
from dpswd.networks.encoders import ConvEncoder
from dpswd.networks.image_generators import ConvGenerator
from dpswd.report.render import write_report

pytestmark = pytest.mark.filterwarnings("ignore:.*no .val_dataloader.*")

SIDE = 8
N_RECORDS = 300
N_STEPS = 4


class Net(L.LightningModule):
    """A network of a user, which trains by the loss and draws images by its own method."""

    def __init__(self, samples):
        super().__init__()
        self.samples = samples
        self.network = nn.Sequential(nn.Linear(4, SIDE**2), nn.BatchNorm1d(SIDE**2), nn.Sigmoid())
        mechanism = ProjectionMechanism(
            dim=SIDE**2,
            n_projections=SIDE**2,
            batch_size=100,
            kind="orthogonal",
            statistic="quantiles",
            n_quantiles=10,
            row_norm=4.0,
        )
        self.loss = DPSlicedWassersteinLoss(mechanism)
        self.modes = set()
        self.codes = []

    def training_step(self, batch, batch_idx):
        codes = torch.randn(60, 4)
        self.codes.append(codes)
        return self.loss(batch, self.network(codes), rows=nn.Flatten())

    def sample_images(self):
        self.modes.add((self.training, torch.is_grad_enabled()))
        return self.samples(self)

    def configure_optimizers(self):
        return torch.optim.Adam(self.network.parameters(), lr=1e-2)


def images_of(net, n=10, channels=1):
    images = net.network(torch.randn(n, 4)).reshape(n, 1, SIDE, SIDE)
    return images.expand(-1, channels, -1, -1)


def fit(directory, net, *callbacks, logger=False):
    torch.manual_seed(0)
    records = PrivateRecords(torch.rand(N_RECORDS, 1, SIDE, SIDE))
    loader = ReleaseLoader(records, batch_size=100, n_releases=N_STEPS)
    options = {"callbacks": callbacks, "logger": logger, "enable_checkpointing": False}
    trainer(directory, **options).fit(net, loader)


def pictures(log_dir):
    """Return the pictures in an event file, by their steps."""
    events = EventAccumulator(log_dir, size_guidance={"images": 0}).Reload().Images("samples")
    arrays = {}
    for event in events:
        with Image.open(io.BytesIO(event.encoded_image_string)) as image:
            arrays[event.step] = np.asarray(image.convert("RGB"))
    return arrays


def picture_at(path):
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def comparison(net):
    return {
        "source": images_of(net, 12),
        "source, adapted": images_of(net, channels=3),
        "synthetic target": images_of(net, 11),
    }


@pytest.mark.parametrize(
    ("samples", "n_rows", "n_across"),
    [(lambda net: images_of(net, 25), 3, 10), (comparison, 3, 10)],
    ids=["images", "rows with names"],
)
def test_pictures_of_an_own_module_are_in_tensorboard(tmp_path, samples, n_rows, n_across):
    board = TensorBoardLogger(tmp_path)
    net = Net(samples)
    fit(tmp_path, net, SampleGrid(every_n_steps=2), logger=board)
    shown_at = pictures(board.log_dir)
    assert list(shown_at) == [2, N_STEPS]
    last = shown_at[N_STEPS]
    assert (last == picture_at(tmp_path / "samples.png")).all()
    assert (last != shown_at[2]).any()
    scale = round(56 / SIDE)  # small images are enlarged
    line = scale * (SIDE + 1)
    assert last.shape[0] == n_rows * line + scale
    margin = last.shape[1] - (n_across * line + scale)
    assert (margin > 0) == (samples is comparison)
    assert net.modes == {(False, False)}
    assert net.training
    assert net.network.training


def test_the_report_asks_to_check_a_picture_of_an_own_method(tmp_path):
    private = torch.rand(10, 1, SIDE, SIDE)
    fit(tmp_path, Net(lambda net: {"real": private, "synthetic": images_of(net)}), SampleGrid())
    assert write_report(tmp_path)["unchecked_pictures"] == ["samples.png"]
    assert "No picture shows a private record" not in (tmp_path / "report.md").read_text()


def test_pictures_change_nothing_of_the_training(tmp_path):
    nets = []
    for name, callbacks in {"with": [SampleGrid(every_n_steps=1)], "without": []}.items():
        net = Net(comparison)
        fit(tmp_path / name, net, *callbacks)
        nets.append(net)
    with_pictures, without = nets
    assert len(with_pictures.codes) == N_STEPS
    for codes, same in zip(with_pictures.codes, without.codes, strict=True):
        assert torch.equal(codes, same)


def test_a_logger_without_pictures_is_left_as_it_is(tmp_path):
    board = TensorBoardLogger(tmp_path, name="board")
    loggers = [CSVLogger(tmp_path, name="csv"), board]
    fit(tmp_path, Net(images_of), SampleGrid(every_n_steps=0), logger=loggers)
    assert (tmp_path / "samples.png").exists()
    assert list(pictures(board.log_dir)) == [N_STEPS]


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (lambda net: None, "got NoneType"),
        (lambda net: images_of(net)[0], "got shape"),
        (lambda net: images_of(net)[:0], "got shape"),
        (lambda net: {"a": images_of(net), "b": images_of(net)[..., 1:]}, "got the sizes"),
    ],
)
def test_what_is_not_images_is_refused_before_the_first_release(tmp_path, samples, words):
    net = Net(samples)
    with pytest.raises(InputError, match=words):
        fit(tmp_path, net, SampleGrid())
    assert net.codes == []
    assert net.training


def test_an_adaptation_shows_source_images_before_and_after_the_adapter(tmp_path):
    images = np.random.default_rng(0).random((60, 16, 16)).astype(np.float32)
    np.savez(tmp_path / "source.npz", data=images, targets=np.arange(60) % 3)
    np.savez(tmp_path / "target.npz", data=images[:40])
    data = AdaptationData(str(tmp_path / "source.npz"), str(tmp_path / "target.npz"))
    encoder = ConvEncoder((1, 16, 16))
    module = AdaptationModule(encoder, Head(encoder.dim, 3), n_quantiles=16)
    board = TensorBoardLogger(tmp_path)
    options = {
        "callbacks": [SampleGrid(every_n_steps=0)],
        "logger": board,
        "max_steps": 2,
        "num_sanity_val_steps": 0,
    }
    trainer(tmp_path / "run", **options).fit(module, datamodule=data)
    rows = module.sample_images()
    assert list(rows) == ["source", "source, adapted"]
    assert torch.equal(rows["source, adapted"], module.adapter(rows["source"]))
    shown = pictures(board.log_dir)[2]
    assert (shown == picture_at(tmp_path / "run" / "samples.png")).all()


class OwnGenerator(ConvGenerator):
    """An own network, of whose classes no file is written."""


def names_of_rows(path):
    """Return the left margin of a picture, which has the names of its rows."""
    pixels = picture_at(path)
    scale = round(56 / SIDE)
    return pixels[:, : pixels.shape[1] - (10 * scale * (SIDE + 1) + scale)]


class Named(L.LightningDataModule):
    """Private images of three classes with public names."""

    def __init__(self):
        super().__init__()
        images = torch.rand(N_RECORDS, 1, SIDE, SIDE)
        labels = [("dress", "coat", "bag")[i % 3] for i in range(N_RECORDS)]
        self.records = PrivateRecords(images, labels, classes=["dress", "coat", "bag"])

    def train_dataloader(self):
        return ReleaseLoader(self.records, batch_size=100, n_releases=1)


def test_rows_have_the_names_of_the_classes(tmp_path):
    generator = OwnGenerator((1, SIDE, SIDE), n_classes=3, latent_dim=4, hidden=16)
    module = GeneratorModule(
        generator, Flatten((1, SIDE, SIDE), radius=3.0), batch_size=100, n_quantiles=10
    )
    options = {"callbacks": [SampleGrid()], "max_steps": 1, "enable_checkpointing": False}
    trainer(tmp_path, **options).fit(module, datamodule=Named())
    for name, class_names in {"named": ["dress", "coat", "bag"], "numbered": None}.items():
        generator.class_names = class_names
        save_samples(generator, tmp_path / f"{name}.png")
    names = names_of_rows(tmp_path / "samples.png")
    assert np.array_equal(names, names_of_rows(tmp_path / "named.png"))
    assert not np.array_equal(names, names_of_rows(tmp_path / "numbered.png"))


@pytest.mark.parametrize(
    ("kind", "to_check"), [(OwnGenerator, ["samples.png"]), (ConvGenerator, [])]
)
def test_a_picture_of_a_generator_of_this_library_needs_no_check(tmp_path, kind, to_check):
    generator = kind((1, SIDE, SIDE), n_classes=3, latent_dim=4, hidden=16)
    module = GeneratorModule(
        generator, Flatten((1, SIDE, SIDE), radius=3.0), batch_size=100, n_quantiles=10
    )
    options = {"callbacks": [SampleGrid()], "max_steps": 1, "enable_checkpointing": False}
    trainer(tmp_path, **options).fit(module, datamodule=Named())
    assert write_report(tmp_path)["unchecked_pictures"] == to_check
