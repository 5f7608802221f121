"""Cells of Table 1 and Figure 3: what the methods find on one problem from one start, kept in a file and not run again.

``OUT/adaptation_cells/PROBLEM_SEED.json`` grows by a row whenever a method has finished, so that a run goes on where it
stopped and the figure takes over what the table has found. A row depends on problem, seed, method and budget alone, not
on the rows before it (:func:`experiments.adaptation.adaptation_methods.run_method` seeds each method by itself).
"""

import json
import logging
import multiprocessing
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from dpswd import __version__
from dpswd._files import write_json
from experiments.adaptation.adaptation_methods import PROBLEMS, Problem, make_start, run_method

__all__ = ["cell", "cells", "silence"]

WORKERS = 2
Wanted = Sequence[tuple[str, float | None]]  # methods and budgets
Job = tuple[str, int, Wanted]  # problem, seed, what is wanted of it


def silence() -> None:
    """Keeps Lightning from telling of every one of some hundred trainers."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    warnings.filterwarnings("ignore", module="opacus")
    warnings.filterwarnings("ignore", message="Full backward hook is firing")


def cell(
    name: str, seed: int, wanted: Wanted, root: str | None, directory: Path, problem: Problem | None = None
) -> list[dict[str, Any]]:
    """Returns one row for each method and budget that is wanted; runs what is missing, from one start.

    Args:
        name: Of the problem; the file is called by it.
        seed: Of weights and order.
        wanted: Methods and budgets.
        root: Directory of the data sets.
        directory: Where files are kept.
        problem: ``PROBLEMS[name]`` if not given.
    """
    path = directory / f"{name.replace(', ', '_').replace(' ', '_')}_{seed}.json"
    content = json.loads(path.read_text()) if path.exists() else {"version": __version__, "rows": []}
    rows = content["rows"] if content["version"] == __version__ else []
    found = {(row["method"], row["budget"]): row for row in rows}
    if missing := [key for key in wanted if key not in found]:
        silence()
        torch.set_num_threads(1)
        start = make_start(problem or PROBLEMS[name], seed, root)
        for method, budget in missing:
            found[method, budget] = {"problem": name, "seed": seed, **run_method(start, method, budget)}
            write_json(path, {"version": __version__, "rows": list(found.values())})
    return [found[key] for key in wanted]


def cells(jobs: Sequence[Job], root: Path | None, out: Path) -> Iterator[list[dict[str, Any]]]:
    """Runs cells side by side; yields their rows in the order of ``jobs`` and says which one is done."""
    arguments = [(*job, None if root is None else str(root), out / "adaptation_cells") for job in jobs]
    with multiprocessing.get_context("spawn").Pool(min(WORKERS, os.cpu_count() or 1)) as pool:
        for rows in pool.imap(_cell, arguments):
            best = max(rows, key=lambda row: row["accuracy"])
            print(
                f"{rows[0]['problem']} seed {rows[0]['seed']}: {sum(row['seconds'] for row in rows):.0f} s, best "
                f"{best['method']} {best['accuracy']:.1f}",
                flush=True,
            )
            yield rows


def _cell(arguments: tuple[str, int, Wanted, str | None, Path]) -> list[dict[str, Any]]:
    return cell(*arguments)
