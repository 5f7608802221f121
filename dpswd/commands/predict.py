"""``dpswd predict CLASSIFIER.pt RECORDS.npz``: classes of new records, by a classifier of PrivateAdapter."""

import io
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import numpy as np

from dpswd._files import atomic_write
from dpswd.commands import Command
from dpswd.errors import InputError


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("classifier", type=Path, help="classifier.pt, written by PrivateAdapter.save")
    parser.add_argument("records", type=Path, help=".npz file with features (N, d), or images as data (N, H, W[, C])")
    parser.add_argument("--out", type=Path, default=Path("predictions.npz"), help="default: predictions.npz")


def _run(arguments: Namespace) -> dict[str, Any]:
    from dpswd.estimators import PrivateAdapter

    adapter = PrivateAdapter.load(arguments.classifier)
    classes = adapter.predict(_records(arguments.records))
    buffer = io.BytesIO()
    np.savez_compressed(buffer, predictions=classes, classes=adapter.classes_)
    atomic_write(arguments.out, buffer.getvalue())
    names, counts = np.unique(classes, return_counts=True)
    return {
        "out": str(arguments.out),
        "n_records": len(classes),
        "counts": {str(name): int(count) for name, count in zip(names, counts, strict=True)},
        "verdict": adapter.verdict_,
        "guarantee": adapter.guarantee_,
    }


def _records(path: Path) -> Any:
    try:
        with np.load(path, allow_pickle=False) as archive:
            name = next((each for each in ("features", "data") if each in archive), None)
            records = None if name is None else archive[name]
    except Exception as error:  # NumPy raises many types on damaged files
        raise InputError(f"Expected a readable .npz file at {path}, got: {error}; write it again.") from None
    if records is None:
        raise InputError(f"Expected an array 'features' or 'data' in {path}, got neither; name it so.")
    return records


def _show(result: dict[str, Any]) -> None:
    guarantee = result["guarantee"]
    print(f"{result['n_records']} predictions: {result['out']}")
    print(f"{result['verdict']} epsilon = {guarantee['epsilon']:.4g}, delta = {guarantee['delta']:g}.")


COMMANDS = {
    "predict": Command(
        help="predict classes by a classifier.pt, or from a checkpoint (--config, --ckpt_path)",
        add_arguments=_add_arguments,
        run=_run,
        show=_show,
    )
}
