"""Rakotomamonjy2021, Figure 6: CelebA faces by the default generator, without privacy and with it.

The last line has the noise of the paper's 162,000 records: the private faces again and again, so that it protects no
face. ``fig6_published`` has the published algorithm (docs/celeba.md).
"""

import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpswd._arrays import Layout
from dpswd.data import benchmark
from dpswd.generators import draw as generate
from dpswd.generators import to_bytes
from dpswd.records import PrivateRecords, Records, Stored
from dpswd.report.render import write_report
from experiments.generation.frechet import check_weights, fidelity
from experiments.generation.training import Made, train_mixture

HELP = "Rakotomamonjy2021, Figure 6: CelebA 64 x 64 by ours (--weights PATH: FID; minutes)"

EPSILON, DELTA = 10.0, 1e-6
CONSTANTS = Path(__file__).with_name("celeba.yaml")
N_PAPER = 162_000
VARIANTS = (  # name, epsilon, are the faces repeated?
    ("no privacy", None, False),
    ("ours", EPSILON, False),
    ("ours, noise of N = 162,000", EPSILON, True),
)
SHOWN = 16
N_GENERATED = 10_000


def repeated(faces: Records) -> PrivateRecords:
    """Return a handle of the private faces again and again, ``N_PAPER`` records in all.

    Releases have the noise of so many records. They protect a record, but a face is in them 40 times: NOT PRIVATE.
    """
    shape = (N_PAPER, *faces.values.shape[1:])
    stored = Stored(lambda index: faces.values[index % len(faces)], shape, faces.values.dtype, key="repeated")
    return PrivateRecords.from_values(stored, None, classes=None, layout=Layout.of(faces.values), name="CelebA")


def run(out: Path, *, data: Path | None = None, weights: Path | None = None) -> dict[str, Any]:
    """Train with ``celeba.yaml`` for every line; draws ``fig6.png``; measures Frechet distances, precision and recall.

    The figure shows generated faces only, because those of CelebA may not be redistributed.

    Args:
        out: Directory of the results; run directories lie in a new directory below it.
        data: Root of the data sets.
        weights: The Inception weights of pytorch-fid, for the FID.
    """
    if weights is not None:
        check_weights(weights)
    out.mkdir(parents=True, exist_ok=True)
    runs = Path(tempfile.mkdtemp(prefix="fig6-", dir=out))
    rows, pictures = [], []
    faces = benchmark("celeba", data, public=True)
    assert faces.test is not None
    real = faces.test.floats()
    for name, epsilon, again in VARIANTS:
        directory = runs / re.sub(r"\W+", "_", name)
        records = repeated(faces.train) if again else faces.private()
        made = train_mixture(records, CONSTANTS, directory, epsilon=epsilon, delta=DELTA, seed=0, residual=False)
        if not rows:
            some = faces.train.floats(slice(0, N_GENERATED))
            rows.append(_row("real training records", None, made, len(records)) | fidelity(real, some, weights))
            rows[-1] |= {"n_generated": len(some), "train_seconds": None}
        torch.manual_seed(1)
        images = generate(made.generator, torch.zeros(N_GENERATED, dtype=torch.int64))
        rows.append(_row(name, epsilon, made, len(records)) | fidelity(real, images, weights))
        pictures.append((name, to_bytes(images[:SHOWN])))
        if again:
            rows[-1] |= {"sound": False}
        elif epsilon is not None:
            report = write_report(directory)
            assert report["sound"]
            assert report["guarantee"]["epsilon"] <= epsilon
        print(rows[-1], flush=True)
    draw(pictures, out / "fig6.png")
    return {"rows": rows}


def _row(name: str, epsilon: float | None, made: Made, n: int) -> dict[str, Any]:
    return {
        "dataset": "CelebA",
        "method": name,
        "epsilon": epsilon,
        "delta": made.facts["delta"],
        "mu": made.facts["mu"],
        "sound": made.facts["sound"],
        "sample_size": n,
        "n_generated": N_GENERATED,
        "train_seconds": round(made.seconds),
    }


def draw(lines: list[tuple[str, np.ndarray]], path: Path) -> None:
    """Draw 16 colour images (n, h, w, 3) for each line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 0.75 * len(lines)), layout="constrained")
    for axes, (title, images) in zip(np.atleast_1d(figure.subplots(len(lines), 1)), lines, strict=True):
        axes.imshow(np.concatenate(list(images), axis=1))
        axes.set_ylabel(title, rotation=0, ha="right", va="center", fontsize=8)
        axes.set_xticks([])
        axes.set_yticks([])
    figure.savefig(path, dpi=100)
