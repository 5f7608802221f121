"""Shapes against pixels: the one-shot generator on digits and on silhouettes.

Digits are those of MNIST, by the shipped configs ``mnist_shapes`` and ``mnist``. Silhouettes are
the images of Fashion-MNIST, light where a pixel is above a tenth. The constants of shapes were
chosen on both. Nothing was chosen on the digits of USPS. These and silhouettes have no jitter.
Classifiers are trained on 60,000 generated images and tested on the real test images. A CNN is
trained to tell generated images from real test images. ``OUT/shapes/cells`` has the finished cells.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from dpswd.data import Benchmark
from dpswd.evaluation.accuracy import IMAGE_CLASSIFIERS
from dpswd.evaluation.two_sample import two_sample_test
from dpswd.features.shapes import EDGE_WIDTH, LARGEST_DISTANCE
from dpswd.files.pictures import save_grid
from dpswd.networks.generator import draw
from dpswd.records import Records
from experiments import cells
from experiments.generation.training import (
    CONFIGS,
    DELTA,
    accuracies,
    digest,
    load,
    shipped_constants,
    train_mixture,
)
from experiments.results import Result, Row

BUDGETS = (10.0, 1.0, 0.2)
N_SEEDS = 3
N_SYNTHETIC = 60_000
WITHOUT_JITTER = ("silhouettes", "USPS")
N_REAL = 2000  # test images, and as many generated ones, of which a CNN tells one from the other
QUICK_SYNTHETIC = 2_000
# Brightness of Fashion-MNIST above which a pixel belongs to a silhouette.
_SILHOUETTE = 0.1
_N_SHOWN = 10  # images of a class in a picture
METHODS = {True: "one-shot mixture, shapes", False: "one-shot mixture, pixels"}


@dataclass(frozen=True)
class Cell(cells.Cell):
    """A fit on one data set, in shapes or in pixels."""

    dataset: str
    epsilon: float
    seed: int
    as_shapes: bool


def run(
    out: Path, *, quick: bool = False, data: Path | None = None, seeds: int = N_SEEDS
) -> Result:
    """Compare shapes with pixels: accuracy of classifiers (half an hour; resumes).

    The classifiers are trained on generated images.
    """
    planned = plan(seeds)
    n_synthetic = N_SYNTHETIC
    if quick:
        planned = planned[:1]
        n_synthetic = QUICK_SYNTHETIC
    directory = cells.directory_of(out, "shapes", quick=quick)
    work = partial(run_cell, pictures=directory, data=data, n_synthetic=n_synthetic)
    results = cells.run_cells(planned, work, directory / "cells", version=version, workers=0)
    return {"rows": summarise(results)}


def plan(n_seeds: int) -> list[Cell]:
    """List the cells, one seed after the other."""
    planned = []
    for seed in range(n_seeds):
        planned += [Cell("MNIST", epsilon, seed, as_shapes=True) for epsilon in BUDGETS]
        planned += [Cell("MNIST", BUDGETS[0], seed, as_shapes=False)]
        for dataset in WITHOUT_JITTER:
            planned += [Cell(dataset, BUDGETS[0], seed, shapes) for shapes in (True, False)]
    return planned


def version(cell: Cell) -> str:
    """Return a digest of the constants: a cell is run again when they change."""
    settings = constants(cell)
    if cell.as_shapes:
        settings |= {"edge_width": EDGE_WIDTH, "largest_distance": LARGEST_DISTANCE}
    return digest(settings)


def constants(cell: Cell) -> dict[str, Any]:
    """Return the public constants of a cell."""
    if cell.dataset == "MNIST":
        name = "mnist_shapes" if cell.as_shapes else "mnist"
        return shipped_constants(CONFIGS / f"{name}.yaml")
    if cell.as_shapes:
        return {"shapes": "light"}
    return {}


def run_cell(cell: Cell, pictures: Path, data: Path | None, n_synthetic: int) -> Result:
    """Fit, draw a picture, train classifiers."""
    loaded = load_images(cell.dataset, data)
    started = time.process_time()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "constants.yaml"
        path.write_text("")
        trained = train_mixture(
            loaded.private(),
            path,
            Path(directory) / "run",
            epsilon=cell.epsilon,
            seed=cell.seed,
            **constants(cell),
        )
    seconds = time.process_time() - started
    labels = torch.arange(n_synthetic) % 10
    images = draw(trained.generator, labels)
    torch.manual_seed(cell.seed)
    grid = draw(trained.generator, torch.arange(10).repeat_interleave(_N_SHOWN))
    pictures.mkdir(parents=True, exist_ok=True)
    save_grid(grid, pictures / f"{cell.name}.png", _N_SHOWN)
    return {
        "dataset": cell.dataset,
        "epsilon": cell.epsilon,
        "seed": cell.seed,
        "as_shapes": cell.as_shapes,
        "sound": trained.privacy.sound,
        "mu": trained.privacy.mu,
        "delta": DELTA,
        "cpu_seconds": round(seconds, 1),
        "auc": _auc(images, labels, loaded),
        "accuracy": accuracies(IMAGE_CLASSIFIERS, images, labels, loaded),
    }


def _auc(images: Tensor, labels: Tensor, loaded: Benchmark) -> float | None:
    """Return the AUC of a CNN that tells generated images from real test images."""
    assert loaded.test is not None
    order = torch.randperm(len(loaded.test), generator=torch.Generator().manual_seed(0))
    real = loaded.test.select(order[:N_REAL])
    generated = Records(images[:N_REAL], labels[:N_REAL])
    return two_sample_test(generated, real)["cnn"]


def load_images(dataset: str, data: Path | None) -> Benchmark:
    """Return a benchmark, or the silhouettes of Fashion-MNIST."""
    if dataset != "silhouettes":
        return load(dataset, data)
    loaded = load("FashionMNIST", data)
    assert loaded.test is not None
    return replace(loaded, train=_silhouettes(loaded.train), test=_silhouettes(loaded.test))


def _silhouettes(records: Records) -> Records:
    values: Tensor = (records.floats() > _SILHOUETTE).float()
    return Records(values, records.labels)


def summarise(results: Sequence[Result]) -> list[Row]:
    """Average cells over seeds: a row for each setting and classifier."""
    rows = []
    groups = cells.grouped(
        results, lambda result: (result["dataset"], result["epsilon"], result["as_shapes"])
    )
    for seed_results in groups.values():
        first = seed_results[0]
        row: Row = {
            "dataset": first["dataset"],
            "method": METHODS[first["as_shapes"]],
            "statistic": "moments",
            "train_seconds": round(mean(result["cpu_seconds"] for result in seed_results), 1),
            "auc": round(mean(result["auc"] for result in seed_results), 4),
        }
        for name in ("epsilon", "delta", "mu", "sound"):
            row[name] = first[name]
        rows += cells.by_classifier(seed_results, row)
    return rows
