"""Picture of the README: real test images and images of a private generator, side by side, with the guarantee."""

from pathlib import Path
from typing import Any

import numpy as np
import yaml  # type: ignore[import-untyped]
from numpy.typing import NDArray

from dpswd.data.base import PrivateData
from dpswd.data.benchmarks import CIFAR10, MNIST, Digits, FashionMNIST
from dpswd.estimators import PrivateGenerator
from experiments.generation.train_config import CONFIGS

HELP = "picture of the README: real and private synthetic images side by side (two minutes; --quick: digits)"

EPSILON, DELTA, PER_CLASS = 10.0, 1e-5, 2
DATA: dict[str, type[PrivateData]] = {"mnist": MNIST, "fashion": FashionMNIST, "cifar10": CIFAR10, "digits": Digits}


def run(out: Path, *, quick: bool = False, data: Path | None = None, only: str | None = None) -> dict[str, Any]:
    """Train one generator per data set (``--only mnist,fashion`` for two) and draw ``readme.png``.

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
    """Real test images and synthetic ones (10, PER_CLASS, h, w, 3) in [0, 1], and the guarantee."""
    records = DATA[name](root=None if data is None else str(data))
    records.setup("fit")
    private, test = records.private, records.test
    assert test is not None
    images = private.floats().movedim(1, -1).squeeze(-1).numpy()
    if (saved := run_dir / "generator.pt").exists():
        generator = PrivateGenerator.load(saved)
    else:
        generator = PrivateGenerator(EPSILON, DELTA, run_dir=run_dir, verbose=False, **_constants(name))
        generator.fit(images, private.labels.numpy()).save(saved)
    order = np.arange(10).repeat(PER_CLASS)
    synthetic, _ = generator.sample(len(order), order)
    first = np.concatenate([np.flatnonzero(test.labels.numpy() == c)[:PER_CLASS] for c in range(10)])
    return _layout(test.floats()[first].movedim(1, -1).numpy()), _layout(synthetic), generator.guarantee_


def _constants(name: str) -> dict[str, Any]:
    """The public constants of the shipped config that the estimator accepts."""
    path = CONFIGS / f"{name}.yaml"
    if not path.exists():
        path = Path(__file__).parent / f"{name}.yaml"
    stated = yaml.safe_load(path.read_text())["model"].get("init_args", {})
    return {key: value for key, value in stated.items() if key in PrivateGenerator().get_params()}


def _layout(images: NDArray[Any]) -> NDArray[Any]:
    """Grey or colour images (10 * PER_CLASS, h, w[, c]) as (10, PER_CLASS, h, w, 3)."""
    images = images.reshape(10, PER_CLASS, *images.shape[1:3], -1)
    return np.broadcast_to(images, (*images.shape[:4], 3))


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
