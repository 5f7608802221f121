"""Records in NumPy files (.npz, also of MedMNIST and Keras, and .npy) and in tables of numbers (.csv)."""

import csv
import hashlib
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpswd._arrays import MIXED, Array, Layout, as_labels, convert, layout_of
from dpswd.data.found import Found, Options, located
from dpswd.errors import InputError
from dpswd.records import Stored

_TRAIN = {  # names of the records, and of their labels
    "features": "labels",
    "images": "labels",
    "data": "targets",
    "X": "y",
    "train_images": "train_labels",  # MedMNIST
    "x_train": "y_train",  # Keras
}
_TEST = {"train_images": ("test_images", "test_labels"), "x_train": ("x_test", "y_test")}
TARGET = "name the column of classes by target= (--target)"  # the end of a sentence
NAMES = "write a line of names above the records"  # the end of another one: names are published
_MISSING = {"", "na", "n/a", "null"}  # cells without a number
_DAMAGED = (
    ValueError,
    OSError,
    EOFError,
    TypeError,
    AttributeError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)


@contextmanager
def _arrays(path: Path) -> Iterator[dict[str, Callable[[], Array]]]:
    """Open an ``.npz`` file, a folder of ``.npy`` files or one of them; yield the functions that load its arrays.

    Arrays of ``.npy`` files are mapped, not read. No pickle is loaded.
    """
    with _reading(path):
        if path.suffix.lower() == ".npz":
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                yield {name: partial(archive.__getitem__, name) for name in archive.files}
        else:
            files = sorted(path.glob("*.npy")) if path.is_dir() else [path]
            yield {
                file.stem: partial(np.load, file, mmap_mode="r", allow_pickle=False)
                for file in files
            }


def has_arrays(folder: Path) -> bool:
    """Return whether a folder holds records as ``.npy`` files."""
    return any((folder / f"{name}.npy").is_file() for name in _TRAIN)


def find_arrays(path: Path, options: Options) -> Found:
    """Read the arrays of an ``.npz`` file, of a folder of ``.npy`` files, or one ``.npy`` file.

    The names of the arrays are those above; an array ``classes`` names the classes. Records of more than 1 GiB in
    ``.npy`` files stay on disk. The test part is read if the records are public, hence ``in_memory``.
    """
    with _arrays(path) as arrays:
        key = (
            path.stem
            if path.suffix == ".npy"
            else next((name for name in _TRAIN if name in arrays), None)
        )
        if key is None:
            got = ", ".join(arrays)[:200]
            raise InputError(
                f"Expected an array 'features' or 'images' in {path}, got {got}; rename it."
            )
        label_key = _TRAIN.get(key) if options.labelled and _TRAIN.get(key) in arrays else None
        if options.classes is None and label_key is not None and "classes" in arrays:
            options = replace(options, classes=arrays["classes"]().tolist())
        found = _part(path, arrays, key, label_key, options)
        pair = _TEST.get(key)
        if pair is None or not options.labelled or not set(pair) <= set(arrays):
            return found
        if options.in_memory:
            test = _part(path, arrays, *pair, replace(options, classes=found.classes))
            return replace(found, test=test.public())
    return replace(
        found, note=f"The records are {key} of {path.name}; its other parts are not read."
    )


def _part(
    path: Path,
    arrays: dict[str, Callable[[], Array]],
    key: str,
    label_key: str | None,
    options: Options,
) -> Found:
    """Read one array of records and its labels, or find where it is on disk."""
    files = [path / f"{name}.npy" if path.is_dir() else path for name in (key, label_key or key)]
    stamp = _stamp(files)
    array = arrays[key]()
    layout = layout_of(array.shape, array.dtype)
    labels, names, line = (
        (None, None, None) if label_key is None else as_labels(arrays[label_key](), options.classes)
    )

    def read(index: Tensor) -> Tensor:
        with _reading(path):  # a new map each time, since pages that were read count as memory
            rows = np.load(files[0], mmap_mode="r", allow_pickle=False)[index.numpy()]
            if _stamp(files) != stamp:  # a person could be part of two records
                raise InputError(
                    f"Expected {path} as it was first read, got a changed file; start a new run."
                )
        return convert(rows, layout, options.unreadable)

    sample = convert(array[:0], layout, options.unreadable).shape[1:]
    stored = Stored(read, (len(array), *sample), torch.uint8 if layout.as_bytes else torch.float32)
    values: Tensor | Stored
    if isinstance(array, np.memmap) and options.keep_on_disk(stored):
        with files[0].open("rb") as file:
            values = replace(stored, key=hashlib.file_digest(file, "sha256").hexdigest())
    else:
        values = convert(array, layout, options.unreadable)
    return Found(path.resolve().stem, values, labels, names, layout, taken=(line,) if line else ())


def _stamp(files: list[Path]) -> list[tuple[int, int, int]]:
    """Return inode, size and time of files, which differ after a file was written again."""
    return [
        (fact.st_ino, fact.st_size, fact.st_mtime_ns) for fact in (file.stat() for file in files)
    ]


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
    with _reading(path), path.open(newline="", encoding="utf-8-sig") as file:
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


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn the errors of NumPy on damaged files into an InputError."""
    try:
        yield
    except InputError:
        raise
    except (*_DAMAGED, KeyError) as error:
        said = str(error).split(". ")[0]  # not NumPy's advice to load a pickle
        raise InputError(
            f"Expected a readable file at {path}, got: {said}; write it again."
        ) from None
