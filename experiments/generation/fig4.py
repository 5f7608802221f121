"""Rakotomamonjy2021, Figures 4 and 5: images of SWD, DP-SWD-b and DP-MERF, as in the paper; below them ours."""

from pathlib import Path
from typing import Any

import numpy as np

from dpswd.errors import InputError
from experiments.generation.readme_picture import draw_grids, grid
from experiments.generation.table2 import LABELS, Cell, directory_of, evaluate_cells
from experiments.generation.table2_published import table2_published

PUBLISHED = ("SWD", "DP-SWD-b", "DP-MERF")
OURS: tuple[tuple[str, float | None], ...] = (
    ("without noise", None),
    ("mixture", 10.0),
    ("Gaussian", 10.0),
)


def draw(name: str, dataset: str, out: Path, data: Path | None) -> dict[str, Any]:
    """Run the missing cells of Table 2; draw ``NAME.png``."""
    lines, rows = [], []
    for method in PUBLISHED:
        rows += table2_published(out, data=data, only=dataset, method=method)["rows"]
        budget = (
            "no privacy"
            if method == "SWD"
            else "ε = 10" + (" (unsound)" if method == "DP-SWD-b" else "")
        )
        lines.append(
            (f"{method}: {budget}", _images(out / "table2_published" / f"{dataset}-{method}-0.npz"))
        )
    results = evaluate_cells([Cell(dataset, *line, 0, full=True) for line in OURS], out, data)
    for result in results:
        budget = "no privacy" if result["epsilon"] is None else f"ε = {result['epsilon']:g}"
        path = directory_of(out, full=True) / f"{result['name']}.npz"
        lines.append((f"{LABELS[result['method']]}: {budget}", _images(path)))
        facts = {key: result[key] for key in ("dataset", "method", "epsilon", "sound", "accuracy")}
        rows.append(facts | {"method": LABELS[result["method"]]})
    draw_grids([[(grid(_tiles(images)), title)] for title, images in lines], out / f"{name}.png")
    return {"rows": rows}


def _images(path: Path) -> np.ndarray:
    if not path.exists():
        raise InputError(
            f"Expected images at {path}, got no file; remove the cell of that name to make them again."
        )
    with np.load(path) as archive:
        return np.asarray(archive["data"])


def _tiles(images: np.ndarray) -> np.ndarray:
    """Return two images of each class in a line (20, 1, h, w, 3), from grey images (n, h, w) in tens by class."""
    shown = images.reshape(10, -1, *images.shape[1:])[:, :2].reshape(20, 1, *images.shape[1:], 1)
    return np.repeat(shown, 3, axis=-1) / 255


def fig4(out: Path, *, data: Path | None = None) -> dict[str, Any]:
    """Rakotomamonjy2021, Figure 4: MNIST images of SWD, DP-SWD-b, DP-MERF, and of ours."""
    return draw("fig4", "MNIST", out, data)


def fig5(out: Path, *, data: Path | None = None) -> dict[str, Any]:
    """Rakotomamonjy2021, Figure 5: Fashion-MNIST images of SWD, DP-SWD-b, DP-MERF, and of ours."""
    return draw("fig5", "FashionMNIST", out, data)


EXPERIMENTS = (fig4, fig5)
