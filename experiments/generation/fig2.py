"""Rakotomamonjy2021, Figure 2: distances of N(0, I) and N(c 1, I) against c.

The paper does not state the number of directions, the order of the distance and the sample sizes;
here they are 200, 2 and 100, 1,000 and 10,000, in five dimensions. Noise goes on both sides, as in
Algorithm 1. Beside it: block means of n / 10 quantiles, with noise of sigma / 10 on one side, which
is the same guarantee, and with the variance of the noise taken off.
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from torch import Tensor

from dpswd import random_projections
from experiments.plots import figure
from experiments.results import Result, Row

DIM = 5
N_PROJECTIONS = 200
DRAWS = 5
BLOCK = 10  # neighbours that are averaged
SIZES: tuple[int, ...] = (100, 1000, 10_000)
SIGMAS = (1.0, 3.0)
SHIFTS = tuple(float(c) for c in np.linspace(0, 1, 11))


@dataclass(frozen=True)
class Line:
    """A line of the figure."""

    key: str
    style: str
    label: str


LINES = (
    Line("swd", ":", "SWD"),
    Line("dp_swd", "-", "DP-SWD"),
    Line("block_means", "--", "ours"),
)


def distances(shift: float, n: int, sigma: float, generator: torch.Generator) -> dict[str, float]:
    """Return SWD, DP-SWD and the debiased distance of block means of one draw.

    They are roots; a negative estimate counts as zero.
    """
    x = _normal(generator, n, DIM)
    y = _normal(generator, n, DIM)
    u = random_projections(DIM, N_PROJECTIONS, generator=generator, dtype=torch.float64)
    source = x @ u
    target = (y + shift) @ u
    sorted_source = source.sort(dim=0).values
    sorted_target = target.sort(dim=0).values
    noisy_source = source + sigma * _normal(generator, n, N_PROJECTIONS)
    noisy_target = target + sigma * _normal(generator, n, N_PROJECTIONS)
    source_blocks = _block_means(sorted_source)
    noise = sigma * _normal(generator, n // BLOCK, N_PROJECTIONS) / BLOCK
    target_blocks = _block_means(sorted_target) + noise
    debiased = float((source_blocks - target_blocks).square().mean()) - (sigma / BLOCK) ** 2
    return {
        "swd": _root_mean_square(sorted_source - sorted_target),
        "dp_swd": _root_mean_square(
            noisy_source.sort(dim=0).values - noisy_target.sort(dim=0).values
        ),
        "block_means": max(debiased, 0.0) ** 0.5,
    }


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _block_means(columns: Tensor) -> Tensor:
    """Return the means (n / BLOCK, k) of neighbours in sorted columns (n, k)."""
    return columns.view(len(columns) // BLOCK, BLOCK, N_PROJECTIONS).mean(1)


def _root_mean_square(differences: Tensor) -> float:
    return float(differences.square().mean().sqrt())


def run(out: Path, *, quick: bool = False) -> Result:
    """Rakotomamonjy2021, Figure 2: three distances of two Normals against their shift."""
    sizes = SIZES
    shifts = SHIFTS
    if quick:
        sizes = sizes[:2]
        shifts = shifts[::5]
    generator = torch.Generator().manual_seed(0)
    rows: list[Row] = []
    for sigma in SIGMAS:
        for n in sizes:
            for shift in shifts:
                row: Row = {"sigma": sigma, "n": n, "shift": shift, "draws": DRAWS}
                rows.append(row | _mean_distances(shift, n, sigma, generator))
        print(f"sigma {sigma:g}: done", flush=True)
    _draw(rows, out / "fig2.png")
    return {"rows": rows}


def _mean_distances(
    shift: float, n: int, sigma: float, generator: torch.Generator
) -> dict[str, float]:
    """Return the means of all distances over ``DRAWS`` draws."""
    draws = [distances(shift, n, sigma, generator) for _ in range(DRAWS)]
    return {name: mean(draw[name] for draw in draws) for name in draws[0]}


def _draw(rows: list[Row], path: Path) -> None:
    """Draw distances against the shift, a panel for each sigma."""
    with figure(path, 10, 4.2, 1, 2, sharey=True) as panels:
        for axes, sigma in zip(panels, SIGMAS, strict=True):
            for i, n in enumerate(SIZES):
                size_rows = [row for row in rows if (row["sigma"], row["n"]) == (sigma, n)]
                shifts = [row["shift"] for row in size_rows]
                for line in LINES:
                    values = [row[line.key] for row in size_rows]
                    label = f"{line.label}, n = {n:,}"
                    axes.plot(shifts, values, line.style, color=f"C{i}", label=label)
            axes.set(title=f"sigma = {sigma:g}", xlabel="shift c")
            axes.grid(True, alpha=0.3)
        panels[0].set_ylabel("distance")
        panels[0].legend(fontsize=7, ncols=2)
