"""Yang2024, Table 1 and Figure 1: budgets of Laplace and Gaussian noise under DP, RDP and WDP.

Settings as printed: sensitivity 1, noise scales 1, 2, 3, 5, orders 1 to 10.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np

from dpswd.diagnostics.wasserstein import gaussian_distance, gaussian_wdp, laplace_wdp

HELP = "Yang2024, Table 1 and Figure 1: budgets of Laplace and Gaussian noise under DP, RDP and WDP"

SCALES, ORDERS = (1.0, 2.0, 3.0, 5.0), (1.0, 2.0, 5.0, 10.0)


def laplace_rdp(order: float, scale: float) -> float:
    """Renyi divergence of two Laplace laws 1 apart (Mironov2017, Table II)."""
    if order == 1:
        return 1 / scale + math.expm1(-1 / scale)
    up = order / (2 * order - 1) * math.exp((order - 1) / scale)
    down = (order - 1) / (2 * order - 1) * math.exp(-order / scale)
    return math.log(up + down) / (order - 1)


def gaussian_rdp(order: float, scale: float) -> float:
    """Renyi divergence of two Gaussian laws 1 apart."""
    return order / (2 * scale**2)


PANELS = {
    "(a) Laplace, RDP": laplace_rdp,
    "(b) Laplace, WDP": laplace_wdp,
    "(c) Gaussian, RDP": gaussian_rdp,
    "(d) Gaussian, WDP": gaussian_wdp,
}


def table_1() -> list[dict[str, Any]]:
    """Table 1 in numbers: sensitivity 1, scales 1 and 3, orders 1 and 2; ``None`` stands for infinity."""
    rows: list[dict[str, Any]] = []
    for scale in (1.0, 3.0):
        rows.append({"notion": "DP", "order": None, "scale": scale, "laplace": 1 / scale, "gaussian": None})
        for notion, laplace, gaussian in (("RDP", laplace_rdp, gaussian_rdp), ("WDP", laplace_wdp, gaussian_wdp)):
            for order in (1.0, 2.0):
                values = {"laplace": laplace(order, scale), "gaussian": gaussian(order, scale)}
                rows.append({"notion": notion, "order": order, "scale": scale} | values)
    return rows


def run(out: Path, *, quick: bool = False) -> dict[str, Any]:
    """Draw ``wdp_fig1.png``; return Table 1 and the curves at orders 1, 2, 5 and 10."""
    from matplotlib.figure import Figure

    orders = np.linspace(1, 10, 20 if quick else 181)
    figure = Figure(figsize=(9, 6.5), layout="constrained")
    rows: list[dict[str, Any]] = []
    for axes, (name, curve) in zip(figure.subplots(2, 2).ravel(), PANELS.items(), strict=True):
        wdp = name.endswith("WDP")
        for scale in SCALES:
            axes.plot(orders, [curve(order, scale) for order in orders], label=f"noise scale {scale:g}")
            for order in ORDERS:
                true = gaussian_distance(1.0, scale, scale, order) if wdp else None  # equal to 1: any shift by 1
                values = {"value": curve(order, scale), "true_distance": true}
                rows.append({"panel": name, "scale": scale, "order": order} | values)
        if wdp:
            axes.axhline(1, color="black", linestyle="--", label="distance of Definition 3")
        axes.set(title=name, xlabel="order", xlim=(1, 10), ylim=(0, 1.6 if wdp else None))
        axes.legend(fontsize=8)
    figure.savefig(out / "wdp_fig1.png", dpi=70)
    return {"table_1": table_1(), "rows": rows}
