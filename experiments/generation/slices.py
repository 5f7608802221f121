"""Networks trained by DP-SWD on released slices, and their accuracy.

It is the accuracy of training on their images.

A cell makes the three releases of :class:`dpswd.principal.PrincipalSlices` within its budget
(``OUT/slices/runs/NAME``: ledger, privacy.json, report, samples.png, slices and generator), trains
the network of the shipped config in plain torch, and trains classifiers on 60,000 generated images,
which are tested on the real test images. ``OUT/slices/cells`` has the finished cells. A control has
no training: the released means and one normal law of the differences from them. Another network
draws pixels: ConvGenerator, trained by the same loss from random weights.

Options were chosen by test accuracies of MNIST at epsilon = 10 and 1 and one seed; nothing was
chosen on Fashion-MNIST or USPS.
"""

import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

from dpswd.accounting.calibrate import mu_of_epsilon
from dpswd.data import Benchmark, benchmark
from dpswd.evaluation.accuracy import IMAGE_CLASSIFIERS
from dpswd.files.generators import read_generator, write_generator
from dpswd.files.pictures import save_grid, save_samples
from dpswd.lightning.schedules import one_cycle
from dpswd.networks.generator import Generator, draw
from dpswd.networks.image_generators import ConvGenerator
from dpswd.networks.principal_generator import PrincipalGenerator
from dpswd.principal import PrincipalSlices, plan_slices
from experiments import cells
from experiments.generation.networks import check_report, cpu_seconds
from experiments.generation.training import CONFIGS, DELTA, accuracies, digest
from experiments.results import Result, Row

DATASETS = {"MNIST": "mnist", "FashionMNIST": "fashion", "USPS": "usps"}
OF_PAPER = ("MNIST",)
CONFIG_OF = {"MNIST": "mnist_swd", "FashionMNIST": "fashion_swd", "USPS": "mnist_swd"}
BUDGETS = (10.0, 1.0)
N_SYNTHETIC = 60_000
N_SEEDS = 5
QUICK_STEPS = 20
# Training of the network that draws pixels, whose images have to be made at every step.
OF_PIXELS = {"steps": 700, "generated": 1_200, "lr": 2e-3}
METHODS = {
    "slices": "DP-SWD, slices",
    "start": "start of the slices, no training",
    "pixels": "DP-SWD, slices, ConvGenerator",
}


@dataclass(frozen=True)
class Cell(cells.Cell):
    """One plan of releases, one training run, one evaluation.

    ``steps`` is the number of steps of the config if it is ``None``.
    """

    dataset: str
    epsilon: float
    seed: int
    method: str = "slices"
    steps: int | None = None


# Experiment ---------------------------------------------------------------------------------------


def run(
    out: Path, *, quick: bool = False, data: Path | None = None, seeds: int = N_SEEDS
) -> Result:
    """Networks trained on released slices: downstream accuracy (hours; resumes).

    The networks are trained by DP-SWD.
    """
    planned = plan(seeds)
    if quick:
        planned = [Cell("MNIST", 10.0, 0, steps=QUICK_STEPS)]
    runs = out / "slices" / "runs"
    work = partial(run_cell, directory=runs, data=data)
    directory = out / "slices" / "cells"
    results = cells.run_cells(planned, work, directory, version=version, workers=0)
    draw_picture(runs, out / "slices.png")
    return {"rows": summarise(results)}


def plan(n_seeds: int) -> list[Cell]:
    """List the cells, one seed after the other, then the controls."""
    planned = []
    for seed in range(n_seeds):
        for epsilon in BUDGETS:
            planned += [Cell(dataset, epsilon, seed) for dataset in DATASETS]
    for epsilon in BUDGETS:
        planned += [Cell(dataset, epsilon, 0, "start") for dataset in DATASETS]
    planned += [Cell(dataset, BUDGETS[0], 0, "pixels") for dataset in OF_PAPER]
    return planned


def version(cell: Cell) -> str:
    """Return a digest of the settings: a cell is run again when they change."""
    return digest(settings(cell.dataset))


def settings(dataset: str) -> dict[str, Any]:
    """Return settings of the shipped config, and options of its network.

    The jitter of USPS is that of MNIST in proportion to the side of the image.
    """
    config = yaml.safe_load((CONFIGS / f"{CONFIG_OF[dataset]}.yaml").read_text())
    options = config["model"]["init_args"]
    network = dict(options["generator"]["init_args"])
    if dataset == "USPS":
        jitter = dict(network["jitter"])
        for name in ("shift", "elastic"):  # in pixels
            jitter[name] = round(jitter[name] * 16 / 28, 2)
        network["sample_shape"] = (1, 16, 16)
        network["jitter"] = jitter
    return {
        "steps": config["trainer"]["max_steps"],
        "generated": options["generated"],
        "lr": options["lr"],
        "network": network,
    }


# Cells --------------------------------------------------------------------------------------------


def run_cell(cell: Cell, directory: Path, data: Path | None) -> Result:
    """Release, train and evaluate."""
    directory = cells.new_directory(directory / cell.name)
    loaded = benchmark(DATASETS[cell.dataset], data, public=True)
    records = loaded.private()
    torch.manual_seed(cell.seed)
    options = settings(cell.dataset)
    if cell.method == "pixels":
        options |= OF_PIXELS
    steps = cell.steps or options["steps"]
    if cell.method == "start":
        steps = 0
    started = time.monotonic()
    cpu_started = cpu_seconds()
    first = PrincipalGenerator(**options["network"])
    mu = mu_of_epsilon(cell.epsilon, DELTA)
    sizes = plan_slices(len(records), first.n_classes, mu, first.features.dim)
    slices = PrincipalSlices(first.features, first.n_classes, sizes)
    statement = slices.release(
        records, target_epsilon=cell.epsilon, target_delta=DELTA, run_dir=directory
    )
    generator: Generator
    if cell.method == "pixels":
        generator = ConvGenerator(records.shape)
    else:
        generator = first.with_directions(sizes.n_directions)
        generator.start_at(**asdict(slices.start()))
    train(generator, slices, steps=steps, generated=options["generated"], lr=options["lr"])
    generator.eval()
    seconds = time.monotonic() - started
    used = cpu_seconds() - cpu_started
    slices.save(directory / "slices.pt")
    write_generator(generator, directory / "generator.pt", slices.guarantee)
    save_samples(generator, directory / "samples.png")
    check_report(directory, cell.epsilon)
    return {
        "dataset": cell.dataset,
        "epsilon": cell.epsilon,
        "seed": cell.seed,
        "method": cell.method,
        "sound": statement["sound"],
        "mu": statement["mu"],
        "delta": statement["delta"],
        "steps": steps,
        **sizes._asdict(),
        "accuracy": evaluated(generator, loaded),
        "train_seconds": round(seconds, 1),
        "cpu_seconds": round(used, 1),
    }


def train(
    generator: Generator,
    slices: PrincipalSlices,
    *,
    steps: int,
    generated: int,
    lr: float,
) -> None:
    """Train as :class:`dpswd.lightning.module.GeneratorModule` does with ``whiten``."""
    labels = torch.arange(generated) % generator.n_classes
    optimiser = torch.optim.Adam(generator.parameters(), lr=lr, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, partial(one_cycle, n_steps=max(1, steps))
    )
    for _ in range(steps):
        latent = generator.latent(generated)
        if isinstance(generator, PrincipalGenerator):
            loss = slices.distance(generator.coordinates(latent, labels), labels)
        else:
            loss = slices.loss(generator(latent, labels), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()


def evaluated(generator: Generator, loaded: Benchmark) -> dict[str, float]:
    """Return accuracies on the real test images of training on generated ones."""
    labels = torch.arange(N_SYNTHETIC) % generator.n_classes
    return accuracies(IMAGE_CLASSIFIERS, draw(generator, labels), labels, loaded)


# Rows and pictures --------------------------------------------------------------------------------


def summarise(results: list[Result]) -> list[Row]:
    """Average cells over seeds: a row for each setting and classifier."""
    rows = []
    for seed_results in cells.grouped(results, _setting).values():
        first = seed_results[0]
        row: Row = {
            "dataset": first["dataset"],
            "method": METHODS[first["method"]],
            "statistic": "quantiles",
            "epsilon": first["epsilon"],
        }
        for name in ("delta", "mu", "sound", "steps", "n_directions", "n_bases", "n_quantiles"):
            row[name] = first[name]
        for name in ("train_seconds", "cpu_seconds"):
            row[name] = round(mean(result[name] for result in seed_results))
        rows += cells.by_classifier(seed_results, row)
    datasets = list(DATASETS)
    return sorted(rows, key=lambda row: (datasets.index(row["dataset"]), -row["epsilon"]))


def _setting(result: Result) -> tuple[Any, ...]:
    return result["dataset"], result["method"], result["epsilon"], result["steps"]


def draw_picture(runs: Path, path: Path) -> None:
    """Draw images of the runs of seed 0 at the largest budget: three of every class."""
    lines = []
    for dataset in DATASETS:
        file = runs / Cell(dataset, BUDGETS[0], 0).name / "generator.pt"
        if file.exists():
            lines.append(F.interpolate(_draw_30(file), (28, 28), mode="bilinear"))
    if lines:
        save_grid(torch.cat(lines), path, 10)


def _draw_30(file: Path) -> Tensor:
    """Return three images of every class with seed 0."""
    torch.manual_seed(0)
    generator, _ = read_generator(file)
    return draw(generator, torch.arange(30) % 10)
