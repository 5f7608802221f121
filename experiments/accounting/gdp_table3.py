"""Gomez2025, Table 3 (our reading): what epsilon alone says, in terms of mu.

Pure epsilon-DP is mu-GDP with ``mu = 2 Phi^{-1}(e^epsilon / (1 + e^epsilon))`` and no smaller mu (randomised
response attains it). A Gaussian mechanism calibrated to (epsilon, delta) has a mu that depends on delta as
much as on epsilon.
"""

import math
from pathlib import Path
from typing import Any

from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from gdpnum import PLDConverter
from scipy import optimize, stats

from dpswd.accounting.pld import gaussian_delta

HELP = "Gomez2025, Table 3: from epsilon to mu, for pure DP and for Gaussian mechanisms at several deltas"

EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0)
DELTAS = (1e-5, 1e-6, 1e-9)


def pure_mu(epsilon: float) -> float:
    """The least mu for which every epsilon-DP mechanism is mu-GDP."""
    return float(-2 * stats.norm.ppf(1 / (1 + math.exp(epsilon))))


def pure_mu_and_regret(epsilon: float) -> tuple[float, float]:
    """The same through ``gdpnum``, with its regret, from the loss of randomised response (two points)."""
    likely = 1 / (1 + math.exp(-epsilon))
    loss = pld_pmf.create_pmf({-1: 1 - likely, 1: likely}, epsilon, 0.0, pessimistic_estimate=True)
    mu, regret = PLDConverter(PrivacyLossDistribution(loss)).get_mu_and_regret()
    return float(mu), float(regret)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The mu of the Gaussian mechanism that is exactly (epsilon, delta)-DP (Balle and Wang 2018)."""
    return float(optimize.brentq(lambda mu: float(gaussian_delta(mu, epsilon)) - delta, 1e-6, 50))


def run(out: Path, *, quick: bool = False, data: Path | None = None, full: bool = False) -> dict[str, Any]:
    """Converts every epsilon; draws ``gdp_table3.png``."""
    from matplotlib.figure import Figure

    rows = []
    for epsilon in EPSILONS:
        mu, regret = pure_mu_and_regret(epsilon)
        row = {"epsilon": epsilon, "mu_pure": pure_mu(epsilon), "mu_pure_gdpnum": mu, "regret_pure": regret}
        row |= {f"mu_gaussian_delta_{delta:g}": gaussian_mu(epsilon, delta) for delta in DELTAS}
        rows.append(row)
    names = list(rows[0])
    print("".join(f"{name:>26}" for name in names))
    for row in rows:
        print("".join(f"{row[name]:26.4f}" for name in names))

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
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "gdp_table3.png", dpi=80)
    return {"rows": rows}
