"""Adaptation of tables: 30 pairs of a source and a target.

The target has another population or other devices.

Populations: Adult, split by a column (men and women, both ways). Devices: Adult, breast cancer and
wine, whose target columns get random offsets of some standard deviations. Nothing without labels
tells whether adaptation to another population helps; offsets can be seen and undone. The least
ratio of the rule (:mod:`dpswd.adaptation.classifier`) was chosen on the pairs of Adult, once.

``source`` is a logistic regression of standardised columns.
"""

import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dpswd import PrivateAdapter, __version__
from dpswd._progress import say
from dpswd.data.reading import data_root
from dpswd.errors import InputError, UtilityWarning
from experiments.results import Result, Row

Array = NDArray[Any]

N_SEEDS = 3
EPSILON = 10.0
DELTA = 1e-5
MAX_SOURCE = 2000
MAX_TARGET = 6000  # of which one half is the private target, and the other tests
N_SYNTHETIC = 2000
LEAST_TO_SPLIT = 2000  # smaller targets are adapted to and tested on whole
NUMBERS = ["age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week"]
INDICATORS = {
    "sex": ["Male"],
    "marital-status": ["Married-civ-spouse"],
    "occupation": ["Exec-managerial", "Prof-specialty", "Other-service", "Craft-repair"],
    "workclass": ["Self-emp-inc", "Federal-gov"],
}
OFFSETS = (0.0, 0.3, 0.6, 1.0, 2.0, 3.0)  # standard deviations of Adult
SMALL_OFFSETS = (0.0, 0.5, 1.5)
METHODS = {  # and the options of PrivateAdapter
    "default": {},
    "as in 0.3": {"standardise": False},
    "always": {"min_shift": 0.0},
}


@dataclass(frozen=True)
class TablePair:
    """Source and target as DataFrames, with the classes of both."""

    name: str
    kind: str
    source: Any
    labels: Array
    target: Any
    target_labels: Array


def run(out: Path, *, quick: bool = False, data: Path | None = None) -> Result:
    """Adaptation of tables by offsets and to other populations: 30 pairs."""
    rows: list[Row] = []
    for seed in range(N_SEEDS):
        for position, pair in enumerate(_pairs(data, seed)):
            if quick and (seed or position % 10):
                continue
            row = _measure(pair, seed)
            say(f"{row}")
            rows.append(row)
    summary = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        summary.append(_summary(kind, [row for row in rows if row["kind"] == kind]))
    return {"rows": rows, "summary": summary}


def _pairs(data: Path | None, seed: int) -> Iterator[TablePair]:
    """Yield the pairs; the seed draws the halves of tables and the offsets."""
    frame, columns, labels = _adult(data)
    splits = {
        "men, women": frame["sex"] == "Male",
        "white, other": frame["race"] == "White",
        "below 40, above": frame["age"] < 40,
        "private sector, other": frame["workclass"] == "Private",
        "United States, other": frame["native-country"] == "United-States",
        "college, other": frame["education-num"] >= 13,
        "married, other": frame["marital-status"] == "Married-civ-spouse",
        "40 hours, fewer": frame["hours-per-week"] >= 40,
        "no gain, gain": frame["capital-gain"] == 0,
    }
    for name, split in splits.items():
        first = split.to_numpy()
        second = ~first
        parts = (columns[first], labels[first], columns[second], labels[second])
        yield TablePair(f"Adult, {name}", "population", *parts)
        parts = (columns[second], labels[second], columns[first], labels[first])
        yield TablePair(f"Adult, {name}, reversed", "population", *parts)
    rng = np.random.default_rng(2 * seed)
    yield from _with_offsets("Adult", columns, labels, OFFSETS, rng)
    for name, load in (("cancer", datasets.load_breast_cancer), ("wine", datasets.load_wine)):
        content = load(as_frame=True)
        yield from _with_offsets(name, content.data, content.target, SMALL_OFFSETS, rng)


def _with_offsets(
    name: str, columns: Any, labels: Any, sizes: tuple[float, ...], rng: np.random.Generator
) -> Iterator[TablePair]:
    """Yield pairs of halves of a table.

    The second half has offsets of its columns.
    """
    classes = np.asarray(labels)
    order = rng.permutation(len(columns))
    first = order[: len(order) // 2]
    second = order[len(order) // 2 :]
    source = columns.iloc[first]
    for size in sizes:
        offsets = rng.normal(size=columns.shape[1]) * size * source.std().to_numpy()
        target = columns.iloc[second] + offsets
        yield TablePair(
            f"{name}, offsets {size:g}", "offsets", source, classes[first], target, classes[second]
        )


def _adult(data: Path | None) -> tuple[Any, Any, Array]:
    """Return all columns of Adult, those that are used, and the classes."""
    import pandas as pd  # an optional package

    path = data_root(data) / "adult" / "adult.csv"
    if not path.exists():
        raise InputError(
            f"Expected {path} with the columns of the UCI repository, got none; see docs/tables.md."
        )
    frame = pd.read_csv(path, skipinitialspace=True)
    columns = frame[NUMBERS].astype(float)
    for name, categories in INDICATORS.items():
        for category in categories:
            columns[category] = (frame[name] == category).astype(float)
    labels = frame["income"].str.startswith(">50K").to_numpy().astype(int)
    return frame, columns, labels


def _measure(pair: TablePair, seed: int) -> Row:
    """Return accuracies in percent of the source and of each method on a pair.

    The seed draws the records, those of the source, of the private target, and of the test.
    """
    rng = np.random.default_rng(2 * seed + 1)
    chosen = rng.permutation(len(pair.source))[:MAX_SOURCE]
    source = pair.source.iloc[chosen]
    labels = pair.labels[chosen]
    chosen = rng.permutation(len(pair.target))[:MAX_TARGET]
    target = pair.target.iloc[chosen]
    truth = pair.target_labels[chosen]
    private = target
    if len(target) > LEAST_TO_SPLIT:
        half = len(target) // 2
        private = target.iloc[:half]
        target = target.iloc[half:]
        truth = truth[half:]
    plain = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)).fit(source, labels)
    row: Row = {
        "pair": pair.name,
        "kind": pair.kind,
        "seed": seed,
        "version": __version__,
        "source": 100 * float(plain.score(target, truth)),
    }
    for name, options in METHODS.items():
        adapter, is_warned = _adapted(source, labels, private, options)
        predicted = adapter.predict(target)
        row[name] = {
            "accuracy": 100 * float((predicted == truth).mean()),
            "adapted": adapter.adapted_,
            "warned": is_warned,
        }
    return row


def _adapted(
    source: Any, labels: Array, private: Any, options: dict[str, Any]
) -> tuple[PrivateAdapter, bool]:
    """Return an adapter that is fitted to a private target, and whether it has warned."""
    import pandas as pd  # an optional package

    records = pd.concat([source, private])
    domain = np.repeat([1, -1], [len(source), len(private)])
    classes = np.concatenate([labels, np.zeros(len(private), dtype=int)])
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        adapter = PrivateAdapter(
            EPSILON,
            DELTA,
            n_synthetic=N_SYNTHETIC,
            run_dir=Path(directory) / "run",
            verbose=False,
            **options,
        )
        adapter.fit(records, classes, domain)
    is_warned = any(issubclass(warning.category, UtilityWarning) for warning in log)
    return adapter, is_warned


def _summary(kind: str, rows: list[Row]) -> Row:
    """Return means over the runs of a kind, and the largest loss without a warning."""
    summary: Row = {"kind": kind, "pairs": len({row["pair"] for row in rows})}
    summary |= {"runs": len(rows), "version": __version__}
    summary["source"] = mean(row["source"] for row in rows)
    for name in METHODS:
        losses = [row["source"] - row[name]["accuracy"] for row in rows]
        silent = [0.0]
        for row, loss in zip(rows, losses, strict=True):
            if not row[name]["warned"]:
                silent.append(loss)
        summary[name] = {
            "accuracy": mean(row[name]["accuracy"] for row in rows),
            "adapted": sum(row[name]["adapted"] for row in rows),
            "largest_loss": max(0.0, *losses),
            "largest_silent_loss": max(silent),
        }
    return summary
