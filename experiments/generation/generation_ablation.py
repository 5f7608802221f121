"""Ablation of the shipped generators: one thing changed at a time, on MNIST, one seed."""

import tempfile
import warnings
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from dpswd.generation.evaluation import CLASSIFIERS, accuracy, flat
from dpswd.generation.export import generate
from experiments.cells import run_cells
from experiments.generation.table2 import N_SYNTHETIC
from experiments.generation.table2_methods import DELTA, Cell, shipped_configs
from experiments.generation.train_config import train_config

HELP = "what each part of the shipped generators brings, on MNIST: one seed (half an hour, resumes)"

STILL = [f"--model.init_args.{amount}=0" for amount in ("shift", "rotation", "zoom", "shear", "elastic")]
# what is changed, epsilon, options of dpswd fit
RUNS: list[tuple[str, float, list[str]]] = [
    (label, epsilon, options)
    for epsilon in (10.0, 1.0)
    for label, options in (
        ("as shipped", []),
        ("no flow to the slices", ["--model.init_args.flow_steps=0"]),
        ("no jitter", STILL),
        ("shifts only", STILL[1:]),
    )
]


@dataclass(frozen=True)
class Change:
    """One run: a change of the shipped config, as options of ``dpswd fit``."""

    label: str
    epsilon: float
    options: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the result."""
        return f"{self.label.replace(' ', '_')}-{self.epsilon:g}"


def evaluate(change: Change, data: Path | None) -> dict[str, Any]:
    """Trains, generates, and returns the row with its accuracies."""
    cell = Cell("MNIST", "sketch", change.epsilon, 0, full=True)
    budget: dict[str, Any] = {"epsilon": change.epsilon, "delta": DELTA}
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings(), redirect_stdout(StringIO()):
        warnings.simplefilter("ignore")  # Lightning's, on workers
        configs, options = shipped_configs(cell), change.options
        run = train_config(configs, Path(directory) / "run", **budget, seed=0, data=data, more=options)
    assert run.facts["sound"]
    assert run.data.test is not None
    labels = torch.arange(N_SYNTHETIC[True]) % 10
    train = flat(generate(run.module, labels)), labels.numpy()
    test = flat(run.data.test.floats()), run.data.test.labels.numpy()
    found = {name: round(accuracy(name, train, test, True), 2) for name in CLASSIFIERS}
    return {"change": change.label, **budget, "options": list(change.options), "seeds": 1, "accuracy": found}


def run(out: Path, *, quick: bool = False, data: Path | None = None, workers: int | None = None) -> dict[str, Any]:
    """Makes the missing runs; with ``quick`` the first one only."""
    changes = [Change(label, epsilon, tuple(options)) for label, epsilon, options in (RUNS[:1] if quick else RUNS)]
    directory = out / "generation-ablation"
    version = lambda change: list(change.options)  # noqa: E731
    return {"rows": run_cells(changes, partial(evaluate, data=data), directory, version=version, workers=workers)}
