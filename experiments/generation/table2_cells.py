"""Runs the cells of Table 2: two at a time, one JSON per finished cell, so that a run goes on where it stopped.

``OUT/table2-quick`` or ``OUT/table2-full`` holds ``cells/NAME.json`` and ``runs/NAME``, a run directory with ledger,
privacy.json, report, evaluation.json, samples.png and samples.npz. A cell is made again where the shipped config that
it follows has changed. A run that was interrupted stays where it is, with its ledger, and the cell starts in a new
directory.
"""

import hashlib
import json
import logging
import multiprocessing
import os
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpswd._files import write_json
from dpswd.generation.evaluation import IMAGE_CLASSIFIERS, accuracy, flat
from dpswd.generation.export import save_grid, to_bytes
from dpswd.report.render import write_report
from experiments.generation.table2_methods import DATASETS, GENERATED, METHODS, Cell, Trained, shipped_configs, train
from experiments.generation.train_config import CONFIGS

__all__ = ["directory_of", "plan", "run_cells"]

N_SYNTHETIC = {False: 20_000, True: 60_000}  # records that a classifier is trained on, synthetic or real: quick, full
SEEDS = 5
PER_CLASS = 10  # pictures kept per class


def plan(*, full: bool) -> list[Cell]:
    """Lists all cells: every method, data set and budget; one seed, or five."""
    return [
        Cell(dataset, method, epsilon, seed, full)
        for seed in range(SEEDS if full else 1)
        for method, (_, budgets) in METHODS.items()
        for dataset in DATASETS
        for epsilon in budgets
    ]


def directory_of(out: Path, *, full: bool) -> Path:
    """Names the directory of the cells."""
    return out / f"table2-{'full' if full else 'quick'}"


def run_cells(
    cells: Sequence[Cell], directory: Path, data: Path | None, workers: int | None = None
) -> list[dict[str, Any]]:
    """Runs what is not there yet; returns the results in the order of ``cells``.

    Args:
        cells: What is wanted.
        directory: Where cells and runs go.
        data: Root of the data sets.
        workers: Processes of one thread each; as many as there are cores, at most 4, if not given. 0 for none: here.
    """
    paths = {cell: directory / "cells" / f"{cell.name}.json" for cell in cells}
    open_cells = [cell for cell, path in paths.items() if not _done(cell, path)]
    if open_cells:
        print(f"{len(cells) - len(open_cells)} of {len(cells)} cells are there already.", flush=True)
    if workers == 0:
        for cell in open_cells:
            _say(_work(cell, directory, data))
    elif open_cells:
        context = multiprocessing.get_context("spawn")
        count = workers or min(4, os.cpu_count() or 1)
        with ProcessPoolExecutor(count, mp_context=context, initializer=_quiet_lightning) as pool:
            futures = [pool.submit(_work, cell, directory, data) for cell in open_cells]
            try:
                for future in as_completed(futures):
                    _say(future.result())
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    return [json.loads(path.read_text()) for path in paths.values()]


def _quiet_lightning() -> None:
    """Dozens are trained: no word on devices from each."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _say(result: dict[str, Any]) -> None:
    found = ", ".join(f"{name} {value:.1f}" for name, value in result["accuracy"].items())
    print(f"{result['name']}: {found} ({result['train_seconds']:.0f} s)", flush=True)


def _done(cell: Cell, path: Path) -> bool:
    return path.exists() and json.loads(path.read_text())["follows"] == _follows(cell)


def _follows(cell: Cell) -> str | None:
    """Digest of the shipped configs that a cell follows."""
    if cell.method not in ("sketch", "SWD"):
        return None
    content = b"".join((CONFIGS / name).read_bytes() for name in shipped_configs(cell))
    return hashlib.sha256(content).hexdigest()[:16]


def _work(cell: Cell, directory: Path, data: Path | None) -> dict[str, Any]:
    torch.set_num_threads(1)
    follows = _follows(cell)
    run = _fresh(directory / "runs" / cell.name)
    with warnings.catch_warnings(), redirect_stdout(StringIO()):
        warnings.simplefilter("ignore")  # of Lightning, about workers
        trained = train(cell, data, run)
    rows = _evaluate(cell, trained, data, run)
    if trained.facts["sound"]:
        report = write_report(run)
        assert report["sound"]
        assert report["guarantee"]["epsilon"] <= cell.epsilon
    result = {
        "name": cell.name,
        "dataset": cell.dataset,
        "method": cell.method,
        "epsilon": cell.epsilon,
        "seed": cell.seed,
        "follows": follows,
        "run": run.name,
        **trained.facts,
        "accuracy": {row["classifier"]: row["accuracy"] for row in rows},
        "train_seconds": round(trained.seconds, 1),
    }
    write_json(directory / "cells" / f"{cell.name}.json", result)
    return result


def _fresh(path: Path) -> Path:
    """Returns a directory that is not there yet: an interrupted run is kept, not continued."""
    attempt, found = 1, path
    while found.exists():
        attempt += 1
        found = path.with_name(f"{path.name}-{attempt}")
    return found


def _evaluate(cell: Cell, trained: Trained, data: Path | None, run: Path) -> list[dict[str, Any]]:
    """Trains the classifiers, writes evaluation.json and pictures."""
    loaded = GENERATED[cell.dataset](root=None if data is None else str(data))
    started = time.monotonic()
    torch.manual_seed(cell.seed)
    n = N_SYNTHETIC[cell.full]
    labels = torch.arange(n) % 10
    if trained.sample is None:
        order = torch.randperm(len(loaded.private))[:n]
        images, labels = loaded.private.floats(order), loaded.private.labels[order]
    else:
        images = trained.sample(labels)
        run.mkdir(parents=True, exist_ok=True)
        kept = torch.cat([torch.nonzero(labels == c)[:PER_CLASS, 0] for c in range(10)])
        save_grid(images[kept], run / "samples.png", PER_CLASS)
        np.savez_compressed(run / "samples.npz", data=to_bytes(images[kept]), targets=labels[kept].numpy())
    assert loaded.test is not None
    train_pair, test_pair = (flat(images), labels.numpy()), (flat(loaded.test.floats()), loaded.test.labels.numpy())
    rows = [
        {
            "dataset": cell.dataset,
            "classifier": name,
            "train": "real" if trained.sample is None else "synthetic",
            "accuracy": round(accuracy(name, train_pair, test_pair, True, tuple(images.shape[1:])), 2),
            "n_train": len(images),
            "n_test": len(loaded.test),
        }
        for name in IMAGE_CLASSIFIERS
    ]
    if trained.sample is not None:
        write_json(run / "evaluation.json", {"rows": rows, "seconds": round(time.monotonic() - started, 1)})
    return rows
