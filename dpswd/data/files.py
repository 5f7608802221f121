"""Records in NumPy files (.npz, also of MedMNIST and Keras, and .npy) and in tables of numbers (.csv)."""

import csv
import dataclasses
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from dpswd._arrays import MIXED, Array, Layout, Unreadable, as_labels, convert, layout_of
from dpswd._validate import choice
from dpswd.data.found import Found, stays_on_disk
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
_SPLIT = {"train_images", "x_train"}
_TEST = {"test_images": "test_labels", "x_test": "y_test"}
_MISSING = {"", "na", "n/a", "null"}  # cells without a number
_DAMAGED = (ValueError, OSError, EOFError, TypeError, AttributeError, RuntimeError, zipfile.BadZipFile, zlib.error)


class _Arrays:
    """The arrays of an ``.npz`` file, of a folder of ``.npy`` files, or of a single one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = path.parent if path.suffix == ".npy" else path if path.is_dir() else None

    @contextmanager
    def _open(self, name: str) -> Iterator[tuple[IO[bytes], bool]]:
        """Open the ``.npy`` of an array; also yield whether it is stored uncompressed."""
        if self.folder is not None:
            with (self.folder / f"{name}.npy").open("rb") as file:
                yield file, True
        else:
            with zipfile.ZipFile(self.path) as archive, archive.open(f"{name}.npy") as member:
                yield member, archive.getinfo(f"{name}.npy").compress_type == zipfile.ZIP_STORED

    def names(self) -> list[str]:
        """Return the names of the arrays."""
        if self.path.suffix == ".npy":
            return [self.path.stem]
        if self.folder is not None:
            return sorted(file.stem for file in self.folder.glob("*.npy"))
        with zipfile.ZipFile(self.path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]

    def header(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return shape and type of an array."""
        with self._open(name) as (file, _):
            shape, _, dtype = _header(file)
        return shape, dtype

    def read(self, name: str) -> Array:
        """Read a whole array."""
        with self._open(name) as (file, _):
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))

    def checksum(self, name: str) -> str | None:
        """Read an array to its end, which verifies a zip; return its checksum, ``None`` if it cannot be mapped."""
        found = 0
        with self._open(name) as (file, plain):
            while part := file.read(2**20):
                found = zlib.crc32(part, found)
        return f"{found:08x}" if plain else None

    def stamp(self, names: Sequence[str]) -> list[tuple[int, int, int]]:
        """Return inode, size and time of the files of some arrays, which differ after a file was written again."""
        files = [self.path] if self.folder is None else [self.folder / f"{name}.npy" for name in names]
        return [(fact.st_ino, fact.st_size, fact.st_mtime_ns) for fact in (file.stat() for file in files)]

    def mapped(self, name: str) -> Array:
        """Map an array that is not compressed. A new map each time, since pages that were read count as memory."""
        if self.folder is not None:
            return np.asarray(np.load(self.folder / f"{name}.npy", mmap_mode="r", allow_pickle=False))
        with zipfile.ZipFile(self.path) as archive:
            start = archive.getinfo(f"{name}.npy").header_offset
        with self.path.open("rb") as file:
            file.seek(start + 26)  # lengths of the name and of the extra field, in the header of the member
            lengths = np.frombuffer(file.read(4), dtype="<u2")
            file.seek(start + 30 + int(lengths.sum()))
            shape, fortran, dtype = _header(file)
            order: Any = "F" if fortran else "C"
            return np.asarray(np.memmap(self.path, dtype, "r", file.tell(), shape, order))


def has_arrays(folder: Path) -> bool:
    """Return whether a folder holds records as ``.npy`` files."""
    return any((folder / f"{name}.npy").is_file() for name in _TRAIN)


def find_arrays(
    path: Path,
    *,
    classes: Sequence[Any] | None = None,
    labelled: bool = True,
    unreadable: Unreadable = "refuse",
    in_memory: bool | None = None,
) -> Found:
    """Read the arrays of an ``.npz`` file, of a folder of ``.npy`` files, or one ``.npy`` file. No pickle is loaded.

    The names of the arrays are those above; an array ``classes`` names the classes. Records of more than 1 GiB stay on
    disk unless they are compressed, and a file that was written again meanwhile is refused. The test part is read if
    the records are public, hence ``in_memory``.
    """
    choice(("refuse", "zero"), unreadable=unreadable)
    arrays = _Arrays(path)
    with _reading(path):
        names = arrays.names()
        key = path.stem if path.suffix == ".npy" else next((name for name in _TRAIN if name in names), None)
        if key is None:
            got = ", ".join(names)[:200]
            raise InputError(
                f"Expected an array 'features' or 'images' (and 'labels') in {path}, got {got}; rename it."
            )
        label_key = _TRAIN.get(key) if labelled and _TRAIN.get(key) in names else None
        listed = arrays.read("classes").tolist() if label_key is not None and "classes" in names else None
    listed = listed if classes is None else list(classes)
    found = _part(arrays, key, label_key, listed, unreadable, in_memory)
    pair = next((pair for pair in _TEST.items() if labelled and set(pair) <= set(names)), None)
    if key not in _SPLIT or pair is None:
        return found
    if in_memory:
        return dataclasses.replace(found, test=_part(arrays, *pair, found.classes, unreadable, True).public())
    return dataclasses.replace(found, note=f"The records are {key} of {path.name}; its other parts are not read.")


def _part(
    arrays: _Arrays,
    key: str,
    label_key: str | None,
    classes: list[Any] | None,
    unreadable: Unreadable,
    in_memory: bool | None,
) -> Found:
    """Read one array of records and its labels."""
    path, used = arrays.path, [key, *([] if label_key is None else [label_key])]
    with _reading(path):
        stamp = arrays.stamp(used)
        shape, dtype = arrays.header(key)
        layout = layout_of(shape, dtype)
        labels = None if label_key is None else as_labels(arrays.read(label_key), classes)

    def unchanged() -> None:
        """Raise if the file is not the one whose labels were read; a person could then be part of two records."""
        if arrays.stamp(used) != stamp:
            raise InputError(f"Expected {path} as it was first read, got a changed file; start a new run.")

    def read(index: Tensor) -> Tensor:
        with _reading(path):
            rows = arrays.mapped(key)[index.numpy()]
            unchanged()
        return convert(rows, layout, unreadable)

    sample = convert(np.zeros((0, *shape[1:]), dtype), layout, unreadable).shape[1:]
    stored = Stored(read, (shape[0], *sample), torch.uint8 if layout.as_bytes else torch.float32)
    values: Tensor | Stored
    with _reading(path):
        checksum = arrays.checksum(key) if stays_on_disk(stored, in_memory) else None
        if checksum is None:
            values = convert(arrays.read(key), layout, unreadable)
        else:
            values = dataclasses.replace(stored, key=checksum)
        unchanged()
    if labels is None:
        return Found(path.resolve().stem, values, layout)
    if len(labels[0]) != shape[0]:
        raise InputError(f"Expected a label per record in {path}, got {len(labels[0])} for {shape[0]} records.")
    return Found(path.resolve().stem, values, layout, *labels[:2], taken=(labels[2],) if labels[2] else ())


def column_names(path: str | Path) -> list[str]:
    """Return the names of the columns of a ``.csv`` file; none of another file."""
    path = Path(path)
    line = next(_lines(path), []) if path.suffix.lower() == ".csv" and path.is_file() else []
    return [] if all(map(_is_number, line)) else [cell.strip() for cell in line]


def _lines(path: Path) -> Iterator[list[str]]:
    with _reading(path), path.open(newline="", encoding="utf-8-sig") as file:
        first = file.readline()
        file.seek(0)
        yield from (line for line in csv.reader(file, delimiter=max(",;\t", key=first.count)) if line)


def find_table(
    path: Path,
    *,
    target: str | None = None,
    classes: Sequence[Any] | None = None,
    labelled: bool = True,
    unreadable: Unreadable = "refuse",
    in_memory: bool | None = None,
) -> Found:
    """Read a ``.csv`` file of numbers, separated by commas, semicolons or tabs; ``target`` is the column of classes."""
    choice(("refuse", "zero"), unreadable=unreadable)
    if not (lines := list(_lines(path))):
        raise InputError(f"Expected a table with records in {path}, got an empty file.")
    if any(len(line) != len(lines[0]) for line in lines):
        raise InputError(f"Expected lines of {len(lines[0])} cells in {path}, got a line with more or less; mend it.")
    header = None if all(_is_number(cell) for cell in lines[0]) else [cell.strip() for cell in lines[0]]
    columns = list(zip(*lines[header is not None :], strict=True))
    if not columns:
        raise InputError(f"Expected a table with records in {path}, got the names of its columns only.")
    if header is not None and ("" in header or len(set(header)) < len(header)):
        raise InputError(f"Expected different names of the columns of {path}, got an empty or repeated one.")
    labels: tuple[Any, Any, Any] = None, None, None
    if target is not None:
        if header is None or target not in header:
            raise InputError(f"Expected target to be a column of {path}, {header or 'without names'}, got {target!r}.")
        at = header.index(target)
        header.pop(at)
        column = columns.pop(at)
        labels = as_labels(_labels(column, path), classes) if labelled else labels
    names = list(range(len(columns))) if header is None else header
    other = [name for name, column in zip(names, columns, strict=True) if not all(map(_is_number, column))]
    if other or not columns:
        got = ", ".join(map(str, other))[:200]
        remedy = f"{'name the column of classes by target= (--target); ' if target is None else ''}{MIXED}"
        raise InputError(f"Expected columns of numbers in {path}, got text or mixed types ({got}); {remedy}.")
    rows = np.array([[_number(cell) for cell in column] for column in columns]).T
    return Found(
        path.resolve().stem,
        convert(rows, Layout(), unreadable),
        Layout(dtypes=("float32",) * len(columns), columns=tuple(names), target=target),
        *labels[:2],
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
        raise InputError(f"Expected a class in every line of {path}, got an empty cell; give it a class of its own.")
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
        raise InputError(f"Expected a readable file at {path}, got: {error}; write it again.") from None


def _header(member: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read shape, order and type of a ``.npy`` file."""
    version = np.lib.format.read_magic(member)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(member)
