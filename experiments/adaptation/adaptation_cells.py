"""Cells of Table 1 and Figure 3: one method on one problem from one start, kept under ``OUT/adaptation_cells``.

A cell depends on problem, seed, method and budget alone (:func:`experiments.adaptation.adaptation_methods.run_method`
seeds each method by itself), so that the figure uses the cells of the table.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from experiments.adaptation.adaptation_methods import PROBLEMS, Problem, Start, make_start, run_method
from experiments.cells import run_cells

__all__ = ["Cell", "problem_of", "run_adaptation"]


@dataclass(frozen=True)
class Cell:
    """A method with its budget on a problem; ``steps`` replaces the number of steps of the problem."""

    problem: str
    seed: int
    method: str
    budget: float | None
    steps: int | None = None

    @property
    def name(self) -> str:
        """Path of the result."""
        start = f"{self.problem}_{self.seed}".replace(", ", "_").replace(" ", "_")
        budget = "" if self.budget is None else f"_{self.budget:g}"
        steps = "" if self.steps is None else f"_{self.steps}_steps"
        return f"{start}/{self.method.replace(', ', '_').replace(' ', '_')}{budget}{steps}"


def problem_of(cell: Cell) -> Problem:
    """The problem of a cell; the source alone takes the additional steps before the start."""
    problem = PROBLEMS[cell.problem]
    if cell.steps is None:
        return problem
    if cell.method == "source only":
        return replace(problem, pretrain=problem.pretrain + cell.steps)
    return replace(problem, steps=cell.steps)


@functools.lru_cache(maxsize=1)  # the methods of a problem and seed follow each other
def _start(problem: Problem, seed: int, root: str | None) -> Start:
    return make_start(problem, seed, root)


def run_adaptation(
    cells: Sequence[Cell], root: Path | None, out: Path, workers: int | None = None
) -> list[dict[str, Any]]:
    """Run the missing cells; return one row for each, in their order."""
    work = partial(_work, root=None if root is None else str(root))
    return run_cells(cells, work, out / "adaptation_cells", workers=workers)


def _work(cell: Cell, root: str | None) -> dict[str, Any]:
    start = _start(problem_of(cell), cell.seed, root)
    facts = {"problem": cell.problem, "seed": cell.seed, "steps": cell.steps}
    return {**facts, **run_method(start, cell.method, cell.budget)}
