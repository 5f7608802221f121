"""The image map of ``dpswd adapt`` on digits as they are, in both directions.

The settings are those of ``configs/adapt_digits.yaml``; jitter and number of steps were chosen on
one seed of USPS-MNIST. ``source only`` trains the same network on the source; ``real target`` fits
the map to the private images themselves and is NOT PRIVATE. A cell has a file in
``OUT/image_map_cells``.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from torch import Tensor, nn

from dpswd.adaptation.methods import ImageMap
from dpswd.estimators.adapter import PrivateAdapter
from dpswd.records import Records
from experiments import cells
from experiments.adaptation.pairs import Pair, digits
from experiments.results import Result, Row

N_SEEDS = 3
PROBLEMS = ("MNIST-USPS", "USPS-MNIST")
# Amounts of the jitter, those of configs/adapt_digits.yaml.
JITTER = {"shift": 1.5, "rotation": 10.0, "zoom": 0.1, "shear": 0.1, "elastic": 0.6}
STEPS = 1500
DELTA = 1e-5
KEYS = (
    ("synthetic target", 10.0),
    ("synthetic target", 1.0),
    ("source only", None),
    ("real target", None),
)


@dataclass(frozen=True)
class Cell(cells.Cell):
    """A method on a problem; without a budget there is no guarantee."""

    problem: str
    seed: int
    method: str
    budget: float | None


def run(out: Path, *, data: Path | None = None, seeds: int = N_SEEDS) -> Result:
    """Image map of dpswd adapt on digits, without and with privacy (an hour; resumes)."""
    root = None
    if data is not None:
        root = str(data)
    planned = []
    for seed in range(seeds):
        for problem in PROBLEMS:
            planned += [Cell(problem, seed, *key) for key in KEYS]
    work = partial(run_cell, root=root)
    return {"rows": summarise(cells.run_cells(planned, work, out / "image_map_cells"))}


def run_cell(cell: Cell, root: str | None) -> Result:
    """Run the method of a cell.

    Return its accuracy in percent, the privacy spent, and seconds.
    """
    pair = _pair(cell.problem, root)
    torch.manual_seed(1000 + cell.seed)
    started = time.monotonic()
    if cell.method == "source only":
        outcome = fit_directly(pair, None, cell.seed)
    elif cell.method == "real target":
        outcome = fit_directly(pair, pair.target.floats(), cell.seed)
    else:
        assert cell.budget is not None
        outcome = fit_synthetic(pair, cell.budget, cell.seed)
    return {
        "problem": cell.problem,
        "seed": cell.seed,
        "method": cell.method,
        "budget": cell.budget,
        "seconds": time.monotonic() - started,
        **outcome,
    }


@lru_cache(maxsize=1)  # the methods of a problem and seed follow each other
def _pair(problem: str, root: str | None) -> Pair:
    source, target = problem.split("-")
    return digits(source, target, root)


def fit_directly(pair: Pair, target: Tensor | None, seed: int) -> Result:
    """Fit the image map to the images of a target, or without one. NOT PRIVATE."""
    image_map = ImageMap(STEPS, **JITTER)
    network = image_map.fit(pair.source.floats(), pair.source.labels, target, seed)
    return {"accuracy": _accuracy(network, pair.test)}


@torch.no_grad()
def _accuracy(network: nn.Module, test: Records) -> float:
    """Return the accuracy of a network on labelled records, in percent."""
    network.eval()
    scores = [network(chunk) for chunk in test.floats().split(2048)]
    return float(100 * (torch.cat(scores).argmax(1) == test.labels).float().mean())


def fit_synthetic(pair: Pair, epsilon: float, seed: int) -> Result:
    """Run ``dpswd adapt`` with the image map."""
    images = pair.source.floats()
    labels = pair.source.labels.numpy()
    private = pair.target.floats()
    with tempfile.TemporaryDirectory() as directory:
        adapter = PrivateAdapter(
            epsilon,
            DELTA,
            method=ImageMap(STEPS, **JITTER),
            random_state=seed,
            verbose=False,
            run_dir=Path(directory) / "run",
        )
        adapter.fit(
            torch.cat([images, private]),
            np.r_[labels, np.full(len(private), -1)],
            np.repeat([1, -1], [len(images), len(private)]),
        )
    test = pair.test
    guarantee = adapter.guarantee_
    return {
        "accuracy": 100 * adapter.score(test.floats(), test.labels.numpy()),
        "delta": guarantee["delta"],
        "mu": guarantee["mu"],
        "sound": guarantee["sound"],
    }


def summarise(results: Sequence[Result]) -> list[Row]:
    """Return means and standard deviations over seeds as rows of the tables."""
    rows = []
    groups = cells.grouped(
        results, lambda result: (result["problem"], result["method"], result["budget"])
    )
    for (problem, method, budget), seed_results in groups.items():
        first = seed_results[0]
        row: Row = {
            "dataset": problem,
            "method": f"image map, {method}",
            "epsilon": budget,
            "statistic": None,
            "delta": first.get("delta"),
            "mu": first.get("mu"),
            "sound": first.get("sound"),
            "classifier": "network",
            "train_seconds": round(mean(result["seconds"] for result in seed_results), 1),
        }
        rows.append(row | cells.averaged([result["accuracy"] for result in seed_results], 2))
    return rows
