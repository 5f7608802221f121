"""Pictures of records: grids of images, histograms of columns."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dpswd._files import atomic_write
from dpswd._layout import Array
from dpswd.columns import Column, Table
from dpswd.networks.generator import Generator, draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["save_columns", "save_grid", "save_rows", "save_samples"]

_MIN_SIDE = 56  # of an image in a picture, in pixels; smaller ones are enlarged
_N_SAMPLES = 10  # images of each class, and rows without classes
_MAX_COLUMNS = 12  # of a table in a picture
# Most marks of an axis, so many of which are less slanted, and characters of one.
_MOST_TICKS = 12
_FEW_TICKS = 6
_TICK_WIDTH = 12
_MOST_STEPS = 3  # of the ticks of numbers
_TITLE_WIDTH = 22  # characters above a histogram
_N_ACROSS = 3  # histograms beside each other
_N_BINS = 30
_LEAST_WIDTH = 1e-3  # of all bins, over the largest value
_INCHES = 2.2  # side of a histogram
_LINE_GREY = 0.5  # of the lines between images
_FONT_SIZE = 14  # of names beside and above images, in pixels
_GAP = 8  # pixels between a name and the images
_LONGEST_NAME = 20  # characters of the name of a class
# Colours of parts of a histogram by their names; others have those of matplotlib.
_COLOURS = {
    "real": "0.6",
    "synthetic": "tab:red",
    "source": "0.6",
    "synthetic target": "tab:red",
}
# Names of columns and categories may have dollar signs, between which matplotlib reads formulas.
_AS_IT_IS = {"parse_math": False}
# Part of the values in one bin of a histogram, from which on its axis is logarithmic.
_MOST_IN_A_BIN = 0.8


def save_grid(
    images: Tensor,
    path: Path,
    columns: int,
    *,
    row_names: Sequence[Any] = (),
    titles: Mapping[int, str] | None = None,
) -> None:
    """Write images as one PNG with grey lines between them, small images enlarged.

    Args:
        images: Images (n, channels, h, w) in [0, 1].
        path: The file.
        columns: Number of images in a row.
        row_names: Names of the rows, which stand on the left; long ones are cut.
        titles: Titles above the images, by the column in which they start.
    """
    from PIL import Image

    scale = max(1, round(_MIN_SIDE / images.shape[3]))
    enlarged = images.repeat_interleave(scale, 2).repeat_interleave(scale, 3)
    picture = Image.fromarray(_grid_pixels(enlarged, columns, scale))
    if row_names or titles:
        height, width = enlarged.shape[2:]
        cell = (width + scale, height + scale)
        picture = _with_names(picture, cell, [_short(name) for name in row_names], titles or {})
    atomic_write(path, partial(picture.save, format="PNG"))


def _grid_pixels(images: Tensor, columns: int, line: int) -> Array:
    """Return the pixels (height, width, 3) of images in rows with grey lines.

    The function of torchvision for this takes seconds to import.

    Args:
        images: The images (n, 1 or 3, h, w), with values in [0, 1].
        columns: Number of images in a row.
        line: Width of the lines between and around the images, in pixels.
    """
    n_images, _, height, width = images.shape
    n_across = min(columns, n_images)
    n_down = math.ceil(n_images / n_across)
    grid = torch.full(
        (3, n_down * (height + line) + line, n_across * (width + line) + line), _LINE_GREY
    )
    for number, image in enumerate(images):
        top = line + number // n_across * (height + line)
        left = line + number % n_across * (width + line)
        grid[:, top : top + height, left : left + width] = image
    pixels: Array = (grid.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    return pixels


def _with_names(
    picture: Any, cell: tuple[int, int], row_names: Sequence[str], titles: Mapping[int, str]
) -> Any:
    """Return a picture with margins for names of rows and for titles.

    Names of rows are on the left, titles above.

    Args:
        picture: A picture of Pillow.
        cell: Width and height of an image with its line.
        row_names: Names of the rows.
        titles: Titles by their column.
    """
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    # The font of matplotlib has the letters of most languages.
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    font = ImageFont.truetype(str(path), _FONT_SIZE)
    left = 0
    if row_names:
        left = math.ceil(max(font.getlength(name) for name in row_names)) + 2 * _GAP
    top = 0
    if titles:
        top = _FONT_SIZE + 2 * _GAP
    # A title may be longer than the images below it.
    ends = [left + cell[0] * column + font.getlength(text) for column, text in titles.items()]
    width = math.ceil(max([left + picture.width, *ends]))
    canvas = Image.new("RGB", (width, top + picture.height), "white")
    canvas.paste(picture, (left, top))
    pen = ImageDraw.Draw(canvas)
    for number, name in enumerate(row_names):
        middle = top + cell[1] * (number + 0.5)
        pen.text((left - _GAP, middle), name, fill="black", font=font, anchor="rm")
    for column, text in titles.items():
        pen.text((left + cell[0] * column + 1, top - _GAP), text, "black", font, anchor="ls")
    return canvas


def _short(name: Any) -> str:
    """Return a name on one line, cut where it is long."""
    text = " ".join(str(name).split())
    if len(text) > _LONGEST_NAME:
        text = text[: _LONGEST_NAME - 1] + "…"
    return text


def save_rows(rows: Mapping[str, Tensor], path: Path) -> None:
    """Write a picture with a row of images for each name.

    Args:
        rows: Images (n, channels, h, w) in [0, 1] by the names of their rows, which have as many
            images as the shortest one, and at most ten. Beside images in colour, grey ones are
            written in colour, too.
        path: The file.
    """
    n_across = min(_N_SAMPLES, *(len(images) for images in rows.values()))
    channels = max(images.shape[1] for images in rows.values())
    images_of_rows = [
        images[:n_across].expand(-1, channels, -1, -1).cpu() for images in rows.values()
    ]
    save_grid(torch.cat(images_of_rows), path, n_across, row_names=list(rows))


def save_samples(generator: Generator, path: Path) -> None:
    """Write a picture with a row of ten generated images per class.

    Each row has the name of its class.

    Args:
        generator: A generator of images.
        path: The file.
    """
    labels = torch.arange(generator.n_classes or _N_SAMPLES).repeat_interleave(_N_SAMPLES)
    if not generator.n_classes:
        labels = torch.zeros_like(labels)
    images = draw(generator, labels)
    names: Sequence[Any] = ()
    if generator.n_classes:
        names = generator.class_names or range(generator.n_classes)
    save_grid(images, path, _N_SAMPLES, row_names=names, titles={0: "synthetic"})


def _edges(values: Array) -> Array:
    """Return the edges of the bins, which have a width around equal values, too."""
    low = float(values.min())
    high = float(values.max())
    least = max(1.0, abs(low), abs(high)) * _LEAST_WIDTH
    if high - low < least:
        middle = (low + high) / 2
        low = middle - least
        high = middle + least
    return np.linspace(low, high, _N_BINS + 1)


@dataclass(frozen=True)
class _Histogram:
    """What the histograms of a column have in common.

    Attributes:
        values: Numbers of the cells of every part.
        edges: Edges of the bins.
        ticks: Numbers to mark on the axis, with their names.
    """

    values: list[Array]
    edges: Array
    ticks: list[tuple[float, str]]

    @classmethod
    def of(cls, values: list[Array], column: Column | None) -> "_Histogram":
        """Choose the bins; missing cells of a column of numbers have a bar of their own.

        Their number lies next to the lower bound, so that one bin would have both.

        Args:
            values: Numbers of the cells of every part.
            column: Facts of the column; ``None`` for none.
        """
        edges = _edges(np.concatenate(values))
        if column is None:
            return cls(values, edges, [])
        are_missing = [column.are_missing(part) for part in values]
        present = [part[~missing] for part, missing in zip(values, are_missing, strict=True)]
        n_present = sum(map(len, present))
        has_missing = n_present < sum(map(len, values))
        if column.has_categories or not has_missing or not n_present:
            return cls(values, edges, column.ticks)
        edges = _edges(np.concatenate(present))
        width = edges[1] - edges[0]
        edges = np.concatenate([edges[0] - width * np.array([3, 2, 1]), edges])
        place = float(edges[0] + width / 2)
        moved = []
        for part, missing in zip(values, are_missing, strict=True):
            moved.append(np.where(missing, place, part))
        ticks = [(place if name == "missing" else number, name) for number, name in column.ticks]
        return cls(moved, edges, ticks)


def _mark_cells(axes: Any, ticks: list[tuple[float, str]]) -> None:
    """Name categories, dates and missing cells on the axis of a column.

    At most twelve of them are named.
    """
    if not ticks:
        return
    step = math.ceil(len(ticks) / _MOST_TICKS)
    marks = ticks[::step]
    names = [textwrap.shorten(name, _TICK_WIDTH, placeholder="...") or name for _, name in marks]
    style: dict[str, Any] = dict(_AS_IT_IS)
    if len(names) > 2 and len("".join(names)) > _TICK_WIDTH:
        style |= {"rotation": 30, "ha": "right", "rotation_mode": "anchor", "fontsize": 8}
    if len(names) > _FEW_TICKS:
        style |= {"rotation": 50, "fontsize": 7}
    axes.set_xticks([number for number, _ in marks], names, **style)


def _title(name: Any, mark: str = "") -> str:
    """Return the title of a column, whose name is cut in the middle where it is long.

    Names of one table often differ at their ends.

    Args:
        name: Name of the column.
        mark: What follows it.
    """
    text = " ".join(str(name).split())
    n_most = _TITLE_WIDTH - len(mark)
    if len(text) > n_most:
        n_start = (n_most - 1) // 2
        text = f"{text[:n_start]}…{text[n_start + 1 - n_most :]}"
    return text + mark


def save_columns(
    path: Path,
    parts: dict[str, Array],
    names: Sequence[Any] | None = None,
    table: Table | None = None,
) -> None:
    """Write a picture of the first columns of rows.

    It has the histograms of all parts, one on another.

    Args:
        path: The file.
        parts: Rows (n, d) by their names in the legend.
        names: Names of the columns.
        table: Facts of the columns, which name categories, dates and missing cells on the axes.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import

    canvas = FigureCanvasAgg(draw_columns(parts, names, table))
    atomic_write(path, canvas.print_png)


def draw_columns(
    parts: dict[str, Array],
    names: Sequence[Any] | None = None,
    table: Table | None = None,
) -> "Figure":
    """Return the picture of :func:`save_columns`; its arguments are the same."""
    from matplotlib.figure import Figure  # slow to import

    all_rows = [np.asarray(rows, dtype=float) for rows in parts.values()]
    n_columns = min(_MAX_COLUMNS, all_rows[0].shape[1])
    n_across = min(_N_ACROSS, n_columns)
    n_down = math.ceil(n_columns / _N_ACROSS)
    size = (_INCHES * max(2, n_across), _INCHES * n_down)
    picture = Figure(figsize=size, dpi=150, layout="constrained")
    all_axes = picture.subplots(n_down, n_across, squeeze=False).flatten()
    for column, axes in enumerate(all_axes[:n_columns]):
        column_facts = None
        if table is not None:
            column_facts = table.included[column]
        histogram = _Histogram.of([rows[:, column] for rows in all_rows], column_facts)
        edges = histogram.edges
        title_mark = ""
        for part, part_values in zip(parts, histogram.values, strict=True):
            style = {"histtype": "stepfilled", "alpha": 0.5, "color": _COLOURS.get(part)}
            axes.hist(part_values, edges, density=True, label=part, **style)
        fullest = max(
            np.histogram(part_values, edges)[0].max() / len(part_values)
            for part_values in histogram.values
        )
        if fullest > _MOST_IN_A_BIN:
            axes.set_yscale("log")
            title_mark = " (log)"
        name = names[column] if names else f"column {column}"
        axes.set_title(_title(name, title_mark), fontsize=11, **_AS_IT_IS)
        axes.locator_params(axis="x", nbins=_MOST_STEPS)
        axes.tick_params(labelsize=10)
        axes.set_yticks([])  # densities
        axes.set_yticks([], minor=True)
        _mark_cells(axes, histogram.ticks)
    for axes in all_axes[n_columns:]:
        axes.set_axis_off()
    if len(parts) > 1:
        handles, labels = all_axes[0].get_legend_handles_labels()
        place = "outside upper center"  # where it covers no histogram
        picture.legend(handles, labels, loc=place, ncols=len(parts), fontsize=10)
    return picture
