"""Rakotomamonjy2021, Figure 3: accuracy against epsilon, by ``dpswd fit``.

Accuracy is that on the target.

The cells are those of :mod:`experiments.adaptation.adaptation_module`, whose config is
``digits_adaptation``.
"""

from functools import partial
from pathlib import Path
from typing import Any

from experiments import cells
from experiments.adaptation.adaptation_module import DIGITS, Cell, run_cell, summarise
from experiments.plots import figure
from experiments.results import Result, Row

EPSILONS = (0.5, 1.0, 2.0, 5.0, 10.0)
QUICK_EPSILONS = (0.5, 10.0)


def run(out: Path, *, quick: bool = False, data: Path | None = None, seeds: int = 3) -> Result:
    """Figure 3: adaptation accuracy against epsilon, digits (half an hour; resumes)."""
    epsilons = EPSILONS
    if quick:
        epsilons = QUICK_EPSILONS
        seeds = 1
    planned = plan(seeds, epsilons)
    directory = cells.directory_of(out, "adaptation_module", quick=quick)
    work = partial(run_cell, directory=directory / "runs", data=data, quick=quick)
    rows = summarise(cells.run_cells(planned, work, directory / "cells", workers=0))
    draw(rows, out / "fig3.png")
    return {"rows": rows}


def plan(n_seeds: int, epsilons: tuple[float, ...]) -> list[Cell]:
    """List the cells of both problems, and of the source alone."""
    planned = []
    for seed in range(n_seeds):
        for problem in DIGITS:
            planned += [Cell(problem, epsilon, seed) for epsilon in epsilons]
            planned.append(Cell(problem, EPSILONS[-1], seed, aligned=False))
    return planned


def draw(rows: list[Row], path: Path) -> None:
    """Draw accuracy against epsilon, a panel for each problem."""
    groups = cells.grouped(rows, lambda row: row["dataset"])
    with figure(path, 9, 4, 1, 2, dpi=100, sharey=True) as panels:
        for axes, problem in zip(panels, DIGITS, strict=True):
            _draw_panel(axes, groups[problem])
            axes.set(xscale="log", xlabel="epsilon", title=problem)
            axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
            axes.minorticks_off()
        panels[0].set_ylabel("accuracy on the target's test set, %")
        panels[0].legend(fontsize=8)


def _draw_panel(axes: Any, rows: list[Row]) -> None:
    """Draw the accuracies with their deviations.

    The source alone is a horizontal line.
    """
    aligned = [row for row in rows if not row["method"].startswith("source")]
    aligned.sort(key=lambda row: row["epsilon"])
    axes.errorbar(
        [row["epsilon"] for row in aligned],
        [row["mean"] for row in aligned],
        [row["std"] or 0.0 for row in aligned],
        fmt="o-",
        capsize=2,
        label=aligned[0]["method"],
    )
    for row in rows:
        if row["method"].startswith("source"):
            axes.axhline(row["mean"], color="0.5", linestyle=":", label=row["method"])
