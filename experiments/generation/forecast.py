"""Forecast and realised signal-to-noise ratios of the releases on public benchmarks.

*Forecast* is the ratio that :func:`dpswd.mixture.forecast.forecast` computes from public numbers. *Realised* is the
ratio computed from the exact statistic of the records: NOT private, for benchmarks only.
"""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpswd.accounting.calibrate import mu_of_epsilon
from dpswd.features.frequencies import Frequencies
from dpswd.mixture import moments
from dpswd.mixture.forecast import forecast, moment_edge
from dpswd.mixture.structure import MOMENT_BOUND, RAW_NORM, ROW_NORM, Structure
from dpswd.records import Records
from experiments.generation.training import BENCHMARKS, DELTA, load

BUDGETS = (10.0, 1.0)
_PART = 4096


def run(out: Path, *, quick: bool = False, data: Path | None = None) -> dict[str, Any]:
    """Signal-to-noise ratios of the releases, forecast and realised, on five benchmarks (a minute)."""
    names = ["digits"] if quick else BENCHMARKS
    return {
        "rows": [
            row for name in names for epsilon in BUDGETS for row in measure(name, epsilon, data)
        ]
    }


def measure(dataset: str, epsilon: float, data: Path | None = None) -> list[dict[str, Any]]:
    """Compute both ratios of every release."""
    records, mu = load(dataset, data).train, mu_of_epsilon(epsilon, DELTA)
    made = forecast(len(records), tuple(records.values.shape[1:]), 10, mu)
    found = realised(records, made, mu)
    facts = {"dataset": dataset, "n_records": len(records), "epsilon": epsilon, "delta": DELTA}
    return [
        facts | {"release": name, "forecast": round(stated, 3), "realised": round(found[name], 3)}
        for name, stated in made.signal_to_noise.items()
    ]


def realised(records: Records, made: Structure, mu: float) -> dict[str, float]:
    """Compute the signal-to-noise ratio of each release of ``made`` from the exact statistics of the records."""
    shares = dict(made.shares)
    if made.n_rounds:
        shares["cell_means"] /= made.n_rounds
    sigma = {name: 2 * ROW_NORM / (mu * math.sqrt(share)) for name, share in shares.items()}
    n, labels, classes, dim, p = (
        len(records),
        records.labels,
        made.n_classes,
        made.dim,
        made.n_components,
    )
    features = Frequencies(made.sample_shape, made.size, made.chroma_size)
    raw = torch.cat(
        [features(records.floats(part)) for part in torch.arange(n).split(_PART)]
    ).double()
    raw = raw * (RAW_NORM / raw.norm(dim=1)).clamp(max=1)[:, None]
    ratios = {
        "overall": float(
            n * raw.square().sum(1).mean().sqrt() / (2 * sigma["overall"] * math.sqrt(dim))
        )
    }
    rows = raw - raw.mean(0)
    rows = rows * ROW_NORM / (made.headroom * rows.square().sum(1).mean().sqrt())
    counts = torch.bincount(labels, minlength=classes)
    means = _means(rows, labels, counts)
    ratios["means"] = _norm(means * counts[:, None]) / (sigma["means"] * math.sqrt(dim))
    within = rows - means[labels]
    within = within * (made.class_bound / within.norm(dim=1)).clamp(max=1)[:, None]
    pooled = within.T @ within / n
    edge = moment_edge(made.class_bound, dim, mu * math.sqrt(shares["moments"])) / n
    ratios["moments"] = (
        float(pooled.trace()) / dim / (edge * math.sqrt(1 if made.pooled else classes))
    )
    if made.n_levels:
        ratios["tones"] = n / made.n_levels * ROW_NORM / sigma["tones"]
    directions = torch.linalg.eigh(pooled + means.T @ means / classes).eigenvectors.flip(1)[:, :p]
    leading, centre, shared = (
        within @ directions,
        means @ directions,
        directions.T @ pooled @ directions,
    )
    if made.n_cells > 1:
        centres = moments.first_centres(centre, shared, made.n_cells)
        cells = moments.cells_of(leading + centre[labels], labels, centres)
        counts = torch.bincount(cells, minlength=classes * made.n_cells)
        offsets = _means(leading, cells, counts)
        deviation = float(shared.trace().sqrt())
        noise = sigma["cell_means"] * 1.3 * deviation / ROW_NORM
        ratios["cell_means"] = _norm(offsets * counts[:, None]) / (noise * math.sqrt(p))
        bound = MOMENT_BOUND * deviation
        rest = (leading - offsets[cells]).square().sum(1).clamp(max=bound**2)
        edge = moment_edge(bound, p, mu * math.sqrt(shares["cell_moments"]))
        ratios["cell_moments"] = float(rest.mean()) / p * n / (classes * made.n_cells) / edge
    return ratios


def _means(rows: Tensor, groups: Tensor, counts: Tensor) -> Tensor:
    sums = torch.zeros(len(counts), rows.shape[1], dtype=rows.dtype).index_add_(0, groups, rows)
    return sums / counts.clamp(min=1)[:, None]


def _norm(sums: Tensor) -> float:
    """Root mean square of the norms of the rows."""
    return float(sums.square().sum(1).mean().sqrt())
