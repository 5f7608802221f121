"""Public facts of one column, and the numbers of its cells."""

import datetime
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpswd._keys import MISSING_TEXTS, MISSING_VALUES, Key, cell_key, is_rounded
from dpswd.errors import InputError

# Facts that a column of each kind may state, besides those of every included column.
_FACTS = {
    "numeric": ("low", "high", "decimals", "decimal_mark", "thousands_mark"),
    "integer": ("low", "high", "decimal_mark", "thousands_mark"),
    "binary": ("categories",),
    "nominal": ("categories", "other"),
    "date": ("low", "high", "format"),
    "datetime": ("low", "high", "format"),
    "identifier": (),
}
_FACTS_OF_EVERY_INCLUDED_COLUMN = ("missing", "dtype")
COLUMN_KINDS = tuple(_FACTS)

# Missing cells of spreadsheets and C programs, besides MISSING_TEXTS and the text that a column
# states. Readers of tables know them in columns of numbers only.
_MISSING_NUMBERS = ("#n/a", "#n/a n/a", "#na", "-nan", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan")
# Category of a cell that is in no list.
_OTHER = "other"
# Distance of the number of a missing cell from the lower bound, over the width of the bounds.
_MISSING_GAP = 1e-3
# Records are float32, exact to 24 binary digits. Numbers of a column are therefore counted from its
# lower bound where a bound is beyond this one, or beyond so many widths of the bounds.
_FAR = 2**20
_FAR_WIDTHS = 16
# Significant digits of a numeric column where no decimals are stated.
_DIGITS = 5
# Part of the width of bounds by which a number of float32 may be beside a bound.
_ROUNDING = 1e-6
# Largest width of bounds, whose square float32 still holds.
_LARGEST_WIDTH = 1e18
_SECONDS = {"date": 86_400, "datetime": 1}
_EPOCH = datetime.datetime(1970, 1, 1)


@dataclass(frozen=True, kw_only=True)
class Column:
    """Public facts of one column.

    The table of :mod:`dpswd.columns` states which facts belong to which kind.

    Args:
        name: Name of the column.
        kind: ``"numeric"``, ``"integer"``, ``"binary"``, ``"nominal"``, ``"date"``,
            ``"datetime"`` or ``"identifier"``.
        low: Lower bound: a number, or a date in ISO format.
        high: Upper bound.
        categories: What a cell can be, of binary and nominal columns.
        missing: Whether a cell may be missing; or the text of a missing cell, such as ``"?"``.
        decimals: Digits after the point of a generated number; by default, so many that the
            width of the bounds has five digits.
        decimal_mark: The mark between whole and decimal digits in text, such as ``","``.
        thousands_mark: The mark between thousands in text, such as ``"."``; none by default.
        format: Format of dates as in ``datetime.strptime``; ISO by default. Bounds are always in
            ISO format.
        dtype: Type of the column of a DataFrame, as pandas names it; by default, that of the
            records. Empty for other tables.
        other: Whether a cell that is in no category of a nominal column counts as ``other``; if
            not, it is refused.

    Raises:
        InputError: If a fact is missing, does not fit the kind, or has no meaning for it.

    Example:
        >>> column = Column(name="sex", kind="nominal", categories=("F", "M"), missing=True)
        >>> column.numbers(["M", "F", "", "x"], "people").tolist()
        [2.0, 1.0, 0.0, 3.0]
        >>> column.cells(column.numbers(["M", "", "x"], "people"))
        ['M', None, 'other']
    """

    name: str
    kind: str
    low: Any = None
    high: Any = None
    categories: tuple[Any, ...] = ()
    missing: bool | str = False
    decimals: int | None = None
    decimal_mark: str = "."
    thousands_mark: str = ""
    format: str = ""
    dtype: str = ""
    other: bool = True

    def __post_init__(self) -> None:
        """Check the facts, and convert bounds and categories to plain values.

        Facts that are missing or do not fit are refused. Plain values are text and numbers of
        Python, which the file of a generator can hold.
        """
        if self.kind not in COLUMN_KINDS:
            raise InputError(
                f"Expected kind of column {self.name} out of {', '.join(COLUMN_KINDS)}, got "
                f"{self.kind!r}; {_closest_kind(self.kind)}."
            )
        self._check_meaning()
        categories = tuple(_plain_category(self.name, category) for category in self.categories)
        object.__setattr__(self, "categories", categories)
        self._check_categories()
        self._check_marks()
        if "low" in _FACTS[self.kind]:
            self._set_bounds()

    def _facts_of_kind(self) -> list[str]:
        """Return the facts that mean something for the kind of the column."""
        if not self.is_included:
            return []
        return [*_FACTS[self.kind], *_FACTS_OF_EVERY_INCLUDED_COLUMN]

    def _check_meaning(self) -> None:
        """Refuse facts that mean nothing for the kind of the column."""
        allowed = self._facts_of_kind()
        defaults = Column.__dataclass_fields__
        for fact, field in defaults.items():
            if fact in ("name", "kind", *allowed):
                continue
            if getattr(self, fact) != field.default:
                remedy = "leave it out"
                if fact == "categories":
                    remedy = "write kind: nominal for text, or leave it out"
                raise InputError(
                    f"Expected {_listing(allowed)} of the {self.kind} column {self.name}, got "
                    f"{fact}, which means nothing for this kind; {remedy}."
                )

    def _check_categories(self) -> None:
        """Refuse repeated categories, and a number of them that the kind cannot have."""
        keys = [cell_key(category) for category in self.categories]
        if len(set(keys)) < len(keys):
            raise InputError(
                f"Expected different categories of column {self.name}, got a repeated one; 1, 1.0, "
                "'01' and True are the same."
            )
        if self.kind == "nominal" and not keys:
            raise InputError(
                f"Expected categories of the nominal column {self.name}, got none; list what a "
                "cell can be."
            )
        if self.kind == "binary" and len(keys) not in (0, 2):
            raise InputError(
                f"Expected two categories of the binary column {self.name}, got {len(keys)}; "
                "a column of more is nominal."
            )

    def _check_marks(self) -> None:
        """Refuse marks of numbers that cannot be told from digits or from each other."""
        marks = (self.decimal_mark, self.thousands_mark)
        is_plain = len(self.decimal_mark) == 1 and len(self.thousands_mark) <= 1
        if not is_plain or any(mark.isdigit() or mark in ("+", "-") for mark in marks if mark):
            raise InputError(
                f"Expected decimal_mark and thousands_mark of column {self.name} as one character "
                f"each, such as ',' and '.', got {self.decimal_mark!r} and "
                f"{self.thousands_mark!r}."
            )
        if self.decimal_mark == self.thousands_mark:
            raise InputError(
                f"Expected two different marks of column {self.name}, got {self.decimal_mark!r} as "
                "decimal_mark and thousands_mark."
            )

    def _set_bounds(self) -> None:
        """Keep bounds as plain values; refuse those that are missing, or not increasing."""
        try:
            low = self._plain_bound(self.low)
            high = self._plain_bound(self.high)
            width = self._coordinate_of_bound(high) - self._coordinate_of_bound(low)
        except (AttributeError, TypeError, ValueError, OverflowError):
            width = math.nan
        if _LARGEST_WIDTH <= width < math.inf:
            raise InputError(
                f"Expected bounds of column {self.name} less than {_LARGEST_WIDTH:g} apart, got "
                f"low={self.low}, high={self.high}; state what its cells can be."
            )
        if not 0 < width < math.inf:
            of_dates = " as dates in ISO format (as in 2023-01-31)"
            expected = {"date": of_dates, "datetime": of_dates}
            expected["integer"] = " as whole numbers"
            raise InputError(
                f"Expected low < high{expected.get(self.kind, '')} of the {self.kind} column "
                f"{self.name}, got low={self.low}, high={self.high}; state what its cells can be."
            )
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)

    def _plain_bound(self, bound: Any) -> int | float | str:
        """Return a bound as a number of Python, or as a date in ISO format."""
        if self.kind in _SECONDS:
            moment = moment_of(bound, "")
            if self.kind == "date":
                return moment.date().isoformat()
            return moment.isoformat(sep=" ")
        number = number_of(bound)
        if self.kind == "integer":
            exact = int(number)
            if exact != number:
                raise ValueError("no whole number")
            return exact
        return number

    def __str__(self) -> str:
        """Return the facts in words.

        Example:
            >>> print(Column(name="sex", kind="nominal", categories=("F", "M"), missing=True))
            sex: F, M or other, may be missing
        """
        words = "left out"
        if self.has_categories:
            words = _either([_text(category) for category in self._listed])
        elif self.is_included:
            words = f"{self.kind} from {self.low} to {self.high}"
        if self.missing:
            words += ", may be missing"
        return f"{self.name}: {words}"

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Numbers to mark on an axis, with the values that they stand for.

        The list is empty if the numbers stand for themselves.

        Example:
            >>> Column(name="day", kind="date", low="2020-01-01", high="2020-12-31").ticks
            [(0.0, '2020-01-01'), (365.0, '2020-12-31')]
        """
        ticks = []
        if self.missing:
            ticks.append((float(self._missing_number), "missing"))
        if self.has_categories:
            for position, category in enumerate(self._listed):
                ticks.append((float(self._first + position), _text(category)))
        elif self.missing:  # the lower bound is too near to the missing cells for a mark
            ticks.append((float(self._last), str(self.high)))
        elif self.kind in _SECONDS:
            ticks.append((float(self._first), str(self.low)))
            ticks.append((float(self._last), str(self.high)))
        return ticks

    @property
    def is_included(self) -> bool:
        """Whether the column is part of the records; identifiers are left out."""
        return self.kind != "identifier"

    @property
    def has_categories(self) -> bool:
        """Whether a cell is one of several categories."""
        return self.kind in ("binary", "nominal")

    @property
    def number_kind(self) -> str:
        """Kind of the numbers, out of :data:`dpswd.bins.KINDS`."""
        if self.kind in ("numeric", "nominal"):
            return self.kind
        if self.kind == "binary" and not self.missing:
            return "binary"
        return "integer"

    @property
    def number_bounds(self) -> tuple[float, float]:
        """Bounds of the numbers of the column.

        The lower bound is the number of a missing cell, if cells may be missing.

        Example:
            >>> Column(name="age", kind="integer", low=0, high=120, missing=True).number_bounds
            (-1.0, 120.0)
        """
        if self.missing:
            return self._missing_number, self._last
        return self._first, self._last

    @cached_property
    def _origin(self) -> float:
        """Coordinate whose number is 0."""
        low = self._coordinate_of_bound(self.low)
        high = self._coordinate_of_bound(self.high)
        largest = max(abs(low), abs(high))
        if self.kind in _SECONDS or largest > min(_FAR, _FAR_WIDTHS * (high - low)):
            return low
        return 0.0

    @cached_property
    def _first(self) -> float:
        """Least number of a cell that is not missing."""
        if not self.has_categories:
            return self._coordinate_of_bound(self.low) - self._origin
        if self.missing:
            return 1.0
        return 0.0

    @cached_property
    def _last(self) -> float:
        """Largest number."""
        if self.has_categories:
            return self._first + len(self._listed) - 1
        return self._coordinate_of_bound(self.high) - self._origin

    @cached_property
    def _missing_number(self) -> float:
        """Number of a missing cell."""
        if self.kind == "numeric":
            return self._first - _MISSING_GAP * (self._last - self._first)
        return self._first - 1

    @cached_property
    def _listed(self) -> list[Any]:
        """Categories in the order of their numbers.

        The category ``other`` is the last one if it is not stated.
        """
        if self.kind == "binary" and not self.categories:
            return [0, 1]
        categories = list(self.categories)
        if self.kind == "nominal" and self.other and _OTHER not in map(cell_key, categories):
            categories.append(_OTHER)
        return categories

    @cached_property
    def _numbers_of_categories(self) -> Mapping[Key, float]:
        """Number of each category by its key; empty for other kinds."""
        numbers: dict[Key, float] = {}
        if self.has_categories:
            for position, category in enumerate(self._listed):
                numbers[cell_key(category)] = self._first + position
        return numbers

    def numbers(self, cells: Any, data: str, first_line: int = 1) -> NDArray[np.float64]:
        """Return the number of every cell.

        Args:
            cells: Cells (n,), text or values.
            data: Name of the table, for messages.
            first_line: Number of the line of the first cell, for messages.

        Raises:
            InputError: If a cell does not fit the facts. The message names the line, not the cell.
        """
        numbers = np.empty(len(cells))
        known: dict[str, float] = {}  # of texts that were converted before
        for index, cell in enumerate(cells):
            if isinstance(cell, str) and cell in known:
                numbers[index] = known[cell]
                continue
            try:
                numbers[index] = self._number(cell)
            except _UnfitCellError as unfit:
                raise self._refusal(str(unfit), data, first_line + index, unfit.fact) from None
            except (AttributeError, TypeError, ValueError, OverflowError):
                # The text of an error of Python has the value of the cell.
                raise self._refusal("a cell of another form", data, first_line + index) from None
            if isinstance(cell, str):
                known[cell] = float(numbers[index])
        return numbers

    def _refusal(self, reason: str, data: str, line: int, fact: str = "") -> InputError:
        """Return the error of a cell that does not fit; it names the line, not the cell.

        Args:
            reason: What the cell is.
            data: Name of the table.
            line: Line of the cell.
            fact: The fact that would allow it; any of the kind by default.
        """
        remedy = f"correct the facts of the column ({', '.join(self._facts_of_kind())})"
        if fact:
            remedy = f"add {fact} to the facts of the column"
        return InputError(
            f"Expected {self._expected_cell()} in column {self.name} of {data}, got {reason} in "
            f"line {line}; correct it, or {remedy}."
        )

    def _number(self, cell: Any) -> float:
        """Return the number of one cell.

        Raises:
            ValueError: If the cell does not fit. An :class:`_UnfitCellError` says why.
        """
        if self.kind != "numeric" and is_rounded(cell):
            raise _UnfitCellError("a float in which a whole number beyond 2^53 may be rounded")
        if self.has_categories and not _is_missing_value(cell):
            key = cell_key(cell)
            if key in self._numbers_of_categories:
                return self._numbers_of_categories[key]
        if self._is_missing(cell):
            if not self.missing:
                raise _UnfitCellError("a missing cell", fact="missing: true")
            return self._missing_number
        if self.kind == "nominal" and self.other:
            return self._numbers_of_categories[_OTHER]
        if self.has_categories:
            raise _UnfitCellError("a cell that is no category")
        number = self._coordinate(cell, self.format) - self._origin
        if math.isnan(number):
            raise ValueError("no number")
        limited = min(max(number, self._first), self._last)
        if self.kind != "numeric":
            return round(limited)
        return limited

    def _is_missing(self, cell: Any) -> bool:
        """Return whether a cell is missing, by general rules or the stated text."""
        if is_missing_cell(cell):
            return True
        return isinstance(self.missing, str) and cell_key(cell) == cell_key(self.missing)

    def _coordinate_of_bound(self, bound: Any) -> float:
        """Return a bound as a number, days or seconds; it has no marks, unlike a cell."""
        if self.kind in _SECONDS:
            return self._coordinate(bound)
        return self._number_of_kind(bound)

    def _coordinate(self, cell: Any, date_format: str = "") -> float:
        """Return a number, or a date as days or seconds after 1970."""
        if self.kind in _SECONDS:
            elapsed = moment_of(cell, date_format) - _EPOCH
            return math.floor(elapsed.total_seconds() / _SECONDS[self.kind])
        if not isinstance(cell, str):
            if self.decimal_mark != "." and not isinstance(cell, int | np.integer):
                raise _UnfitCellError("a float, which was read with a decimal point")
            return self._number_of_kind(cell)
        if "_" in cell:  # Python reads 1_5 as 15
            raise ValueError("an underscore")
        text = cell
        if self.thousands_mark:
            text = text.replace(self.thousands_mark, "")
        if self.decimal_mark != ".":
            if "." in text:
                raise ValueError("another decimal mark")
            text = text.replace(self.decimal_mark, ".")
        return self._number_of_kind(text)

    def _number_of_kind(self, value: Any) -> int | float:
        """Return a number, as a float in a numeric column.

        Beyond 2^53 a float is not exact. One missing cell makes floats of a column of integers,
        which must not change the other cells.
        """
        if self.kind == "numeric":
            return float(value)
        return number_of(value)

    def _expected_cell(self) -> str:
        """Return what a cell must be, for a message."""
        if self.kind == "nominal":
            return "a listed category"
        if self.kind == "binary":
            return " or ".join(map(_text, self._listed))
        if self.kind in _SECONDS:
            return f"a {self.kind} ({self.format or 'as in 2026-01-31'}, no time zone)"
        if self.decimal_mark != ".":
            return f"a number with decimal_mark {self.decimal_mark!r}"
        return "a number"

    def cells(self, numbers: NDArray[Any]) -> list[Any]:
        """Return the cells of generated numbers (n,); ``None`` for a missing one."""
        values = np.asarray(numbers, dtype=np.float64)
        cells: list[Any] = []
        for number, is_missing in zip(values.tolist(), self.are_missing(values), strict=True):
            if is_missing:
                cells.append(None)
            else:
                cells.append(self._cell(min(max(number, self._first), self._last)))
        return cells

    def are_missing(self, numbers: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which numbers (n,) stand for missing cells.

        Example:
            >>> age = Column(name="age", kind="integer", low=0, high=120, missing=True)
            >>> age.are_missing(np.array([-1.0, 0.0, 90.0])).tolist()
            [True, False, False]
        """
        if not self.missing:
            return np.zeros(len(numbers), dtype=bool)
        return np.asarray(numbers < (self._missing_number + self._first) / 2)

    def are_at_bounds(self, numbers: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which numbers (n,) are at a stated bound: their cells may be beyond it.

        Example:
            >>> age = Column(name="age", kind="integer", low=0, high=1)
            >>> age.are_at_bounds(age.numbers([30, 1, 0], "people")).tolist()
            [True, True, True]
        """
        if self.has_categories:
            return np.zeros(len(numbers), dtype=bool)
        return self._are_near(numbers, self._first) | self._are_near(numbers, self._last)

    def _are_near(self, numbers: NDArray[Any], bound: float) -> NDArray[np.bool_]:
        """Return which numbers (n,) are a bound, but for rounding."""
        tolerance = _ROUNDING * (self._last - self._first)
        return np.asarray(np.abs(numbers - bound) <= tolerance)

    def parts_at_bounds(self, numbers: NDArray[Any]) -> dict[str, float]:
        """Return the parts of the numbers (n,) that are at each bound.

        Missing cells do not count. The result is empty for categories, and where no cell has a
        value.

        Example:
            >>> age = Column(name="age", kind="integer", low=0, high=50)
            >>> age.parts_at_bounds(age.numbers([30, 60, 90, 50], "people"))
            {'low': 0.0, 'high': 0.75}
        """
        present = numbers[~self.are_missing(numbers)]
        if self.has_categories or not len(present):
            return {}
        return {
            "low": float(self._are_near(present, self._first).mean()),
            "high": float(self._are_near(present, self._last).mean()),
        }

    @property
    def has_two_values(self) -> bool:
        """Whether the facts of the column permit two values besides a missing one."""
        return self.kind != "numeric" and self._last - self._first == 1

    def are_other(self, numbers: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which numbers (n,) stand for ``other``, a cell in no category.

        Example:
            >>> city = Column(name="city", kind="nominal", categories=("rome", "oslo"))
            >>> city.are_other(city.numbers(["Rome", "oslo"], "people")).tolist()
            [True, False]
        """
        if self.kind != "nominal" or not self.other:
            return np.zeros(len(numbers), dtype=bool)
        return np.asarray(numbers == self._numbers_of_categories[_OTHER])

    def _cell(self, number: float) -> Any:
        """Return the cell of one number within the bounds."""
        if self.has_categories:
            return self._listed[round(number - self._first)]
        if self.kind in _SECONDS:
            return self._date(round(number))
        if self.kind == "integer":
            return round(number) + round(self._origin)
        digits = self.decimals
        if digits is None:
            width = float(self.high) - float(self.low)
            digits = max(0, _DIGITS - math.ceil(math.log10(width)))
        return round(number + self._origin, digits)

    def _date(self, number: int) -> Any:
        """Return the date that a whole number stands for.

        It is text, or a datetime for a column of datetimes.
        """
        seconds = (number + self._origin) * _SECONDS[self.kind]
        moment = _EPOCH + datetime.timedelta(seconds=seconds)
        if self.dtype.startswith(("datetime64", "timestamp")):
            return moment
        if self.dtype.startswith("date32"):
            return moment.date()
        if self.format:
            return moment.strftime(self.format)
        if self.kind == "date":
            return moment.date().isoformat()
        return moment.isoformat(sep=" ")

    def as_text(self, cells: Iterable[Any]) -> list[str]:
        """Return cells as a ``.csv`` file has them.

        Example:
            >>> euros = Column(name="a", kind="numeric", low=0, high=9, decimal_mark=",")
            >>> euros.as_text([1.5, 2.25])
            ['1,5', '2,25']
            >>> prices = Column(name="price", kind="numeric", low=0, high=9, decimals=2)
            >>> prices.as_text([1.5])
            ['1.50']
            >>> people = Column(name="n", kind="integer", low=0, high=9999, thousands_mark=",")
            >>> people.as_text([1234])
            ['1,234']
        """
        missing_text = ""
        if isinstance(self.missing, str):
            missing_text = self.missing
        texts = []
        for cell in cells:
            if _is_missing_value(cell):
                texts.append(missing_text)
            elif isinstance(cell, float) or self.thousands_mark:
                texts.append(self._text_of_number(cell))
            else:
                texts.append(str(cell))
        return texts

    def _text_of_number(self, number: float) -> str:
        """Return a number as text, with the stated marks and decimals."""
        digits = ""
        if self.decimals is not None:
            digits = f".{self.decimals}f"
        if not self.thousands_mark:
            return f"{number:{digits}}".replace(".", self.decimal_mark)
        marks = str.maketrans(",.", self.thousands_mark + self.decimal_mark)
        return f"{number:,{digits}}".translate(marks)


class _UnfitCellError(ValueError):
    """A cell that does not fit the facts; its text is the reason, without the value.

    Attributes:
        fact: The fact that would allow it, as ``missing: true``; empty for none.
    """

    def __init__(self, reason: str, fact: str = "") -> None:
        super().__init__(reason)
        self.fact = fact


def is_missing_cell(cell: Any) -> bool:
    """Return whether a cell is missing: no value, or a text that stands for none."""
    if isinstance(cell, str):
        return cell.strip().lower() in (*MISSING_TEXTS, *_MISSING_NUMBERS)
    return _is_missing_value(cell)


def _is_missing_value(cell: Any) -> bool:
    """Return whether a cell is None, NaN, or NaT or NA of pandas; no text is."""
    return not isinstance(cell, str) and str(cell) in MISSING_VALUES


def number_of(value: Any) -> int | float:
    """Return a number of Python; whole numbers beyond 2^53 stay exact."""
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, str) and value.strip().lstrip("+-").isdigit():
        return int(value)
    return float(value)


def _text(cell: Any) -> str:
    """Return a cell as text; whole numbers have no decimal point."""
    if isinstance(cell, float | np.floating) and math.isfinite(cell) and cell == int(cell):
        return str(int(cell))
    return str(cell).strip()


def moment_of(cell: Any, date_format: str) -> datetime.datetime:
    """Return a date as a datetime; text is in a format, or in ISO format without one."""
    moment = cell
    if isinstance(cell, np.datetime64):
        moment = cell.astype("datetime64[us]").item()
    if isinstance(cell, str) and date_format:
        moment = datetime.datetime.strptime(cell.strip(), date_format)
    elif isinstance(cell, str):
        moment = datetime.datetime.fromisoformat(cell.strip())
    if not isinstance(moment, datetime.datetime):
        moment = datetime.datetime(moment.year, moment.month, moment.day)
    if moment.tzinfo is not None:
        raise _UnfitCellError("a time with a time zone")
    return moment


def _closest_kind(kind: Any) -> str:
    """Return what to do about an unknown kind: the one that resembles it."""
    text_kind = "columns of text are nominal"
    similar = get_close_matches(str(kind).lower(), COLUMN_KINDS, n=1)
    if not similar:
        return text_kind
    return f"did you mean {similar[0]}? ({text_kind})"


def _plain_category(name: str, category: Any) -> Any:
    """Return a category as text or a number of Python."""
    if isinstance(category, np.generic):
        category = category.item()
    if not isinstance(category, str | bool | int | float) or _is_missing_value(category):
        raise InputError(
            f"Expected categories of column {name} as text or numbers, got "
            f"{type(category).__name__}; convert them, and state missing cells by missing."
        )
    return category


def _either(words: list[str]) -> str:
    """Return words as alternatives in a sentence."""
    if len(words) == 1:
        return words[0]
    return f"{', '.join(words[:-1])} or {words[-1]}"


def _listing(words: list[str]) -> str:
    """Return words as a list in a sentence."""
    if not words:
        return "no facts"
    return "facts out of " + ", ".join(words)
