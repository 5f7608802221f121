"""Records in NumPy files: ``.npz``, also of MedMNIST and Keras, and ``.npy``."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpswd._arrays import Unreadable, check_bytes, convert, layout_of
from dpswd._labels import Labels, as_labels
from dpswd._layout import Array, Layout
from dpswd._public_facts import taken_from_records
from dpswd.data.reading import (
    ReadOptions,
    ReadRecords,
    damaged_as_input_error,
    report_name,
)
from dpswd.errors import InputError
from dpswd.records import Stored

# Names of arrays of records, in the order in which they are looked for, and the names of their
# labels. The first name of the labels is the usual one beside these records.
_PLAIN_LABELS = ("labels", "targets", "y", "label", "target")
_TRAIN_LABELS = ("train_labels", "y_train", "train_targets")
_LABELS = {
    "features": _PLAIN_LABELS,
    "images": _PLAIN_LABELS,
    "data": ("targets", "labels", "y", "label", "target"),
    "X": ("y", "labels", "targets", "label", "target"),
    "train_images": _TRAIN_LABELS,  # MedMNIST
    "x_train": ("y_train", "train_labels", "train_targets"),  # Keras
}
# Names of the test part, where there is one: records and labels.
_TEST_PARTS = {
    "train_images": ("test_images", "test_labels"),
    "x_train": ("x_test", "y_test"),
}
_OBJECTS = "allow_pickle"  # in NumPy's sentence about an array that may run code
_MAX_MESSAGE = 200  # characters of names of arrays in a message

Loaders = Mapping[str, Callable[[], Array]]  # functions that load arrays, by their names


def has_arrays(folder: Path) -> bool:
    """Return whether a folder holds an ``.npy`` file with a name of records."""
    return any((folder / f"{name}.npy").is_file() for name in _LABELS)


def read_arrays(path: Path, options: ReadOptions) -> ReadRecords:
    """Read arrays of an ``.npz`` file, an ``.npy`` file or a folder of ``.npy`` files.

    Arrays of records and labels have the names of ``_LABELS``; an ``.npy`` file alone may have any
    name, and has no labels. An array ``classes`` names the classes of labels if none are stated; a
    line says that they are taken from the file, since they may have been computed from the labels.
    An array ``columns`` names the columns. Records of more than 1 GiB in ``.npy`` files
    stay on disk, unless ``in_memory`` says otherwise. The test part is read with
    ``in_memory=True``, as public records are.

    Raises:
        InputError: If there is no array of records, or it and its labels do not fit.
    """
    with _open_arrays(path) as loaders:
        part = _train_part(path, loaders, options)
        has_classes = part.labels is not None and "classes" in loaders
        takes_classes = has_classes and options.classes is None
        if takes_classes:
            options = replace(options, classes=loaders["classes"]().tolist())
        records = _read_part(path, loaders, part, options)
        if takes_classes and records.labels is not None:
            notice = taken_from_records(classes=records.labels.classes)
            records = replace(records, labels=replace(records.labels, notice=notice))
        if options.unit is not None:
            records = replace(records, unit_names=_unit_names(path, loaders, options.unit))
        if "columns" in loaders:
            records = replace(records, columns=_column_names(path, loaders, records))
        test_names = _TEST_PARTS.get(part.records)
        has_test = test_names is not None and set(test_names) <= set(loaders)
        if test_names is None or not has_test or not options.labelled:
            return records
        if options.in_memory:
            test_options = replace(options, classes=records.classes)
            test = _read_part(path, loaders, _Part(*test_names), test_options)
            records = replace(records, test=test.public())
    note = f"The records are {part.records} of {path.name}; its other parts are not read."
    return replace(records, note=note)


def _column_names(path: Path, loaders: Loaders, records: ReadRecords) -> tuple[str, ...]:
    """Return the names of the columns of rows (N, d): the array ``columns``."""
    names = tuple(map(str, loaders["columns"]().ravel()))
    shape = tuple(records.values.shape[1:])
    if shape != (len(names),):
        raise InputError(
            f"Expected the array 'columns' of {path} with a name for each column of the records, "
            f"got {len(names)} names for records of shape {shape}; correct it, or take it out."
        )
    return names


def _unit_names(path: Path, loaders: Loaders, unit: str) -> tuple[Any, ...]:
    """Return the entries of the array that names the unit of every record."""
    if unit not in loaders:
        names = ", ".join(loaders)[:_MAX_MESSAGE]
        raise InputError(
            f"Expected unit (--unit) to be an array of {path}, got {unit!r}; its arrays are "
            f"{names}."
        )
    array = loaders[unit]()
    if array.ndim != 1:
        raise InputError(
            f"Expected the units {unit!r} of {path} as an array (N,), got shape {array.shape}."
        )
    return tuple(array.tolist())


@dataclass(frozen=True)
class _Part:
    """Names of an array of records and of its labels."""

    records: str
    labels: str | None


@contextmanager
def _open_arrays(path: Path) -> Iterator[Loaders]:
    """Yield the functions that load the arrays of a file or folder.

    Arrays of ``.npy`` files are mapped, not read. No pickle is loaded.
    """
    with damaged_as_input_error(path):
        if path.suffix.lower() == ".npz":
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                yield {name: partial(_load, archive, name, path) for name in archive.files}
        else:
            files = [path]
            if path.is_dir():
                files = sorted(path.glob("*.npy"))
            yield {file.stem: partial(_map_array, file) for file in files}


def _load(archive: Any, name: str, path: Path) -> Array:
    """Load an array of an ``.npz`` file."""
    with _objects_as_input_error(name, path):
        array: Array = archive[name]
        return array


def _map_array(file: Path) -> Array:
    """Map the array of a ``.npy`` file, whose pages are read when they are used."""
    with _objects_as_input_error(file.stem, file):
        array: Array = np.load(file, mmap_mode="r", allow_pickle=False)
        return array


@contextmanager
def _objects_as_input_error(name: str, path: Path) -> Iterator[None]:
    """Turn NumPy's error about Python objects, which may run code, into an InputError."""
    try:
        yield
    except ValueError as error:
        if _OBJECTS not in str(error):
            raise
        raise InputError(
            f"Expected numbers or text in the array {name!r} of {path}, got an array of Python "
            "objects; save names as text, by .astype(str), and records as numbers of one shape."
        ) from None


def _train_part(path: Path, loaders: Loaders, options: ReadOptions) -> _Part:
    """Return the names of the records and their labels."""
    if path.suffix.lower() == ".npy":
        return _Part(path.stem, None)
    for name, label_names in _LABELS.items():
        if name not in loaders:
            continue
        labels = None
        if options.labelled:
            labels = next((label for label in label_names if label in loaders), None)
        return _Part(name, labels)
    names = ", ".join(loaders)[:_MAX_MESSAGE] or "no array"
    raise InputError(
        f"Expected an array 'features' or 'images' in {path}, got {names}; save the arrays with "
        "names, as in np.savez(FILE, images=X, labels=y)."
    )


def _read_part(path: Path, loaders: Loaders, part: _Part, options: ReadOptions) -> ReadRecords:
    """Read one array of records and its labels, or find where it is on disk."""
    array = loaders[part.records]()
    layout = layout_of(array.shape, array.dtype)
    labels: Labels | None = None
    if part.labels is not None:
        labels = as_labels(
            loaders[part.labels](),
            options.classes,
            min_classes=options.min_classes,
            missing_is_class=options.missing_is_class,
        )
    sample_shape = convert(array[:0], layout, options.unreadable).shape[1:]
    mapped = _MappedRecords(path, part, layout, options.unreadable, _stamp(path, part))
    dtype = torch.uint8 if layout.as_bytes else torch.float32
    stored = Stored(mapped.read, (len(array), *sample_shape), dtype)
    values: Tensor | Stored
    if isinstance(array, np.memmap) and options.stay_on_disk(stored):
        values = replace(stored, key=mapped.digest())
    else:
        values = convert(array, layout, options.unreadable)
        check_bytes(values)
    return ReadRecords(report_name(path), values, labels, layout)


@dataclass(frozen=True)
class _MappedRecords:
    """Records in a ``.npy`` file that are read in parts."""

    path: Path  # the file, or the folder of files
    part: _Part
    layout: Layout
    unreadable: Unreadable
    stamp: list[tuple[int, int, int]]  # of the files when they were first read

    def read(self, index: Tensor) -> Tensor:
        """Read the records with these numbers (n,); refuse a file that was written again."""
        with damaged_as_input_error(self.path):
            # A new map at each call, since pages that were read count as memory of the process.
            rows = _map_array(_file_of(self.path, self.part.records))[index.numpy()]
            if _stamp(self.path, self.part) != self.stamp:  # a person could be in two records
                raise InputError(
                    f"Expected {self.path} as it was first read, got a changed file; start a new "
                    "run."
                )
        return convert(rows, self.layout, self.unreadable)

    def digest(self) -> str:
        """Return the checksum of the file of the records."""
        with _file_of(self.path, self.part.records).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def _file_of(path: Path, name: str) -> Path:
    """Return the file that holds an array."""
    if path.is_dir():
        return path / f"{name}.npy"
    return path


def _stamp(path: Path, part: _Part) -> list[tuple[int, int, int]]:
    """Return inode, size and time of the files of a part.

    They differ after a file was written again.
    """
    stamps = []
    for name in (part.records, part.labels or part.records):
        status = _file_of(path, name).stat()
        stamps.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return stamps
