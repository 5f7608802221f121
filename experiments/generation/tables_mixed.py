"""Tables with columns of many kinds, by one release of each column.

The tables are those of :mod:`experiments.generation.mixed_tables`. Training records play the
private ones. Classifiers see categories as numbers of their position. Where ``DPMM_PYTHON`` is the
interpreter of an environment with ``dpmm``, MST and AIM see the same columns, with one bin for each
category and at most 32 for the integers. AIM, which takes long, has the first seed only.
"""

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from dpswd import PrivateGenerator, __version__
from dpswd._progress import say
from dpswd.columns import Column
from experiments.generation.dpmm_runs import MODEL_SIZE, run_dpmm
from experiments.generation.mixed_tables import MixedTable
from experiments.results import Row

SEEDS = (10, 11, 12)
BUDGETS = (10.0, 1.0)
DELTA = 1e-6
N_SYNTHETIC = 30_000
OWN_METHOD = "PrivateGenerator(columns=)"
MOST_BINS = 32  # of an integer column, for MST and AIM
TIME_LIMIT = 1800  # seconds for a fit of MST or AIM
SMALL_MODEL = 1.0  # MB of AIM, with which it ends
LONG_TIME_LIMIT = 2400  # seconds for AIM with a small model
N_QUICK = 1000  # records for MST and AIM in a quick run


def mixed_rows(
    table: MixedTable, *, quick: bool, others: Sequence[str] = ("mst", "aim")
) -> list[Row]:
    """Return a row for the real records and one for each budget.

    Args:
        table: The table.
        quick: Whether one seed is measured.
        others: Methods of ``dpmm`` that are measured where ``DPMM_PYTHON`` is set.
    """
    seeds = SEEDS
    if quick:
        seeds = SEEDS[:1]
    judgements: dict[float | None, list[Row]] = {epsilon: [] for epsilon in (None, *BUDGETS)}
    for seed in seeds:
        train, test = table.parts(seed)
        judgements[None].append(_judge(table, train, train, test))
        for epsilon in BUDGETS:
            started = time.perf_counter()
            synthetic = _generate(table, train, epsilon)
            seconds = time.perf_counter() - started
            judgement = _judge(table, synthetic, train, test) | {"seed": seed, "seconds": seconds}
            judgements[epsilon].append(judgement)
            say(f"{table.name}, epsilon {epsilon:g}, seed {seed}: {judgement}")
    rows = [_averaged(OWN_METHOD, epsilon, of_seeds) for epsilon, of_seeds in judgements.items()]
    if "DPMM_PYTHON" in os.environ:
        for method in others:
            for epsilon in BUDGETS:
                row = dpmm_row(table, method, epsilon, quick=quick)
                rows.append(row)
                if "auc" not in row:
                    break  # the other budget takes as long
    return rows


def aim_rows(table: MixedTable, *, quick: bool) -> list[Row]:
    """Return a row for AIM with a small model at epsilon 1."""
    return [
        dpmm_row(
            table,
            "aim",
            BUDGETS[-1],
            quick=quick,
            model_size=SMALL_MODEL,
            time_limit=LONG_TIME_LIMIT,
        )
    ]


def dpmm_row(
    table: MixedTable,
    method: str,
    epsilon: float,
    *,
    quick: bool,
    model_size: float = MODEL_SIZE,
    time_limit: float = TIME_LIMIT,
) -> Row:
    """Return the row of MST, or of AIM on the first seed.

    It has no figures if a fit does not end in time.
    """
    seeds = SEEDS
    if quick or method == "aim":
        seeds = SEEDS[:1]
    name = f"{method.upper()} of dpmm, {MOST_BINS} bins"
    if model_size != MODEL_SIZE:
        name += f", at most {model_size:g} MB"
    judgements = []
    for seed in seeds:
        train, test = table.parts(seed)
        if quick:
            train = train.iloc[:N_QUICK]
        started = time.perf_counter()
        try:
            synthetic = _of_dpmm(table, method, train, epsilon, seed, model_size, time_limit)
        except TimeoutError:
            name += f": not finished in {time_limit:g} s"
            say(f"{table.name}, epsilon {epsilon:g}, {name}")
            return {"method": name, "epsilon": epsilon, "version": __version__}
        seconds = time.perf_counter() - started
        judgement = _judge(table, synthetic, train, test) | {"seed": seed, "seconds": seconds}
        judgements.append(judgement)
        say(f"{table.name}, epsilon {epsilon:g}, {name}, seed {seed}: {judgement}")
    return _averaged(name, epsilon, judgements)


def _of_dpmm(
    table: MixedTable,
    method: str,
    train: Any,
    epsilon: float,
    seed: int,
    model_size: float,
    time_limit: float,
) -> Any:
    """Return a DataFrame of synthetic records with their classes."""
    of_columns = table.table
    bins = []
    for column, (low, high) in zip(of_columns.included, of_columns.bounds, strict=True):
        n_values = int(high - low) + 1
        bins.append(n_values if column.has_categories else min(n_values, MOST_BINS))
    rows, labels = run_dpmm(
        method,
        table.numbers(train),
        table.labels(train),
        bounds=of_columns.bounds,
        bins=bins,
        epsilon=epsilon,
        delta=DELTA,
        seed=seed,
        time_limit=time_limit,
        model_size=model_size,
    )
    synthetic = train.iloc[:0].reindex(range(len(rows)))
    for name, cells in of_columns.cells(rows).items():
        synthetic[name] = of_columns.as_text(name, cells)
    return synthetic.assign(**{table.target: np.array(table.classes)[labels]})


def _generate(table: MixedTable, train: Any, epsilon: float) -> Any:
    """Fit the generator, and return a DataFrame of synthetic records.

    The records come with their classes.
    """
    with tempfile.TemporaryDirectory() as directory:
        generator = PrivateGenerator(
            epsilon,
            DELTA,
            columns=table.columns,
            classes=table.classes,
            run_dir=Path(directory) / "run",
            verbose=False,
        )
        generator.fit(train.drop(columns=table.target), train[table.target])
    synthetic, labels = generator.sample(N_SYNTHETIC)
    for name in synthetic:
        synthetic[name] = table.table.as_text(name, synthetic[name])
    return synthetic.assign(**{table.target: labels})


def _judge(table: MixedTable, synthetic: Any, train: Any, test: Any) -> Row:
    """Return AUC of boosting on test records, and the largest errors of shares."""
    model = HistGradientBoostingClassifier(random_state=0)
    model.fit(table.numbers(synthetic), table.labels(synthetic))
    probabilities = model.predict_proba(table.numbers(test))[:, 1]
    errors = [0.0]
    missing_errors = [0.0]
    for column in table.table.included:
        shares = _shares(column, train)
        difference = shares.sub(_shares(column, synthetic), fill_value=0).abs()
        if column.has_categories:
            errors.append(float(difference.max()))
        missing_errors.append(float(difference.get("missing", 0.0)))
    return {
        "auc": float(roc_auc_score(table.labels(test), probabilities)),
        "share_error": max(errors),
        "missing_error": max(missing_errors),
    }


def _shares(column: Column, frame: Any) -> Any:
    """Return the share of every text of a column; ``missing`` of missing cells."""
    return (
        frame[column.name].replace({_missing_text(column): "missing"}).value_counts(normalize=True)
    )


def _missing_text(column: Column) -> str:
    """Return the text of a missing cell of a column."""
    if isinstance(column.missing, str):
        return column.missing
    return ""


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
