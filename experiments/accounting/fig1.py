"""Rakotomamonjy2021, Figure 1: the law of S = ||z^T U||^2 by draws of U, its exact law, and the bounds on it."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from dpswd import random_projections
from dpswd.sensitivity import ProjectionLaw, bernstein_bound, clt_bound

HELP = "Rakotomamonjy2021, Figure 1: law of the squared sensitivity (d = 784, k = 200), drawn, exact, bounds"

DIM, N_PROJECTIONS = 784, 200
TAILS = (1e-5, 1e-6)


def exact_quantile(law: ProjectionLaw, tail: float) -> float:
    """The value that S exceeds with probability ``tail``, by bisection of the exact law, rounded up."""
    low, high = law.mean, law.maximum
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if float(law.survival(middle)) > tail else (low, middle)
    return high


def draw_sensitivities(dim: int, n_projections: int, draws: int, seed: int = 0) -> np.ndarray:
    """Draw sets U of unit columns; return ``||z^T U||^2`` of each for the normed difference z of two rows."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.rand(2, dim, generator=generator, dtype=torch.float64)
    z = (rows[0] - rows[1]) / (rows[0] - rows[1]).norm()
    together = max(1, min(draws, 10_000 // n_projections))
    found = []
    for start in range(0, draws, together):
        sets = min(together, draws - start)
        directions = random_projections(dim, sets * n_projections, generator=generator)
        found.append((z.to(directions.dtype) @ directions).square().view(sets, n_projections).sum(1))
    return torch.cat(found).numpy()


def run(out: Path, *, quick: bool = False) -> dict[str, Any]:
    """Draw U 10,000 times (1,000 with ``quick``); draw ``fig1.png``; return bounds and exact quantiles."""
    from matplotlib.figure import Figure

    law = ProjectionLaw(DIM, N_PROJECTIONS)
    s = draw_sensitivities(DIM, N_PROJECTIONS, 1000 if quick else 10_000)
    points = np.linspace(s.min(), s.max() * 1.1, 300)
    density = -np.gradient(law.survival(points), points)
    deviation = float(np.sqrt(N_PROJECTIONS * stats.beta.var(0.5, (DIM - 1) / 2)))

    rows: list[dict[str, Any]] = [
        {"quantity": "mean", "exact": law.mean, "simulated": float(s.mean())},
        {"quantity": "standard deviation", "exact": deviation, "simulated": float(s.std())},
    ]
    for tail in TAILS:
        row: dict[str, Any] = {
            "quantity": f"exceeded with probability {tail:g}",
            "exact": exact_quantile(law, tail),
            "simulated": None,
        }
        bounds: dict[str, Any] = {
            f.__name__.removesuffix("_bound"): f(N_PROJECTIONS, DIM, tail) for f in (bernstein_bound, clt_bound)
        }
        rows.append(row | bounds)

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.hist(s, bins=100, density=True, alpha=0.4, label=f"{len(s):,} draws of U")
    axes.plot(points, density, label="exact law")
    axes.plot(points, stats.norm.pdf(points, law.mean, deviation), "--", label="Normal of the same moments")
    axes.axvline(law.mean, color="red", linestyle=":", label=f"mean k / d = {law.mean:.3f}")
    for tail, color, found in zip(TAILS, ("black", "green"), rows[2:], strict=True):
        axes.axvline(found["clt"], color=color, linestyle="--", label=f"CLT bound = Normal quantile at {tail:g}")
        axes.axvline(found["exact"], color=color, label=f"exact quantile at {tail:g}")
    axes.axvline(law.mean + 6 * deviation, color="grey", linestyle="-.", label="mean + 6 standard deviations")
    off = " and ".join(f"{row['bernstein']:.2f}" for row in rows[2:])
    axes.set_xlabel(f"S, d = {DIM}, k = {N_PROJECTIONS} (Bernstein's bounds at 1e-5 and 1e-6 lie at {off})")
    axes.set_ylabel("estimated density")
    axes.legend(fontsize=8)
    figure.savefig(out / "fig1.png", dpi=80)
    return {"rows": rows}
