"""Rakotomamonjy2021, Figure 5: Fashion-MNIST images of SWD, DP-SWD-b and DP-MERF, as in the paper; below them ours."""

from pathlib import Path
from typing import Any

from experiments.generation.fig4 import run_grid

HELP = "Rakotomamonjy2021, Figure 5: Fashion-MNIST images of SWD, DP-SWD-b, DP-MERF, and of ours"


def run(out: Path, *, quick: bool = False, data: Path | None = None, full: bool = False) -> dict[str, Any]:
    """Runs the missing cells of Table 2; draws ``fig5.png``."""
    return dict(run_grid(out, "fig5", "FashionMNIST", data, full=full))
