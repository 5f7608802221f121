"""Pictures of records: grids of images, histograms of columns."""

import math
import struct
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpswd._files import atomic_write
from dpswd._layout import Array
from dpswd.networks.generator import Generator, draw

__all__ = ["mark_picture", "save_columns", "save_grid", "save_samples"]

_MIN_SIDE = 56  # of an image in a picture, in pixels; smaller ones are enlarged
_N_SAMPLES = 10  # images of each class, and rows without classes
_MAX_COLUMNS = 12  # of a table in a picture
_N_ACROSS = 3  # histograms beside each other
_N_BINS = 30
_INCHES = 2.2  # side of a histogram
_HEADER = 33  # bytes of a PNG file before the first chunk that may be added: signature and IHDR


def mark_picture(path: Path, notice: str) -> None:
    """Write a sentence into a PNG file, as its text ``Comment``; without effect if it is empty."""
    if not notice:
        return
    content = path.read_bytes()
    text = b"tEXtComment\0" + notice.encode("latin-1")
    chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
    atomic_write(path, content[:_HEADER] + chunk + content[_HEADER:])


def save_grid(images: Tensor, path: Path, columns: int) -> None:
    """Write images as one PNG with grey lines between them, small images enlarged.

    Args:
        images: Images (n, channels, h, w) in [0, 1].
        path: The file.
        columns: Number of images in a row.
    """
    from torchvision.utils import save_image  # slow to import: needed for pictures alone

    scale = max(1, round(_MIN_SIDE / images.shape[3]))
    enlarged = images.repeat_interleave(scale, 2).repeat_interleave(scale, 3)
    save = partial(save_image, enlarged, nrow=columns, padding=scale, pad_value=0.5, format="PNG")
    atomic_write(path, save)


def save_samples(generator: Generator, path: Path) -> Tensor:
    """Write a picture with a row of ten generated images per class.

    Args:
        generator: A generator of images.
        path: The file.

    Returns:
        The images (n, channels, h, w).
    """
    labels = torch.arange(generator.n_classes or _N_SAMPLES).repeat_interleave(_N_SAMPLES)
    if not generator.n_classes:
        labels = torch.zeros_like(labels)
    images = draw(generator, labels)
    save_grid(images, path, _N_SAMPLES)
    return images


def save_columns(path: Path, parts: dict[str, Array], names: Sequence[Any] | None = None) -> None:
    """Write a picture of the first columns of rows: histograms of all parts, one on another.

    Args:
        path: The file.
        parts: Rows (n, d) by their names in the legend.
        names: Names of the columns.
    """
    # slow to import: needed for pictures alone
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    all_rows = [np.asarray(rows, dtype=float) for rows in parts.values()]
    n_columns = min(_MAX_COLUMNS, all_rows[0].shape[1])
    n_across = min(_N_ACROSS, n_columns)
    n_down = math.ceil(n_columns / _N_ACROSS)
    size = (_INCHES * max(2, n_across), _INCHES * n_down)
    picture = Figure(figsize=size, dpi=150, layout="constrained")
    all_axes = picture.subplots(n_down, n_across, squeeze=False).flatten()
    for column, axes in enumerate(all_axes[:n_columns]):
        axes.hist(
            [rows[:, column] for rows in all_rows],
            _N_BINS,
            density=True,
            histtype="stepfilled",
            alpha=0.5,
            label=[*parts],
        )
        title = str(names[column]) if names else f"column {column}"
        axes.set_title(title, fontsize=12)
        axes.tick_params(labelsize=10)
        axes.set_yticks([])  # densities
    for axes in all_axes[n_columns:]:
        axes.set_axis_off()
    all_axes[0].legend(fontsize=10)
    atomic_write(path, FigureCanvasAgg(picture).print_png)
