"""Pictures of records: grids of images, histograms of columns."""

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

__all__ = ["save_columns", "save_grid", "save_samples"]

_SHOWN_COLUMNS = 12  # in a picture


_GRID = 56  # least side of an image in a picture, in pixels


def save_grid(images: Tensor, path: Path, columns: int) -> None:
    """Write images (n, channels, h, w) as one PNG with grey lines between them, small images enlarged."""
    from torchvision.utils import save_image

    scale = max(1, round(_GRID / images.shape[3]))
    large = images.repeat_interleave(scale, 2).repeat_interleave(scale, 3)
    atomic_write(
        path, partial(save_image, large, nrow=columns, padding=scale, pad_value=0.5, format="PNG")
    )


def save_samples(generator: Generator, path: Path) -> Tensor:
    """Write a picture with a row of ten generated images per class; return the images."""
    labels = torch.arange(generator.n_classes or 10).repeat_interleave(10)
    images = draw(generator, labels if generator.n_classes else torch.zeros_like(labels))
    save_grid(images, path, 10)
    return images


def save_columns(path: Path, parts: dict[str, Array], names: Sequence[Any] | None = None) -> None:
    """Write a picture of the first columns of rows (n, d): the histograms of all parts on top of each other."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [np.asarray(values, dtype=float) for values in parts.values()]
    count = min(_SHOWN_COLUMNS, rows[0].shape[1])
    lines, width = -(-count // 3), min(3, count)
    made = Figure(figsize=(2.2 * max(2, width), 2.2 * lines), dpi=150, layout="constrained")
    all_axes = made.subplots(lines, width, squeeze=False).flatten()
    options: dict[str, Any] = {
        "density": True,
        "histtype": "stepfilled",
        "alpha": 0.5,
        "label": [*parts],
    }
    for column, axes in enumerate(all_axes[:count]):
        axes.hist([values[:, column] for values in rows], 30, **options)
        axes.set_title(str(names[column]) if names else f"column {column}", fontsize=12)
        axes.tick_params(labelsize=10)
        axes.set_yticks([])  # densities
    for axes in all_axes[count:]:
        axes.set_axis_off()
    all_axes[0].legend(fontsize=10)
    atomic_write(path, FigureCanvasAgg(made).print_png)
