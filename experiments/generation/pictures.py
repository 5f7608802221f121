"""Pictures of images beside each other, with titles."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from experiments.plots import figure

N_OF_LINE = 16  # images in a line

Array = NDArray[Any]


@dataclass(frozen=True)
class Picture:
    """Pixels (h, w, 3) in [0, 1] with a title."""

    pixels: Array
    title: str


def grid(tiles: Array) -> Array:
    """Return images (columns, rows, h, w, 3) as one picture with white margins."""
    margins = ((0, 0), (0, 0), (0, 1), (0, 1), (0, 0))
    tiles = np.pad(tiles, margins, constant_values=1.0)
    columns, rows, height, width, _ = tiles.shape
    return tiles.transpose(1, 2, 0, 3, 4).reshape(rows * height, columns * width, 3)


def line_of(images: Tensor) -> Array:
    """Return the first images (n, 3, h, w) in a line."""
    return grid(images[:N_OF_LINE, None].movedim(2, -1).numpy())


def draw_grids(lines: Sequence[Sequence[Picture]], path: Path) -> None:
    """Draw lines of pictures of one size with their titles."""
    height, width, _ = lines[0][0].pixels.shape
    n_columns = len(lines[0])
    height_of_line = 0.3 + 10 / n_columns * height / width  # inches, title included
    total = len(lines) * height_of_line
    with figure(path, 10, total, len(lines), n_columns, dpi=110, squeeze=False) as panels:
        for line, axes_of_line in zip(lines, panels, strict=True):
            for picture, axes in zip(line, axes_of_line, strict=True):
                show(axes, picture)


def show(axes: Any, picture: Picture) -> None:
    """Draw a picture without axes."""
    axes.imshow(np.clip(picture.pixels, 0, 1))
    axes.axis("off")
    axes.set_title(picture.title, fontsize=10)
