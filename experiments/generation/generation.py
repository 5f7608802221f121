"""The shipped generator configs beside the class-wise Gaussian: accuracy of classifiers trained on their images.

Cells are those of ``table2 --full``: 60,000 synthetic records, run directories with ledger and report, resumable.
"""

from pathlib import Path
from typing import Any

from experiments.generation.table2 import SEEDS, evaluate_cells, show, summarise
from experiments.generation.table2_methods import BUDGETS, GENERATED, Cell

HELP = "shipped generator configs and the class-wise Gaussian: downstream accuracy over five seeds (hours, resumes)"

COMPARED = ("MNIST", "FashionMNIST")  # data sets of the comparison with the class-wise Gaussian


def plan(seeds: int = SEEDS) -> list[Cell]:
    """Lists the cells, one seed after the other: the default generator first, then what stands beside it."""
    wanted = [("sketch", GENERATED, BUDGETS), ("Gaussian", COMPARED, BUDGETS), ("real records", GENERATED, (None,))]
    return [
        Cell(dataset, method, epsilon, seed, full=True)
        for seed in range(seeds)
        for method, datasets, budgets in wanted
        for epsilon in budgets
        for dataset in datasets
    ]


def run(
    out: Path, *, quick: bool = False, data: Path | None = None, full: bool = False, seeds: int | None = None
) -> dict[str, Any]:
    """Runs the missing cells (with ``quick`` one seed of the embedded digits); one row per classifier."""
    cells = [cell for cell in plan(seeds or SEEDS) if not quick or (cell.dataset, cell.seed) == ("digits", 0)]
    rows = summarise(evaluate_cells(cells, out, data))
    show(rows)
    return {"rows": rows}
