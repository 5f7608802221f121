"""``dpswd forecast``: what to expect of ``dpswd generate`` for a budget, from public facts only."""

import dataclasses
from argparse import ArgumentParser, Namespace
from typing import Any

from dpswd.commands._options import add_data, constants_of, read_bounds, read_records
from dpswd.errors import InputError


def add_arguments(parser: ArgumentParser) -> None:
    add_data(parser, nargs="?")
    parser.add_argument("--config", metavar="NAME|FILE", help="as for generate")
    parser.add_argument("--shape", help="instead of DATA: 28,28 or 32,32,3 or 54 (columns)")
    parser.add_argument("--n", type=int, metavar="N", help="instead of DATA: number of records")
    parser.add_argument(
        "--n-classes", type=int, help="instead of DATA: number of classes (default: none)"
    )
    parser.add_argument(
        "--class-sizes",
        type=int,
        nargs="+",
        metavar="N",
        help="records of each class, where public",
    )
    parser.add_argument("--epsilon", type=float, default=10.0, help="privacy budget (default: 10)")
    parser.add_argument("--delta", type=float, default=1e-5, help="default: 1e-5")


def run(arguments: Namespace) -> dict[str, Any]:
    from dpswd.estimators.generator import PrivateGenerator

    if (arguments.data is None) == (arguments.shape is None or arguments.n is None):
        raise InputError(
            f"Expected DATA, or --shape and --n, got {'neither' if arguments.data is None else 'both'}."
        )
    if arguments.data is not None:
        records = read_records(arguments, constants_of(arguments.config), in_memory=False)
        shape, n, n_classes, bounds = records.shape, len(records), records.n_classes, records.bounds
        source = (
            f"From {arguments.data}: {n} records of shape {tuple(shape)}, {n_classes or 'no'} classes. These facts are "
            "treated as public, by generate too; nothing else is used."
        )
    else:
        try:
            shape = tuple(int(side) for side in arguments.shape.replace("x", ",").split(","))
        except ValueError:
            raise InputError(
                f"Expected --shape as 28,28 or 32,32,3, got {arguments.shape}."
            ) from None
        n, n_classes = arguments.n, arguments.n_classes or len(arguments.class_sizes or ())
        bounds = None if arguments.bounds is None else read_bounds(arguments)[0]
        source = f"As stated: {n} records of shape {shape}, {n_classes or 'no'} classes. No data were read."
    structure = PrivateGenerator(arguments.epsilon, arguments.delta, bounds=bounds).forecast(
        shape, n, n_classes
    )
    sizes, text = arguments.class_sizes, str(structure)
    if sizes is not None:
        if len(sizes) != n_classes or min(sizes) < 0 or sum(sizes) != n:
            raise InputError(
                f"Expected --class-sizes of {n_classes} classes that add up to {n}, got {sizes}."
            )
        text += f"\n{structure.rarest(sizes)}"
    facts = {
        "n_records": n,
        "epsilon": arguments.epsilon,
        "delta": arguments.delta,
        "source": source,
    }
    return {**facts, **dataclasses.asdict(structure), "verdict": structure.verdict, "text": text}


def show(result: dict[str, Any]) -> None:
    print(result["source"])
    print(result["text"])
