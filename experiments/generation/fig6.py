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

from dpswd.data import CelebA
from dpswd.data.base import Records, Stored
from dpswd.generation.export import generate, to_bytes
from dpswd.report.render import write_report
from experiments.generation.frechet import check_weights, fidelity
from experiments.generation.train_config import ConfigRun, train_config

HELP = "Rakotomamonjy2021, Figure 6: CelebA 64 x 64 by ours (--weights PATH: FID; minutes)"

EPSILON, DELTA = 10.0, 1e-6
N_PAPER = 162_000
VARIANTS = (  # name, epsilon, are the faces repeated?
    ("no privacy", None, False),
    ("ours", EPSILON, False),
    ("ours, noise of N = 162,000", EPSILON, True),
)
SHOWN = 16
N_GENERATED = 10_000


class RepeatedFaces(CelebA):
    """The private faces again and again, ``N_PAPER`` records in all.

    Releases have the noise of so many records. They protect a record, but a face is in them 40 times: NOT PRIVATE.
    """

    def load(self) -> tuple[Records, Records | None]:
        """See :class:`~dpswd.data.CelebA`."""
        faces, test = super().load()
        shape = (N_PAPER, *faces.values.shape[1:])
        values = Stored(lambda index: faces.values[index % len(faces)], shape, faces.values.dtype, key=faces.digest())
        return Records(values, torch.zeros(N_PAPER, dtype=torch.int64)), test

    def _count(self) -> int:
        return N_PAPER


def run(out: Path, *, data: Path | None = None, weights: Path | None = None) -> dict[str, Any]:
    """Train ``celeba.yaml`` for every line; draw ``fig6.png``; measure Frechet distances, precision and recall.

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
    for name, epsilon, repeated in VARIANTS:
        directory = runs / re.sub(r"\W+", "_", name)
        made = _train(directory, epsilon, data, repeated)
        assert made.data.test is not None
        real = made.data.test.floats()
        if not rows:
            some = made.data.private.floats(slice(0, N_GENERATED))
            rows.append(_row("real training records", None, made) | fidelity(real, some, weights))
            rows[-1] |= {"n_generated": len(some), "train_seconds": None}
        torch.manual_seed(1)
        images = generate(made.module, torch.zeros(N_GENERATED, dtype=torch.int64))
        rows.append(_row(name, epsilon, made) | fidelity(real, images, weights))
        pictures.append((name, to_bytes(images[:SHOWN])))
        if repeated:
            rows[-1] |= {"sound": False}
        elif epsilon is not None:
            report = write_report(directory)
            assert report["sound"]
            assert report["guarantee"]["epsilon"] <= epsilon
        print(rows[-1], flush=True)
    draw(pictures, out / "fig6.png")
    return {"rows": rows}


def _train(directory: Path, epsilon: float | None, data: Path | None, repeated: bool) -> ConfigRun:
    more = ["--data", f"{RepeatedFaces.__module__}.{RepeatedFaces.__qualname__}"] if repeated else []
    return train_config(
        [str(Path(__file__).with_name("celeba.yaml"))],
        directory,
        epsilon=epsilon,
        delta=DELTA,
        seed=0,
        data=data,
        more=more,
    )


def _row(name: str, epsilon: float | None, made: ConfigRun) -> dict[str, Any]:
    return {
        "dataset": made.data.name,
        "method": name,
        "epsilon": epsilon,
        "delta": made.facts["delta"],
        "mu": made.facts["mu"],
        "sound": made.facts["sound"],
        "sample_size": len(made.data.private),
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
