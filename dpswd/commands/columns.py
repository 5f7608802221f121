"""``dpswd columns``: a draft of the public facts of the columns of a table.

The user edits and confirms the draft.
"""

import math
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dpswd._files import atomic_write, check_new
from dpswd._frames import ARROW_FORMATS
from dpswd._keys import Key, cell_key
from dpswd.columns import COLUMN_KINDS, is_missing_cell
from dpswd.columns.column import moment_of
from dpswd.errors import InputError

# Most categories of a nominal column in a draft; a column of more text is taken for an identifier.
_MAX_CATEGORIES = 50
# Length in characters from which on a category may be a remark about a person.
_LONG_TEXT = 40
# A fact that the cells do not show.
_UNKNOWN = "fill in"
# From so many different numbers (or dates) on, one text beside them stands for a missing cell.
_FEWEST_NUMBERS = 10
# Comment at the top of a draft.
_HEADER = f"""\
# Facts of the columns, for dpswd generate --columns. A column with draft: true has facts that were
# read from the records: they are PRIVATE. Correct them by what you know without the records, then
# delete the line draft: true. Facts are the bounds low and high, the categories of a cell (another
# cell counts as other in a nominal column, and is refused in a binary one), whether it may be
# missing, its decimals, and the kind:
# {", ".join(COLUMN_KINDS)}.
"""
# Formats of dates that a draft knows, ISO first.
_DATE_FORMATS = ("", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y %H:%M", "%d/%m/%Y %H:%M")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "table",
        metavar="TABLE",
        type=Path,
        help="the private table: a .csv file whose first line names the columns, or a .parquet or "
        ".feather file",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the .yaml file to write"
    )
    parser.add_argument(
        "--target", metavar="COLUMN", help="column that has the classes; it needs no facts"
    )
    parser.add_argument(
        "--kinds",
        nargs="+",
        default=[],
        metavar="COLUMN=KIND",
        help=f"kinds that you know, as in patient=identifier; one of: {', '.join(COLUMN_KINDS)}",
    )


def run(arguments: Namespace) -> dict[str, Any]:
    import yaml  # type: ignore[import-untyped]  # needed for this command alone

    from dpswd.data.names import check_column  # imports torch, which the help does without

    out: Path = arguments.out
    if out.suffix not in (".yaml", ".yml"):
        raise InputError(f"Expected FILE.yaml as --out, got {out.name}; pass {out.stem}.yaml.")
    check_new(out)
    columns, kinds_of_types = _cells_of(arguments.table)
    check_column("target", arguments.target, list(columns), arguments.table)
    if arguments.target is not None:
        del columns[arguments.target]
    kinds = kinds_of_types | _stated_kinds(arguments.kinds, list(columns))
    drafts = {name: _draft(cells, kinds.get(name)) for name, cells in columns.items()}
    remarks = []
    for name, draft in drafts.items():
        remarks += _remarks(name, draft, columns[name])
    comment = _HEADER + "".join(f"# {remark}\n" for remark in remarks)
    text = yaml.safe_dump(drafts, sort_keys=False, allow_unicode=True)
    atomic_write(out, (comment + text).encode())
    to_confirm = [name for name, draft in drafts.items() if "draft" in draft]
    return {
        "out": str(out),
        "columns": list(drafts),
        "to_confirm": to_confirm,
        "remarks": remarks,
        "target": arguments.target,
    }


def _remarks(name: str, draft: dict[str, Any], cells: Sequence[str]) -> list[str]:
    """Return what the draft assumes of a column, a sentence each."""
    remarks = []
    texts = sorted({cell.strip() for cell in cells if is_missing_cell(cell)} - {""})
    if texts:
        remarks.append(
            f"{', '.join(texts)} counts as a missing cell; list it as a category if it is one."
        )
    missing = draft.get("missing")
    if isinstance(missing, str):
        remarks.append(
            f"{missing} is taken for a missing cell, since all others are of one kind. If it "
            "stands for a value, such as one below a limit, write a number in its place."
        )
    if draft["kind"] in ("nominal", "identifier") and _have_codes(cells):
        remarks.append(
            "numbers that start with 0 are taken for codes, as in a postcode; state kind integer "
            "if they are numbers."
        )
    if any(len(str(category)) > _LONG_TEXT for category in draft.get("categories", ())):
        remarks.append(
            "some categories are long texts, which would be published; state kind identifier, "
            "which leaves the column out, if they are remarks."
        )
    if draft["kind"] == "identifier" and all(map(is_missing_cell, cells)):
        remarks.append("no cell has a value, so the column is left out.")
    one_line = " ".join(name.split())  # a name may have line breaks, which would end the comment
    return [f"Column {one_line}: {remark}" for remark in remarks]


def _cells_of(path: Path) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """Return the cells of each column as text, and the kinds that its type states."""
    # These modules import torch, which the help does without.
    from dpswd.data.arrow_files import arrow_cells
    from dpswd.data.tables import text_columns

    if path.suffix.lower() in ARROW_FORMATS:
        return arrow_cells(path)
    return text_columns(path), {}


def show(result: dict[str, Any]) -> None:
    print(
        f"{result['out']}: {len(result['columns'])} columns, of which {len(result['to_confirm'])} "
        "have facts that were read from the records. The file is private until you have corrected "
        "and confirmed them."
    )
    for remark in result["remarks"]:
        print(remark)
    print(
        "Next: correct the facts, delete each line draft: true, then pass the file to generate as "
        "--columns."
    )
    if result["target"] is None:
        print(
            "If a column has the classes, make the draft with --target COLUMN, which leaves it out."
        )


def _stated_kinds(pairs: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Return the kinds that the user states, by the names of the columns."""
    kinds = {}
    for pair in pairs:
        name, _, kind = pair.rpartition("=")
        if name not in names or kind not in COLUMN_KINDS:
            raise InputError(
                f"Expected --kinds COLUMN=KIND with a column of the table and a kind out of "
                f"{', '.join(COLUMN_KINDS)}, got {pair}."
            )
        kinds[name] = kind
    return kinds


def _draft(cells: Sequence[str], kind: str | None) -> dict[str, Any]:
    """Return the facts of one column: the stated kind, and what its cells show."""
    if kind == "identifier":
        return {"kind": kind}
    values = [cell.strip() for cell in cells if not is_missing_cell(cell)]
    distinct = sorted(set(values))
    missing_text = None
    if kind not in ("binary", "nominal"):
        missing_text = _missing_text(distinct)
    if missing_text is not None:
        distinct.remove(missing_text)
    if kind is None:
        kind = _guessed_kind(distinct)
    draft: dict[str, Any] = {"kind": kind, "draft": True}
    if kind == "identifier":
        return draft
    if kind == "nominal" or (kind == "binary" and distinct != ["0", "1"]):
        draft["categories"] = _different(distinct) or [_UNKNOWN]
    elif kind in ("date", "datetime"):
        draft |= _draft_of_dates(distinct, kind)
    elif kind != "binary":
        draft |= _draft_of_numbers(distinct)
        if kind == "numeric" and _UNKNOWN not in draft.values():
            draft |= _decimals(distinct)
    if missing_text is not None:
        draft["missing"] = missing_text
    elif len(values) < len(cells):
        draft["missing"] = True
    return draft


def _missing_text(distinct: Sequence[str]) -> str | None:
    """Return the only text beside numbers, or beside dates.

    For example ``"-"`` among 20 numbers. The result is ``None`` if all cells are of one kind, if
    several are such texts, or if there are few numbers.
    """
    if len(distinct) <= _FEWEST_NUMBERS:
        return None
    tests: list[Callable[[str], bool]] = [_is_number, _is_number_with_comma]
    tests += [partial(_is_date, date_format) for date_format in _DATE_FORMATS]
    others_by_kind = []
    for is_of_kind in tests:
        others_by_kind.append([value for value in distinct if not is_of_kind(value)])
    fewest = min(others_by_kind, key=len)
    if len(fewest) == 1:
        return fewest[0]
    return None


def _different(values: Sequence[str]) -> list[str]:
    """Return one spelling of each category: 1 and 01 are the same one."""
    spellings: dict[Key, str] = {}
    for value in values:
        spellings.setdefault(cell_key(value), value)
    return list(spellings.values())


def _draft_of_dates(distinct: Sequence[str], kind: str) -> dict[str, Any]:
    """Return bounds in ISO format, and the format of the cells if it is another one."""
    date_format = _format_of_dates(distinct)
    if date_format is None:
        return {"low": _UNKNOWN, "high": _UNKNOWN, "format": _UNKNOWN}
    moments = [moment_of(value, date_format) for value in distinct]
    if kind == "date":
        bounds = [moment.date().isoformat() for moment in moments]
    else:
        bounds = [moment.isoformat(sep=" ") for moment in moments]
    draft = _bounds(min(bounds, default=_UNKNOWN), max(bounds, default=_UNKNOWN))
    if date_format:
        draft["format"] = date_format
    return draft


def _draft_of_numbers(distinct: Sequence[str]) -> dict[str, Any]:
    """Return bounds, and the decimal mark of the cells if it is a comma."""
    draft: dict[str, Any] = {}
    values = list(distinct)
    if _have_decimal_commas(distinct):
        values = [value.replace(",", ".") for value in distinct]
        draft["decimal_mark"] = ","
    if not values or not all(map(_is_number, values)):
        return {"low": _UNKNOWN, "high": _UNKNOWN}
    numbers = [float(value) for value in values]
    return _bounds(_plain(min(numbers)), _plain(max(numbers))) | draft


def _decimals(distinct: Sequence[str]) -> dict[str, int]:
    """Return how many digits numbers have after their mark at most.

    The result is empty if a number has an exponent, or none has such a digit.
    """
    digits = []
    for value in distinct:
        if "e" in value.lower():
            return {}
        _, _, fraction = value.replace(",", ".").partition(".")
        digits.append(len(fraction))
    most = max(digits, default=0)
    if most == 0:
        return {}
    return {"decimals": most}


def _bounds(low: Any, high: Any) -> dict[str, Any]:
    """Return bounds; where all cells are equal, the user states the upper one."""
    if low == high:
        high = _UNKNOWN
    return {"low": low, "high": high}


def _have_decimal_commas(distinct: Sequence[str]) -> bool:
    """Return whether all cells are numbers without a point, and some have a comma."""
    has_comma = any("," in value for value in distinct)
    return has_comma and all(map(_is_number_with_comma, distinct))


def _format_of_dates(distinct: Sequence[str]) -> str | None:
    """Return the first format that reads all cells, "" for ISO; ``None`` if none does."""
    for date_format in _DATE_FORMATS:
        if all(_is_date(date_format, value) for value in distinct):
            return date_format
    return None


def _guessed_kind(distinct: Sequence[str]) -> str:
    """Return the kind of a column by its different cells.

    A column without values is left out, as an identifier is.
    """
    if not distinct:
        return "identifier"
    if len(_different(distinct)) == 2:
        return "binary"
    if all(map(_is_number, distinct)) and not _have_codes(distinct):
        is_whole = all(float(value).is_integer() for value in distinct)
        return "integer" if is_whole else "numeric"
    if _have_decimal_commas(distinct) and not _have_codes(distinct):
        return "numeric"
    if _format_of_dates(distinct) is not None:
        return "datetime" if any(":" in value for value in distinct) else "date"
    return "nominal" if len(distinct) <= _MAX_CATEGORIES else "identifier"


def _have_codes(cells: Sequence[str]) -> bool:
    """Return whether all cells are digits, and some start with a zero.

    They are codes, such as postcodes: a number would lose the zero. Missing cells do not count.
    """
    values = [cell.strip() for cell in cells if not is_missing_cell(cell)]
    has_zero = any(len(value) > 1 and value.startswith("0") for value in values)
    return has_zero and all(value.isascii() and value.isdigit() for value in values)


def _is_number_with_comma(cell: str) -> bool:
    """Return whether a cell is a finite number whose decimal mark, if any, is a comma."""
    return "." not in cell and _is_number(cell.replace(",", "."))


def _is_date(date_format: str, cell: str) -> bool:
    """Return whether a cell is a date in a format."""
    try:
        moment_of(cell, date_format)
    except ValueError:
        return False
    return True


def _is_number(cell: str) -> bool:
    """Return whether a cell is a finite number."""
    if "_" in cell:  # Python reads 1_5 as 15
        return False
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def _plain(number: float) -> float | int:
    """Return a whole number without a decimal point."""
    if number.is_integer():
        return int(number)
    return number
