"""Rakotomamonjy2021, Table 1: the published algorithm on digits, and what its accuracy depends on. NOT PRIVATE.

docs/reproductions.md compares the settings with the authors' code (arakotom/dp_swd at 97164ee); docs/errata.md, items 4
and 5, says why it is not private. The test is on the images that train (transductive). The settings of a cell:

- ``box``: a random 80 % of the 9,298 images of USPS is enlarged to ``box`` pixels a side and padded to 28.
- ``steps``: 5,900 and 7,900 (USPS-MNIST) by the account of Table 4, whose epochs are those of the target; 46,800 and
  5,900 in the code, whose epochs are those of the source. Default: 5,900.
- ``initial``: ``"torch"``, or ``"normal"`` for weights of convolutions from N(0, 0.02).
- ``dropout``: on in the first epoch only, as in the code, which never returns to training mode.
- ``weight``: of the distance; the code has 0.01 beside 1 for USPS-MNIST.

``table1_gap`` changes one setting at a time, with a twentieth of the steps in every cell.
"""

import time
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from dpswd.data import benchmark
from dpswd.records import Records
from experiments import cells
from experiments.accounting.published import TABLE4, Table4Row
from models.adaptation import accuracy
from models.alignment import endless
from models.networks import PublishedDigitEncoder
from models.published import published_loss

FIRST = 0.11  # share of the steps before the distance enters the loss
STEPS, CODE_STEPS, SHORTER = (
    5900,
    46_800,
    20,
)  # of a run; of MNIST-USPS in the code; the share of table1_gap
METHODS = {
    "source only": "source only",
    "none": "SWD",
    "printed": "published algorithm",
}  # by noise
VERSION = 1  # of the cells: the algorithm does not change with the package
CURVE = 5  # accuracies along a run, of every fifth record


@dataclass(frozen=True)
class Problem:
    """Settings of one problem: the row of Table 4, learning rate, weight of the distance, printed accuracies."""

    row: Table4Row
    lr: float
    weight: float
    printed: dict[str, float]


PROBLEMS = {
    "MNIST-USPS": Problem(TABLE4[1], 5e-4, 0.05, {"none": 95.5, "printed": 94.0}),
    "USPS-MNIST": Problem(TABLE4[0], 5e-3, 1.0, {"none": 84.8, "printed": 83.4}),
}


@dataclass(frozen=True)
class Cell(cells.Cell):
    """One training run; see the module docstring.

    ``noise`` is ``"printed"``, ``"none"``, or ``"source only"``, which leaves the distance out. ``weight`` of ``None``
    is that of the problem.
    """

    problem: str
    noise: str
    seed: int
    box: int = 20
    steps: int = STEPS
    initial: str = "torch"
    dropout: bool = False
    weight: float | None = None


CHANGES: list[tuple[str, str, dict[str, Any]]] = [  # of table1_gap, the most telling ones first
    ("USPS-MNIST", "none", {}),
    ("USPS-MNIST", "none", {"box": 28}),
    ("MNIST-USPS", "none", {}),
    ("MNIST-USPS", "none", {"box": 28}),
    ("USPS-MNIST", "source only", {}),
    ("USPS-MNIST", "source only", {"box": 28}),
    ("USPS-MNIST", "none", {"weight": 0.01}),
    ("USPS-MNIST", "none", {"initial": "normal"}),
    ("USPS-MNIST", "none", {"dropout": True}),
    ("USPS-MNIST", "none", {"box": 18}),
    ("USPS-MNIST", "none", {"box": 24}),
    ("USPS-MNIST", "printed", {}),
    ("MNIST-USPS", "printed", {}),
    ("MNIST-USPS", "none", {"box": 28, "steps": CODE_STEPS}),
]


def table1_published(out: Path, *, data: Path | None = None, seeds: int = 1) -> dict[str, Any]:
    """Table 1: the published algorithm on digits (ten minutes a cell; resumes)."""
    settings: list[tuple[str, dict[str, Any]]] = [
        ("none", {}),
        ("printed", {}),
        ("none", {"box": 28}),
    ]
    wanted = [
        Cell(name, noise, seed, **changed)
        for name in PROBLEMS
        for noise, changed in settings
        for seed in range(seeds)
    ]
    return {"rows": _rows(wanted, out, data)}


def table1_gap(out: Path, *, data: Path | None = None, seeds: int = 3) -> dict[str, Any]:
    """Table 1: what the published algorithm depends on, three seeds (half an hour; resumes)."""
    wanted = [
        Cell(name, noise, seed, **{**changed, "steps": changed.get("steps", STEPS) // SHORTER})
        for name, noise, changed in CHANGES
        for seed in range(seeds)
    ]
    return {"rows": _rows(wanted, out, data)}


def _rows(wanted: list[Cell], out: Path, data: Path | None) -> list[dict[str, Any]]:
    directory = out / "table1_published_cells"
    work, version = partial(train, data=data), lambda cell: VERSION
    return summarise(cells.run_cells(wanted, work, directory, version=version, workers=0))


def summarise(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Average the results of :func:`train` over seeds: one row per setting, in the order of the results."""
    rows = []
    for cell, found in cells.grouped(
        results, lambda result: Cell(**{**result["cell"], "seed": 0})
    ).items():
        values = [result["accuracy"] for result in found]
        row: dict[str, Any] = {
            "dataset": cell.problem,
            "method": METHODS[cell.noise],
            "noise": cell.noise,
        }
        row |= {
            "sigma": PROBLEMS[cell.problem].row.sigma if cell.noise == "printed" else 0.0,
            "steps": cell.steps,
        }
        row |= {
            "sound": False if cell.noise == "printed" else None,
            "changed": cell.changes(),
            "values": values,
        }
        row |= cells.averaged(values) | {"printed": PROBLEMS[cell.problem].printed.get(cell.noise)}
        row |= {
            "curve": [
                round(mean(part), 1) for part in zip(*(r["curve"] for r in found), strict=True)
            ]
        }
        rows.append(row | {"train_seconds": round(mean(result["seconds"] for result in found))})
    return rows


def train(cell: Cell, data: Path | None) -> dict[str, Any]:
    """Train encoder and head of one cell; return the accuracy on the target, also along the run."""
    torch.manual_seed(cell.seed)
    setting, started = PROBLEMS[cell.problem], time.monotonic()
    sigma = setting.row.sigma if cell.noise == "printed" else 0.0
    weight = setting.weight if cell.weight is None else cell.weight
    source, target = domains(cell.problem, data, cell.box)
    encoder: Any = PublishedDigitEncoder(dropout=0.5 if cell.dropout else 0.0).to(
        memory_format=torch.channels_last
    )
    head = nn.Sequential(
        nn.Linear(encoder.dim, 100), nn.ReLU(), nn.Dropout(0.5), nn.Linear(100, 10)
    )
    model = nn.Sequential(encoder, head)
    if cell.initial == "normal":
        for layer in encoder:
            if isinstance(layer, nn.Conv2d):
                nn.init.normal_(layer.weight, 0.0, 0.02)
    optimizer = torch.optim.Adam(model.parameters(), lr=setting.lr, betas=(0.5, 0.999))
    batch = setting.row.batch_size
    per_epoch = -(-len(target) // batch)
    ours, theirs = endless(len(source), batch), endless(len(target), batch, short=True)
    some, curve = target.select(torch.arange(0, len(target), 5)), []
    model.train(cell.dropout)
    for step in range(cell.steps):
        private = next(theirs)
        index = next(ours)[: len(private)]  # the last batch of an epoch is short
        features = encoder(source.floats(index))
        loss = F.cross_entropy(head(features), source.labels[index])
        if step >= FIRST * cell.steps and cell.noise != "source only":
            moved = encoder(
                target.floats(private)
            )  # erratum 5: the gradient passes through the private branch
            loss = loss + weight * published_loss(features, moved, sigma, setting.row.n_projections)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step + 1 == per_epoch:
            model.eval()
        if (step + 1) * CURVE // cell.steps > step * CURVE // cell.steps:
            training = model.training
            curve.append(round(accuracy(model, some), 2))
            model.train(training)
    return {
        "cell": asdict(cell),
        "accuracy": round(accuracy(model, target), 2),
        "curve": curve,
        "seconds": round(time.monotonic() - started, 1),
    }


@lru_cache(maxsize=2)
def domains(name: str, data: Path | None, box: int) -> tuple[Records, Records]:
    """Return source and target of 28 x 28 pixels: MNIST's training or test images, and 7,438 of USPS's 9,298."""
    mnist, usps = benchmark("mnist", data), benchmark("usps", data)
    parts = [part for part in (usps.train, usps.test) if part is not None]
    kept = torch.randperm(sum(map(len, parts)), generator=torch.Generator().manual_seed(0))[
        : TABLE4[1].sample_size
    ]
    small = torch.cat([part.floats() for part in parts])[kept]
    margin = (28 - box) // 2
    images = F.pad(F.interpolate(small, box, mode="bilinear"), (margin, 28 - box - margin) * 2)
    digits = mnist.train if name == "MNIST-USPS" else mnist.test
    assert digits is not None
    grey = Records(2 * digits.floats() - 1, digits.labels)
    enlarged = Records(2 * images - 1, torch.cat([part.labels for part in parts])[kept])
    return (grey, enlarged) if name == "MNIST-USPS" else (enlarged, grey)


EXPERIMENTS = (table1_published, table1_gap)
