"""Rakotomamonjy2021, Table 2, and the default generator beside baselines.

``OUT/table2-quick`` and ``OUT/table2-full`` hold ``NAME.json`` for each finished cell, ``NAME.npz``
with images, and ``runs/NAME``, a run directory with ledger and report that ``dpswd report`` reads.
An interrupted cell starts again in a new directory. ``table2_published`` has the rows of the paper.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
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
from dpswd.networks.generator import draw as draw_images
from dpswd.report.render import write_report
from experiments import cells
from experiments.generation.training import (
    BENCHMARKS,
    DELTA,
    SHIPPED,
    Privacy,
    Trained,
    accuracies,
    constants_digest,
    load,
    to_bytes,
    train_mixture,
    train_network,
)
from experiments.plots import figure
from experiments.results import Result, Row
from experiments.tables.values import select
from models.dp_merf import DPMERF
from models.gaussian import ClassGaussian
from models.networks import Table3Generator

N_SEEDS = 5
N_SHORT_SEEDS = 3  # of trainings that are cut short
N_SLOW_SEEDS = 3  # of DP-MERF
N_COLOUR_SEEDS = 3  # of CIFAR-10, whose images of 32 x 32 in colour take the longest
N_CLASSES = 10
PER_CLASS = 10  # images kept per class
AT_ONCE = 500  # images that a baseline draws at a time
DATASETS = ("MNIST", "FashionMNIST")
GENERATED = tuple(BENCHMARKS)  # data sets of the experiment ``generation``
BUDGETS: tuple[float | None, ...] = (10.0, 1.0, 0.2)
LABELS = {  # of the methods, in the order of the rows
    "real records": "real records",
    "without noise": "ours without noise",
    "rows": "DP-SWD, rows per step",
    "quantiles": "DP-SWD, quantiles per step",
    "mixture": "one-shot mixture",
    "DP-MERF": "DP-MERF",
    "Gaussian": "class-wise Gaussian",
}


@dataclass(frozen=True)
class Length:
    """Length of a run: steps of every method, training records of classifiers."""

    steps: dict[str, int]
    n_synthetic: int


LENGTHS = {
    "quick": Length({"rows": 800, "quantiles": 400, "DP-MERF": 300}, n_synthetic=20_000),
    "full": Length({"rows": 4000, "quantiles": 2000, "DP-MERF": 1200}, n_synthetic=60_000),
}


@dataclass(frozen=True)
class Cell(cells.Cell):
    """One training run of the table: at full length, or cut short."""

    dataset: str
    method: str
    epsilon: float | None
    seed: int
    full: bool = False

    @property
    def length(self) -> Length:
        """Length of the run."""
        if self.full:
            return LENGTHS["full"]
        return LENGTHS["quick"]

    @property
    def stated_epsilon(self) -> float:
        """The epsilon of a method that always has one."""
        assert self.epsilon is not None
        return self.epsilon


# Methods ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """Images to train classifiers on, and what was stated about privacy.

    ``draw`` returns an image for each label (n,); it is ``None`` for real records.
    """

    draw: Callable[[Tensor], Tensor] | None
    privacy: Privacy


def real_records(cell: Cell, loaded: Benchmark, directory: Path) -> Source:
    """Return the real records."""
    return Source(None, Privacy())


def mixture(cell: Cell, loaded: Benchmark, directory: Path) -> Source:
    """Fit the default generator; without epsilon there is no noise."""
    trained = train_mixture(
        loaded.private(),
        SHIPPED[cell.dataset],
        directory,
        epsilon=cell.epsilon,
        delta=DELTA,
        seed=cell.seed,
    )
    return _source(trained)


def rows_per_step(cell: Cell, loaded: Benchmark, directory: Path) -> Source:
    """Train a network with a release of noisy rows at every step."""
    options = {"batch_size": 100, "statistic": "rows", "generated": 100}
    return _network(cell, loaded, directory, **options)


def quantiles_per_step(cell: Cell, loaded: Benchmark, directory: Path) -> Source:
    """Train a network with a release of block means at every fifth step."""
    return _network(cell, loaded, directory, batch_size=6000, every=5)


def _network(cell: Cell, loaded: Benchmark, directory: Path, **options: Any) -> Source:
    trained = train_network(
        loaded.private(),
        directory,
        epsilon=cell.stated_epsilon,
        delta=DELTA,
        seed=cell.seed,
        steps=cell.length.steps[cell.method],
        **options,
    )
    return _source(trained)


def dp_merf(cell: Cell, loaded: Benchmark, directory: Path) -> Source:
    """Train DP-MERF on one release of the records."""
    torch.manual_seed(cell.seed)
    generator = Table3Generator().to(memory_format=torch.channels_last)
    model = DPMERF(generator, n_frequencies=1000, lengthscale=6.0)
    budget = model.release(loaded.private(), directory, cell.stated_epsilon, DELTA)
    model.train_generator(cell.length.steps[cell.method])
    return Source(partial(_sample, model), privacy_of(budget))


def gaussian(cell: Cell, loaded: Benchmark, directory: Path) -> Source:
    """Fit a normal law to each class."""
    torch.manual_seed(cell.seed)
    model = ClassGaussian(DCT((1, 28, 28), size=14, centre=0.13, radius=10.0))
    budget = model.fit(loaded.private(), directory, cell.stated_epsilon, DELTA)
    return Source(partial(_sample, model), privacy_of(budget))


def privacy_of(budget: Budget) -> Privacy:
    """Return what a budget states about releases of moments."""
    statement = budget.statement()
    return Privacy(statement["sound"], statement["mu"], statement["delta"], "moments")


def _source(trained: Trained) -> Source:
    return Source(partial(draw_images, trained.generator), trained.privacy)


def _sample(model: DPMERF | ClassGaussian, labels: Tensor) -> Tensor:
    """Draw an image of every class in ``labels`` (n,)."""
    return torch.cat([model.sample(part) for part in labels.split(AT_ONCE)])


@dataclass(frozen=True)
class Method:
    """A method of the table and its epsilons; ``None`` for no guarantee."""

    run: Callable[[Cell, Benchmark, Path], Source]
    budgets: tuple[float | None, ...] = BUDGETS


METHODS = {
    "real records": Method(real_records, (None,)),
    "without noise": Method(mixture, (None,)),
    "rows": Method(rows_per_step),
    "quantiles": Method(quantiles_per_step),
    "mixture": Method(mixture),
    "DP-MERF": Method(dp_merf),
    "Gaussian": Method(gaussian),
}


# Experiments --------------------------------------------------------------------------------------


def table2(out: Path, *, data: Path | None = None, full: bool = False) -> Result:
    """Rakotomamonjy2021, Table 2: ours and baselines, cut short (--full: not)."""
    rows = summarise(evaluate_cells(plan(full=full), out, data))
    draw(rows, out / "table2.png")
    return {"rows": rows}


def generation(out: Path, *, quick: bool = False, data: Path | None = None) -> Result:
    """Default generator, class-wise Gaussian, DP-MERF: accuracy, five seeds (hours)."""
    planned = plan_generation()
    if quick:
        planned = [cell for cell in planned if (cell.dataset, cell.seed) == ("digits", 0)]
    rows = summarise(evaluate_cells(planned, out, data))
    rows.sort(key=lambda row: (GENERATED.index(row["dataset"]), -(row["epsilon"] or 0.0)))
    return {"rows": rows}


def plan(*, full: bool) -> list[Cell]:
    """List the cells of Table 2: every method, data set and budget.

    There are five seeds if ``full``, else three.
    """
    n_seeds = N_SHORT_SEEDS
    if full:
        n_seeds = N_SEEDS
    planned = []
    for seed in range(n_seeds):
        for name, method in METHODS.items():
            for dataset in DATASETS:
                for epsilon in method.budgets:
                    planned.append(Cell(dataset, name, epsilon, seed, full))
    return planned


def plan_generation() -> list[Cell]:
    """List the cells of ``generation``, one seed after the other.

    DP-MERF, which takes minutes for each cell, has fewer seeds.
    """
    planned = []
    for seed in range(N_SEEDS):
        planned += _cells_of_seed("mixture", GENERATED, seed)
        planned += _cells_of_seed("Gaussian", DATASETS, seed)
        if seed < N_SLOW_SEEDS:
            planned += _cells_of_seed("DP-MERF", DATASETS, seed)
        planned += _cells_of_seed("real records", GENERATED, seed)
    return planned


def _cells_of_seed(method: str, datasets: Sequence[str], seed: int) -> list[Cell]:
    """Return the cells of a method at all its budgets; CIFAR-10 has fewer seeds."""
    planned = []
    for epsilon in METHODS[method].budgets:
        for dataset in datasets:
            if seed < N_COLOUR_SEEDS or dataset != "CIFAR10":
                planned.append(Cell(dataset, method, epsilon, seed, full=True))
    return planned


def evaluate_cells(planned: Sequence[Cell], out: Path, data: Path | None) -> list[Result]:
    """Train and evaluate the cells that have no result yet."""
    directory = directory_of(out, full=planned[0].full)
    work = partial(evaluate_cell, directory=directory, data=data)
    return cells.run_cells(planned, work, directory, version=config_digest)


def directory_of(out: Path, *, full: bool) -> Path:
    """Name the directory of cells and runs."""
    if full:
        return out / "table2-full"
    return out / "table2-quick"


def config_digest(cell: Cell) -> str | None:
    """Return the digest of the shipped config that a cell follows, if any.

    A cell is run again when it changes.
    """
    if cell.method in ("mixture", "without noise"):
        return constants_digest(SHIPPED[cell.dataset])
    return None


def evaluate_cell(cell: Cell, directory: Path, data: Path | None) -> Result:
    """Train one cell and the classifiers; write report and images."""
    run = cells.new_directory(directory / "runs" / cell.name)
    loaded = load(cell.dataset, data)
    started = time.monotonic()
    source = METHODS[cell.method].run(cell, loaded, run)
    seconds: float | None = round(time.monotonic() - started, 1)
    torch.manual_seed(cell.seed)
    n = cell.length.n_synthetic
    if source.draw is None:
        seconds = None
        order = torch.randperm(len(loaded.train))[:n]
        images = loaded.train.floats(order)
        labels = loaded.train.labels[order]
    else:
        labels = torch.arange(n) % N_CLASSES
        images = source.draw(labels)
        _keep(images, labels, directory / f"{cell.name}.npz")
    if source.privacy.sound:
        report = write_report(run)
        assert report["sound"]
        assert report["guarantee"]["epsilon"] <= cell.epsilon
    return {
        "name": cell.name,
        "dataset": cell.dataset,
        "method": cell.method,
        "epsilon": cell.epsilon,
        "seed": cell.seed,
        **asdict(source.privacy),
        "run": run.name,
        "accuracy": accuracies(IMAGE_CLASSIFIERS, images, labels, loaded),
        "train_seconds": seconds,
    }


def _keep(images: Tensor, labels: Tensor, path: Path) -> None:
    """Write the first ``PER_CLASS`` images of every class, in order of the classes."""
    order = torch.arange(N_CLASSES).repeat(PER_CLASS).argsort(stable=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, data=to_bytes(images[order]), labels=labels[order].numpy())


def summarise(results: list[Result]) -> list[Row]:
    """Average cells over seeds: a row for each setting and classifier."""
    groups = cells.grouped(
        results, lambda result: (result["dataset"], result["method"], result["epsilon"])
    )
    datasets = list(GENERATED)
    methods = list(LABELS)
    keys = sorted(
        groups,
        key=lambda key: (datasets.index(key[0]), methods.index(key[1]), -(key[2] or 0.0)),
    )
    rows = []
    for dataset, method, epsilon in keys:
        seed_results = groups[dataset, method, epsilon]
        seconds = None
        if method != "real records":
            seconds = round(mean(result["train_seconds"] for result in seed_results))
        row: Row = {"dataset": dataset, "method": LABELS[method], "epsilon": epsilon}
        for name in ("statistic", "delta", "mu", "sound"):
            row[name] = seed_results[0][name]
        row["train_seconds"] = seconds
        rows += cells.by_classifier(seed_results, row)
    return rows


def draw(rows: list[Row], path: Path) -> None:
    """Draw accuracy against epsilon, one panel for each data set and classifier."""
    with figure(path, 10, 6, len(DATASETS), len(IMAGE_CLASSIFIERS), sharex=True) as panels:
        for line, dataset in zip(panels, DATASETS, strict=True):
            for axes, classifier in zip(line, IMAGE_CLASSIFIERS, strict=True):
                _draw_panel(axes, select(rows, dataset=dataset, classifier=classifier))
                axes.set_title(f"{dataset}, {classifier}", fontsize=9)
        whole = panels[0][0].figure
        whole.supxlabel("epsilon (grey: real records; dotted: ours without noise)", fontsize=9)
        whole.supylabel("accuracy, %", fontsize=9)
        handles, labels = panels[0][0].get_legend_handles_labels()
        whole.legend(handles, labels, loc="outside upper center", ncols=3, fontsize=8)


def _draw_panel(axes: Any, rows: list[Row]) -> None:
    """Draw a line for each method; one without epsilon is horizontal."""
    for method, points in cells.grouped(rows, lambda row: row["method"]).items():
        if points[0]["epsilon"] is None:
            style = ":"
            if method == "real records":
                style = "-"
            axes.axhline(points[0]["mean"], color="grey", linestyle=style, linewidth=1)
            continue
        epsilons = [row["epsilon"] for row in points]
        means = [row["mean"] for row in points]
        deviations = [row["std"] or 0.0 for row in points]
        axes.errorbar(epsilons, means, deviations, fmt="o-", label=method)
    axes.set_xscale("log")
    axes.grid(True, alpha=0.3)


EXPERIMENTS = (table2, generation)
