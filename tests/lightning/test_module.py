"""Generator networks, and the two modules on embedded digits: releases at every step or once, resumed, refused."""

from functools import partial

import pytest
import torch
from factories import checkpoint_at, ledger_of, privacy, trainer
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dpswd import InputError
from dpswd.features.maps import Flatten
from dpswd.files.generators import read_generator
from dpswd.lightning.callbacks import GeneratorFile, SampleGrid
from dpswd.lightning.data import PrivateDataModule
from dpswd.lightning.module import GeneratorModule, SketchModule
from dpswd.networks.generator import draw
from dpswd.networks.image_generators import ConvGenerator, ShuffleGenerator

SHAPE = (1, 8, 8)


def module(n_classes=10, **changes):
    generator = ConvGenerator(SHAPE, n_classes=n_classes, latent_dim=8, hidden=32)
    options = {"n_quantiles": 10, "generated": 30, "batch_size": 200} | changes
    return GeneratorModule(generator, Flatten(SHAPE, centre=0.3, radius=3.2), **options)


def sketched(**changes):
    return SketchModule(
        ShuffleGenerator(SHAPE, hidden=16, width=8, jitter={"shift": 0.3}), batch_size=40, **changes
    )


@pytest.mark.parametrize(
    ("options", "every", "releases"),
    [
        ({}, 1, 4),
        ({}, 3, 2),
        ({"statistic": "rows", "kind": "iid", "n_projections": 20}, 1, 4),
        ({"labels": "concat"}, 1, 4),
        ({"labels": "none"}, 1, 4),
    ],
    ids=["every step", "some", "rows", "concat", "none"],
)
def test_training_at_every_step(tmp_path, options, every, releases):
    made, data = module(**options), PrivateDataModule("digits", every=every)
    before = [parameter.clone() for parameter in made.generator.parameters()]
    trainer(tmp_path, max_steps=4, enable_checkpointing=False).fit(made, datamodule=data)
    assert made.criterion.n_releases == ledger_of(tmp_path).n_releases == releases
    assert privacy(tmp_path)["sample_size"] == 1438
    mechanism = made.criterion.mechanism
    assert mechanism.n_classes == (10 if options.get("labels", "blocks") == "blocks" else None)
    assert mechanism.dim == 64 + 10 * (options.get("labels") == "concat")
    assert all(
        not torch.equal(a, b) for a, b in zip(before, made.generator.parameters(), strict=True)
    )


def test_appended_classes():
    made = module(labels="concat")
    rows, _ = made._labelled(torch.full((2, *SHAPE), 0.3), torch.tensor([1, 3]))
    assert rows[:, :64].abs().max() < 1e-6
    assert rows[:, 64:].tolist() == [[0.25 * (i == c) for i in range(10)] for c in (1, 3)]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: module(generated=0), "generated"),
        (lambda: module(lr=0.0), "lr"),
        (lambda: module(n_classes=0), "n_classes"),
        (lambda: SketchModule(ShuffleGenerator(SHAPE), batch_size=19), "batch_size"),
        (lambda: ShuffleGenerator(jitter={"lift": 1.0}), "jitter"),
        (lambda: ShuffleGenerator(sample_shape=(64,)), "sample_shape"),
        (lambda: ConvGenerator(latent_dim=0), "latent_dim"),
    ],
)
def test_options_out_of_range(make, name):
    with pytest.raises(InputError, match=name):
        make()


@pytest.mark.parametrize("steps", [1, 3])
def test_training_on_a_sketch(tmp_path, steps):
    made, board = sketched(), TensorBoardLogger(tmp_path)
    options = {
        "max_steps": steps,
        "enable_checkpointing": False,
        "callbacks": [SampleGrid(), GeneratorFile()],
    }
    trainer(tmp_path, epsilon=10.0, logger=board, **options).fit(
        made, datamodule=PrivateDataModule("digits")
    )
    assert ledger_of(tmp_path).n_releases == len(made.sketch.queries()) == 3
    assert (tmp_path / "samples.png").exists()
    assert EventAccumulator(board.log_dir).Reload().Tags()["images"] == ["samples"]
    generator, facts = read_generator(tmp_path / "generator.pt")
    assert facts["sound"]
    assert facts["epsilon"] == pytest.approx(10, rel=1e-3)
    assert draw(generator, torch.arange(10)).shape == (10, *SHAPE)


def test_a_resumed_run_makes_no_release(tmp_path):
    (first, again), data = (sketched(), sketched()), PrivateDataModule("digits")
    trainer(tmp_path, max_steps=2, epsilon=10.0).fit(first, datamodule=data)
    options = {"ckpt_path": checkpoint_at(tmp_path, 2), "weights_only": False}
    trainer(tmp_path, max_steps=4, epsilon=10.0).fit(again, datamodule=data, **options)
    assert ledger_of(tmp_path).n_releases == privacy(tmp_path)["releases_made"] == 3
    torch.testing.assert_close(again.sketch.parts[0].moment, first.sketch.parts[0].moment)
    assert again.trainer.global_step == 4


IMAGES = [(1, 28, 28), (3, 32, 32), (1, 16, 16), (1, 13, 9), (1, 8, 8)]


@pytest.mark.parametrize("shape", IMAGES)
@pytest.mark.parametrize("n_classes", [0, 10])
@pytest.mark.parametrize(
    "kind",
    [
        ConvGenerator,
        ShuffleGenerator,
        partial(ShuffleGenerator, jitter={"shift": 1.0, "elastic": 0.5}),
    ],
)
def test_images(kind, shape, n_classes):
    generator = kind(sample_shape=shape, n_classes=n_classes)
    labels = torch.arange(6) % max(1, n_classes)
    images = generator(generator.latent(6), labels)
    assert images.shape == (6, *shape)
    assert bool(((images >= 0) & (images <= 1)).all())
    images.square().sum().backward()
    assert [
        name for name, parameter in generator.named_parameters() if parameter.grad is None
    ] == []


def test_the_start_has_the_stated_moments():
    """Images between 0.4 and 0.6, so that none is clamped."""
    generator = ShuffleGenerator((1, 8, 8), n_classes=2, size=4).eval()
    roots = 0.002 * torch.randn(2, 16, 16)
    means, covariances = 0.01 * torch.randn(2, 16), roots @ roots.mT
    generator.start_at(means, covariances)
    labels = torch.arange(20_000) % 2
    with torch.no_grad():
        rows = generator.features(generator(generator.latent(len(labels)), labels))
    for c in (0, 1):
        mine = rows[labels == c]
        errors = (covariances[c].diagonal() / len(mine)).sqrt()
        assert float(((mine.mean(0) - means[c]) / errors).abs().max()) < 6
        assert float((mine.T.cov() - covariances[c]).norm()) < 0.1 * float(covariances[c].norm())
