"""``dpswd sample``: synthetic records from a generator's file, which costs no privacy."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from dpswd._files import check_new
from dpswd.commands.generate import describe


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("generator", metavar="GENERATOR", type=Path, help="generator.pt of a run")
    parser.add_argument(
        "-n", type=int, default=10_000, metavar="N", help="number of records (default: 10000)"
    )
    parser.add_argument(
        "--labels", nargs="+", metavar="CLASS", help="only these classes, each equally often"
    )
    parser.add_argument(
        "--proportions", choices=["equal", "released"], default="equal", help="of the classes"
    )
    parser.add_argument(
        "--spread", type=float, default=1.0, help="factor on the noise within cells; 0.8: cleaner"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the latent codes")
    text = "a folder gets one PNG per image in class folders (default: synthetic.npz)"
    out = "FILE.npz|FILE.csv|FOLDER"
    parser.add_argument("--out", type=Path, default=Path("synthetic.npz"), metavar=out, help=text)


def run(arguments: Namespace) -> dict[str, Any]:
    check_new(arguments.out)
    import numpy as np

    from dpswd.accounting.guarantee import guarantee_line
    from dpswd.estimators.generator import PrivateGenerator
    from dpswd.files.export import export

    made = PrivateGenerator.load(arguments.generator)
    made.random_state = arguments.seed
    names = None if arguments.labels is None else np.resize(arguments.labels, arguments.n)
    records, labels = made.sample(
        arguments.n, names, proportions=arguments.proportions, spread=arguments.spread
    )
    drawn = "" if labels is None or names is not None else arguments.proportions
    export(arguments.out, records, labels, made.generator_.layout)
    return {
        "out": str(arguments.out),
        "n_records": arguments.n,
        "synthetic": describe(arguments.n, drawn),
        "classes": None if made.classes_ is None else [str(name) for name in made.classes_],
        "guarantee": made.guarantee_,
        "summary": guarantee_line(made.guarantee_),
    }


def show(result: dict[str, Any]) -> None:
    print(f"{result['synthetic']}: {result['out']}")
    print(f"{result['summary']} Sampling costs no privacy.")
