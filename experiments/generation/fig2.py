"""Rakotomamonjy2021, Figure 2 (Section 6.1): distances of N(0, I) and N(c 1, I) in five dimensions against c.

The paper does not state the number of directions, the order of the distance and the sample sizes; here they are 200, 2
and 100, 1,000 and 10,000. Noise goes on both sides, as in Algorithm 1. Beside it: block means of n / 10 quantiles, with
noise of sigma / 10 on one side, which is the same guarantee, and with the variance of the noise taken off.
"""

from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpswd import random_projections
from experiments.plots import figure

DIM, N_PROJECTIONS, DRAWS, BLOCK = 5, 200, 5, 10
SIZES = (100, 1000, 10_000)
SIGMAS = (1.0, 3.0)
SHIFTS = tuple(float(c) for c in np.linspace(0, 1, 11))


def distances(shift: float, n: int, sigma: float, generator: torch.Generator) -> dict[str, float]:
    """SWD, DP-SWD and the debiased distance of block means (roots; negative estimates count as zero) of one draw."""

    def noise(*shape: int) -> Tensor:
        return sigma * torch.randn(*shape, generator=generator, dtype=torch.float64)

    x, y = (torch.randn(n, DIM, generator=generator, dtype=torch.float64) for _ in range(2))
    u = random_projections(DIM, N_PROJECTIONS, generator=generator, dtype=torch.float64)
    source, target = x @ u, (y + shift) @ u
    plain = [side.sort(dim=0).values for side in (source, target)]
    noisy = [(side + noise(n, N_PROJECTIONS)).sort(dim=0).values for side in (source, target)]
    blocks = [side.view(n // BLOCK, BLOCK, N_PROJECTIONS).mean(1) for side in plain]
    released = blocks[1] + noise(n // BLOCK, N_PROJECTIONS) / BLOCK
    debiased = float((blocks[0] - released).square().mean()) - (sigma / BLOCK) ** 2
    return {
        "swd": float((plain[0] - plain[1]).square().mean().sqrt()),
        "dp_swd": float((noisy[0] - noisy[1]).square().mean().sqrt()),
        "block_means": max(debiased, 0.0) ** 0.5,
    }


def run(out: Path, *, quick: bool = False) -> dict[str, Any]:
    """Rakotomamonjy2021, Figure 2: SWD, DP-SWD and debiased block means of two Normals against their shift."""
    generator = torch.Generator().manual_seed(0)
    rows: list[dict[str, Any]] = []
    for sigma in SIGMAS:
        for n in SIZES[:2] if quick else SIZES:
            for shift in SHIFTS[::5] if quick else SHIFTS:
                draws = [distances(shift, n, sigma, generator) for _ in range(DRAWS)]
                means = {name: mean(draw[name] for draw in draws) for name in draws[0]}
                rows.append({"sigma": sigma, "n": n, "shift": shift, "draws": DRAWS, **means})
        print(f"sigma {sigma:g}: done", flush=True)

    lines = (("swd", ":", "SWD"), ("dp_swd", "-", "DP-SWD"), ("block_means", "--", "ours"))
    with figure(out / "fig2.png", 10, 4.2, 1, 2, sharey=True) as panels:
        for axes, sigma in zip(panels, SIGMAS, strict=True):
            for i, n in enumerate(SIZES):
                same = [row for row in rows if (row["sigma"], row["n"]) == (sigma, n)]
                for name, style, label in lines:
                    points = [row["shift"] for row in same], [row[name] for row in same]
                    axes.plot(*points, style, color=f"C{i}", label=f"{label}, n = {n:,}")
            axes.set(title=f"sigma = {sigma:g}", xlabel="shift c")
            axes.grid(True, alpha=0.3)
        panels[0].set_ylabel("distance")
        panels[0].legend(fontsize=7, ncols=2)
    return {"rows": rows}
