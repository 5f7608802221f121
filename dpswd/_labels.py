"""Classes of records: names that are stated, and labels that are read one by one.

Each label is read by itself. Its *key* is a function of this label alone, and its number is the
position of the stated class with the same key. One record can therefore not change how the labels
of other records are read, and the same labels give the same numbers in every type of array.

====================================================  ============================
label                                                 key
====================================================  ============================
3, 3.0, np.int8(3), Decimal(3), "3", " 03", b"3.0"    3
True, "True", 1                                       1
0.5, "0.5", "5e-1"                                    0.5
"cat", " cat", b"cat"                                 "cat"
a date, an interval, a missing entry                  its text: "2026-01-31", "nan"
====================================================  ============================

Integers are positions if no stated class reads as a number: with the classes ["cat", "dog"] the
label 1 is a dog. With the classes ["1", "2", "X"] it is the first class.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpswd._arrays import as_array
from dpswd._keys import MISSING_VALUES, Key, is_rounded, key_of_number, label_key, plain_text
from dpswd._layout import Array
from dpswd._public_facts import list_of_names, taken_from_records
from dpswd.errors import InputError

# Labels of one class say nothing about a record.
MIN_CLASSES = 2

# Integers up to this one are taken as classes where no classes are stated. A column of numbers
# that is no column of classes would otherwise become a class per value.
_MAX_INTEGER_CLASSES = 10_000
# Classes that a message lists.
_MOST_LISTED = 12
# The same for names, of which each has to occur.
_MAX_NAMED_CLASSES = 100

_MISSING_KEYS = {"", "NaN", *MISSING_VALUES}
_UNLISTED = -1  # number of a label without a class
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True, eq=False)
class Labels:
    """Classes of records.

    Attributes:
        numbers: Number of the class of each record (N,), in int64.
        classes: Names of the classes in the order of their numbers.
        notice: Line about classes that were taken from the labels; ``None`` if they were stated.
    """

    numbers: Tensor
    classes: list[Any]
    notice: str | None = None


def as_labels(
    y: Any,
    classes: Iterable[Any] | None = None,
    *,
    min_classes: int = MIN_CLASSES,
    missing_is_class: bool = False,
) -> Labels:
    """Read the labels of records.

    Args:
        y: Labels (N,), (N, 1) or (1, N): an array, tensor, Series or list.
        classes: Public list of classes. Without it, the classes are the integers from 0 to the
            largest one, or the names that occur.
        min_classes: Least number of classes; 1 for test records, which may be of one class.
        missing_is_class: Whether labels such as ``nan`` and ``None`` are classes of these names,
            where no classes are stated; for synthetic records, which have classes that were stated.

    Raises:
        InputError: If a label is no stated class, or the labels are no classes.
    """
    labels = _one_dimensional(y)
    values, places = _distinct(labels)
    keys = [label_key(value) for value in values]
    _check_rounded(values, places)
    notice = None
    if classes is None:
        if not missing_is_class:
            _check_missing(keys, places)
        classes = _occurring_classes(values, keys)
        notice = taken_from_records(classes=classes)
        remedy = "pass classes= (--classes), the list of them"
    else:
        remedy = "add its class to classes= (--classes), or correct the label"
    names = as_classes(classes, min_classes=min_classes)
    positions = class_positions(names)
    numbers = np.array([positions.get(key, _UNLISTED) for key in keys], dtype=np.int64)
    row = _first_row(numbers == _UNLISTED, places)
    if row is not None:
        raise InputError(
            f"Expected labels among {list_of_names(names)}, got one that is not listed in row "
            f"{row}, counted from 0; {remedy}."
        )
    return Labels(torch.from_numpy(numbers[places]), names, notice)


def is_missing(label: Any) -> bool:
    """Return whether a label is NaN, None or another sign of a missing entry."""
    return label_key(label) in _MISSING_KEYS


def class_positions(classes: Sequence[Any]) -> dict[Key, int]:
    """Return the position of the class of every key that is read as one."""
    keys = [label_key(name) for name in classes]
    positions = {key: position for position, key in enumerate(keys)}
    if all(isinstance(key, str) for key in keys):
        for position in range(len(keys)):
            positions[position] = position
    return positions


def as_classes(classes: Iterable[Any], *, min_classes: int = MIN_CLASSES) -> list[Any]:
    """Return a public list of classes as booleans, integers, floats and text.

    Raises:
        InputError: If there are too few classes, or two that labels cannot tell apart.
    """
    if isinstance(classes, str | bytes) or not isinstance(classes, Iterable):
        raise InputError(
            f"Expected classes as a list, got {classes!r}; pass range(n) or a list of names."
        )
    names = [_plain_name(name) for name in classes]
    first_names: dict[Key, Any] = {}
    for name in names:
        key = label_key(name)
        if key in first_names:
            raise InputError(
                f"Expected classes without repetition, got {first_names[key]!r} and {name!r}, "
                "which read as one label; rename or drop one."
            )
        first_names[key] = name
    if len(names) < min_classes:
        raise InputError(
            f"Expected at least {min_classes} classes, got {len(names)}; "
            "name all of them, each by itself (--classes a b c, without commas), or leave classes "
            "and labels out."
        )
    return names


def labels_from_one(n_classes: int) -> str:
    """Return a clause about labels 1 to C, for a message about one class too many.

    Without stated classes, the classes are 0 to the largest label, even if no label is 0. Whether
    one is 0 is private, so that the clause does not say it.

    Args:
        n_classes: Number of classes that were expected.

    Example:
        >>> labels_from_one(3)
        'if the labels are 1 to 3, pass classes=[1, 2, 3] (--data.classes "[1, 2, 3]")'
    """
    classes = str(list(range(1, n_classes + 1)))
    if n_classes > _MOST_LISTED:
        classes = f"[1, 2, ..., {n_classes}]"
    return (
        f'if the labels are 1 to {n_classes}, pass classes={classes} (--data.classes "{classes}")'
    )


def class_numbers(name: str, labels: Any, n_rows: int, n_classes: int) -> Tensor:
    """Return the numbers (n,) of the classes of rows in int64; refuse anything else.

    Args:
        name: Name of the argument, for the message.
        labels: Tensor (n,) of integers in [0, n_classes).
        n_rows: Number n of rows.
        n_classes: Number of classes.

    Raises:
        InputError: If the labels are no such tensor.
    """
    expected = f"Expected {name} to be a tensor of {n_rows} integers"
    if labels is None:
        raise InputError(f"{expected}, got none; pass the number of the class of every row.")
    if not isinstance(labels, Tensor):
        raise InputError(f"{expected}, got {type(labels).__name__}; use torch.as_tensor.")
    if labels.dtype not in _INTEGERS or labels.shape != (n_rows,):
        raise InputError(
            f"{expected}, got {labels.dtype} of shape {tuple(labels.shape)}; pass the number of "
            "the class of every row."
        )
    if bool(((labels < 0) | (labels >= n_classes)).any()):
        raise InputError(
            f"Expected {name} in [0, {n_classes - 1}], got labels outside; count classes from 0, "
            "and check n_classes."
        )
    return labels.long()


def numbers_of_generated(labels: Any, rows: Tensor, n_classes: int) -> Tensor:
    """Return the numbers (n,) of the classes of generated rows (n, ...).

    Without classes all numbers are 0.

    Raises:
        InputError: If labels are missing or do not fit, or there are some without classes.
    """
    if n_classes == 0:
        if labels is not None:
            raise InputError("Expected no labels without classes, got some; leave them out.")
        return torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
    if labels is None:
        raise InputError(f"Expected labels of {n_classes} classes, got none; pass labels.")
    return class_numbers("labels", labels, len(rows), n_classes)


def class_array(classes: Sequence[Any]) -> Array:
    """Return names of classes as an array (C,), in which each name keeps its type."""
    array = np.array(classes)
    if len({type(name) for name in classes}) > 1:  # np.array([0, "unknown"]) holds two texts
        array = np.empty(len(classes), dtype=object)
        array[:] = classes
    return array


def _one_dimensional(y: Any) -> Array:
    """Return labels (N,) in an array that leaves their types as they are."""
    if isinstance(y, list | tuple):
        labels = _array_of_list(y)
    else:
        labels = as_array("y", y)
    if labels.ndim == 2 and 1 in labels.shape:  # of MedMNIST and of MATLAB
        labels = labels.reshape(-1)
    if labels.ndim != 1:
        remedy = "check which array is y"
        if labels.ndim == 2:
            remedy = "pass y.argmax(1) for one-hot labels"
        raise InputError(f"Expected y as classes (N,), got shape {labels.shape}; {remedy}.")
    return labels


def _array_of_list(y: Sequence[Any]) -> Array:
    """Return a list as an array of objects.

    ``np.array([True, 2])`` would hold two integers.
    """
    for label in y:
        if isinstance(label, list | tuple) or getattr(label, "ndim", 0) > 0:
            return as_array("y", y)
    labels = np.empty(len(y), dtype=object)
    for position, label in enumerate(y):
        labels[position] = label
    return labels


def _distinct(labels: Array) -> tuple[list[Any], Array]:
    """Return distinct labels, and the place of each label (N,) among them.

    Arrays of objects are returned as they are, since 1 and True are equal but of different types.
    """
    if labels.dtype.kind == "O":
        return list(labels), np.arange(len(labels))
    values, places = np.unique(labels, return_inverse=True)
    return list(values), places


def _first_row(is_wrong: Array, places: Array) -> int | None:
    """Return the first row of which the label is wrong, ``None`` if no label is.

    Args:
        is_wrong: Whether each of the distinct labels is.
        places: Place (N,) of the label of each row among them.
    """
    rows = np.flatnonzero(is_wrong[places])
    if not len(rows):
        return None
    return int(rows[0])


def _check_rounded(values: Sequence[Any], places: Array) -> None:
    """Refuse floats in which large integers may be rounded, as beside a missing label.

    One missing label makes floats of an array of integers. Two classes would then be one.
    """
    row = _first_row(np.array([is_rounded(value) for value in values], dtype=bool), places)
    if row is not None:
        raise InputError(
            "Expected labels as text or integers, got a float beyond 2^53, in which several "
            f"classes can be one, in row {row}, counted from 0; pass them as text."
        )


def _check_missing(keys: Sequence[Key], places: Array) -> None:
    """Refuse labels of which one is missing."""
    is_missing_key = np.array([key in _MISSING_KEYS for key in keys], dtype=bool)
    row = _first_row(is_missing_key, places)
    if row is not None:
        raise InputError(
            f"Expected a class for every record, got a missing label in row {row}, counted from "
            "0; give such records a class of their own, and pass classes= (--classes), the list "
            "of them."
        )


def _occurring_classes(values: Sequence[Any], keys: Sequence[Key]) -> list[Any]:
    """Return the classes of labels without stated ones.

    Raises:
        InputError: If a label is no integer, or there are too many classes.
    """
    if any(isinstance(key, float) for key in keys):
        raise InputError(
            "Expected y as classes, got numbers that are not integers; check which array is y, or "
            "pass classes= (--classes), the list of them."
        )
    if all(isinstance(value, bool | np.bool_) for value in values):
        return [False, True]
    if all(isinstance(value, str | bytes) for value in values):
        names = _limited(sorted(_texts_by_key(values, keys).values()), _MAX_NAMED_CLASSES)
    elif all(isinstance(key, int) for key in keys):
        largest = min(max(map(int, keys), default=0), _MAX_INTEGER_CLASSES)
        names = _limited(list(range(largest + 1)), _MAX_INTEGER_CLASSES)
    else:
        integers = sorted({key for key in keys if isinstance(key, int)})
        texts = sorted({key for key in keys if isinstance(key, str)})
        names = _limited([*integers, *texts], _MAX_NAMED_CLASSES)
    return names


def _texts_by_key(values: Sequence[Any], keys: Sequence[Key]) -> dict[Key, str]:
    """Return the text of each key.

    Of "1" and "01", which are one class, it is the first by name.
    """
    texts: dict[Key, str] = {}
    for value, key in zip(values, keys, strict=True):
        text = plain_text(value).strip()
        texts[key] = min(text, texts.get(key, text))
    return texts


def _limited(classes: list[Any], limit: int) -> list[Any]:
    """Return classes that were taken from labels; refuse more than ``limit`` of them."""
    if len(classes) > limit:
        raise InputError(
            f"Expected at most {limit} classes in y, got more; pass classes= (--classes), the list "
            "of them."
        )
    return classes


def _plain_name(name: Any) -> bool | int | float | str:
    """Return the name of a class as a type that every file of this library can hold."""
    if isinstance(name, list | tuple | dict | set) or getattr(name, "ndim", 0) > 0:
        raise InputError(
            f"Expected names of classes as numbers or text, got a {type(name).__name__}; pass a "
            "flat list."
        )
    if isinstance(name, np.generic | np.ndarray | Tensor) and not isinstance(name, np.datetime64):
        name = name.item()
    if isinstance(name, bool):
        return name
    if isinstance(name, Integral):
        return int(name)
    if isinstance(name, float) and math.isfinite(name):
        return float(name)
    if isinstance(name, Real | Decimal) and math.isfinite(name):
        return key_of_number(name)  # of a decimal or a fraction: an integer if it is one
    text = plain_text(name)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(
            f"Expected names of classes in UTF-8, got {text!r}; rename that class."
        ) from None
    if "\0" in text:
        raise InputError(f"Expected names of classes without NUL, got {text!r}; rename that class.")
    return text
