"""Utility: accuracies on real records of classifiers trained on synthetic ones.

The settings are fixed, and the same for synthetic and real training records.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import recall_score, roc_auc_score
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch import nn

from dpswd._layout import Array
from dpswd._validate import choice
from dpswd.errors import InputError
from dpswd.networks.classifiers import SmallCNN
from dpswd.records import Records

__all__ = [
    "IMAGE_CLASSIFIERS",
    "ROW_CLASSIFIERS",
    "check_classifiers",
    "scores",
    "scores_of_halves",
]

# Makes a network from the numbers of channels and of outputs.
Network = Callable[[int, int], nn.Module]

IMAGE_CLASSIFIERS = ("logreg", "mlp", "cnn")
ROW_CLASSIFIERS = ("logreg", "mlp", "boosting")
_MODELS = {
    "logreg": LogisticRegression(max_iter=100),
    "mlp": MLPClassifier((100,), max_iter=20, random_state=0),
    "boosting": HistGradientBoostingClassifier(random_state=0),
}

_NETWORK_OF_ROWS = "Expected images for a network (cnn), got rows; choose another classifier."

# A network passes this often over up to 20,000 images, and less often over more, so that the
# number of its steps is bounded.
CNN_EPOCHS = 8
_N_FULL_EPOCHS = 20_000
CNN_BATCH = 100
_LEARNING_RATE = 2e-3
_TEST_PART = 1000  # images that a network classifies at a time
# Fewer records are not cut into halves.
_LEAST_HALVED = 20


def scores(classifier: str | Network, train: Records, test: Records) -> dict[str, Any]:
    """Train a classifier, and return its scores on the test records.

    Args:
        classifier: Name of a classifier, or a function that makes a network.
        train: Training records, with the numbers of their classes.
        test: Test records.

    Returns:
        ``"accuracy"`` and ``"balanced_accuracy"`` in percent, and ``"auc"``, of each class of the
        test records against the rest, averaged; ``None`` if they have a single class. Records of a
        class that the training records lack are wrong, and its AUC is 0.5, that of guessing.

    Raises:
        InputError: If the classifier is unknown or does not suit the records, or the training
            records have a single class.
    """
    n_classes = _n_classes(train, test)
    return _scores_of(_probabilities(classifier, train, test, n_classes), test.labels.numpy())


def scores_of_halves(
    classifier: str | Network, one: Records, other: Records
) -> dict[str, Any] | None:
    """Return the scores of a classifier on two halves of real records.

    The classifier is trained on each half, and tested on the other one.

    Args:
        classifier: As for :func:`scores`.
        one: One half of real records.
        other: The other half.

    Returns:
        The scores of :func:`scores` on both halves together, and ``"n_train"``, the records of a
        half; ``None`` for fewer than 20 records, or halves of a single class.
    """
    if len(one) + len(other) < _LEAST_HALVED:
        return None
    if min(len(one.labels.unique()), len(other.labels.unique())) < 2:
        return None
    n_classes = _n_classes(one, other)
    probabilities = [
        _probabilities(classifier, other, one, n_classes),
        _probabilities(classifier, one, other, n_classes),
    ]
    truth = torch.cat([one.labels, other.labels]).numpy()
    return _scores_of(np.concatenate(probabilities), truth) | {"n_train": len(one)}


def check_classifiers(names: Sequence[str] | None, *, is_image: bool = True) -> None:
    """Refuse classifiers that are unknown, or that do not suit the records.

    Args:
        names: Names of the classifiers; ``None`` for the default ones.
        is_image: Whether the records are images, as a network needs.

    Raises:
        InputError: If a classifier is refused.
    """
    for name in names or ():
        choice((*_MODELS, "cnn"), classifiers=name)
        if name == "cnn" and not is_image:
            raise InputError(_NETWORK_OF_ROWS)


def _scores_of(probabilities: Array, truth: Array) -> dict[str, Any]:
    """Return accuracies and AUC of probabilities (n, C) for true classes (n,)."""
    predictions = probabilities.argmax(1)
    present = np.unique(truth)
    balanced = recall_score(truth, predictions, labels=present, average="macro")
    areas = []
    if len(present) > 1:
        areas = [roc_auc_score(truth == number, probabilities[:, number]) for number in present]
    return {
        "accuracy": round(float(100 * np.mean(predictions == truth)), 2),
        "balanced_accuracy": round(float(100 * balanced), 2),
        "auc": round(float(np.mean(areas)), 4) if areas else None,
    }


def _n_classes(one: Records, other: Records) -> int:
    """Return the number of classes of two sets of records: largest label plus one."""
    return 1 + max(int(one.labels.max()), int(other.labels.max()))


def _probabilities(
    classifier: str | Network, train: Records, test: Records, n_classes: int
) -> Array:
    """Return the probabilities (n, C) of the classes of test records.

    Those of classes that the training records lack are 0.
    """
    classes = train.labels.numpy()
    known_classes = np.unique(classes)
    if len(known_classes) < 2:
        raise InputError(
            "Expected training records of at least 2 classes, got 1; a classifier needs two."
        )
    probabilities = np.zeros((len(test), n_classes))
    is_image = train.values.ndim == 4
    network = SmallCNN if classifier == "cnn" else classifier
    if not isinstance(network, str):
        if not is_image:
            raise InputError(_NETWORK_OF_ROWS)
        of_network = _network_probabilities(network, train, test)
        probabilities[:, known_classes] = of_network[:, known_classes]
        return probabilities
    choice(("cnn", *_MODELS), classifier=network)
    model = clone(_MODELS[network])
    if not is_image:  # pixels are in [0, 1] already
        nominal = train.nominal
        if network == "boosting":  # trees cut positions of categories as well
            nominal = ()
        model = make_pipeline(_scaled(nominal, train.values.shape[1]), model)
    with warnings.catch_warnings():
        # the number of iterations is part of the setting
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(train.vectors(), classes)
    probabilities[:, model.classes_] = model.predict_proba(test.vectors())
    return probabilities


def _scaled(nominal: tuple[int, ...], n_columns: int) -> Any:
    """Return the preprocessing of rows, a transformer of scikit-learn.

    It standardises columns of numbers, and makes an indicator of every category.
    """
    if not nominal:
        return StandardScaler()
    numbers = [position for position in range(n_columns) if position not in nominal]
    indicators = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    return ColumnTransformer(
        [("categories", indicators, list(nominal)), ("numbers", StandardScaler(), numbers)]
    )


def _network_probabilities(make: Network, train: Records, test: Records) -> Array:
    """Train a network, and return its probabilities (n, C) for test images."""
    n_classes = int(train.labels.max()) + 1
    # The global random state stays as it is. A caller's torch.no_grad() is for the caller's code.
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        network = make(train.values.shape[1], n_classes)
        _train(network, train)
    network.eval()
    with torch.no_grad():
        parts = [network(part).softmax(1) for part in test.floats().split(_TEST_PART)]
    return np.asarray(torch.cat(parts).numpy())


def _train(network: nn.Module, train: Records) -> None:
    """Train a network by Adam, whose learning rate falls to zero like a cosine."""
    images = train.floats()
    n_epochs = round(CNN_EPOCHS * _N_FULL_EPOCHS / len(images))
    n_epochs = max(1, min(CNN_EPOCHS, n_epochs))
    n_steps = n_epochs * math.ceil(len(images) / CNN_BATCH)
    optimiser = torch.optim.Adam(network.parameters(), lr=_LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, n_steps)
    for _ in range(n_epochs):
        for batch in torch.randperm(len(images)).split(CNN_BATCH):
            optimiser.zero_grad()
            loss = F.cross_entropy(network(images[batch]), train.labels[batch])
            loss.backward()
            optimiser.step()
            schedule.step()
