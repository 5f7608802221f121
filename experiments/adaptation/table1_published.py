"""Rakotomamonjy2021, Table 1 and Figure 3: the published algorithm on digits. NOT PRIVATE (docs/errata.md, 4 and 5).

As printed: encoder and head of appendix 8.5.2, 100 epochs of batches of 128, 200 directions, sigma of Table 4 (4.74,
5.34). From the authors' code (arakotom/dp_swd at 97164ee): pixels in [-1, 1], Adam with betas (0.5, 0.999), learning
rates, the weight of the distance, which is in the loss after 11 of 100 epochs, MNIST's test set as the target of
USPS-MNIST, and a test on the images that train (transductive).

Every option changes one setting whose value in the paper is not known here, or in which paper and code differ:

- ``box``: the code reads CoGAN's ``usps_28x28.pkl`` (split 0, 7,438 images), which is not available. Here a random 80 %
  of the official 9,298 images of 16 x 16 is enlarged to ``box`` pixels a side and padded to 28.
- ``steps``: 7,900 (USPS-MNIST) and 5,900 by the account of Table 4, whose epochs are those of the target; 5,900 and
  46,800 in the code, whose epochs are those of the source.
- ``initial``: ``"torch"``, or ``"normal"`` for weights of convolutions from N(0, 0.02), which is ``weight_init`` in
  another repository of the same author.
- ``dropout``: on in the first epoch only, as in the code, which never returns to training mode.
- ``weight``: the code has 0.01 beside 1 for USPS-MNIST.
"""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpswd.data import benchmark
from dpswd.errors import InputError
from dpswd.records import Records
from experiments.accounting.published import TABLE4, Table4Row
from experiments.cells import results_in, run_cells
from models.adaptation import accuracy
from models.networks import PublishedDigitEncoder
from models.published import published_loss

HELP = "Table 1: the published algorithm on digits, minutes a row (--full: the budgets of Figure 3, hours)"

FIRST = 0.11  # share of the steps before the distance enters the loss
EPSILONS = (0.5, 1.0, 2.0, 5.0)  # of Figure 3, beside 10
METHODS = {"source only": "source only", "none": "SWD"}  # by noise; others: the published algorithm
VERSION = 1  # of the cells: the algorithm does not change with the package
CURVE = 10  # accuracies along a run


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
class Cell:
    """One training run; ``None`` stands for the value as printed.

    ``noise`` is ``"printed"``, ``"corrected"`` or ``"recomputed"`` for ``epsilon``; without budget ``"none"``, or
    ``"source only"``, which leaves the distance out.
    """

    problem: str
    noise: str
    epsilon: float | None
    seed: int
    box: int = 28
    steps: int | None = None
    initial: str = "torch"
    dropout: bool = False
    weight: float | None = None

    @property
    def name(self) -> str:
        """Name of its file."""
        changes = [f"{key}_{value}" for key, value in self.changes().items()]
        budget = [] if self.epsilon is None else [f"{self.epsilon:g}"]
        return "-".join([self.problem, self.noise.replace(" ", "_"), *budget, *changes, str(self.seed)])

    def changes(self) -> dict[str, Any]:
        """Return the settings that differ from the default."""
        plain = Cell(self.problem, self.noise, self.epsilon, self.seed)
        return {key: value for key, value in asdict(self).items() if value != getattr(plain, key)}

    @property
    def sigma(self) -> float:
        """Noise in units in which a row moves by at most 1."""
        row = PROBLEMS[self.problem].row
        if self.epsilon is None:
            return 0.0
        if self.noise == "printed":
            return row.sigma
        return row.recomputed(self.epsilon, corrected=self.noise == "corrected")


def run(
    out: Path,
    *,
    data: Path | None = None,
    full: bool = False,
    seeds: int = 1,
    only: str | None = None,
    noise: str | None = None,
    box: int = 28,
    steps: int | None = None,
    initial: str = "torch",
    dropout: bool = False,
    weight: float | None = None,
) -> dict[str, Any]:
    """Run the missing cells; return one row per setting of all cells that have results.

    Runs with a changed setting are written to ``table1_gap.json``, the others to ``table1_published.json``.

    Args:
        out: ``OUT/table1_published_cells`` holds the cells.
        data: Directory of the data sets.
        full: Add the budgets of Figure 3.
        seeds: Number of seeds.
        only: One problem.
        noise: One of the noises of :class:`Cell`.
        box: See the module docstring, as for the following.
        steps: Number of steps.
        initial: Initialisation.
        dropout: Dropout in the first epoch.
        weight: Weight of the distance.
    """
    if only is not None and only not in PROBLEMS:
        raise InputError(f"Expected --only as one of {', '.join(PROBLEMS)}, got {only!r}.")
    settings: list[tuple[str, float | None]] = [("source only", None), ("none", None)]
    settings += [("printed", 10.0), ("corrected", 10.0)]
    settings = [setting for setting in settings if noise in (None, setting[0])]
    settings += [("recomputed", epsilon) for epsilon in EPSILONS] if full else []
    changed: Any = {"box": box, "steps": steps, "initial": initial, "dropout": dropout, "weight": weight}
    names = [only] if only else list(PROBLEMS)
    cells = [Cell(name, *key, seed, **changed) for seed in range(seeds) for key in settings for name in names]
    directory = out / "table1_published_cells"
    run_cells(cells, lambda cell: train(cell, data), directory, version=lambda cell: VERSION, workers=0)
    rows = summarise(results_in(directory, VERSION))
    gap = bool(cells[0].changes())
    return {"rows": [row for row in rows if bool(row["changed"]) == gap]} | ({"file": "table1_gap"} if gap else {})


def summarise(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Average the results of :func:`train` over seeds: one row per setting."""
    groups: dict[Cell, list[dict[str, Any]]] = {}
    for result in results:
        groups.setdefault(Cell(**{**result["cell"], "seed": 0}), []).append(result)
    noises = ("source only", "none", "printed", "corrected", "recomputed")
    rows = []
    for cell in sorted(groups, key=lambda c: (list(PROBLEMS).index(c.problem), len(c.changes()), c.name)):
        found, problem = groups[cell], PROBLEMS[cell.problem]
        values = [result["accuracy"] for result in found]
        row: dict[str, Any] = {
            "dataset": f"{cell.problem}, as printed",
            "method": METHODS.get(cell.noise, "published algorithm"),
        }
        row |= {"noise": cell.noise, "sigma": round(found[0]["sigma"], 3), "epsilon": cell.epsilon}
        row |= {"delta": problem.row.delta, "mu": None, "sound": None if cell.epsilon is None else False}
        row |= {"changed": cell.changes(), "steps": found[0]["steps"], "mean": round(mean(values), 2)}
        row |= {"std": round(stdev(values), 2) if len(values) > 1 else None, "values": values}
        row |= {"curve": [round(mean(part), 1) for part in zip(*(r["curve"] for r in found), strict=True)]}
        row |= {
            "printed": problem.printed.get(cell.noise),
            "seeds": len(values),
            "command": _command(cell, len(values)),
        }
        rows.append(row | {"train_seconds": round(mean(result["seconds"] for result in found))})
    return sorted(rows, key=lambda row: (bool(row["changed"]), noises.index(row["noise"]), -(row["epsilon"] or 0)))


def _command(cell: Cell, seeds: int) -> str:
    options = {"only": cell.problem, "noise": cell.noise, **cell.changes(), "seeds": seeds}
    words = [f"--{key}" if value is True else f"--{key} {value}" for key, value in options.items()]
    return " ".join(["python -m experiments run table1_published", *words])


def train(cell: Cell, data: Path | None) -> dict[str, Any]:
    """Train encoder and head of one cell; return the accuracy on the target, also along the run."""
    torch.manual_seed(cell.seed)
    setting, started, sigma = PROBLEMS[cell.problem], time.monotonic(), cell.sigma
    weight = setting.weight if cell.weight is None else cell.weight
    source, target = domains(cell.problem, data, cell.box)
    encoder: Any = PublishedDigitEncoder(dropout=0.5 if cell.dropout else 0.0).to(memory_format=torch.channels_last)
    head = nn.Sequential(nn.Linear(encoder.dim, 100), nn.ReLU(), nn.Dropout(0.5), nn.Linear(100, 10))
    model = nn.Sequential(encoder, head)
    if cell.initial == "normal":
        for layer in encoder:
            if isinstance(layer, nn.Conv2d):
                nn.init.normal_(layer.weight, 0.0, 0.02)
    optimizer = torch.optim.Adam(model.parameters(), lr=setting.lr, betas=(0.5, 0.999))
    batch = setting.row.batch_size
    per_epoch = -(-len(target) // batch)
    steps = setting.row.n_releases if cell.steps is None else cell.steps
    ours, theirs = _endless(len(source), batch), _endless(len(target), batch, short=True)
    curve = []
    model.train(cell.dropout)
    for step in range(steps):
        private = next(theirs)
        index = next(ours)[: len(private)]  # the last batch of an epoch is short
        features = encoder(source.floats(index))
        loss = F.cross_entropy(head(features), source.labels[index])
        if step >= FIRST * steps and cell.noise != "source only":
            moved = encoder(target.floats(private))  # erratum 5: the gradient passes through the private branch
            loss = loss + weight * published_loss(features, moved, sigma, setting.row.n_projections)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step + 1 == per_epoch:
            model.eval()
        if (step + 1) * CURVE // steps > step * CURVE // steps:
            training = model.training
            curve.append(round(accuracy(model, target), 2))
            model.train(training)
    result = {"cell": asdict(cell), "accuracy": curve[-1], "curve": curve, "sigma": sigma, "steps": steps}
    return result | {"seconds": round(time.monotonic() - started, 1)}


def domains(name: str, data: Path | None, box: int) -> tuple[Records, Records]:
    """Return source and target of 28 x 28 pixels: MNIST's training or test images, and 7,438 of USPS's 9,298."""
    mnist, usps = benchmark("mnist", data), benchmark("usps", data)
    parts = [part for part in (usps.train, usps.test) if part is not None]
    kept = torch.randperm(sum(map(len, parts)), generator=torch.Generator().manual_seed(0))[: TABLE4[1].sample_size]
    small = torch.cat([part.floats() for part in parts])[kept]
    margin = (28 - box) // 2
    images = F.pad(F.interpolate(small, box, mode="bilinear"), (margin, 28 - box - margin) * 2)
    digits = mnist.train if name == "MNIST-USPS" else mnist.test
    assert digits is not None
    grey = Records(2 * digits.floats() - 1, digits.labels)
    enlarged = Records(2 * images - 1, torch.cat([part.labels for part in parts])[kept])
    return (grey, enlarged) if name == "MNIST-USPS" else (enlarged, grey)


def _endless(n: int, size: int, *, short: bool = False) -> Iterator[Tensor]:
    """Yield record numbers in shuffled epochs without end, ``size`` at a time; ``short`` keeps the rest of an epoch."""
    while True:
        yield from torch.randperm(n)[: n if short else n // size * size].split(size)
