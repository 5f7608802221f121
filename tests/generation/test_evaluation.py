"""Downstream accuracy on records where the answer is known, and the file that it is written to."""

import json

import lightning as L
import numpy as np
import pytest
import torch

from dpswd import InputError
from dpswd.data import Digits, FeatureFile
from dpswd.generation.evaluation import CLASSIFIERS, DownstreamEvaluation, SmallCNN, accuracy, flat, train_cnn
from dpswd.generation.features import Flatten
from dpswd.generation.generators import MLPGenerator
from dpswd.generation.module import GeneratorModule
from dpswd.training.callback import PrivacyBudget


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("images", [True, False])
def test_real_digits_are_learnt_and_shuffled_labels_are_not(name, images):
    data = Digits()
    train = (flat(data.private.floats()), data.private.labels.numpy())
    test = (flat(data.test.floats()), data.test.labels.numpy())
    learnt = accuracy(name, train, test, images)
    assert learnt > 90
    assert learnt == accuracy(name, train, test, images)  # settings are fixed, and so is the seed
    shuffled = (train[0], np.random.default_rng(0).permutation(train[1]))
    assert accuracy(name, shuffled, test, images) < 30  # control: chance is 10, its deviation on 359 is 1.6


def test_classes_that_synthetic_records_lack_count_as_wrong():
    train = (np.array([[0.0], [0.1], [1.0], [1.1]], dtype=np.float32), np.array([0, 0, 1, 1]))
    test = (np.array([[0.0], [1.0], [2.0], [3.0]], dtype=np.float32), np.array([0, 1, 2, 3]))
    assert accuracy("logreg", train, test, False) == 50.0


def test_cnn_learns_real_digits_and_not_shuffled_labels():
    data = Digits()
    train = (flat(data.private.floats()), data.private.labels.numpy())
    test = (flat(data.test.floats()), data.test.labels.numpy())
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    learnt = accuracy("cnn", train, test, True, (1, 8, 8))
    assert learnt > 85
    assert torch.equal(torch.random.get_rng_state(), state)  # the global random state is left alone
    torch.manual_seed(2)
    assert learnt == accuracy("cnn", train, test, True, (1, 8, 8))
    shuffled = (train[0], np.random.default_rng(0).permutation(train[1]))
    assert accuracy("cnn", shuffled, test, True, (1, 8, 8)) < 30  # control, as above


def test_cnn_wants_images():
    rows = (np.zeros((4, 6), np.float32), np.arange(4))
    for shape in (None, (6,)):
        with pytest.raises(InputError, match="shape"):
            accuracy("cnn", rows, rows, False, shape)
    with pytest.raises(InputError, match="images"):
        train_cnn(SmallCNN, torch.zeros(4, 6), torch.arange(4), 4)


def vectors(path):
    """A user's own vectors."""
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 2
    features = rng.normal(size=(60, 4)) + 3 * labels[:, None]
    np.savez(path, features=features, labels=labels)
    return str(path)


def fit(directory, data, **options):
    torch.manual_seed(0)
    module = GeneratorModule(MLPGenerator((4,), n_classes=2, hidden=8), Flatten((4,), radius=8.0), n_quantiles=5)
    budget, evaluation = PrivacyBudget(1.0, 1e-3), DownstreamEvaluation(50, **options)
    trainer = L.Trainer(
        default_root_dir=directory,
        max_steps=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[budget, evaluation],
    )
    trainer.fit(module, datamodule=data)
    return {path.name: path.read_text() for path in directory.glob("*.json")}


@pytest.mark.filterwarnings("ignore:.*one class")
def test_accuracies_on_private_records_are_in_a_file_of_that_name(tmp_path, capsys):
    """Issue 15, item 1: nothing that is handed out depends on the held-out labels."""
    private = fit(tmp_path / "a", FeatureFile(vectors(tmp_path / "x.npz")))
    assert "evaluation.json" not in private
    (row, _) = json.loads(private["private_evaluation.json"])["rows"]
    assert row["n_test"] == 12
    assert "private_evaluation.json to yourself" in capsys.readouterr().out
    assert str(row["accuracy"]) not in private["privacy.json"]
    public = fit(tmp_path / "b", FeatureFile(vectors(tmp_path / "x.npz"), public_benchmark=True))
    assert "evaluation.json" in public  # control
    assert "private_evaluation.json" not in public


def test_real_records_train_a_classifier_only_where_they_are_public(tmp_path):
    with pytest.raises(InputError, match="public_benchmark true"):
        fit(tmp_path / "a", FeatureFile(vectors(tmp_path / "x.npz")), real=True)
    assert not (tmp_path / "a").exists()
    rows = fit(tmp_path / "b", FeatureFile(vectors(tmp_path / "x.npz"), public_benchmark=True), real=True)
    assert {row["train"] for row in json.loads(rows["evaluation.json"])["rows"]} == {"synthetic", "real"}
