"""``dpswd adapt``: a classifier for unlabelled private records.

The labels are those of public records.
"""

import shlex
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpswd.commands._options import (
    FINISHED_BEFORE,
    FORMATS,
    add_columns,
    add_reading,
    add_units,
    check_outside,
    constants_of,
    n_releases_in,
    run_directory,
)
from dpswd.commands.configs import JITTER, KEYS
from dpswd.errors import InputError

if TYPE_CHECKING:
    from dpswd.estimators.adapter import PrivateAdapter

# Options of the image map.
_MAP_OPTIONS = ("n_steps", *JITTER)
_READ_OPTIONS = ("size", "channels", "target")
_METHOD = "class_shift"  # the default of --method
_N_SHOWN = 40  # synthetic images in the picture of the report
_N_COLUMNS = 10  # of the picture
_OUT = Path("runs/adapted")  # the default of --out


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help=f"labelled public records: {FORMATS}")
    parser.add_argument(
        "private",
        metavar="TARGET",
        help="private records, in the same formats; their labels are not read",
    )
    add_reading(parser)
    add_columns(parser)
    parser.add_argument(
        "--epsilon",
        type=float,
        help="budget of the private records (default: 10); inf adds no noise, for public stand-ins",
    )
    parser.add_argument(
        "--delta",
        type=float,
        help="choose it well below 1 / N for N private records (default: 1e-5)",
    )
    parser.add_argument(
        "--method",
        choices=("class_shift", "image_map"),
        help=f"class_shift moves classes; image_map learns a change of images (default: {_METHOD})",
    )
    parser.add_argument(
        "--normalise", action=BooleanOptionalAction, help="divide every vector by its norm first"
    )
    parser.add_argument(
        "--min-shift",
        type=float,
        help="adapt only from this shift on (default: 0.7); with a shift of 1, the classes have "
        "moved as far as they lie from the mean of all records; 0 adapts if the noise permits",
    )
    parser.add_argument(
        "--size",
        type=int,
        help="side in pixels to which images are scaled (default: that of the source)",
    )
    parser.add_argument("--channels", type=int, choices=(1, 3), help="1 for grey, 3 for colour")
    parser.add_argument(
        "--config",
        help="YAML file with values of these options, or a shipped one, as adapt_digits",
    )
    parser.add_argument(
        "--out", type=Path, default=_OUT, help="directory of the run (default: runs/adapted)"
    )
    parser.add_argument(
        "--shared-ledger",
        type=Path,
        metavar="FILE",
        help="ledger with one budget for several runs; dpswd ledger create makes it",
    )
    add_units(parser)
    parser.add_argument("--resume", action="store_true", help="finish an interrupted run in --out")


def run(arguments: Namespace) -> dict[str, Any]:
    out = arguments.out
    options = _options_of(arguments)
    run_directory(out, "adapted", options, resume=arguments.resume)
    check_outside(out, arguments.source)
    check_outside(out, arguments.private)
    # These modules import torch, which the help of the command does not need.
    import numpy as np

    from dpswd._distributed import Processes
    from dpswd.adaptation.reading import read_records, read_source, refuse_common_records
    from dpswd.columns import Table
    from dpswd.data.tables import target_of
    from dpswd.estimators.adapter import PrivateAdapter

    refuse_common_records(arguments.source, arguments.private, arguments.root)
    size = options.pop("size", None)
    channels = options.pop("channels", None)
    label_column = options.pop("target", None)
    table = None
    if options.get("columns") is not None:
        table = Table.of(options.pop("columns"))
    # A source with the column of persons has it left out, as the target has.
    source_unit = target_of(arguments.source, arguments.root, arguments.unit)
    source = read_source(
        arguments.source,
        size=size,
        channels=channels,
        root=arguments.root,
        target=label_column,
        unit=source_unit,
        unreadable=arguments.unreadable,
        table=table,
    )
    record_shape = source.records.shape[1:]
    target = read_records(
        arguments.private,
        record_shape,
        source.columns,
        source.coding,
        root=arguments.root,
        target=label_column,
        unit=arguments.unit,
        per_unit=arguments.per_unit,
        unreadable=arguments.unreadable,
    )
    n_source = len(source.records)
    n_target = len(target.records)
    unit_names = None
    if target.unit_names is not None:
        unit_names = [None] * n_source
        unit_names += list(target.unit_names)
    adapter_options = _with_image_map(options)
    adapter = PrivateAdapter(
        **adapter_options,
        unit=unit_names,
        per_unit=arguments.per_unit,
        run_dir=out,
        shared_ledger=arguments.shared_ledger,
        resume=arguments.resume,
        verbose=not arguments.json,
    )
    records = np.concatenate([source.records, target.records])
    labels = source.labels.tolist()
    labels += [None] * n_target
    domains = np.repeat([1, -1], [n_source, n_target])
    n_before = n_releases_in(out)
    adapter.fit(records, labels, domains, columns=source.columns, coding=source.coding)
    is_finished_before = n_before > 0 and n_releases_in(out) == n_before
    classifier = str(out / "classifier.pt")
    report = str(out / "report.html")
    files = [classifier, report]
    comparison = out / "adaptation.png"
    is_image = source.records.ndim > 2
    if is_image:
        files.append(str(comparison))
    if Processes().rank == 0:
        adapter.save(classifier)
        if is_image:
            picture = out / "samples.png"
            _save_samples(adapter.synthetic_, picture, adapter.guarantee_.notice)
            _save_adaptation(source.records, adapter, comparison)
        else:
            _save_columns(source.records, adapter, source.columns, out / "columns.png")
        adapter.report(report)
    return {
        "out": str(out),
        "files": files,
        "finished_before": is_finished_before,
        "n_source": n_source,
        "n_target": adapter.n_target_,
        "adapted": adapter.adapted_,
        "shift": adapter.shift_,
        "verdict": adapter.verdict_,
        "notes": list(adapter.classifier_.notes),
        "guarantee": adapter.guarantee_.to_dict(),
    }


def _options_of(arguments: Namespace) -> dict[str, Any]:
    """Return the constants of the config, or those of the command line instead."""
    options = constants_of(arguments.config, "adapt")
    for name, value in vars(arguments).items():
        if name in KEYS["adapt"] and value is not None:
            options[name] = value
    method = options.get("method", _METHOD)
    of_map = [name for name in _MAP_OPTIONS if name in options]
    if of_map and method != "image_map":
        raise InputError(
            f"Expected no {', '.join(of_map)} in {arguments.config} with the method {method}, "
            "which has no such options; pass --method image_map, or leave them out."
        )
    return options


def _with_image_map(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the adapter.

    An image map, which has options of its own, is built.
    """
    from dpswd.adaptation.methods import ImageMap  # imports torch

    adapter_options = dict(options)
    map_options: dict[str, Any] = {}
    for name in _MAP_OPTIONS:
        if name in options:  # with the image map alone
            map_options[name] = adapter_options.pop(name)
    if options.get("method") == "image_map":
        adapter_options["method"] = ImageMap(**map_options)
    return adapter_options


def _save_samples(images: Any, path: Path, notice: str) -> None:
    """Write a picture of the first synthetic target images, which the report shows.

    Args:
        images: The synthetic images.
        path: The PNG file.
        notice: ``NOT PRIVATE`` and why, which the file states; empty for a private run.
    """
    from dpswd._arrays import as_records
    from dpswd._png import mark_picture
    from dpswd.files.pictures import save_grid

    records, _ = as_records(images[:_N_SHOWN])
    save_grid(records, path, _N_COLUMNS)
    mark_picture(path, notice, of_releases=True)


def _save_columns(source: Any, adapter: "PrivateAdapter", columns: Any, path: Path) -> None:
    """Write a picture of the columns of the source and of the synthetic target."""
    import numpy as np

    from dpswd._png import mark_picture
    from dpswd.files.pictures import save_columns

    parts = {"source": source, "synthetic target": np.asarray(adapter.synthetic_)}
    save_columns(path, parts, columns)
    mark_picture(path, adapter.guarantee_.notice, of_releases=True)


def _save_adaptation(source: Any, adapter: "PrivateAdapter", path: Path) -> None:
    """Write a picture of source images, adapted images and synthetic target images.

    The adapted images are those of the same source images.
    """
    import torch

    from dpswd._arrays import as_records
    from dpswd._png import mark_picture
    from dpswd.files.pictures import save_rows
    from dpswd.records import floats

    synthetic, _ = as_records(adapter.synthetic_[:_N_COLUMNS])
    rows = {"source": floats(torch.from_numpy(source[:_N_COLUMNS]))}
    if adapter.classifier_.examples is not None:
        rows["source, adapted"] = torch.from_numpy(adapter.classifier_.examples)
    rows["synthetic target"] = floats(synthetic)
    save_rows(rows, path)
    mark_picture(path, adapter.guarantee_.notice, of_releases=True)


def show(result: dict[str, Any]) -> None:
    if result["finished_before"]:
        print(FINISHED_BEFORE)
    classifier = result["files"][0]
    files = ", ".join(result["files"])
    print(f"Files: {files}")
    command = shlex.join(["dpswd", "predict", classifier, "DATA"])
    print(f"Next: {command}")
