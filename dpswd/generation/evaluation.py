"""Downstream evaluation: classifiers trained on synthetic records, tested on real ones.

The settings are fixed, and the same for synthetic and real training records; nothing is tuned on the test set. The
accuracies are measured on records that the guarantee does not cover: they are for benchmarks, no part of a release.
"""

import json
import time
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dpswd._files import write_json
from dpswd._validate import at_least, choice
from dpswd.data.base import PrivateData, Records
from dpswd.errors import InputError
from dpswd.generation.callbacks import generate
from dpswd.generation.small_cnn import train_cnn

__all__ = ["CLASSIFIERS", "IMAGE_CLASSIFIERS", "DownstreamEvaluation", "accuracy", "flat"]

Pair = tuple[np.ndarray, np.ndarray]  # rows and classes
CLASSIFIERS = ("logreg", "mlp")  # for records of any shape
IMAGE_CLASSIFIERS = (*CLASSIFIERS, "cnn")
CNN_EPOCHS = 8  # of up to 20,000 images


def _classifier(name: str, images: bool) -> Any:
    choice(CLASSIFIERS, classifier=name)
    if name == "logreg":
        model: Any = LogisticRegression(max_iter=100)
    else:
        model = MLPClassifier((100,), max_iter=20, random_state=0)
    return model if images else make_pipeline(StandardScaler(), model)  # pixels are in [0, 1] already


def flat(values: torch.Tensor) -> np.ndarray:
    """Flattens records (n, ...) to float32 rows."""
    return values.flatten(1).numpy().astype(np.float32)


def accuracy(name: str, train: Pair, test: Pair, images: bool, shape: tuple[int, ...] | None = None) -> float:
    """Trains a classifier and returns its accuracy on the test records, in percent.

    Args:
        name: One of ``IMAGE_CLASSIFIERS``.
        train: Flat rows (n, d) and classes (n,).
        test: Likewise.
        images: Whether rows are pixels in [0, 1].
        shape: (channels, height, width) of a row, for ``"cnn"``.
    """
    if name == "cnn":
        return _cnn_accuracy(train, test, shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a fixed number of iterations is part of the setting
        model = _classifier(name, images).fit(*train)
    return float(100 * model.score(*test))


def _cnn_accuracy(train: Pair, test: Pair, shape: tuple[int, ...] | None) -> float:
    if shape is None or len(shape) != 3:
        raise InputError(
            f"Expected the shape (channels, height, width) of the images for classifier='cnn', got {shape}."
        )
    images, tested = (torch.from_numpy(rows).unflatten(1, shape) for rows, _ in (train, test))
    classes = torch.from_numpy(train[1])
    epochs = max(1, min(CNN_EPOCHS, round(CNN_EPOCHS * 20_000 / len(images))))  # more images, not more steps
    network = train_cnn(images, classes, int(classes.max()) + 1, epochs=epochs)
    with torch.no_grad():
        found = torch.cat([network(part).argmax(dim=1) for part in tested.split(1000)])
    return float(100 * np.mean(found.numpy() == test[1]))


def _pair(records: Records) -> Pair:
    return flat(records.floats()), records.labels.numpy()


class DownstreamEvaluation(L.Callback):
    """Writes ``downstream.json`` at the end of a fit and prints it.

    Args:
        n_synthetic: Synthetic training records, spread evenly over the classes.
        real: Train the same classifiers on real private records too, for comparison. For public benchmarks only, and
            refused otherwise: those accuracies are statistics of the private records and leave without noise.
        cnn: Train a small convolutional network too, where records are images.
    """

    def __init__(self, n_synthetic: int = 60_000, real: bool = False, cnn: bool = False) -> None:
        at_least(1, n_synthetic=n_synthetic)
        self.n_synthetic, self.real, self.cnn = n_synthetic, real, cnn

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Refuses statistics of records that are private in earnest."""
        if self.real and not trainer.datamodule.public_benchmark:
            raise InputError(
                f"Expected real: false for {trainer.datamodule.name}, got true: classifiers trained on private records "
                "give away more than the budget; it is for public benchmarks."
            )

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Trains, tests, writes, prints."""
        data: PrivateData = trainer.datamodule
        classes = pl_module.generator.n_classes
        if data.test is None or not classes or trainer.fast_dev_run or not trainer.is_global_zero:
            return
        started = time.monotonic()
        labels = torch.arange(self.n_synthetic) % classes
        sources = {"synthetic": Records(generate(pl_module, labels), labels)}
        if self.real:
            order = torch.randperm(len(data.private))[: self.n_synthetic]
            sources["real"] = data.private.select(order)
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
        path = Path(trainer.default_root_dir) / "downstream.json"
        write_json(path, {"rows": rows, "seconds": round(time.monotonic() - started, 1)})
        print(json.dumps(rows, indent=None))
