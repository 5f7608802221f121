"""PrivateGenerator: scikit-learn's conventions, the same run as the command line, refusals."""

import functools
import json

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits

from dpswd import DpswdError, InputError, PrivateGenerator
from dpswd.accounting.ledger import Ledger
from dpswd.commands.main import main
from dpswd.data import Digits
from dpswd.generation.mixture_module import MixtureModule

DIGITS = load_digits()


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    place = tmp_path_factory.mktemp("generator")
    generator = PrivateGenerator(epsilon=10, run_dir=place / "run", verbose=False)
    return generator.fit((DIGITS.images * 15).astype(np.uint8), DIGITS.target), place


def test_samples_have_the_layout_of_the_records(fitted):
    generator, _ = fitted
    images, labels = generator.sample(50)
    assert images.shape == (50, 8, 8)
    assert images.dtype == np.uint8
    assert sorted(set(labels)) == list(range(10))
    _, wanted = generator.sample(4, y=[3, 3, 7, 7])
    assert wanted.tolist() == [3, 3, 7, 7]


def test_samples_look_like_their_classes(fitted):
    images, labels = fitted[0].sample(2000)
    means = np.stack([images[labels == digit].mean(0) for digit in range(10)]) / 15
    real = np.stack([DIGITS.images[DIGITS.target == digit].mean(0) for digit in range(10)])
    nearest = ((means[:, None] - real[None]) ** 2).sum((2, 3)).argmin(1)
    assert (nearest == np.arange(10)).all()  # at epsilon 10 every class mean is nearest to its own


def test_the_guarantee_is_that_of_the_ledger(fitted):
    generator, place = fitted
    ledger = Ledger.open_existing(place / "run" / "ledger.jsonl")
    assert ledger.n_releases == sum(part["n_releases"] for part in ledger.header["plan"])
    assert generator.guarantee_["sound"] is True
    assert generator.guarantee_["epsilon"] <= 10
    assert generator.guarantee_["delta"] == 1e-5


def test_file_and_report(fitted):
    generator, place = fitted
    generator.save(place / "generator.pt")
    again = PrivateGenerator.load(place / "generator.pt")
    assert again.guarantee_["epsilon"] == generator.guarantee_["epsilon"]
    assert again.sample(3)[0].shape == (3, 8, 8)
    generator.report(place / "report.json")
    assert json.loads((place / "report.json").read_text())["sound"] is True
    assert "config.yaml" in {path.name for path in (place / "run").iterdir()}
    with pytest.raises(InputError, match="html"):
        generator.report(place / "report.pdf")
    with pytest.raises(InputError, match="ledger"):
        again.report(place / "again.html")


def test_a_second_fit_is_refused(fitted):
    generator, place = fitted
    before = (place / "run" / "ledger.jsonl").read_bytes()
    with pytest.raises(InputError, match="budget"):
        generator.fit(DIGITS.images / 16, DIGITS.target)
    assert (place / "run" / "ledger.jsonl").read_bytes() == before


def test_a_fit_after_an_interrupted_one_is_refused(tmp_path, monkeypatch):
    """Noisy values of the first fit are on the disk: a second one spends a second budget."""
    original = MixtureModule.training_step

    def interrupted(self, *args):
        original(self, *args)
        raise RuntimeError("interrupted")

    X, y = np.random.default_rng(0).random((600, 5)), np.arange(600) % 2
    generator = PrivateGenerator(epsilon=5, classes=[0, 1], delta=1e-4, run_dir=tmp_path / "a", verbose=False)
    with pytest.raises(InputError):
        generator.fit(X, y + 1)  # refused records release nothing, so that the next fit may start
    monkeypatch.setattr(MixtureModule, "training_step", interrupted)
    with pytest.raises(RuntimeError, match="interrupted"):
        generator.fit(X, y)
    monkeypatch.undo()
    with pytest.raises(InputError, match="second"):
        generator.set_params(run_dir=tmp_path / "b").fit(X, y)
    assert not (tmp_path / "b").exists()


def test_scikit_learn_conventions(fitted):
    generator, _ = fitted
    copy = clone(generator)
    assert copy.get_params() == generator.get_params()
    assert copy.set_params(epsilon=3).epsilon == 3
    assert not hasattr(copy, "generator_")
    with pytest.raises(InputError, match="fit"):
        copy.sample(3)


def test_class_names_and_vectors(tmp_path):
    names = np.array(["zero", "one"])[(DIGITS.target > 4).astype(int)]
    generator = PrivateGenerator(classes=["zero", "one"], radius=40.0, run_dir=tmp_path / "run", verbose=False)
    rows, labels = generator.fit(DIGITS.data, names).sample(6)
    assert rows.shape == (6, 64)
    assert set(labels) == {"zero", "one"}
    generator.save(tmp_path / "generator.pt")
    assert set(PrivateGenerator.load(tmp_path / "generator.pt").sample(4)[1]) == {"zero", "one"}


def test_without_labels(tmp_path):
    generator = PrivateGenerator(run_dir=tmp_path / "run", verbose=False).fit(DIGITS.images / 16)
    images, labels = generator.sample(5)
    assert images.shape == (5, 8, 8)
    assert images.dtype == np.float32
    assert labels is None


NAN = np.where(np.arange(64) == 3, np.nan, 0.5).reshape(1, 8, 8).repeat(10, 0)


@pytest.mark.parametrize(
    ("X", "y"),
    [
        (DIGITS.images, DIGITS.target),  # beyond [0, 1]
        (NAN, np.arange(10) % 2),
        (DIGITS.images[:9] / 16, DIGITS.target),  # sizes differ
        (DIGITS.images / 16, DIGITS.target + 0.5),
        (DIGITS.images / 16, np.zeros(1797, dtype=int)),  # one class
        ([np.zeros((8, 8)), np.zeros((4, 4))], [0, 1]),  # mixed shapes
        (np.array([object()] * 3), [0, 1, 2]),
        (np.zeros((0, 8, 8)), []),
    ],
)
def test_bad_records_release_nothing(X, y, tmp_path):
    with pytest.raises(DpswdError):
        PrivateGenerator(run_dir=tmp_path / "run", verbose=False).fit(X, y)
    assert not (tmp_path / "run").exists()


def test_equal_to_the_command_line(tmp_path, monkeypatch):
    """With a fixed seed of the noise, estimator and ``dpswd fit`` give the same network."""
    records = Digits().private
    options = ["--trainer.default_root_dir", str(tmp_path / "cli"), "--model.noise_seed", "5"]
    options += ["--trainer.enable_progress_bar", "false", "--trainer.callbacks", "[]"]
    assert main(["fit", "--config", "digits", *options]) == 0
    monkeypatch.setattr("dpswd.estimators.MixtureModule", functools.partial(MixtureModule, noise_seed=5))
    estimator = PrivateGenerator(center=0.25, run_dir=tmp_path / "estimator", verbose=False)
    estimator.fit(records.values[:, 0].numpy(), records.labels.numpy())
    state = torch.load(tmp_path / "cli" / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    for name, value in estimator.generator_.state_dict().items():
        assert torch.equal(value, state[f"generator.{name}"]), name


def test_forecast_reads_no_record_and_grows_with_n():
    estimator = PrivateGenerator(epsilon=1)
    few, many = (estimator.forecast((28, 28), n, 10) for n in (300, 60_000))
    assert few.signal_to_noise["means"] < many.signal_to_noise["means"]
    assert "noise" in few.verdict
    assert "noise" not in many.verdict
