"""Records of a source and a target from files, as arrays.

Size and channels of private images are those of the public source, never taken from them.
"""

from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from dpswd._layout import Array
from dpswd._progress import say
from dpswd.data import read_public
from dpswd.data.tables import TARGET, column_names, target_of
from dpswd.errors import InputError

__all__ = ["read_records", "read_source"]


def read_source(data: str, *, size: int | None = None, **options: Any) -> tuple[Array, Array]:
    """Read labelled public records by the options of :func:`dpswd.data.read`, and their classes (n,)."""
    found = read_public(data, size=size, **options)
    if found.classes is None:
        remedy = f"; {TARGET}" if column_names(data, options.get("root")) else ""
        raise InputError(
            f"Expected classes for the records of {data}, the labelled source, got none{remedy}."
        )
    names = np.array(found.classes)
    return _resized(found.train.floats(), size, size).numpy(), names[found.train.labels.numpy()]


def read_records(
    data: str, shape: tuple[int, ...], **options: Any
) -> tuple[Array, tuple[str, ...]]:
    """Read records of the shape of a source, and the names (n,) of the files of images; labels are ignored."""
    channels, height, width = shape if len(shape) == 3 else (None, None, None)
    options["target"] = target_of(data, options.get("root"), options.get("target"))
    size = height if height == width else None
    found = read_public(data, labelled=False, size=size, channels=channels, **options)
    values = found.train.floats()
    records = _resized(values, height, width)
    if records.shape[1:] != shape:
        got = tuple(records.shape[1:])
        raise InputError(
            f"Expected records of shape {shape} in {data}, as in the source, got {got}."
        )
    if values.shape != records.shape:
        say(f"The images of {data} are scaled to {height} x {width}, the size of the source.")
    return records.numpy(), found.files


def _resized(values: Tensor, height: int | None, width: int | None) -> Tensor:
    """Scale images (n, C, h, w), each by itself; return vectors as they are."""
    if (
        values.ndim != 4
        or height is None
        or width is None
        or tuple(values.shape[2:]) == (height, width)
    ):
        return values
    return F.interpolate(values, size=(height, width), mode="bilinear", antialias=True).clamp(0, 1)
