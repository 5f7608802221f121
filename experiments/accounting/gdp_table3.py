"""Gomez2025, Table 3 and Proposition 6.1: mu of Gaussian noise that is (epsilon, delta)-DP, and of pure epsilon-DP.

Pure epsilon-DP is mu-GDP with ``mu = -2 Phi^{-1}(1 / (e^epsilon + 1))`` and for no smaller mu (randomised response
attains it). The mu of the Gaussian mechanism that is exactly (epsilon, delta)-DP depends on delta as much as on
epsilon.
"""

import math
from pathlib import Path
from typing import Any

from gdpnum import PLDConverter
from scipy import optimize, stats

from dpswd.accounting.pld import gaussian_delta
from experiments.accounting.gdp import randomised_response

HELP = "Gomez2025, Table 3, Proposition 6.1: from epsilon to mu, for Gaussian noise at several deltas and for pure DP"

EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0)
DELTAS = (1e-5, 1e-6, 1e-9)


def pure_mu(epsilon: float) -> float:
    """The least mu for which every epsilon-DP mechanism is mu-GDP (Gomez2025, Proposition 6.1)."""
    return float(-2 * stats.norm.ppf(1 / (1 + math.exp(epsilon))))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The mu of the Gaussian mechanism that is exactly (epsilon, delta)-DP (Gomez2025, Eq. 19)."""
    return float(optimize.brentq(lambda mu: float(gaussian_delta(mu, epsilon)) - delta, 1e-6, 50))


def run(out: Path, *, quick: bool = False) -> dict[str, Any]:
    """Convert every epsilon; draw ``gdp_table3.png``."""
    from matplotlib.figure import Figure

    rows = []
    for epsilon in EPSILONS:
        mu, regret = (float(value) for value in PLDConverter(randomised_response(epsilon)).get_mu_and_regret())
        row = {"epsilon": epsilon, "mu_pure": pure_mu(epsilon), "mu_pure_gdpnum": mu, "regret_pure": regret}
        row |= {f"mu_gaussian_delta_{delta:g}": gaussian_mu(epsilon, delta) for delta in DELTAS}
        rows.append(row)

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(EPSILONS, [row["mu_pure"] for row in rows], "o-", label="pure epsilon-DP")
    for delta in DELTAS:
        axes.plot(
            EPSILONS,
            [row[f"mu_gaussian_delta_{delta:g}"] for row in rows],
            label=f"Gaussian, delta = {delta:g}",
        )
    axes.set(xlabel="epsilon", ylabel="mu")
    axes.legend(fontsize=8)
    axes.grid(True, alpha=0.3)
    figure.savefig(out / "gdp_table3.png", dpi=80)
    return {"rows": rows}
