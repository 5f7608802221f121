"""Gomez2025, appendix D: mu and regret of published DP-SGD settings (CIFAR-10, batch 16,384 of 50,000).

DP-SGD samples by Poisson and its neighbours differ by adding or removing a record, which is not the sampling
and not the relation of this library's releases; the numbers are ``gdpnum``'s on ``dp_accounting``'s loss
distribution.
"""

from pathlib import Path
from typing import Any

from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from gdpnum import PLDConverter

HELP = "Gomez2025, appendix D: mu and regret of published DP-SGD settings"

SAMPLING_RATE = 16_384 / 50_000
SETTINGS = (
    *zip((40.0, 24.0, 20.0, 16.0, 12.0, 9.4), (906, 1156, 1656, 1765, 2007, 2000), strict=True),
    *zip((21.1, 15.8, 12.0, 9.4), (250, 500, 1000, 2000), strict=True),
)
DELTA = 1e-5
_STEP = 1e-4  # discretisation of the loss of one update; that of gdpnum


def run(out: Path, *, quick: bool = False, data: Path | None = None, full: bool = False) -> dict[str, Any]:
    """Accounts for every setting; draws the trade-off curve of the last one into ``gdp_dpsgd.png``."""
    import numpy as np
    from gdpnum.converter import gaussian_fdp
    from matplotlib.figure import Figure

    rows: list[dict[str, Any]] = []
    print(f"{'noise':>8} {'updates':>8} {'mu':>8} {'regret':>10} {'epsilon at 1e-5':>16}")
    for noise, updates in SETTINGS[-2:] if quick else SETTINGS:
        loss = from_gaussian_mechanism(
            noise, sampling_prob=SAMPLING_RATE, value_discretization_interval=10 * _STEP if quick else _STEP
        ).self_compose(updates)
        converter = PLDConverter(loss)
        mu, regret = converter.get_mu_and_regret()
        epsilon = float(loss.get_epsilon_for_delta(DELTA))
        rows.append(
            {
                "noise_multiplier": noise,
                "updates": updates,
                "sampling_rate": SAMPLING_RATE,
                "mu": float(mu),
                "regret": float(regret),
                "epsilon": epsilon,
                "delta": DELTA,
            }
        )
        print(f"{noise:8g} {updates:8d} {mu:8.4f} {regret:10.2e} {epsilon:16.3f}")

    alphas = np.linspace(0, 1, 400)
    figure = Figure(figsize=(4.5, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(alphas, converter.get_beta(alphas), label=f"noise {noise:g}, {updates} updates")
    axes.plot(alphas, gaussian_fdp(mu)(alphas), "--", label=f"{mu:.3f}-GDP")
    axes.set(xlabel="false-positive rate", ylabel="false-negative rate")
    axes.legend()
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "gdp_dpsgd.png", dpi=80)
    return {"rows": rows}
