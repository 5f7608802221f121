"""An own convolutional network that draws pixels, trained on released slices.

A cell makes the three releases of :class:`dpswd.principal.PrincipalSlices` within its budget
(``OUT/own_network/runs/NAME``), trains :class:`models.pixels.PixelGenerator` on them, and trains a
CNN on 60,000 of its images, which is tested on the real test images. The network imitates a
generator in principal coordinates, which was trained by the loss of the slices.

Options were chosen by the CNN on MNIST, one seed; nothing was chosen on Fashion-MNIST or USPS.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import torch.nn.functional as F

from dpswd._validate import choice
from dpswd.accounting.calibrate import mu_of_epsilon
from dpswd.data import benchmark
from dpswd.files.pictures import save_grid
from dpswd.networks.generator import draw
from dpswd.networks.principal_generator import PrincipalGenerator
from dpswd.principal import PrincipalSlices, plan_slices
from experiments import cells
from experiments.generation.networks import check_report, cpu_seconds
from experiments.generation.slices import DATASETS, settings
from experiments.generation.training import DELTA, accuracies, digest
from experiments.results import Result, Row
from models.pixels import PixelGenerator, imitate, teach

EPSILON = 10.0
N_SYNTHETIC = 60_000
N_SEEDS = 3
N_SHOWN = 3  # images of a class in a picture
SIDE = 28  # of the images in a picture
TEACHER = {"steps": 600, "batch": 2_000, "lr": 2e-3}
IMITATION = {"steps": 600, "batch": 250, "lr": 4e-3}
QUICK = 20  # steps of each part


@dataclass(frozen=True)
class Cell(cells.Cell):
    """One plan of releases, one training run, one evaluation.

    ``most_steps`` bounds the steps of every part of the training.
    """

    dataset: str
    seed: int
    most_steps: int | None = None


def run(
    out: Path,
    *,
    quick: bool = False,
    data: Path | None = None,
    seeds: int = N_SEEDS,
    only: str | None = None,
) -> Result:
    """Train an own network that draws pixels: accuracy (15 minutes; resumes).

    It is trained on released slices. ``only`` names data sets, separated by commas.
    """
    planned = plan(seeds)
    if only is not None:
        names = only.split(",")
        for name in names:
            choice(DATASETS, only=name)
        planned = [cell for cell in planned if cell.dataset in names]
    if quick:
        planned = [Cell("MNIST", 0, most_steps=QUICK)]
    directory = out / "own_network"
    work = partial(run_cell, directory=directory / "runs", data=data)
    results = cells.run_cells(planned, work, directory / "cells", version=version, workers=0)
    draw_picture(directory / "runs", out / "own_network.png")
    return {"rows": summarise(results)}


def plan(n_seeds: int) -> list[Cell]:
    """List the cells: all seeds of MNIST, and one of the other data sets."""
    planned = [Cell("MNIST", seed) for seed in range(n_seeds)]
    planned += [Cell(name, 0) for name in DATASETS if name != "MNIST"]
    return planned


def version(cell: Cell) -> str:
    """Return a digest of the settings: a cell is run again when they change."""
    network = settings(cell.dataset)["network"]
    return digest({"network": network, "teacher": TEACHER, "imitation": IMITATION})


def run_cell(cell: Cell, directory: Path, data: Path | None) -> Result:
    """Release, train and evaluate."""
    directory = cells.new_directory(directory / cell.name)
    loaded = benchmark(DATASETS[cell.dataset], data, public=True)
    records = loaded.private()
    torch.manual_seed(cell.seed)
    cpu_started = cpu_seconds()
    network = settings(cell.dataset)["network"]
    amounts = network.pop("jitter")
    first = PrincipalGenerator(**network, outside=False)
    mu = mu_of_epsilon(EPSILON, DELTA)
    sizes = plan_slices(len(records), first.n_classes, mu, first.features.dim)
    slices = PrincipalSlices(first.features, first.n_classes, sizes)
    statement = slices.release(
        records, target_epsilon=EPSILON, target_delta=DELTA, run_dir=directory
    )
    generator = PixelGenerator(records.shape, n_codes=sizes.n_directions, jitter=amounts)
    teacher = first.with_directions(sizes.n_directions)
    teach(teacher, slices, **_options(TEACHER, cell))
    imitate(generator, teacher, **_options(IMITATION, cell))
    seconds = cpu_seconds() - cpu_started
    check_report(directory, EPSILON)
    torch.save(generator.state_dict(), directory / "network.pt")
    generator.eval()
    few_labels = torch.arange(N_SHOWN * generator.n_classes) % generator.n_classes
    torch.save(draw(generator, few_labels), directory / "images.pt")
    labels = torch.arange(N_SYNTHETIC) % generator.n_classes
    return {
        "dataset": cell.dataset,
        "seed": cell.seed,
        "epsilon": EPSILON,
        "delta": DELTA,
        "mu": statement["mu"],
        "sound": statement["sound"],
        "n_weights": sum(weights.numel() for weights in generator.parameters()),
        "accuracy": accuracies(("cnn",), draw(generator, labels), labels, loaded),
        "cpu_seconds": round(seconds),
    }


def _options(options: dict[str, Any], cell: Cell) -> dict[str, Any]:
    """Return options of a part of the training with the steps that the cell allows."""
    if cell.most_steps is None:
        return options
    return options | {"steps": min(cell.most_steps, options["steps"])}


def summarise(results: Sequence[Result]) -> list[Row]:
    """Average cells over seeds: a row for each setting and classifier."""
    rows = []
    groups = cells.grouped(results, lambda result: result["dataset"])
    for seed_results in groups.values():
        first = seed_results[0]
        row: Row = {"dataset": first["dataset"]}
        for name in ("epsilon", "delta", "mu", "sound", "n_weights"):
            row[name] = first[name]
        row["cpu_seconds"] = round(mean(result["cpu_seconds"] for result in seed_results))
        rows += cells.by_classifier(seed_results, row)
    return rows


def draw_picture(runs: Path, path: Path) -> None:
    """Draw images of the runs of seed 0: of MNIST, Fashion-MNIST and USPS."""
    lines = []
    for dataset in DATASETS:
        file = runs / Cell(dataset, 0).name / "images.pt"
        if file.exists():
            images = torch.load(file, weights_only=True)
            lines.append(F.interpolate(images, (SIDE, SIDE), mode="bilinear"))
    if lines:
        save_grid(torch.cat(lines), path, 10)
