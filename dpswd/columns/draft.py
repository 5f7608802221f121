"""Drafts of the public facts of columns.

They are read from the cells of a table that the user may look at, so a draft is private until the
user has corrected and confirmed it.
"""

import datetime
import math
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dpswd._keys import Key, cell_key
from dpswd.columns.column import is_missing_cell, moment_of, number_of

# Most categories of a nominal column in a draft; a column of more text is taken for an identifier.
_MAX_CATEGORIES = 50
# Length in characters from which on a category may be a remark about a person.
_LONG_TEXT = 40
# A fact that the cells do not show.
_UNKNOWN = "fill in"
# From so many different numbers (or dates) on, one text beside them stands for a missing cell, and
# whole numbers of which none occurs twice may be identifiers.
_FEWEST_NUMBERS = 10
# Records are float32: whole numbers over a wider range lose their last digits.
_WIDEST_EXACT = 2**24
# Formats of dates that a draft knows, ISO first.
_DATE_FORMATS = ("", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y %H:%M", "%d/%m/%Y %H:%M")
_TIME_OF_DAY = re.compile(r"\d{1,2}:\d{2}(:\d{2})?", re.ASCII)
# A number with its unit, as in "95%" or "3.5 kg".
_NUMBER_WITH_UNIT = re.compile(r"[+-]?\d[\d.,]*\s*([^\d\s.,:;/-]{1,5})", re.ASCII)


@dataclass(frozen=True)
class _Marks:
    """Marks of numbers in text.

    Args:
        decimal: The mark between whole and decimal digits.
        thousands: The mark between thousands; empty for none.
    """

    decimal: str
    thousands: str = ""

    def is_number(self, text: str) -> bool:
        """Whether a text is a finite number with these marks.

        Example:
            >>> german = _Marks(",", ".")
            >>> [german.is_number(text) for text in ("12.327,20", "12,5", "12.5", "1.2345")]
            [True, True, False, False]
        """
        if self.thousands:
            mark, decimal = re.escape(self.thousands), re.escape(self.decimal)
            whole = rf"(\d+|\d{{1,3}}({mark}\d{{3}})+)"
            return re.fullmatch(rf"[+-]?{whole}({decimal}\d+)?", text, re.ASCII) is not None
        if "_" in text:  # Python reads 1_5 as 15
            return False
        if self.decimal != "." and "." in text:
            return False
        try:
            return math.isfinite(float(self._plain_text(text)))
        except ValueError:
            return False

    def number(self, text: str) -> float | int:
        """Return the number that a text stands for; whole numbers are exact."""
        value = number_of(self._plain_text(text))
        if isinstance(value, float) and value.is_integer():
            return int(value)
        return value

    def decimals(self, text: str) -> int:
        """Return how many digits a text has after its decimal mark."""
        _, _, fraction = text.partition(self.decimal)
        return len(fraction)

    def groups_of_three(self, text: str) -> bool:
        """Whether the decimal mark of a text may separate thousands, as in 12,500."""
        mark = re.escape(self.decimal)
        return re.fullmatch(rf"[+-]?[1-9]\d{{0,2}}({mark}\d{{3}})+", text, re.ASCII) is not None

    def facts(self) -> dict[str, str]:
        """Return the facts of a column that differ from those of plain numbers."""
        column_facts = {}
        if self.decimal != ".":
            column_facts["decimal_mark"] = self.decimal
        if self.thousands:
            column_facts["thousands_mark"] = self.thousands
        return column_facts

    def _plain_text(self, text: str) -> str:
        """Return the text of a number as Python writes it."""
        if self.thousands:
            text = text.replace(self.thousands, "")
        return text.replace(self.decimal, ".")


# Marks that a draft knows: those without thousands first.
_MARKS = (
    _Marks("."),
    _Marks(","),
    _Marks(",", "."),
    _Marks(".", ","),
    *(_Marks(decimal, blank) for blank in (" ", "\N{NO-BREAK SPACE}", "'") for decimal in ".,"),
    _Marks(",", "\N{NARROW NO-BREAK SPACE}"),
)


@dataclass(frozen=True)
class Draft:
    """Draft of the facts of a column.

    Args:
        entry: The facts, as a file of columns has them.
        remarks: What the draft assumes of the column, a sentence each.
    """

    entry: dict[str, Any]
    remarks: list[str]


def draft_of(name: str, cells: Sequence[str], kind: str | None) -> Draft:
    """Return the draft of one column: the stated kind, and what its cells show.

    Args:
        name: Name of the column, for the remarks.
        cells: Cells (n,) as text.
        kind: Kind that the user states; by default, the cells show it.

    Example:
        >>> draft_of("dose", ["12.327,20", "3,5", ""], "numeric").entry
        ... # doctest: +NORMALIZE_WHITESPACE
        {'kind': 'numeric', 'draft': True, 'low': 3.5, 'high': 12327.2, 'decimal_mark': ',',
         'thousands_mark': '.', 'decimals': 2, 'missing': True}
    """
    values = [cell.strip() for cell in cells if not is_missing_cell(cell)]
    column_facts = _facts(cells, values, kind)
    remarks = _remarks(column_facts, cells, values)
    if kind is None:
        remarks += _remarks_on_a_guess(name, column_facts, values)
    one_line = " ".join(name.split())  # a name may have line breaks, which would end a comment
    return Draft(column_facts, [f"Column {one_line}: {remark}" for remark in remarks])


# Facts --------------------------------------------------------------------------------------------


def _facts(cells: Sequence[str], values: Sequence[str], kind: str | None) -> dict[str, Any]:
    """Return the facts of a column; ``values`` are its cells that are not missing."""
    if kind == "identifier":
        return {"kind": kind}
    distinct = sorted(set(values))
    missing_text = None
    if kind not in ("binary", "nominal"):
        missing_text = _missing_text(distinct)
    if missing_text is not None:
        distinct.remove(missing_text)
    if kind is None:
        n_repeated = len(values) - len(set(values))
        kind = _guessed_kind(distinct, has_repeated=n_repeated > 0)
    column_facts: dict[str, Any] = {"kind": kind, "draft": True}
    if kind == "identifier":
        return column_facts
    if kind == "nominal" or (kind == "binary" and distinct != ["0", "1"]):
        column_facts["categories"] = _different(distinct) or [_UNKNOWN]
    elif kind in ("date", "datetime"):
        column_facts |= _facts_of_dates(distinct, kind)
    elif kind != "binary":
        column_facts |= _facts_of_numbers(distinct, kind)
    if missing_text is not None:
        column_facts["missing"] = missing_text
    elif len(values) < len(cells):
        column_facts["missing"] = True
    return column_facts


def _missing_text(distinct: Sequence[str]) -> str | None:
    """Return the only text beside numbers, or beside dates.

    For example ``"-"`` among 20 numbers. The result is ``None`` if all cells are of one kind, if
    several are such texts, or if there are few numbers.
    """
    if len(distinct) <= _FEWEST_NUMBERS:
        return None
    tests: list[Callable[[str], bool]] = [marks.is_number for marks in _MARKS]
    tests += [partial(_is_date, date_format) for date_format in _DATE_FORMATS]
    others_by_kind = []
    for is_of_kind in tests:
        others_by_kind.append([value for value in distinct if not is_of_kind(value)])
    fewest = min(others_by_kind, key=len)
    if len(fewest) == 1:
        return fewest[0]
    return None


def _guessed_kind(distinct: Sequence[str], *, has_repeated: bool) -> str:
    """Return the kind of a column by its different cells.

    A column without values is left out, as an identifier is.

    Args:
        distinct: The different cells, without missing ones.
        has_repeated: Whether a cell occurs twice.
    """
    if not distinct:
        return "identifier"
    if len(_different(distinct)) == 2:
        return "binary"
    marks = _marks_of(distinct)
    if marks is not None and not _have_codes(distinct):
        return _kind_of_numbers(distinct, marks, has_repeated=has_repeated)
    if _format_of_dates(distinct) is not None:
        return "datetime" if any(":" in value for value in distinct) else "date"
    return "nominal" if len(distinct) <= _MAX_CATEGORIES else "identifier"


def _kind_of_numbers(distinct: Sequence[str], marks: _Marks, *, has_repeated: bool) -> str:
    """Return the kind of a column of numbers.

    Whole numbers over a wide range of which none occurs twice are identifiers, such as numbers of
    patients.
    """
    numbers = [marks.number(value) for value in distinct]
    if not all(isinstance(number, int) for number in numbers):
        return "numeric"
    if marks.decimal == "," and any("," in value for value in distinct):
        return "numeric"
    is_wide = max(numbers) - min(numbers) > _WIDEST_EXACT
    if is_wide and not has_repeated and len(distinct) >= _FEWEST_NUMBERS:
        return "identifier"
    return "integer"


def _marks_of(distinct: Sequence[str]) -> _Marks | None:
    """Return the first marks by which all cells are numbers, or ``None``."""
    for marks in _MARKS:
        if all(map(marks.is_number, distinct)):
            return marks
    return None


def _have_codes(values: Sequence[str]) -> bool:
    """Return whether all cells are digits, and some start with a zero.

    They are codes, such as postcodes: a number would lose the zero.
    """
    has_zero = any(len(value) > 1 and value.startswith("0") for value in values)
    return has_zero and all(value.isascii() and value.isdigit() for value in values)


def _different(values: Sequence[str]) -> list[str]:
    """Return one spelling of each category: 1 and 01 are the same one."""
    spellings: dict[Key, str] = {}
    for value in values:
        spellings.setdefault(cell_key(value), value)
    return list(spellings.values())


def _facts_of_numbers(distinct: Sequence[str], kind: str) -> dict[str, Any]:
    """Return bounds, the marks of the numbers, and their decimals."""
    marks = _marks_of(distinct)
    if not distinct or marks is None:
        return {"low": _UNKNOWN, "high": _UNKNOWN}
    numbers = [marks.number(value) for value in distinct]
    column_facts = _bounds(min(numbers), max(numbers)) | marks.facts()
    has_exponent = any("e" in value.lower() for value in distinct)
    most = max(marks.decimals(value) for value in distinct)
    if kind == "numeric" and most > 0 and not has_exponent:
        column_facts["decimals"] = most
    return column_facts


def _facts_of_dates(distinct: Sequence[str], kind: str) -> dict[str, Any]:
    """Return bounds in ISO format, and the format of the cells if it is another one."""
    date_format = _format_of_dates(distinct)
    if date_format is None:
        return {"low": _UNKNOWN, "high": _UNKNOWN, "format": _UNKNOWN}
    moments = [moment_of(value, date_format) for value in distinct]
    texts = [_iso_text(moment, kind) for moment in moments]
    column_facts = _bounds(min(texts, default=_UNKNOWN), max(texts, default=_UNKNOWN))
    if date_format:
        column_facts["format"] = date_format
    return column_facts


def _iso_text(moment: datetime.datetime, kind: str) -> str:
    """Return a bound of a column of dates or datetimes."""
    if kind == "date":
        return moment.date().isoformat()
    return moment.isoformat(sep=" ")


def _bounds(low: Any, high: Any) -> dict[str, Any]:
    """Return bounds; where all cells are equal, the user states the upper one."""
    if low == high:
        high = _UNKNOWN
    return {"low": low, "high": high}


def _format_of_dates(distinct: Sequence[str]) -> str | None:
    """Return the first format that reads all cells, "" for ISO; ``None`` if none does."""
    for date_format in _DATE_FORMATS:
        if all(_is_date(date_format, value) for value in distinct):
            return date_format
    return None


def _is_date(date_format: str, cell: str) -> bool:
    """Return whether a cell is a date in a format."""
    try:
        moment_of(cell, date_format)
    except ValueError:
        return False
    return True


# Remarks ------------------------------------------------------------------------------------------


def _remarks(
    column_facts: dict[str, Any], cells: Sequence[str], values: Sequence[str]
) -> list[str]:
    """Return what the facts assume of the cells, of which ``values`` are not missing."""
    remarks = []
    texts = sorted({cell.strip() for cell in cells if is_missing_cell(cell)} - {""})
    if texts:
        remarks.append(
            f"{', '.join(texts)} counts as a missing cell; list it as a category if it is one."
        )
    missing = column_facts.get("missing")
    if isinstance(missing, str):
        remarks.append(
            f"{missing} is taken for a missing cell, since all others are of one kind. If it "
            "stands for a value, such as one below a limit, write a number in its place."
        )
    if column_facts["kind"] in ("nominal", "identifier") and _have_codes(values):
        remarks.append(
            "numbers that start with 0 are taken for codes, as in a postcode; state kind integer "
            "if they are numbers."
        )
    if any(len(str(category)) > _LONG_TEXT for category in column_facts.get("categories", ())):
        remarks.append(
            "some categories are long texts, which would be published; state kind identifier, "
            "which leaves the column out, if they are remarks."
        )
    if column_facts["kind"] == "identifier" and not values:
        remarks.append("no cell has a value, so the column is left out.")
    if column_facts["kind"] in ("numeric", "integer"):
        remarks += _remarks_on_numbers(column_facts, values)
    return remarks


def _remarks_on_numbers(column_facts: dict[str, Any], values: Sequence[str]) -> list[str]:
    """Return what the facts assume of a column of numbers."""
    remarks = []
    low, high = column_facts["low"], column_facts["high"]
    is_whole = isinstance(low, int) and isinstance(high, int)
    if column_facts["kind"] == "integer" and is_whole and high - low > _WIDEST_EXACT:
        remarks.append(
            "its whole numbers span more than 2^24 = 16,777,216, so they are rounded to 24 binary "
            "digits; state kind identifier, which leaves the column out, if they name persons."
        )
    if not isinstance(low, str):
        remarks += _remarks_on_marks(column_facts, values)
    return remarks


def _remarks_on_marks(column_facts: dict[str, Any], values: Sequence[str]) -> list[str]:
    """Return a remark on a decimal mark that may be one between thousands.

    For example 1.250 beside 900: if the cell means 1250, the number that is read is a thousandth of
    it.
    """
    marks = _Marks(column_facts.get("decimal_mark", "."), column_facts.get("thousands_mark", ""))
    marked = [value for value in values if marks.decimal in value]
    if marks.thousands or not all(map(marks.groups_of_three, marked)):
        return []
    if not 0 < len(marked) < len(values):
        return []
    other = {",": ".", ".": ","}[marks.decimal]
    return [
        f"{marked[0]} is read with a decimal mark. If the mark separates thousands, state "
        f'thousands_mark: "{marks.decimal}" and decimal_mark: "{other}", and correct the bounds.'
    ]


def _remarks_on_a_guess(
    name: str, column_facts: dict[str, Any], values: Sequence[str]
) -> list[str]:
    """Return why a kind was guessed that may be another one, and how to state it."""
    if column_facts["kind"] not in ("binary", "nominal", "identifier") or not values:
        return []
    units = {_unit_of(value) for value in values}
    if len(units) == 1 and units != {""}:
        return [
            f"every cell is a number with {units.pop()}, which is taken for text. If it is a "
            "measurement, write the number alone in each cell, and make the draft again."
        ]
    if all(map(_TIME_OF_DAY.fullmatch, values)):
        return [
            "every cell is a time of day, which is taken for text. To keep it, write a number in "
            "its place, such as the minutes after midnight, and make the draft again."
        ]
    if column_facts["kind"] != "identifier" or _have_codes(values):
        return []
    missing_text = _missing_text(sorted(set(values)))
    distinct = {value for value in values if value != missing_text}
    if _marks_of(sorted(distinct)) is not None:
        option = shlex.quote(f"{name}=integer")
        return [
            "its whole numbers are far apart and none occurs twice, so they are taken for the "
            "numbers of persons, and the column is left out. If they are measurements, make the "
            f"draft again with --kinds {option}."
        ]
    option = shlex.quote(f"{name}=nominal")
    return [
        f"it has {len(distinct)} different texts, more than {_MAX_CATEGORIES}, so they are "
        "taken for names or remarks, and the column is left out. If they are categories, make the "
        f"draft again with --kinds {option}."
    ]


def _unit_of(value: str) -> str:
    """Return the unit behind a number, as in 95% or 3.5 kg; empty for other text."""
    match = _NUMBER_WITH_UNIT.fullmatch(value)
    if match is None:
        return ""
    return match.group(1)
