"""Photographs: the effect of spread, residual and contrast on faces.

The experiment also shows how many faces are needed. Faces are those of CelebA, at 32 x 32 pixels.
Each variant has 1,000 synthetic faces, judged against 1,000 test faces. ``OUT/photographs.png`` has
eight faces of every variant, ``OUT/photographs_numbers.png`` those of generators of more and more
faces, in colour and in grey.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpswd._progress import say
from dpswd.data import benchmark
from dpswd.evaluation.fidelity import compare
from dpswd.evaluation.images import image_features, random_convolutions
from dpswd.evaluation.two_sample import two_sample_test
from dpswd.files.pictures import save_grid
from dpswd.networks.generator import Generator, draw
from dpswd.records import PrivateRecords, Records
from experiments.generation.training import train_mixture
from experiments.results import Result, Row

EPSILON = 10.0
NUMBERS = (300, 600, 1200, 2500, 4000)
N_JUDGED = 4000
N_SYNTHETIC = 1000
QUICK_SYNTHETIC = 100
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "half of the residual": {"residual_amplitude": 0.3},
    "no residual": {"residual": False},
    "one contrast": {"contrast": 0.0},
}
SPREADS = (1.0, 0.7, 0.4)
_N_SHOWN = 8


def run(out: Path, *, quick: bool = False, data: Path | None = None) -> Result:
    """Variants of photographs by eye and by figures (ten minutes)."""
    loaded = benchmark("celeba", data, public=True)
    assert loaded.test is not None
    test = F.avg_pool2d(loaded.test.floats(), 2)
    order = torch.randperm(len(loaded.train), generator=torch.Generator().manual_seed(0))
    train = F.avg_pool2d(loaded.train.floats(order), 2)
    variants = dict(VARIANTS)
    n_synthetic = N_SYNTHETIC
    numbers = NUMBERS
    if quick:
        variants = {"no residual": VARIANTS["no residual"]}
        n_synthetic = QUICK_SYNTHETIC
        numbers = NUMBERS[:1]
    out.mkdir(parents=True, exist_ok=True)
    _save_numbers(out / "photographs_numbers.png", train, numbers)
    rows: list[Row] = [{"variant": "other real faces", **_judge(train[:n_synthetic], test)}]
    pictures = {"real": train[:_N_SHOWN]}
    for name, options in variants.items():
        generator = _fitted(train[:N_JUDGED], **options)
        for spread in SPREADS:
            images = _drawn(generator, n_synthetic, spread)
            row: Row = {"variant": name, "spread": spread, **_judge(images, test)}
            say(f"{row}")
            rows.append(row)
            if spread != SPREADS[1]:
                pictures[f"{name}, {spread:g}"] = images[:_N_SHOWN]
    images = torch.cat([*pictures.values()])
    save_grid(images, out / "photographs.png", _N_SHOWN, row_names=[*pictures])
    return {"rows": rows}


def _save_numbers(path: Path, train: Tensor, numbers: tuple[int, ...]) -> None:
    """Write a picture with a row of faces for each number of private faces.

    Below the faces in colour are those of generators of grey faces.
    """
    pictures = {"real": train[:_N_SHOWN]}
    for n in numbers:
        pictures[f"{n:,} faces"] = _drawn(_fitted(train[:n]), _N_SHOWN, 1.0)
    for n in numbers:
        grey = _fitted(train[:n].mean(1, keepdim=True))
        pictures[f"{n:,} grey faces"] = _drawn(grey, _N_SHOWN, 1.0).expand(-1, 3, -1, -1)
    save_grid(torch.cat([*pictures.values()]), path, _N_SHOWN, row_names=[*pictures])


def _fitted(images: Tensor, **options: Any) -> Generator:
    """Return a generator of images (n, 3 or 1, h, w)."""
    records = PrivateRecords.from_values(images, None, name="faces")
    with tempfile.TemporaryDirectory() as directory:
        constants = Path(directory) / "constants.yaml"
        constants.write_text("")
        run_dir = Path(directory) / "run"
        trained = train_mixture(records, constants, run_dir, epsilon=EPSILON, seed=0, **options)
    return trained.generator


def _drawn(generator: Generator, n: int, spread: float) -> Tensor:
    """Return n synthetic images, from the same codes at every call."""
    torch.manual_seed(0)
    return draw(generator, torch.zeros(n, dtype=torch.int64), spread)


def _judge(images: Tensor, real: Tensor) -> Row:
    """Return Fréchet distance, precision, recall and AUC of images against real ones."""
    features = [image_features(random_convolutions, part) for part in (images, real)]
    figures = compare(*features, columns=False)
    records = [Records(part, torch.zeros(len(part)).long()) for part in (images, real)]
    areas = two_sample_test(*records)
    row = {name: figures[name] for name in ("frechet", "precision", "recall")}
    return row | {"auc": areas["cnn"]}
