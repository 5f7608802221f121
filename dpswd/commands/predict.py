"""``dpswd predict CLASSIFIER DATA``: classes of new records, by the classifier of ``dpswd adapt``."""

import io
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from dpswd._files import atomic_write
from dpswd.errors import InputError


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("classifier", type=Path, help="classifier.pt of dpswd adapt or PrivateAdapter.save")
    parser.add_argument("data", help="new records: folder of images, .npz, .npy, .csv of numbers, or a benchmark")
    text = ".npz with predictions and classes, or .csv (default: predictions.npz)"
    parser.add_argument("--out", type=Path, default=Path("predictions.npz"), help=text)


def run(arguments: Namespace) -> dict[str, Any]:
    if arguments.out.suffix not in (".npz", ".csv"):
        raise InputError(f"Expected --out to end in .npz or .csv, got {arguments.out.name}.")
    import numpy as np

    from dpswd.adaptation.estimator import PrivateAdapter
    from dpswd.adaptation.files import read_records

    adapter = PrivateAdapter.load(arguments.classifier)
    classes = adapter.predict(read_records(arguments.data, adapter.classifier_.space.shape))
    if arguments.out.suffix == ".csv":
        content = "".join(f"{name}\n" for name in ("prediction", *classes)).encode()
    else:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, predictions=classes, classes=adapter.classes_)
        content = buffer.getvalue()
    atomic_write(arguments.out, content)
    names, counts = np.unique(classes, return_counts=True)
    return {
        "out": str(arguments.out),
        "n_records": len(classes),
        "counts": {str(name): int(count) for name, count in zip(names, counts, strict=True)},
        "verdict": adapter.verdict_,
        "guarantee": adapter.guarantee_,
    }


def show(result: dict[str, Any]) -> None:
    from dpswd.generators import guarantee_line

    print(f"{result['n_records']} predictions: {result['out']}")
    print(", ".join(f"{name}: {count}" for name, count in result["counts"].items()))
    print(f"Classifier: {result['verdict']}")
    print(guarantee_line(result["guarantee"]))
