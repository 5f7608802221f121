"""Gomez2025, Figure 4: curve and f_mu of DP-SGD, of the 2020 US census (TopDown) and of pure epsilon-DP.

TopDown is a composition of discrete Gaussians on counts, for adding or removing a person: a level of geography gets a
share of the total rho (zCDP), split equally over its ten queries. Shares:

``gomez2025``
    Eight levels and rho 3.65, from the authors' notebook (Felipe-Gomez/gdp-numeric,
    notebooks/Plots_for_dpsgd_and_TopDown.ipynb): the budget of 25 August 2022.
``production``
    The six levels of the published production settings for persons in the US, rho 2.56
    (uscensusbureau/DAS_2020_Redistricting_Production_Code, configs/production/pl94/person_US.ini). There the split
    over the queries of a level is unequal.

The epsilon of the paper's third panel is not in its text; here it is 2.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from gdpnum import PLDConverter
from gdpnum.converter import gaussian_fdp

from experiments.accounting.gdp import AUTHORS_STEP, QUERIES, dp_sgd, draw_curves, randomised_response, top_down

HELP = "Gomez2025, Figure 4: DP-SGD, the 2020 census and pure epsilon-DP as mu-GDP"

CENSUS_DELTA = 1e-10  # the Census Bureau's
PURE_EPSILON = 2.0
GOMEZ_LEVELS = ("US", "State", "County", "PEPG", "Tract Subset Group", "Tract Subset", "Block Group", "Block")
PRODUCTION = {"US": 104, "State": 1440, "County": 447, "Tract": 687, "Block Group": 1256, "Block": 165}
ALLOCATIONS: dict[str, tuple[float, dict[str, float]]] = {
    "gomez2025": (
        3.65,
        dict(zip(GOMEZ_LEVELS, (0.02, 0.274, 0.085, 0.131, 0.131, 0.238, 0.118, 0.003), strict=True)),
    ),
    "production": (2.56, {level: share / 4099 for level, share in PRODUCTION.items()}),
}


def run(out: Path, *, quick: bool = False) -> dict[str, Any]:
    """Account for all four; draw ``gdp_fig4.png``."""
    from matplotlib.figure import Figure

    rows: list[dict[str, Any]] = []
    losses: dict[str, tuple[PrivacyLossDistribution, float, dict[str, Any]]] = {
        "DP-SGD, noise 9.4": (dp_sgd(9.4, 16_384 / 50_000, 2000, AUTHORS_STEP), 1e-5, {})
    }
    for name, (rho, shares) in ALLOCATIONS.items():
        facts = {"rho": rho, "queries_per_level": QUERIES, "shares": shares, "mu_continuous": math.sqrt(2 * rho)}
        losses[f"TopDown, {name}"] = (top_down(rho, shares, 1e-3 if quick else 5e-5), CENSUS_DELTA, facts)
    losses[f"pure epsilon = {PURE_EPSILON:g}"] = (randomised_response(PURE_EPSILON), 1e-10, {})
    alpha = np.linspace(0, 1, 1001)
    figure = Figure(figsize=(13, 3.6), layout="constrained")
    for axes, (name, (loss, delta, facts)) in zip(figure.subplots(1, 4), losses.items(), strict=True):
        converter = PLDConverter(loss)
        mu, regret = (float(value) for value in converter.get_mu_and_regret())
        epsilon = float(loss.get_epsilon_for_delta(delta))
        rows.append({"mechanism": name, "mu": mu, "regret": regret, "epsilon": epsilon, "delta": delta, **facts})
        draw_curves(axes, alpha, {name: converter.get_beta(alpha), f"{mu:.3f}-GDP": gaussian_fdp(mu)(alpha)})
    figure.savefig(out / "gdp_fig4.png", dpi=80)
    return {"rows": rows}
