"""Rakotomamonjy2021, Figures 4 and 5: images of SWD, DP-SWD-b and DP-MERF, as in the paper; below them ours."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from dpswd.errors import InputError
from experiments.generation.table2 import LABELS, directory_of, evaluate_cells
from experiments.generation.table2_methods import Cell
from experiments.generation.table2_published import run as run_published

PUBLISHED = ("SWD", "DP-SWD-b", "DP-MERF")
OURS: tuple[tuple[str, float | None], ...] = (("without noise", None), ("mixture", 10.0), ("Gaussian", 10.0))


def grid(name: str, dataset: str, out: Path, *, data: Path | None = None, full: bool = False) -> dict[str, Any]:
    """Run the missing cells of Table 2; draw ``NAME.png``; without ``full`` only the lines of ours."""
    lines, rows = [], []
    for method in PUBLISHED if full else ():
        found = run_published(out, data=data, only=dataset, method=method)["rows"]
        rows += [row for row in found if (row["dataset"], row["method"], row["changed"]) == (dataset, method, {})]
        budget = "no privacy" if method == "SWD" else "ε = 10" + (" (unsound)" if method == "DP-SWD-b" else "")
        lines.append((f"{method}\n{budget}", _images(out / "table2_published" / f"{dataset}-{method}-0.npz")))
    results = evaluate_cells([Cell(dataset, *line, 0, full) for line in OURS], out, data)
    for result in results:
        budget = "no privacy" if result["epsilon"] is None else f"ε = {result['epsilon']:g}"
        path = directory_of(out, full=full) / f"{result['name']}.npz"
        lines.append((f"{LABELS[result['method']]}\n{budget}", _images(path)))
        facts = {key: result[key] for key in ("dataset", "method", "epsilon", "sound", "accuracy")}
        rows.append(facts | {"method": LABELS[result["method"]]})
    draw_samples(lines, out / f"{name}.png")
    return {"rows": rows}


def _images(path: Path) -> np.ndarray:
    if not path.exists():
        raise InputError(f"Expected images at {path}, got no file; remove the cell of that name to make them again.")
    with np.load(path) as archive:
        return np.asarray(archive["data"])


def draw_samples(lines: Sequence[tuple[str, np.ndarray]], path: Path, per_class: int = 2) -> None:
    """Draw grey images (n, h, w), ordered by class in tens: ``per_class`` of each class in the line of a method."""
    figure = Figure(figsize=(9, 0.62 * len(lines) + 0.2), layout="constrained")
    for axes, (title, images) in zip(np.atleast_1d(figure.subplots(len(lines), 1)), lines, strict=True):
        each = len(images) // 10
        shown = [images[each * c + i] for c in range(10) for i in range(min(per_class, each))]
        axes.imshow(np.concatenate(shown, axis=1), cmap="gray", vmin=0, vmax=255)
        axes.set_ylabel(title, rotation=0, ha="right", va="center", fontsize=7)
        axes.set_xticks([])
        axes.set_yticks([])
    figure.savefig(path, dpi=100)


EXPERIMENTS = {
    name: (
        f"Rakotomamonjy2021, Figure {name[3:]}: {dataset} images of SWD, DP-SWD-b, DP-MERF, and of ours",
        partial(grid, name, dataset),
    )
    for name, dataset in (("fig4", "MNIST"), ("fig5", "FashionMNIST"))
}
