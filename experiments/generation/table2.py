"""Rakotomamonjy2021, Table 2 in one protocol, and the default generator beside the class-wise Gaussian.

``OUT/table2-quick`` and ``OUT/table2-full`` hold ``NAME.json`` for each finished cell, ``NAME.npz`` with images, and
``runs/NAME``, a run directory with ledger and report that ``dpswd report`` reads. An interrupted cell starts again in a
new directory. ``table2_published`` has the rows of the paper.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpswd.budget.budget import Budget
from dpswd.data import Benchmark
from dpswd.evaluation.accuracy import IMAGE_CLASSIFIERS
from dpswd.features.frequencies import DCT
from dpswd.networks.generator import draw as generate
from dpswd.report.render import write_report
from experiments import cells
from experiments.generation.training import (
    BENCHMARKS,
    DELTA,
    SHIPPED,
    Made,
    accuracies,
    constants_digest,
    load,
    to_bytes,
    train_mixture,
    train_network,
)
from experiments.plots import figure
from models.dp_merf import DPMERF
from models.gaussian import ClassGaussian
from models.networks import Table3Generator

N_SYNTHETIC = {
    False: 20_000,
    True: 60_000,
}  # training records of a classifier, synthetic or real: quick, full
SEEDS = 5
PER_CLASS = 10  # images kept per class
LABELS = {
    "real records": "real records",
    "without noise": "ours without noise",
    "rows": "DP-SWD, rows per step",
    "quantiles": "DP-SWD, quantiles per step",
    "mixture": "one-shot mixture",
    "DP-MERF": "DP-MERF",
    "Gaussian": "class-wise Gaussian",
}
DATASETS = ("MNIST", "FashionMNIST")
GENERATED = tuple(BENCHMARKS)  # of the experiment ``generation``
STEPS = {"rows": (800, 4000), "quantiles": (400, 2000), "DP-MERF": (300, 1200)}  # quick, full
BUDGETS: tuple[float | None, ...] = (10.0, 1.0, 0.2)

Trained = tuple[
    Callable[[Tensor], Tensor] | None, dict[str, Any]
]  # sampler (None: real records), and guarantee


@dataclass(frozen=True)
class Cell(cells.Cell):
    """One training run of the table: at full length, or cut short."""

    dataset: str
    method: str
    epsilon: float | None
    seed: int
    full: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """Budget and seed."""
        return {"epsilon": self.epsilon, "delta": DELTA, "seed": self.seed}


def _made(made: Made) -> Trained:
    return partial(generate, made.generator), made.facts


def _mixture(cell: Cell, loaded: Benchmark, directory: Path) -> Trained:
    return _made(train_mixture(loaded.private(), SHIPPED[cell.dataset], directory, **cell.options))


def _network(cell: Cell, loaded: Benchmark, directory: Path, **options: Any) -> Trained:
    options |= cell.options | {"steps": STEPS[cell.method][cell.full]}
    return _made(train_network(loaded.private(), directory, **options))


def _dp_merf(cell: Cell, loaded: Benchmark, directory: Path) -> Trained:
    torch.manual_seed(cell.seed)
    model = DPMERF(
        Table3Generator().to(memory_format=torch.channels_last), n_frequencies=1000, lengthscale=6.0
    )
    budget = model.release(loaded.private(), directory, cell.epsilon or 0.0, DELTA)
    model.train_generator(STEPS[cell.method][cell.full])
    return _sampler(model), _facts(budget)


def _gaussian(cell: Cell, loaded: Benchmark, directory: Path) -> Trained:
    torch.manual_seed(cell.seed)
    model = ClassGaussian(DCT((1, 28, 28), size=14, centre=0.13, radius=10.0))
    return _sampler(model), _facts(
        model.fit(loaded.private(), directory, cell.epsilon or 0.0, DELTA)
    )


def _real(cell: Cell, loaded: Benchmark, directory: Path) -> Trained:
    return None, {"sound": None, "mu": None, "delta": None, "statistic": None}


def _facts(budget: Budget) -> dict[str, Any]:
    facts = budget.statement()
    return {
        "sound": facts["sound"],
        "mu": facts["mu"],
        "delta": facts["delta"],
        "statistic": "moments",
    }


def _sampler(model: DPMERF | ClassGaussian) -> Callable[[Tensor], Tensor]:
    return lambda labels: torch.cat([model.sample(part) for part in labels.split(500)])


METHODS: dict[str, tuple[Callable[[Cell, Benchmark, Path], Trained], tuple[float | None, ...]]] = {
    "real records": (_real, (None,)),
    "without noise": (_mixture, (None,)),
    "rows": (partial(_network, batch_size=100, statistic="rows", generated=100), BUDGETS),
    "quantiles": (partial(_network, batch_size=6000, every=5), BUDGETS),
    "mixture": (_mixture, BUDGETS),
    "DP-MERF": (_dp_merf, BUDGETS),
    "Gaussian": (_gaussian, BUDGETS),
}


def plan(*, full: bool) -> list[Cell]:
    """List the cells of Table 2: every method, data set and budget; five seeds if ``full``, else one."""
    return [
        Cell(dataset, method, epsilon, seed, full)
        for seed in range(SEEDS if full else 1)
        for method, (_, budgets) in METHODS.items()
        for dataset in DATASETS
        for epsilon in budgets
    ]


def plan_generation() -> list[Cell]:
    """List the cells of ``generation``, one seed after the other: the default generator first."""
    baselines = [
        ("Gaussian", DATASETS, BUDGETS),
        ("DP-MERF", DATASETS, BUDGETS),
        ("real records", GENERATED, (None,)),
    ]
    return [
        Cell(dataset, method, epsilon, seed, full=True)
        for seed in range(SEEDS)
        for method, datasets, budgets in [("mixture", GENERATED, BUDGETS), *baselines]
        for epsilon in budgets
        for dataset in datasets
        if seed < 3 or dataset != "CIFAR10"  # images of 32 x 32 in colour take the longest
    ]


def table2(out: Path, *, data: Path | None = None, full: bool = False) -> dict[str, Any]:
    """Rakotomamonjy2021, Table 2: ours and baselines in one protocol (one seed, cut short; --full: five)."""
    rows = summarise(evaluate_cells(plan(full=full), out, data))
    draw(rows, out / "table2.png")
    return {"rows": rows}


def generation(out: Path, *, quick: bool = False, data: Path | None = None) -> dict[str, Any]:
    """Default generator, class-wise Gaussian, DP-MERF: downstream accuracy, five seeds, CIFAR-10 three (hours)."""
    chosen = [
        cell
        for cell in plan_generation()
        if not quick or (cell.dataset, cell.seed) == ("digits", 0)
    ]
    rows = summarise(evaluate_cells(chosen, out, data))
    return {
        "rows": sorted(
            rows, key=lambda row: (GENERATED.index(row["dataset"]), -(row["epsilon"] or 0.0))
        )
    }


def evaluate_cells(wanted: Sequence[Cell], out: Path, data: Path | None) -> list[dict[str, Any]]:
    """Train and evaluate the cells that have no result yet (see :func:`experiments.cells.run_cells`)."""
    directory = directory_of(out, full=wanted[0].full)
    work = partial(evaluate_cell, directory=directory, data=data)
    return cells.run_cells(wanted, work, directory, version=config_digest)


def directory_of(out: Path, *, full: bool) -> Path:
    """Name the directory of cells and runs."""
    return out / f"table2-{'full' if full else 'quick'}"


def config_digest(cell: Cell) -> str | None:
    """Return the digest of the shipped config that a cell follows: a cell is run again when it changes."""
    return (
        constants_digest(SHIPPED[cell.dataset])
        if cell.method in ("mixture", "without noise")
        else None
    )


def evaluate_cell(cell: Cell, directory: Path, data: Path | None) -> dict[str, Any]:
    """Train one cell and the classifiers; write report and images."""
    run = cells.new_directory(directory / "runs" / cell.name)
    loaded, n = load(cell.dataset, data), N_SYNTHETIC[cell.full]
    started = time.monotonic()
    sample, facts = METHODS[cell.method][0](cell, loaded, run)
    seconds = time.monotonic() - started
    torch.manual_seed(cell.seed)
    if sample is None:
        order = torch.randperm(len(loaded.train))[:n]
        images, labels = loaded.train.floats(order), loaded.train.labels[order]
    else:
        labels = torch.arange(n) % 10
        images = sample(labels)
        keep = torch.arange(10).repeat(PER_CLASS).argsort(stable=True)
        directory.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(
            directory / f"{cell.name}.npz", data=to_bytes(images[keep]), labels=labels[keep].numpy()
        )
    if facts["sound"]:
        report = write_report(run)
        assert report["sound"]
        assert report["guarantee"]["epsilon"] <= cell.epsilon
    return {
        **{name: getattr(cell, name) for name in ("name", "dataset", "method", "epsilon", "seed")},
        **facts,
        "run": run.name,
        "accuracy": accuracies(IMAGE_CLASSIFIERS, images, labels, loaded),
        "train_seconds": None if sample is None else round(seconds, 1),
    }


def summarise(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Average cells over seeds: one row for each data set, method, budget and classifier."""
    groups = cells.grouped(
        results, lambda result: (result["dataset"], result["method"], result["epsilon"])
    )
    order = {name: i for i, name in enumerate([*GENERATED, *LABELS])}
    rows = []
    for key in sorted(groups, key=lambda key: (order[key[0]], order[key[1]], -(key[2] or 0.0))):
        found = groups[key]
        facts = {"dataset": key[0], "method": LABELS[key[1]], "epsilon": key[2]}
        facts |= {name: found[0][name] for name in ("statistic", "delta", "mu", "sound")}
        facts["train_seconds"] = (
            None if key[1] == "real records" else round(mean(r["train_seconds"] for r in found))
        )
        rows += cells.by_classifier(found, facts)
    return rows


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw accuracy against epsilon, one panel for each data set and classifier."""
    with figure(path, 10, 6, len(DATASETS), len(IMAGE_CLASSIFIERS), sharex=True) as panels:
        for line, dataset in zip(panels, DATASETS, strict=True):
            for axes, classifier in zip(line, IMAGE_CLASSIFIERS, strict=True):
                same = [
                    row
                    for row in rows
                    if row["dataset"] == dataset and row["classifier"] == classifier
                ]
                for method, points in cells.grouped(same, lambda row: row["method"]).items():
                    if points[0]["epsilon"] is None:
                        style = "-" if method == "real records" else ":"
                        axes.axhline(points[0]["mean"], color="grey", linestyle=style, linewidth=1)
                        continue
                    x, y = [row["epsilon"] for row in points], [row["mean"] for row in points]
                    axes.errorbar(
                        x, y, [row["std"] or 0.0 for row in points], fmt="o-", label=method
                    )
                axes.set_xscale("log")
                axes.set_title(f"{dataset}, {classifier}", fontsize=9)
                axes.grid(True, alpha=0.3)
        whole = panels[0][0].figure
        whole.supxlabel("epsilon (grey: real records; dotted: ours without noise)", fontsize=9)
        whole.supylabel("accuracy, %", fontsize=9)
        whole.legend(
            *panels[0][0].get_legend_handles_labels(),
            loc="outside upper center",
            ncols=3,
            fontsize=8,
        )


EXPERIMENTS = (table2, generation)
