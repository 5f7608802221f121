"""``dpswd sample``: synthetic records from the file of a generator.

Sampling costs no privacy.
"""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from dpswd._files import check_new
from dpswd._validate import at_least
from dpswd.commands._options import synthetic_line
from dpswd.errors import InputError


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "generator",
        metavar="GENERATOR",
        type=Path,
        help="generator.pt of a run, or the directory of the run",
    )
    parser.add_argument(
        "-n", type=int, default=10_000, metavar="N", help="number of records (default: 10000)"
    )
    parser.add_argument(
        "--labels", nargs="+", metavar="CLASS", help="draw only these classes, each equally often"
    )
    parser.add_argument(
        "--proportions",
        choices=["equal", "released"],
        help="draw all classes equally often, or as often as the noisy counts say (default: "
        "released for tables, equal for images)",
    )
    parser.add_argument(
        "--spread",
        type=float,
        default=1.0,
        help="below 1, records are closer to the typical ones of their class: cleaner, and with "
        "less variety, as 0.8 (default: 1)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        help="the same seed gives the same records (default: new records each time)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE|FOLDER",
        help="where the records go: a .npz file, a .csv, .parquet or .feather file for a table, or "
        "a folder, which gets a PNG for each image (default: synthetic.npz; synthetic.csv for a "
        "table with --columns)",
    )


def run(arguments: Namespace) -> dict[str, Any]:
    if arguments.out is not None:
        check_new(arguments.out)
    if arguments.seed is not None:
        at_least(0, seed=arguments.seed)
    if arguments.labels is not None and arguments.proportions is not None:
        raise InputError(
            "Expected --labels or --proportions, got both; leave --proportions out, as the stated "
            "classes are drawn equally often."
        )
    # These modules import torch, which the help of the command does not need.
    import numpy as np

    from dpswd.estimators.generator import PrivateGenerator, default_proportions
    from dpswd.files.export import export

    at_least(1, n=arguments.n)
    path = arguments.generator
    if path.is_dir():
        path = path / "generator.pt"
    estimator = PrivateGenerator.load(path)
    estimator.random_state = arguments.seed
    layout = estimator.generator_.layout
    out = arguments.out
    if out is None:
        out = Path("synthetic.npz")
        if layout is not None and layout.table is not None:
            out = Path("synthetic.csv")
        check_new(out)
    requested = None
    proportions = arguments.proportions
    if arguments.labels is not None:
        requested = np.resize(arguments.labels, arguments.n)
    elif proportions is None:
        proportions = default_proportions(estimator.generator_.sample_shape)
    records, labels = estimator.sample(
        arguments.n, requested, proportions=proportions, spread=arguments.spread
    )
    classes = None
    stated_proportions = ""
    if estimator.classes_ is not None:
        classes = estimator.classes_.tolist()
        stated_proportions = proportions or ""
    notice = estimator.guarantee_.notice
    export(out, records, labels, layout, classes, notice)
    return {
        "out": str(out),
        "n_records": arguments.n,
        "synthetic": synthetic_line(arguments.n, stated_proportions),
        "classes": None if classes is None else [str(name) for name in classes],
        "guarantee": estimator.guarantee_.to_dict(),
        "summary": estimator.guarantee_.line(),
    }


def show(result: dict[str, Any]) -> None:
    print(f"{result['synthetic']}: {result['out']}")
    print(f"{result['summary']} Sampling costs no privacy.")
