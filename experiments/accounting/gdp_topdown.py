"""Gomez2025, Figure 4: the 2020 US census (TopDown algorithm) as a composition of discrete Gaussians.

A query with privacy parameter rho (zero-concentrated DP) is a discrete Gaussian of ``sigma = 1 / sqrt(2
rho)`` on counts, for adding or removing a person. A level of geography gets a share of the total rho, split
equally over its ten queries.

Allocation tables:
    ``gomez2025``: eight levels in percent, and total rho 3.65, as in the authors' notebook
        (Felipe-Gomez/gdp-numeric, notebooks/Plots_for_dpsgd_and_TopDown.ipynb).
    ``production``: the six levels of the published production settings for persons in the US, total rho 2.56
        (uscensusbureau/DAS_2020_Redistricting_Production_Code, configs/production/pl94/person_US.ini,
        ``geolevel_budget_prop``). The real split over the queries of a level is unequal; here it is equal,
        which changes nothing for continuous noise and little for this one.
"""

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

from dp_accounting.pld.privacy_loss_distribution import (
    PrivacyLossDistribution,
    from_discrete_gaussian_mechanism,
)
from gdpnum import PLDConverter

HELP = "Gomez2025, Figure 4: the 2020 census algorithm as a composition of discrete Gaussians"

QUERIES = 10
DELTA = 1e-10  # the Census Bureau's
ALLOCATIONS: dict[str, tuple[float, dict[str, float]]] = {
    "gomez2025": (
        3.65,
        {
            "US": 0.02,
            "State": 0.274,
            "County": 0.085,
            "PEPG": 0.131,
            "Tract Subset Group": 0.131,
            "Tract Subset": 0.238,
            "Block Group": 0.118,
            "Block": 0.003,
        },
    ),
    "production": (
        2.56,
        {
            level: float(Fraction(share, 4099))
            for level, share in zip(
                ("US", "State", "County", "Tract", "Block Group", "Block"),
                (104, 1440, 447, 687, 1256, 165),
                strict=True,
            )
        },
    ),
}


def compose_levels(total_rho: float, shares: dict[str, float], step: float) -> PrivacyLossDistribution:
    """Composes ``QUERIES`` discrete Gaussians for every level."""
    total: PrivacyLossDistribution | None = None
    for share in shares.values():
        sigma = math.sqrt(QUERIES / (2 * share * total_rho))
        level = from_discrete_gaussian_mechanism(sigma, value_discretization_interval=step).self_compose(QUERIES)
        total = level if total is None else total.compose(level)
    assert total is not None
    return total


def run(out: Path, *, quick: bool = False, data: Path | None = None, full: bool = False) -> dict[str, Any]:
    """Composes both allocations; draws ``gdp_topdown.png``."""
    import numpy as np
    from gdpnum.converter import gaussian_fdp
    from matplotlib.figure import Figure

    alphas = np.linspace(0, 1, 400)
    figure = Figure(figsize=(9, 4.3), layout="constrained")
    rows: list[dict[str, Any]] = []
    print(f"{'allocation':12} {'rho':>6} {'mu':>8} {'sqrt(2 rho)':>12} {'regret':>10} {'epsilon at 1e-10':>17}")
    for axes, (name, (rho, shares)) in zip(figure.subplots(1, 2), ALLOCATIONS.items(), strict=True):
        loss = compose_levels(rho, shares, 1e-3 if quick else 5e-5)
        converter = PLDConverter(loss)
        mu, regret = converter.get_mu_and_regret()
        epsilon = float(loss.get_epsilon_for_delta(DELTA))
        rows.append(
            {
                "allocation": name,
                "rho": rho,
                "queries_per_level": QUERIES,
                "shares": shares,
                "mu": float(mu),
                "mu_continuous": math.sqrt(2 * rho),
                "regret": float(regret),
                "epsilon": epsilon,
                "delta": DELTA,
            }
        )
        print(f"{name:12} {rho:6g} {mu:8.4f} {math.sqrt(2 * rho):12.4f} {regret:10.2e} {epsilon:17.3f}")
        axes.plot(alphas, converter.get_beta(alphas), label=f"TopDown, rho = {rho:g}")
        axes.plot(alphas, gaussian_fdp(mu)(alphas), "--", label=f"{mu:.3f}-GDP")
        axes.set(xlabel="false-positive rate", ylabel="false-negative rate", title=name)
        axes.legend()
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "gdp_topdown.png", dpi=80)
    return {"rows": rows}
