"""Gomez2025, Figure 1: what one (epsilon, delta) pair says of attacks on DP-SGD, beside the whole curve and mu-GDP."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from gdpnum import PLDConverter
from gdpnum.converter import gaussian_fdp

from experiments.accounting.gdp import AUTHORS_STEP, curve_of_profile, dp_sgd, draw_curves

HELP = "Gomez2025, Figure 1: power of attacks by one (epsilon, delta) pair, by the whole curve and by mu-GDP"

NOISE, RATE, UPDATES, DELTA = 9.4, 16_384 / 50_000, 2000, 1e-5
RATES = (1e-3, 1e-2, 1e-1)


def run(out: Path, *, quick: bool = False) -> dict[str, Any]:
    """Account for the WRN-40 setting of De et al. (2022); draw ``gdp_fig1.png``."""
    from matplotlib.figure import Figure

    loss = dp_sgd(NOISE, RATE, UPDATES, AUTHORS_STEP)
    converter = PLDConverter(loss)
    mu, epsilon = float(converter.get_mu()), float(loss.get_epsilon_for_delta(DELTA))
    pair = np.array([epsilon]), np.array([DELTA])

    def powers(alpha: np.ndarray) -> dict[str, np.ndarray]:
        betas = {
            f"one pair, ({epsilon:.2f}, {DELTA:g})": curve_of_profile(alpha, *pair),
            "numerical accountant": converter.get_beta(alpha),
            f"{mu:.2f}-GDP": gaussian_fdp(mu)(alpha),
        }
        return {name: 1 - beta for name, beta in betas.items()}

    at = [power.tolist() for power in powers(np.array(RATES)).values()]
    rows = [
        {"false_positive_rate": rate, "power_pair": pair_, "power_curve": curve, "power_gdp": gdp}
        for rate, pair_, curve, gdp in zip(RATES, *at, strict=True)
    ]
    advantages = {
        "advantage_pair": (math.exp(epsilon) - 1 + 2 * DELTA) / (math.exp(epsilon) + 1),
        "advantage_curve": float(converter.get_advantage()),
    }
    alpha = np.geomspace(1e-6, 1, 400)
    figure = Figure(figsize=(5, 4.2), layout="constrained")
    axes = figure.subplots()
    draw_curves(axes, alpha, powers(alpha))
    axes.set(xscale="log", ylabel="true-positive rate, at most")
    figure.savefig(out / "gdp_fig1.png", dpi=80)
    return {"rows": rows, "epsilon": epsilon, "delta": DELTA, "mu": mu, **advantages}
