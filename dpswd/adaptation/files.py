"""Arrays for :class:`dpswd.PrivateAdapter` from the files and benchmarks that :mod:`dpswd.data` reads.

As a user who loads arrays does, the command line reads both domains and passes them to the estimator, which makes the
handle of the private ones. Size and channels of private images are those of the public source, never taken from them.
"""

from typing import Any

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from dpswd._progress import say
from dpswd.adaptation.space import channels_last
from dpswd.data import read_public
from dpswd.data.files import TARGET, column_names
from dpswd.errors import InputError

__all__ = ["read_records", "read_source"]

Array = NDArray[Any]


def read_source(
    data: str, *, size: int | None = None, channels: int | None = None, **options: Any
) -> tuple[Array, Array]:
    """Read labelled public records: rows (n, d), or images (n, H, W) or (n, H, W, C) in [0, 1], and classes (n,).

    The options are those of :func:`dpswd.data.read`; an InputError says what is missing, damaged or without classes.
    """
    found = read_public(data, size=size, channels=channels, **options)
    if found.classes is None:
        remedy = f"; {TARGET}" if column_names(data, options.get("root")) else ""
        raise InputError(f"Expected classes for the records of {data}, the labelled source, got none{remedy}.")
    names = np.array(found.classes)
    return channels_last(_resized(found.train.floats(), size, size)), names[found.train.labels.numpy()]


def read_records(data: str, shape: tuple[int, ...], **options: Any) -> tuple[Array, tuple[str, ...]]:
    """Read records of the shape (d,), (H, W) or (H, W, C) of a source, and the names of the files of images (n,).

    Images of another size are scaled to it. Labels are ignored; a ``.csv`` file may lack the column ``target``. An
    InputError says what is missing, damaged or of another form.
    """
    height, width = (*shape, None)[:2]
    options |= {"size": height if height == width else None, "channels": None if len(shape) == 1 else (*shape, 1)[2]}
    if options.get("target") not in column_names(data, options.get("root")):
        options["target"] = None
    found = read_public(data, labelled=False, **options)
    values = found.train.floats()
    own = tuple(values.shape[2:])
    records = channels_last(_resized(values, height, width) if len(shape) > 1 else values)
    if records.shape[1:] != shape:
        raise InputError(f"Expected records of shape {shape} in {data}, as in the source, got {records.shape[1:]}.")
    if own and own != shape[:2]:
        say(f"The images of {data} are scaled to {height} x {width}, the size of the source.")
    return records, found.files


def _resized(values: Tensor, height: int | None, width: int | None) -> Tensor:
    """Scale images (n, C, h, w), each by itself; return vectors as they are."""
    if values.ndim != 4 or height is None or width is None or tuple(values.shape[2:]) == (height, width):
        return values
    return F.interpolate(values, size=(height, width), mode="bilinear", antialias=True).clamp(0, 1)
