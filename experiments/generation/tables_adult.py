"""Tables of numbers: Adult, and small data sets on which the rule that releases columns is tested.

Adult has six integer columns and two of 0 and 1, with public bounds; 25,000 random records play the private ones, the
others test. ``released columns`` and ``scaled columns`` are the two structures of bounded rows, of which the rule of
:func:`dpswd.mixture.structure.forecast` takes one (``chosen``). Figures of 0.2.0 were measured before that version was
removed; they cannot be made again by this command. Where ``DPMM_PYTHON`` is the interpreter of an environment with
``dpmm``, MST is measured on the columns cut into 32 bins, on the first seed at epsilon 10.
"""

import math
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from statistics import mean
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from scipy.stats import wasserstein_distance
from sklearn import datasets
from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from dpswd import PrivateGenerator, __version__
from dpswd._progress import say
from dpswd.errors import InputError
from dpswd.generators import save_columns

HELP = "tables: Adult and small data sets, columns released or scaled (20 minutes; MST with dpmm)"

BUDGETS, SEEDS, SMALL_SEEDS = (10.0, 1.0), (10, 11, 12), tuple(range(10, 15))
N, DELTA, SMALL_DELTA = 25_000, 1e-6, 1e-5
COLUMNS = ["age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week", "male", "married"]
BOUNDS = [(17, 90), (0, 1_500_000), (1, 16), (0, 99_999), (0, 5_000), (1, 99), (0, 1), (0, 1)]
KINDS = ["integer"] * 6 + ["binary"] * 2
SIGNAL = "dpswd.mixture.structure._COLUMN_SIGNAL"
METHODS = {"released columns": 0.0, "scaled columns": math.inf}  # the signal from which on columns are released
REASON = "measured with 0.2.0, which has no bounds: columns were scaled by the same bounds and radius was their norm"
_OLD: dict[str, Any] = {"method": "PrivateGenerator of 0.2.0", "version": "0.2.0", "reason": REASON}
OLD_ADULT = [  # two seeds; the columns in the order of COLUMNS
    (10.0, (0.08, 0.17, 0.22, 0.28, 0.74, 0.29, 0.05, 0.04), 0.870, 0.858, 0.884, 0.011),
    (1.0, (0.08, 0.16, 0.23, 0.37, 0.73, 0.29, 0.09, 0.08), 0.869, 0.868, 0.881, 0.027),
]
OLD_SMALL = [  # ten seeds, of which none is here
    ("breast_cancer", 10.0, {"logreg": 95.2, "neighbours": 90.6, "bayes": 91.3, "svm": 93.8}),
    ("breast_cancer", 1.0, {"logreg": 78.6, "neighbours": 55.7, "bayes": 59.5, "svm": 58.2}),
    ("wine", 10.0, {"logreg": 89.4, "neighbours": 90.3, "bayes": 76.8, "svm": 91.5}),
]
DIABETES = [(18, 90), (1, 2), (15, 45), (60, 140), (90, 310), (40, 250), (20, 100), (1, 10), (3, 6.5), (50, 130)]
LOOKED_AT = {"breast_cancer": "constants", "wine": "constants", "digits": "rule", "diabetes": ""}

Array = NDArray[Any]


def adult(seed: int, data: Path | None = None) -> tuple[Array, Array, Array, Array]:
    """Return training rows and classes, and test rows and classes.

    Raises:
        InputError: If the file is missing.
    """
    import pandas as pd

    path = Path(data or os.environ.get("DPSWD_DATA") or "data") / "adult" / "adult.csv"
    if not path.exists():
        raise InputError(f"Expected {path} with the columns of the UCI repository, got none; see docs/tables.md.")
    table = pd.read_csv(path, skipinitialspace=True)
    table["male"], table["married"] = table["sex"] == "Male", table["marital-status"] == "Married-civ-spouse"
    rows, labels = table[COLUMNS].to_numpy(dtype=float), (table["income"] == ">50K").to_numpy().astype(int)
    order = np.random.default_rng(seed).permutation(len(rows))
    return rows[order[:N]], labels[order[:N]], rows[order[N:]], labels[order[N:]]


def judge(rows: Array, labels: Array, real: Array, test: Array, test_labels: Array) -> dict[str, Any]:
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
        "distances": [wasserstein_distance(a, b) / a.std() for a, b in zip(real.T, rows.T, strict=True)],
        "correlations": float(np.abs(np.corrcoef(real.T) - np.corrcoef(rows.T))[upper].mean()),
        "auc": auc,
    }


def generate(method: str, rows: Array, labels: Array, epsilon: float, delta: float, n: int, **options: Any) -> Any:
    """Fit with or without released columns; return synthetic rows, their classes and whether the rule agrees."""
    facts = {"classes": np.unique(labels).tolist(), "verbose": False, **options}
    with tempfile.TemporaryDirectory() as directory, patch(SIGNAL, METHODS[method]):
        made = PrivateGenerator(epsilon, delta, run_dir=Path(directory) / "run", **facts)
        made.fit(rows.astype(np.float32), labels)
    structure = made.generator_.structure
    ruled = PrivateGenerator(epsilon, delta, **facts).forecast(rows.shape[1:], len(rows), len(facts["classes"]))
    assert (structure.n_bins > 0) == (method == "released columns")
    proportions = "released" if n == len(rows) else "equal"
    return *made.sample(n, proportions=proportions), (ruled.n_bins > 0) == (structure.n_bins > 0)


def mst(rows: Array, labels: Array, epsilon: float, seed: int) -> tuple[Array, Array] | None:
    """Return synthetic rows of MST and their classes; ``None`` where ``DPMM_PYTHON`` has no ``dpmm``."""
    with tempfile.TemporaryDirectory() as directory:
        source, target = Path(directory) / "in.npz", Path(directory) / "out.npz"
        np.savez(source, rows=rows, labels=labels, bounds=BOUNDS, epsilon=epsilon, delta=DELTA, bins=32, seed=seed)
        script = Path(__file__).with_name("mst.py")
        interpreter = os.environ.get("DPMM_PYTHON", sys.executable)
        if subprocess.run([interpreter, script, source, target], check=False, stdout=subprocess.DEVNULL).returncode:
            return None
        made = np.load(target)
        return made["rows"], made["labels"]


def adult_rows(out: Path, seeds: tuple[int, ...], data: Path | None) -> list[dict[str, Any]]:
    """Measure Adult; write the figure of the first seed."""
    rows: list[dict[str, Any]] = []
    splits = {seed: adult(seed, data) for seed in seeds}

    def add(method: str, epsilon: float | None, found: list[dict[str, Any]], **more: Any) -> None:
        distances = np.array([each["distances"] for each in found])
        auc = {name: mean(each["auc"][name] for each in found) for name in found[0]["auc"]}
        row: dict[str, Any] = {"method": method, "epsilon": epsilon, "version": __version__, "seeds": len(found)}
        row |= {"distances": dict(zip(COLUMNS, distances.mean(0).tolist(), strict=True))}
        row |= {"largest": float(distances.max()), "correlations": mean(each["correlations"] for each in found)}
        row |= {"auc": auc, "least_auc": min(each["auc"]["boosting"] for each in found), "each": found, **more}
        rows.append(row)

    real = [judge(x, y, x, xt, yt) for x, y, xt, yt in splits.values()]
    add("real records", None, real)
    for epsilon in BUDGETS:
        for method in METHODS:
            found, seconds, agrees = [], [], True
            for seed, (x, y, xt, yt) in splits.items():
                start = time.perf_counter()
                made, labels, agrees = generate(method, x, y, epsilon, DELTA, N, bounds=BOUNDS, kinds=KINDS)
                seconds.append(time.perf_counter() - start)
                found.append(judge(made, labels, x, xt, yt) | {"seed": seed})
                if (seed, epsilon, method) == (seeds[0], BUDGETS[0], "released columns"):
                    save_columns(out / "tables.png", {"real": x, "synthetic": made}, COLUMNS)
                say(f"Adult, {method}, epsilon {epsilon:g}, seed {seed}: {found[-1]}")
            add(method, epsilon, found, seconds=mean(seconds), chosen=agrees)
        old = next(each for each in OLD_ADULT if each[0] == epsilon)
        auc = dict(zip(("boosting", "histogram boosting", "logreg"), old[2:5], strict=True))
        before = {"epsilon": epsilon, "seeds": 2, "distances": dict(zip(COLUMNS, old[1], strict=True)), "auc": auc}
        rows.append(_OLD | before | {"largest": max(old[1]), "correlations": old[5]})
    x, y, xt, yt = splits[seeds[0]]
    start = time.perf_counter()
    if (cut := mst(x, y, BUDGETS[0], seeds[0])) is None:
        say("MST is left out: set DPMM_PYTHON to the interpreter of an environment with dpmm.")
    else:
        took = time.perf_counter() - start
        add("MST of dpmm, 32 bins", BUDGETS[0], [judge(*cut, x, xt, yt)], seconds=took)
    return rows


def small_rows(seeds: tuple[int, ...]) -> list[dict[str, Any]]:
    """Measure accuracies of classifiers on small data sets, with both structures."""
    rows: list[dict[str, Any]] = []
    for name, looked_at in LOOKED_AT.items():
        x, y, options = _small(name)
        for epsilon in BUDGETS:
            for method in METHODS:
                found, agrees = [], True
                for seed in seeds:
                    parts = train_test_split(x, y, test_size=0.3, stratify=y, random_state=seed)
                    made, labels, agrees = generate(method, parts[0], parts[2], epsilon, SMALL_DELTA, 2000, **options)
                    found.append(_accuracies(made, labels, parts[1], parts[3]))
                row = {"dataset": name, "method": method, "epsilon": epsilon, "version": __version__}
                row |= {"n_records": len(parts[0]), "columns": x.shape[1], "classes": len(np.unique(y))}
                row |= {key: mean(each[key] for each in found) for key in found[0]}
                rows.append(row | {"chosen": agrees, "seeds": len(seeds), "looked_at": looked_at, "each": found})
                say(str({key: value for key, value in rows[-1].items() if key != "each"}))
            rows += [
                _OLD | {"dataset": name, "epsilon": epsilon, "seeds": 10, "looked_at": looked_at, **figures}
                for dataset, budget, figures in OLD_SMALL
                if (dataset, budget) == (name, epsilon)
            ]
    return rows


def _small(name: str) -> tuple[Array, Array, dict[str, Any]]:
    """Return rows, classes, and bounds: the largest value of a column rounded up, or what its unit allows."""
    if name == "diabetes":  # disease progression above 140
        x, y = datasets.load_diabetes(return_X_y=True, scaled=False)
        return x, (y > 140).astype(int), {"bounds": DIABETES, "kinds": ["integer", "binary", *["numeric"] * 8]}
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    if name == "digits":
        return x, y, {"bounds": [(0, 16)] * 64, "kinds": ["integer"] * 64}
    power = 10.0 ** np.floor(np.log10(x.max(0)))
    return x, y, {"bounds": [(0.0, high) for high in (np.ceil(x.max(0) / power * 2) / 2 * power).tolist()]}


def _accuracies(rows: Array, labels: Array, test: Array, test_labels: Array) -> dict[str, float]:
    models = {
        "logreg": LogisticRegression(max_iter=3000),
        "neighbours": KNeighborsClassifier(5),
        "bayes": GaussianNB(),
        "svm": SVC(),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            name: 100 * float(make_pipeline(StandardScaler(), model).fit(rows, labels).score(test, test_labels))
            for name, model in models.items()
        }


def run(out: Path, *, quick: bool = False, data: Path | None = None, only: str | None = None) -> dict[str, Any]:
    """Measure Adult and the small data sets; ``--only adult`` or ``small``, with ``quick`` one seed of the latter."""
    if only not in (None, "adult", "small"):
        raise InputError(f"Expected --only adult or small, got {only}.")
    seeds = SMALL_SEEDS[:1] if quick else SMALL_SEEDS
    return {
        "file": "tables" if only is None else f"tables_{only}",
        "rows": adult_rows(out, SEEDS, data) if only != "small" and not quick else [],
        "small": small_rows(seeds) if only != "adult" else [],
    }
