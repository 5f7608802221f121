"""Files of classifiers: round trips, files of another kind."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC

from dpswd import InputError
from dpswd.accounting.guarantee import Guarantee
from dpswd.adaptation.classifier import TargetClassifier
from dpswd.adaptation.space import SourceSpace
from dpswd.files.classifiers import read_classifier, write_classifier
from dpswd.files.generators import write_generator
from dpswd.mixture.generator import MixtureGenerator
from dpswd.networks.classifiers import SmallCNN

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(60, 4))
NUMBERS = np.arange(60) % 3
CLASSES = np.array(["a", "b", "c"])
GUARANTEE = Guarantee(private=True, sound=True, epsilon=1.0, weights_from_runs=("a", "b"))


def classifier_of_rows(model=None):
    model = model or LogisticRegression()
    space = SourceSpace.from_source(ROWS, n_target=100, mu=1.0)
    model.fit(space.coordinates(ROWS), NUMBERS)
    return TargetClassifier(space, CLASSES, model, adapted=True, shift=1.5, verdict="Adapted.")


def classifier_of_images():
    space = SourceSpace.identity((1, 8, 8))
    network = SmallCNN(1, 3, hidden=128).eval()
    return TargetClassifier(space, CLASSES, network, adapted=False, shift=0.0, verdict="Source.")


@pytest.mark.parametrize(
    ("classifier", "records"),
    [(classifier_of_rows(), ROWS), (classifier_of_images(), RNG.random((5, 1, 8, 8)))],
    ids=["rows", "images"],
)
def test_a_classifier_there_and_back(tmp_path, classifier, records):
    records = records.astype(np.float32)
    write_classifier(classifier, tmp_path / "c.pt", GUARANTEE)
    loaded, guarantee = read_classifier(tmp_path / "c.pt")
    np.testing.assert_array_equal(loaded.predict(records), classifier.predict(records))
    np.testing.assert_array_equal(loaded.predict_proba(records), classifier.predict_proba(records))
    assert (loaded.adapted, loaded.shift) == (classifier.adapted, classifier.shift)
    assert loaded.verdict == classifier.verdict
    assert guarantee == GUARANTEE


def test_another_model_is_not_written(tmp_path):
    with pytest.raises(InputError, match="logistic regression"):
        write_classifier(classifier_of_rows(SVC()), tmp_path / "c.pt", GUARANTEE)
    assert not (tmp_path / "c.pt").exists()


def test_a_damaged_file_and_one_of_another_kind_are_refused(tmp_path):
    write_classifier(classifier_of_rows(), tmp_path / "c.pt", GUARANTEE)
    (tmp_path / "damaged.pt").write_bytes((tmp_path / "c.pt").read_bytes()[:-100])
    with pytest.raises(InputError, match="classifier"):
        read_classifier(tmp_path / "damaged.pt")
    write_generator(MixtureGenerator((8,), n_classes=2), tmp_path / "generator.pt")
    with pytest.raises(InputError, match=r"got a generator; pass a classifier\.pt"):
        read_classifier(tmp_path / "generator.pt")


@pytest.mark.parametrize(
    "changed",
    [
        {"classes": ["a", "b"]},
        {"classes": ["a", "b", "a"]},
        {"classes": ["a", "b", "c\0"]},
        {"classes": 3},
        {"columns": ["a"]},
        {"weights": {"coef_": torch.zeros(3, 2), "intercept_": torch.zeros(3)}},
        {"weights": {"coef_": torch.zeros(2, 4), "intercept_": torch.zeros(2)}},
        {"weights": {"further": torch.zeros(2)}},
        {"space": {}},
        {"shift": "far"},
        {"guarantee": {"private": True, "mu": "large", "epsilon": 1.0, "delta": 1e-5}},
        {"guarantee": None},
    ],
)
def test_files_whose_content_does_not_fit(tmp_path, changed):
    write_classifier(classifier_of_rows(), tmp_path / "c.pt", GUARANTEE)
    content = torch.load(tmp_path / "c.pt", weights_only=True)
    torch.save(content | changed, tmp_path / "changed.pt")
    with pytest.raises(InputError, match=r"classifier written by dpswd|classes"):
        read_classifier(tmp_path / "changed.pt")
    huge = content["space"] | {"shape": (10**6, 10**6)}
    torch.save(content | {"space": huge}, tmp_path / "changed.pt")
    with pytest.raises(InputError, match="classifier written by dpswd"):
        read_classifier(tmp_path / "changed.pt")
