"""MST and AIM of ``dpmm`` on columns in bins.

The command is ``python dpmm_program.py IN.npz OUT.npz``.

``dpmm`` needs older versions of pandas and numpy than dpswd, so
:mod:`experiments.generation.dpmm_runs` runs this file with the interpreter of ``DPMM_PYTHON``,
in an environment of its own. It imports nothing of dpswd.

Their noise is for add/remove-one. Under replace-one the squared sensitivity of a marginal is 2
instead of 1, and the sensitivity of a score in a selection doubles, so that zCDP grows by 2 in the
part of the budget that measures and by 4 in the part that selects. MST selects with a third of it,
AIM with a tenth. They get the zCDP over this growth, converted back to epsilon by their own
conversion.
"""

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

GROWTH = {"mst": 2 * 2 / 3 + 4 / 3, "aim": 2 * 0.9 + 4 * 0.1}  # of zCDP under replace-one


@dataclass(frozen=True)
class Column:
    """A column of whole numbers: its name, its bounds, and the edges of its bins."""

    name: str
    low: float
    high: float
    edges: np.ndarray

    @property
    def n_bins(self) -> int:
        """Number of bins."""
        return len(self.edges) - 1

    def cells(self, values: np.ndarray) -> np.ndarray:
        """Return the bin (n,) of every value."""
        bins = np.searchsorted(self.edges, values, "right") - 1
        return np.asarray(np.clip(bins, 0, self.n_bins - 1))

    def values(self, cells: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw a whole number (n,) uniformly in every bin."""
        widths = np.diff(self.edges)[cells]
        drawn = self.edges[cells] + rng.random(len(cells)) * widths
        return np.asarray(np.clip(np.round(drawn), self.low, self.high))


def limits(low: float, high: float, most: int) -> np.ndarray:
    """Return the edges of at most ``most`` bins of whole numbers."""
    first: Any = np.arange(low, high + 1)  # of each bin
    if high - low >= most:
        first = [low, *np.floor(np.linspace(low + 1, high, most - 1))]
    return np.append(first, high + 1) - 0.5


def main(source: str, target: str) -> None:
    """Read rows, labels, bounds and a budget; write synthetic rows and labels.

    The file ``source`` has rows (n, d), labels (n,), bounds (d, 2), the largest number of bins (d,)
    of each column, epsilon, delta, seed, the method, ``mst`` or ``aim``, and the largest size of
    its model in MB.
    """
    # Packages of the other environment; the help of dpswd's experiments must not need them.
    import pandas as pd
    from dpmm.pipelines.aim import AIMPipeline  # type: ignore[import-not-found]
    from dpmm.pipelines.mst import MSTPipeline  # type: ignore[import-not-found]

    task = np.load(source)
    rows = task["rows"]
    seed = int(task["seed"])
    delta = float(task["delta"])
    columns = []
    for j, (low, high) in enumerate(task["bounds"]):
        columns.append(Column(str(j), low, high, limits(low, high, int(task["bins"][j]))))
    cells = {column.name: column.cells(rows[:, j]) for j, column in enumerate(columns)}
    domain = {column.name: column.n_bins for column in columns}
    method = str(task["method"])
    pipeline_class = {"mst": MSTPipeline, "aim": AIMPipeline}[method]
    pipeline = pipeline_class(
        epsilon=smaller_epsilon(float(task["epsilon"]), delta, GROWTH[method]),
        delta=delta,
        disable_processing=True,
        n_jobs=1,
        max_model_size=float(task["model_size"]),
    )
    table = pd.DataFrame(cells | {"class": task["labels"]})
    pipeline.fit(table, domain=domain | {"class": 2}, random_state=seed)
    synthetic = pipeline.generate(n_records=len(rows), random_state=seed + 1)
    rng = np.random.default_rng(seed)
    synthetic_rows = np.empty((len(synthetic), len(columns)))
    for j, column in enumerate(columns):
        drawn_cells = synthetic[column.name].to_numpy().astype(int)
        synthetic_rows[:, j] = column.values(drawn_cells, rng)
    labels = synthetic["class"].to_numpy().astype(int)
    np.savez(target, rows=synthetic_rows, labels=labels)


def smaller_epsilon(epsilon: float, delta: float, growth: float) -> float:
    """Return the epsilon under add/remove-one that is ``epsilon`` under replace-one."""
    from dpmm.models.base.mechanisms.cdp2adp import cdp_rho  # type: ignore[import-not-found]
    from scipy.optimize import brentq

    rho = cdp_rho(epsilon, delta) / growth

    def gap(candidate: float) -> float:
        return float(cdp_rho(candidate, delta) - rho)

    return float(brentq(gap, 1e-3, epsilon))


if __name__ == "__main__":
    main(*sys.argv[1:])
