"""Conversion of arrays, tensors and data frames to records."""

import re
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dpswd._layout import MIXED, Array, Layout
from dpswd._public_facts import shown
from dpswd._validate import choice
from dpswd.errors import InputError

Unreadable = Literal[
    "refuse", "zero"
]  # what happens to a record with NaN or inf, or a file that cannot be decoded


_NUMBERS = re.compile(
    r"(u?int|float)\d+(\[pyarrow\])?|double\[pyarrow\]|bool(ean|\[pyarrow\])?", re.IGNORECASE
)


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
            f"Expected columns of numbers, got text or mixed types ({shown(other)}); {MIXED}."
        )
    array = np.asarray(X.to_numpy(dtype=np.float64, na_value=np.nan))
    layout_of(array.shape, array.dtype)  # refuses a table without records or columns
    return array, Layout(dtypes=tuple(dtypes), columns=tuple(names))
