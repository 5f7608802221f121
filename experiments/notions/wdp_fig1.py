"""Yang2024, Figure 1: Laplace and Gaussian noise against the order, under RDP (a, b) and WDP (c, d)."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from dpswd.diagnostics.wasserstein import gaussian_distance, gaussian_wdp, laplace_wdp

HELP = "Yang2024, Figure 1: RDP and WDP values of Laplace and Gaussian noise against the order"

SCALES = (1.0, 2.0, 3.0, 5.0)


def laplace_rdp(order: float, scale: float) -> float:
    """Renyi divergence of two Laplace laws one unit apart (Mironov 2017, Table II)."""
    if order == 1:
        return 1 / scale + math.expm1(-1 / scale)
    up = order / (2 * order - 1) * math.exp((order - 1) / scale)
    down = (order - 1) / (2 * order - 1) * math.exp(-order / scale)
    return math.log(up + down) / (order - 1)


def gaussian_rdp(order: float, scale: float) -> float:
    """Renyi divergence of two Gaussian laws one unit apart."""
    return order / (2 * scale**2)


CURVES = {
    "a: RDP, Laplace": laplace_rdp,
    "b: RDP, Gaussian": gaussian_rdp,
    "c: WDP, Laplace (Prop. 7)": laplace_wdp,
    "d: WDP, Gaussian (Prop. 8)": gaussian_wdp,
}


def run(out: Path, *, quick: bool = False, data: Path | None = None, full: bool = False) -> dict[str, Any]:
    """Computes the curves, draws ``wdp_fig1.png`` and returns the values at orders 1, 2, 5 and 10."""
    from matplotlib.figure import Figure

    orders = np.linspace(1, 10, 20 if quick else 181)
    figure = Figure(figsize=(9, 6.5), layout="constrained")
    rows = []
    for axes, (name, curve) in zip(figure.subplots(2, 2).ravel(), CURVES.items(), strict=True):
        for scale in SCALES:
            axes.plot(orders, [curve(order, scale) for order in orders], label=f"noise scale {scale:g}")
            for order in (1.0, 2.0, 5.0, 10.0):
                true = gaussian_distance(1.0, scale, scale, order) if name[0] in "cd" else None
                rows.append(
                    {
                        "panel": name,
                        "scale": scale,
                        "order": order,
                        "value": curve(order, scale),
                        "true_distance": true,
                    }
                )
        if name[0] in "cd":
            axes.axhline(1, color="black", linestyle="--", label="distance of Definition 3")
        axes.set(title=name, xlabel="order", xlim=(1, 10), ylim=(0, 1.6 if name[0] in "cd" else None))
        axes.legend(fontsize=8)
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "wdp_fig1.png", dpi=70)
    print(f"{'panel':28} {'scale':>5} " + " ".join(f"{'order ' + str(o):>9}" for o in (1, 2, 5, 10)))
    for name in CURVES:
        for scale in SCALES:
            values = [row["value"] for row in rows if row["panel"] == name and row["scale"] == scale]
            print(f"{name:28} {scale:5g} " + " ".join(f"{value:9.4f}" for value in values))
    return {"rows": rows}
