"""Rakotomamonjy2021, Figures 1 and 7, and bounds against k: the law of the squared sensitivity S = ||z^T U||^2.

- ``fig1``: draws of S for d = 784 and k = 200, its exact law, and the bounds on it.
- ``fig7``: Y = (z.u / ||u||)^2 in five dimensions, and the law of Lemma 1.
- ``bounds`` (in no paper): bounds on S and its exact quantile against the number of directions.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from dpswd import random_projections
from dpswd.sensitivity import ProjectionLaw, bernstein_bound, clt_bound
from experiments.plots import figure

DIM, N_PROJECTIONS = 784, 200
TAILS = (1e-5, 1e-6)
DRAWS = 100_000  # of Figure 7
DIMS = (50, 784, 8192)  # of the bounds


def exact_quantile(law: ProjectionLaw, tail: float) -> float:
    """Return the value that S exceeds with probability ``tail``, by bisection of the exact law, rounded up."""
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
        found.append(
            (z.to(directions.dtype) @ directions).square().view(sets, n_projections).sum(1)
        )
    return torch.cat(found).numpy()


def fig1(out: Path, *, quick: bool = False) -> dict[str, Any]:
    """Rakotomamonjy2021, Figure 1: law of the squared sensitivity (d = 784, k = 200), drawn, exact, bounds."""
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
        row = {
            "quantity": f"exceeded with probability {tail:g}",
            "exact": exact_quantile(law, tail),
            "simulated": None,
        }
        found = {"bernstein": bernstein_bound, "clt": clt_bound}
        rows.append(row | {name: bound(N_PROJECTIONS, DIM, tail) for name, bound in found.items()})

    with figure(out / "fig1.png", 7, 4.2) as axes:
        axes.hist(s, bins=100, density=True, alpha=0.4, label=f"{len(s):,} draws of U")
        axes.plot(points, density, label="exact law")
        axes.plot(
            points,
            stats.norm.pdf(points, law.mean, deviation),
            "--",
            label="Normal of the same moments",
        )
        axes.axvline(law.mean, color="red", linestyle=":", label=f"mean k / d = {law.mean:.3f}")
        for tail, color, row in zip(TAILS, ("black", "green"), rows[2:], strict=True):
            axes.axvline(
                row["clt"],
                color=color,
                linestyle="--",
                label=f"CLT bound = Normal quantile at {tail:g}",
            )
            axes.axvline(row["exact"], color=color, label=f"exact quantile at {tail:g}")
        axes.axvline(
            law.mean + 6 * deviation,
            color="grey",
            linestyle="-.",
            label="mean + 6 standard deviations",
        )
        off = " and ".join(f"{row['bernstein']:.2f}" for row in rows[2:])
        axes.set_xlabel(
            f"S, d = {DIM}, k = {N_PROJECTIONS} (Bernstein's bounds at 1e-5 and 1e-6 lie at {off})"
        )
        axes.set_ylabel("estimated density")
        axes.legend(fontsize=8)
    return {"rows": rows}


def fig7(out: Path) -> dict[str, Any]:
    """Rakotomamonjy2021, Figure 7: histogram of Y for d = 5 and the Beta law of Lemma 1."""
    dim = 5
    y = draw_sensitivities(dim, 1, DRAWS)
    law = stats.beta(0.5, (dim - 1) / 2)
    test = stats.kstest(y, law.cdf)
    rows = [
        {"quantity": "mean", "exact": law.mean(), "simulated": float(y.mean())},
        {"quantity": "variance", "exact": law.var(), "simulated": float(y.var())},
        {
            "quantity": "Kolmogorov-Smirnov distance",
            "exact": 0.0,
            "simulated": float(test.statistic),
        },
        {"quantity": "its p-value", "exact": None, "simulated": float(test.pvalue)},
    ]
    points = np.linspace(1e-3, 1, 400)
    with figure(out / "fig7.png", 6, 4) as axes:
        axes.hist(y, bins=100, density=True, alpha=0.4, label=f"{DRAWS:,} draws of u")
        axes.plot(points, law.pdf(points), label="Beta(1/2, 2): 0.75 y$^{-1/2}$ (1 - y)")
        axes.set(xlabel="Y, d = 5", ylabel="estimated density", ylim=(0, 8))
        axes.legend()
    return {"rows": rows}


def bounds(out: Path, *, quick: bool = False) -> dict[str, Any]:
    """Compare bounds on the squared sensitivity with its exact quantile, against the number of projections."""
    counts = [int(k) for k in np.unique(np.geomspace(32, 2000, 4 if quick else 12).astype(int))]
    tail, rows = TAILS[0], []
    for dim in DIMS:
        for k in counts:
            law = ProjectionLaw(dim, k)
            row = {
                "dim": dim,
                "n_projections": k,
                "tail": tail,
                "mean": law.mean,
                "exact": exact_quantile(law, tail),
            }
            found = {"clt": clt_bound(k, dim, tail), "bernstein": bernstein_bound(k, dim, tail)}
            rows.append(row | found | {"deterministic": float(k)})

    styles = {"mean": ":", "clt": "--", "exact": "-", "bernstein": "-.", "deterministic": ":"}
    with figure(out / "bounds.png", 10, 3.6, 1, len(DIMS)) as panels:
        for axes, dim in zip(panels, DIMS, strict=True):
            same = [row for row in rows if row["dim"] == dim]
            for name, style in styles.items():
                axes.loglog(counts, [row[name] for row in same], style, label=name)
            axes.set_title(f"d = {dim}", fontsize=10)
            axes.set_xlabel("number of projections")
            axes.grid(True, which="both", alpha=0.3)
        panels[0].set_ylabel(f"S exceeded with probability {tail:g}")
        panels[0].legend(fontsize=8)
    return {"rows": rows}


EXPERIMENTS = (fig1, fig7, bounds)
