"""Rakotomamonjy2021, Table 1: the published algorithm on digits. NOT PRIVATE.

docs/reproductions.md compares the settings with the authors' code (arakotom/dp_swd at 97164ee);
docs/errata.md, items 4 and 5, says why it is not private. The test is on the images that train
(transductive). The settings of a cell:

- ``box``: a random 80 % of the 9,298 images of USPS is enlarged to ``box`` pixels a side and padded
  to 28.
- ``steps``: 5,900 and 7,900 (USPS-MNIST) by the account of Table 4, whose epochs are those of the
  target; 46,800 and 5,900 in the code, whose epochs are those of the source. Default: 5,900.
- ``initial``: ``"torch"``, or ``"normal"`` for weights of convolutions from N(0, 0.02).
- ``dropout``: on in the first epoch only, as in the code, which never returns to training mode.
- ``weight``: of the distance; the code has 0.01 beside 1 for USPS-MNIST.

``table1_gap`` changes one setting at a time, with a twentieth of the steps in every cell.
"""

import time
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpswd.data import benchmark
from dpswd.records import Records
from experiments import cells
from experiments.accounting.published import Table4Row, table4_row
from experiments.results import Result, Row
from models.adaptation import accuracy
from models.alignment import endless
from models.networks import PublishedDigitEncoder
from models.published import published_loss

PLAIN_STEPS = 0.11  # part of the steps before the distance enters the loss
STEPS = 5900  # of a run
CODE_STEPS = 46_800  # of MNIST-USPS in the authors' code
SHORTER = 20  # a run of table1_gap has this part of the steps
METHODS = {"source only": "source only", "none": "SWD", "printed": "published algorithm"}
VERSION = 1  # of the cells: the algorithm does not change with the package
N_CURVE = 5  # accuracies along a run
CURVE_STRIDE = 5  # they are of every fifth record
N_USPS = table4_row("MNIST-USPS").sample_size


@dataclass(frozen=True)
class Problem:
    """Settings of one problem: row of Table 4, training, printed accuracies by noise."""

    row: Table4Row
    lr: float
    weight: float
    printed: dict[str, float]


PROBLEMS = {
    "MNIST-USPS": Problem(table4_row("MNIST-USPS"), 5e-4, 0.05, {"none": 95.5, "printed": 94.0}),
    "USPS-MNIST": Problem(table4_row("USPS-MNIST"), 5e-3, 1.0, {"none": 84.8, "printed": 83.4}),
}


@dataclass(frozen=True)
class Cell(cells.Cell):
    """One training run; see the module docstring.

    ``noise`` is ``"printed"``, ``"none"``, or ``"source only"``, which leaves the distance out.
    ``weight`` of ``None`` is that of the problem.
    """

    problem: str
    noise: str
    seed: int
    box: int = 20
    steps: int = STEPS
    initial: str = "torch"
    dropout: bool = False
    weight: float | None = None

    @property
    def sigma(self) -> float:
        """Noise of the distance."""
        if self.noise == "printed":
            return PROBLEMS[self.problem].row.sigma
        return 0.0


@dataclass(frozen=True)
class Change:
    """A run of ``table1_gap``: problem, noise, and changed settings of a cell."""

    problem: str
    noise: str
    settings: dict[str, Any] = field(default_factory=dict)

    def cell(self, seed: int) -> Cell:
        """Return the cell with a twentieth of the steps."""
        cell = Cell(self.problem, self.noise, seed, **({"steps": STEPS} | self.settings))
        return replace(cell, steps=cell.steps // SHORTER)


CHANGES = [  # the most telling ones first
    Change("USPS-MNIST", "none"),
    Change("USPS-MNIST", "none", {"box": 28}),
    Change("MNIST-USPS", "none"),
    Change("MNIST-USPS", "none", {"box": 28}),
    Change("USPS-MNIST", "source only"),
    Change("USPS-MNIST", "source only", {"box": 28}),
    Change("USPS-MNIST", "none", {"weight": 0.01}),
    Change("USPS-MNIST", "none", {"initial": "normal"}),
    Change("USPS-MNIST", "none", {"dropout": True}),
    Change("USPS-MNIST", "none", {"box": 18}),
    Change("USPS-MNIST", "none", {"box": 24}),
    Change("USPS-MNIST", "printed"),
    Change("MNIST-USPS", "printed"),
    Change("MNIST-USPS", "none", {"box": 28, "steps": CODE_STEPS}),
]


def table1_published(out: Path, *, data: Path | None = None, seeds: int = 1) -> Result:
    """Table 1: the published algorithm on digits (ten minutes a cell; resumes)."""
    planned = []
    for problem in PROBLEMS:
        planned += [Cell(problem, "none", seed) for seed in range(seeds)]
        planned += [Cell(problem, "printed", seed) for seed in range(seeds)]
        planned += [Cell(problem, "none", seed, box=28) for seed in range(seeds)]
    return {"rows": _rows(planned, out, data)}


def table1_gap(out: Path, *, data: Path | None = None, seeds: int = 3) -> Result:
    """Table 1: what the published algorithm depends on (half an hour; resumes)."""
    planned = [change.cell(seed) for change in CHANGES for seed in range(seeds)]
    return {"rows": _rows(planned, out, data)}


def _rows(planned: list[Cell], out: Path, data: Path | None) -> list[Row]:
    """Run the missing cells; return the rows of all."""
    results = cells.run_cells(
        planned,
        partial(train, data=data),
        out / "table1_published_cells",
        version=_version,
        workers=0,
    )
    return summarise(results)


def _version(cell: Cell) -> int:
    return VERSION


def summarise(results: list[Result]) -> list[Row]:
    """Average results of :func:`train` over seeds: a row per setting, in order."""
    groups = cells.grouped(results, _setting)
    return [_summary(cell, of_seeds) for cell, of_seeds in groups.items()]


def _setting(result: Result) -> Cell:
    """Return the cell of a result with seed 0, the same for all seeds of a setting."""
    return replace(Cell(**result["cell"]), seed=0)


def _summary(cell: Cell, results: list[Result]) -> Row:
    """Return the row of a setting."""
    accuracies = [result["accuracy"] for result in results]
    curves = zip(*(result["curve"] for result in results), strict=True)
    seconds = mean(result["seconds"] for result in results)
    sound = None
    if cell.noise == "printed":
        sound = False
    return {
        "dataset": cell.problem,
        "method": METHODS[cell.noise],
        "noise": cell.noise,
        "sigma": cell.sigma,
        "steps": cell.steps,
        "sound": sound,
        "changed": cell.changes(),
        "values": accuracies,
        **cells.averaged(accuracies),
        "printed": PROBLEMS[cell.problem].printed.get(cell.noise),
        "curve": [round(mean(point), 1) for point in curves],
        "train_seconds": round(seconds),
    }


def train(cell: Cell, data: Path | None) -> Result:
    """Train encoder and head of one cell; return the accuracy on the target.

    ``curve`` has the accuracies along the run.
    """
    torch.manual_seed(cell.seed)
    started = time.monotonic()
    problem = PROBLEMS[cell.problem]
    source, target = domains(cell.problem, data, cell.box)
    encoder = _encoder(cell)
    head = _head(encoder.dim)
    if cell.initial == "normal":
        _initialise_normally(encoder)
    model = nn.Sequential(encoder, head)
    optimizer = torch.optim.Adam(model.parameters(), lr=problem.lr, betas=(0.5, 0.999))
    batch = problem.row.batch_size
    n_batches = -(-len(target) // batch)  # of an epoch of the target
    source_batches = endless(len(source), batch)
    target_batches = endless(len(target), batch, short=True)
    part = target.select(torch.arange(0, len(target), CURVE_STRIDE))
    curve = []
    model.train(cell.dropout)
    for step in range(cell.steps):
        private = next(target_batches)
        index = next(source_batches)[: len(private)]  # the last batch of an epoch is short
        features = encoder(source.floats(index))
        loss = F.cross_entropy(head(features), source.labels[index])
        if step >= PLAIN_STEPS * cell.steps and cell.noise != "source only":
            # Erratum 5: the gradient passes through the private branch.
            private_features = encoder(target.floats(private))
            loss = loss + _distance(cell, features, private_features)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step + 1 == n_batches:
            model.eval()
        if _is_point_of_curve(step, cell.steps):
            was_training = model.training
            curve.append(round(accuracy(model, part), 2))
            model.train(was_training)
    return {
        "cell": asdict(cell),
        "accuracy": round(accuracy(model, target), 2),
        "curve": curve,
        "seconds": round(time.monotonic() - started, 1),
    }


def _encoder(cell: Cell) -> Any:
    """Return the encoder of the paper; its dropout is 0.5 where the cell has it."""
    dropout = 0.0
    if cell.dropout:
        dropout = 0.5
    return PublishedDigitEncoder(dropout=dropout).to(memory_format=torch.channels_last)


def _head(dim: int) -> nn.Sequential:
    """Return the classifier of features (n, dim)."""
    return nn.Sequential(nn.Linear(dim, 100), nn.ReLU(), nn.Dropout(0.5), nn.Linear(100, 10))


def _initialise_normally(encoder: nn.Sequential) -> None:
    """Draw the weights of all convolutions from N(0, 0.02), in place."""
    for layer in encoder:
        if isinstance(layer, nn.Conv2d):
            nn.init.normal_(layer.weight, 0.0, 0.02)


def _distance(cell: Cell, features: Tensor, private_features: Tensor) -> Tensor:
    """Return the weighted distance of the features of source and target."""
    problem = PROBLEMS[cell.problem]
    weight = problem.weight
    if cell.weight is not None:
        weight = cell.weight
    n_projections = problem.row.n_projections
    return weight * published_loss(features, private_features, cell.sigma, n_projections)


def _is_point_of_curve(step: int, n_steps: int) -> bool:
    """Whether one of ``N_CURVE`` equal parts of the run ends with this step."""
    return (step + 1) * N_CURVE // n_steps > step * N_CURVE // n_steps


@lru_cache(maxsize=2)
def domains(name: str, data: Path | None, box: int) -> tuple[Records, Records]:
    """Return source and target with pixels (n, 1, 28, 28) in [-1, 1].

    They are MNIST's training images, or its test images as a target, and 7,438 of USPS's 9,298.
    """
    if name == "MNIST-USPS":
        return _mnist(data, train=True), _usps(data, box)
    return _usps(data, box), _mnist(data, train=False)


def _mnist(data: Path | None, *, train: bool) -> Records:
    """Return the training images or the test images of MNIST."""
    loaded = benchmark("mnist", data)
    records = loaded.test
    if train:
        records = loaded.train
    assert records is not None
    return Records(2 * records.floats() - 1, records.labels)


def _usps(data: Path | None, box: int) -> Records:
    """Return a part of USPS, enlarged to ``box`` pixels a side, padded to 28."""
    loaded = benchmark("usps", data)
    assert loaded.test is not None
    images = torch.cat([loaded.train.floats(), loaded.test.floats()])
    labels = torch.cat([loaded.train.labels, loaded.test.labels])
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    index = order[:N_USPS]
    margin = (28 - box) // 2
    rest = 28 - box - margin
    enlarged = F.interpolate(images[index], box, mode="bilinear")
    padded = F.pad(enlarged, (margin, rest, margin, rest))
    return Records(2 * padded - 1, labels[index])


EXPERIMENTS = (table1_published, table1_gap)
