"""Figures of ``dpswd evaluate`` on records that are known to be good or bad.

Synthetic records are 4,000, by the shipped configs or the defaults; real ones are 2,000 test
records. Good ones are other real records, and digits as shapes; bad ones are photographs of a
generator that had 1,000 of them, copies of the test records, and a table whose columns are
independent.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpswd import PrivateGenerator
from dpswd._progress import say
from dpswd.evaluation import evaluate
from dpswd.files.pictures import save_grid
from dpswd.networks.generator import draw
from dpswd.records import Records
from experiments.generation.mixed_tables import MixedTable, adult
from experiments.generation.training import CONFIGS, DELTA, SHIPPED, load, train_mixture
from experiments.results import Result, Row

N_SYNTHETIC = 4000
N_REAL = 2000
QUICK = 300
N_FEW = 1000  # photographs of a generator of clouds
EPSILON = 10.0
_N_SHOWN = 10  # images of a row of the picture


def run(out: Path, *, quick: bool = False, data: Path | None = None) -> Result:
    """Figures of dpswd evaluate on good and bad records (a quarter of an hour)."""
    n_synthetic = N_SYNTHETIC
    n_real = N_REAL
    if quick:
        n_synthetic = n_real = QUICK
    rows = _digits(out, data, n_synthetic, n_real)
    rows += _photographs(out, data, n_synthetic, n_real)
    rows += _tables(data, n_synthetic, n_real)
    return {"rows": rows}


def _digits(out: Path, data: Path | None, n_synthetic: int, n_real: int) -> list[Row]:
    """Evaluate digits: real ones, shapes, pixels, and copies of the test records."""
    loaded = load("MNIST", data)
    assert loaded.test is not None
    real = _some(loaded.test, n_real)
    train = _some(loaded.train, n_synthetic)
    candidates = {"other real digits": train}
    for name, config in (("shapes", "mnist_shapes"), ("pixels", "mnist")):
        generator = _fitted(loaded.train, CONFIGS / f"{config}.yaml")
        candidates[f"{name}, 60,000 records"] = _drawn(generator, n_synthetic)
    generator = _fitted(_some(loaded.train, N_FEW), CONFIGS / "mnist.yaml")
    candidates["pixels, 1,000 records"] = _drawn(generator, n_synthetic)
    candidates["copies of the test records"] = _some(real, n_synthetic)
    _save(out / "evaluation_digits.png", candidates)
    return [_row("MNIST", name, records, real) for name, records in candidates.items()]


def _photographs(out: Path, data: Path | None, n_synthetic: int, n_real: int) -> list[Row]:
    """Evaluate real photographs and those of generators.

    The generators have 50,000 and 1,000 photographs.
    """
    loaded = load("CIFAR10", data)
    assert loaded.test is not None
    real = _some(loaded.test, n_real)
    candidates = {"other real photographs": _some(loaded.train, n_synthetic)}
    for n in (len(loaded.train), N_FEW):
        generator = _fitted(_some(loaded.train, n), SHIPPED["CIFAR10"])
        candidates[f"pixels, {n:,} records"] = _drawn(generator, n_synthetic)
    _save(out / "evaluation_photographs.png", candidates)
    return [_row("CIFAR-10", name, records, real) for name, records in candidates.items()]


def _tables(data: Path | None, n_synthetic: int, n_real: int) -> list[Row]:
    """Evaluate tables: real records, those of the generator, and independent columns."""
    table = adult(data)
    frame = table.frame
    order = np.random.default_rng(0).permutation(len(frame))
    train = frame.iloc[order[:26_000]].reset_index(drop=True)
    real = _as_records(table, frame.iloc[order[26_000 : 26_000 + n_real]])
    other = _as_records(table, train.iloc[:n_synthetic])
    candidates = {"other real records": other}
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory) / "run"
        options: dict[str, Any] = {
            "columns": table.columns,
            "classes": table.classes,
            "verbose": False,
        }
        estimator = PrivateGenerator(EPSILON, DELTA, run_dir=run_dir, **options)
        estimator.fit(train.drop(columns="income"), train["income"])
    synthetic, labels = estimator.sample(n_synthetic)
    layout: Any = estimator.generator_.layout
    for name in synthetic:
        synthetic[name] = layout.table.as_text(name, synthetic[name])
    candidates["`columns=`"] = _as_records(table, synthetic.assign(income=labels))
    rng = np.random.default_rng(0)
    independent = [rng.permutation(column) for column in other.values.numpy().T]
    values = torch.from_numpy(np.stack(independent, axis=1))
    candidates["independent columns"] = Records(values, other.labels)
    return [_row("Adult", name, records, real) for name, records in candidates.items()]


def _as_records(table: MixedTable, frame: Any) -> Records:
    """Return rows as numbers, categories by their position, and the classes."""
    numbers = torch.from_numpy(table.numbers(frame))
    return Records(numbers.float(), torch.from_numpy(table.labels(frame)).long())


def _fitted(records: Records, constants: Path) -> Any:
    """Return a generator of the records."""
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory) / "run"
        trained = train_mixture(
            records.private(classes=range(10)), constants, run_dir, epsilon=EPSILON, seed=0
        )
    return trained.generator


def _drawn(generator: Any, n: int) -> Records:
    """Return n synthetic images, equally many of each class."""
    labels = torch.arange(n) % generator.n_classes
    torch.manual_seed(0)
    images: Tensor = draw(generator, labels)
    return Records(images, labels)


def _some(records: Records, n: int) -> Records:
    """Return n random records, the same ones at every call; all if there are fewer."""
    order = torch.randperm(len(records), generator=torch.Generator().manual_seed(0))
    return records.select(order[:n])


def _save(path: Path, candidates: dict[str, Records]) -> None:
    """Write a picture with a row of images for each candidate."""
    rows = [records.floats(slice(_N_SHOWN)) for records in candidates.values()]
    path.parent.mkdir(parents=True, exist_ok=True)
    save_grid(torch.cat(rows), path, _N_SHOWN)


def _row(dataset: str, name: str, synthetic: Records, real: Records) -> Row:
    """Return the figures of synthetic records."""
    say(f"{dataset}, {name}")
    classifier = "cnn" if real.values.ndim == 4 else "boosting"
    result = evaluate(synthetic, real, classifiers=[classifier])
    row: Row = {
        "dataset": dataset,
        "records": name,
        "classifier": classifier,
        "accuracy": result["rows"][0]["accuracy"],
        "real_accuracy": result["real_rows"][0]["accuracy"],
    }
    for key in ("majority", "two_sample", "nearest", "fidelity", "propensity"):
        row[key] = result.get(key)
    return row
