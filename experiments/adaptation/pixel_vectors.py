"""PrivateAdapter on feature vectors: 16 x 16 pixels of MNIST and USPS, and Office-Caltech-10.

The pairs are those of :mod:`experiments.adaptation.pairs`; all vectors are scaled to norm 1 (``normalise``). Every row
is a logistic regression (L2, C = 1). ``as they are``: of the vectors. All other rows: of vectors of norm 1, centred at
the mean of the source and divided by its root mean square; adapted ones in the directions of the adapter. ``always``
switches the fallback off.
"""

import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import ot
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from dpswd.adaptation.classifier import MIN_SHIFT
from dpswd.adaptation.estimator import PrivateAdapter
from dpswd.adaptation.methods import class_shift
from dpswd.adaptation.space import MAX_DIRECTIONS
from dpswd.errors import InputError
from dpswd.records import Records
from experiments.adaptation.pairs import vectors
from experiments.cells import run_cells, silence

HELP = "PrivateAdapter on pixel vectors and Office-Caltech-10: 10 seeds, an hour and a half (1 with --quick)"

SEEDS, QUICK_SEEDS = 10, 1
BUDGETS = (10.0, 1.0)
DELTA = {"pixels": 1e-5, "Office-Caltech-10": 1e-3}

Labelled = tuple[NDArray[Any], NDArray[Any]]


@dataclass(frozen=True)
class Cell:
    """All methods on a problem with one seed."""

    group: str
    problem: str
    seed: int

    @property
    def name(self) -> str:
        """Path of the result."""
        return f"{self.problem.replace(', ', '_')}_{self.seed}"


PROBLEMS = {
    "pixels": ("MNIST-USPS", "USPS-MNIST"),
    "Office-Caltech-10": ("A-W", "A-D", "W-A", "W-D", "D-A", "D-W"),
}
FILES = {"Office-Caltech-10": "pixel_vectors_office"}  # of one group


def run(
    out: Path,
    *,
    quick: bool = False,
    data: Path | None = None,
    seeds: int | None = None,
    only: str | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """Run the missing cells, of one group with ``only``; return one row per problem, method and budget."""
    if only is not None and only not in PROBLEMS:
        raise InputError(f"Expected --only as one of {', '.join(PROBLEMS)}, got {only!r}.")
    wanted = range(seeds or (QUICK_SEEDS if quick else SEEDS))
    groups = PROBLEMS if only is None else (only,)
    cells = [Cell(group, name, seed) for group in groups for seed in wanted for name in PROBLEMS[group]]
    work = partial(_work, root=None if data is None else str(data))
    rows = summarise(cells, run_cells(cells, work, out / "pixel_vectors", workers=workers))
    return {"rows": rows, "file": FILES.get(only or "", "pixel_vectors")}


def summarise(cells: list[Cell], results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means and standard deviations over seeds, and the mean difference from the source alone."""
    found: dict[tuple[str, str, str, float | None], list[float]] = {}
    for cell, result in zip(cells, results, strict=True):
        for method, epsilon, accuracy in result["accuracies"]:
            found.setdefault((cell.group, cell.problem, method, epsilon), []).append(accuracy)
    rows = []
    for (group, name, method, epsilon), values in found.items():
        base = found[group, name, "source only", None]
        gaps = [value - other for value, other in zip(values, base, strict=True)]
        rows.append(
            {
                "group": group,
                "dataset": name,
                "method": method,
                "epsilon": epsilon,
                "delta": DELTA[group] if epsilon else None,
                "mean": round(mean(values), 2),
                "std": round(stdev(values), 2) if len(values) > 1 else None,
                "gap": round(mean(gaps), 2) + 0.0,  # to the source alone; no minus zero
                "standard_error": round(stdev(gaps) / len(gaps) ** 0.5, 2) if len(gaps) > 1 else None,
                "seeds": len(values),
            }
        )
    return rows


def _work(cell: Cell, root: str | None) -> dict[str, Any]:
    silence()
    warnings.filterwarnings("ignore", "Expect")
    pair = vectors(cell.problem, cell.seed, root)
    parts = (_labelled(records) for records in (pair.source, pair.target, pair.test))
    return {"accuracies": list(_accuracies(*parts, DELTA[cell.group], cell.seed))}


def _labelled(records: Records) -> Labelled:
    return records.floats().numpy(), records.labels.numpy()


def _accuracies(
    source: Labelled, target: Labelled, test: Labelled, delta: float, seed: int
) -> Iterator[tuple[str, float | None, float]]:
    """Yield method, epsilon and accuracy in percent."""
    records, labels = source
    raw = LogisticRegression(max_iter=300)
    yield "source only, as they are", None, 100 * raw.fit(records, labels).score(*test)
    rows, private, new = _rows(records, records, target[0], test[0])
    classifier = LogisticRegression(max_iter=300)
    yield "source only", None, 100 * classifier.fit(rows, labels).score(new, test[1])
    basis = np.linalg.svd(rows, full_matrices=False)[2][:MAX_DIRECTIONS].T
    leading, aim = rows @ basis, private @ basis
    moved = {
        "transport": ot.da.EMDTransport(max_iter=1_000_000).fit(Xs=leading, Xt=aim).transform(Xs=leading),
        "class shift": class_shift(leading, labels, aim, seed),
    }
    for name, each in moved.items():
        yield f"{name}, real target", None, 100 * classifier.fit(each, labels).score(new @ basis, test[1])
    domain = np.r_[np.ones(len(records)), -np.ones(len(target[0]))]
    for epsilon in BUDGETS:
        with tempfile.TemporaryDirectory() as directory:
            run_dir = Path(directory) / "run"
            adapter = PrivateAdapter(
                epsilon, delta, normalise=True, run_dir=run_dir, random_state=seed, verbose=False
            ).fit(np.r_[records, target[0]], np.r_[labels, np.full(len(target[0]), -1)], domain)
        yield "class shift, synthetic target", epsilon, 100 * adapter.score(*test)
        if not adapter.adapted_:
            adapter.set_params(min_shift=0.0).adapt(*source)
        yield "class shift, synthetic target, always", epsilon, 100 * adapter.score(*test)
        adapter.set_params(min_shift=MIN_SHIFT, method=ot.da.EMDTransport(max_iter=1_000_000)).adapt(*source)
        yield "transport, synthetic target", epsilon, 100 * adapter.score(*test)


def _rows(source: NDArray[Any], *parts: NDArray[Any]) -> list[NDArray[Any]]:
    """Vectors of norm 1, centred and scaled by the source."""
    unit = [part / np.linalg.norm(part, axis=1, keepdims=True) for part in (source, *parts)]
    centre = unit[0].mean(0)
    radius = float(np.sqrt(np.square(unit[0] - centre).sum(1).mean()))
    return [(part - centre) / radius for part in unit[1:]]
