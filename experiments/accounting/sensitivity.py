"""Law of S = ||z^T U||^2, the squared sensitivity, and bounds on it.

The figures are Figures 1 and 7 of Rakotomamonjy2021.

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
from experiments.results import Result, Row

# Figure 1.
DIM = 784
N_PROJECTIONS = 200
TAILS = (1e-5, 1e-6)
TAIL_COLOURS = ("black", "green")

# Figure 7.
SMALL_DIM = 5
DRAWS = 100_000

DIMS = (50, 784, 8192)  # of the bounds
DIRECTIONS_AT_ONCE = 10_000  # of all sets that are drawn together, which bounds the memory
BISECTIONS = 60  # more than the 53 bits of a float64


def exact_quantile(law: ProjectionLaw, tail: float) -> float:
    """Return the value that S exceeds with probability ``tail``, rounded up."""
    low = law.mean
    high = law.maximum
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if float(law.survival(middle)) > tail:
            low = middle
        else:
            high = middle
    return high


def draw_sensitivities(dim: int, n_projections: int, draws: int, seed: int = 0) -> np.ndarray:
    """Draw sets U of unit columns; return ``||z^T U||^2`` of each, for one z.

    The unit vector z is the normed difference of two random rows.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = torch.rand(2, dim, generator=generator, dtype=torch.float64)
    difference = rows[0] - rows[1]
    z = difference / difference.norm()
    sets_at_once = max(1, min(draws, DIRECTIONS_AT_ONCE // n_projections))
    sensitivities = []
    for start in range(0, draws, sets_at_once):
        n_sets = min(sets_at_once, draws - start)
        directions = random_projections(dim, n_sets * n_projections, generator=generator)
        squares = (z.to(directions.dtype) @ directions).square()
        sensitivities.append(squares.view(n_sets, n_projections).sum(1))
    return torch.cat(sensitivities).numpy()


def fig1(out: Path, *, quick: bool = False) -> Result:
    """Rakotomamonjy2021, Figure 1: law of the squared sensitivity and its bounds."""
    law = ProjectionLaw(DIM, N_PROJECTIONS)
    n_draws = 10_000
    if quick:
        n_draws = 1000
    s = draw_sensitivities(DIM, N_PROJECTIONS, n_draws)
    deviation = float(np.sqrt(N_PROJECTIONS * stats.beta.var(0.5, (DIM - 1) / 2)))
    rows: list[Row] = [
        {"quantity": "mean", "exact": law.mean, "simulated": float(s.mean())},
        {"quantity": "standard deviation", "exact": deviation, "simulated": float(s.std())},
    ]
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
    with figure(out / "fig1.png", 7, 4.2) as axes:
        _draw_law(axes, law, deviation, s)
        _draw_bounds(axes, law, deviation, rows[2:])
        axes.set_ylabel("estimated density")
        axes.legend(fontsize=8)
    return {"rows": rows}


def _draw_law(axes: Any, law: ProjectionLaw, deviation: float, s: np.ndarray) -> None:
    """Draw a histogram of draws, the exact density and the normal approximation."""
    points = np.linspace(s.min(), s.max() * 1.1, 300)
    density = -np.gradient(law.survival(points), points)
    normal = stats.norm.pdf(points, law.mean, deviation)
    axes.hist(s, bins=100, density=True, alpha=0.4, label=f"{len(s):,} draws of U")
    axes.plot(points, density, label="exact law")
    axes.plot(points, normal, "--", label="Normal of the same moments")


def _draw_bounds(axes: Any, law: ProjectionLaw, deviation: float, rows: list[Row]) -> None:
    """Draw lines at the mean, the bounds and the exact quantiles.

    The label of the axis names the bounds that lie outside of the figure.
    """
    axes.axvline(law.mean, color="red", linestyle=":", label=f"mean k / d = {law.mean:.3f}")
    for tail, colour, row in zip(TAILS, TAIL_COLOURS, rows, strict=True):
        label = f"CLT bound = Normal quantile at {tail:g}"
        axes.axvline(row["clt"], color=colour, linestyle="--", label=label)
        axes.axvline(row["exact"], color=colour, label=f"exact quantile at {tail:g}")
    far = law.mean + 6 * deviation
    axes.axvline(far, color="grey", linestyle="-.", label="mean + 6 standard deviations")
    outside = " and ".join(f"{row['bernstein']:.2f}" for row in rows)
    setting = f"S, d = {DIM}, k = {N_PROJECTIONS}"
    axes.set_xlabel(f"{setting} (Bernstein's bounds at 1e-5 and 1e-6 lie at {outside})")


def fig7(out: Path) -> Result:
    """Rakotomamonjy2021, Figure 7: histogram of Y for d = 5 and the law of Lemma 1."""
    y = draw_sensitivities(SMALL_DIM, 1, DRAWS)
    law = stats.beta(0.5, (SMALL_DIM - 1) / 2)
    test = stats.kstest(y, law.cdf)
    distance = float(test.statistic)
    p_value = float(test.pvalue)
    rows = [
        {"quantity": "mean", "exact": law.mean(), "simulated": float(y.mean())},
        {"quantity": "variance", "exact": law.var(), "simulated": float(y.var())},
        {"quantity": "Kolmogorov-Smirnov distance", "exact": 0.0, "simulated": distance},
        {"quantity": "its p-value", "exact": None, "simulated": p_value},
    ]
    points = np.linspace(1e-3, 1, 400)
    with figure(out / "fig7.png", 6, 4) as axes:
        axes.hist(y, bins=100, density=True, alpha=0.4, label=f"{DRAWS:,} draws of u")
        axes.plot(points, law.pdf(points), label="Beta(1/2, 2): 0.75 y$^{-1/2}$ (1 - y)")
        axes.set(xlabel="Y, d = 5", ylabel="estimated density", ylim=(0, 8))
        axes.legend()
    return {"rows": rows}


def bounds(out: Path, *, quick: bool = False) -> Result:
    """Bounds on the squared sensitivity against the number of directions."""
    n_points = 12
    if quick:
        n_points = 4
    counts = [int(k) for k in np.unique(np.geomspace(32, 2000, n_points).astype(int))]
    tail = TAILS[0]
    rows = []
    for dim in DIMS:
        for k in counts:
            law = ProjectionLaw(dim, k)
            rows.append(
                {
                    "dim": dim,
                    "n_projections": k,
                    "tail": tail,
                    "mean": law.mean,
                    "exact": exact_quantile(law, tail),
                    "clt": clt_bound(k, dim, tail),
                    "bernstein": bernstein_bound(k, dim, tail),
                    "deterministic": float(k),
                }
            )
    styles = {"mean": ":", "clt": "--", "exact": "-", "bernstein": "-.", "deterministic": ":"}
    with figure(out / "bounds.png", 10, 3.6, 1, len(DIMS)) as panels:
        for axes, dim in zip(panels, DIMS, strict=True):
            of_dim = [row for row in rows if row["dim"] == dim]
            for name, style in styles.items():
                axes.loglog(counts, [row[name] for row in of_dim], style, label=name)
            axes.set_title(f"d = {dim}", fontsize=10)
            axes.set_xlabel("number of projections")
            axes.grid(True, which="both", alpha=0.3)
        panels[0].set_ylabel(f"S exceeded with probability {tail:g}")
        panels[0].legend(fontsize=8)
    return {"rows": rows}


EXPERIMENTS = (fig1, fig7, bounds)
