"""Pictures of the front page: real records beside private synthetic ones.

``readme.png`` has images of two data sets, digits also by shapes, columns of Adult and the
accuracies of ``adaptation_module`` with and without adaptation; ``generation.png`` has the images
of all data sets, also those of ``sample(spread=0.8)``. Draws and the choice of real images have
seed 0 and nothing is left out; only the noise of the releases is fresh.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from dpswd.data import Benchmark
from dpswd.estimators.generator import PrivateGenerator
from dpswd.networks.generator import draw
from dpswd.records import Records
from experiments.generation import tables_adult
from experiments.generation.pictures import Picture, draw_grids, grid, show
from experiments.generation.training import (
    BENCHMARKS,
    CONFIGS,
    SHIPPED,
    load,
    shipped_constants,
)
from experiments.results import Result, Row, read_result
from experiments.tables.values import select

EPSILON = 10.0
DELTA = 1e-5
N_CLASSES = 10
PER_CLASS = 8
SPREAD = 0.8
DATASETS: tuple[str, ...] = ("MNIST", "FashionMNIST", "USPS", "CIFAR10")
N_IN_README = 2  # data sets
OF_SHAPES = "MNIST"  # the data set that is drawn by shapes, too
COLUMNS = ("age", "education-num", "hours-per-week")  # of Adult
FEW_VALUES = ("education-num",)  # a bin for each value
N_BINS = 30  # of the other columns
PROBLEMS = ("MNIST-USPS", "USPS-MNIST")

Array = NDArray[Any]


@dataclass(frozen=True)
class Images:
    """Grids of real test images, of synthetic ones and of those with a smaller spread."""

    dataset: str
    real: Array
    synthetic: Array
    narrow: Array
    shapes: Array | None = None  # by signed distances, of digits

    def line(self) -> list[Picture]:
        """Return the pictures with their titles."""
        return [
            Picture(self.real, f"{self.dataset}, test images"),
            Picture(self.synthetic, f"synthetic, ε = {EPSILON:g}"),
            Picture(self.narrow, f"the same, spread = {SPREAD:g}"),
        ]


@dataclass(frozen=True)
class Column:
    """Real and synthetic values of a column of Adult."""

    name: str
    real: Array
    synthetic: Array


def run(out: Path, *, quick: bool = False, data: Path | None = None) -> Result:
    """Pictures of the README and of generation.md (ten minutes)."""
    names = DATASETS
    columns = None
    if quick:
        names = ("digits",)
    images = []
    rows: list[Row] = []
    for name in names:
        loaded = load(name, data)
        run_dir = out / "readme_picture" / BENCHMARKS[name]
        estimator = _fitted_to_images(loaded, SHIPPED[name], run_dir)
        guarantee = estimator.guarantee_
        dataset_images = _images(name, loaded, estimator)
        if name == OF_SHAPES:
            by_shapes = _fitted_to_images(loaded, CONFIGS / "mnist_shapes.yaml", run_dir / "shapes")
            shape_images = _images(name, loaded, by_shapes)
            dataset_images = replace(dataset_images, shapes=shape_images.synthetic)
        images.append(dataset_images)
        row = {"dataset": BENCHMARKS[name]}
        for key in ("epsilon", "delta", "mu", "sound"):
            row[key] = guarantee[key]
        rows.append(row)
        spent = f"epsilon {guarantee['epsilon']:.2f}, mu {guarantee['mu']:.3f}"
        print(f"{BENCHMARKS[name]:8} {spent}")
    draw_grids([dataset_images.line() for dataset_images in images], out / "generation.png")
    if not quick:
        columns = _columns(data, out / "readme_picture" / "adult")
    draw_front(images[:N_IN_README], columns, out / "readme.png")
    return {"rows": rows}


# Images -------------------------------------------------------------------------------------------


def _fitted_to_images(loaded: Benchmark, constants: Path, run_dir: Path) -> PrivateGenerator:
    """Return the generator of a run directory, or fit one to the images there."""
    saved = run_dir / "generator.pt"
    if saved.exists():
        return PrivateGenerator.load(saved).set_params(random_state=0)
    options = shipped_constants(constants)
    estimator = PrivateGenerator(EPSILON, DELTA, run_dir=run_dir, verbose=False, **options)
    estimator.fit(loaded.private())
    estimator.save(saved)
    return estimator


def _images(name: str, loaded: Benchmark, estimator: PrivateGenerator) -> Images:
    """Return images of a data set and of its generator, in order of the classes."""
    assert loaded.test is not None
    labels = torch.arange(N_CLASSES).repeat_interleave(PER_CLASS)
    real = loaded.test.floats(_random_of_each_class(loaded.test))
    torch.manual_seed(0)
    synthetic = draw(estimator.generator_, labels, 1.0)
    torch.manual_seed(0)
    narrow = draw(estimator.generator_, labels, SPREAD)
    return Images(name, grid(_tiles(real)), grid(_tiles(synthetic)), grid(_tiles(narrow)))


def _random_of_each_class(records: Records) -> Tensor:
    """Return the numbers of ``PER_CLASS`` random records of each class."""
    rng = np.random.default_rng(0)
    numbers = []
    for c in range(N_CLASSES):
        class_indices = torch.nonzero(records.labels == c)[:, 0]
        numbers.append(rng.choice(class_indices, PER_CLASS, replace=False))
    return torch.from_numpy(np.concatenate(numbers))


def _tiles(images: Tensor) -> Array:
    """Return images (10 * PER_CLASS, c, h, w) as (10, PER_CLASS, h, w, 3)."""
    pixels = images.clamp(0, 1).movedim(1, -1)
    tiles = pixels.unflatten(0, (N_CLASSES, PER_CLASS)).numpy()
    return np.broadcast_to(tiles, (*tiles.shape[:4], 3))


# Front page ---------------------------------------------------------------------------------------


def _columns(data: Path | None, run_dir: Path) -> list[Column]:
    """Return real and synthetic values of columns of Adult."""
    adult = tables_adult.adult(0, data)
    estimator = _fitted_to_adult(adult, run_dir)
    synthetic, _ = estimator.sample(len(adult.rows), proportions="released")
    columns = []
    for name in COLUMNS:
        j = tables_adult.COLUMNS.index(name)
        columns.append(Column(name, adult.rows[:, j], synthetic[:, j]))
    return columns


def _fitted_to_adult(adult: tables_adult.Split, run_dir: Path) -> PrivateGenerator:
    """Return the generator of a run directory, or fit one to Adult there."""
    saved = run_dir / "generator.pt"
    if saved.exists():
        return PrivateGenerator.load(saved).set_params(random_state=0)
    estimator = PrivateGenerator(
        EPSILON,
        tables_adult.DELTA,
        run_dir=run_dir,
        verbose=False,
        bounds=tables_adult.BOUNDS,
        kinds=tables_adult.KINDS,
        classes=[0, 1],
    )
    estimator.fit(adult.rows.astype(np.float32), adult.labels)
    estimator.save(saved)
    return estimator


def draw_front(images: list[Images], columns: list[Column] | None, path: Path) -> None:
    """Draw images, and below them columns of a table and an adaptation.

    Without ``columns`` there are images only.
    """
    if columns is None:
        whole = Figure(figsize=(11, 2.6), layout="constrained")
        _draw_images(whole, images)
    else:
        whole = Figure(figsize=(11, 4.4), layout="constrained")
        parts: Any = whole.subfigures(2, 1, height_ratios=(2.5, 1.9))
        top, bottom = parts
        _draw_images(top, images)
        widths = [1.0] * len(columns) + [1.7]
        *charts, bars = bottom.subplots(1, len(columns) + 1, width_ratios=widths)
        for axes, column in zip(charts, columns, strict=True):
            _draw_column(axes, column)
        charts[0].legend(fontsize=7, frameon=False, loc="upper right")
        _draw_adaptation(bars)
    whole.savefig(path, dpi=110)


def _draw_images(whole: Any, images: list[Images]) -> None:
    """Draw real and synthetic images of every data set in a line."""
    pictures = []
    for dataset_images in images:
        pictures.append(Picture(dataset_images.real, f"{dataset_images.dataset}: real"))
        if dataset_images.shapes is not None:
            pictures.append(Picture(dataset_images.shapes, "synthetic, as shapes"))
            pictures.append(Picture(dataset_images.synthetic, "synthetic, as pixels"))
        else:
            pictures.append(Picture(dataset_images.synthetic, "synthetic"))
    panels = np.atleast_1d(whole.subplots(1, len(pictures)))
    for panel, picture in zip(panels, pictures, strict=True):
        show(panel, picture)


def _draw_column(axes: Any, column: Column) -> None:
    """Draw histograms of real and synthetic values."""
    bins: Any = N_BINS
    if column.name in FEW_VALUES:
        bins = np.arange(column.real.min() - 0.5, column.real.max() + 1)
    edges = np.histogram_bin_edges(column.real, bins)
    axes.hist(column.real, edges, density=True, color="0.8", label="real")
    style = {"histtype": "step", "color": "tab:red"}
    axes.hist(column.synthetic, edges, density=True, label="synthetic", **style)
    axes.set_title(f"Adult: {column.name}", fontsize=9)
    axes.set_yticks([])


def _draw_adaptation(axes: Any) -> None:
    """Draw accuracies on the target without adaptation and with a private one."""
    rows = read_result("adaptation_module")["rows"]
    places = []
    labels = []
    for k, problem in enumerate(PROBLEMS):
        of_problem = select(rows, dataset=problem, epsilon=EPSILON)
        (plain,) = select(of_problem, method="source only, same training")
        _draw_bar(axes, 3 * k, plain["mean"], "0.8")
        (private,) = select(of_problem, method="DP-SWD, AdaptationModule")
        _draw_bar(axes, 3 * k + 1, private["mean"], "tab:red")
        places += [3 * k, 3 * k + 1]
        labels += [f"{problem.replace('-', ' → ')}\nsource only", "private adaptation"]
    axes.set_yticks(places, labels, fontsize=8)
    axes.set_xlim(0, 100)
    axes.invert_yaxis()
    axes.set_title("Adaptation: accuracy on private records", fontsize=9)


def _draw_bar(axes: Any, place: int, accuracy: float, colour: str) -> None:
    axes.barh(place, accuracy, color=colour, height=0.9)
    axes.text(accuracy - 1, place, f"{accuracy:.0f} %", va="center", ha="right", fontsize=8)
