"""Rakotomamonjy2021, Figure 4: MNIST images of SWD, DP-SWD-b and DP-MERF, as in the paper; below them ours."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpswd.errors import InputError
from experiments.generation.table2 import LABELS, directory_of, evaluate_cells
from experiments.generation.table2_methods import PUBLISHED, Cell

HELP = "Rakotomamonjy2021, Figure 4: MNIST images of SWD, DP-SWD-b, DP-MERF, and of ours"

LINES: tuple[tuple[str, float | None], ...] = (
    ("SWD", None),
    ("DP-SWD-b", 10.0),
    ("DP-MERF as published", 10.0),
    ("without noise", None),
    ("mixture", 10.0),
    ("Gaussian", 10.0),
)


def run(out: Path, *, quick: bool = False, data: Path | None = None, full: bool = False) -> dict[str, Any]:
    """Runs the missing cells of Table 2; draws ``fig4.png``; without ``full`` only the lines of ours."""
    return dict(run_grid(out, "fig4", "MNIST", data, full=full))


def run_grid(out: Path, name: str, dataset: str, data: Path | None, *, full: bool, workers: int | None = None) -> Any:
    """Draws ``NAME.png``, one line for each method, and returns the accuracies that belong to the images."""
    lines = [line for line in LINES if full or line[0] not in PUBLISHED]
    results = evaluate_cells([Cell(dataset, *line, 0, full) for line in lines], out, data, workers)
    runs = directory_of(out, full=full) / "runs"
    draw_samples([(_title(result), _samples(runs / result["run"])) for result in results], out / f"{name}.png")
    kept = ("dataset", "epsilon", "sound")
    return {
        "rows": [
            {"method": LABELS[result["method"]]}
            | {key: result[key] for key in kept}
            | {"steps": result.get("steps")}
            | {f"{classifier}_accuracy": value for classifier, value in result["accuracy"].items()}
            for result in results
        ]
    }


def _title(result: dict[str, Any]) -> str:
    budget = "no privacy" if result["epsilon"] is None else f"ε = {result['epsilon']:g}"
    unsound = " (unsound)" if result["sound"] is False else ""
    steps = f", {result['steps']:,} steps" if "steps" in result else ""
    return f"{LABELS[result['method']]}\n{budget}{unsound}{steps}"


def _samples(run: Path) -> np.ndarray:
    path = run / "samples.npz"
    if not path.exists():
        raise InputError(f"Expected images at {path}, got no file; remove the cell of that name to make them again.")
    with np.load(path) as archive:
        return np.asarray(archive["data"])


def draw_samples(lines: Sequence[tuple[str, np.ndarray]], path: Path, per_class: int = 2) -> None:
    """Draws grey images (n, h, w), ordered by class in tens: ``per_class`` of each class in the line of a method."""
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
