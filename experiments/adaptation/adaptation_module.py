"""Adaptation by ``dpswd fit``: the shipped configs, as a user runs them.

Digits as they are, in both directions: the private target is the training set of USPS or MNIST, and
accuracy is that on its official test set. Office-Caltech-10 in six pairs: features of 1,024
numbers, a smaller encoder, tested on the target itself, as is usual. A control has no distance
(``alignment=0``): the same training on the source alone. ``OUT/adaptation_module`` has the run
directories, and a cell that is finished is not run again.

The sizes of Office-31 and VisDA-2017 are run on random numbers, for time and memory.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean

import numpy as np
import torch

from dpswd.adaptation.reading import read_records
from dpswd.data import data_root, read_public
from dpswd.estimators.adapter import PrivateAdapter
from experiments import cells
from experiments.adaptation.pairs import OFFICE
from experiments.benchmarks.measure import usage_of
from experiments.commands import fit
from experiments.results import Result, Row

N_SEEDS = 3
BUDGETS = (10.0, 1.0)
DIGITS = {"MNIST-USPS": ("mnist", "usps"), "USPS-MNIST": ("usps", "mnist")}
# Options of Office-Caltech-10 beside the config of Office-31, whose features are longer.
OFFICE_OPTIONS = (
    *("--model.encoder.input_dim", "1024"),
    *("--model.encoder.sizes", "[50]"),
    *("--model.encoder.activation", "tanh"),
    *("--model.encoder.normalise", "true"),
    *("--model.classifier.dim", "50"),
    *("--model.classifier.n_classes", "10"),
    *("--model.classifier.hidden", "100"),
    *("--trainer.max_steps", "350"),
    *("--data.batch_size", "64"),
)
QUICK_STEPS = 5
# Full sizes of the data sets: records of source and target, and classes. The paper has 497 and
# 55,387 records of the target.
FULL_SIZES = {"office31": (2817, 498, 31), "visda": (152_397, 55_388, 12)}
N_FEATURES = 2048


@dataclass(frozen=True)
class Cell(cells.Cell):
    """A run of a shipped config: a problem, a budget and a seed."""

    problem: str
    epsilon: float
    seed: int
    aligned: bool = True


def run(out: Path, *, quick: bool = False, data: Path | None = None) -> Result:
    """Adapt by the command line: target accuracy, 3 seeds (half an hour; resumes)."""
    planned = plan(N_SEEDS)
    sizes = list(FULL_SIZES)
    if quick:
        planned = [Cell("MNIST-USPS", BUDGETS[0], 0)]
        sizes = sizes[:1]
    directory = cells.directory_of(out, "adaptation_module", quick=quick)
    work = partial(run_cell, directory=directory / "runs", data=data, quick=quick)
    results = cells.run_cells(planned, work, directory / "cells", workers=0)
    timed = [time_full_size(name, directory / "sizes", quick=quick) for name in sizes]
    return {"rows": summarise(results), "full_size": timed}


def plan(n_seeds: int) -> list[Cell]:
    """List the cells: digits, then pairs of Office-Caltech-10, then the controls."""
    planned = []
    for seed in range(n_seeds):
        for problem in [*DIGITS, *office_pairs()]:
            planned += [Cell(problem, epsilon, seed) for epsilon in BUDGETS]
            planned.append(Cell(problem, BUDGETS[0], seed, aligned=False))
    return planned


def office_pairs() -> list[str]:
    """Return the names of the pairs of domains."""
    return [f"{one}-{other}" for one in OFFICE for other in OFFICE if one != other]


def run_cell(cell: Cell, directory: Path, data: Path | None, *, quick: bool) -> Result:
    """Run a config by the command line, and test the classifier that it writes."""
    directory = cells.new_directory(directory / cell.name)
    words = ["--seed_everything", str(cell.seed)]
    words += ["--privacy.target_epsilon", str(cell.epsilon)]
    if not cell.aligned:
        words += ["--model.alignment", "0"]
    if quick:
        words += ["--trainer.max_steps", str(QUICK_STEPS)]
    started = time.monotonic()
    if cell.problem in DIGITS:
        source, target = DIGITS[cell.problem]
        train("digits_adaptation", source, target, directory, [*_root(data), *words])
    else:
        letters = cell.problem.split("-")
        source = office_file(letters[0], data)
        target = office_file(letters[1], data)
        train("office31_adaptation", source, target, directory, [*OFFICE_OPTIONS, *words])
    seconds = time.monotonic() - started
    adapter = PrivateAdapter.load(directory / "classifier.pt")
    return {
        "problem": cell.problem,
        "epsilon": cell.epsilon,
        "aligned": cell.aligned,
        "seed": cell.seed,
        "accuracy": accuracy(adapter, target, data),
        "delta": adapter.guarantee_.delta,
        "mu": adapter.guarantee_.mu,
        "sound": adapter.guarantee_.sound,
        "seconds": round(seconds, 1),
    }


def train(
    config: str, source: str, target: str, directory: Path | str, options: Sequence[str]
) -> None:
    """Train by a config on a pair.

    Raises:
        DpswdError: If the command ends with an error, which it has printed.
    """
    settings: dict[str, object] = {
        "config": config,
        "data.source": source,
        "data.target": target,
        "trainer.default_root_dir": directory,
        "trainer.enable_progress_bar": "false",
    }
    fit(settings, options)


def office_file(letter: str, data: Path | None) -> str:
    """Return the file of features of a domain of Office-Caltech-10."""
    name = f"{OFFICE[letter]}_GoogleNet1024.npz"
    return str(data_root(data) / "office_caltech10" / name)


def _root(data: Path | None) -> list[str]:
    """Return the option of the directory of the data sets."""
    if data is None:
        return []
    return ["--data.root", str(data)]


def accuracy(adapter: PrivateAdapter, target: str, data: Path | None) -> float:
    """Return the accuracy in percent on labelled records of the target's kind.

    They are the official test set of a benchmark, and the target itself of another file.
    """
    benchmark = read_public(target, root=data)
    test = benchmark.test
    if test is None:
        records = read_records(target, adapter.classifier_.space.shape).records
        labels = benchmark.train.labels
    else:
        records = scaled(test.floats(), adapter.classifier_.space.shape).numpy()
        labels = test.labels
    names = np.asarray(benchmark.classes)[labels.numpy()]
    predicted = adapter.predict(records)
    return float(100 * (predicted.astype(str) == names.astype(str)).mean())


def scaled(images: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Return images (n, C, h, w) of the size of the source, as the command reads them."""
    if tuple(images.shape[1:]) == shape:
        return images
    resized = torch.nn.functional.interpolate(
        images, size=shape[1:], mode="bilinear", antialias=True
    )
    return resized.clamp(0, 1)


def time_full_size(name: str, directory: Path, *, quick: bool) -> Row:
    """Run a config on random numbers of the size of its data set.

    It runs in a process of its own.

    Returns:
        Seconds of the processor, and the largest memory of the process.
    """
    n_source, n_target, n_classes = FULL_SIZES[name]
    if quick:
        n_source = n_target = 900  # below 1 / delta
    directory = cells.new_directory(directory / name)
    directory.mkdir(parents=True)
    generator = np.random.default_rng(0)
    labels = np.arange(n_source) % n_classes
    source = directory / "source.npz"
    target = directory / "target.npz"
    rows = generator.random((n_source, N_FEATURES), dtype=np.float32)
    np.savez(source, features=rows, labels=labels)
    np.savez(target, features=generator.random((n_target, N_FEATURES), dtype=np.float32))
    del rows
    options = ["--trainer.max_steps", str(QUICK_STEPS)] if quick else []
    run_directory = str(directory / "run")
    usage = usage_of(
        f"""
from experiments.adaptation.adaptation_module import train

def before():
    pass

def work():
    train("{name}_adaptation", {str(source)!r}, {str(target)!r}, {run_directory!r}, {options})
"""
    )
    source.unlink()
    target.unlink()
    return {
        "config": f"{name}_adaptation",
        "n_source": n_source,
        "n_target": n_target,
        "cpu_seconds": round(usage.cpu_seconds, 1),
        "peak_gib": round(usage.peak_bytes / 2**30, 2),
    }


def summarise(results: Sequence[Result]) -> list[Row]:
    """Return means and standard deviations over seeds as rows of the tables."""
    rows = []
    groups = cells.grouped(
        results, lambda result: (result["problem"], result["epsilon"], result["aligned"])
    )
    for (problem, epsilon, aligned), seed_results in groups.items():
        first = seed_results[0]
        method = "DP-SWD, AdaptationModule"
        if not aligned:
            method = "source only, same training"
        row: Row = {
            "dataset": problem,
            "method": method,
            "statistic": "quantiles",
            "epsilon": epsilon,
            "delta": first["delta"],
            "mu": first["mu"],
            "sound": first["sound"],
            "classifier": "encoder and head",
            "train_seconds": round(mean(result["seconds"] for result in seed_results), 1),
        }
        rows.append(row | cells.averaged([result["accuracy"] for result in seed_results], 2))
    return rows
