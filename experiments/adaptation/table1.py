"""Rakotomamonjy2021, Table 1: the configs of ``configs/paper`` by ``dpswd fit``.

The methods are LightningModules of :mod:`models`, in the settings of the authors' code
(arakotom/dp_swd at 97164ee); docs/reproductions.md compares them. All of them but DP-DANN are NOT
PRIVATE, and the test is on the records that train (transductive). A cell is a config with a seed,
and its file in ``OUT/table1`` keeps it from being run again.

``steps`` shortens all runs; the term of source and target still enters after 11 % of them on
digits, and after 22 % on Office.
DP-DANN has the noise of the authors' code, so that its epsilon depends on the steps, and beside it
the noise of epsilon = 10.

``table1_gap`` changes one setting at a time, with a twentieth of the steps.
"""

import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import yaml  # type: ignore[import-untyped]

from dpswd import PrivacyAccountant
from dpswd._validate import choice
from dpswd.data import data_root
from dpswd.mechanism import GaussianMechanism
from experiments import cells
from experiments.adaptation.pairs import OFFICE
from experiments.commands import fit, words_of
from experiments.results import ROOT, Result, Row

CONFIGS = ROOT / "configs" / "paper"
DIGITS = ("MNIST-USPS", "USPS-MNIST")
OFFICE_PAIRS = ("D-W", "D-A", "A-W", "A-D", "W-A", "W-D")
METHODS = {
    "source_only": "source only",
    "dann": "DANN",
    "swd": "SWD",
    "dp_dann": "DP-DANN",
    "dp_swd": "published DP-SWD",
}
PRINTED = {  # accuracies of Table 1, in percent
    "MNIST-USPS": {"dann": 93.9, "swd": 95.5, "dp_dann": 87.1, "dp_swd": 94.0},
    "USPS-MNIST": {"dann": 86.2, "swd": 84.8, "dp_dann": 73.5, "dp_swd": 83.4},
}
# Deviation of the noise on each clipped gradient of DP-DANN in the authors' code.
NOISE = {"MNIST-USPS": 17.0, "USPS-MNIST": 14.65, "office": 9.81}
EPSILON = 10.0  # of DP-DANN beside the noise of the code
SHORT = 20  # a run of table1_gap has this part of the steps
CODE_STEPS = 46_800  # of MNIST-USPS in the authors' code, whose epochs are those of the source
VERSION = 2  # of the cells: the methods do not change with the package


@dataclass(frozen=True)
class OfficeSetting:
    """Settings of a pair of Office-31 in the authors' code.

    Attributes:
        lr: Learning rate of all methods but DANN and DP-DANN.
        lr_dann: Learning rate of these two.
        weight: Weight of the distance.
        weight_dann: Weight of the domain classifier.
    """

    lr: float
    lr_dann: float
    weight: float
    weight_dann: float


OFFICE_SETTINGS = {
    "D-W": OfficeSetting(5e-4, 5e-4, 0.5, 0.01),
    "D-A": OfficeSetting(5e-4, 5e-4, 5.0, 1.0),
    "A-W": OfficeSetting(5e-5, 5e-5, 5.0, 1.0),
    "A-D": OfficeSetting(5e-5, 5e-5, 5.0, 1.0),
    "W-A": OfficeSetting(5e-5, 5e-4, 5.0, 1.0),
    "W-D": OfficeSetting(5e-5, 5e-5, 5.0, 0.1),
}
OFFICE_SIZES = {"A": 958, "W": 295, "D": 157}  # records of Office-Caltech-10


@dataclass(frozen=True)
class Cell(cells.Cell):
    """A run of a config.

    Attributes:
        problem: Names of source and target, as ``"MNIST-USPS"``.
        method: Name of the config without that of the problem.
        seed: Of the weights and of the batches.
        epsilon: Budget of DP-DANN; ``None`` for the noise of the authors' code.
        steps: Number of training steps; ``None`` for that of the config.
        changed: Further options of the command line with their values.
    """

    problem: str
    method: str
    seed: int
    epsilon: float | None = None
    steps: int | None = None
    changed: tuple[str, ...] = ()

    @property
    def is_of_digits(self) -> bool:
        """Whether records are images of digits."""
        return self.problem in DIGITS

    @property
    def config(self) -> Path:
        """Path of the config."""
        name = "office31"
        if self.is_of_digits:
            name = self.problem.lower().replace("-", "_")
        return CONFIGS / f"{self.method}_{name}.yaml"


# Experiments


def table1(
    out: Path,
    *,
    data: Path | None = None,
    quick: bool = False,
    seeds: int = 5,
    steps: int = 0,
    only: str | None = None,
) -> Result:
    """Table 1: all methods on digits (steps 0: all, 15 minutes a cell; resumes).

    ``only``, as ``dann``, leaves the other methods out.
    """
    if only is not None:
        choice(tuple(METHODS), only=only)
    if quick:
        seeds = 1
        steps = 30
    planned = []
    for problem in DIGITS:
        for seed in range(seeds):
            planned += _cells_of(problem, seed, steps or None)
    planned.append(Cell("USPS-MNIST", "swd", 0, steps=steps or None, changed=("data.box", "28")))
    if only is not None:
        planned = [cell for cell in planned if cell.method == only]
    return {"rows": _rows(planned, out, data)}


def table1_office(
    out: Path, *, data: Path | None = None, seeds: int = 5, pairs: str | None = None
) -> Result:
    """Table 1: the same methods on Office-Caltech-10 (half an hour; resumes).

    ``pairs``, as ``D-W,D-A``, leaves the other pairs out.
    """
    problems: Sequence[str] = OFFICE_PAIRS
    if pairs is not None:
        problems = pairs.split(",")
    for problem in problems:
        choice(OFFICE_PAIRS, pairs=problem)
    planned = []
    for seed in range(seeds):
        for problem in problems:
            planned += _cells_of(problem, seed, None)
    return {"rows": _rows(planned, out, data)}


def _cells_of(problem: str, seed: int, steps: int | None) -> list[Cell]:
    """Return a cell for each method, and one of DP-DANN at epsilon = 10."""
    planned = [Cell(problem, method, seed, steps=steps) for method in METHODS]
    planned.append(Cell(problem, "dp_dann", seed, EPSILON, steps))
    return planned


CHANGES = (  # the most telling ones first
    ("USPS-MNIST", "swd", ()),
    ("USPS-MNIST", "swd", ("data.box", "28")),
    ("MNIST-USPS", "swd", ()),
    ("MNIST-USPS", "swd", ("data.box", "28")),
    ("USPS-MNIST", "source_only", ()),
    ("USPS-MNIST", "source_only", ("data.box", "28")),
    ("USPS-MNIST", "swd", ("model.weight", "0.01")),
    ("USPS-MNIST", "swd", ("data.box", "18")),
    ("USPS-MNIST", "swd", ("data.box", "24")),
    ("USPS-MNIST", "dp_swd", ()),
    ("MNIST-USPS", "dp_swd", ()),
)


def table1_gap(out: Path, *, data: Path | None = None, seeds: int = 3) -> Result:
    """Table 1: what the published algorithm depends on (half an hour; resumes)."""
    planned = []
    for problem, method, changed in CHANGES:
        cell = Cell(problem, method, 0, changed=changed)
        steps = _stated(cell.config)["trainer"]["max_steps"] // SHORT
        planned += [replace(cell, seed=seed, steps=steps) for seed in range(seeds)]
    longer = Cell("MNIST-USPS", "swd", 0, steps=CODE_STEPS // SHORT, changed=("data.box", "28"))
    planned += [replace(longer, seed=seed) for seed in range(seeds)]
    return {"rows": _rows(planned, out, data)}


# Runs


def _rows(planned: Sequence[Cell], out: Path, data: Path | None) -> list[Row]:
    """Run the missing cells; return the rows of all."""
    directory = out / "table1"
    work = partial(run_cell, directory=directory / "runs", data=data)
    results = cells.run_cells(
        planned, work, directory / "cells", version=lambda cell: VERSION, workers=0
    )
    return summarise(results)


def run_cell(cell: Cell, directory: Path, data: Path | None) -> Result:
    """Run ``dpswd fit`` on a config; return accuracy, curve and guarantee.

    Raises:
        DpswdError: If the command ends with an error, which it has printed.
    """
    directory = cells.new_directory(directory / cell.name)
    options: dict[str, object] = {
        "config": cell.config,
        "seed_everything": cell.seed,
        "trainer.default_root_dir": directory,
        "trainer.enable_progress_bar": "false",
        "trainer.logger": "false",
    }
    started = time.monotonic()
    fit(options, options_of(cell, data))
    seconds = time.monotonic() - started
    measured = _read(directory / "target_accuracy.json")
    guarantee: Result = {}
    if (directory / "privacy.json").exists():
        guarantee = _read(directory / "privacy.json")
    return {
        "cell": asdict(cell),
        "accuracy": measured["accuracy"],
        "curve": measured["curve"],
        "steps": measured["steps"],
        "seconds": round(seconds, 1),
        **{name: guarantee.get(name) for name in ("epsilon", "delta", "mu", "conditions")},
    }


def _read(path: Path) -> Result:
    """Return the content of a JSON file of a run."""
    content: Result = json.loads(path.read_text())
    return content


def options_of(cell: Cell, data: Path | None) -> list[str]:
    """Return the options by which a run differs from its config."""
    config = _stated(cell.config)
    options: dict[str, Any] = {}
    if cell.is_of_digits:
        if data is not None:
            options["data.root"] = data
    else:
        options |= _office_options(cell, data)
    full = config["trainer"]["max_steps"]
    steps = cell.steps or full
    first_step = config["model"]["init_args"].get("first_step", 0) * steps // full
    options["trainer.max_steps"] = steps
    if first_step:
        options["model.first_step"] = first_step
    if cell.method == "dp_dann":
        options |= _budget_options(cell, config, steps - first_step)
    words = words_of(options)
    for name, text in zip(cell.changed[::2], cell.changed[1::2], strict=True):
        words += [f"--{name}", text]
    return words


def _stated(path: Path) -> dict[str, Any]:
    """Return the content of a config."""
    content: dict[str, Any] = yaml.safe_load(path.read_text())
    return content


def _office_options(cell: Cell, data: Path | None) -> dict[str, Any]:
    """Return files, sizes and settings of a pair of Office-Caltech-10.

    The config is that of Office-31, whose features are longer and of more classes.
    """
    directory = data_root(data) / "office_caltech10"
    source, target = cell.problem.split("-")
    setting = OFFICE_SETTINGS[cell.problem]
    options: dict[str, Any] = {
        "data.source": directory / f"{OFFICE[source]}_GoogleNet1024.npz",
        "data.target": directory / f"{OFFICE[target]}_GoogleNet1024.npz",
        "model.encoder.input_dim": 1024,
        "model.classifier.n_classes": 10,
    }
    if cell.method in ("dann", "dp_dann"):
        return options | {"model.lr": setting.lr_dann, "model.weight": setting.weight_dann}
    options["model.lr"] = setting.lr
    if cell.method != "source_only":
        options["model.weight"] = setting.weight
    return options


def _budget_options(cell: Cell, config: Result, n_releases: int) -> dict[str, Any]:
    """Return budget and clipping of DP-DANN.

    At ``cell.epsilon`` the clipping bound is the weight of the loss, that is 1 for the gradient
    without it; the bound of the code, 1 with it, would only scale the noise up.
    """
    privacy = config["privacy"]
    init_args = config["model"]["init_args"]
    batch_size = init_args["batch_size"]
    sample_size = privacy["sample_size"]
    weight = init_args["weight"]
    noise = NOISE["office"]
    if cell.is_of_digits:
        noise = NOISE[cell.problem]
    else:
        sample_size = OFFICE_SIZES[cell.problem[-1]]
        weight = OFFICE_SETTINGS[cell.problem].weight_dann
    options = {"privacy.sample_size": sample_size, "privacy.n_releases": n_releases}
    if cell.epsilon is not None:
        return options | {"privacy.target_epsilon": cell.epsilon, "model.clip": weight}
    epsilon = epsilon_of_noise(noise, batch_size, sample_size, n_releases, privacy["target_delta"])
    return options | {"privacy.target_epsilon": epsilon}


def epsilon_of_noise(
    noise: float, batch_size: int, sample_size: int, n_releases: int, delta: float
) -> float:
    """Return epsilon of clipped gradients, each with noise of its own.

    Args:
        noise: Deviation of the noise on each gradient, for a clipping bound of 1.
        batch_size: Number B of gradients of a release.
        sample_size: Number N of records.
        n_releases: Number of releases.
        delta: Delta of the guarantee.
    """
    mechanism = GaussianMechanism(
        sensitivity=2.0, sigma=noise * math.sqrt(batch_size), batch_size=batch_size
    )
    account = PrivacyAccountant("pld")
    account.step(mechanism, sample_size=sample_size, n_releases=n_releases)
    return account.get_epsilon(delta)


# Rows


def summarise(results: Sequence[Result]) -> list[Row]:
    """Average results over seeds: a row per setting, in order."""
    groups = cells.grouped(results, _setting)
    return [_summary(cell, seed_results) for cell, seed_results in groups.items()]


def _setting(result: Result) -> Cell:
    """Return the cell of a result with seed 0, the same for all seeds of a setting."""
    values = dict(result["cell"])
    values["changed"] = tuple(values["changed"])
    return replace(Cell(**values), seed=0)


def _summary(cell: Cell, results: Sequence[Result]) -> Row:
    """Return the row of a setting."""
    first = results[0]
    accuracies = [result["accuracy"] for result in results]
    curves = zip(*(result["curve"] for result in results), strict=True)
    sound = None
    if cell.method in ("dp_swd", "dp_dann"):
        sound = False
    changed = dict(zip(cell.changed[::2], cell.changed[1::2], strict=True))
    return {
        "dataset": cell.problem,
        "method": METHODS[cell.method],
        "noise": _noise(cell),
        "epsilon": first["epsilon"],
        "delta": first["delta"],
        "mu": first["mu"],
        "sound": sound,
        "conditions": first["conditions"],
        "classifier": "encoder and head",
        "steps": first["steps"],
        "changed": {name.rpartition(".")[2]: value for name, value in changed.items()},
        "values": accuracies,
        **cells.averaged(accuracies),
        "printed": PRINTED.get(cell.problem, {}).get(cell.method),
        "curve": [round(mean(point), 1) for point in curves],
        "train_seconds": round(mean(result["seconds"] for result in results)),
    }


def _noise(cell: Cell) -> str | None:
    """Return where the noise of a method comes from.

    ``None`` is for a method without noise.
    """
    if cell.method == "dp_swd":
        return "printed"
    if cell.method != "dp_dann":
        return None
    if cell.epsilon is None:
        return "of the code"
    return f"of epsilon = {cell.epsilon:g}"


EXPERIMENTS = (table1, table1_office, table1_gap)
