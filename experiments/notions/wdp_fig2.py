"""Yang2024, Figure 2 (without clipping) and Figure 4 (with clipping): three accountants on Weibull gradients.

Printed: gradients from Weibull(0.5), 50 x 1000; noise 0.2 C; C at four quantiles of the gradients' norms. From the
authors' notebook: rate 1/1000, order 16, beta 1, delta 1e-5, 100 steps, all pairs of the fifty gradients as
neighbours. The seeds are ours. Figure 2 does not clip, so the moments accountant's distance 2 C is no bound there.

Theorem 2 as printed (components, infimum over pairs) is computed on the pairs of the first three gradients.
"""

from pathlib import Path
from typing import Any

import numpy as np
from scipy.spatial.distance import pdist

from dpswd.diagnostics.wasserstein import WassersteinAccountant, theorem_2_loss
from experiments.notions.wdp_comparators import BayesianAccountant, MomentsAccountant

HELP = "Yang2024, Figures 2 and 4: moments, Bayesian and Wasserstein accountants on Weibull gradients"

QUANTILES = (0.05, 0.50, 0.75, 0.99)
LABELS = {
    "dp_epsilon": "moments accountant, distance 2 C",
    "bdp_epsilon": "Bayesian accountant",
    "wdp_diagnostic": "Wasserstein accountant, authors' program",
    "wdp_printed": "Wasserstein accountant, as printed",
}
ORDER, RATE, NOISE, DELTA, BETA = 16, 1e-3, 0.2, 1e-5, 1.0


def trace(
    quantile: float, *, clip: bool, steps: int, noise: float = NOISE, unit: float = 1.0
) -> dict[str, list[float]]:
    """Run the accountants; ``unit`` rescales the gradients, which changes no likelihood ratio."""
    rng = np.random.default_rng(int(1000 * quantile))
    moments, bayes = MomentsAccountant(ORDER), BayesianAccountant(ORDER, steps)
    wasserstein, printed = (
        WassersteinAccountant(order=ORDER, beta=BETA, sigma=1.0, sampling_rate=RATE) for _ in range(2)
    )
    first, second = np.triu_indices(3, 1)
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
        printed.total_loss += theorem_2_loss(ORDER, gradients[first] - gradients[second], sigma, RATE)
        values = (moments.get_epsilon(DELTA), bayes.get_epsilon(DELTA), wasserstein.get_wdp(DELTA))
        for name, value in zip(curves, (*values, printed.get_wdp(DELTA)), strict=True):
            curves[name].append(value)
    return curves


def run(out: Path, *, quick: bool = False) -> dict[str, Any]:
    """Draw ``wdp_fig2.png`` and ``wdp_fig4.png``; return the values at the last step."""
    from matplotlib.figure import Figure

    steps = 2 if quick else 100
    rows: list[dict[str, Any]] = []

    def row(number: int | None, quantile: float, clip: bool, noise: float, unit: float, curves: Any) -> dict[str, Any]:
        settings = {"figure": number, "quantile": quantile, "clipped": clip, "noise": noise, "unit": unit}
        return settings | {"steps": steps} | {name: values[-1] for name, values in curves.items()}

    for number, clip in ((2, False), (4, True)):
        figure = Figure(figsize=(9, 6.5), layout="constrained")
        for letter, axes, quantile in zip("abcd", figure.subplots(2, 2).ravel(), QUANTILES, strict=True):
            curves = trace(quantile, clip=clip, steps=steps)
            for name, label in LABELS.items():
                axes.plot(range(1, steps + 1), curves[name], label=label)
            title = f"({letter}) C at the {quantile:.2f} quantile"
            axes.set(title=title, xlabel="step", ylabel="value", yscale="log")
            axes.legend(fontsize=8)
            rows.append(row(number, quantile, clip, NOISE, 1.0, curves))
        figure.savefig(out / f"wdp_fig{number}.png", dpi=70)
    for noise, unit in ((2.0, 1.0), (0.02, 1.0), (NOISE, 1e-3)):  # dependence on the noise and on the unit
        rows.append(row(None, 0.5, True, noise, unit, trace(0.5, clip=True, steps=steps, noise=noise, unit=unit)))
    return {"rows": rows}
