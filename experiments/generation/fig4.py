"""Rakotomamonjy2021, Figure 4 (our reading): MNIST images of every method at epsilon = 10."""

from pathlib import Path
from typing import Any

from experiments.generation.sample_figure import run_grid
from experiments.generation.table2_methods import METHODS

HELP = "Rakotomamonjy2021, Figure 4 (our reading): MNIST images of every method at epsilon = 10"

LINES = tuple((method, budgets[0]) for method, (_, budgets) in METHODS.items() if method != "real records")


def run(out: Path, *, quick: bool = False, data: Path | None = None, full: bool = False) -> dict[str, Any]:
    """Takes the cells of Table 2, or makes them; draws ``fig4.png``."""
    return run_grid(out, "fig4", "MNIST", LINES, data, full=full)
