"""What each part of the shipped generators brings: one thing changed at a time, on MNIST, one seed."""

import json
import tempfile
import warnings
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from dpswd._files import write_json
from dpswd.generation.evaluation import CLASSIFIERS, accuracy, flat
from dpswd.generation.export import generate
from experiments.generation.table2_cells import N_SYNTHETIC
from experiments.generation.table2_methods import DELTA, Cell, shipped_configs
from experiments.generation.train_config import train_config

HELP = "what each part of the shipped generators brings, on MNIST: one seed (half an hour, resumes)"

GENERATOR = "--model.init_args.generator.init_args"
STILL = [f"{GENERATOR}.{amount}=0" for amount in ("shift", "rotation", "zoom", "shear")]
NO_FLOW = ["--model.init_args.step_size=1e-6"]
FEW = [
    f"{GENERATOR}.components=40",
    "--model.init_args.features.init_args.components=40",
    "--model.init_args.n_projections=40",
]
# what is changed, epsilon, options of dpswd fit
RUNS: list[tuple[str, float, list[str]]] = [
    ("as shipped", 10.0, []),
    ("no flow to the slices", 10.0, NO_FLOW),
    ("no jitter", 10.0, STILL),
    ("shifts only", 10.0, STILL[1:]),
    ("3 cells per class", 10.0, [f"{GENERATOR}.n_cells=3"]),
    ("40 directions", 10.0, FEW),
    ("covariances not shrunk", 10.0, ["--model.init_args.shrink=false"]),
    ("as shipped", 1.0, []),
    ("no flow to the slices", 1.0, NO_FLOW),
    ("no jitter", 1.0, STILL),
    ("no inflation", 1.0, ["--model.init_args.inflation=1"]),
    (
        "3 cells per class",
        1.0,
        [f"{GENERATOR}.n_cells=3", "--model.init_args.cell_share=0.08", "--model.init_args.covariance_share=0.7"],
    ),
    ("40 directions", 1.0, FEW),
]


def _one(epsilon: float, options: list[str], data: Path | None) -> dict[str, float]:
    """Trains, generates, and returns the accuracies."""
    cell = Cell("MNIST", "sketch", epsilon, 0, full=True)
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings(), redirect_stdout(StringIO()):
        warnings.simplefilter("ignore")  # of Lightning, about workers
        run = train_config(
            shipped_configs(cell),
            Path(directory) / "run",
            epsilon=epsilon,
            delta=DELTA,
            seed=0,
            data=data,
            more=options,
        )
    assert run.facts["sound"]
    assert run.data.test is not None
    labels = torch.arange(N_SYNTHETIC[True]) % 10
    train = flat(generate(run.module, labels)), labels.numpy()
    test = flat(run.data.test.floats()), run.data.test.labels.numpy()
    return {name: round(accuracy(name, train, test, True), 2) for name in CLASSIFIERS}


def run(out: Path, *, quick: bool = False, data: Path | None = None) -> dict[str, Any]:
    """Makes the runs that are not there yet; the first alone with ``--quick``."""
    rows = []
    for label, epsilon, options in RUNS[:1] if quick else RUNS:
        path = out / "generation-ablation" / f"{label.replace(' ', '_')}-{epsilon:g}.json"
        row = {"change": label, "epsilon": epsilon, "delta": DELTA, "options": options, "seeds": 1}
        if not path.is_file() or json.loads(path.read_text())["options"] != options:
            write_json(path, row | {"accuracy": _one(epsilon, options, data)})
        rows.append(json.loads(path.read_text()))
        print(f"epsilon {epsilon:g}, {label}: {rows[-1]['accuracy']}", flush=True)
    return {"rows": rows}
