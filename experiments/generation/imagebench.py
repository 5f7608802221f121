"""Classifiers trained on synthetic images, after DPImageBench (Gong2025).

Each cell fits the shipped config of a data set on its split of DPImageBench, with
delta = 1 / (N ln N), and trains four classifiers on what it generates: logistic regression, the MLP
and the small CNN of :mod:`dpswd.evaluation.accuracy`, and :class:`LargerCNN`. *Best* and *mean* are
over the three networks. ``docs/imagebench.md`` says what differs from DPImageBench.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpswd.data import Benchmark, benchmark, data_root, every_fifth
from dpswd.evaluation.accuracy import IMAGE_CLASSIFIERS, scores
from dpswd.evaluation.images import check_weights
from dpswd.networks.generator import draw as draw_images
from dpswd.records import Records
from experiments import cells
from experiments.generation.frechet import fidelity
from experiments.generation.pictures import Picture, draw_grids, grid
from experiments.generation.table2 import LABELS
from experiments.generation.training import (
    SHIPPED,
    Privacy,
    accuracies,
    constants_digest,
    load,
    to_bytes,
    train_mixture,
)
from experiments.results import Result, Row

N_SEEDS = 3
NETWORKS = ("mlp", "cnn", "larger_cnn")
METHODS = ("mixture", "real records")
ATTRIBUTES = "celeba64_attr.txt"
N_COLUMNS = 10  # of the figure, with two images each


@dataclass(frozen=True)
class Printed:
    """Accuracies of a paper by its own protocol, by classifier."""

    dataset: str
    method: str
    epsilon: float
    accuracies: dict[str, float]


PUBLISHED = (
    Printed("MNIST", "FETA-Pro", 10.0, {"best": 98.5}),
    Printed("MNIST", "FETA-Pro", 1.0, {"best": 97.3}),
    Printed("MNIST", "FETA-Pro", 0.2, {"best": 86.2}),
    Printed("MNIST", "DPDM", 10.0, {"logreg": 90.8, "mlp": 94.8, "cnn": 98.1}),
    Printed("MNIST", "DPDM", 1.0, {"logreg": 86.7, "mlp": 91.6}),
    Printed("FashionMNIST", "FETA-Pro", 10.0, {"best": 88.2}),
    Printed("FashionMNIST", "FETA-Pro", 1.0, {"best": 83.4}),
    Printed("FashionMNIST", "DP-FETA", 0.2, {"best": 73.4}),
    Printed("FashionMNIST", "DPDM", 10.0, {"logreg": 81.1, "mlp": 83.0}),
    Printed("FashionMNIST", "DPDM", 1.0, {"logreg": 76.3, "mlp": 76.9}),
    Printed("CIFAR10", "FETA-Pro", 10.0, {"best": 44.6}),
    Printed("CIFAR10", "FETA-Pro", 1.0, {"best": 37.9}),
    Printed("faces", "FETA-Pro", 10.0, {"best": 94.9}),
    Printed("faces", "FETA-Pro", 1.0, {"best": 90.0}),
)


class LargerCNN(nn.Module):
    """Map images (n, channels, h, w) in [0, 1] to scores (n, n_outputs).

    It has more maps than the small CNN: two blocks of a 3 x 3 convolution and max-pooling, with 32
    and 64 maps, and one hidden layer of 128 units with dropout. The second pooling ends in 7 x 7
    maps for every size of the images.
    """

    def __init__(self, channels: int, n_outputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveMaxPool2d(7),
            nn.Flatten(),
            nn.Dropout(0.4),
            nn.Linear(64 * 49, 128),
            nn.ReLU(),
            nn.Dropout(0.4),
            nn.Linear(128, n_outputs),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores (n, n_outputs)."""
        scores: Tensor = self.body(images - 0.5)
        return scores


@dataclass(frozen=True)
class Task:
    """A data set of the benchmark.

    Attributes:
        constants: File of the public constants of the generator.
        budgets: Epsilons.
        n_train: Number of private records, chosen by seed 0; ``None`` for all.
        n_synthetic: Number of synthetic images.
        residual: ``False`` where images are smoother than photographs, as aligned faces are.
    """

    constants: Path
    budgets: tuple[float, ...]
    n_train: int | None = None
    n_synthetic: int = 60_000
    residual: bool | None = None

    def records(self, name: str, data: Path | None) -> Benchmark:
        """Return the data set with its split."""
        if name == "faces":
            return faces(data)
        loaded = load(name, data)
        order = torch.randperm(len(loaded.train), generator=torch.Generator().manual_seed(0))
        private = loaded.train.select(order[: self.n_train])
        return dataclasses.replace(loaded, train=private)


TASKS = {
    "MNIST": Task(SHIPPED["MNIST"], (10.0, 1.0, 0.2), 55_000),
    "FashionMNIST": Task(SHIPPED["FashionMNIST"], (10.0, 1.0, 0.2), 55_000),
    "CIFAR10": Task(SHIPPED["CIFAR10"], (10.0, 1.0), 45_000),
    "faces": Task(Path(__file__).with_name("celeba.yaml"), (10.0, 1.0), residual=False),
    "digits": Task(SHIPPED["digits"], (10.0, 1.0), n_synthetic=2000),  # --quick only
}


def faces(data: Path | None) -> Benchmark:
    """Return the 5,000 faces at 32 x 32, female (0) or male (1).

    Every fifth is for testing.
    """
    loaded = benchmark("celeba", data, size=32, public=True)
    assert loaded.test is not None
    n = len(loaded.train) + len(loaded.test)
    is_test = torch.arange(n) % 5 == 4
    images = loaded.train.values.new_empty(n, *loaded.shape)
    images[~is_test] = loaded.train.values
    images[is_test] = loaded.test.values
    train, test = every_fifth(Records(images, _male(data)))
    return Benchmark("faces", train, test, True, [0, 1])


def _male(data: Path | None) -> Tensor:
    """Return the attribute of every face (n,), in the order of the names of the files."""
    text = (data_root(data) / ATTRIBUTES).read_text()
    _, header, *lines = text.splitlines()
    column = header.split().index("Male") + 1  # the name of the file comes first
    return torch.tensor([int(line.split()[column] == "1") for line in sorted(lines)])


# Cells --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell(cells.Cell):
    """A generator, or the real training records (``epsilon`` is ``None``)."""

    dataset: str
    method: str
    epsilon: float | None
    seed: int


def run(
    out: Path,
    *,
    quick: bool = False,
    seeds: int = N_SEEDS,
    data: Path | None = None,
    weights: Path | None = None,
) -> Result:
    """DPImageBench's protocol with classifiers of a laptop (hours; resumes).

    With ``quick`` the embedded digits, 2,000 synthetic images, one seed; with the ``weights`` of
    pytorch-fid the FID.
    """
    if weights is not None:
        check_weights(weights)
    if quick:
        names = ["digits"]
        seeds = 1
    else:
        names = [name for name in TASKS if name != "digits"]
    if "faces" in names and not (data_root(data) / ATTRIBUTES).exists():
        print(f"No faces: {ATTRIBUTES} is missing.")
        names.remove("faces")
    directory = out / "imagebench"
    results = cells.run_cells(
        plan(names, seeds),
        partial(evaluate_cell, directory=directory, data=data, weights=weights),
        directory,
        version=partial(_version, has_weights=weights is not None),
    )
    draw(directory, out / "imagebench.png")
    rows = summarise(results)
    if not quick:
        rows += published()
    return {"rows": in_order(rows), "fidelity": in_order(summarise_fidelity(results))}


def plan(names: Sequence[str], n_seeds: int) -> list[Cell]:
    """List the cells: real records first, then one seed after the other."""
    planned = [Cell(name, "real records", None, 0) for name in names]
    for seed in range(n_seeds):
        for name in names:
            planned += [Cell(name, "mixture", epsilon, seed) for epsilon in TASKS[name].budgets]
    return planned


def _version(cell: Cell, has_weights: bool) -> list[Any]:
    """Return what a cell depends on: constants, number of images, FID or not."""
    task = TASKS[cell.dataset]
    digest = None
    if cell.epsilon is not None:
        digest = constants_digest(task.constants)
    return [digest, task.n_synthetic, has_weights]


def evaluate_cell(cell: Cell, directory: Path, data: Path | None, weights: Path | None) -> Result:
    """Train the generator of a cell, then the classifiers, and measure fidelity."""
    task = TASKS[cell.dataset]
    source = task.records(cell.dataset, data)
    assert source.test is not None
    torch.manual_seed(cell.seed)
    n_train = len(source.train)
    privacy = Privacy()
    seconds = None
    if cell.epsilon is None:
        order = torch.randperm(n_train)
        images = source.train.floats(order)
        labels = source.train.labels[order]
    else:
        trained = train_mixture(
            source.private(),
            task.constants,
            epsilon=cell.epsilon,
            delta=1 / (n_train * math.log(n_train)),
            seed=cell.seed,
            residual=task.residual,
        )
        assert trained.privacy.sound
        privacy = trained.privacy
        seconds = round(trained.seconds, 1)
        labels = torch.arange(task.n_synthetic) % source.n_classes
        images = draw_images(trained.generator, labels)
        _keep(images, labels, directory / f"{cell.name}.npz")
    n_test = len(source.test)
    order = torch.randperm(n_test, generator=torch.Generator().manual_seed(0))
    fidelities = fidelity(source.test.floats(order), images[:n_test], weights)
    accuracy = accuracies(IMAGE_CLASSIFIERS, images, labels, source)
    larger = scores(LargerCNN, Records(images, labels), source.test)
    accuracy["larger_cnn"] = larger["accuracy"]
    return {
        **dataclasses.asdict(cell),
        "n_train": n_train,
        "delta": privacy.delta,
        "mu": privacy.mu,
        "sound": privacy.sound,
        "train_seconds": seconds,
        "accuracy": accuracy,
        "fidelity": fidelities,
    }


# Figure -------------------------------------------------------------------------------------------


def _keep(images: Tensor, labels: Tensor, path: Path) -> None:
    """Write two images for each column of the figure: (10, 2, h, w, 3) in bytes.

    A column has a class; the classes repeat where there are fewer than ten.
    """
    n_classes = int(labels.max()) + 1
    index = []
    for column in range(N_COLUMNS):
        class_indices = torch.nonzero(labels == column % n_classes)[:, 0]
        first = column // n_classes * 2
        index.append(class_indices[first : first + 2])
    pixels = to_bytes(images[torch.cat(index)].expand(-1, 3, -1, -1))
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, data=pixels.reshape(N_COLUMNS, 2, *pixels.shape[1:]))


def draw(directory: Path, path: Path) -> None:
    """Draw images of the first seed, epsilon 10 beside epsilon 1."""
    lines = []
    for dataset in TASKS:
        files = {epsilon: directory / f"{dataset}-mixture-{epsilon}-0.npz" for epsilon in (10, 1)}
        if not all(file.exists() for file in files.values()):
            continue
        line = []
        for epsilon, file in files.items():
            pixels = np.load(file)["data"] / 255
            line.append(Picture(grid(pixels), f"{dataset}, ε = {epsilon}"))
        lines.append(line)
    if lines:
        draw_grids(lines, path)


# Rows ---------------------------------------------------------------------------------------------


def summarise(results: Sequence[Result]) -> list[Row]:
    """Average accuracies over seeds: a row for each setting and classifier.

    ``best`` and ``mean`` of a row are over the networks of a seed.
    """
    rows = []
    for seed_results in _groups(results):
        values: dict[str, list[float]] = {}
        for name in seed_results[0]["accuracy"]:
            values[name] = [result["accuracy"][name] for result in seed_results]
        values["best"] = []
        values["mean"] = []
        for result in seed_results:
            network_accuracies = [result["accuracy"][name] for name in NETWORKS]
            values["best"].append(max(network_accuracies))
            values["mean"].append(mean(network_accuracies))
        seconds = None
        if seed_results[0]["epsilon"] is not None:
            seconds = round(mean(result["train_seconds"] for result in seed_results))
        for name, classifier_values in values.items():
            row = _setting(seed_results)
            row["classifier"] = name
            row["train_seconds"] = seconds
            rows.append(row | cells.averaged(classifier_values))
    return rows


def summarise_fidelity(results: Sequence[Result]) -> list[Row]:
    """Average fidelity over seeds: a row for each data set, method and budget."""
    rows = []
    for seed_results in _groups(results):
        row = _setting(seed_results)
        for name in seed_results[0]["fidelity"]:
            row[name] = mean(result["fidelity"][name] for result in seed_results)
        rows.append(row)
    return rows


def _groups(results: Sequence[Result]) -> list[list[Result]]:
    """Return the results of each setting: data sets, then methods, then budgets."""
    groups = cells.grouped(
        results, lambda result: (result["dataset"], result["method"], result["epsilon"])
    )
    datasets = list(TASKS)
    keys = sorted(
        groups,
        key=lambda key: (datasets.index(key[0]), METHODS.index(key[1]), -(key[2] or 0.0)),
    )
    return [groups[key] for key in keys]


def _setting(results: Sequence[Result]) -> Row:
    """Return the setting of results that differ in the seed."""
    first = results[0]
    return {
        "dataset": first["dataset"],
        "method": LABELS[first["method"]],
        "epsilon": first["epsilon"],
        "n_train": first["n_train"],
        "delta": first["delta"],
        "mu": first["mu"],
        "sound": first["sound"],
        "seeds": len(results),
    }


def published() -> list[Row]:
    """Return printed accuracies, in rows like ours."""
    rows = []
    for printed in PUBLISHED:
        for classifier, accuracy in printed.accuracies.items():
            row: Row = {
                "dataset": printed.dataset,
                "method": f"{printed.method}, as printed",
                "epsilon": printed.epsilon,
                "classifier": classifier,
                "mean": accuracy,
            }
            for name in ("n_train", "delta", "mu", "sound", "seeds", "train_seconds", "std"):
                row[name] = None
            rows.append(row)
    return rows


def in_order(rows: list[Row]) -> list[Row]:
    """Return rows in the order of the data sets, large budgets first."""
    datasets = list(TASKS)
    return sorted(rows, key=lambda row: (datasets.index(row["dataset"]), -(row["epsilon"] or 0.0)))
