"""The generators that ship as configs, beside the class-wise Gaussian: accuracy of classifiers of their images.

Cells are those of ``table2 --full`` (experiments/table2_cells.py): 60,000 synthetic records, run directories with ledger
and report, and a run that was interrupted goes on where it stopped.
"""

from pathlib import Path
from typing import Any

from experiments.table2 import summarise
from experiments.table2_cells import SEEDS, directory_of, run_cells
from experiments.table2_methods import BUDGETS, Cell

HELP = "shipped generator configs and the class-wise Gaussian: downstream accuracy over five seeds (an hour, resumes)"

METHODS = {
    "MNIST": ("real records", "sketch", "Gaussian"),
    "FashionMNIST": ("real records", "sketch", "Gaussian"),
    "USPS": ("real records", "sketch"),
    "digits": ("real records", "sketch"),
}


def plan(seeds: int) -> list[Cell]:
    """Lists the cells, one seed after the other."""
    return [
        Cell(dataset, method, epsilon, seed, full=True)
        for seed in range(seeds)
        for dataset, methods in METHODS.items()
        for method in methods
        for epsilon in ((None,) if method == "real records" else BUDGETS)
    ]


def run(out: Path, *, quick: bool = False, data: Path | None = None, full: bool = False) -> dict[str, Any]:
    """Trains what is not there yet; one row for each data set, method, budget and classifier.

    One seed of the embedded digits with ``--quick``.
    """
    cells = [cell for cell in plan(1 if quick else SEEDS) if cell.dataset == "digits" or not quick]
    rows = summarise(run_cells(cells, directory_of(out, full=True), data))
    for row in rows:
        budget = "no privacy" if row["epsilon"] is None else f"({row['epsilon']:g}, {row['delta']:g})"
        spread = "" if row["std"] is None else f" ± {row['std']}"
        print(f"{row['dataset']:<13} {row['method']:<24} {budget:<12} {row['classifier']:<7} {row['mean']}{spread}")
    return {"rows": rows}
