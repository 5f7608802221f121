"""Table 1, new rows: digits as they are, by a synthetic target and the image map (``dpswd adapt``).

``source only`` trains the same network on the source for as many steps. ``real target`` fits the map to the private
images themselves and is NOT PRIVATE.
"""

import tempfile
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpswd.adaptation.estimator import PrivateAdapter
from dpswd.adaptation.methods import ImageMap
from dpswd.adaptation.space import channels_last
from dpswd.records import Records
from experiments.adaptation.pairs import digits
from experiments.cells import averaged, run_cells, silence

HELP = "digits by a synthetic target and the image map: 3 seeds, about a minute and a half per cell"

SEEDS, QUICK_SEEDS = 3, 1
DELTA = 1e-5
PAIRS = (("MNIST", "USPS"), ("USPS", "MNIST"))
JITTER = {"shift": 1.5, "rotation": 10.0, "zoom": 0.1, "shear": 0.1, "elastic": 0.6}  # of configs/adapt_digits.yaml
METHODS = (("synthetic target", 10.0), ("source only", None), ("synthetic target", 1.0), ("real target", None))


@dataclass(frozen=True)
class Cell:
    """A method with its budget on a pair of digits."""

    source: str
    target: str
    seed: int
    method: str
    epsilon: float | None
    n_steps: int = 1500

    @property
    def name(self) -> str:
        """Path of the result."""
        budget = "" if self.epsilon is None else f"_{self.epsilon:g}"
        return f"{self.source}-{self.target}_{self.seed}/{self.method.replace(' ', '_')}{budget}"


def run(
    out: Path,
    *,
    quick: bool = False,
    data: Path | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """Run the missing cells, seed by seed; return one row per pair, method and budget."""
    cells = [
        Cell(*pair, seed, *method)
        for seed in range(QUICK_SEEDS if quick else SEEDS)
        for pair in PAIRS
        for method in METHODS
    ]
    work = partial(_work, root=None if data is None else str(data))
    return {"rows": summarise(cells, run_cells(cells, work, out / "adaptation_images", workers=workers))}


def summarise(cells: list[Cell], found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means and standard deviations over seeds."""
    groups: dict[tuple[str, str, float | None], list[dict[str, Any]]] = {}
    for cell, each in zip(cells, found, strict=True):
        groups.setdefault((f"{cell.source}-{cell.target}", cell.method, cell.epsilon), []).append(each)
    rows = []
    for (pair, method, epsilon), same in groups.items():
        row = {"dataset": f"{pair}, as they are", "method": f"image map, {method}", "epsilon": epsilon}
        row |= {"delta": DELTA if epsilon else None, "mu": same[0].get("mu"), "sound": same[0].get("sound")}
        rows.append(row | averaged([each["accuracy"] for each in same], 2))
    return rows


def _work(cell: Cell, root: str | None) -> dict[str, Any]:
    silence()
    warnings.filterwarnings("ignore", "Expect")
    data = digits(cell.source, cell.target, "resized", root)
    method = ImageMap(cell.n_steps, **JITTER)
    images, labels = data.source.floats(), data.source.labels
    if cell.epsilon is None:
        aim = data.target.floats() if cell.method == "real target" else None
        network = method.fit(images, labels, aim, cell.seed)
        return {"accuracy": _accuracy(network, data.test)}
    private = data.target.floats()
    with tempfile.TemporaryDirectory() as directory:
        adapter = PrivateAdapter(
            cell.epsilon,
            DELTA,
            method=method,
            run_dir=Path(directory) / "run",
            random_state=cell.seed,
            verbose=False,
        ).fit(
            channels_last(torch.cat([images, private])),
            np.r_[labels.numpy(), np.full(len(private), -1)],
            np.repeat([1, -1], [len(images), len(private)]),
        )
    accuracy = 100 * adapter.score(channels_last(data.test.floats()), data.test.labels.numpy())
    facts = {name: adapter.guarantee_[name] for name in ("mu", "sound")}
    return {"accuracy": accuracy, "adapted": bool(adapter.adapted_), **facts}


@torch.no_grad()
def _accuracy(network: torch.nn.Module, test: Records) -> float:
    scores = torch.cat([network(part) for part in test.floats().split(500)])
    return float(100 * (scores.argmax(1) == test.labels).float().mean())
