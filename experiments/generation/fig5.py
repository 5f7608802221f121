"""Rakotomamonjy2021, Figure 5: Fashion-MNIST images of SWD, DP-SWD-b and DP-MERF, as in the paper; below them ours."""

from pathlib import Path
from typing import Any

from experiments.generation.fig4 import run_grid

HELP = "Rakotomamonjy2021, Figure 5: Fashion-MNIST images of SWD, DP-SWD-b, DP-MERF, and of ours"


def run(out: Path, *, quick: bool = False, data: Path | None = None, full: bool = False) -> dict[str, Any]:
    """See :func:`experiments.generation.fig4.run`."""
    return dict(run_grid(out, "fig5", "FashionMNIST", data, full=full))
