"""Records in tables of numbers: .csv."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dpswd._arrays import convert
from dpswd._labels import as_labels
from dpswd._layout import MIXED, Array, Layout
from dpswd.data.damaged import reading
from dpswd.data.found import Found, Options, located
from dpswd.errors import InputError

TARGET = "name the column of classes by target= (--target)"  # the end of a sentence


NAMES = "write a line of names above the records"  # the end of another one: names are published


_MISSING = {"", "na", "n/a", "null"}  # cells without a number


def column_names(data: str | Path, root: str | Path | None = None) -> list[str]:
    """Return the names of the columns of a ``.csv`` file; none of another file."""
    path = located(data, root) or Path(data)
    return (
        _header(next(_lines(path), []), path)
        if path.suffix.lower() == ".csv" and path.is_file()
        else []
    )


def _header(line: list[str], path: Path) -> list[str]:
    """Return the names on the first line of a table; none if all of its cells are numbers."""
    names = [cell.strip() for cell in line]
    if all(map(_is_number, names)):
        return []
    numbers = [name for name in names if name and _is_number(name)]
    if numbers and numbers not in (
        [str(i + first) for i in range(len(numbers))] for first in (0, 1)
    ):
        raise InputError(
            f"Expected names of columns on the first line of {path}, got numbers beside text; {NAMES}."
        )
    return names


def target_of(data: str, root: str | Path | None, *wanted: str | None) -> str | None:
    """Return the first of some names that is a column of a ``.csv`` file, or ``None``."""
    names = column_names(data, root)
    return next((name for name in wanted if name in names), None)


def _lines(path: Path) -> Iterator[list[str]]:
    with reading(path), path.open(newline="", encoding="utf-8-sig") as file:
        first = file.readline()
        file.seek(0)
        yield from (
            line for line in csv.reader(file, delimiter=max(",;\t", key=first.count)) if line
        )


def find_table(path: Path, options: Options) -> Found:
    """Read a ``.csv`` file of numbers, separated by commas, semicolons or tabs; ``target`` is the column of classes."""
    lines, target = list(_lines(path)), options.target
    if header := _header(lines[0] if lines else [], path):
        del lines[0]
    if not lines:
        raise InputError(f"Expected a table with records in {path}, got none.")
    width = len(header or lines[0])
    if any(len(line) != width for line in lines):
        raise InputError(
            f"Expected lines of {width} cells in {path}, got a line with more or less; mend it."
        )
    names: list[Any] = header or list(range(width))
    if "" in names or len(set(names)) < width:
        raise InputError(
            f"Expected different names of columns in {path}, got an empty (an index?) or repeated one."
        )
    table = dict(zip(names, zip(*lines, strict=True), strict=True))
    if any(name in map(str.strip, table[name]) for name in header if not _is_number(name)):
        got = "a value that its column repeats, as in a record"
        raise InputError(
            f"Expected names of columns on the first line of {path}, got {got}; {NAMES}."
        )
    labels: tuple[Any, Any, Any] = None, None, None
    if target is not None:
        if target not in table:
            raise InputError(
                f"Expected target to be a column of {path}, {header or 'without names'}, got {target!r}."
            )
        column = table.pop(target)
        labels = as_labels(_labels(column, path), options.classes) if options.labelled else labels
    other = [str(name) for name, column in table.items() if not all(map(_is_number, column))]
    if other or not table:
        remedy = f"{TARGET}; {MIXED}" if target is None else MIXED
        got = ", ".join(other)[:200]
        raise InputError(
            f"Expected columns of numbers in {path}, got text or mixed types ({got}); {remedy}."
        )
    rows = np.array([[_number(cell) for cell in column] for column in table.values()]).T
    return Found(
        path.resolve().stem,
        convert(rows, Layout(), options.unreadable),
        *labels[:2],
        Layout(dtypes=("float32",) * len(table), columns=tuple(table), target=target),
        kinds=[_kind(column) for column in rows.T],
        taken=(labels[2],) if labels[2] else (),
    )


def _number(cell: str) -> float:
    return float("nan") if cell.strip().lower() in _MISSING else float(cell)


def _is_number(cell: str) -> bool:
    try:
        _number(cell)
    except ValueError:
        return False
    return True


def _labels(column: tuple[str, ...], path: Path) -> Array:
    """Return labels as numbers if all of them are, else as names."""
    cells = [cell.strip() for cell in column]
    if any(cell.lower() in _MISSING for cell in cells):
        raise InputError(
            f"Expected a class in every line of {path}, got an empty cell; give it a class of its own."
        )
    return np.array([float(cell) for cell in cells] if all(map(_is_number, cells)) else cells)


def _kind(column: Array) -> str:
    numbers = column[np.isfinite(column)]
    if not bool((numbers == np.rint(numbers)).all()):
        return "numeric"
    return "binary" if bool(np.isin(numbers, (0, 1)).all()) else "integer"
