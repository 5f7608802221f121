"""PrivateAdapter on feature vectors: 16 x 16 pixels of MNIST and USPS, and Office-Caltech-10.

Pixel vectors: 2,000 labelled training images of one data set, 1,800 private training images of the other one, tests on
2,000 official test images. MNIST is scaled to 16 x 16. Office-Caltech-10: GoogLeNet features, split as for Table 1.
Every row is a logistic regression (L2, C = 1). ``as they are``: of the vectors. All other rows: of vectors of norm 1,
centred at the mean of the source and divided by its root mean square; adapted ones in the directions of the adapter.
``always`` switches the fallback off.
"""

import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import ot
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from dpswd.adaptation.data import OfficeCaltech
from dpswd.adaptation.methods import class_shift
from dpswd.adaptation.space import MAX_DIRECTIONS
from dpswd.data.base import Records
from dpswd.data.benchmarks import MNIST, USPS
from dpswd.estimators import PrivateAdapter
from experiments.cells import silence

HELP = "PrivateAdapter on pixel vectors (MNIST, USPS) and Office-Caltech-10: 10 seeds, an hour (1 with --quick)"

SEEDS, QUICK_SEEDS = 10, 1
BUDGETS = (10.0, 1.0)
N_SOURCE, N_TARGET, N_TEST = 2000, 1800, 2000
PAIRS = ("MNIST-USPS", "USPS-MNIST")
OFFICE_PAIRS = ("AW", "AD", "WA", "WD", "DA", "DW")
DELTA = {"pixels": 1e-5, "Office-Caltech-10": 1e-3}

Labelled = tuple[NDArray[Any], NDArray[Any]]


def run(out: Path, *, quick: bool = False, data: Path | None = None, seeds: int | None = None) -> dict[str, Any]:
    """Runs source only, the real target and the synthetic target; returns one row per problem, method and budget."""
    silence()
    warnings.filterwarnings("ignore", "Expect noise")
    root = None if data is None else str(data)
    found: dict[tuple[str, str, str, float | None], list[float]] = {}
    for seed in range(seeds or (QUICK_SEEDS if quick else SEEDS)):
        for group, name, source, target, test in _problems(root, seed):
            for method, epsilon, accuracy in _accuracies(source, target, test, DELTA[group], seed):
                found.setdefault((group, name, method, epsilon), []).append(accuracy)
                print(f"{name:<12} seed {seed} {method:<18} epsilon {epsilon or '-':<5} {accuracy:.1f}", flush=True)
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
                "above_source": round(mean(gaps), 2),
                "seeds": len(values),
            }
        )
    return {"rows": rows}


def _problems(root: str | None, seed: int) -> Iterator[tuple[str, str, Labelled, Labelled, Labelled]]:
    """Yields group, name, and records with labels of source, private target and test."""
    loaded = {"MNIST": MNIST(root=root), "USPS": USPS(root=root)}
    rng = np.random.default_rng(seed)
    for pair in PAIRS:
        first, second = (loaded[name] for name in pair.split("-"))
        assert second.test is not None
        parts = ((first.private, N_SOURCE), (second.private, N_TARGET), (second.test, N_TEST))
        yield "pixels", pair, *(_pixels(records, rng.permutation(len(records))[:size]) for records, size in parts)
    for source, target in OFFICE_PAIRS:
        office = OfficeCaltech(source, target, root=root)  # type: ignore[arg-type]
        assert office.test is not None
        private = office.target.floats().numpy()
        unlabelled = private, np.zeros(len(private), dtype=np.int64)
        yield "Office-Caltech-10", f"{source}-{target}", _flat(office.source), unlabelled, _flat(office.test)


def _flat(records: Records) -> Labelled:
    return records.floats().flatten(1).numpy(), records.labels.numpy()


def _pixels(records: Records, index: NDArray[Any]) -> Labelled:
    """Pixel vectors (n, 256) in [0, 1] and classes."""
    chosen = torch.from_numpy(index)
    images = records.floats(chosen)
    if images.shape[-1] != 16:
        images = F.interpolate(images, size=(16, 16), mode="bilinear", antialias=True)
    return images.flatten(1).numpy(), records.labels[chosen].numpy()


def _accuracies(
    source: Labelled, target: Labelled, test: Labelled, delta: float, seed: int
) -> Iterator[tuple[str, float | None, float]]:
    """Yields method, epsilon and accuracy in percent."""
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
        adapter.set_params(min_shift=0.0).adapt(*source)
        yield "class shift, synthetic target, always", epsilon, 100 * adapter.score(*test)
        adapter.set_params(min_shift=0.3, method=ot.da.EMDTransport(max_iter=1_000_000)).adapt(*source)
        yield "transport, synthetic target", epsilon, 100 * adapter.score(*test)


def _rows(source: NDArray[Any], *parts: NDArray[Any]) -> list[NDArray[Any]]:
    """Vectors of norm 1, centred and scaled by the source."""
    unit = [part / np.linalg.norm(part, axis=1, keepdims=True) for part in (source, *parts)]
    centre = unit[0].mean(0)
    radius = float(np.sqrt(np.square(unit[0] - centre).sum(1).mean()))
    return [(part - centre) / radius for part in unit[1:]]
