"""Utility: accuracies on real records of classifiers trained on synthetic ones.

The settings are fixed, and the same for synthetic and real training records.
"""

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from dpswd._validate import at_least, choice
from dpswd.errors import InputError

__all__ = ["CLASSIFIERS", "IMAGE_CLASSIFIERS", "ROW_CLASSIFIERS", "SmallCNN", "scores", "train_cnn"]

Array = NDArray[Any]
Pair = tuple[Array, Array]  # rows and classes
M = TypeVar("M", bound=nn.Module)
Network = Callable[[int, int], nn.Module]  # of the numbers of channels and of outputs
CLASSIFIERS = ("logreg", "mlp")  # for records of any shape
IMAGE_CLASSIFIERS = (*CLASSIFIERS, "cnn")
ROW_CLASSIFIERS = (*CLASSIFIERS, "boosting")
CNN_EPOCHS = 8  # of up to 20,000 images


def scores(
    classifier: str | Network, train: Pair, test: Pair, images: bool, shape: tuple[int, ...] | None = None
) -> dict[str, Any]:
    """Train a classifier; return accuracy and balanced accuracy on the test records in percent, and the AUC.

    The AUC is that of each class against the rest, averaged over the classes of the test records; ``None`` if they
    have a single class.

    Args:
        classifier: Name, or the network of :func:`train_cnn`.
        train: Flat rows (n, d), pixels in [0, 1] for ``images``, and classes (n,).
        test: The same of the test records.
        images: Whether the rows are images.
        shape: (channels, height, width) of a row; for networks.
    """
    found = _probabilities(classifier, train, test[0], images, shape)
    truth, guess = test[1], found.argmax(1)
    present = np.unique(truth)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of classes that occur among the predictions only
        balanced = 100 * balanced_accuracy_score(truth, guess)
    areas = [roc_auc_score(truth == c, found[:, c]) for c in present if c < found.shape[1]] if len(present) > 1 else []
    return {
        "accuracy": round(float(100 * np.mean(guess == truth)), 2),
        "balanced_accuracy": round(float(balanced), 2),
        "auc": round(float(np.mean(areas)), 4) if areas else None,
    }


def _probabilities(
    classifier: str | Network, train: Pair, rows: Array, images: bool, shape: tuple[int, ...] | None
) -> Array:
    """Return probabilities (n, C) of the classes of test rows, C the largest class of the training records plus 1."""
    if len(np.unique(train[1])) < 2:
        raise InputError("Expected synthetic records of at least 2 classes, got 1; a classifier needs two.")
    if not isinstance(classifier, str):
        return _network(classifier, train, rows, shape)
    choice((*IMAGE_CLASSIFIERS, "boosting"), classifier=classifier)
    if classifier == "cnn":
        return _network(SmallCNN, train, rows, shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the number of iterations is part of the setting
        model = _classifier(classifier, images).fit(*train)
    found = np.zeros((len(rows), int(train[1].max()) + 1))
    found[:, model.classes_] = model.predict_proba(rows)
    return found


def _classifier(name: str, images: bool) -> Any:
    if name == "boosting":
        return HistGradientBoostingClassifier(random_state=0)
    if name == "logreg":
        model: Any = LogisticRegression(max_iter=100)
    else:
        model = MLPClassifier((100,), max_iter=20, random_state=0)
    return model if images else make_pipeline(StandardScaler(), model)  # pixels are in [0, 1] already


def _network(make: Network, train: Pair, rows: Array, shape: tuple[int, ...] | None) -> Array:
    if shape is None or len(shape) != 3:
        raise InputError(f"Expected the shape (channels, height, width) of images for classifier='cnn', got {shape}.")
    images, tested = (torch.from_numpy(each).unflatten(1, shape) for each in (train[0], rows))
    classes = torch.from_numpy(train[1])
    epochs = max(1, min(CNN_EPOCHS, round(CNN_EPOCHS * 20_000 / len(images))))  # a bounded number of steps
    network = train_cnn(make, images, classes, int(classes.max()) + 1, epochs=epochs)
    with torch.no_grad():
        found = torch.cat([network(part).softmax(1) for part in tested.split(1000)])
    return np.asarray(found.numpy())


def flat(values: Tensor) -> Array:
    """Flatten records (n, ...) to float32 rows."""
    return np.asarray(values.flatten(1).numpy(), dtype=np.float32)


class SmallCNN(nn.Module):
    """Small convolutional classifier: maps images (n, channels, h, w) to scores (n, n_outputs).

    Two strided convolutions and one hidden layer; 20,000 images of 28 x 28 take about ten seconds on one core.
    """

    def __init__(self, channels: int, n_outputs: int, hidden: int = 64) -> None:
        super().__init__()
        at_least(1, channels=channels, n_outputs=n_outputs, hidden=hidden)
        self.body = nn.Sequential(
            nn.Conv2d(channels, 16, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(7),
            nn.Flatten(),
            nn.Linear(32 * 49, hidden),
            nn.ReLU(),
        )
        self.head = nn.Linear(hidden, n_outputs)

    def features(self, images: Tensor) -> Tensor:
        """Return the hidden layer (n, hidden)."""
        hidden: Tensor = self.body(images - 0.5)
        return hidden

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores (n, n_outputs)."""
        scores: Tensor = self.head(self.features(images))
        return scores


def train_cnn(
    make: Callable[[int, int], M],
    images: Tensor,
    labels: Tensor,
    n_outputs: int,
    *,
    epochs: int = 8,
    batch: int = 100,
    lr: float = 2e-3,
    seed: int = 0,
) -> M:
    """Train a network on images (n, channels, h, w) in [0, 1] and classes (n,), by Adam with a cosine.

    ``make`` maps the numbers of channels and of outputs to a network, as :class:`SmallCNN` does. The result depends on
    ``seed`` only; the global random state stays as it is.
    """
    at_least(1, epochs=epochs, batch=batch)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = make(images.shape[1], n_outputs)
        optimiser = torch.optim.Adam(network.parameters(), lr=lr)
        steps = epochs * -(-len(images) // batch)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        for _ in range(epochs):
            for part in torch.randperm(len(images)).split(batch):
                optimiser.zero_grad()
                F.cross_entropy(network(images[part]), labels[part]).backward()
                optimiser.step()
                schedule.step()
    return network.eval()
