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
    """Read labelled public records, and their classes.

    Args:
        data: A folder, a file or a benchmark, as in :func:`dpswd.data.read`.
        size: Side to which images are scaled; ``None`` for the one that they have.
        options: Further options of :func:`dpswd.data.read`.

    Returns:
        Records (n, C, H, W) in [0, 1] or (n, d), and the names (n,) of their classes.

    Raises:
        InputError: If the records cannot be read, or have no classes.
    """
    benchmark = read_public(data, size=size, **options)
    if benchmark.classes is None:
        remedy = "pass records with classes"
        if column_names(data, options.get("root")):
            remedy = TARGET
        raise InputError(
            f"Expected classes for the records of {data}, the labelled source, got none; {remedy}."
        )
    records = _resized(benchmark.train.floats(), size, size)
    names = np.array(benchmark.classes)
    return records.numpy(), names[benchmark.train.labels.numpy()]


def read_records(
    data: str, shape: tuple[int, ...], **options: Any
) -> tuple[Array, tuple[str, ...]]:
    """Read records of the shape of a source; labels are ignored.

    Images are scaled to that shape, each by itself.

    Args:
        data: A folder, a file or a benchmark, as in :func:`dpswd.data.read`.
        shape: Shape of a record of the source: (C, H, W) or (d,).
        options: Further options of :func:`dpswd.data.read`.

    Returns:
        Records (n, *shape), and the names (n,) of the files of images of a folder; none otherwise.

    Raises:
        InputError: If the records cannot be read, or have another shape.
    """
    channels, height, width = None, None, None
    if len(shape) == 3:
        channels, height, width = shape
    size = height if height == width else None
    options["target"] = target_of(data, options.get("root"), options.get("target"))
    benchmark = read_public(data, labelled=False, size=size, channels=channels, **options)
    values = benchmark.train.floats()
    records = _resized(values, height, width)
    if records.shape[1:] != shape:
        raise InputError(
            f"Expected records of shape {shape} in {data}, as in the source, "
            f"got {tuple(records.shape[1:])}."
        )
    if values.shape != records.shape:
        say(f"The images of {data} are scaled to {height} x {width}, the size of the source.")
    return records.numpy(), benchmark.files


def _resized(values: Tensor, height: int | None, width: int | None) -> Tensor:
    """Scale images (n, C, h, w), each by itself; return vectors as they are."""
    if values.ndim != 4 or height is None or width is None:
        return values
    if tuple(values.shape[2:]) == (height, width):
        return values
    scaled = F.interpolate(values, size=(height, width), mode="bilinear", antialias=True)
    return scaled.clamp(0, 1)
