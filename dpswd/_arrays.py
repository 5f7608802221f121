"""Conversion of arrays, tensors, lists and data frames to records.

A record is an image (C, H, W), in uint8 or as floats in [0, 1], or a row (d,) in float32. Each
record is converted by itself, so that a conversion costs no privacy. Shape, number format and the
names of columns are public.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dpswd._layout import NUMBERS, Array, Layout
from dpswd._public_facts import DO_NOT_REMOVE, list_of_names
from dpswd._validate import choice
from dpswd.errors import InputError

# What happens to a record with NaN or inf, or to a file that cannot be decoded.
Unreadable = Literal["refuse", "zero"]

# The end of a sentence about tables that hold more than numbers.
MIXED = (
    "state categories, dates and missing cells by columns= (--columns FILE, of which dpswd columns "
    "makes a draft), or pass the columns of numbers only"
)

_CHANNELS = (1, 3)  # numbers of channels of an image


def silent_numbers() -> np.errstate:
    """Return a context in which NumPy does not warn of numbers.

    A warning would tell of a record: of one beyond the range of a type, or of a missing number as
    R writes it, a signalling NaN.
    """
    return np.errstate(all="ignore")


def as_array(name: str, value: Any) -> Array:
    """Return anything array-like as a NumPy array.

    Args:
        name: Name of the argument, for the message.
        value: Array, tensor, Series, list, ...
    """
    try:
        if isinstance(value, Tensor):
            tensor = value.detach().cpu()
            if tensor.dtype == torch.bfloat16:  # unknown to NumPy
                tensor = tensor.float()
            return np.asarray(tensor.numpy())
        if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
            if value.dtype.kind != "f":  # floats keep their type, masked or not
                with silent_numbers():
                    value = value.astype(np.float64)
            return np.ma.filled(value, np.nan)
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError):
        raise InputError(
            f"Expected {name} as an array, all entries of one shape, got a {type(value).__name__} "
            "that NumPy cannot convert; make its entries alike, and pass dense tensors without "
            "a gradient."
        ) from None


def as_records(X: Any, *, unreadable: Unreadable = "refuse") -> tuple[Tensor, Layout]:
    """Convert images or rows to records, and return the records and their layout.

    Records are images (N, C, H, W) or rows (N, d).

    Args:
        X: Array, tensor, list or DataFrame of numbers.
        unreadable: ``"zero"`` maps a record with NaN or inf to zeros; ``"refuse"`` raises.

    Raises:
        InputError: If X holds no records, or records of another form.
    """
    choice(("refuse", "zero"), unreadable=unreadable)
    if isinstance(X, str | Path):
        raise InputError(
            f"Expected X as an array, got {X}; use PrivateRecords.from_folder or dpswd.data.read."
        )
    if isinstance(X, Dataset | DataLoader):
        raise InputError(
            f"Expected X as an array, got a {type(X).__name__} of torch; pass its records as one "
            "tensor and its classes as another, X = torch.stack([x for x, _ in dataset]) and y = "
            "[int(y) for _, y in dataset], or images by PrivateRecords.from_folder. A transform "
            "must change each record by itself, by public constants."
        )
    if hasattr(X, "columns") and hasattr(X, "iloc"):  # of pandas; other frames are arrays
        array, layout = _array_of_frame(X)
    else:
        if isinstance(X, list | tuple):
            _check_type_of_images(X)
        array = as_array("X", X)
        layout = layout_of(array.shape, array.dtype, typed=hasattr(X, "dtype"))
    records = convert(array, layout, unreadable)
    check_bytes(records)
    return records, layout


def layout_of(shape: tuple[int, ...], dtype: np.dtype[Any], *, typed: bool = True) -> Layout:
    """Return the layout of an array of records.

    Args:
        shape: Shape of the array.
        dtype: Its type.
        typed: Whether the type is the caller's, as that of an array is and that of a list is not.

    Raises:
        InputError: If the array holds no records.
    """
    if len(shape) == 2 and dtype.kind in "OSU":
        raise InputError(f"Expected X as numbers, got an array of {dtype}; {MIXED}.")
    if dtype.kind not in "biuf" or len(shape) not in (2, 3, 4) or 0 in shape:
        raise InputError(
            "Expected X with at least one record, numbers as images (N, H, W), (N, H, W, C) or "
            f"(N, C, H, W), or as rows (N, d), all of one shape; got {dtype} {shape}."
        )
    if len(shape) == 2:
        if not typed:
            return Layout()
        return Layout(dtypes=(dtype.newbyteorder("=").name,))
    if dtype.kind != "f" and dtype != np.uint8:
        raise InputError(
            "Expected pixels as uint8 from 0 to 255 or as floats in [0, 1], got "
            f"{dtype}; {_remedy_for_pixels(dtype)}."
        )
    return Layout("images", _channels(shape), dtype == np.uint8)


def _channels(shape: tuple[int, ...]) -> Literal["first", "last", "none"]:
    """Return the axis of the channels of images.

    Images have the shape (N, H, W), (N, H, W, C) or (N, C, H, W).
    """
    if len(shape) == 3:
        return "none"
    is_first = shape[1] in _CHANNELS
    is_last = shape[3] in _CHANNELS
    if is_first == is_last:
        remedy = "move the axes, or drop channels"
        if is_first:
            remedy = "it can be read both ways; pad the images"
        raise InputError(
            "Expected images (N, H, W, C) or (N, C, H, W) of 1 or 3 channels, got "
            f"{shape}; {remedy}."
        )
    return "first" if is_first else "last"


def _remedy_for_pixels(dtype: np.dtype[Any]) -> str:
    """Return how pixels of another type become floats in [0, 1]."""
    if dtype.kind == "b":
        return "pass X.astype('float32')"
    if dtype.kind == "u":
        largest = np.iinfo(dtype).max
        return f"pass X / {largest}.0, or divide by the largest value that your format allows"
    return (
        "pass X.astype('uint8') if its numbers are from 0 to 255; else map the range that your "
        "format allows to [0, 1], as in ((X - low) / (high - low)).clip(0, 1)"
    )


def _check_type_of_images(images: Sequence[Any]) -> None:
    """Refuse a list of images of several types.

    NumPy would convert all images to the type of one of them.
    """
    if all(isinstance(image, list | tuple) or np.isscalar(image) for image in images):
        return
    arrays = [as_array("X", image) for image in images]
    names = sorted({str(array.dtype) for array in arrays if array.ndim > 1})
    if len(names) > 1:
        raise InputError(
            f"Expected images of one type, got a list of {', '.join(names)}; convert each image "
            "to uint8, or each to floats in [0, 1]."
        )


def convert(array: Array, layout: Layout, unreadable: Unreadable) -> Tensor:
    """Return the records of an array of this layout.

    Args:
        array: Images or rows.
        layout: Layout of the array, by :func:`layout_of`.
        unreadable: ``"zero"`` maps a record with NaN or inf to zeros; ``"refuse"`` raises.

    Raises:
        InputError: If pixels lie outside [0, 1] or a number is not finite.
    """
    with silent_numbers():  # beyond float32 numbers become inf, which finite() handles
        if layout.kind == "rows":
            # By way of float64, as where another entry of the array is a float.
            numbers = array.astype(np.float64).astype(np.float32)
            return finite(torch.from_numpy(numbers), unreadable)
        images = array
        if layout.channels == "none":
            images = array[:, None]
        elif layout.channels == "last":
            images = array.transpose(0, 3, 1, 2)
        dtype = np.uint8 if layout.as_bytes else np.float32
        pixels: Array = np.array(images, dtype=dtype, order="C")
    _check_pixels(pixels)
    return finite(torch.from_numpy(pixels), unreadable)


def _check_pixels(pixels: Array) -> None:
    """Refuse floats outside [0, 1]."""
    if pixels.dtype == np.uint8:
        return
    is_inside = (pixels >= 0) & (pixels <= 1)
    if not bool((is_inside | ~np.isfinite(pixels)).all()):
        raise InputError(
            "Expected pixels as bytes or floats in [0, 1], got floats outside; map them there by "
            "public constants, as X / 255 does from [0, 255] and (X + 1) / 2 from [-1, 1], and not "
            "by X.max(), which is private."
        )


def check_bytes(images: Tensor) -> None:
    """Refuse images of bytes 0 and 1 alone, which would all be black.

    The check is of all images: a part of them, as it is read from a disk, may be dark.
    """
    if images.dtype == torch.uint8 and images.numel() and int(images.max()) == 1:
        raise InputError(
            "Expected pixels as bytes from 0 to 255, got 0 and 1 alone, which are black; pass "
            "X.astype('float32') if 1 is white, or X * 255."
        )


def finite(values: Tensor, unreadable: Unreadable) -> Tensor:
    """Return records (n, ...) without NaN and inf.

    Args:
        values: Records.
        unreadable: ``"zero"`` maps a record with NaN or inf to zeros, each by itself;
            ``"refuse"`` raises.
    """
    if not values.is_floating_point():
        return values
    is_finite = torch.isfinite(values)
    if bool(is_finite.all()):
        return values
    if unreadable == "refuse":
        raise InputError(
            'Expected finite records, got NaN or inf; pass unreadable="zero" (--unreadable zero), '
            f"which maps such a record to zeros. {DO_NOT_REMOVE}"
        )
    is_readable = is_finite.flatten(1).all(1)
    is_readable = is_readable.reshape(-1, *[1] * (values.ndim - 1))
    return torch.where(is_readable, values, torch.zeros_like(values))


def _column_name(name: Any) -> str | int:
    """Return the name of a column as text, or as an integer if it is one."""
    if isinstance(name, str | int):
        return name
    return str(name)


def check_names(names: Iterable[Any]) -> None:
    """Refuse a DataFrame with repeated names of columns."""
    texts = [str(name) for name in names]
    if len(set(texts)) < len(texts):
        raise InputError(
            "Expected different names of the columns of X, got a repeated one; rename a column."
        )


def _array_of_frame(frame: Any) -> tuple[Array, Layout]:
    """Return the numbers (N, d) and the layout of a DataFrame."""
    names = [_column_name(name) for name in frame.columns]
    check_names(names)
    dtypes = [str(dtype) for dtype in frame.dtypes]
    other_names = [
        str(name) for name, dtype in zip(names, dtypes, strict=True) if not NUMBERS.fullmatch(dtype)
    ]
    if other_names:
        raise InputError(
            "Expected columns of numbers, got text or mixed types "
            f"({list_of_names(other_names)}); {MIXED}."
        )
    with silent_numbers():
        array = np.asarray(frame.to_numpy(dtype=np.float64, na_value=np.nan))
    layout_of(array.shape, array.dtype)  # refuses a table without records or columns
    return array, Layout(dtypes=tuple(dtypes), columns=tuple(names))
