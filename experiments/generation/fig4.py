"""Rakotomamonjy2021, Figures 4 and 5: images as in the paper, and below them ours.

Those of the paper are by SWD, DP-SWD-b and DP-MERF.
"""

from pathlib import Path

import numpy as np

from dpswd.errors import InputError
from experiments.generation.pictures import Picture, draw_grids, grid
from experiments.generation.table2 import LABELS, Cell, directory_of, evaluate_cells
from experiments.generation.table2_published import table2_published
from experiments.results import Result, Row

N_CLASSES = 10
PER_CLASS = 2
PUBLISHED = {  # and what they guarantee
    "SWD": "no privacy",
    "DP-SWD-b": "ε = 10 (unsound)",
    "DP-MERF": "ε = 10",
}


def fig4(out: Path, *, data: Path | None = None) -> Result:
    """Rakotomamonjy2021, Figure 4: MNIST images of three methods, and of ours."""
    return draw("fig4", "MNIST", out, data)


def fig5(out: Path, *, data: Path | None = None) -> Result:
    """Rakotomamonjy2021, Figure 5: Fashion-MNIST images of three methods, and of ours."""
    return draw("fig5", "FashionMNIST", out, data)


def draw(name: str, dataset: str, out: Path, data: Path | None) -> Result:
    """Run the missing cells of Table 2; draw ``NAME.png``."""
    rows: list[Row] = []
    pictures = []
    for method, budget in PUBLISHED.items():
        rows += table2_published(out, data=data, only=dataset, method=method)["rows"]
        path = out / "table2_published" / f"{dataset}-{method}-0.npz"
        pictures.append([_picture(path, f"{method}: {budget}")])
    ours = [
        Cell(dataset, "without noise", None, 0, full=True),
        Cell(dataset, "mixture", 10.0, 0, full=True),
        Cell(dataset, "Gaussian", 10.0, 0, full=True),
    ]
    for result in evaluate_cells(ours, out, data):
        label = LABELS[result["method"]]
        budget = "no privacy"
        if result["epsilon"] is not None:
            budget = f"ε = {result['epsilon']:g}"
        path = directory_of(out, full=True) / f"{result['name']}.npz"
        pictures.append([_picture(path, f"{label}: {budget}")])
        rows.append(
            {
                "dataset": result["dataset"],
                "method": label,
                "epsilon": result["epsilon"],
                "sound": result["sound"],
                "accuracy": result["accuracy"],
            }
        )
    draw_grids(pictures, out / f"{name}.png")
    return {"rows": rows}


def _picture(path: Path, title: str) -> Picture:
    """Return two images of each class in a line.

    The file has grey images (n, h, w), ten of each class.
    """
    if not path.exists():
        raise InputError(
            f"Expected images at {path}, got no file; "
            "remove the cell of that name to make them again."
        )
    with np.load(path) as archive:
        images = np.asarray(archive["data"])
    height, width = images.shape[1:]
    of_classes = images.reshape(N_CLASSES, -1, height, width)[:, :PER_CLASS]
    tiles = of_classes.reshape(N_CLASSES * PER_CLASS, 1, height, width, 1)
    return Picture(grid(np.repeat(tiles, 3, axis=-1) / 255), title)


EXPERIMENTS = (fig4, fig5)
