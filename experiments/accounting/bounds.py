"""Bounds on the squared sensitivity S and its exact quantile against the number of projections (in no paper)."""

from pathlib import Path
from typing import Any

import numpy as np

from dpswd.sensitivity import ProjectionLaw, bernstein_bound, clt_bound
from experiments.accounting.fig1 import exact_quantile

HELP = "bounds on the squared sensitivity and its exact quantile against the number of projections"

TAIL = 1e-5
DIMS = (50, 784, 8192)


def run(out: Path, *, quick: bool = False) -> dict[str, Any]:
    """Compute bounds and exact quantiles; draw ``bounds.png``."""
    from matplotlib.figure import Figure

    counts = [int(k) for k in np.unique(np.geomspace(32, 2000, 4 if quick else 12).astype(int))]
    rows = []
    for dim in DIMS:
        for k in counts:
            law = ProjectionLaw(dim, k)
            rows.append(
                {
                    "dim": dim,
                    "n_projections": k,
                    "tail": TAIL,
                    "mean": law.mean,
                    "exact": exact_quantile(law, TAIL),
                    "clt": clt_bound(k, dim, TAIL),
                    "bernstein": bernstein_bound(k, dim, TAIL),
                    "deterministic": float(k),
                }
            )

    figure = Figure(figsize=(10, 3.6), layout="constrained")
    for axes, dim in zip(figure.subplots(1, len(DIMS)), DIMS, strict=True):
        same = [row for row in rows if row["dim"] == dim]
        styles = (("mean", ":"), ("clt", "--"), ("exact", "-"), ("bernstein", "-."), ("deterministic", ":"))
        for name, style in styles:
            axes.loglog(counts, [row[name] for row in same], style, label=name)
        axes.set_title(f"d = {dim}", fontsize=10)
        axes.set_xlabel("number of projections")
        axes.grid(True, which="both", alpha=0.3)
    figure.axes[0].set_ylabel(f"S exceeded with probability {TAIL:g}")
    figure.axes[0].legend(fontsize=8)
    figure.savefig(out / "bounds.png", dpi=80)
    return {"rows": rows}
