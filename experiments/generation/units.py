"""Persons with three records each: ``per_unit=3`` and ``per_unit=1``.

The experiment shows what both amount to. The first 6,000 images of MNIST are those of 2,000
persons, three each. With ``per_unit=3`` all of them enter, with three times the noise. The same
images as 6,000 records of their own, at a third of mu, must therefore give the same accuracy: this
is the control.
"""

import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor

from dpswd.accounting.calibrate import mu_of_epsilon
from dpswd.data import Benchmark, benchmark
from dpswd.estimators.generator import PrivateGenerator
from dpswd.evaluation.accuracy import scores
from dpswd.files.pictures import save_grid
from dpswd.networks.generator import draw
from dpswd.records import PrivateRecords, Records
from experiments.generation.training import SHIPPED, shipped_constants

N_PERSONS = 2000
RECORDS_OF_A_PERSON = 3
N_SYNTHETIC = 10_000
EPSILON = 10.0
DELTA = 1e-5
CLASSIFIERS = ("logreg", "cnn")
# Number of images of each class in the picture.
N_SHOWN = 10


def run(out: Path, *, quick: bool = False, data: Path | None = None) -> dict[str, Any]:
    """Measure what protecting persons with three records costs (ten minutes)."""
    mnist = benchmark("mnist", data, public=True)
    seeds = range(3)
    if quick:
        seeds = range(1)
    rows = []
    for setting, records, epsilon in _settings(mnist):
        accuracies: dict[str, list[float]] = {name: [] for name in CLASSIFIERS}
        for seed in seeds:
            images, labels = _synthetic(records, epsilon, seed, out / f"units-{setting}.png")
            for name in CLASSIFIERS:
                accuracies[name].append(_accuracy(name, images, labels, mnist))
        for name in CLASSIFIERS:
            rows.append(_row(setting, records, epsilon, name, accuracies[name]))
    return {"rows": rows}


def _row(
    setting: str, records: PrivateRecords, epsilon: float, classifier: str, accuracies: list[float]
) -> dict[str, Any]:
    """Return the accuracies (one per seed) of a setting as a row of the result."""
    std = None
    if len(accuracies) > 1:
        std = stdev(accuracies)
    return {
        "dataset": "MNIST",
        "setting": setting,
        "unit": records.protects,
        "epsilon": epsilon,
        "classifier": classifier,
        "mean": mean(accuracies),
        "std": std,
        "seeds": len(accuracies),
    }


def _settings(mnist: Benchmark) -> list[tuple[str, PrivateRecords, float]]:
    """Return the name, the handle and the budget of each setting."""
    n_records = N_PERSONS * RECORDS_OF_A_PERSON
    images = mnist.train.values[:n_records]
    labels = mnist.train.labels[:n_records]
    persons = np.arange(n_records) // RECORDS_OF_A_PERSON
    settings = []
    for per_unit in (RECORDS_OF_A_PERSON, 1):
        records = PrivateRecords(images, labels, classes=range(10), unit=persons, per_unit=per_unit)
        settings.append((f"per_unit={per_unit}", records, EPSILON))
    records = PrivateRecords(images, labels, classes=range(10))
    settings.append(("records, a third of mu", records, _epsilon_of_a_third()))
    return settings


def _epsilon_of_a_third() -> float:
    """Return the epsilon whose mu is a third of that of the budget."""
    third = mu_of_epsilon(EPSILON, DELTA) / RECORDS_OF_A_PERSON
    return float(brentq(lambda epsilon: mu_of_epsilon(epsilon, DELTA) - third, 0.1, EPSILON))


def _synthetic(
    records: PrivateRecords, epsilon: float, seed: int, picture: Path
) -> tuple[Tensor, Tensor]:
    """Fit a generator, write a picture of its images, and return images and labels."""
    constants = shipped_constants(SHIPPED["MNIST"])
    for name in ("size", "channels", "classes"):
        constants.pop(name, None)
    with tempfile.TemporaryDirectory() as place:
        generator = PrivateGenerator(
            epsilon, DELTA, run_dir=f"{place}/run", verbose=False, **constants
        ).fit(records)
    labels = torch.arange(N_SYNTHETIC) % 10
    torch.manual_seed(seed)
    images = draw(generator.generator_, labels)
    picture_labels = torch.arange(10).repeat_interleave(N_SHOWN)
    save_grid(draw(generator.generator_, picture_labels), picture, N_SHOWN)
    return images, labels


def _accuracy(name: str, images: Tensor, labels: Tensor, mnist: Benchmark) -> float:
    """Return the accuracy of a classifier trained on synthetic images.

    The accuracy is measured on real images.
    """
    assert mnist.test is not None
    return float(scores(name, Records(images, labels), mnist.test)["accuracy"])
