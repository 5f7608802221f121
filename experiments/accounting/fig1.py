"""Rakotomamonjy2021, Figure 1: the law of S = ||z^T U||^2, simulated and exact, and the bounds on it."""

from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from dpswd.sensitivity import ProjectionLaw, bernstein_bound, clt_bound

HELP = "Rakotomamonjy2021, Figure 1: law of the squared sensitivity (d = 784, k = 200), simulated, exact, bounds"

DIM, N_PROJECTIONS = 784, 200
TAILS = (1e-5, 1e-6)


def exact_quantile(law: ProjectionLaw, tail: float) -> float:
    """The value that S exceeds with probability ``tail``, from its exact law, by bisection (rounded up)."""
    low, high = law.mean, law.maximum
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if float(law.survival(middle)) > tail else (low, middle)
    return high


def run(out: Path, *, quick: bool = False, data: Path | None = None, full: bool = False) -> dict[str, Any]:
    """Simulates S, draws ``fig1.png`` and returns bounds and exact quantiles."""
    from matplotlib.figure import Figure

    law = ProjectionLaw(DIM, N_PROJECTIONS)
    rng = np.random.default_rng(0)
    draws = 10_000 if quick else 200_000
    s = np.concatenate([rng.beta(0.5, (DIM - 1) / 2, (10_000, N_PROJECTIONS)).sum(1) for _ in range(draws // 10_000)])
    points = np.linspace(s.min(), s.max() * 1.1, 300)
    density = -np.gradient(law.survival(points), points)
    deviation = float(np.sqrt(N_PROJECTIONS * stats.beta.var(0.5, (DIM - 1) / 2)))

    rows = [{"quantity": "mean", "exact": law.mean, "simulated": float(s.mean())}]
    rows.append({"quantity": "standard deviation", "exact": deviation, "simulated": float(s.std())})
    for tail in TAILS:
        rows.append(
            {
                "quantity": f"exceeded with probability {tail:g}",
                "exact": exact_quantile(law, tail),
                "simulated": None,
                "bernstein": bernstein_bound(N_PROJECTIONS, DIM, tail),
                "clt": clt_bound(N_PROJECTIONS, DIM, tail),
            }
        )
    for row in rows:
        print(
            "  ".join(f"{key}: {value:.4f}" if isinstance(value, float) else f"{value}" for key, value in row.items())
        )

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.hist(s, bins=100, density=True, alpha=0.4, label=f"{draws} simulated sets of directions")
    axes.plot(points, density, label="exact law")
    axes.plot(points, stats.norm.pdf(points, law.mean, deviation), "--", label="Gaussian of the same moments")
    axes.axvline(law.mean, color="red", linestyle=":", label="mean k / d")
    for tail, color in zip(TAILS, ("black", "green"), strict=True):
        axes.axvline(exact_quantile(law, tail), color=color, label=f"exact {1 - tail:g} quantile")
        axes.axvline(clt_bound(N_PROJECTIONS, DIM, tail), color=color, linestyle="--", label="CLT 'bound' for it")
    axes.set_xlabel(
        f"S, d = {DIM}, k = {N_PROJECTIONS} (Bernstein: {rows[2]['bernstein']:.1f}, {rows[3]['bernstein']:.1f})"
    )
    axes.legend(fontsize=8)
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "fig1.png", dpi=80)
    return {"rows": rows}
