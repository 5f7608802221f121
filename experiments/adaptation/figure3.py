"""Rakotomamonjy2021, Figure 3, by the published algorithm. NOT PRIVATE.

The figure has accuracy against epsilon.

A cell is a config of the published DP-SWD (``configs/paper``) whose sigma is that of the
conventions of Table 4 for a budget (:mod:`experiments.accounting.published`). That epsilon is what
the paper prints, and no guarantee: docs/errata.md, items 1 to 5. USPS is enlarged to 20 pixels a
side and padded to 28, as MNIST has its digits. The paper does not name the data sets of the figure.
"""

from functools import partial
from pathlib import Path
from typing import Any

from experiments import cells
from experiments.accounting.published import table4_row
from experiments.adaptation.table1 import DIGITS, VERSION, Cell, run_cell, summarise
from experiments.plots import figure
from experiments.results import Result, Row

EPSILONS = (3.0, 4.0, 6.0, 8.0, 10.0)
PRINTED_EPSILON = 10.0  # of Table 1, whose accuracies are printed
QUICK_STEPS = 30
OPTION = "model.sigma"  # by which cells of one problem differ


def run(
    out: Path, *, data: Path | None = None, quick: bool = False, seeds: int = 1, steps: int = 0
) -> Result:
    """Figure 3: published DP-SWD against epsilon (steps 0: all, two hours; resumes)."""
    epsilons = EPSILONS
    if quick:
        epsilons = EPSILONS[-1:]
        steps = QUICK_STEPS
    budgets = {cell: epsilon for cell, epsilon in plan(seeds, epsilons, steps or None)}
    directory = out / "table1"
    work = partial(run_cell, directory=directory / "runs", data=data)
    results = cells.run_cells(
        list(budgets), work, directory / "cells", version=lambda cell: VERSION, workers=0
    )
    nominal = {(cell.problem, cell.changed[1]): epsilon for cell, epsilon in budgets.items()}
    rows = []
    for row in summarise(results):
        sigma = row["changed"]["sigma"]
        epsilon = nominal[row["dataset"], sigma]
        if epsilon != PRINTED_EPSILON:
            row["printed"] = None
        row["noise"] = "of the paper's account"
        rows.append(row | {"sigma": float(sigma), "nominal_epsilon": epsilon})
    draw(rows, out / "figure3.png")
    return {"rows": rows}


def plan(n_seeds: int, epsilons: tuple[float, ...], steps: int | None) -> list[tuple[Cell, float]]:
    """List the cells of both problems with their epsilon.

    Epsilon is that of the paper's account.
    """
    planned = []
    for seed in range(n_seeds):
        for epsilon in epsilons:
            for problem in DIGITS:
                sigma = table4_row(problem).recomputed(epsilon)
                changed = (OPTION, f"{sigma:.3f}")
                planned.append((Cell(problem, "dp_swd", seed, None, steps, changed), epsilon))
    return planned


def draw(rows: list[Row], path: Path) -> None:
    """Draw accuracy against epsilon, a panel for each problem.

    Epsilon is that of the paper's account.
    """
    groups = cells.grouped(rows, lambda row: row["dataset"])
    with figure(path, 9, 4, 1, 2, dpi=100, sharey=True) as panels:
        for axes, problem in zip(panels, DIGITS, strict=True):
            _draw_line(axes, groups[problem])
            axes.set(xlabel="epsilon, as the paper accounts", title=problem)
        panels[0].set_ylabel("accuracy on the target, %")
        panels[0].legend(fontsize=8)


def _draw_line(axes: Any, rows: list[Row]) -> None:
    """Draw the accuracies with their deviations, and the printed one at epsilon = 10."""
    epsilons = [row["nominal_epsilon"] for row in rows]
    means = [row["mean"] for row in rows]
    deviations = [row["std"] or 0.0 for row in rows]
    axes.errorbar(epsilons, means, deviations, fmt="o-", capsize=2, label="published DP-SWD")
    axes.plot([10.0], [rows[0]["printed"]], "kx", label="printed in Table 1")
