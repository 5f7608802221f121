"""``dpswd forecast``: what to expect of ``dpswd generate`` for a budget.

The forecast uses public facts only.
"""

import dataclasses
from argparse import ArgumentParser, Namespace
from itertools import count
from pathlib import Path
from typing import Any

from dpswd._files import check_new
from dpswd._progress import working
from dpswd._validate import at_least
from dpswd.columns import read_columns
from dpswd.commands._options import add_data, constants_of, read_bounds, read_records
from dpswd.commands._words import option_of
from dpswd.errors import InputError


def add_arguments(parser: ArgumentParser) -> None:
    add_data(parser, nargs="?")
    parser.add_argument(
        "--config", metavar="NAME|FILE", help="file of constants that generate will get"
    )
    parser.add_argument(
        "--shape",
        help="instead of DATA: shape of a record, as 28,28 for grey images or 54 for 54 columns",
    )
    parser.add_argument(
        "-n", "--n", type=int, metavar="N", help="instead of DATA: number of records"
    )
    parser.add_argument(
        "--n-classes", type=int, help="instead of DATA: number of classes (default: none)"
    )
    parser.add_argument(
        "--class-sizes",
        type=int,
        nargs="+",
        metavar="N",
        help="numbers of records of the classes, if they are public",
    )
    parser.add_argument("--epsilon", type=float, default=10.0, help="privacy budget (default: 10)")
    parser.add_argument(
        "--delta",
        type=float,
        default=1e-5,
        help="choose it well below 1 / N for N records (default: 1e-5)",
    )
    parser.add_argument(
        "--adapt",
        action="store_true",
        help="forecast dpswd adapt in place of generate; DATA is its TARGET",
    )
    parser.add_argument(
        "--details",
        action="store_true",
        help="print a table of the releases, with their shares of the budget and their noise",
    )
    parser.add_argument(
        "--picture",
        type=Path,
        metavar="FILE",
        help="where the picture goes, which shows public images as noisy as yours would be "
        "(default: forecast.png, or else forecast-2.png, ...; none with --json)",
    )


@dataclasses.dataclass(frozen=True)
class _PublicFacts:
    """Public facts on which a forecast depends."""

    shape: tuple[int, ...]
    n: int
    n_classes: int
    bounds: Any
    source: str  # line about where the facts come from


def run(arguments: Namespace) -> dict[str, Any]:
    # These modules import torch, which the help of the command does not need.
    from dpswd.estimators.generator import PrivateGenerator
    from dpswd.mixture.resources import cost_line

    at_least(1, per_unit=arguments.per_unit)
    if arguments.adapt:
        _refuse_options_of_generate(arguments)
    if arguments.data is None:
        public = _stated_facts(arguments)
    else:
        public = _facts_of_data(arguments)
    if arguments.adapt:
        return _adaptation(arguments, public)
    estimator = PrivateGenerator(
        arguments.epsilon, arguments.delta, bounds=public.bounds, per_unit=arguments.per_unit
    )
    structure = estimator.forecast(public.shape, public.n, public.n_classes)
    if arguments.picture is not None and not structure.size:
        raise InputError(
            f"Expected images for --picture, got records of shape {public.shape}; leave it out."
        )
    text = structure.expectation
    if arguments.details:
        text = str(structure)
    photographs = structure.clouds(public.n) or structure.scenes
    if photographs is not None:
        text = f"{photographs}\n{text}"
    refusal = structure.refusal(public.n)
    if refusal is not None:
        text += f"\nThe fit refuses these records: {refusal}"
    cost = cost_line(structure)
    if cost is not None:
        text += f"\n{cost}"
    if arguments.class_sizes is not None:
        _check_sizes(arguments.class_sizes, public)
        text += f"\n{structure.rarest(arguments.class_sizes)}"
    result = {
        "n_records": public.n,
        "epsilon": arguments.epsilon,
        "delta": arguments.delta,
        "source": public.source,
    }
    result |= dataclasses.asdict(structure)
    result |= {"verdict": structure.verdict, "text": text}
    if not arguments.details:
        result["hint"] = "--details shows the releases and their shares of the budget."
    if structure.size and (arguments.picture is not None or not arguments.json):
        from dpswd.estimators.stand_ins import save_expectation  # imports torch

        path = _picture_path(arguments.picture)
        with working("Drawing the picture of stand-ins", shown=not arguments.json, line=False):
            result["shows"] = save_expectation(path, structure, arguments.delta)
        result["picture"] = str(path)
    return result


def _refuse_options_of_generate(arguments: Namespace) -> None:
    """Refuse options that the forecast of an adaptation does not have."""
    for name in ("picture", "class_sizes"):
        if getattr(arguments, name) is not None:
            raise InputError(
                f"Expected no {option_of(name)} with --adapt, whose forecast is a text for all "
                "classes; leave one of them out."
            )


def _adaptation(arguments: Namespace, public: _PublicFacts) -> dict[str, Any]:
    """Return the forecast of an adaptation to the records."""
    # These modules import torch, which the help of the command does not need.
    from dpswd.accounting.calibrate import planning_mu
    from dpswd.adaptation.forecast import forecast_adaptation
    from dpswd.estimators.generator import channels_first

    mu = planning_mu(arguments.epsilon, arguments.delta) / arguments.per_unit
    expected = forecast_adaptation(public.n, channels_first(public.shape), mu)
    text = str(expected)
    if arguments.details:
        text = f"{expected.structure}\n{text}"
    return {
        "n_records": public.n,
        "epsilon": arguments.epsilon,
        "delta": arguments.delta,
        "source": public.source,
        "signal": expected.signal,
        "n_needed": expected.n_needed,
        "can_be_seen": expected.can_be_seen,
        "text": text,
    }


def _picture_path(requested: Path | None) -> Path:
    """Return the path of a new picture.

    By default, it is the first of forecast.png, forecast-2.png, ... that does not exist.
    """
    if requested is not None:
        check_new(requested, "--picture")
        return requested
    path = Path("forecast.png")
    numbers = count(2)
    while path.exists():
        path = Path(f"forecast-{next(numbers)}.png")
    return path


def _facts_of_data(arguments: Namespace) -> _PublicFacts:
    """Return the public facts of records."""
    for name in ("shape", "n", "n_classes"):
        if getattr(arguments, name) is not None:
            option = "--" + name.replace("_", "-")
            raise InputError(
                f"Expected DATA, or --shape and --n, got DATA and {option}; leave one of them out."
            )
    records = read_records(arguments, constants_of(arguments.config), in_memory=False)
    command = "adapt" if arguments.adapt else "generate"
    size = f"{records.n_entries:,} {records.entry_noun} of shape {records.shape}"
    if records.has_units:
        size = f"{len(records):,} persons with at most {records.per_unit} records each, {size}"
    return _PublicFacts(
        records.shape,
        records.n_entries,
        records.n_classes,
        records.bounds,
        f"From {arguments.data}: {size}, {records.n_classes or 'no'} classes. The forecast uses "
        f"nothing else of them. dpswd {command} treats these facts as public, too.",
    )


def _stated_facts(arguments: Namespace) -> _PublicFacts:
    """Return the public facts that the options state."""
    if arguments.shape is None or arguments.n is None:
        missing = "--n" if arguments.n is None else "--shape"
        raise InputError(
            f"Expected DATA, or --shape and --n, got neither DATA nor {missing}; pass it."
        )
    try:
        sides = arguments.shape.replace("x", ",").split(",")
        shape = tuple(int(side) for side in sides)
    except ValueError:
        raise InputError(f"Expected --shape as 28,28 or 32,32,3, got {arguments.shape}.") from None
    n_classes = arguments.n_classes or len(arguments.class_sizes or ())
    bounds = None
    if arguments.columns is not None:
        bounds = read_columns(arguments.columns).bounds
    elif arguments.bounds is not None:
        bounds = read_bounds(arguments).bounds
    return _PublicFacts(
        shape,
        arguments.n,
        n_classes,
        bounds,
        f"As stated: {arguments.n:,} records of shape {shape}, {n_classes or 'no'} classes. No "
        "data were read.",
    )


def _check_sizes(sizes: list[int], public: _PublicFacts) -> None:
    """Refuse sizes of classes that do not fit the number of records."""
    if len(sizes) != public.n_classes or min(sizes) < 0 or sum(sizes) != public.n:
        raise InputError(
            f"Expected --class-sizes of {public.n_classes} classes that add up to {public.n}, got "
            f"{sizes}."
        )


def show(result: dict[str, Any]) -> None:
    print(result["source"])
    print(f"Budget: epsilon {result['epsilon']:g}, delta {result['delta']:g}.")
    print(result["text"])
    if "picture" in result:
        print(f"Picture: {result['picture']}, {result['shows']}. No private record is used for it.")
    if result.get("hint"):
        print(result["hint"])
