"""Downstream evaluation: classifiers trained on synthetic records, tested on real ones.

The settings are fixed, and the same for synthetic and real training records; nothing is tuned on the test records. The
accuracies are exact statistics of real records, which the guarantee does not cover.
"""

import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from dpswd._files import write_json
from dpswd._validate import at_least, choice
from dpswd.data.base import PrivateData, Records
from dpswd.errors import InputError
from dpswd.generation.export import generate

__all__ = ["CLASSIFIERS", "IMAGE_CLASSIFIERS", "DownstreamEvaluation", "SmallCNN", "accuracy"]

Pair = tuple[np.ndarray, np.ndarray]  # rows and classes
M = TypeVar("M", bound=nn.Module)
CLASSIFIERS = ("logreg", "mlp")  # for records of any shape
IMAGE_CLASSIFIERS = (*CLASSIFIERS, "cnn")
CNN_EPOCHS = 8  # of up to 20,000 images


def write_evaluation(directory: str | Path, rows: list[dict[str, Any]], *, public: bool, **facts: Any) -> Path:
    """Writes accuracies to ``evaluation.json``, or to ``private_evaluation.json`` unless the test records are public.

    The report reads the first file. It ignores the second by default, since an exact accuracy on private records is not
    covered by the guarantee.
    """
    path = Path(directory) / ("evaluation.json" if public else "private_evaluation.json")
    write_json(path, {"rows": rows, **facts})
    print(json.dumps(rows))
    if not public:
        print(f"These accuracies are exact statistics of private records: keep {path} to yourself.")
    return path


class DownstreamEvaluation(L.Callback):
    """Evaluates the synthetic records at the end of a fit; see :func:`write_evaluation` for the file.

    Args:
        n_synthetic: Synthetic training records, spread evenly over the classes.
        real: Train the same classifiers on the private records too. Refused unless they are a public benchmark.
        cnn: Train a small convolutional network too, where records are images.

    Raises:
        InputError: If ``n_synthetic`` is below 1.

    Example:
        >>> callback = DownstreamEvaluation(n_synthetic=10_000)  # L.Trainer(callbacks=[budget, callback], ...)
        >>> callback.real
        False
    """

    def __init__(self, n_synthetic: int = 60_000, real: bool = False, cnn: bool = False) -> None:
        at_least(1, n_synthetic=n_synthetic)
        self.n_synthetic, self.real, self.cnn = n_synthetic, real, cnn

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Refuses ``real=True`` for records that are not a public benchmark.

        Raises:
            InputError: If the data module does not state that the records are public.
        """
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        if self.real and not data.public_benchmark:
            raise InputError(
                f"Expected real: false for {data.name}, got true: classifiers trained on private records are not "
                "covered by the budget. If the records are public, state it with --data.public_benchmark true."
            )

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Trains and tests the classifiers, and writes their accuracies."""
        module: Any = pl_module
        data: PrivateData = trainer.datamodule  # type: ignore[attr-defined]
        classes = module.generator.n_classes
        if data.test is None or not classes or trainer.fast_dev_run or not trainer.is_global_zero:  # type: ignore[attr-defined]
            return
        started = time.monotonic()
        labels = torch.arange(self.n_synthetic) % classes
        sources = {"synthetic": Records(generate(module, labels), labels)}
        if self.real:
            sources["real"] = data.private.select(torch.randperm(len(data.private))[: self.n_synthetic])
        test, shape = _pair(data.test), tuple(data.test.values.shape[1:])
        images = len(shape) == 3
        rows = [
            {
                "dataset": data.name,
                "classifier": name,
                "train": source,
                "accuracy": round(accuracy(name, _pair(records), test, images, shape), 2),
                "n_train": len(records),
                "n_test": len(data.test),
            }
            for source, records in sources.items()
            for name in (IMAGE_CLASSIFIERS if images and self.cnn else CLASSIFIERS)
        ]
        seconds = round(time.monotonic() - started, 1)
        write_evaluation(trainer.default_root_dir, rows, public=data.public_benchmark, seconds=seconds)


def accuracy(name: str, train: Pair, test: Pair, images: bool, shape: tuple[int, ...] | None = None) -> float:
    """Trains a classifier and returns its accuracy on the test records, in percent.

    Args:
        name: One of ``IMAGE_CLASSIFIERS``.
        train: Flat rows (n, d) and classes (n,).
        test: Rows and classes for testing, in the format of ``train``.
        images: Whether rows are pixels in [0, 1].
        shape: (channels, height, width) of a row, for ``"cnn"``.

    Raises:
        InputError: If the classifier is unknown, or ``"cnn"`` has no shape.

    Example:
        >>> rows, classes = np.eye(4, dtype=np.float32), np.array([0, 0, 1, 1])
        >>> accuracy("logreg", (rows, classes), (rows, classes), images=True)
        100.0
    """
    if name == "cnn":
        return cnn_accuracy(SmallCNN, train, test, shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the number of iterations is part of the setting
        model = _classifier(name, images).fit(*train)
    return float(100 * model.score(*test))


def _classifier(name: str, images: bool) -> Any:
    choice(CLASSIFIERS, classifier=name)
    if name == "logreg":
        model: Any = LogisticRegression(max_iter=100)
    else:
        model = MLPClassifier((100,), max_iter=20, random_state=0)
    return model if images else make_pipeline(StandardScaler(), model)  # pixels are in [0, 1] already


def cnn_accuracy(
    make: Callable[[int, int], nn.Module], train: Pair, test: Pair, shape: tuple[int, ...] | None
) -> float:
    """Trains a network of :func:`train_cnn` and returns its accuracy; see :func:`accuracy`."""
    if shape is None or len(shape) != 3:
        raise InputError(
            f"Expected the shape (channels, height, width) of the images for classifier='cnn', got {shape}."
        )
    images, tested = (torch.from_numpy(rows).unflatten(1, shape) for rows, _ in (train, test))
    classes = torch.from_numpy(train[1])
    epochs = max(1, min(CNN_EPOCHS, round(CNN_EPOCHS * 20_000 / len(images))))  # a bounded number of steps
    network = train_cnn(make, images, classes, int(classes.max()) + 1, epochs=epochs)
    with torch.no_grad():
        found = torch.cat([network(part).argmax(dim=1) for part in tested.split(1000)])
    return float(100 * np.mean(found.numpy() == test[1]))


def flat(values: Tensor) -> np.ndarray:
    """Flattens records (n, ...) to float32 rows."""
    return np.asarray(values.flatten(1).numpy(), dtype=np.float32)


def _pair(records: Records) -> Pair:
    return flat(records.floats()), records.labels.numpy()


class SmallCNN(nn.Module):
    """Small convolutional classifier: maps images (n, channels, h, w) to scores (n, n_outputs).

    Two strided convolutions and one hidden layer; 20,000 images of 28 x 28 take about ten seconds on one core.

    Args:
        channels: 1 for grey, 3 for RGB.
        n_outputs: Classes, or attributes.
        hidden: Size of the layer before the scores.

    Raises:
        InputError: If a value is out of range.

    Example:
        >>> SmallCNN(channels=1, n_outputs=10)(torch.rand(2, 1, 28, 28)).shape
        torch.Size([2, 10])
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
        """Returns the hidden layer (n, hidden)."""
        hidden: Tensor = self.body(images - 0.5)
        return hidden

    def forward(self, images: Tensor) -> Tensor:
        """Returns the scores (n, n_outputs)."""
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
    """Trains a network on images (n, channels, h, w) in [0, 1] and classes (n,), by Adam with a cosine.

    ``make`` maps the numbers of channels and of outputs to a network, as :class:`SmallCNN` does. The result depends on
    ``seed`` only; the global random state stays as it is.

    Raises:
        InputError: If the images have another shape than (n, channels, h, w).
    """
    at_least(1, epochs=epochs, batch=batch)
    if images.ndim != 4 or len(images) != len(labels):
        raise InputError(
            f"Expected images (n, channels, h, w) and as many labels for the CNN, got {tuple(images.shape)} and "
            f"{tuple(labels.shape)}; feature vectors need another classifier."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = make(images.shape[1], n_outputs)
        optimizer = torch.optim.Adam(network.parameters(), lr=lr)
        steps = epochs * -(-len(images) // batch)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in range(epochs):
            for part in torch.randperm(len(images)).split(batch):
                optimizer.zero_grad()
                F.cross_entropy(network(images[part]), labels[part]).backward()
                optimizer.step()
                schedule.step()
    return network.eval()
