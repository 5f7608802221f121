"""Gomez2025, Figures 5 and 6: trade-off curves of the DP-SGD settings of its Tables 4 and 5, and their f_mu.

The settings are those of De et al. (2022), CIFAR-10, batch 16,384 of 50,000, Poisson sampling, add or remove. Which
four settings of Table 4 the paper's Figure 5 shows is not in the text; here they are those of nominal epsilon 1, 2, 4
and 8.
"""

from pathlib import Path
from typing import Any

import numpy as np
from gdpnum import PLDConverter
from gdpnum.converter import gaussian_fdp

from experiments.accounting.gdp import AUTHORS_STEP, dp_sgd, draw_curves

HELP = "Gomez2025, Figures 5 and 6: curves, mu and regret of published DP-SGD settings"

SAMPLING_RATE, DELTA = 16_384 / 50_000, 1e-5
SETTINGS = {  # table of the paper: nominal epsilon, noise multiplier, updates
    4: ((1, 40.0, 906), (2, 24.0, 1156), (3, 20.0, 1656), (4, 16.0, 1765), (6, 12.0, 2007), (8, 9.4, 2000)),
    5: ((1, 21.1, 250), (2, 15.8, 500), (4, 12.0, 1000), (8, 9.4, 2000)),
}
SHOWN = (1, 2, 4, 8)


def run(out: Path, *, quick: bool = False) -> dict[str, Any]:
    """Account for every setting; draw ``gdp_dpsgd.png``: curves, the same log-log, and the difference to f_mu."""
    from matplotlib.figure import Figure

    alpha = np.concatenate([np.geomspace(1e-6, 1e-2, 200), np.linspace(1e-2, 1, 800)])
    figure = Figure(figsize=(12, 7.2), layout="constrained")
    rows: list[dict[str, Any]] = []
    for panels, (table, settings) in zip(figure.subplots(2, 3), SETTINGS.items(), strict=True):
        curves: dict[str, np.ndarray] = {}
        differences: dict[str, np.ndarray] = {}
        for nominal, noise, updates in settings[-1:] if quick else settings:
            loss = dp_sgd(noise, SAMPLING_RATE, updates, AUTHORS_STEP)
            converter = PLDConverter(loss)
            mu, regret = (float(value) for value in converter.get_mu_and_regret())
            row = {"table": table, "nominal_epsilon": nominal, "noise_multiplier": noise, "updates": updates}
            row |= {"sampling_rate": SAMPLING_RATE, "mu": mu, "regret": regret}
            row |= {"epsilon": float(loss.get_epsilon_for_delta(DELTA)), "delta": DELTA}
            rows.append(row)
            if nominal in SHOWN:
                label, beta = f"noise {noise:g}, {updates} updates", converter.get_beta(alpha)
                curves |= {label: beta, f"{mu:.3f}-GDP": gaussian_fdp(mu)(alpha)}
                differences[label] = beta - gaussian_fdp(mu)(alpha)
        draw_curves(panels[0], alpha, curves)
        draw_curves(panels[1], alpha, curves, logarithmic=True)
        draw_curves(panels[2], alpha, differences)
        panels[0].set_title(f"Figure {table + 1}: settings of Table {table}")
        panels[2].set(xscale="log", ylabel="difference to f of mu")
    figure.savefig(out / "gdp_dpsgd.png", dpi=80)
    return {"rows": rows}
