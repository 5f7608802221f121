"""Rakotomamonjy2021, Figure 6: faces by the default generator.

docs/celeba.md shows the result. The generator runs without privacy and with it. The last line has
the noise of the paper's 162,000 records: the private faces again and again, so that it protects no
face. ``fig6_published`` is the published algorithm.
"""

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dpswd._layout import Layout
from dpswd.data import benchmark
from dpswd.evaluation.images import check_weights
from dpswd.networks.generator import draw
from dpswd.records import PrivateRecords, Records, Stored
from dpswd.report.render import write_report
from experiments.generation.frechet import fidelity
from experiments.generation.pictures import Picture, draw_grids, line_of
from experiments.generation.training import Trained, train_mixture
from experiments.results import Result, Row

EPSILON = 10.0
DELTA = 1e-6
CONSTANTS = Path(__file__).with_name("celeba.yaml")
N_PAPER = 162_000
N_GENERATED = 10_000


@dataclass(frozen=True)
class Variant:
    """A run of the figure.

    With ``is_repeated`` the faces are repeated up to ``N_PAPER``.
    """

    name: str
    epsilon: float | None
    is_repeated: bool = False


VARIANTS = (
    Variant("no privacy", None),
    Variant("ours", EPSILON),
    Variant("ours, noise of N = 162,000", EPSILON, is_repeated=True),
)


def fig6(out: Path, *, data: Path | None = None, weights: Path | None = None) -> Result:
    """Rakotomamonjy2021, Figure 6: CelebA 64 x 64 by ours (minutes).

    The figure shows generated faces only, because those of CelebA may not be redistributed.
    ``weights`` of pytorch-fid give the FID.
    """
    if weights is not None:
        check_weights(weights)
    out.mkdir(parents=True, exist_ok=True)
    runs = Path(tempfile.mkdtemp(prefix="fig6-", dir=out))
    faces = benchmark("celeba", data, public=True)
    assert faces.test is not None
    real = faces.test.floats()
    rows = [_row_of_real(faces.train, real, weights)]
    pictures = []
    for variant in VARIANTS:
        directory = runs / re.sub(r"\W+", "_", variant.name)
        records = faces.private()
        if variant.is_repeated:
            records = repeated(faces.train)
        trained = train_mixture(
            records,
            CONSTANTS,
            directory,
            epsilon=variant.epsilon,
            delta=DELTA,
            seed=0,
            residual=False,
        )
        if variant.epsilon is not None and not variant.is_repeated:
            _check_report(directory, variant.epsilon)
        torch.manual_seed(1)
        images = draw(trained.generator, torch.zeros(N_GENERATED, dtype=torch.int64))
        row = _row(variant, trained, len(records))
        rows.append(row | fidelity(real, images, weights))
        print(rows[-1], flush=True)
        pictures.append([Picture(line_of(images), variant.name)])
    draw_grids(pictures, out / "fig6.png")
    return {"rows": rows}


def repeated(faces: Records) -> PrivateRecords:
    """Return a handle of ``N_PAPER`` records: the private faces again and again.

    Releases have the noise of so many records. They protect a record, but a face is in them 40
    times: NOT PRIVATE.
    """

    def values(index: Tensor) -> Tensor:
        return faces.values[index % len(faces)]

    shape = (N_PAPER, *faces.values.shape[1:])
    stored = Stored(values, shape, faces.values.dtype, key="repeated")
    layout = Layout.of(faces.values)
    return PrivateRecords.from_values(stored, None, classes=None, layout=layout, name="CelebA")


def _check_report(directory: Path, epsilon: float) -> None:
    """Write the report of a run; it must be sound and within its budget."""
    report = write_report(directory)
    assert report["sound"]
    assert report["guarantee"]["epsilon"] <= epsilon


def _row_of_real(train: Records, real: Tensor, weights: Path | None) -> Row:
    """Return the row of real training records: what a perfect generator would reach."""
    images = train.floats(slice(0, N_GENERATED))
    row: Row = {
        "dataset": "CelebA",
        "method": "real training records",
        "epsilon": None,
        "delta": None,
        "mu": None,
        "sound": None,
        "sample_size": len(train),
        "n_generated": len(images),
        "train_seconds": None,
    }
    return row | fidelity(real, images, weights)


def _row(variant: Variant, trained: Trained, sample_size: int) -> Row:
    """Return the settings and the guarantee of a run; repeated faces have none."""
    sound = trained.privacy.sound
    if variant.is_repeated:
        sound = False
    return {
        "dataset": "CelebA",
        "method": variant.name,
        "epsilon": variant.epsilon,
        "delta": trained.privacy.delta,
        "mu": trained.privacy.mu,
        "sound": sound,
        "sample_size": sample_size,
        "n_generated": N_GENERATED,
        "train_seconds": round(trained.seconds),
    }


EXPERIMENTS = (fig6,)
