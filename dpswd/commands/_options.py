"""Options and helpers that several commands share.

They concern options of reading, constants of configs, and run directories.
"""

import atexit
import csv
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpswd._frames import ARROW_FORMATS
from dpswd._validate import budget as check_budget
from dpswd._validate import probability
from dpswd.columns.files import separator_of
from dpswd.commands.configs import FACTS, KEYS, commands_of, config_path
from dpswd.errors import InputError

if TYPE_CHECKING:
    from dpswd.records import PrivateRecords

# What the commands read, for their help.
FORMATS = (
    "a folder with one folder of images per class, a file (.npz, .npy, .csv, .parquet, .feather), "
    "or the name of a benchmark such as mnist"
)

# Files that a run directory has; a directory with one of them may be published.
_FILES_OF_A_RUN = ("ledger.jsonl", "privacy.json")

_MAX_MESSAGE = 120  # characters of a message of the reader of YAML


def add_reading(parser: ArgumentParser) -> None:
    """Add the options of every command that reads records."""
    parser.add_argument(
        "--root",
        metavar="DIR",
        help="directory that has the benchmarks (default: $DPSWD_DATA or ./data)",
    )
    parser.add_argument("--target", metavar="COLUMN", help="column of a table that has the classes")
    parser.add_argument(
        "--unreadable",
        choices=["refuse", "zero"],
        default="refuse",
        help="what to do with a record that has NaN, or an image that cannot be decoded: refuse "
        "the data, or read the record as zeros (default: refuse)",
    )


def add_data(parser: ArgumentParser, nargs: str | None = None) -> None:
    """Add the options of :func:`read_records`."""
    parser.add_argument("data", metavar="DATA", nargs=nargs, help=FORMATS)
    add_reading(parser)
    group = parser.add_argument_group("public facts, stated without looking at the records")
    group.add_argument(
        "--classes",
        nargs="+",
        metavar="NAME",
        help="names of all classes, as in --classes cats dogs",
    )
    group.add_argument(
        "--size", type=int, help="side in pixels to which the images of a folder are scaled"
    )
    group.add_argument("--channels", type=int, choices=[1, 3], help="1 for grey, 3 for colour")
    add_units(group)
    add_columns(group)
    group.add_argument(
        "--bounds",
        type=Path,
        metavar="FILE",
        help=".csv file with a line column,low,high for each column; a fourth entry, kind, may be "
        "numeric, integer or binary",
    )


def add_columns(parser: Any) -> None:
    """Add the option that states facts of the columns to a parser or group."""
    parser.add_argument(
        "--columns",
        type=Path,
        metavar="FILE",
        help=".yaml or .csv file that says what the cells of each column can be; dpswd columns "
        "drafts it",
    )


def table_ending(data: str) -> str:
    """Return the ending of the file of a synthetic table: that of the private one."""
    ending = Path(data).suffix.lower()
    if ending in ARROW_FORMATS:
        return ending
    return ".csv"


def add_units(parser: Any) -> None:
    """Add the options that name the person of each record to a parser or group."""
    parser.add_argument(
        "--unit",
        metavar="COLUMN|folder",
        help="where the name of the person of each record is: a column, an array of an .npz, or "
        "the folder of an image; the guarantee is then for a person",
    )
    parser.add_argument(
        "--per-unit",
        type=int,
        default=1,
        metavar="N",
        help="at most N records of a person are used (default: 1)",
    )


def add_left_out_unit(parser: Any) -> None:
    """Add the option that names persons in records that are no part of a run."""
    parser.add_argument(
        "--unit",
        metavar="COLUMN|folder",
        help="where the name of the person of each real record is, which is left out: a column, or "
        "the folder of an image",
    )


def read_records(
    arguments: Namespace, constants: dict[str, Any], *, in_memory: bool | None = None
) -> "PrivateRecords":
    """Read private records as the options say; options go before constants."""
    from dpswd.data import read  # imports torch, which the help does without

    options: dict[str, Any] = {}
    for name in FACTS:
        options[name] = getattr(arguments, name)
        if options[name] is None:
            options[name] = constants.get(name)
    options["classes"] = spelled_classes(options["classes"])
    bounds = None
    kinds = None
    if arguments.columns is not None and arguments.bounds is not None:
        raise InputError("Expected --columns or --bounds, got both; leave --bounds out.")
    if arguments.bounds is not None:
        columns = read_bounds(arguments)
        bounds = columns.bounds
        kinds = columns.kinds
    return read(
        arguments.data,
        **options,
        root=arguments.root,
        target=arguments.target,
        unit=arguments.unit,
        per_unit=arguments.per_unit,
        unreadable=arguments.unreadable,
        bounds=bounds,
        kinds=kinds,
        columns=arguments.columns,
        in_memory=in_memory,
    )


def spelled_classes(classes: Sequence[Any] | None) -> list[Any] | None:
    """Return classes as integers if all of them are spelled as integers.

    Otherwise they are returned unchanged. A command line states text alone. The decision depends on
    the stated classes: "0 1 2" are integers, "1 2 X" are three names.
    """
    if classes is None:
        return None
    names = list(classes)
    spelled = [str(name) for name in names]
    try:
        integers = [int(text) for text in spelled]
    except ValueError:
        return names
    if [str(integer) for integer in integers] != spelled:  # 01 is a name
        return names
    return integers


@dataclass(frozen=True)
class ColumnFacts:
    """Public facts of the columns of a table, as a file states them."""

    names: list[str]
    bounds: list[tuple[float, float]]
    kinds: list[str] | None


def read_bounds(arguments: Namespace) -> ColumnFacts:
    """Read bounds and kinds of columns from the file of ``--bounds``.

    Raises:
        InputError: If the file has another form, or its names are not those of the records.
    """
    path: Path = arguments.bounds
    try:
        text = path.read_text(encoding="utf-8-sig")
        table = text.splitlines()
        delimiter = separator_of(table[0])
        reader = csv.DictReader(table, delimiter=delimiter, skipinitialspace=True, strict=True)
        lines = list(reader)
        kinds = None
        if "kind" in lines[0]:
            kinds = [line["kind"].strip() for line in lines]
        columns = ColumnFacts(
            [line["column"].strip() for line in lines],
            [(float(line["low"]), float(line["high"])) for line in lines],
            kinds,
        )
    except OSError as error:
        raise InputError(
            f"Expected a file of bounds at {path}, got: {error.strerror}; check the path."
        ) from None
    except (ValueError, LookupError, TypeError, AttributeError, csv.Error):
        raise InputError(
            f"Expected the first line column,low,high (or column,low,high,kind) in {path}, and "
            "then a line with a name and two numbers for each column of the records, got another "
            "form; correct the file."
        ) from None
    if arguments.data is not None:
        _check_names(columns.names, arguments)
    return columns


def _check_names(names: list[str], arguments: Namespace) -> None:
    """Refuse a file of bounds that does not match the columns of the records.

    Its lines must be the columns, in their order.
    """
    from dpswd.data.tables import TARGET, column_names  # imports torch, which the help does without

    columns = column_names(arguments.data, arguments.root)
    is_known_target = arguments.target in (None, *columns)
    if not columns or "" in columns or not is_known_target:
        return  # the records have no names, or are refused when they are read
    no_facts = (arguments.target, arguments.unit)
    columns = [name for name in columns if name not in no_facts]
    for column, name in zip_longest(columns, names):
        if column != name:
            raise InputError(
                f"Expected a line for each column of {arguments.data}, in its order, in "
                f"{arguments.bounds}, got {name or 'no line'} in place of "
                f"{column or 'the end'}; mend the file, or {TARGET}."
            )


def constants_of(name: str | None, command: str = "generate") -> dict[str, Any]:
    """Return the constants of a config.

    Args:
        name: Name of a shipped config, or a file; ``None`` for no constants.
        command: Command that reads it.
    """
    if name is None:
        return {}
    import yaml  # type: ignore[import-untyped]  # needed for configs alone

    path = config_path(name)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date such as 2026-02-30
        reason = " ".join(str(error).split())[:_MAX_MESSAGE]
        raise InputError(f"Expected YAML in {path}, got: {reason}; correct it.") from None
    known = KEYS[command]
    keys = ", ".join(known)
    if not isinstance(content, dict):
        raise InputError(f"Expected keys out of {keys} in {path}, got {type(content).__name__}.")
    unknown = sorted(map(str, set(content) - set(known)))
    others = commands_of(content)
    if unknown and others:
        raise InputError(
            f"Expected constants of dpswd {command} in {name}, got a config of dpswd {others[0]}; "
            "run that."
        )
    if unknown:
        raise InputError(
            f"Expected keys out of {keys} in {path}, got {', '.join(unknown)}; correct or remove "
            "them."
        )
    return dict(content)


def run_directory(
    out: Path | None, data: str, budget: dict[str, Any], *, resume: bool | None = False
) -> Path:
    """Return the run directory, before a record is read.

    Args:
        out: Directory that the user stated; ``None`` for one below ``runs``.
        data: Folder, file or benchmark that will be read.
        budget: Options of the command, of which epsilon and delta are checked.
        resume: Whether the run is to be finished; ``None`` of a command that finishes none.

    Raises:
        InputError: If the directory has a ledger, or has none to resume, or if the budget is out
            of range.
    """
    check_budget(epsilon=budget.get("epsilon", 10.0))
    probability(delta=budget.get("delta", 1e-5))
    if out is None:
        from dpswd.data.benchmarks import PREFIX  # imports torch, which the help does without

        out = Path("runs") / (Path(data.removeprefix(PREFIX)).resolve().stem or "records")
    if out.exists() and not out.is_dir():
        raise InputError(
            f"Expected a new or empty directory as --out, got {out}, a file; pass another name."
        )
    has_ledger = (out / "ledger.jsonl").exists()
    if resume and not has_ledger:
        raise InputError(
            f"Expected a run to resume in {out}, got no ledger there; leave --resume out, or check "
            "--out."
        )
    if has_ledger and not resume:
        remedy = "pass another one as --out"
        if resume is not None:
            remedy = (
                "pass --resume to finish it if it was interrupted, or another one as --out for a "
                "further run, which spends a budget of its own: on the same records, the budgets "
                "add up"
            )
        raise InputError(f"Expected a directory without a run, got {out}; {remedy}.")
    return out


def n_releases_in(directory: Path) -> int:
    """Return the number of releases in the ledger of a directory; 0 without one."""
    from dpswd.accounting.ledger import Ledger  # slow to import: the help does without

    path = directory / "ledger.jsonl"
    if not path.exists():
        return 0
    return Ledger.open_existing(path).n_releases


# Line of a run that was resumed and made no release.
FINISHED_BEFORE = (
    "This run had made all its releases before: nothing was released or spent now, and its files "
    "were written anew."
)


def check_outside(out: Path, data: str) -> None:
    """Refuse a run directory in the folder of the records.

    Its pictures would be read as records later.
    """
    folder = Path(data)
    if folder.is_dir() and out.resolve().is_relative_to(folder.resolve()):
        raise InputError(
            f"Expected a run directory outside of the records in {data}, got {out}, whose pictures "
            "would be read as records later; pass another one as --out."
        )


def run_around(directory: Path) -> Path | None:
    """Return the run directory that contains a directory or is that directory.

    The result is ``None`` outside of all runs.
    """
    resolved = directory.resolve()
    for candidate in (resolved, *resolved.parents):
        if any((candidate / name).is_file() for name in _FILES_OF_A_RUN):
            return candidate
    return None


def refuse_run_directory(directory: Path) -> None:
    """Refuse to write figures on real records to a run directory.

    A run directory may be published.
    """
    run_directory = run_around(directory)
    if run_directory is not None:
        raise InputError(
            "Expected a directory outside of every run for pictures of real records, got "
            f"{directory} in the run {run_directory}; pass another one as --out."
        )


def join_processes() -> None:
    """Join the other processes of ``torchrun``, if there are any."""
    import torch.distributed as dist  # slow to import: the help does without torch

    if int(os.environ.get("WORLD_SIZE") or 1) > 1 and not dist.is_initialized():
        dist.init_process_group("gloo")
        atexit.register(dist.destroy_process_group)  # its threads would abort the process at exit


def synthetic_line(n: int, proportions: str) -> str:
    """Return how many records were drawn, and in which proportions of the classes.

    The line states proportions only where there are classes.
    """
    line = f"{n:,} synthetic records"
    if proportions == "equal":
        line += ", the classes in turn"
    elif proportions == "released":
        line += ", classes in the released proportions"
    return line
