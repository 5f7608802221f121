"""MST of ``dpmm`` on columns cut into bins: ``python mst.py IN.npz OUT.npz``, in an environment of its own.

``dpmm`` needs older versions of pandas and numpy than dpswd, so :mod:`experiments.generation.tables_adult` runs this
file with the interpreter of ``DPMM_PYTHON``. It imports nothing of dpswd.

MST's noise is for add/remove-one. Under replace-one the squared sensitivity of a marginal is 2 instead of 1, and that
of a score in a selection doubles, so zCDP grows by 2 in the two thirds of the budget that measure and by 4 in the
third that selects. MST gets rho / (8/3), converted back to epsilon by its own conversion.
"""

import sys
from typing import Any

import numpy as np


def limits(low: float, high: float, most: int) -> Any:
    """Return the edges of at most ``most`` bins of whole numbers."""
    inner = (
        np.arange(low, high + 1)
        if high - low < most
        else [low, *np.floor(np.linspace(low + 1, high, most - 1))]
    )
    return np.append(inner, high + 1) - 0.5


def main(source: str, target: str) -> None:
    """Read rows, labels, bounds, epsilon, delta, bins and seed; write synthetic rows and labels."""
    import pandas as pd
    from dpmm.models.base.mechanisms.cdp2adp import cdp_rho  # type: ignore[import-not-found]
    from dpmm.pipelines.mst import MSTPipeline  # type: ignore[import-not-found]
    from scipy.optimize import brentq

    given = np.load(source)
    rows, epsilon, delta, seed = (
        given["rows"],
        float(given["epsilon"]),
        float(given["delta"]),
        int(given["seed"]),
    )
    rho = cdp_rho(epsilon, delta) / (8 / 3)
    smaller = brentq(lambda value: cdp_rho(value, delta) - rho, 1e-3, epsilon)
    edges = {
        str(j): limits(bound[0], bound[1], int(given["bins"]))
        for j, bound in enumerate(given["bounds"])
    }
    cells = {
        name: np.clip(np.searchsorted(edge, rows[:, int(name)], "right") - 1, 0, len(edge) - 2)
        for name, edge in edges.items()
    }
    domain = {name: len(edge) - 1 for name, edge in edges.items()} | {"class": 2}
    pipeline = MSTPipeline(
        epsilon=smaller, delta=delta, disable_processing=True, n_jobs=1, max_model_size=80
    )
    pipeline.fit(pd.DataFrame(cells | {"class": given["labels"]}), domain=domain, random_state=seed)
    made = pipeline.generate(n_records=len(rows), random_state=seed + 1)
    rng, found = np.random.default_rng(seed), np.empty((len(made), len(edges)))
    for (name, edge), bound in zip(edges.items(), given["bounds"], strict=True):
        cell = made[name].to_numpy().astype(int)
        found[:, int(name)] = np.clip(
            np.round(edge[cell] + rng.random(len(cell)) * np.diff(edge)[cell]), *bound
        )
    np.savez(target, rows=found, labels=made["class"].to_numpy().astype(int))


if __name__ == "__main__":
    main(*sys.argv[1:])
