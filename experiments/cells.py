"""Resumable cells: one JSON file for each finished training run, several processes.

A cell is a :class:`Cell` with further fields. Its file ``DIRECTORY/NAME.json`` holds the result and a version; a cell
whose file has the same version is not run again. The version of a cell is that of the package unless the caller
gives another one.
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
from typing import Any, TypeVar

import torch

from dpswd import __version__
from dpswd._files import write_json

Result = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """Base of all cells."""

    def changes(self) -> dict[str, Any]:
        """Return the fields that differ from their default."""
        defaults = {
            field.name: field.default for field in fields(self) if field.default is not MISSING
        }
        return {
            name: getattr(self, name)
            for name, default in defaults.items()
            if getattr(self, name) != default
        }

    @property
    def name(self) -> str:
        """Name of the file: the fields without a default, then :meth:`changes`."""
        plain = [getattr(self, field.name) for field in fields(self) if field.default is MISSING]
        words = [
            f"{value:g}" if isinstance(value, float) else str(value)
            for value in plain
            if value is not None
        ]
        words += [f"{name}_{value}" for name, value in self.changes().items()]
        return "-".join(words).replace(", ", "_").replace(" ", "_")


C = TypeVar("C", bound=Cell)
K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


def run_cells(
    cells: Sequence[C],
    work: Callable[[C], Result],
    directory: Path,
    *,
    version: Callable[[C], Any] = lambda cell: __version__,
    workers: int | None = None,
) -> list[Result]:
    """Run the cells that have no result in the directory yet; return all results in the order of ``cells``.

    ``version`` returns the version of a cell, a JSON value. ``workers`` is the number of processes of one thread each,
    by default one per core, at most 4; with 0, and for a single cell, ``work`` runs in this process.
    """
    paths = {cell: directory / f"{cell.name}.json" for cell in cells}
    versions = {cell: version(cell) for cell in paths}
    missing = [cell for cell, path in paths.items() if not _is_current(path, versions[cell])]
    if len(missing) < len(paths):
        print(f"{len(paths) - len(missing)} of {len(paths)} cells have results.", flush=True)
    if workers == 0 or len(missing) == 1:
        for cell in missing:
            print(_run(cell, work, paths[cell], versions[cell]), flush=True)
    elif missing:
        context = multiprocessing.get_context("spawn")
        count = workers or min(4, os.cpu_count() or 1)
        with ProcessPoolExecutor(count, mp_context=context, initializer=silence) as pool:
            futures = [
                pool.submit(_run, cell, work, paths[cell], versions[cell]) for cell in missing
            ]
            try:
                for future in as_completed(futures):
                    print(future.result(), flush=True)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    return [json.loads(path.read_text())["result"] for path in paths.values()]


def new_directory(path: Path) -> Path:
    """Return a directory for the run of a cell: the path, or one beside it if an interrupted cell has left a ledger."""
    attempts = (path.with_name(f"{path.name}-{i}" if i else path.name) for i in range(1000))
    return next(each for each in attempts if not each.exists())


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return the items of each key, in the order of their first appearance."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def averaged(values: Sequence[float], digits: int = 1) -> dict[str, Any]:
    """Return mean, standard deviation (``None`` for one value) and number of values over seeds."""
    std = round(stdev(values), digits) if len(values) > 1 else None
    return {"mean": round(mean(values), digits), "std": std, "seeds": len(values)}


def by_classifier(found: Sequence[Result], facts: Result) -> list[Result]:
    """Return a row with the ``facts`` for each classifier: its accuracies, averaged over seeds."""
    names = found[0]["accuracy"]
    return [
        facts | {"classifier": name} | averaged([each["accuracy"][name] for each in found])
        for name in names
    ]


def outdated(result: Result, *, with_reasons: bool = False) -> bool:
    """Whether a result or one of its rows is of another minor version of the package and gives no ``reason``.

    ``with_reasons`` counts those that give one, too.
    """
    rows = [
        row
        for part in result.values()
        if isinstance(part, list)
        for row in part
        if isinstance(row, dict)
    ]
    return any(
        (with_reasons or "reason" not in each) and not _of_this_minor(each)
        for each in (result, *rows)
    )


def _of_this_minor(entry: Result) -> bool:
    return bool(entry.get("version", __version__).split(".")[:2] == __version__.split(".")[:2])


def _is_current(path: Path, version: Any) -> bool:
    return path.exists() and bool(json.loads(path.read_text())["version"] == version)


def _run(cell: C, work: Callable[[C], Result], path: Path, version: Any) -> str:
    torch.set_num_threads(1)
    result = work(cell)
    write_json(path, {"version": version, "result": result})
    return f"Finished: {cell.name}"


def silence() -> None:
    """Turn off Lightning's messages on devices and workers, which every one of some hundred trainers prints."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for module in ("lightning", "opacus"):
        warnings.filterwarnings("ignore", module=module)
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
