"""Covariances or variances of wide vectors.

Vectors of more than 4,000 columns have a variance of every column in place of covariances
(:mod:`dpswd.mixture.forecast`). The experiment shows what this costs where both can be had: two
classes with columns that are independent within a class, or have factors in common, and the pixels
of Fashion-MNIST as vectors. A ridge classifier is trained on 2,000 synthetic records, or on the
private ones, and tested on records of their own. Noise has a seed, so that no run is private.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from sklearn.linear_model import RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dpswd.accounting.calibrate import mu_of_epsilon
from dpswd.budget.budget import Budget
from dpswd.data import benchmark
from dpswd.mixture.fitting import fit
from dpswd.mixture.forecast import SPREAD_CHOICES, forecast
from dpswd.networks.generator import draw
from dpswd.records import PrivateRecords, Records
from experiments.results import Result, Row

DELTA = 1e-5
N_SEEDS = 3
N_SYNTHETIC = 2000
N_TEST = 2000
# Numbers of factors that the columns have in common, and of records, at 600 columns.
FACTORS = (0, 10)
SIZES = (350, 1000)
N_COLUMNS = 600
# Records and columns of tables whose second moment would take too long.
WIDE = ((2000, 5000), (2000, 20_000))
# Standard deviation of the means of classes: 0.15 where columns are independent, which is enough,
# and twice as much beside factors.
_DISTANCE = 0.15
_DISTANCE_BESIDE_FACTORS = 0.3
# Penalty of the classifier.
_RIDGE = 200.0
# Standard deviation of the logarithm of that of a column.
_SCALE = 0.4


@dataclass(frozen=True)
class Setting:
    """Records and a budget; ``spread`` is ``None`` for the private records themselves."""

    dataset: str
    n: int
    n_columns: int
    factors: int
    epsilon: float
    spread: str | None


def run(out: Path, *, quick: bool = False, data: Path | None = None) -> Result:
    """Covariances or variances of wide vectors (10 minutes)."""
    settings = plan()
    if quick:
        settings = settings[:2]
    rows = [measure(setting, N_SEEDS, data) for setting in settings]
    return {"rows": rows}


def plan() -> list[Setting]:
    """List the settings."""
    spreads = (None, *SPREAD_CHOICES)
    settings = []
    for factors in FACTORS:
        for n in SIZES:
            settings += [Setting("table", n, N_COLUMNS, factors, 10.0, way) for way in spreads]
    for n, n_columns in WIDE:
        settings += [Setting("table", n, n_columns, 0, 10.0, way) for way in (None, "variances")]
    for epsilon in (10.0, 1.0):
        settings += [Setting("FashionMNIST", 2000, 784, 0, epsilon, way) for way in spreads]
    return settings


def measure(setting: Setting, n_seeds: int, data: Path | None) -> Row:
    """Return the mean accuracy over seeds, and the forecast signal of the releases."""
    accuracies = []
    signal: dict[str, float] = {}
    for seed in range(n_seeds):
        train, test = _load(setting, seed, data)
        if setting.spread is not None:
            train, signal = _synthetic(train, setting, seed)
        accuracies.append(_accuracy(train, test))
    return {
        "dataset": setting.dataset,
        "n_records": setting.n,
        "n_columns": setting.n_columns,
        "factors": setting.factors,
        "epsilon": setting.epsilon,
        "spread": setting.spread,
        "means": _rounded(signal.get("means")),
        "variances": _rounded(signal.get("variances")),
        "mean": round(mean(accuracies), 1),
        "seeds": n_seeds,
    }


def _rounded(ratio: float | None) -> float | None:
    """Return a ratio with two decimals."""
    if ratio is None:
        return None
    return round(ratio, 2)


def _load(setting: Setting, seed: int, data: Path | None) -> tuple[Records, Records]:
    """Return private and test records of a setting."""
    if setting.dataset == "table":
        return _table(setting, seed)
    loaded = benchmark("fashion", data, public=True)
    assert loaded.test is not None
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(loaded.train)))
    chosen = order[: setting.n]
    train = Records(loaded.train.floats(chosen).flatten(1), loaded.train.labels[chosen])
    first = torch.arange(N_TEST)
    return train, Records(loaded.test.floats(first).flatten(1), loaded.test.labels[first])


def _table(setting: Setting, seed: int) -> tuple[Records, Records]:
    """Return tables of two classes whose columns may have factors in common."""
    random = np.random.default_rng(seed)
    distance = _DISTANCE_BESIDE_FACTORS if setting.factors else _DISTANCE
    means = distance * random.standard_normal((2, setting.n_columns))
    deviations = np.exp(_SCALE * random.standard_normal(setting.n_columns))
    loadings = random.standard_normal((setting.factors, setting.n_columns))
    tables = []
    for n in (setting.n, N_TEST):
        labels = random.integers(2, size=n)
        values = means[labels] + deviations * random.standard_normal((n, setting.n_columns))
        values += random.standard_normal((n, setting.factors)) @ loadings
        tables.append(Records(torch.from_numpy(values).float(), torch.from_numpy(labels)))
    train, test = tables
    return train, test


def _synthetic(train: Records, setting: Setting, seed: int) -> tuple[Records, dict[str, float]]:
    """Return synthetic records, and the forecast signal over noise of the releases."""
    n_classes = int(train.labels.max()) + 1
    shape = tuple(train.values.shape[1:])
    structure = forecast(
        len(train.labels),
        shape,
        n_classes,
        mu_of_epsilon(setting.epsilon, DELTA),
        spread=setting.spread,
    )
    records = PrivateRecords(train.values, train.labels, classes=range(n_classes))
    radius = float(train.values.norm(dim=1).median())
    with tempfile.TemporaryDirectory() as place:
        budget = Budget(
            records, target_epsilon=setting.epsilon, target_delta=DELTA, run_dir=f"{place}/run"
        )
        generator = fit(records, budget, structure=structure, radius=radius, noise_seed=seed)
    labels = torch.arange(N_SYNTHETIC) % n_classes
    torch.manual_seed(seed)
    return Records(draw(generator, labels), labels), dict(structure.signal_to_noise)


def _accuracy(train: Records, test: Records) -> float:
    """Return the accuracy in percent of a ridge classifier."""
    classifier = make_pipeline(StandardScaler(), RidgeClassifier(alpha=_RIDGE))
    classifier.fit(train.values.numpy(), train.labels.numpy())
    return 100 * float(classifier.score(test.values.numpy(), test.labels.numpy()))
