"""Forecast and realised signal-to-noise ratios on public benchmarks.

*Forecast* is the ratio that :func:`dpswd.mixture.forecast.forecast` computes from public numbers.
*Realised* is the ratio computed from the exact statistic of the records: NOT private, for
benchmarks only.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dpswd.accounting.calibrate import mu_of_epsilon
from dpswd.features.frequencies import Frequencies
from dpswd.mixture import moments
from dpswd.mixture.forecast import forecast, moment_edge
from dpswd.mixture.structure import MOMENT_BOUND, RAW_NORM, ROW_NORM, SUM_BOUND, Structure
from dpswd.records import Records
from experiments.generation.training import BENCHMARKS, DELTA, load
from experiments.results import Result, Row

BUDGETS = (10.0, 1.0)
N_CLASSES = 10
_AT_ONCE = 4096  # records that are mapped at a time


def run(out: Path, *, quick: bool = False, data: Path | None = None) -> Result:
    """Signal-to-noise ratios of the releases, forecast and realised (a minute)."""
    names = list(BENCHMARKS)
    if quick:
        names = ["digits"]
    rows = []
    for name in names:
        for epsilon in BUDGETS:
            rows += measure(name, epsilon, data)
    return {"rows": rows}


def measure(dataset: str, epsilon: float, data: Path | None = None) -> list[Row]:
    """Compute both ratios of every release."""
    records = load(dataset, data).train
    mu = mu_of_epsilon(epsilon, DELTA)
    structure = forecast(len(records), tuple(records.values.shape[1:]), N_CLASSES, mu)
    ratios = realised(records, structure, mu)
    rows = []
    for release, expected in structure.signal_to_noise.items():
        rows.append(
            {
                "dataset": dataset,
                "n_records": len(records),
                "epsilon": epsilon,
                "delta": DELTA,
                "release": release,
                "forecast": round(expected, 3),
                "realised": round(ratios[release], 3),
            }
        )
    return rows


@dataclass(frozen=True)
class Noise:
    """The noise of the releases of a structure within mu."""

    structure: Structure
    mu: float

    def share(self, release: str) -> float:
        """Return the part of the squared mu that one release of this name gets."""
        share = self.structure.shares[release]
        if release == "cell_means" and self.structure.n_rounds:
            return share / self.structure.n_rounds
        return share

    def sigma(self, release: str) -> float:
        """Return the standard deviation of the noise of a sum of rows."""
        return 2 * ROW_NORM / (self.mu * math.sqrt(self.share(release)))

    def edge(self, release: str, bound: float, dim: int) -> float:
        """Return the largest eigenvalue of the noise of second moments.

        The norms of the rows are at most ``bound``.
        """
        return moment_edge(bound, dim, self.mu * math.sqrt(self.share(release)))


def realised(records: Records, structure: Structure, mu: float) -> dict[str, float]:
    """Compute the signal-to-noise ratio of each release from exact statistics."""
    noise = Noise(structure, mu)
    n = len(records)
    labels = records.labels
    dim = structure.dim
    raw = _raw_rows(records, structure)
    length = raw.square().sum(1).mean().sqrt()
    ratios = {"overall": float(n * length / (2 * noise.sigma("overall") * math.sqrt(dim)))}

    rows = raw - raw.mean(0)
    rows = rows * ROW_NORM / (structure.headroom * rows.square().sum(1).mean().sqrt())
    counts = torch.bincount(labels, minlength=structure.n_classes)
    means = _means(rows, labels, counts)
    ratios["means"] = _norm(means * counts[:, None]) / (noise.sigma("means") * math.sqrt(dim))

    within = _clipped(rows - means[labels], structure.class_bound)
    pooled = within.T @ within / n
    edge = noise.edge("moments", structure.class_bound, dim) / n
    n_moments = structure.n_classes
    if structure.pooled:
        n_moments = 1
    ratios["moments"] = float(pooled.trace()) / dim / (edge * math.sqrt(n_moments))
    if structure.n_levels:
        ratios["tones"] = n / structure.n_levels * ROW_NORM / noise.sigma("tones")
    if structure.n_cells > 1:
        ratios |= _ratios_of_cells(within, means, pooled, labels, noise)
    return ratios


def _raw_rows(records: Records, structure: Structure) -> Tensor:
    """Return the frequencies (n, D) of the records, clipped, in float64."""
    features = Frequencies(structure.sample_shape, structure.size, structure.chroma_size)
    parts = []
    for index in torch.arange(len(records)).split(_AT_ONCE):
        parts.append(features(records.floats(index)))
    return _clipped(torch.cat(parts).double(), RAW_NORM)


def _clipped(rows: Tensor, bound: float) -> Tensor:
    """Return rows (n, d) whose norm is at most ``bound``."""
    factors: Tensor = (bound / rows.norm(dim=1)).clamp(max=1)
    return rows * factors[:, None]


def _ratios_of_cells(
    within: Tensor, means: Tensor, pooled: Tensor, labels: Tensor, noise: Noise
) -> dict[str, float]:
    """Return the ratios of the releases of cells.

    Args:
        within: Rows (n, D) about the means of their classes.
        means: Means (C, D) of the classes.
        pooled: Second moment (D, D) of ``within``.
        labels: Classes (n,).
        noise: Noise of the releases.
    """
    structure = noise.structure
    n_cells = structure.n_classes * structure.n_cells
    p = structure.n_components
    total = pooled + means.T @ means / structure.n_classes
    directions = torch.linalg.eigh(total).eigenvectors.flip(1)[:, :p]
    leading = within @ directions
    centre = means @ directions
    shared = directions.T @ pooled @ directions
    centres = moments.first_centres(centre, shared, structure.n_cells)
    cells = moments.cells_of(leading + centre[labels], labels, centres)
    counts = torch.bincount(cells, minlength=n_cells)
    offsets = _means(leading, cells, counts)
    deviation = float(shared.trace().sqrt())
    noise_of_means = noise.sigma("cell_means") * SUM_BOUND * deviation / ROW_NORM
    bound = MOMENT_BOUND * deviation
    squares = (leading - offsets[cells]).square().sum(1).clamp(max=bound**2)
    edge = noise.edge("cell_moments", bound, p)
    return {
        "cell_means": _norm(offsets * counts[:, None]) / (noise_of_means * math.sqrt(p)),
        "cell_moments": float(squares.mean()) / p * len(labels) / n_cells / edge,
    }


def _means(rows: Tensor, groups: Tensor, counts: Tensor) -> Tensor:
    """Return the means (G, d) of the rows (n, d) of each group; 0 of an empty one."""
    sums = torch.zeros(len(counts), rows.shape[1], dtype=rows.dtype).index_add_(0, groups, rows)
    return sums / counts.clamp(min=1)[:, None]


def _norm(sums: Tensor) -> float:
    """Return the root mean square of the norms of the rows."""
    return float(sums.square().sum(1).mean().sqrt())
