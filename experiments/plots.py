"""Figures of experiments."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure


@contextmanager
def figure(
    path: Path, width: float, height: float, *shape: int, dpi: int = 80, **options: Any
) -> Iterator[Any]:
    """Yield the axes of a new figure, and write the figure to the path at the end.

    Args:
        path: path of the PNG.
        width: width in inches.
        height: height in inches.
        shape: numbers of lines and columns of an array of axes; one pair of axes without it.
        dpi: pixels per inch.
        options: further arguments of ``Figure.subplots``, as ``sharey=True``.
    """
    drawing = Figure(figsize=(width, height), layout="constrained")
    yield drawing.subplots(*shape, **options)
    drawing.savefig(path, dpi=dpi)
