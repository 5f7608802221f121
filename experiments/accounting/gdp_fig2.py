"""Gomez2025, Figure 2: trade-off curves of one mechanism from (epsilon, delta), zCDP, a numerical accountant, GDP.

The sigma of the figure is not in the text; here it is 1 at sensitivity 1, so that rho = 1/2 and mu = 1 for continuous
noise.
"""

from pathlib import Path
from typing import Any

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import from_discrete_gaussian_mechanism, from_gaussian_mechanism
from gdpnum import PLDConverter
from gdpnum.converter import gaussian_fdp

from experiments.accounting.gdp import curve_of_profile, draw_curves, zcdp_delta

HELP = "Gomez2025, Figure 2: trade-off curves of Gaussian noise from (epsilon, delta), zCDP, accountant and GDP"

SIGMA, DELTA = 1.0, 1e-5
RATES = (1e-4, 1e-2, 1e-1)


def run(out: Path, *, quick: bool = False) -> dict[str, Any]:
    """Compute the curves of both mechanisms; draw ``gdp_fig2.png``."""
    from matplotlib.figure import Figure

    epsilons = np.linspace(0, 12, 200 if quick else 1000)
    rho = 1 / (2 * SIGMA**2)
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    rows = []
    mechanisms = {"Gaussian": from_gaussian_mechanism, "discrete Gaussian": from_discrete_gaussian_mechanism}
    for axes, (name, distribution) in zip(figure.subplots(1, 2), mechanisms.items(), strict=True):
        loss = distribution(SIGMA, value_discretization_interval=1e-3)
        converter = PLDConverter(loss)
        mu, epsilon = float(converter.get_mu()), float(loss.get_epsilon_for_delta(DELTA))

        def curves(alpha: np.ndarray, mu: float = mu, epsilon: float = epsilon, by: Any = converter) -> dict[str, Any]:
            return {
                f"({epsilon:.2f}, {DELTA:g})": curve_of_profile(alpha, np.array([epsilon]), np.array([DELTA])),
                f"{rho:g}-zCDP": curve_of_profile(alpha, epsilons, zcdp_delta(rho, epsilons)),
                "numerical accountant": by.get_beta(alpha),
                f"{mu:.3f}-GDP": gaussian_fdp(mu)(alpha),
            }

        values = zip(*(beta.tolist() for beta in curves(np.array(RATES)).values()), strict=True)
        for rate, found in zip(RATES, values, strict=True):
            betas = dict(zip(("beta_pair", "beta_zcdp", "beta_accountant", "beta_gdp"), found, strict=True))
            rows.append({"mechanism": name, "sigma": SIGMA, "mu": mu, "false_positive_rate": rate, **betas})
        alpha = np.linspace(0, 1, 400)
        draw_curves(axes, alpha, curves(alpha))
        axes.set_title(f"{name}, sigma = {SIGMA:g}")
    figure.savefig(out / "gdp_fig2.png", dpi=80)
    return {"rows": rows, "rho": rho, "delta": DELTA}
