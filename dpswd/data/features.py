"""Files of feature vectors as papers on adaptation share them.

They are ``.mat`` files, or ``.csv`` files without a header. A line of such a ``.csv`` file has the
numbers of one record and, last, its class. A ``.mat`` file of MATLAB has a matrix of features, one
record in each row, and a vector of classes.
"""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import loadmat
from scipy.io.matlab import MatReadError

from dpswd._arrays import Unreadable, convert, silent_numbers
from dpswd._layout import Array, Layout
from dpswd.errors import InputError

__all__ = ["FeatureFile", "is_feature_file", "read_features"]

_SUFFIXES = (".csv", ".mat")
# Names of the matrices in a ``.mat`` file, in the order in which they are looked for.
_FEATURES = ("features", "feas", "fts", "X", "x")
_LABELS = ("labels", "label", "y", "Y", "gnd")
_NUMBERS = "biuf"  # kinds of NumPy that are numbers


@dataclass(frozen=True, eq=False)
class FeatureFile:
    """Records of a file of features.

    Attributes:
        values: Feature vectors (n, d) in float32.
        labels: Classes (n,), text or integers; ``None`` if they were not asked for.
    """

    values: Array
    labels: Array | None


def is_feature_file(path: Path) -> bool:
    """Return whether a path has the ending of a file of features."""
    return path.suffix.lower() in _SUFFIXES


def read_features(path: Path, *, labelled: bool, unreadable: Unreadable = "refuse") -> FeatureFile:
    """Read a file of features.

    Args:
        path: The file.
        labelled: Whether the classes are read. Of a private target they are not.
        unreadable: ``"zero"`` maps a record with NaN or inf to zeros; ``"refuse"`` raises.

    Raises:
        InputError: If the file cannot be read, has no such matrices, or a line has another number
            of entries or one that is no number. The message has no entry of a record.
    """
    try:
        if path.suffix.lower() == ".mat":
            read = _read_mat(path, labelled)
        else:
            read = _read_csv(path, labelled)
    except (OSError, UnicodeDecodeError, NotImplementedError, MatReadError, csv.Error) as error:
        raise InputError(
            f"Expected a readable file of features at {path}, got {type(error).__name__}; write it "
            "again as .npz with the arrays features and labels."
        ) from None
    if not len(read.values):
        raise InputError(f"Expected records in {path}, got none.")
    values = convert(read.values, Layout(), unreadable)
    return FeatureFile(values.numpy(), read.labels)


def _read_csv(path: Path, labelled: bool) -> FeatureFile:
    """Read a ``.csv`` file without a header, whose last entry of a line is the class."""
    rows: list[Array] = []
    labels: list[str] = []
    with path.open(newline="", encoding="utf-8-sig") as file:
        for number, entries in enumerate(csv.reader(file), start=1):
            if len(entries) < 2:
                raise InputError(
                    f"Expected numbers and a class in line {number} of {path}, got fewer than two "
                    "entries; remove empty lines, and check the separator."
                )
            if rows and len(entries) != len(rows[0]) + 1:
                raise InputError(
                    f"Expected {len(rows[0]) + 1} entries in line {number} of {path}, as in line "
                    f"1, got {len(entries)}."
                )
            rows.append(_numbers(entries[:-1], number, path))
            labels.append(entries[-1].strip())
    values = np.array(rows)
    if not labelled:
        return FeatureFile(values, None)
    return FeatureFile(values, np.array(labels))


def _numbers(entries: list[str], line: int, path: Path) -> Array:
    """Return the entries of a line as numbers in float32."""
    try:
        with silent_numbers():
            return np.array(entries, dtype=np.float32)
    except ValueError:
        raise InputError(
            f"Expected numbers before the class in line {line} of {path}, got text; a table with "
            "names of columns is read with data.features=false."
        ) from None


def _read_mat(path: Path, labelled: bool) -> FeatureFile:
    """Read the matrices of a ``.mat`` file."""
    try:
        content = loadmat(path)
    except (ValueError, IndexError):  # IndexError: of a short file, in SciPy 1.12
        raise InputError(
            f"Expected a .mat file of MATLAB at {path}, got another file; check the path."
        ) from None
    values = _matrix(content, _FEATURES, path)
    if values.ndim != 2 or values.dtype.kind not in _NUMBERS:
        raise InputError(
            f"Expected features (n, d) as a full matrix of numbers in {path}, got {values.dtype} "
            f"of shape {values.shape}; save a full matrix."
        )
    if not labelled:
        return FeatureFile(values, None)
    labels = _matrix(content, _LABELS, path).reshape(-1)
    if labels.dtype.kind not in _NUMBERS or not np.array_equal(labels, np.rint(labels)):
        raise InputError(
            f"Expected whole numbers as classes in {path}, got others; save a number of each class."
        )
    if len(labels) != len(values):
        raise InputError(
            f"Expected a class for each of the {len(values)} rows of {path}, got {len(labels)}."
        )
    return FeatureFile(values, labels.astype(np.int64))


def _matrix(content: dict[str, Any], names: tuple[str, ...], path: Path) -> Array:
    """Return the first matrix with one of these names."""
    for name in names:
        if name in content:
            return np.asarray(content[name])
    present = [name for name in content if not name.startswith("__")]
    raise InputError(
        f"Expected a matrix {' or '.join(names)} in {path}, got {', '.join(present)}; rename it."
    )
