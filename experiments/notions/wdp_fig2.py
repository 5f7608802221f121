"""Yang2024, Figure 2 and its clipped twin, Figure 4: three accountants on heavy-tailed gradients.

Fifty gradients of 1,000 coordinates from Weibull(0.5), 100 steps, noise 0.2 C, rate 1/1000, order 16, delta
1e-5, C at a quantile of the gradients' norms. All pairs of gradients are the neighbours. The settings of the
authors' program. Figure 2 does not clip, so that the moments accountant's distance 2 C is no bound there.
"""

from pathlib import Path
from typing import Any

import numpy as np
from scipy.spatial.distance import pdist

from dpswd.diagnostics.accountant import WassersteinAccountant
from experiments.notions.wdp_comparators import BayesianAccountant, MomentsAccountant

HELP = "Yang2024, Figures 2 and 4: moments, Bayesian and Wasserstein accountants on Weibull gradients"

QUANTILES = (0.05, 0.50, 0.75, 0.99)
LABELS = {
    "dp_epsilon": "moments accountant, distance 2 C",
    "bdp_epsilon": "Bayesian accountant",
    "wdp_diagnostic": "Wasserstein accountant (diagnostic)",
}
ORDER, RATE, NOISE, DELTA, BETA = 16, 1e-3, 0.2, 1e-5, 1.0


def trace(
    quantile: float, *, clip: bool, steps: int, noise: float = NOISE, unit: float = 1.0
) -> dict[str, list[float]]:
    """Runs the accountants; ``unit`` rescales the gradients, which changes nothing that an attacker sees."""
    rng = np.random.default_rng(int(1000 * quantile))
    moments, bayes = MomentsAccountant(ORDER), BayesianAccountant(ORDER, steps)
    wasserstein = WassersteinAccountant(order=ORDER, beta=BETA, sigma=1.0, sampling_rate=RATE)
    curves: dict[str, list[float]] = {name: [] for name in LABELS}
    for _ in range(steps):
        gradients = unit * rng.weibull(0.5, (50, 1000))
        norms = np.linalg.norm(gradients, axis=1)
        bound = float(np.quantile(norms, quantile))
        if clip:
            gradients *= np.minimum(1, bound / norms)[:, None]
        distances, sigma = pdist(gradients), noise * bound
        moments.step(2 * bound, sigma=sigma, rate=RATE)
        bayes.step(distances, sigma=sigma, rate=RATE)
        wasserstein.step(distances, sigma=sigma)
        for name, accountant in zip(curves, (moments, bayes, wasserstein), strict=True):
            curves[name].append(accountant.get_epsilon(DELTA))
    return curves


def run(out: Path, *, quick: bool = False, data: Path | None = None, full: bool = False) -> dict[str, Any]:
    """Draws ``wdp_fig2.png`` (unclipped), ``wdp_fig4.png`` (clipped); returns the values at the last step."""
    from matplotlib.figure import Figure

    steps = 5 if quick else 100
    rows: list[dict[str, Any]] = []
    out.mkdir(parents=True, exist_ok=True)
    for number, clip in ((2, False), (4, True)):
        figure = Figure(figsize=(9, 6.5), layout="constrained")
        for axes, quantile in zip(figure.subplots(2, 2).ravel(), QUANTILES, strict=True):
            curves = trace(quantile, clip=clip, steps=steps)
            for name, label in LABELS.items():
                axes.plot(range(1, steps + 1), curves[name], label=label)
            axes.set(title=f"C at the {quantile:.2f} quantile", xlabel="step", ylabel="value", yscale="log")
            axes.legend(fontsize=8)
            rows.append(_row(number, quantile, clip, NOISE, 1.0, curves))
        figure.savefig(out / f"wdp_fig{number}.png", dpi=70)
    for noise, unit in (
        (2.0, 1.0),
        (0.02, 1.0),
        (NOISE, 1e-3),
    ):  # what moves the diagnostic: noise and the unit
        curves = trace(0.5, clip=True, steps=steps, noise=noise, unit=unit)
        rows.append(_row(None, 0.5, True, noise, unit, curves))
    print("figure     C  clip  noise   unit     DP eps    BDP eps  WDP diagnostic")
    for row in rows:
        values = " ".join(f"{row[name]:10.4g}" for name in LABELS)
        settings = f"{row['figure'] or '-':>6} {row['quantile']:5.2f} {row['clipped']!s:>5}"
        print(f"{settings} {row['noise']:6g} {row['unit']:6g} {values}")
    return {"rows": rows}


def _row(
    figure: int | None, quantile: float, clip: bool, noise: float, unit: float, curves: dict[str, list[float]]
) -> dict[str, Any]:
    settings = {"figure": figure, "quantile": quantile, "clipped": clip, "noise": noise, "unit": unit}
    return settings | {"steps": len(curves["dp_epsilon"])} | {name: values[-1] for name, values in curves.items()}
