"""Tables of numbers: Adult, and small data sets on which the rule that releases columns is tested.

Adult has six integer columns and two of 0 and 1, with public bounds; 25,000 random records play the private ones, the
others test. Bounded rows have three structures, of which the rule of :func:`dpswd.mixture.forecast.forecast` takes one
(``chosen``); all are measured at epsilon 10. Figures of 0.2.0 were measured with the code of that version; they cannot
be made again by this command. Where ``DPMM_PYTHON`` is the interpreter of an environment with ``dpmm``, ``--only mst``
measures MST on the columns cut into 32 bins, on the first seed at epsilon 10.
"""

import math
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import wasserstein_distance
from sklearn import datasets
from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dpswd import PrivateGenerator, __version__
from dpswd._progress import say
from dpswd._validate import choice
from dpswd.accounting.calibrate import mu_of_epsilon
from dpswd.data.reading import data_root
from dpswd.errors import InputError
from dpswd.files.pictures import save_columns
from dpswd.mixture.forecast import forecast
from experiments import cells

BUDGETS, SEEDS, SMALL_SEEDS = (10.0, 1.0), (10, 11, 12), range(10, 30)
N, DELTA, SMALL_DELTA = 25_000, 1e-6, 1e-5
COLUMNS = [
    "age",
    "fnlwgt",
    "education-num",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "male",
    "married",
]
BOUNDS = [(17, 90), (0, 1_500_000), (1, 16), (0, 99_999), (0, 5_000), (1, 99), (0, 1), (0, 1)]
KINDS = ["integer"] * 6 + ["binary"] * 2
METHODS = {  # and how the forecast is told to release columns
    "columns of each class": "own",
    "columns of all classes": "common",
    "scaled columns": "scaled",
}
REASON = "Rows of 0.2.0, which had no bounds, are of columns that were scaled by them beforehand."
_OLD: dict[str, Any] = {"method": "PrivateGenerator of 0.2.0", "version": "0.2.0", "reason": REASON}
OLD_ADULT = [  # two seeds; the columns in the order of COLUMNS
    (10.0, (0.08, 0.17, 0.22, 0.28, 0.74, 0.29, 0.05, 0.04), 0.870, 0.858, 0.884, 0.011),
    (1.0, (0.08, 0.16, 0.23, 0.37, 0.73, 0.29, 0.09, 0.08), 0.869, 0.868, 0.881, 0.027),
]
OLD_SMALL = [  # seeds from 10, of Office-Caltech-10 from 0; centre and radius of [0, 1]^d, and OFFICE_RADIUS
    ("breast_cancer", 10.0, 20, {"logreg": 94.9, "neighbours": 88.7}),
    ("breast_cancer", 1.0, 10, {"logreg": 79.9, "neighbours": 54.7}),
    ("wine", 10.0, 20, {"logreg": 90.7, "neighbours": 89.2}),
    ("Office-Caltech-10", 10.0, 3, {"logreg": 95.0, "neighbours": 95.9}),
]
DIABETES = [
    (18, 90),
    (1, 2),
    (15, 45),
    (60, 140),
    (90, 310),
    (40, 250),
    (20, 100),
    (1, 10),
    (3, 6.5),
    (50, 130),
]
OFFICE, OFFICE_RADIUS = (
    "office_caltech10/amazon_GoogleNet1024.npz",
    45.0,
)  # features of a network, without bounds
DATASETS = {
    "breast_cancer": 20,
    "wine": 10,
    "digits": 3,
    "diabetes": 5,
    "Office-Caltech-10": 3,
}  # seeds

Array = NDArray[Any]


def adult(seed: int, data: Path | None = None) -> tuple[Array, Array, Array, Array]:
    """Return training rows and classes, and test rows and classes."""
    import pandas as pd

    path = data_root(data) / "adult" / "adult.csv"
    if not path.exists():
        raise InputError(
            f"Expected {path} with the columns of the UCI repository, got none; see docs/tables.md."
        )
    table = pd.read_csv(path, skipinitialspace=True)
    table["male"], table["married"] = (
        table["sex"] == "Male",
        table["marital-status"] == "Married-civ-spouse",
    )
    rows, labels = (
        table[COLUMNS].to_numpy(dtype=float),
        (table["income"] == ">50K").to_numpy().astype(int),
    )
    order = np.random.default_rng(seed).permutation(len(rows))
    return rows[order[:N]], labels[order[:N]], rows[order[N:]], labels[order[N:]]


def judge(
    rows: Array, labels: Array, real: Array, test: Array, test_labels: Array
) -> dict[str, Any]:
    """Return distances of columns over their standard deviations, error of correlations, and AUC on test rows."""
    upper = np.triu_indices(rows.shape[1], 1)
    models = {
        "boosting": GradientBoostingClassifier(random_state=0),
        "histogram boosting": HistGradientBoostingClassifier(random_state=0),
        "logreg": make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)),
    }
    auc = {
        name: roc_auc_score(test_labels, model.fit(rows, labels).predict_proba(test)[:, 1])
        for name, model in models.items()
    }
    return {
        "distances": [
            wasserstein_distance(a, b) / a.std() for a, b in zip(real.T, rows.T, strict=True)
        ],
        "correlations": float(np.abs(np.corrcoef(real.T) - np.corrcoef(rows.T))[upper].mean()),
        "auc": auc,
    }


def generate(
    method: str, rows: Array, labels: Array, epsilon: float, delta: float, n: int, **options: Any
) -> Any:
    """Fit with one of the methods, or as the rule says; return synthetic rows and their classes."""
    facts = {"classes": np.unique(labels).tolist(), "verbose": False, **options}
    if method in METHODS:
        facts["structure"] = forecast(
            len(rows),
            rows.shape[1:],
            len(facts["classes"]),
            mu_of_epsilon(epsilon, delta),
            bounded=True,
            columns=METHODS[method],
        )
    with tempfile.TemporaryDirectory() as directory:
        made = PrivateGenerator(epsilon, delta, run_dir=Path(directory) / "run", **facts)
        made.fit(rows.astype(np.float32), labels)
    return made.sample(n, proportions="released" if n == len(rows) else "equal")


def methods(
    rows: Array, labels: Array, epsilon: float, delta: float, options: dict[str, Any]
) -> dict[str, bool]:
    """Return the methods to measure, and whether the rule takes them: all at the first budget, else the one taken."""
    if "bounds" not in options:
        return {"vectors without bounds": True}
    n_classes = len(np.unique(labels))
    ruled = PrivateGenerator(epsilon, delta, bounds=options["bounds"]).forecast(
        rows.shape[1:], len(rows), n_classes
    )
    names = list(METHODS)
    taken = names[0] if ruled.own_columns else names[1] if ruled.n_bins else names[2]
    return {name: name == taken for name in names if name == taken or epsilon == BUDGETS[0]}


def adult_rows(out: Path, seeds: tuple[int, ...], data: Path | None) -> list[dict[str, Any]]:
    """Measure Adult; write the figure of the first seed."""
    splits = {seed: adult(seed, data) for seed in seeds}
    rows = [
        averaged("real records", None, [judge(x, y, x, xt, yt) for x, y, xt, yt in splits.values()])
    ]
    for epsilon in BUDGETS:
        x, y, _, _ = splits[seeds[0]]
        for method, taken in methods(x, y, epsilon, DELTA, {"bounds": BOUNDS}).items():
            found, seconds = [], []
            for seed, (x, y, xt, yt) in splits.items():
                start = time.perf_counter()
                made, labels = generate(method, x, y, epsilon, DELTA, N, bounds=BOUNDS, kinds=KINDS)
                seconds.append(time.perf_counter() - start)
                found.append(judge(made, labels, x, xt, yt) | {"seed": seed})
                if seed == seeds[0] and epsilon == BUDGETS[0] and taken:
                    save_columns(out / "tables.png", {"real": x, "synthetic": made}, COLUMNS)
                say(f"Adult, {method}, epsilon {epsilon:g}, seed {seed}: {found[-1]}")
            rows.append(averaged(method, epsilon, found, seconds=mean(seconds), chosen=taken))
        old = next(each for each in OLD_ADULT if each[0] == epsilon)
        auc = dict(zip(("boosting", "histogram boosting", "logreg"), old[2:5], strict=True))
        before = {
            "epsilon": epsilon,
            "seeds": 2,
            "distances": dict(zip(COLUMNS, old[1], strict=True)),
            "auc": auc,
        }
        rows.append(_OLD | before | {"largest": max(old[1]), "correlations": old[5]})
    return rows


def averaged(
    method: str, epsilon: float | None, found: list[dict[str, Any]], **more: Any
) -> dict[str, Any]:
    """Return a row of means over seeds."""
    distances = np.array([each["distances"] for each in found])
    auc = {name: mean(each["auc"][name] for each in found) for name in found[0]["auc"]}
    row: dict[str, Any] = {
        "method": method,
        "epsilon": epsilon,
        "version": __version__,
        "seeds": len(found),
    }
    row |= {"distances": dict(zip(COLUMNS, distances.mean(0).tolist(), strict=True))}
    row |= {
        "largest": float(distances.max()),
        "correlations": mean(each["correlations"] for each in found),
    }
    return row | {
        "auc": auc,
        "least_auc": min(each["auc"]["boosting"] for each in found),
        "each": found,
        **more,
    }


def mst_rows(data: Path | None) -> list[dict[str, Any]]:
    """Measure MST on the first seed of Adult."""
    epsilon, seed = BUDGETS[0], SEEDS[0]
    x, y, xt, yt = adult(seed, data)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        source, target = Path(directory) / "in.npz", Path(directory) / "out.npz"
        np.savez(
            source,
            rows=x,
            labels=y,
            bounds=BOUNDS,
            epsilon=epsilon,
            delta=DELTA,
            bins=32,
            seed=seed,
        )
        command = [
            os.environ.get("DPMM_PYTHON", sys.executable),
            Path(__file__).with_name("mst.py"),
            source,
            target,
        ]
        if subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode:
            raise InputError(
                "Expected DPMM_PYTHON as an interpreter with dpmm, got none that runs MST."
            )
        seconds = time.perf_counter() - start
        made = np.load(target)
        found = judge(made["rows"], made["labels"], x, xt, yt)
    return [averaged("MST of dpmm, 32 bins", epsilon, [found], seconds=seconds)]


@dataclass(frozen=True)
class Cell(cells.Cell):
    """A small data set, a budget and a method, over the first seeds."""

    dataset: str
    epsilon: float
    method: str
    seeds: int


def small_rows(out: Path, limit: int | None, data: Path | None) -> list[dict[str, Any]]:
    """Return accuracies of classifiers on small data sets, over at most ``limit`` seeds; run the missing cells."""
    planned = []
    for name, n_seeds in DATASETS.items():
        x, y, options = _small(name, data)
        facts = {
            "dataset": name,
            "n_records": round(0.7 * len(x)),
            "columns": x.shape[1],
            "classes": len(np.unique(y)),
        }
        for epsilon in BUDGETS:
            for method, taken in methods(
                x[: facts["n_records"]], y, epsilon, SMALL_DELTA, options
            ).items():
                cell = Cell(name, epsilon, method, limit or n_seeds)
                planned.append(
                    (cell, facts | {"method": method, "version": __version__, "chosen": taken})
                )
            planned += [
                (Cell(name, epsilon, "", n_old), facts | _OLD | _mean_and_error([found]))
                for dataset, budget, n_old, found in OLD_SMALL
                if (dataset, budget) == (name, epsilon)
            ]
    wanted = [cell for cell, _ in planned if cell.method]
    results = cells.run_cells(wanted, partial(measure, data=data), out / "tables_small")
    found = dict(zip(wanted, results, strict=True))
    return [
        {"epsilon": cell.epsilon, "seeds": cell.seeds} | facts | found.get(cell, {})
        for cell, facts in planned
    ]


def measure(cell: Cell, data: Path | None = None) -> dict[str, Any]:
    """Return accuracies in percent of classifiers on the 30 % of real records that were left out."""
    x, y, options = _small(cell.dataset, data)
    found = []
    for seed in SMALL_SEEDS[: cell.seeds]:
        parts = train_test_split(x, y, test_size=0.3, stratify=y, random_state=seed)
        made = generate(cell.method, parts[0], parts[2], cell.epsilon, SMALL_DELTA, 2000, **options)
        found.append(_accuracies(*made, parts[1], parts[3]))
    return _mean_and_error(found) | {"each": found}


def _mean_and_error(found: list[dict[str, float]]) -> dict[str, Any]:
    """Return the means over seeds, and their standard errors."""
    errors = {
        key: stdev(each[key] for each in found) / math.sqrt(len(found))
        for key in found[0]
        if len(found) > 1
    }
    return {key: mean(each[key] for each in found) for key in found[0]} | {"errors": errors}


def _small(name: str, data: Path | None) -> tuple[Array, Array, dict[str, Any]]:
    """Return rows, classes, and bounds: the largest value of a column rounded up, or what its unit allows."""
    if name == "Office-Caltech-10":
        office = np.load(data_root(data) / OFFICE)
        return office["features"], office["labels"].ravel(), {"radius": OFFICE_RADIUS}
    if name == "diabetes":  # disease progression above 140
        x, y = datasets.load_diabetes(return_X_y=True, scaled=False)
        return (
            x,
            (y > 140).astype(int),
            {"bounds": DIABETES, "kinds": ["integer", "binary", *["numeric"] * 8]},
        )
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    if name == "digits":
        return x, y, {"bounds": [(0, 16)] * 64, "kinds": ["integer"] * 64}
    power = 10.0 ** np.floor(np.log10(x.max(0)))
    return (
        x,
        y,
        {"bounds": [(0.0, high) for high in (np.ceil(x.max(0) / power * 2) / 2 * power).tolist()]},
    )


def _accuracies(rows: Array, labels: Array, test: Array, test_labels: Array) -> dict[str, float]:
    models = {
        "logreg": LogisticRegression(max_iter=3000),
        "neighbours": KNeighborsClassifier(5),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            name: 100
            * float(
                make_pipeline(StandardScaler(), model).fit(rows, labels).score(test, test_labels)
            )
            for name, model in models.items()
        }


def run(
    out: Path, *, quick: bool = False, data: Path | None = None, only: str = "small"
) -> dict[str, Any]:
    """Tables: Adult (--only adult), small data sets (small; resumes), MST with dpmm (mst)."""
    parts: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "adult": lambda: adult_rows(out, SEEDS, data),
        "mst": lambda: mst_rows(data),
        "small": lambda: small_rows(out, 1 if quick else None, data),
    }
    choice(tuple(parts), only=only)
    return {"file": f"tables_{only}", "rows": parts[only]()}
