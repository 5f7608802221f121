"""Grids of generated images from the cells of Table 2: one line per method (helper of fig2, fig4 and fig5)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpswd.errors import InputError
from experiments.generation.table2 import LABELS
from experiments.generation.table2_cells import directory_of, run_cells
from experiments.generation.table2_methods import Cell

__all__ = ["draw_samples", "run_grid"]

Line = tuple[str, float | None]  # method and budget


def run_grid(
    out: Path, name: str, dataset: str, lines: Sequence[Line], data: Path | None, *, full: bool
) -> dict[str, Any]:
    """Makes the cells that are missing (those of Table 2 are used) and draws ``NAME.png``.

    Returns:
        What an experiment returns: the accuracies that belong to the pictures.
    """
    cells = [Cell(dataset, method, epsilon, 0, full) for method, epsilon in lines]
    directory = directory_of(out, full=full)
    results = run_cells(cells, directory, data)
    pictures = [(_title(result), _samples(directory / "runs", result["run"])) for result in results]
    draw_samples(pictures, out / f"{name}.png")
    return {
        "rows": [
            {
                "dataset": dataset,
                "method": LABELS[result["method"]],
                "epsilon": result["epsilon"],
                "sound": result["sound"],
                **{f"{classifier}_accuracy": value for classifier, value in result["accuracy"].items()},
            }
            for result in results
        ]
    }


def _title(result: dict[str, Any]) -> str:
    budget = "no privacy" if result["epsilon"] is None else f"ε = {result['epsilon']:g}"
    return f"{LABELS[result['method']]}\n{budget}" + (" (unsound)" if result["sound"] is False else "")


def _samples(runs: Path, name: str) -> np.ndarray:
    path = runs / name / "samples.npz"
    if not path.exists():
        raise InputError(f"Expected pictures at {path}, got none; remove the cell of that name to make them again.")
    with np.load(path) as archive:
        return np.asarray(archive["data"])


def draw_samples(lines: Sequence[tuple[str, np.ndarray]], path: Path, per_class: int = 2) -> None:
    """Draws grey images (n, h, w), ordered by class in tens, ``per_class`` of each class in a line per method."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 0.62 * len(lines) + 0.2), layout="constrained")
    for axes, (title, images) in zip(np.atleast_1d(figure.subplots(len(lines), 1)), lines, strict=True):
        each = len(images) // 10
        shown = [images[each * c + i] for c in range(10) for i in range(min(per_class, each))]
        axes.imshow(np.concatenate(shown, axis=1), cmap="gray", vmin=0, vmax=255)
        axes.set_ylabel(title, rotation=0, ha="right", va="center", fontsize=7)
        axes.set_xticks([])
        axes.set_yticks([])
    figure.savefig(path, dpi=100)
