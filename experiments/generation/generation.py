"""The shipped generator configs beside the class-wise Gaussian: accuracy of classifiers trained on their images.

Cells are those of ``table2 --full``: 60,000 synthetic records, run directories with ledger and report, resumable.
"""

import json
from pathlib import Path
from typing import Any

from experiments.generation.table2 import SEEDS, evaluate_cells, show, summarise
from experiments.generation.table2_methods import BUDGETS, GENERATED, Cell

HELP = "shipped generator configs and the class-wise Gaussian: downstream accuracy over five seeds (hours, resumes)"

COMPARED = ("MNIST", "FashionMNIST")  # data sets of the comparison with the class-wise Gaussian
SEEDS_CIFAR10 = 3


def plan(seeds: int = SEEDS) -> list[Cell]:
    """List the cells, one seed after the other: the default generator first, then the methods it is compared with."""
    wanted = [("mixture", GENERATED, BUDGETS), ("Gaussian", COMPARED, BUDGETS), ("real records", GENERATED, (None,))]
    return [
        Cell(dataset, method, epsilon, seed, full=True)
        for seed in range(seeds)
        for method, datasets, budgets in wanted
        for epsilon in budgets
        for dataset in datasets
        if dataset != "CIFAR10" or seed < SEEDS_CIFAR10
    ]


def run(
    out: Path,
    *,
    quick: bool = False,
    data: Path | None = None,
    full: bool = False,
    seeds: int | None = None,
    only: str | None = None,
) -> dict[str, Any]:
    """Run the missing cells; one row per classifier.

    With ``quick`` one seed of the digits. With ``only`` the cells of one method; rows of other methods are
    kept from ``OUT/generation.json``, with the version that measured them.
    """
    cells = [cell for cell in plan(seeds or SEEDS) if not quick or (cell.dataset, cell.seed) == ("digits", 0)]
    kept: list[dict[str, Any]] = []
    if only is not None:
        cells = [cell for cell in cells if cell.method == only]
    rows = summarise(evaluate_cells(cells, out, data))
    if only is not None and (out / "generation.json").exists():
        earlier = json.loads((out / "generation.json").read_text())
        new = {(row["dataset"], row["method"], row["epsilon"]) for row in rows}
        kept = [
            {"version": earlier["version"], **row}
            for row in earlier["rows"]
            if (row["dataset"], row["method"], row["epsilon"]) not in new
        ]
    rows = sorted([*rows, *kept], key=lambda row: (GENERATED.index(row["dataset"]), -(row["epsilon"] or 0.0)))
    show(rows)
    return {"rows": rows}
