"""The shipped generator configs beside the class-wise Gaussian: accuracy of classifiers trained on their images.

Cells are those of ``table2 --full``: 60,000 synthetic records, run directories with ledger and report, resumable.
"""

from pathlib import Path
from typing import Any

from experiments.generation.table2 import SEEDS, evaluate_cells, show, summarise
from experiments.generation.table2_methods import BUDGETS, GENERATED, Cell

HELP = "shipped generator configs and the class-wise Gaussian: downstream accuracy over five seeds (hours, resumes)"

COMPARED = ("MNIST", "FashionMNIST")
SIDE_SEEDS = 2  # of what is reported beside the comparison


def plan() -> list[Cell]:
    """Lists the cells: the comparison at epsilon 10 and 1, one seed after the other, and then the rest."""
    compared = [
        Cell(dataset, method, epsilon, seed, full=True)
        for seed in range(SEEDS)
        for dataset in COMPARED
        for method in ("sketch", "Gaussian")
        for epsilon in BUDGETS[:2]
    ]
    beside = [
        Cell(dataset, method, epsilon, seed, full=True)
        for seed in range(SIDE_SEEDS)
        for dataset in GENERATED
        for method, budgets in (("sketch", BUDGETS), ("Gaussian", BUDGETS), ("real records", (None,)))
        for epsilon in budgets
        if method != "Gaussian" or dataset in COMPARED
    ]
    return list(dict.fromkeys([*compared, *beside]))


def run(out: Path, *, quick: bool = False, data: Path | None = None, full: bool = False) -> dict[str, Any]:
    """Runs the missing cells (with ``quick`` one seed of the embedded digits); one row per classifier."""
    cells = [cell for cell in plan() if not quick or (cell.dataset, cell.seed) == ("digits", 0)]
    rows = summarise(evaluate_cells(cells, out, data))
    show(rows)
    return {"rows": rows}
