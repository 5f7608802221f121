"""The generators that ship as configs, beside the class-wise Gaussian: accuracy of classifiers of their images.

Cells are those of ``table2 --full`` (experiments/generation/table2_cells.py): 60,000 synthetic records, run directories with
ledger and report, and a run that was interrupted goes on where it stopped.
"""

from pathlib import Path
from typing import Any

from experiments.generation.table2 import summarise
from experiments.generation.table2_cells import SEEDS, directory_of, run_cells
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
    """Trains what is not there yet; one row for each data set, method, budget and classifier.

    One seed of the embedded digits with ``--quick``.
    """
    cells = [cell for cell in plan() if not quick or (cell.dataset, cell.seed) == ("digits", 0)]
    rows = summarise(run_cells(cells, directory_of(out, full=True), data))
    for row in rows:
        budget = "no privacy" if row["epsilon"] is None else f"({row['epsilon']:g}, {row['delta']:g})"
        spread = "" if row["std"] is None else f" ± {row['std']}"
        print(f"{row['dataset']:<13} {row['method']:<24} {budget:<12} {row['classifier']:<7} {row['mean']}{spread}")
    return {"rows": rows}
