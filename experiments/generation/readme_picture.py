"""Pictures of the front page and of generation.md: random real records beside random private synthetic ones.

``readme.png`` has images of two data sets, columns of Adult and the accuracies of ``table1`` with and without
adaptation; ``generation.png`` has the images of all data sets, also those of ``sample(spread=0.8)``. Draws and the
choice of real images have seed 0 and nothing is left out; only the noise of the releases is fresh.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from dpswd.estimators.generator import PrivateGenerator
from dpswd.networks.generator import draw
from experiments.generation import tables_adult
from experiments.generation.training import BENCHMARKS, SHIPPED, load, shipped_constants
from experiments.plots import figure
from experiments.results import RESULTS

EPSILON, DELTA, PER_CLASS, SPREAD = 10.0, 1e-5, 8, 0.8
DATASETS, IN_README = ("mnist", "fashion", "usps", "cifar10"), 2
NAMES = {name: dataset for dataset, name in BENCHMARKS.items()}
SHOWN = ("age", "education-num", "hours-per-week")
PROBLEMS = ("MNIST-USPS", "USPS-MNIST")

Array = NDArray[Any]


def run(out: Path, *, quick: bool = False, data: Path | None = None) -> dict[str, Any]:
    """Pictures of the README and of generation.md: real and private synthetic records (ten minutes)."""
    names = ["digits"] if quick else list(DATASETS)
    grids, rows = [], []
    for name in names:
        images, facts = _images(name, data, out / "readme_picture" / name)
        grids.append(images)
        rows.append(
            {"dataset": name, **{key: facts[key] for key in ("epsilon", "delta", "mu", "sound")}}
        )
        print(f"{name:8} epsilon {facts['epsilon']:.2f}, mu {facts['mu']:.3f}")
    titles = (f"synthetic, ε = {EPSILON:g}", f"the same, spread = {SPREAD:g}")
    lines = [
        list(zip(pictures, (f"{NAMES[name]}, test images", *titles), strict=True))
        for pictures, name in zip(grids, names, strict=True)
    ]
    draw_grids(lines, out / "generation.png")
    columns = None if quick else _columns(data, out / "readme_picture" / "adult")
    draw_front(grids[:IN_README], names[:IN_README], columns, out / "readme.png")
    return {"rows": rows}


def _fitted(run_dir: Path, load_records: Any, delta: float, **facts: Any) -> PrivateGenerator:
    """Return the generator of a run directory, or fit one there."""
    if (saved := run_dir / "generator.pt").exists():
        return PrivateGenerator.load(saved)
    estimator = PrivateGenerator(EPSILON, delta, run_dir=run_dir, verbose=False, **facts)
    estimator.fit(*load_records()).save(saved)
    return estimator


def _images(name: str, data: Path | None, run_dir: Path) -> tuple[list[Array], dict[str, Any]]:
    """Return grids of real test images, synthetic ones and those of a smaller spread, and the guarantee."""
    loaded = load(NAMES[name], data)
    assert loaded.test is not None
    test = loaded.test
    estimator = _fitted(
        run_dir, lambda: (loaded.private(),), DELTA, **shipped_constants(SHIPPED[NAMES[name]])
    )
    order, choice = torch.arange(10).repeat_interleave(PER_CLASS), np.random.default_rng(0)
    real = [
        choice.choice(torch.nonzero(test.labels == c)[:, 0], PER_CLASS, replace=False)
        for c in range(10)
    ]
    drawn = []
    for spread in (1.0, SPREAD):
        torch.manual_seed(0)
        drawn.append(draw(estimator.generator_, order, spread))
    shown = [test.floats(torch.from_numpy(np.concatenate(real))), *drawn]
    return [grid(_tiles(images)) for images in shown], estimator.guarantee_


def _tiles(images: Tensor) -> Array:
    """Return images (10 * PER_CLASS, c, h, w) as (10, PER_CLASS, h, w, 3)."""
    tiles = images.clamp(0, 1).movedim(1, -1).unflatten(0, (10, PER_CLASS)).numpy()
    return np.broadcast_to(tiles, (*tiles.shape[:4], 3))


def grid(tiles: Array) -> Array:
    """Return images (columns, rows, h, w, 3) in [0, 1] as one picture with white margins."""
    tiles = np.pad(tiles, ((0, 0), (0, 0), (0, 1), (0, 1), (0, 0)), constant_values=1.0)
    columns, rows, height, width, _ = tiles.shape
    return tiles.transpose(1, 2, 0, 3, 4).reshape(rows * height, columns * width, 3)


def _columns(data: Path | None, run_dir: Path) -> dict[str, tuple[Array, Array]]:
    """Return real and synthetic values of columns of Adult."""
    rows, labels, *_ = tables_adult.adult(0, data)
    facts = {"bounds": tables_adult.BOUNDS, "kinds": tables_adult.KINDS, "classes": [0, 1]}
    made = _fitted(run_dir, lambda: (rows.astype(np.float32), labels), tables_adult.DELTA, **facts)
    synthetic, _ = made.sample(len(rows), proportions="released")
    places = [tables_adult.COLUMNS.index(name) for name in SHOWN]
    return {name: (rows[:, j], synthetic[:, j]) for name, j in zip(SHOWN, places, strict=True)}


def draw_grids(lines: Sequence[Sequence[tuple[Array, str]]], path: Path) -> None:
    """Draw lines of pictures (h, w, 3) with their titles."""
    height, width, _ = lines[0][0][0].shape
    columns = len(lines[0])
    size = 10, len(lines) * (0.3 + 10 / columns * height / width)
    with figure(path, *size, len(lines), columns, dpi=110, squeeze=False) as panels:
        for line, cells in zip(lines, panels, strict=True):
            for (picture, title), axes in zip(line, cells, strict=True):
                _show(axes, picture, title)


def draw_front(
    grids: list[list[Array]],
    names: list[str],
    columns: dict[str, tuple[Array, Array]] | None,
    path: Path,
) -> None:
    """Draw images, and below them columns of a table and an adaptation, if ``columns`` are given."""
    whole = Figure(figsize=(11, 4.4 if columns else 2.6), layout="constrained")
    top, bottom = whole.subfigures(2, 1, height_ratios=(2.5, 1.9)) if columns else (whole, None)
    cells = np.atleast_1d(top.subplots(1, 2 * len(grids)))
    for k, (pictures, name) in enumerate(zip(grids, names, strict=True)):
        _show(cells[2 * k], pictures[0], f"{NAMES[name]}: real")
        _show(cells[2 * k + 1], pictures[1], "synthetic")
    if bottom is not None and columns is not None:
        *charts, bars = bottom.subplots(
            1, len(columns) + 1, width_ratios=[1] * len(columns) + [1.7]
        )
        for axes, (name, pair) in zip(charts, columns.items(), strict=True):
            edges = (
                np.arange(pair[0].min() - 0.5, pair[0].max() + 1) if name == "education-num" else 30
            )
            edges = np.histogram_bin_edges(pair[0], edges)
            axes.hist(pair[0], edges, density=True, color="0.8", label="real")
            axes.hist(
                pair[1], edges, density=True, histtype="step", color="tab:red", label="synthetic"
            )
            axes.set_title(f"Adult: {name}", fontsize=9)
            axes.set_yticks([])
        charts[0].legend(fontsize=7, frameon=False, loc="upper right")
        _bars(bars)
    whole.savefig(path, dpi=110)


def _show(axes: Any, picture: Array, title: str) -> None:
    axes.imshow(np.clip(picture, 0, 1))
    axes.axis("off")
    axes.set_title(title, fontsize=10)


def _bars(axes: Any) -> None:
    """Draw accuracies on the target without adaptation and with a private one, from ``docs/results/table1.json``."""
    rows = json.loads((RESULTS / "table1.json").read_text())["rows"]
    ticks = []
    for k, problem in enumerate(PROBLEMS):
        for j, (method, epsilon) in enumerate(
            (("source only", None), ("DP-SWD, adapter", EPSILON))
        ):
            key = (f"{problem}, as they are", method, epsilon)
            (row,) = (row for row in rows if (row["dataset"], row["method"], row["epsilon"]) == key)
            place = 3 * k + j
            axes.barh(place, row["mean"], color=("0.8", "tab:red")[j], height=0.9)
            axes.text(
                row["mean"] - 1, place, f"{row['mean']:.0f} %", va="center", ha="right", fontsize=8
            )
            ticks.append(
                (
                    place,
                    f"{problem.replace('-', ' → ')}\n{method}" if j == 0 else "private adaptation",
                )
            )
    axes.set_yticks(*zip(*ticks, strict=True), fontsize=8)
    axes.set_xlim(0, 100)
    axes.invert_yaxis()
    axes.set_title("Adaptation: accuracy on private records", fontsize=9)
