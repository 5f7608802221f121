"""Classes of records: names that are stated, labels that are read."""

import re
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpswd._arrays import as_array
from dpswd._layout import EXACT, Array
from dpswd._public_facts import shown, taken_from_records
from dpswd.errors import InputError

_MOST_CLASSES, _MOST_NAMES = (
    10_000,
    100,
)  # integers and names in y, where the list of classes is not stated


def as_labels(y: Any, classes: Sequence[Any] | None) -> tuple[Tensor, list[Any], str | None]:
    """Return numbers of classes in int64, the classes, and a line if they are taken from the labels (N,) or (N, 1).

    They are then 0 to the largest integer, or the names that occur. ``classes`` may be names of the labels 0, 1, ...
    """
    labels = as_array("y", y)
    if labels.ndim == 2 and 1 in labels.shape:
        labels = labels.reshape(-1)
    if labels.ndim != 1:
        remedy = "; pass y.argmax(1) for one-hot labels" if labels.ndim == 2 else ""
        raise InputError(f"Expected y as classes (N,), got shape {labels.shape}{remedy}.")
    if labels.dtype.kind == "O" and all(
        isinstance(label, Real) for label in labels
    ):  # nullable columns of pandas
        labels = np.array(labels.tolist())
    if labels.dtype.kind == "f":
        if not bool(
            (np.isfinite(labels) & (labels == np.rint(labels)) & (abs(labels) < EXACT)).all()
        ):
            raise InputError(
                "Expected y as classes, got numbers that are not integers; check which array is y."
            )
        labels = labels.astype(np.int64)
    if classes is not None:
        return *_numbered(labels, as_classes(classes)), None
    if labels.dtype.kind == "b":
        return *_numbered(labels, [False, True]), None
    numbers = labels.dtype.kind in "iu"
    most = _MOST_CLASSES if numbers else _MOST_NAMES
    try:
        found = (
            range(min(int(labels.max(initial=0)), most) + 1)
            if numbers
            else sorted(set(labels.tolist()))
        )
    except TypeError:
        raise InputError(
            "Expected y as integers or names, got a mixture; pass labels of one type."
        ) from None
    if len(found) > most:
        raise InputError(
            f"Expected at most {most} classes in y, got more; pass classes=, the list of them."
        )
    names = as_classes(found)
    return *_numbered(labels, names), taken_from_records(classes=names)


def as_classes(classes: Sequence[Any]) -> list[Any]:
    """Return a public list of at least two different classes as plain values."""
    if isinstance(classes, str | int):
        raise InputError(
            f"Expected classes as a list, got {classes!r}; pass range(n) or a list of names."
        )
    names = [name.item() if isinstance(name, np.generic | Tensor) else name for name in classes]
    if len(set(names)) != len(names):
        raise InputError("Expected classes without repetition, got a repeated one.")
    if len(names) < 2:
        raise InputError(f"Expected at least 2 classes, got {len(names)}; leave the labels out.")
    return names


def _numbered(labels: Array, names: list[Any]) -> tuple[Tensor, list[Any]]:
    """Look labels up among the stated classes."""
    if labels.dtype.kind in "iu" and all(isinstance(name, str) for name in names):
        spelled = all(re.fullmatch(r"-?\d+", name) for name in names)  # integers of a command line
        known = {int(name) if spelled else number: number for number, name in enumerate(names)}
        names = list(known) if spelled else names
    else:
        known = {name: number for number, name in enumerate(names)}
    try:
        return torch.tensor([known[label] for label in labels.tolist()], dtype=torch.int64), names
    except (KeyError, TypeError):
        remedy = "pass classes=, the list of them"
        raise InputError(
            f"Expected labels among {shown(names)}, got one that is not listed; {remedy}."
        ) from None
