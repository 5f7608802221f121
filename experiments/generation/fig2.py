"""Rakotomamonjy2021, Figure 2 (our reading): Fashion-MNIST images of SWD, DP-SWD-b and DP-SWD-c."""

from pathlib import Path
from typing import Any

from experiments.generation.sample_figure import run_grid

HELP = "Rakotomamonjy2021, Figure 2 (our reading): Fashion-MNIST images, SWD and both published variants"

LINES = (("SWD", None), ("DP-SWD-b", 10.0), ("DP-SWD-c", 10.0))


def run(out: Path, *, quick: bool = False, data: Path | None = None, full: bool = False) -> dict[str, Any]:
    """Takes the cells of Table 2, or makes them; draws ``fig2.png``."""
    return run_grid(out, "fig2", "FashionMNIST", LINES, data, full=full)
