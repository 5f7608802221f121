"""Gomez2025, Figure 3: the regret of reporting only mu, against sampling rate, noise and number of compositions.

One plot of DP-SGD (Poisson sampling, add or remove): regret against the rate, one colour for each noise multiplier,
darker lines for more compositions. The paper's text does not state its ranges, so ours are a choice. A second
plot has the same for the releases of this library (subsets of fixed size without replacement, replace-one).
"""

from pathlib import Path
from typing import Any

from gdpnum import PLDConverter

from dpswd.accounting.pld import Releases, compose
from dpswd.sensitivity import ConstantLaw
from experiments.accounting.gdp import dp_sgd

HELP = "Gomez2025, Figure 3: regret of DP-SGD against sampling rate, noise and compositions; ours beside it"

SAMPLING_RATES = (0.01, 0.03, 0.1, 0.3, 0.6, 1.0)
NOISES = (0.7, 1.0, 2.0, 5.0)
COMPOSITIONS = (30, 100, 300, 1000)


def run(out: Path, *, quick: bool = False) -> dict[str, Any]:
    """Account for every combination; draw ``gdp_fig3.png``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    rows: list[dict[str, Any]] = []
    for noise, color in list(zip(NOISES, ("C3", "C1", "C2", "C0"), strict=True))[2 if quick else 0 :]:
        for times, shade in list(zip(COMPOSITIONS, (0.25, 0.5, 0.75, 1.0), strict=True))[2 if quick else 0 :]:
            same = [_row(rate, noise, times) for rate in SAMPLING_RATES[1::2]] if quick else []
            same = same or [_row(rate, noise, times) for rate in SAMPLING_RATES]
            rows += same
            for axes, kind in zip(panels, ("poisson", "ours"), strict=True):
                known = [row for row in same if row[f"regret_{kind}"] is not None]
                points = [row["rate"] for row in known], [max(row[f"regret_{kind}"], 1e-9) for row in known]
                axes.plot(*points, "o-", color=color, alpha=shade, markersize=3, label=f"noise {noise:g}, {times} x")
    titles = ("DP-SGD: Poisson, add or remove", "without replacement, replace-one")
    for axes, title in zip(panels, titles, strict=True):
        axes.axhline(1e-2, color="gray", linestyle=":")
        axes.set(xscale="log", yscale="log", ylim=(1e-6, 0.1), xlabel="sampling rate", title=title)
    panels[0].set_ylabel("regret")
    panels[0].legend(fontsize=6, ncols=2)
    figure.savefig(out / "gdp_fig3.png", dpi=90)
    return {"rows": rows}


def _row(rate: float, noise: float, times: int) -> dict[str, Any]:
    row: dict[str, Any] = {"rate": rate, "noise": noise, "times": times}
    losses = {
        "poisson": lambda: dp_sgd(noise, rate, times),
        "ours": lambda: compose([Releases(ConstantLaw(1.0), 1 / noise, rate, times)]),
    }
    for kind, loss in losses.items():
        try:
            mu, regret = PLDConverter(loss()).get_mu_and_regret()
        except (ValueError, AssertionError):  # the loss is too large, or its curve is at the rounding error everywhere
            mu, regret = None, None
        row |= {f"mu_{kind}": None if mu is None else float(mu), f"regret_{kind}": regret}
    return row
