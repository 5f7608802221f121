"""Yang2024, Figure 3: Corollary 1 against beta (a) and delta (b).

The curves' beta and delta are printed; the sum of losses, 10, is from the authors' notebook. So the figure shows
10 - ln(delta) / beta.
"""

from pathlib import Path
from typing import Any

import numpy as np

from dpswd.diagnostics.wasserstein import WassersteinAccountant

HELP = "Yang2024, Figure 3: the WDP diagnostic against the free constant beta and against delta"

LOSS = 10.0


def diagnostic(beta: float, delta: float) -> float:
    """Return Corollary 1 at a sum of losses of 10."""
    accountant = WassersteinAccountant(order=1, beta=beta, sigma=1.0, sampling_rate=0.0)
    accountant.total_loss = LOSS
    return accountant.get_wdp(delta)


def run(out: Path, *, quick: bool = False) -> dict[str, Any]:
    """Draw ``wdp_fig3.png`` and return values at the ends of every curve."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    betas, deltas = np.arange(1.0, 51.0), np.geomspace(1e-10, 1e-5, 10 if quick else 200)
    rows = []
    for delta in (1e-10, 1e-8, 1e-5, 1e-3):
        left.plot(betas, [diagnostic(float(beta), delta) for beta in betas], label=f"delta = {delta:g}")
        rows += [{"panel": "a", "beta": beta, "delta": delta} for beta in (1.0, 10.0, 50.0)]
    for beta in (1.0, 2.0, 5.0, 10.0):
        right.plot(deltas, [diagnostic(beta, float(delta)) for delta in deltas], label=f"beta = {beta:g}")
        rows += [{"panel": "b", "beta": beta, "delta": delta} for delta in (1e-10, 1e-5)]
    left.set(title="(a)", xlabel="beta", ylabel="WDP diagnostic", ylim=(LOSS - 1, 35))
    right.set(title="(b)", xlabel="delta", ylabel="WDP diagnostic", xscale="log", ylim=(LOSS - 1, 35))
    for axes in (left, right):
        axes.axhline(LOSS, color="black", linestyle="--", linewidth=1)
        axes.legend(fontsize=8)
    figure.savefig(out / "wdp_fig3.png", dpi=70)
    return {"rows": [row | {"wdp_diagnostic": diagnostic(row["beta"], row["delta"])} for row in rows]}
