"""All 14 columns of Adult, by one release of each column.

The columns are integers and categories, with missing cells.

26,000 random records play the private ones, the others test. The lists of categories are those of
the UCI repository. Classifiers see categories as numbers of their position. Where ``DPMM_PYTHON``
is the interpreter of an environment with ``dpmm``, MST and AIM see the same columns, with one bin
for each category and at most 32 for the integers, on the first seed.
"""

import os
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from dpswd import PrivateGenerator, __version__
from dpswd._progress import say
from dpswd.columns import Table
from dpswd.data.reading import data_root
from dpswd.errors import InputError
from experiments.generation.dpmm_runs import run_dpmm
from experiments.results import Row

SEEDS = (10, 11, 12)
BUDGETS = (10.0, 1.0)
DELTA = 1e-6
N = 26_000
N_SYNTHETIC = 30_000
OWN_METHOD = "PrivateGenerator(columns=)"
MOST_BINS = 32  # of an integer column, for MST and AIM
TIME_LIMIT = 1800  # seconds for a fit of MST or AIM
CLASSES = ["<=50K", ">50K"]
COLUMNS: dict[str, dict[str, Any]] = {
    "age": {"kind": "integer", "low": 17, "high": 90},
    "fnlwgt": {"kind": "integer", "low": 0, "high": 1_500_000},
    "education-num": {"kind": "integer", "low": 1, "high": 16},
    "capital-gain": {"kind": "integer", "low": 0, "high": 99_999},
    "capital-loss": {"kind": "integer", "low": 0, "high": 5_000},
    "hours-per-week": {"kind": "integer", "low": 1, "high": 99},
    "sex": {"kind": "binary", "categories": "Female|Male"},
    "workclass": {
        "kind": "nominal",
        "categories": (
            "Federal-gov|Local-gov|Never-worked|Private|Self-emp-inc|Self-emp-not-inc|"
            "State-gov|Without-pay"
        ),
        "missing": "?",
    },
    "education": {
        "kind": "nominal",
        "categories": (
            "10th|11th|12th|1st-4th|5th-6th|7th-8th|9th|Assoc-acdm|Assoc-voc|Bachelors|"
            "Doctorate|HS-grad|Masters|Preschool|Prof-school|Some-college"
        ),
    },
    "marital-status": {
        "kind": "nominal",
        "categories": (
            "Divorced|Married-AF-spouse|Married-civ-spouse|Married-spouse-absent|"
            "Never-married|Separated|Widowed"
        ),
    },
    "occupation": {
        "kind": "nominal",
        "categories": (
            "Adm-clerical|Armed-Forces|Craft-repair|Exec-managerial|Farming-fishing|"
            "Handlers-cleaners|Machine-op-inspct|Other-service|Priv-house-serv|"
            "Prof-specialty|Protective-serv|Sales|Tech-support|Transport-moving"
        ),
        "missing": "?",
    },
    "relationship": {
        "kind": "nominal",
        "categories": "Husband|Not-in-family|Other-relative|Own-child|Unmarried|Wife",
    },
    "race": {
        "kind": "nominal",
        "categories": "Amer-Indian-Eskimo|Asian-Pac-Islander|Black|Other|White",
    },
    "native-country": {
        "kind": "nominal",
        "categories": (
            "Cambodia|Canada|China|Columbia|Cuba|Dominican-Republic|Ecuador|El-Salvador|"
            "England|France|Germany|Greece|Guatemala|Haiti|Holand-Netherlands|Honduras|"
            "Hong|Hungary|India|Iran|Ireland|Italy|Jamaica|Japan|Laos|Mexico|Nicaragua|"
            "Outlying-US(Guam-USVI-etc)|Peru|Philippines|Poland|Portugal|Puerto-Rico|"
            "Scotland|South|Taiwan|Thailand|Trinadad&Tobago|United-States|Vietnam|"
            "Yugoslavia"
        ),
        "missing": "?",
    },
}


def mixed_rows(data: Path | None, *, quick: bool) -> list[Row]:
    """Return a row for the real records and one for each budget."""
    import pandas as pd  # an optional package

    path = data_root(data) / "adult" / "adult.csv"
    if not path.exists():
        raise InputError(
            f"Expected {path} with the columns of the UCI repository, got none; see docs/tables.md."
        )
    frame = pd.read_csv(path, skipinitialspace=True, dtype=str, keep_default_na=False)
    seeds = SEEDS
    if quick:
        seeds = SEEDS[:1]
    judgements: dict[float | None, list[Row]] = {epsilon: [] for epsilon in (None, *BUDGETS)}
    for seed in seeds:
        order = np.random.default_rng(seed).permutation(len(frame))
        train = frame.iloc[order[:N]].reset_index(drop=True)
        test = frame.iloc[order[N:]].reset_index(drop=True)
        judgements[None].append(_judge(train, train, test))
        for epsilon in BUDGETS:
            started = time.perf_counter()
            synthetic = _generate(train, epsilon)
            seconds = time.perf_counter() - started
            judgement = _judge(synthetic, train, test) | {"seed": seed, "seconds": seconds}
            judgements[epsilon].append(judgement)
            say(f"Adult, 14 columns, epsilon {epsilon:g}, seed {seed}: {judgement}")
    rows = [_averaged(OWN_METHOD, epsilon, of_seeds) for epsilon, of_seeds in judgements.items()]
    if "DPMM_PYTHON" in os.environ:
        rows += _dpmm_rows(frame, quick=quick)
    return rows


def _dpmm_rows(frame: Any, *, quick: bool) -> list[Row]:
    """Return a row for MST and for AIM at each budget, of the first seed."""
    seed = SEEDS[0]
    order = np.random.default_rng(seed).permutation(len(frame))
    train = frame.iloc[order[:N]].reset_index(drop=True)
    test = frame.iloc[order[N:]].reset_index(drop=True)
    if quick:
        train = train.iloc[:1000]
    rows = []
    for method in ("mst", "aim"):
        for epsilon in BUDGETS:
            started = time.perf_counter()
            synthetic = _of_dpmm(method, train, epsilon, seed)
            seconds = time.perf_counter() - started
            name = f"{method.upper()} of dpmm, {MOST_BINS} bins"
            if synthetic is None:
                say(f"{name}, epsilon {epsilon:g}: not finished in {TIME_LIMIT} s")
                method_and_end = f"{name}: not finished in {TIME_LIMIT} s"
                rows.append({"method": method_and_end, "epsilon": epsilon, "version": __version__})
                break  # the other budget takes as long
            judgement = _judge(synthetic, train, test) | {"seed": seed, "seconds": seconds}
            say(f"{name}, epsilon {epsilon:g}: {judgement}")
            rows.append(_averaged(name, epsilon, [judgement]))
    return rows


def _of_dpmm(method: str, train: Any, epsilon: float, seed: int) -> Any:
    """Return a DataFrame of synthetic records with their classes.

    Beyond the time limit, return ``None``.
    """
    table = Table.of(COLUMNS)
    bins = []
    for column, (low, high) in zip(table.included, table.bounds, strict=True):
        n_values = int(high - low) + 1
        bins.append(n_values if column.has_categories else min(n_values, MOST_BINS))
    try:
        rows, labels = run_dpmm(
            method,
            _numbers(train),
            (train["income"] == CLASSES[1]).to_numpy().astype(int),
            bounds=table.bounds,
            bins=bins,
            epsilon=epsilon,
            delta=DELTA,
            seed=seed,
            time_limit=TIME_LIMIT,
        )
    except TimeoutError:
        return None
    synthetic = train.iloc[:0].reindex(range(len(rows)))
    for name, cells in table.cells(rows).items():
        synthetic[name] = table.as_text(name, cells)
    return synthetic.assign(income=np.array(CLASSES)[labels])


def _generate(train: Any, epsilon: float) -> Any:
    """Fit the generator, and return a DataFrame of synthetic records.

    The records come with their classes.
    """
    with tempfile.TemporaryDirectory() as directory:
        generator = PrivateGenerator(
            epsilon,
            DELTA,
            columns=COLUMNS,
            classes=CLASSES,
            run_dir=Path(directory) / "run",
            verbose=False,
        )
        generator.fit(train.drop(columns="income"), train["income"])
    synthetic, labels = generator.sample(N_SYNTHETIC)
    for name in synthetic:
        synthetic[name] = generator.generator_.layout.table.as_text(name, synthetic[name])
    return synthetic.assign(income=labels)


def _judge(synthetic: Any, train: Any, test: Any) -> Row:
    """Return AUC of boosting on test records, and the largest errors of shares."""
    model = HistGradientBoostingClassifier(random_state=0)
    model.fit(_numbers(synthetic), synthetic["income"] == CLASSES[1])
    probabilities = model.predict_proba(_numbers(test))[:, 1]
    errors = []
    missing_errors = []
    for name, column in COLUMNS.items():
        if "categories" not in column:
            continue
        shares = train[name].value_counts(normalize=True)
        difference = shares.sub(synthetic[name].value_counts(normalize=True), fill_value=0).abs()
        errors.append(float(difference.max()))
        missing_errors.append(float(difference.get("?", 0.0)))
    return {
        "auc": float(roc_auc_score(test["income"] == CLASSES[1], probabilities)),
        "share_error": max(errors),
        "missing_error": max(missing_errors),
    }


def _numbers(frame: Any) -> NDArray[np.float64]:
    """Return the columns (n, 14) as numbers, categories by their position."""
    table = Table.of(COLUMNS)
    return table.numbers({name: frame[name].tolist() for name in table.names}, "Adult")


def _averaged(method: str, epsilon: float | None, judgements: list[Row]) -> Row:
    """Return a row of means over seeds, and of the largest errors."""
    row: Row = {
        "method": "real records" if epsilon is None else method,
        "epsilon": epsilon,
        "version": __version__,
        "seeds": len(judgements),
        "auc": mean(judgement["auc"] for judgement in judgements),
        "least_auc": min(judgement["auc"] for judgement in judgements),
        "share_error": max(judgement["share_error"] for judgement in judgements),
        "missing_error": max(judgement["missing_error"] for judgement in judgements),
        "each": judgements,
    }
    if epsilon is not None:
        row["seconds"] = mean(judgement["seconds"] for judgement in judgements)
    return row
