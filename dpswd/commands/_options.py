"""What several commands take: options of reading, constants of configs, and run directories."""

import atexit
import csv
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpswd._validate import positive, probability
from dpswd.commands.configs import config_path
from dpswd.errors import InputError

if TYPE_CHECKING:
    from dpswd.records import PrivateRecords


JITTER = ("shift", "rotation", "zoom", "shear", "elastic")


FACTS = ("size", "channels", "classes")


CONSTANTS = (
    "centre",
    "radius",
    *JITTER,
    *FACTS,
)  # keys of a config, which are options of generate, too


def add_reading(parser: ArgumentParser) -> None:
    """Add the options of every command that reads records."""
    parser.add_argument(
        "--root", metavar="DIR", help="directory of benchmarks (default: $DPSWD_DATA or ./data)"
    )
    parser.add_argument("--target", metavar="COLUMN", help="column of the classes in .csv files")
    text = "records with NaN and images that cannot be decoded: refuse them, or read zeros (default: refuse)"
    parser.add_argument("--unreadable", choices=["refuse", "zero"], default="refuse", help=text)


def add_data(parser: ArgumentParser, nargs: str | None = None) -> None:
    """Add the options of :func:`read_records`."""
    text = "folder of class folders of images, .npz, .npy, .csv of numbers, or a benchmark"
    parser.add_argument("data", metavar="DATA", nargs=nargs, help=text)
    add_reading(parser)
    what = parser.add_argument_group("public facts, stated without looking at the records")
    what.add_argument("--classes", nargs="+", metavar="NAME", help="all classes")
    what.add_argument("--size", type=int, help="side of images of a folder, in pixels")
    what.add_argument("--channels", type=int, choices=[1, 3], help="1 for grey, 3 for colour")
    text = ".csv of column, low, high and perhaps kind (numeric, integer, binary)"
    what.add_argument("--bounds", type=Path, metavar="FILE", help=text)


def read_records(
    arguments: Namespace, constants: dict[str, Any], *, in_memory: bool | None = None
) -> "PrivateRecords":
    """Read private records as the options say; options go before constants."""
    from dpswd.data import read

    bounds, kinds = (None, None) if arguments.bounds is None else read_bounds(arguments)
    stated: dict[str, Any] = {
        name: getattr(arguments, name) or constants.get(name) for name in FACTS
    }
    stated |= {name: getattr(arguments, name) for name in ("root", "target", "unreadable")}
    return read(arguments.data, **stated, bounds=bounds, kinds=kinds, in_memory=in_memory)


def read_bounds(arguments: Namespace) -> tuple[list[tuple[float, float]], list[str] | None]:
    """Return bounds and kinds of columns from a file, whose names must be those of the records if they have names."""
    from dpswd.data.tables import TARGET, column_names

    path = arguments.bounds
    try:
        lines = list(
            csv.DictReader(
                path.read_text(encoding="utf-8").splitlines(), skipinitialspace=True, strict=True
            )
        )
        bounds = [(float(line["low"]), float(line["high"])) for line in lines]
        kinds = [line["kind"].strip() for line in lines] if "kind" in lines[0] else None
        names = [line["column"].strip() for line in lines]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, csv.Error):
        wanted = "starts with column,low,high,kind (or column,low,high) and has a line per column"
        raise InputError(
            f"Expected a file at {path} that {wanted}, got none, or one of a different form."
        ) from None
    columns = [] if arguments.data is None else column_names(arguments.data, arguments.root)
    known = (
        arguments.target in (None, *columns) and "" not in columns
    )  # otherwise the records are refused
    for wanted, got in zip_longest(
        [name for name in columns if name != arguments.target], names if columns else ()
    ):
        if wanted != got and known:
            raise InputError(
                f"Expected a line for each column of {arguments.data}, in its order, in {path}, got {got or 'no line'} "
                f"in place of {wanted or 'the end'}; mend the file, or {TARGET}."
            )
    return bounds, kinds


def constants_of(
    name: str | None, command: str = "generate", known: Sequence[str] = CONSTANTS
) -> dict[str, Any]:
    """Return the constants of a config, whose keys are ``known``."""
    if name is None:
        return {}
    import yaml  # type: ignore[import-untyped]

    path = config_path(name)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as error:
        raise InputError(
            f"Expected YAML in {path}, got: {' '.join(str(error).split())[:120]}."
        ) from None
    if isinstance(content, dict) and "model" in content:
        raise InputError(
            f"Expected constants of dpswd {command} in {name}, got a config of dpswd fit; run that."
        )
    unknown = (
        sorted(set(content) - set(known)) if isinstance(content, dict) else [type(content).__name__]
    )
    if unknown:
        raise InputError(
            f"Expected keys out of {', '.join(known)} in {path}, got {', '.join(map(str, unknown))}."
        )
    return dict(content)


def run_directory(
    out: Path | None, name: str, budget: dict[str, Any], *, resume: bool = False
) -> Path:
    """Return the run directory; refuse one with a ledger, and a wrong budget, before a record is read."""
    positive(epsilon=budget.get("epsilon", 10.0))
    probability(delta=budget.get("delta", 1e-5))
    out = Path("runs") / (Path(name).stem or "records") if out is None else out
    if resume and not (out / "ledger.jsonl").exists():
        raise InputError(
            f"Expected a run to resume in {out}, got no ledger there; leave --resume out, or check --out."
        )
    if (out / "ledger.jsonl").exists() and not resume:
        raise InputError(
            f"Expected a directory without a run, got {out}; pass another one as --out, or --resume."
        )
    return out


def join_processes() -> None:
    """Join the other processes of ``torchrun``, if there are any."""
    import torch.distributed as dist

    if int(os.environ.get("WORLD_SIZE") or 1) > 1 and not dist.is_initialized():
        dist.init_process_group("gloo")
        atexit.register(dist.destroy_process_group)  # its threads would abort the process at exit
