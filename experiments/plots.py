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
    """Yield the axes of a new figure, or an array of this shape of them, and write the figure to the path."""
    made = Figure(figsize=(width, height), layout="constrained")
    yield made.subplots(*shape, **options)
    made.savefig(path, dpi=dpi)
