"""Picture of the README: real test images and images of a private generator, side by side, with the guarantee."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpswd.estimators import PrivateGenerator
from dpswd.generators import draw
from experiments.generation.training import BENCHMARKS, SHIPPED, load, shipped_constants

HELP = "picture of the README: real and private synthetic images side by side (two minutes; --quick: digits)"

EPSILON, DELTA, PER_CLASS = 10.0, 1e-5, 2
NAMES = {name: dataset for dataset, name in BENCHMARKS.items()}


def run(out: Path, *, quick: bool = False, data: Path | None = None, only: str | None = None) -> dict[str, Any]:
    """Train one generator per data set (``--only mnist,fashion`` for two) and draws ``readme.png``.

    A generator that is found in ``OUT/readme_picture`` is not trained again.
    """
    names = only.split(",") if only else ["digits"] if quick else ["mnist"]
    rows, pairs = [], []
    for name in names:
        real, synthetic, facts = _images(name, data, out / "readme_picture" / name)
        pairs.append((real, synthetic))
        rows.append({"dataset": name, **{key: facts[key] for key in ("epsilon", "delta", "mu", "sound")}})
        print(f"{name:8} epsilon {facts['epsilon']:.2f}, mu {facts['mu']:.3f}")
    title = f"synthetic, ε = {EPSILON:g}, δ = {DELTA:g}, μ = {max(row['mu'] for row in rows):.2f}"
    draw_pairs(pairs, ("real test images", title), out / "readme.png")
    return {"rows": rows}


def _images(name: str, data: Path | None, run_dir: Path) -> tuple[NDArray[Any], NDArray[Any], dict[str, Any]]:
    """Return real test images and synthetic ones (10, PER_CLASS, h, w, 3) in [0, 1], and the guarantee."""
    loaded = load(NAMES[name], data)
    assert loaded.test is not None
    if (saved := run_dir / "generator.pt").exists():
        estimator = PrivateGenerator.load(saved)
    else:
        constants = shipped_constants(SHIPPED[NAMES[name]])
        estimator = PrivateGenerator(EPSILON, DELTA, run_dir=run_dir, verbose=False, **constants)
        estimator.fit(loaded.private()).save(saved)
    order = torch.arange(10).repeat_interleave(PER_CLASS)
    torch.manual_seed(0)
    synthetic = draw(estimator.generator_, order)
    test = loaded.test
    first = torch.cat([torch.nonzero(test.labels == c)[:PER_CLASS, 0] for c in range(10)])
    return _layout(test.floats(first)), _layout(synthetic), estimator.guarantee_


def _layout(images: Tensor) -> NDArray[Any]:
    """Return images (10 * PER_CLASS, c, h, w) as (10, PER_CLASS, h, w, 3)."""
    shown = images.clamp(0, 1).movedim(1, -1).unflatten(0, (10, PER_CLASS)).numpy()
    return np.broadcast_to(shown, (*shown.shape[:4], 3))


def draw_pairs(pairs: list[tuple[NDArray[Any], NDArray[Any]]], titles: tuple[str, str], path: Path) -> None:
    """Draw one column per class, real images in the left panel and synthetic ones in the right panel.

    Args:
        pairs: Images (10, PER_CLASS, h, w, 3) in [0, 1] of each data set, real and synthetic.
        titles: Titles of the two panels.
        path: PNG file.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 0.3 + 0.45 * PER_CLASS * len(pairs)), layout="constrained")
    cells = np.atleast_2d(figure.subplots(len(pairs), 2))
    for line, pair in zip(cells, pairs, strict=True):
        for axes, images in zip(line, pair, strict=True):
            framed = np.pad(images, ((0, 0), (0, 0), (0, 1), (0, 1), (0, 0)), constant_values=1.0)
            n_classes, per_class, height, width, _ = framed.shape
            grid = framed.transpose(1, 2, 0, 3, 4).reshape(per_class * height, n_classes * width, 3)
            axes.imshow(np.clip(grid, 0, 1))
            axes.axis("off")
    for axes, title in zip(cells[0], titles, strict=True):
        axes.set_title(title, fontsize=10)
    figure.savefig(path, dpi=110)
