"""Classifiers trained on 60,000 private synthetic images, after the protocol of DPImageBench (Gong2025).

Each cell fits the shipped config of a data set on its split of DPImageBench, with delta = 1 / (N ln N), and trains four
classifiers on what it generates: logistic regression, the MLP and the small CNN of :mod:`dpswd.evaluation.accuracy`,
and :class:`LargerCNN`. *Best* and *mean* are over the three networks. ``docs/imagebench.md`` says what differs from
DPImageBench.
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
from dpswd.networks.generator import draw as generate
from dpswd.records import Records
from experiments import cells
from experiments.generation.frechet import check_weights, fidelity
from experiments.generation.readme_picture import draw_grids, grid
from experiments.generation.table2 import LABELS
from experiments.generation.training import (
    SHIPPED,
    accuracies,
    constants_digest,
    load,
    to_bytes,
    train_mixture,
)

SEEDS = 3
NETWORKS = ("mlp", "cnn", "larger_cnn")
METHODS = ("mixture", "real records")
ATTRIBUTES = "celeba64_attr.txt"
PUBLISHED: list[
    tuple[str, str, float, dict[str, float]]
] = [  # as printed, by the protocols of these papers
    ("MNIST", "FETA-Pro", 10.0, {"best": 98.5}),
    ("MNIST", "FETA-Pro", 1.0, {"best": 97.3}),
    ("MNIST", "FETA-Pro", 0.2, {"best": 86.2}),
    ("MNIST", "DPDM", 10.0, {"logreg": 90.8, "mlp": 94.8, "cnn": 98.1}),
    ("MNIST", "DPDM", 1.0, {"logreg": 86.7, "mlp": 91.6}),
    ("FashionMNIST", "FETA-Pro", 10.0, {"best": 88.2}),
    ("FashionMNIST", "FETA-Pro", 1.0, {"best": 83.4}),
    ("FashionMNIST", "FETA-Pro", 0.2, {"best": 73.4}),
    ("FashionMNIST", "DPDM", 10.0, {"logreg": 81.1, "mlp": 83.0}),
    ("FashionMNIST", "DPDM", 1.0, {"logreg": 76.3, "mlp": 76.9}),
    ("CIFAR10", "FETA-Pro", 10.0, {"best": 44.6}),
    ("CIFAR10", "FETA-Pro", 1.0, {"best": 37.9}),
    ("faces", "FETA-Pro", 10.0, {"best": 94.9}),
    ("faces", "FETA-Pro", 1.0, {"best": 90.0}),
]


class LargerCNN(nn.Module):
    """Map images (n, channels, h, w) in [0, 1] to scores (n, n_outputs), with more maps than the small CNN.

    Two blocks of a 3 x 3 convolution and max-pooling, with 32 and 64 maps, and one hidden layer of 128 units with
    dropout. The second pooling ends in 7 x 7 maps for every size of the images.
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
    """Constants of the generator, budgets, and the number of records of DPImageBench, split off by seed 0."""

    constants: Path
    budgets: tuple[float, ...]
    n_train: int | None = None
    n_synthetic: int = 60_000
    residual: bool | None = None  # aligned faces are smoother than photographs

    def records(self, name: str, data: Path | None) -> Benchmark:
        """Return the data set with its split."""
        if name == "faces":
            return faces(data)
        found = load(name, data)
        order = torch.randperm(len(found.train), generator=torch.Generator().manual_seed(0))
        return dataclasses.replace(found, train=found.train.select(order[: self.n_train]))


def faces(data: Path | None) -> Benchmark:
    """Return the 5,000 faces at 32 x 32, female or male; every fifth is for testing."""
    found = benchmark("celeba", data, size=32, public=True)
    assert found.test is not None
    order = torch.arange(len(found.train) + len(found.test))
    images = found.train.values.new_empty(len(order), *found.shape)
    images[order % 5 != 4], images[order % 5 == 4] = found.train.values, found.test.values
    _, header, *lines = (data_root(data) / ATTRIBUTES).read_text().splitlines()
    column = header.split().index("Male") + 1
    male = torch.tensor(
        [int(line.split()[column] == "1") for line in sorted(lines)]
    )  # as the faces, by name
    return Benchmark("faces", *every_fifth(Records(images, male)), True, [0, 1])


TASKS = {
    "MNIST": Task(SHIPPED["MNIST"], (10.0, 1.0, 0.2), 55_000),
    "FashionMNIST": Task(SHIPPED["FashionMNIST"], (10.0, 1.0, 0.2), 55_000),
    "CIFAR10": Task(SHIPPED["CIFAR10"], (10.0, 1.0), 45_000),
    "faces": Task(Path(__file__).with_name("celeba.yaml"), (10.0, 1.0), residual=False),
    "digits": Task(SHIPPED["digits"], (10.0, 1.0), n_synthetic=2000),  # --quick only
}


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
    seeds: int = SEEDS,
    data: Path | None = None,
    weights: Path | None = None,
) -> dict[str, Any]:
    """DPImageBench's protocol with classifiers of a laptop: accuracy, Frechet distance (hours; resumes).

    With ``quick`` the embedded digits, 2,000 synthetic images, one seed; with the ``weights`` of pytorch-fid the FID.
    """
    if weights is not None:
        check_weights(weights)
    wanted = {name: task for name, task in TASKS.items() if quick == (name == "digits")}
    if "faces" in wanted and not (data_root(data) / ATTRIBUTES).exists():
        print(f"No faces: {ATTRIBUTES} is missing.")
        del wanted["faces"]
    planned = [Cell(name, "real records", None, 0) for name in wanted] + [
        Cell(name, "mixture", epsilon, seed)
        for seed in range(1 if quick else seeds)
        for name, task in wanted.items()
        for epsilon in task.budgets
    ]
    directory = out / "imagebench"

    def version(cell: Cell) -> list[Any]:
        task = TASKS[cell.dataset]
        return [
            cell.epsilon and constants_digest(task.constants),
            task.n_synthetic,
            weights is not None,
        ]

    work = partial(evaluate_cell, directory=directory, data=data, weights=weights)
    found = cells.run_cells(planned, work, directory, version=version)
    draw(directory, out / "imagebench.png")
    rows, measured = summarise(found)
    rows += [] if quick else published()
    order = list(TASKS)
    rows.sort(key=lambda row: (order.index(row["dataset"]), -(row["epsilon"] or 0.0)))
    return {"rows": rows, "fidelity": measured}


def evaluate_cell(
    cell: Cell, directory: Path, data: Path | None, weights: Path | None
) -> dict[str, Any]:
    """Train the generator of a cell, then the classifiers, and measures fidelity."""
    task = TASKS[cell.dataset]
    source = task.records(cell.dataset, data)
    private, test = source.train, source.test
    assert test is not None
    torch.manual_seed(cell.seed)
    facts: dict[str, Any] = {"n_train": len(private)} | dict.fromkeys(
        ("delta", "mu", "sound", "train_seconds")
    )
    if cell.epsilon is None:
        order = torch.randperm(len(private))
        images, labels = private.floats(order), private.labels[order]
    else:
        made = train_mixture(
            source.private(),
            task.constants,
            epsilon=cell.epsilon,
            delta=1 / (len(private) * math.log(len(private))),
            seed=cell.seed,
            residual=task.residual,
        )
        assert made.facts["sound"]
        facts |= {name: made.facts[name] for name in ("delta", "mu", "sound")}
        facts["train_seconds"] = round(made.seconds, 1)
        labels = torch.arange(task.n_synthetic) % source.n_classes
        images = generate(made.generator, labels)
        _keep(images, labels, directory / f"{cell.name}.npz")
    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))
    measured = fidelity(test.floats(order), images[: len(test)], weights)
    found = accuracies(IMAGE_CLASSIFIERS, images, labels, source)
    found["larger_cnn"] = scores(LargerCNN, Records(images, labels), test)["accuracy"]
    return {**dataclasses.asdict(cell), **facts, "accuracy": found, "fidelity": measured}


def _keep(images: Tensor, labels: Tensor, path: Path) -> None:
    """Keep two images for each of ten columns, for the figure: (10, 2, h, w, 3) in bytes."""
    classes = int(labels.max()) + 1
    index = torch.stack(
        [torch.nonzero(labels == i % classes)[i // classes * 2 :][:2, 0] for i in range(10)]
    )
    shown = to_bytes(images[index.flatten()].expand(-1, 3, -1, -1))
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, data=shown.reshape(10, 2, *shown.shape[1:]))


def draw(directory: Path, path: Path) -> None:
    """Draw images of the first seed, epsilon 10 beside epsilon 1, of the data sets that have both."""
    lines = []
    for dataset in TASKS:
        files = [
            (directory / f"{dataset}-mixture-{epsilon}-0.npz", f"{dataset}, ε = {epsilon}")
            for epsilon in (10, 1)
        ]
        if all(file.exists() for file, _ in files):
            lines.append([(grid(np.load(file)["data"] / 255), title) for file, title in files])
    if lines:
        draw_grids(lines, path)


def summarise(
    results: Sequence[dict[str, Any]],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Average cells over seeds: rows on classifiers, and rows on fidelity."""
    groups = cells.grouped(
        results, lambda result: (result["dataset"], result["method"], result["epsilon"])
    )
    order = {name: i for i, name in enumerate([*TASKS, *METHODS])}
    rows, measured = [], []
    for key in sorted(groups, key=lambda key: (order[key[0]], order[key[1]], -(key[2] or 0.0))):
        dataset, method, epsilon = key
        found = groups[key]
        facts = {"dataset": dataset, "method": LABELS[method], "epsilon": epsilon}
        facts |= {name: found[0][name] for name in ("n_train", "delta", "mu", "sound")} | {
            "seeds": len(found)
        }
        seconds = (
            None if epsilon is None else round(mean(result["train_seconds"] for result in found))
        )
        scores = [result["accuracy"] for result in found]
        networks = [[each[name] for name in NETWORKS] for each in scores]
        values_of = {name: [each[name] for each in scores] for name in scores[0]}
        values_of |= {"best": list(map(max, networks)), "mean": list(map(mean, networks))}
        for name, values in values_of.items():
            rows.append(
                facts | {"classifier": name, "train_seconds": seconds} | cells.averaged(values)
            )
        names = found[0]["fidelity"]
        measured.append(
            facts | {name: mean(result["fidelity"][name] for result in found) for name in names}
        )
    return rows, measured


def published() -> list[dict[str, Any]]:
    """Return printed accuracies, in rows like ours."""
    absent = dict.fromkeys(("n_train", "delta", "mu", "sound", "seeds", "train_seconds", "std"))
    return [
        {
            "dataset": dataset,
            "method": f"{method}, as printed",
            "epsilon": epsilon,
            "classifier": name,
            "mean": value,
        }
        | absent
        for dataset, method, epsilon, found in PUBLISHED
        for name, value in found.items()
    ]
