"""Rakotomamonjy2021, Figure 6: CelebA faces without privacy, by the exact law, by Bernstein's bound.

The paper has the CLT bound in place of the exact law, 162,000 private faces and 10,000 generated ones (docs/celeba.md).
"""

import dataclasses
import tempfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from dpswd.generation.export import generate, to_bytes
from dpswd.generation.mixture_module import MixtureModule
from dpswd.loss import DPSlicedWassersteinLoss
from dpswd.report.render import write_report
from experiments.generation.frechet import check_weights, fid, rotation_cnn, small_cnn_frechet
from experiments.generation.train_config import ConfigRun, train_config

HELP = (
    "Rakotomamonjy2021, Figure 6: CelebA 64 x 64, no privacy, exact, Bernstein (--weights PATH: FID; --quick: minutes)"
)

EPSILON, DELTA = 10.0, 1e-6
VARIANTS = (("no privacy", None, "exact"), ("exact", EPSILON, "exact"), ("Bernstein", EPSILON, "bernstein"))
SHOWN = 16
N_GENERATED = 1000
STEPS = {False: 305, True: 1505}  # quick, full; the flow takes 5 of them


class IndependentDirections(MixtureModule):
    """``MixtureModule`` with independent directions, whose random sensitivity ``bound`` accounts for, as in the paper.

    Args:
        bound: ``"exact"`` or ``"bernstein"``.
        **options: Of :class:`~dpswd.generation.mixture_module.MixtureModule`.
    """

    def __init__(self, bound: Literal["exact", "bernstein"] = "exact", **options: Any) -> None:
        super().__init__(**options)
        self.bound = bound

    def setup(self, stage: str) -> None:
        """As in the base class, with twice as many independent directions as dimensions."""
        super().setup(stage)
        if self.criterion is not None:
            given = self.criterion.mechanism
            changes = {"kind": "iid", "n_projections": 2 * given.dim, "bound": self.bound}
            self.criterion = DPSlicedWassersteinLoss(dataclasses.replace(given, **changes))


def run(
    out: Path, *, quick: bool = False, data: Path | None = None, full: bool = False, weights: Path | None = None
) -> dict[str, Any]:
    """Trains ``celeba.yaml`` three times; draws ``fig6.png``; measures Frechet distances.

    The figure shows generated faces only, because those of CelebA may not be redistributed.

    Args:
        out: Directory of the results; run directories lie in a new directory below it.
        quick: The default: 305 steps.
        data: Root of the data sets.
        full: 1,505 steps.
        weights: The Inception weights of pytorch-fid; without them the distance is that of a small CNN.
    """
    if weights is not None:
        check_weights(weights)
    out.mkdir(parents=True, exist_ok=True)
    runs = Path(tempfile.mkdtemp(prefix="fig6-", dir=out))
    rows, pictures, network, real = [], [], None, None
    for name, epsilon, bound in VARIANTS:
        made = _train(runs / name.replace(" ", "_"), epsilon, bound, full, data)
        torch.manual_seed(1)
        images = generate(made.module, torch.zeros(N_GENERATED, dtype=torch.int64))
        if network is None:
            assert made.data.test is not None
            real = made.data.test.floats()
            network = rotation_cnn(made.data.private.floats()) if weights is None else None
            rows.append(_row("real training records", None, made, _distances(network, weights, real, _some(made))))
            rows[-1] |= {"sigma": None, "train_seconds": None}
        assert real is not None
        rows.append(_row(name, epsilon, made, _distances(network, weights, real, images)))
        pictures.append((name, to_bytes(images[:SHOWN])))
        if epsilon is not None:
            report = write_report(runs / name.replace(" ", "_"))
            assert report["sound"]
            assert report["guarantee"]["epsilon"] <= epsilon
        print(rows[-1], flush=True)
    _draw(pictures, out / "fig6.png")
    return {"rows": rows}


def _train(directory: Path, epsilon: float | None, bound: str, full: bool, data: Path | None) -> ConfigRun:
    model = f"{IndependentDirections.__module__}.{IndependentDirections.__qualname__}"
    more = ["--model", model, "--model.bound", bound, "--trainer.max_steps", str(STEPS[full])]
    return train_config(
        [str(Path(__file__).with_name("celeba.yaml"))],
        directory,
        epsilon=epsilon,
        delta=DELTA,
        seed=0,
        data=data,
        more=more,
    )


def _some(made: ConfigRun) -> torch.Tensor:
    """Real training records, as many as are generated: what a perfect generator would reach."""
    return made.data.private.floats(slice(0, N_GENERATED))


def _distances(network: Any, weights: Path | None, real: torch.Tensor, images: torch.Tensor) -> dict[str, float]:
    if weights is not None:
        return {"fid": round(fid(weights, real, images), 2)}
    return {"small_cnn_frechet": round(small_cnn_frechet(network, real, images), 2)}


def _row(name: str, epsilon: float | None, made: ConfigRun, distances: dict[str, float]) -> dict[str, Any]:
    return {
        "dataset": made.data.name,
        "method": name,
        "epsilon": epsilon,
        "delta": made.facts["delta"],
        "mu": made.facts["mu"],
        "sound": made.facts["sound"],
        "sigma": None if epsilon is None else round(made.module.criterion.mechanism.sigma, 6),
        "sample_size": len(made.data.private),
        "n_generated": N_GENERATED,
        **distances,
        "train_seconds": round(made.seconds),
    }


def _draw(lines: list[tuple[str, np.ndarray]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 0.75 * len(lines)), layout="constrained")
    for axes, (title, images) in zip(figure.subplots(len(lines), 1), lines, strict=True):
        axes.imshow(np.concatenate(list(images), axis=1))
        axes.set_ylabel(title, rotation=0, ha="right", va="center", fontsize=8)
        axes.set_xticks([])
        axes.set_yticks([])
    figure.savefig(path, dpi=100)
