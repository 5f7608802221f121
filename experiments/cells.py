"""Resumable cells: one JSON file for each finished training run.

A cell is a :class:`Cell` with further fields. Its file ``DIRECTORY/NAME.json`` holds the result and
a version. A cell whose file has the same version is not run again. The version of a cell is that of
the package, or what the caller states beside the minor version.
"""

import json
import logging
import multiprocessing
import os
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Generic, TypeVar

import torch

from dpswd import __version__
from dpswd._files import write_json
from experiments.results import Result, Row

# Major and minor version of the package, as 0.4: results of other ones are measured again.
MINOR_VERSION = ".".join(__version__.split(".")[:2])
MOST_WORKERS = 4  # processes by default: a training run needs a gigabyte or more


@dataclass(frozen=True)
class Cell:
    """Base of all cells."""

    def changes(self) -> dict[str, Any]:
        """Return the fields that differ from their default."""
        changed = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.default is not MISSING and value != field.default:
                changed[field.name] = value
        return changed

    @property
    def name(self) -> str:
        """Name of the file: the fields without a default, then :meth:`changes`."""
        words = []
        for field in fields(self):
            value = getattr(self, field.name)
            if field.default is not MISSING or value is None:
                continue
            if isinstance(value, float):
                words.append(f"{value:g}")
            else:
                words.append(str(value))
        words += [f"{name}_{value}" for name, value in self.changes().items()]
        return "-".join(words).replace(", ", "_").replace(" ", "_")


C = TypeVar("C", bound=Cell)
K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


@dataclass(frozen=True)
class _Task(Generic[C]):
    """A cell with the file of its result, and the version that the result must have."""

    cell: C
    work: Callable[[C], Result]
    path: Path
    version: Any  # a JSON value

    def is_finished(self) -> bool:
        """Whether the file has a result of this version."""
        if not self.path.exists():
            return False
        content = json.loads(self.path.read_text())
        return bool(content["version"] == self.version)

    def result(self) -> Result:
        """Return the result in the file."""
        content = json.loads(self.path.read_text())
        return dict(content["result"])


def run_cells(
    cells: Sequence[C],
    work: Callable[[C], Result],
    directory: Path,
    *,
    version: Callable[[C], Any] | None = None,
    workers: int | None = None,
) -> list[Result]:
    """Run the cells that have no result yet; return all results in their order.

    Args:
        cells: cells; one that appears twice gives one result.
        work: returns the result of a cell, a dictionary of JSON values.
        directory: directory of the files.
        version: returns the version of a cell, a JSON value, to which the minor version of the
            package is added. By default all have the version of the package.
        workers: number of processes of one thread each, by default one per core and at most
            ``MOST_WORKERS``. With 0, and for a single cell, ``work`` runs in this process.
    """
    tasks = []
    for cell in dict.fromkeys(cells):
        cell_version = __version__
        if version is not None:
            cell_version = [MINOR_VERSION, version(cell)]
        tasks.append(_Task(cell, work, directory / f"{cell.name}.json", cell_version))
    missing = [task for task in tasks if not task.is_finished()]
    n_finished = len(tasks) - len(missing)
    if n_finished:
        print(f"{n_finished} of {len(tasks)} cells have results.", flush=True)
    if workers == 0 or len(missing) == 1:
        for task in missing:
            print(_run(task), flush=True)
    elif missing:
        n_workers = workers or min(MOST_WORKERS, os.cpu_count() or 1)
        _run_in_processes(missing, n_workers)
    return [task.result() for task in tasks]


def _run_in_processes(tasks: Sequence[_Task[C]], n_workers: int) -> None:
    """Run the tasks in new processes; the first error cancels those that wait."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n_workers, mp_context=context, initializer=silence) as pool:
        futures = [pool.submit(_run, task) for task in tasks]
        try:
            for future in as_completed(futures):
                print(future.result(), flush=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _run(task: _Task[C]) -> str:
    """Run a task, write its file, and return a line for the screen."""
    torch.set_num_threads(1)
    result = task.work(task.cell)
    write_json(task.path, {"version": task.version, "result": result})
    return f"Finished: {task.cell.name}"


def directory_of(out: Path, name: str, *, quick: bool) -> Path:
    """Return the directory of the runs of an experiment; short runs have their own."""
    if quick:
        return out / f"{name}-quick"
    return out / name


def new_directory(path: Path) -> Path:
    """Return a directory for the run of a cell that does not exist yet.

    It is the path, or ``PATH-1``, ``PATH-2`` ... if earlier runs of the cell have left directories.
    """
    candidate = path
    number = 0
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return the items of each key, in the order of their first appearance."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def averaged(values: Sequence[float], digits: int = 1) -> dict[str, Any]:
    """Return mean, standard deviation and number of values over seeds.

    The standard deviation of one value is ``None``.
    """
    std = None
    if len(values) > 1:
        std = round(stdev(values), digits)
    return {"mean": round(mean(values), digits), "std": std, "seeds": len(values)}


def by_classifier(results: Sequence[Result], row: Row) -> list[Row]:
    """Return a copy of the row for each classifier with its mean accuracy.

    A result is that of a seed; its ``accuracy`` maps the names of classifiers to percent.
    """
    rows = []
    for name in results[0]["accuracy"]:
        accuracies = [result["accuracy"][name] for result in results]
        rows.append(row | {"classifier": name} | averaged(accuracies))
    return rows


def silence() -> None:
    """Turn off Lightning's messages on devices and workers."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for module in ("lightning", "opacus"):
        warnings.filterwarnings("ignore", module=module)
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
