"""``dpswd predict CLASSIFIER DATA``: classes of new records.

The classifier is that of ``dpswd adapt`` or ``dpswd fit``.
"""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from dpswd._files import check_new
from dpswd.commands._options import FORMATS, add_left_out_unit, add_reading
from dpswd.errors import InputError

_OUT = Path("predictions.npz")  # the default of --out
_ENDINGS = (".npz", ".csv")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "classifier",
        metavar="CLASSIFIER",
        type=Path,
        help="classifier.pt of dpswd adapt or dpswd fit, or the directory of the run",
    )
    parser.add_argument("data", metavar="DATA", help=f"new records: {FORMATS}")
    add_reading(parser)
    add_left_out_unit(parser)
    parser.add_argument(
        "--out",
        type=Path,
        default=_OUT,
        help=".npz or .csv file to write, with the class of each record and the file name of each "
        "image (default: predictions.npz)",
    )


def run(arguments: Namespace) -> dict[str, Any]:
    out = arguments.out
    if out.suffix not in _ENDINGS:
        raise InputError(f"Expected --out to end in .npz or .csv, got {out.name}.")
    check_new(out)
    # These modules import torch, which the help of the command does not need.
    from dpswd.adaptation.reading import read_records
    from dpswd.data.tables import check_target
    from dpswd.estimators.adapter import PrivateAdapter

    check_target(arguments.target, [arguments.data], arguments.root)
    path = arguments.classifier
    if path.is_dir():
        path = path / "classifier.pt"
    adapter = PrivateAdapter.load(path)
    classifier = adapter.classifier_
    target = read_records(
        arguments.data,
        classifier.space.shape,
        classifier.columns,
        classifier.coding,
        root=arguments.root,
        target=arguments.target,
        unit=arguments.unit,
        unreadable=arguments.unreadable,
    )
    predictions = adapter.predict(target.records)
    if out.suffix == ".csv":
        _write_csv(out, predictions, target.files)
    else:
        _write_npz(out, predictions, adapter.classes_, target.files)
    return {
        "out": str(out),
        "n_records": len(predictions),
        "counts": _count(predictions),
        "verdict": adapter.verdict_,
        "guarantee": adapter.guarantee_.to_dict(),
    }


def _write_csv(path: Path, predictions: Any, files: tuple[str, ...]) -> None:
    """Write a column of predictions, after one of the names of files if there are any."""
    import numpy as np

    from dpswd.files.export import write_csv

    columns: dict[str, Any] = {}
    if files:
        columns["file"] = np.array(files)
    columns["prediction"] = predictions
    values = list(columns.values())
    write_csv(path, list(columns), values)


def _write_npz(path: Path, predictions: Any, classes: Any, files: tuple[str, ...]) -> None:
    """Write predictions and classes, and the names of files if there are any."""
    from dpswd.files.export import write_npz

    arrays = {"predictions": predictions, "classes": classes}
    if files:
        arrays["files"] = files
    write_npz(path, arrays)


def _count(predictions: Any) -> dict[str, int]:
    """Return the number of records of every class that is predicted."""
    import numpy as np

    names, counts = np.unique(predictions, return_counts=True)
    count_by_name: dict[str, int] = {}
    for name, count in zip(names, counts, strict=True):
        count_by_name[str(name)] = int(count)
    return count_by_name


def show(result: dict[str, Any]) -> None:
    from dpswd.accounting.guarantee import Guarantee

    print(f"{result['n_records']:,} predictions: {result['out']}")
    counts = [f"{name}: {count:,}" for name, count in result["counts"].items()]
    print(", ".join(counts))
    print(result["verdict"])
    guarantee = Guarantee.from_dict(result["guarantee"])
    print(guarantee.line())
    print(
        "It covers the classifier alone. Predictions on private records, and the counts above, are "
        "statistics without noise, which no budget counts: keep them to yourself."
    )
