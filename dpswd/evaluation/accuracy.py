"""Utility: accuracies on real records of classifiers trained on synthetic ones.

The settings are fixed, and the same for synthetic and real training records.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import recall_score, roc_auc_score
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from dpswd._layout import Array
from dpswd._validate import choice
from dpswd.errors import InputError
from dpswd.networks.classifiers import SmallCNN
from dpswd.records import Records

__all__ = ["IMAGE_CLASSIFIERS", "ROW_CLASSIFIERS", "scores"]
Network = Callable[[int, int], nn.Module]  # of the numbers of channels and of outputs
IMAGE_CLASSIFIERS = ("logreg", "mlp", "cnn")
ROW_CLASSIFIERS = ("logreg", "mlp", "boosting")
_MODELS = {
    "logreg": LogisticRegression(max_iter=100),
    "mlp": MLPClassifier((100,), max_iter=20, random_state=0),
    "boosting": HistGradientBoostingClassifier(random_state=0),
}
CNN_EPOCHS = 8  # of up to 20,000 images
CNN_BATCH = 100


def scores(classifier: str | Network, train: Records, test: Records) -> dict[str, Any]:
    """Train a classifier; return accuracy and balanced accuracy on the test records in percent, and the AUC.

    The AUC is of each class of the test records against the rest, averaged; ``None`` if they have a single class.
    """
    found = _probabilities(classifier, train, test)
    truth, guess = test.labels.numpy(), found.argmax(1)
    present = np.unique(truth)
    balanced = recall_score(truth, guess, labels=present, average="macro")
    areas = (
        [roc_auc_score(truth == c, found[:, c]) for c in present if c < found.shape[1]]
        if len(present) > 1
        else []
    )
    return {
        "accuracy": round(float(100 * np.mean(guess == truth)), 2),
        "balanced_accuracy": round(float(100 * balanced), 2),
        "auc": round(float(np.mean(areas)), 4) if areas else None,
    }


def _probabilities(classifier: str | Network, train: Records, test: Records) -> Array:
    """Return probabilities (n, C) of the classes of test records, C - 1 the largest class of the training records."""
    classes, images = train.labels.numpy(), train.values.ndim == 4
    if len(np.unique(classes)) < 2:
        raise InputError(
            "Expected synthetic records of at least 2 classes, got 1; a classifier needs two."
        )
    network = SmallCNN if classifier == "cnn" else classifier
    if not isinstance(network, str):
        if not images:
            raise InputError(
                "Expected images for a network (cnn), got rows; choose another classifier."
            )
        return _network(network, train, test)
    choice(("cnn", *_MODELS), classifier=network)
    model = clone(_MODELS[network])
    model = (
        model if images else make_pipeline(StandardScaler(), model)
    )  # pixels are in [0, 1] already
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", ConvergenceWarning
        )  # the number of iterations is part of the setting
        model.fit(train.vectors(), classes)
    found = np.zeros((len(test), int(classes.max()) + 1))
    found[:, model.classes_] = model.predict_proba(test.vectors())
    return found


def _network(make: Network, train: Records, test: Records) -> Array:
    """Train a network on images by Adam with a cosine; the global random state stays as it is."""
    images, classes = train.floats(), train.labels
    epochs = max(
        1, min(CNN_EPOCHS, round(CNN_EPOCHS * 20_000 / len(images)))
    )  # a bounded number of steps
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = make(images.shape[1], int(classes.max()) + 1)
        optimiser = torch.optim.Adam(network.parameters(), lr=2e-3)
        steps = epochs * -(-len(images) // CNN_BATCH)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        for _ in range(epochs):
            for part in torch.randperm(len(images)).split(CNN_BATCH):
                optimiser.zero_grad()
                F.cross_entropy(network(images[part]), classes[part]).backward()
                optimiser.step()
                schedule.step()
    network.eval()
    with torch.no_grad():
        found = torch.cat([network(part).softmax(1) for part in test.floats().split(1000)])
    return np.asarray(found.numpy())
