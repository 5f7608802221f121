"""``dpswd predict CLASSIFIER DATA``: classes of new records.

The classifier is that of ``dpswd adapt``.
"""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from dpswd._files import check_new
from dpswd.commands._options import FORMATS, add_left_out_unit, add_reading
from dpswd.errors import InputError


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "classifier", metavar="CLASSIFIER", type=Path, help="classifier.pt of dpswd adapt"
    )
    parser.add_argument("data", metavar="DATA", help=f"new records: {FORMATS}")
    add_reading(parser)
    add_left_out_unit(parser)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("predictions.npz"),
        help=".npz or .csv with predictions, and the names of files of images "
        "(default: predictions.npz)",
    )


def run(arguments: Namespace) -> dict[str, Any]:
    if arguments.out.suffix not in (".npz", ".csv"):
        raise InputError(f"Expected --out to end in .npz or .csv, got {arguments.out.name}.")
    check_new(arguments.out)
    # These modules import torch, which the help of the command does not need.
    import numpy as np

    from dpswd.adaptation.reading import read_records
    from dpswd.estimators.adapter import PrivateAdapter
    from dpswd.files.export import write_csv, write_npz

    adapter = PrivateAdapter.load(arguments.classifier)
    target = read_records(
        arguments.data,
        adapter.classifier_.space.shape,
        adapter.classifier_.columns,
        root=arguments.root,
        target=arguments.target,
        unit=arguments.unit,
        unreadable=arguments.unreadable,
    )
    predictions = adapter.predict(target.records)
    if arguments.out.suffix == ".csv":
        columns: dict[str, Any] = {}
        if target.files:
            columns["file"] = np.array(target.files)
        columns["prediction"] = predictions
        write_csv(arguments.out, list(columns), list(columns.values()))
    else:
        arrays: dict[str, Any] = {"predictions": predictions, "classes": adapter.classes_}
        if target.files:
            arrays["files"] = target.files
        write_npz(arguments.out, arrays)
    names, counts = np.unique(predictions, return_counts=True)
    return {
        "out": str(arguments.out),
        "n_records": len(predictions),
        "counts": {str(name): int(count) for name, count in zip(names, counts, strict=True)},
        "verdict": adapter.verdict_,
        "guarantee": adapter.guarantee_.to_dict(),
    }


def show(result: dict[str, Any]) -> None:
    from dpswd.accounting.guarantee import Guarantee

    print(f"{result['n_records']} predictions: {result['out']}")
    print(", ".join(f"{name}: {count}" for name, count in result["counts"].items()))
    print(f"Classifier: {result['verdict']}")
    line = Guarantee.from_dict(result["guarantee"]).line()
    print(f"{line} The predictions on private records have none.")
