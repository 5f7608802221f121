"""Records in NumPy files: .npz, also of MedMNIST and Keras, and .npy."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dpswd._arrays import convert, layout_of
from dpswd._labels import as_labels
from dpswd._layout import Array
from dpswd.data.damaged import reading
from dpswd.data.found import Found, Options
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


@contextmanager
def _arrays(path: Path) -> Iterator[dict[str, Callable[[], Array]]]:
    """Open an ``.npz`` file, a folder of ``.npy`` files or one of them; yield the functions that load its arrays.

    Arrays of ``.npy`` files are mapped, not read. No pickle is loaded.
    """
    with reading(path):
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
        with reading(path):  # a new map each time, since pages that were read count as memory
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
