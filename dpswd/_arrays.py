"""Conversion of arrays, tensors and data frames to records and classes, and back.

A record is an image (C, H, W), in uint8 or as floats in [0, 1], or a row (d,) in float32. Each record is converted by
itself, so a conversion costs no privacy. Shape, number format and the names and types of columns are public.
"""

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpswd._validate import choice
from dpswd.errors import InputError

Unreadable = Literal[
    "refuse", "zero"
]  # what happens to a record with NaN or inf, or a file that cannot be decoded
Array = NDArray[Any]

MIXED = (  # the end of a sentence
    "mixed tables with categories are another field: see smartnoise-synth or dpmm, or pass the columns of numbers only"
)
_NUMBERS = re.compile(
    r"(u?int|float)\d+(\[pyarrow\])?|double\[pyarrow\]|bool(ean|\[pyarrow\])?", re.IGNORECASE
)
_EXACT = 2**53  # integers up to it are exact as float64
_MOST_CLASSES, _MOST_NAMES = (
    10_000,
    100,
)  # integers and names in y, where the list of classes is not stated
_SHOWN = 12  # names of classes in a message


@dataclass(frozen=True)
class Layout:
    """Public facts of the caller's format, in which synthetic records are returned."""

    kind: Literal["images", "rows"] = "rows"
    channels: Literal["first", "last", "none"] = "none"
    as_bytes: bool = False  # pixels in uint8
    dtypes: tuple[
        str, ...
    ] = ()  # of the columns of a data frame, or the one of an array; empty for lists
    columns: tuple[str | int, ...] | None = None  # names
    target: str | None = None  # name of the column or Series of classes

    @classmethod
    def of(cls, values: Any) -> "Layout":
        """Return the layout of records (N, C, H, W) or (N, d), in memory or not, that come from no caller's array."""
        if len(values.shape) == 2:
            return cls()
        return cls(
            "images", "none" if values.shape[1] == 1 else "last", values.dtype == torch.uint8
        )

    def column_kinds(self, dim: int) -> list[str] | None:
        """Return the kinds of ``dim`` columns as their types state them, ``None`` if all are floats."""
        kinds = [
            _kind(dtype) for dtype in (self.dtypes * dim if self.columns is None else self.dtypes)
        ]
        return kinds if set(kinds) - {"numeric"} else None

    def restore(self, records: Tensor) -> Any:
        """Return records (n, C, H, W) in [0, 1], or rows (n, d), as an array or a DataFrame in the caller's format."""
        values = records.detach().cpu().numpy()
        if self.kind == "images":
            images = values if values.dtype == np.uint8 else values.astype(np.float32).clip(0, 1)
            if self.as_bytes and images.dtype != np.uint8:
                images = np.rint(images * 255).astype(np.uint8)
            return {"none": images[:, 0], "first": images, "last": images.transpose(0, 2, 3, 1)}[
                self.channels
            ]
        if self.columns is None:
            return _typed(values, self.dtypes[0]) if self.dtypes else values
        if (pd := _pandas()) is None:
            return values
        frame = pd.DataFrame(dict(enumerate(self.typed(values)))).astype(
            dict(enumerate(self.dtypes))
        )
        frame.columns = pd.Index(self.columns)
        return frame

    def restore_labels(self, labels: Array) -> Any:
        """Return classes (n,) as a Series if those of the caller had a name, else as they are."""
        if self.target is None or (pd := _pandas()) is None:
            return labels
        return pd.Series(labels, name=self.target)

    def typed(self, values: Array) -> list[Array]:
        """Return the columns of a table (n, d) in their types."""
        return [_typed(column, dtype) for column, dtype in zip(values.T, self.dtypes, strict=True)]


def _kind(dtype: str) -> str:
    """Return the kind of a column of this type of NumPy, pandas or pyarrow."""
    plain = dtype.lower()
    return (
        "binary"
        if plain.startswith("bool")
        else "integer"
        if plain.startswith(("int", "uint"))
        else "numeric"
    )


def _typed(values: Array, dtype: str) -> Array:
    """Convert floats to the NumPy type of this name, integers and booleans by rounding."""
    if _kind(dtype) == "binary":
        return np.asarray(values > 0.5)
    plain = dtype.lower().removesuffix("[pyarrow]").replace("double", "float64")
    if _kind(dtype) == "integer":
        limits = np.iinfo(plain)
        values = np.rint(values.astype(np.float64)).clip(
            max(limits.min, -_EXACT), min(limits.max, _EXACT)
        )
    return values.astype(plain)


def _pandas() -> Any:
    """Return pandas, or ``None`` where it is not installed: the table was a file."""
    return importlib.import_module("pandas") if importlib.util.find_spec("pandas") else None


def as_array(name: str, value: Any) -> Array:
    """Return anything array-like as a NumPy array."""
    try:
        if isinstance(value, Tensor):
            value = value.detach().cpu()
            return np.asarray((value.float() if value.dtype == torch.bfloat16 else value).numpy())
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError):  # lists of different lengths
        raise InputError(
            f"Expected {name} as an array, all entries of one shape, got none; make them alike."
        ) from None


def as_records(X: Any, *, unreadable: Unreadable = "refuse") -> tuple[Tensor, Layout]:
    """Convert images or rows, an array, tensor, lists or DataFrame, to records (N, C, H, W) or (N, d)."""
    choice(("refuse", "zero"), unreadable=unreadable)
    if isinstance(X, str | Path):
        raise InputError(
            f"Expected X as an array, got {X}; use PrivateRecords.from_folder or dpswd.data.read."
        )
    if hasattr(X, "columns") and hasattr(X, "iloc"):  # of pandas; other frames are arrays
        array, layout = _frame(X)
    else:
        array = as_array("X", X)
        layout = layout_of(array.shape, array.dtype, typed=hasattr(X, "dtype"))
    return convert(array, layout, unreadable), layout


def layout_of(shape: tuple[int, ...], dtype: np.dtype[Any], *, typed: bool = True) -> Layout:
    """Return the layout of an array of records; its type is a public fact if the array is ``typed`` (no list)."""
    if len(shape) == 2 and dtype.kind in "OSU":
        raise InputError(f"Expected X as numbers, got an array of {dtype}; {MIXED}.")
    if dtype.kind not in "biuf" or len(shape) not in (2, 3, 4) or 0 in shape:
        layouts = "numbers as images (N, H, W), (N, H, W, C) or (N, C, H, W), or as rows (N, d)"
        raise InputError(
            f"Expected X with at least one record, {layouts}, all of one shape; got {dtype} {shape}."
        )
    if len(shape) == 2:
        return Layout(dtypes=(str(dtype),) if typed else ())
    if dtype.kind != "f" and dtype != np.uint8:
        raise InputError(
            f"Expected pixels as uint8 or as floats in [0, 1], got {dtype}; use X.astype('uint8')."
        )
    first, last = (len(shape) == 4 and shape[axis] in (1, 3) for axis in (1, 3))
    if len(shape) == 4 and first == last:
        remedy = (
            "it can be read both ways; pad the images"
            if first
            else "move the axes, or drop channels"
        )
        raise InputError(
            f"Expected images (N, H, W, C) or (N, C, H, W) of 1 or 3 channels, got {shape}; {remedy}."
        )
    return Layout("images", "first" if first else "last" if last else "none", dtype == np.uint8)


def convert(array: Array, layout: Layout, unreadable: Unreadable) -> Tensor:
    """Return the records of an array of this layout; pixels must lie in [0, 1] and numbers be finite."""
    with np.errstate(
        over="ignore"
    ):  # numbers beyond float32 are handled with the other unreadable ones
        if layout.kind == "rows":
            return finite(torch.from_numpy(array.astype(np.float32)), unreadable)
        last = layout.channels == "last"
        images = (
            array[:, None]
            if layout.channels == "none"
            else array.transpose(0, 3, 1, 2)
            if last
            else array
        )
        pixels: Array = np.array(
            images, dtype=np.uint8 if layout.as_bytes else np.float32, order="C"
        )
    if not layout.as_bytes and not bool(
        ((pixels >= 0) & (pixels <= 1) | ~np.isfinite(pixels)).all()
    ):
        raise InputError(
            "Expected pixels as bytes or floats in [0, 1], got floats outside; scale them to [0, 1]."
        )
    return finite(torch.from_numpy(pixels), unreadable)


def finite(values: Tensor, unreadable: Unreadable) -> Tensor:
    """Return records (n, ...), each with NaN or inf mapped to zeros by itself if ``unreadable="zero"``."""
    if not values.is_floating_point() or bool(torch.isfinite(values).all()):
        return values
    if unreadable == "refuse":
        remedy = 'pass PrivateRecords(..., unreadable="zero"), or --unreadable zero, which maps such a record to zeros'
        raise InputError(
            f"Expected finite records, got NaN or inf; {remedy}. Do not drop it: their number is public."
        )
    readable = torch.isfinite(values).flatten(1).all(1).reshape(-1, *[1] * (values.ndim - 1))
    return torch.where(readable, values, torch.zeros_like(values))


def _frame(X: Any) -> tuple[Array, Layout]:
    """Return the numbers (N, d) and the layout of a DataFrame."""
    names = [name if isinstance(name, str | int) else str(name) for name in X.columns]
    dtypes = [str(dtype) for dtype in X.dtypes]
    other = [
        str(name)
        for name, dtype in zip(names, dtypes, strict=True)
        if not _NUMBERS.fullmatch(dtype)
    ]
    if other:
        raise InputError(
            f"Expected columns of numbers, got text or mixed types ({_shown(other)}); {MIXED}."
        )
    array = np.asarray(X.to_numpy(dtype=np.float64, na_value=np.nan))
    layout_of(array.shape, array.dtype)  # refuses a table without records or columns
    return array, Layout(dtypes=tuple(dtypes), columns=tuple(names))


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
            (np.isfinite(labels) & (labels == np.rint(labels)) & (abs(labels) < _EXACT)).all()
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
            f"Expected labels among {_shown(names)}, got one that is not listed; {remedy}."
        ) from None


def taken_from_records(**facts: Any) -> str:
    """Return the line for the screen about public facts that were taken from the records."""
    stated = [
        f"{name}={_shown(fact) if isinstance(fact, list) else fact}" for name, fact in facts.items()
    ]
    options = ", ".join(f"{name}=" for name in facts)
    return f"taken from the records and treated as public: {', '.join(stated)}; pass {options} to state them."


def _shown(names: list[Any]) -> str:
    if names == list(range(len(names))):
        return f"range({len(names)})"
    more = f", ... ({len(names)} in all)" if len(names) > _SHOWN else ""
    return f"[{', '.join(map(repr, names[:_SHOWN]))}{more}]"
