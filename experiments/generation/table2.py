"""Rakotomamonjy2021, Table 2: accuracy of classifiers trained on synthetic images, for every method and budget.

``OUT/table2-quick`` or ``OUT/table2-full`` holds ``cells/NAME.json`` and ``runs/NAME``, a run directory with ledger,
privacy.json, report, evaluation.json, samples.png and samples.npz. An interrupted run keeps its directory and ledger,
and its cell starts again in a new directory. ``table2_published`` has the rows of the paper.
"""

import time
import warnings
from collections import defaultdict
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch

from dpswd._files import write_json
from dpswd.errors import InputError
from dpswd.evaluation.accuracy import IMAGE_CLASSIFIERS, accuracy, flat
from dpswd.generators import save_grid, to_bytes
from dpswd.report.render import write_report
from experiments.cells import results_of, run_cells
from experiments.generation.table2_methods import (
    DATASETS,
    GENERATED,
    METHODS,
    Cell,
    Trained,
    train,
)
from experiments.generation.training import SHIPPED, constants_digest, load

HELP = "Rakotomamonjy2021, Table 2: ours and baselines in one protocol (one seed, cut short; --full: five)"

N_SYNTHETIC = {False: 20_000, True: 60_000}  # training records of a classifier, synthetic or real: quick, full
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


def plan(*, full: bool) -> list[Cell]:
    """List the cells: every method, data set and budget; five seeds if ``full``, else one."""
    return [
        Cell(dataset, method, epsilon, seed, full)
        for seed in range(SEEDS if full else 1)
        for method, (_, budgets) in METHODS.items()
        for dataset in DATASETS
        for epsilon in budgets
    ]


def run(
    out: Path, *, quick: bool = False, data: Path | None = None, full: bool = False, only: str | None = None
) -> dict[str, Any]:
    """Run the missing cells; draw ``table2.png``.

    With ``only``, run the cells whose names begin with it, and return the rows of all cells that have a result.
    """
    cells = plan(full=full)
    if only is None:
        rows = summarise(evaluate_cells(cells, out, data))
        show(rows)
        draw(rows, out / "table2.png")
        return {"rows": rows}
    chosen = [cell for cell in cells if cell.name.startswith(only)]
    if not chosen:
        raise InputError(f"Expected --only as the beginning of a name, such as {cells[0].name}, got {only!r}.")
    evaluate_cells(chosen, out, data, workers=0)
    directory = directory_of(out, full=full) / "cells"
    rows = summarise(results_of(cells, directory, config_digest))
    show(rows)
    return {"rows": rows, "file": directory.parent.name.replace("-", "_")}


def evaluate_cells(
    cells: Sequence[Cell], out: Path, data: Path | None, workers: int | None = None
) -> list[dict[str, Any]]:
    """Train and evaluate the cells that have no result yet (see :func:`experiments.cells.run_cells`)."""
    directory = directory_of(out, full=cells[0].full)
    work = partial(evaluate_cell, directory=directory, data=data)
    return run_cells(cells, work, directory / "cells", version=config_digest, workers=workers)


def directory_of(out: Path, *, full: bool) -> Path:
    """Name the directory of cells and runs."""
    return out / f"table2-{'full' if full else 'quick'}"


def config_digest(cell: Cell) -> str | None:
    """Return the digest of the shipped configs that a cell follows: a cell is run again when they change."""
    if cell.method not in ("mixture", "without noise"):
        return None
    return constants_digest(SHIPPED[cell.dataset])


def evaluate_cell(cell: Cell, directory: Path, data: Path | None) -> dict[str, Any]:
    """Train one cell, train classifiers on what it generates, write report and samples."""
    run = _new_directory(directory / "runs" / cell.name)
    with warnings.catch_warnings(), redirect_stdout(StringIO()):
        warnings.simplefilter("ignore")  # Lightning's, on workers
        trained = train(cell, data, run)
    rows = _evaluate(cell, trained, data, run)
    if trained.facts["sound"]:
        report = write_report(run)
        assert report["sound"]
        assert report["guarantee"]["epsilon"] <= cell.epsilon
    return {
        "name": cell.name,
        "dataset": cell.dataset,
        "method": cell.method,
        "epsilon": cell.epsilon,
        "seed": cell.seed,
        "run": run.name,
        **trained.facts,
        "accuracy": {row["classifier"]: row["accuracy"] for row in rows},
        "train_seconds": round(trained.seconds, 1),
    }


def _new_directory(path: Path) -> Path:
    attempt, found = 1, path
    while found.exists():
        attempt += 1
        found = path.with_name(f"{path.name}-{attempt}")
    return found


def _evaluate(cell: Cell, trained: Trained, data: Path | None, run: Path) -> list[dict[str, Any]]:
    """Train the classifiers; write evaluation.json and images."""
    loaded = load(cell.dataset, data)
    started = time.monotonic()
    torch.manual_seed(cell.seed)
    n = N_SYNTHETIC[cell.full]
    labels = torch.arange(n) % 10
    if trained.sample is None:
        order = torch.randperm(len(loaded.train))[:n]
        images, labels = loaded.train.floats(order), loaded.train.labels[order]
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


def summarise(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Average cells over seeds: one row for each data set, method, budget and classifier."""
    groups: dict[tuple[str, str, float | None], list[dict[str, Any]]] = defaultdict(list)
    for result in results:
        groups[result["dataset"], result["method"], result["epsilon"]].append(result)
    order = {name: i for i, name in enumerate([*GENERATED, *LABELS])}
    rows = []
    for key in sorted(groups, key=lambda key: (order[key[0]], order[key[1]], -(key[2] or 0.0))):
        dataset, method, epsilon = key
        found = groups[key]
        facts = {name: found[0][name] for name in ("statistic", "delta", "mu", "sound")}
        for classifier in IMAGE_CLASSIFIERS:
            values = [result["accuracy"][classifier] for result in found]
            row = {"dataset": dataset, "method": LABELS[method], "epsilon": epsilon, **facts, "classifier": classifier}
            row |= {"mean": round(mean(values), 1), "std": round(stdev(values), 1) if len(values) > 1 else None}
            row |= {"seeds": len(values)}
            seconds = round(mean(result["train_seconds"] for result in found))
            rows.append(row | {"train_seconds": None if method == "real records" else seconds})
    return sorted(rows, key=lambda row: order[row["dataset"]])


def show(rows: list[dict[str, Any]]) -> None:
    """Print one line for each data set, method and budget that was measured."""
    for row in rows:
        if row["classifier"] == IMAGE_CLASSIFIERS[0]:
            budget = "-" if row["epsilon"] is None else f"{row['epsilon']:g}"
            print(f"\n{row['dataset']:<13}{row['method']:<28}{budget:<14}", end="")
        spread = "" if row["std"] is None else f" ± {row['std']}"
        print(f"{row['classifier']} {row['mean']:5.1f}{spread}   ", end="")
    print()


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw accuracy against epsilon, one panel for each data set and classifier."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6), layout="constrained")
    panels = figure.subplots(len(DATASETS), len(IMAGE_CLASSIFIERS), sharex=True)
    for line, dataset in zip(panels, DATASETS, strict=True):
        for axes, classifier in zip(line, IMAGE_CLASSIFIERS, strict=True):
            same = [row for row in rows if row["dataset"] == dataset and row["classifier"] == classifier]
            for method in dict.fromkeys(row["method"] for row in same):
                points = [row for row in same if row["method"] == method]
                if points[0]["epsilon"] is None:
                    style = "-" if method == "real records" else ":"
                    axes.axhline(points[0]["mean"], color="grey", linestyle=style, linewidth=1)
                    continue
                x, y = [row["epsilon"] for row in points], [row["mean"] for row in points]
                axes.errorbar(x, y, [row["std"] or 0.0 for row in points], fmt="o-", label=method)
            axes.set_xscale("log")
            axes.set_title(f"{dataset}, {classifier}", fontsize=9)
            axes.grid(True, alpha=0.3)
    figure.supxlabel("epsilon (grey: real records; dotted: ours without noise)", fontsize=9)
    figure.supylabel("accuracy, %", fontsize=9)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, fontsize=8)
    figure.savefig(path, dpi=80)
