"""Rakotomamonjy2021, Figure 7: histogram of Y = (z.u / ||u||)^2 in five dimensions, and the law of Lemma 1."""

from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from experiments.accounting.fig1 import draw_sensitivities

HELP = "Rakotomamonjy2021, Figure 7: histogram of Y for d = 5 and the Beta law of Lemma 1"

DIM, DRAWS = 5, 100_000


def run(out: Path, *, quick: bool = False) -> dict[str, Any]:
    """Draw u 100,000 times for a fixed z; draw ``fig7.png``; return moments and a Kolmogorov-Smirnov test."""
    from matplotlib.figure import Figure

    y = draw_sensitivities(DIM, 1, DRAWS)
    law = stats.beta(0.5, (DIM - 1) / 2)
    test = stats.kstest(y, law.cdf)
    rows = [
        {"quantity": "mean", "exact": law.mean(), "simulated": float(y.mean())},
        {"quantity": "variance", "exact": law.var(), "simulated": float(y.var())},
        {"quantity": "Kolmogorov-Smirnov distance", "exact": 0.0, "simulated": float(test.statistic)},
        {"quantity": "its p-value", "exact": None, "simulated": float(test.pvalue)},
    ]

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.hist(y, bins=100, density=True, alpha=0.4, label=f"{DRAWS:,} draws of u")
    points = np.linspace(1e-3, 1, 400)
    axes.plot(points, law.pdf(points), label="Beta(1/2, 2): 0.75 y$^{-1/2}$ (1 - y)")
    axes.set(xlabel="Y, d = 5", ylabel="estimated density", ylim=(0, 8))
    axes.legend()
    figure.savefig(out / "fig7.png", dpi=80)
    return {"rows": rows}
