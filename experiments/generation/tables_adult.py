"""Tables of numbers: Adult, and small data sets that test a rule.

Adult has six integer columns and two of 0 and 1, with public bounds; 25,000 random records play the
private ones, the others test. Bounded rows have three structures, of which the rule of
:func:`dpswd.mixture.forecast.forecast` takes one (``chosen``); all are measured at epsilon 10.
Where ``DPMM_PYTHON`` is the interpreter of an environment with ``dpmm``, ``--only mst``
measures MST on the columns cut into 32 bins, at epsilon 10.
"""

import math
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from experiments.generation import mixed_tables
from experiments.generation.dpmm_runs import run_dpmm
from experiments.generation.tables_mixed import aim_rows, mixed_rows
from experiments.results import Result, Row

BUDGETS = (10.0, 1.0)
METHODS = {  # and how the forecast is told to release columns
    "columns of each class": "own",
    "columns of all classes": "common",
    "scaled columns": "scaled",
}
NO_BOUNDS = "vectors without bounds"  # the one method of records without bounds

Array = NDArray[Any]


def run(out: Path, *, quick: bool = False, data: Path | None = None, only: str = "small") -> Result:
    """Tables: Adult (--only adult, mixed, mst, aim), RAND (rand), small ones (small).

    The small data sets are the default; an interrupted run of them resumes.
    """
    choice(("adult", "aim", "mixed", "mst", "rand", "small"), only=only)
    if only == "adult":
        rows = adult_rows(out, SEEDS, data)
    elif only == "mixed":
        rows = mixed_rows(mixed_tables.adult(data), quick=quick)
    elif only == "aim":
        rows = aim_rows(mixed_tables.adult(data), quick=quick)
    elif only == "rand":
        rows = mixed_rows(mixed_tables.rand(data), quick=quick, others=("mst",))
    elif only == "mst":
        rows = mst_rows(data)
    elif quick:
        rows = small_rows(out, 1, data)
    else:
        rows = small_rows(out, None, data)
    return {"file": f"tables_{only}", "rows": rows}


# Fits ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Synthetic:
    """Synthetic rows (n, d) with their classes (n,)."""

    rows: Array
    labels: Array


def generate(
    method: str, rows: Array, labels: Array, epsilon: float, delta: float, n: int, **options: Any
) -> Synthetic:
    """Fit with one of the methods, or as the rule says, and draw ``n`` rows.

    As many rows as there are records have classes in the released proportions, other numbers equal
    ones.
    """
    classes = np.unique(labels).tolist()
    structure = None
    if method in METHODS:
        structure = forecast(
            len(rows),
            rows.shape[1:],
            len(classes),
            mu_of_epsilon(epsilon, delta),
            bounded=True,
            columns=METHODS[method],
        )
    with tempfile.TemporaryDirectory() as directory:
        generator = PrivateGenerator(
            epsilon,
            delta,
            run_dir=Path(directory) / "run",
            classes=classes,
            structure=structure,
            verbose=False,
            **options,
        )
        generator.fit(rows.astype(np.float32), labels)
    proportions = "equal"
    if n == len(rows):
        proportions = "released"
    synthetic_rows, synthetic_labels = generator.sample(n, proportions=proportions)
    return Synthetic(synthetic_rows, synthetic_labels)


def methods(
    rows: Array, n_classes: int, epsilon: float, delta: float, options: Mapping[str, Any]
) -> dict[str, bool]:
    """Return the methods to measure, and whether the rule takes them.

    They are all methods at the first budget, and else the one that the rule takes.
    """
    if "bounds" not in options:
        return {NO_BOUNDS: True}
    chosen = _method_of_rule(rows, n_classes, epsilon, delta, options["bounds"])
    if epsilon != BUDGETS[0]:
        return {chosen: True}
    return {method: method == chosen for method in METHODS}


def _method_of_rule(
    rows: Array, n_classes: int, epsilon: float, delta: float, bounds: Sequence[Any]
) -> str:
    """Return the method that the forecast chooses from public numbers."""
    generator = PrivateGenerator(epsilon, delta, bounds=bounds)
    structure = generator.forecast(rows.shape[1:], len(rows), n_classes)
    if structure.own_columns:
        return "columns of each class"
    if structure.n_bins:
        return "columns of all classes"
    return "scaled columns"


# Adult --------------------------------------------------------------------------------------------

SEEDS = (10, 11, 12)
N = 25_000
DELTA = 1e-6
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
MST_BINS = 32


@dataclass(frozen=True)
class Split:
    """Training rows (n, d) and classes (n,), and those of the test."""

    rows: Array
    labels: Array
    test: Array
    test_labels: Array


def adult(seed: int, data: Path | None = None) -> Split:
    """Read Adult and split it at random."""
    import pandas as pd  # an optional package

    path = data_root(data) / "adult" / "adult.csv"
    if not path.exists():
        raise InputError(
            f"Expected {path} with the columns of the UCI repository, got none; see docs/tables.md."
        )
    table = pd.read_csv(path, skipinitialspace=True)
    table["male"] = table["sex"] == "Male"
    table["married"] = table["marital-status"] == "Married-civ-spouse"
    rows = table[COLUMNS].to_numpy(dtype=float)
    labels = (table["income"] == ">50K").to_numpy().astype(int)
    order = np.random.default_rng(seed).permutation(len(rows))
    train = order[:N]
    test = order[N:]
    return Split(rows[train], labels[train], rows[test], labels[test])


def judge(synthetic: Synthetic, real: Split) -> Row:
    """Compare synthetic rows with the real ones.

    Returns:
        Distances of columns over their standard deviations, the mean error of correlations, and the
        AUC of classifiers on the test rows.
    """
    distances = []
    for real_column, column in zip(real.rows.T, synthetic.rows.T, strict=True):
        distances.append(wasserstein_distance(real_column, column) / real_column.std())
    above_diagonal = np.triu_indices(real.rows.shape[1], 1)
    errors = np.abs(np.corrcoef(real.rows.T) - np.corrcoef(synthetic.rows.T))
    models = {
        "boosting": GradientBoostingClassifier(random_state=0),
        "histogram boosting": HistGradientBoostingClassifier(random_state=0),
        "logreg": make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)),
    }
    auc = {}
    for name, model in models.items():
        model.fit(synthetic.rows, synthetic.labels)
        probabilities = model.predict_proba(real.test)[:, 1]
        auc[name] = roc_auc_score(real.test_labels, probabilities)
    return {
        "distances": distances,
        "correlations": float(errors[above_diagonal].mean()),
        "auc": auc,
    }


def adult_rows(out: Path, seeds: tuple[int, ...], data: Path | None) -> list[Row]:
    """Measure Adult; write the figure of the first seed."""
    splits = {seed: adult(seed, data) for seed in seeds}
    of_real = [judge(Synthetic(split.rows, split.labels), split) for split in splits.values()]
    rows = [averaged("real records", None, of_real)]
    first = splits[seeds[0]]
    n_classes = len(np.unique(first.labels))
    for epsilon in BUDGETS:
        planned = methods(first.rows, n_classes, epsilon, DELTA, {"bounds": BOUNDS})
        for method, chosen in planned.items():
            picture = None
            if chosen and epsilon == BUDGETS[0]:
                picture = out / "tables.png"
            row = _measure_adult(method, epsilon, splits, picture)
            rows.append(row | {"chosen": chosen})
    return rows


def _measure_adult(
    method: str, epsilon: float, splits: dict[int, Split], picture: Path | None
) -> Row:
    """Measure a method on all splits; draw the columns of the first one."""
    judgements = []
    times = []
    for seed, split in splits.items():
        started = time.perf_counter()
        synthetic = generate(
            method, split.rows, split.labels, epsilon, DELTA, N, bounds=BOUNDS, kinds=KINDS
        )
        times.append(time.perf_counter() - started)
        judgement = judge(synthetic, split) | {"seed": seed}
        judgements.append(judgement)
        if picture is not None and len(judgements) == 1:
            save_columns(picture, {"real": split.rows, "synthetic": synthetic.rows}, COLUMNS)
        say(f"Adult, {method}, epsilon {epsilon:g}, seed {seed}: {judgement}")
    return averaged(method, epsilon, judgements) | {"seconds": mean(times)}


def averaged(method: str, epsilon: float | None, judgements: Sequence[Row]) -> Row:
    """Return a row of means over seeds."""
    distances = np.array([judgement["distances"] for judgement in judgements])
    auc = {}
    for name in judgements[0]["auc"]:
        auc[name] = mean(judgement["auc"][name] for judgement in judgements)
    return {
        "method": method,
        "epsilon": epsilon,
        "version": __version__,
        "seeds": len(judgements),
        "distances": dict(zip(COLUMNS, distances.mean(0).tolist(), strict=True)),
        "largest": float(distances.max()),
        "correlations": mean(judgement["correlations"] for judgement in judgements),
        "auc": auc,
        "least_auc": min(judgement["auc"]["boosting"] for judgement in judgements),
        "each": list(judgements),
    }


def mst_rows(data: Path | None) -> list[Row]:
    """Measure MST on Adult."""
    epsilon = BUDGETS[0]
    judgements = []
    times = []
    for seed in SEEDS:
        split = adult(seed, data)
        started = time.perf_counter()
        rows, labels = run_dpmm(
            "mst",
            split.rows,
            split.labels,
            bounds=BOUNDS,
            bins=[MST_BINS] * len(BOUNDS),
            epsilon=epsilon,
            delta=DELTA,
            seed=seed,
        )
        times.append(time.perf_counter() - started)
        judgement = judge(Synthetic(rows, labels), split) | {"seed": seed}
        judgements.append(judgement)
        say(f"Adult, MST, epsilon {epsilon:g}, seed {seed}: {judgement}")
    row = averaged(f"MST of dpmm, {MST_BINS} bins", epsilon, judgements)
    return [row | {"seconds": mean(times)}]


# Small data sets ----------------------------------------------------------------------------------

SMALL_SEEDS = range(10, 30)
SMALL_DELTA = 1e-5
N_SYNTHETIC = 2000
TEST_FRACTION = 0.3
DATASETS = {  # and their numbers of seeds
    "breast_cancer": 20,
    "wine": 10,
    "digits": 3,
    "diabetes": 5,
    "Office-Caltech-10": 3,
}
DIABETES_BOUNDS = [
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
DIABETES_KINDS = ["integer", "binary", *["numeric"] * 8]
DIABETES_THRESHOLD = 140  # of the disease's progression
# Features of a network, without bounds.
OFFICE = "office_caltech10/amazon_GoogleNet1024.npz"
OFFICE_RADIUS = 45.0


@dataclass(frozen=True)
class Small:
    """A small data set: rows (n, d), classes (n,), and stated facts."""

    rows: Array
    labels: Array
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def n_train(self) -> int:
        """Number of records that play the private ones.

        ``train_test_split`` rounds the number of test records up.
        """
        return len(self.rows) - math.ceil(TEST_FRACTION * len(self.rows))

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(np.unique(self.labels))


@dataclass(frozen=True)
class Cell(cells.Cell):
    """A small data set, a budget and a method, over the first seeds."""

    dataset: str
    epsilon: float
    method: str
    seeds: int


@dataclass(frozen=True)
class Planned:
    """A row of the table, and the cell that completes it."""

    row: Row
    cell: Cell


def small_rows(out: Path, limit: int | None, data: Path | None) -> list[Row]:
    """Return accuracies of classifiers on small data sets; run the missing cells.

    Every data set has at most ``limit`` seeds.
    """
    planned: list[Planned] = []
    for name in DATASETS:
        small = _small(name, data)
        for epsilon in BUDGETS:
            planned += _planned_rows(name, small, epsilon, limit)
    work = partial(measure, data=data)
    results = cells.run_cells([entry.cell for entry in planned], work, out / "tables_small")
    return [entry.row | result for entry, result in zip(planned, results, strict=True)]


def _planned_rows(name: str, small: Small, epsilon: float, limit: int | None) -> list[Planned]:
    """Return a row for each method that is measured."""
    train = small.rows[: small.n_train]
    chosen = methods(train, small.n_classes, epsilon, SMALL_DELTA, small.options)
    planned = []
    for method, is_chosen in chosen.items():
        cell = Cell(name, epsilon, method, limit or DATASETS[name])
        row = _small_row(name, small, epsilon, cell.seeds)
        row |= {"method": method, "version": __version__, "chosen": is_chosen}
        planned.append(Planned(row, cell))
    return planned


def _small_row(name: str, small: Small, epsilon: float, seeds: int) -> Row:
    """Return the public numbers of a data set."""
    return {
        "epsilon": epsilon,
        "seeds": seeds,
        "dataset": name,
        "n_records": small.n_train,
        "columns": small.rows.shape[1],
        "classes": small.n_classes,
    }


def measure(cell: Cell, data: Path | None = None) -> Result:
    """Return accuracies of classifiers on records that were left out, in percent."""
    small = _small(cell.dataset, data)
    accuracies = []
    for seed in SMALL_SEEDS[: cell.seeds]:
        train, test, train_labels, test_labels = train_test_split(
            small.rows,
            small.labels,
            test_size=TEST_FRACTION,
            stratify=small.labels,
            random_state=seed,
        )
        synthetic = generate(
            cell.method,
            train,
            train_labels,
            cell.epsilon,
            SMALL_DELTA,
            N_SYNTHETIC,
            **small.options,
        )
        accuracies.append(_accuracies(synthetic, test, test_labels))
    return _mean_and_error(accuracies) | {"each": accuracies}


def _mean_and_error(accuracies: Sequence[dict[str, float]]) -> Row:
    """Return the means over seeds, and their standard errors if there are several."""
    row: Row = {}
    errors = {}
    for name in accuracies[0]:
        values = [of_seed[name] for of_seed in accuracies]
        row[name] = mean(values)
        if len(values) > 1:
            errors[name] = stdev(values) / math.sqrt(len(values))
    row["errors"] = errors
    return row


def _small(name: str, data: Path | None) -> Small:
    """Return a data set with its bounds.

    A bound is the largest value of a column rounded up, or what its unit allows.
    """
    if name == "Office-Caltech-10":
        office = np.load(data_root(data) / OFFICE)
        return Small(office["features"], office["labels"].ravel(), {"radius": OFFICE_RADIUS})
    if name == "diabetes":
        rows, progression = datasets.load_diabetes(return_X_y=True, scaled=False)
        labels = (progression > DIABETES_THRESHOLD).astype(int)
        return Small(rows, labels, {"bounds": DIABETES_BOUNDS, "kinds": DIABETES_KINDS})
    if name == "digits":
        rows, labels = datasets.load_digits(return_X_y=True)
        return Small(rows, labels, {"bounds": [(0, 16)] * 64, "kinds": ["integer"] * 64})
    loaders = {"breast_cancer": datasets.load_breast_cancer, "wine": datasets.load_wine}
    rows, labels = loaders[name](return_X_y=True)
    return Small(rows, labels, {"bounds": _rounded_bounds(rows)})


def _rounded_bounds(rows: Array) -> list[tuple[float, float]]:
    """Return 0 and the largest value of every column, rounded up.

    It is rounded to half of its power of ten.
    """
    largest = rows.max(0)
    power = 10.0 ** np.floor(np.log10(largest))
    highs = np.ceil(largest / power * 2) / 2 * power
    return [(0.0, high) for high in highs.tolist()]


def _accuracies(synthetic: Synthetic, test: Array, test_labels: Array) -> dict[str, float]:
    """Train classifiers on synthetic rows; return accuracies on test rows."""
    models = {
        "logreg": LogisticRegression(max_iter=3000),
        "neighbours": KNeighborsClassifier(5),
    }
    accuracies = {}
    for name, model in models.items():
        pipeline = make_pipeline(StandardScaler(), model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the number of iterations is part of the setting
            pipeline.fit(synthetic.rows, synthetic.labels)
        accuracies[name] = 100 * float(pipeline.score(test, test_labels))
    return accuracies
