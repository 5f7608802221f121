"""Public facts of the columns of a table, and the numbers in which their cells are computed with.

A :class:`Table` states for every column its kind and what a cell of it can be. Each cell becomes a
number by itself, from these facts alone, so that the conversion costs no privacy. Generated numbers
become cells again.

=============  ================================  ==================================================
kind           facts                             number
=============  ================================  ==================================================
``numeric``    low, high, decimals               the number itself, limited to its bounds
``integer``    low, high                         the same, as a whole number
``binary``     two categories; 0 and 1 if none   0 or 1, the position of the category
``nominal``    categories                        the position; a cell that is not listed is ``other``
``date``       low, high, format                 days after low
``datetime``   low, high, format                 seconds after low
``identifier`` none                              left out
=============  ================================  ==================================================

A column with ``missing`` may have empty cells. Their number lies below all others, at the lower
bound, so that the share of missing cells is released like that of any value.

Shapes: n records, d columns that are not left out.
"""

import csv
import datetime
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpswd.errors import InputError

__all__ = ["KINDS", "Column", "Table", "is_missing_cell", "read_columns"]

KINDS = ("numeric", "integer", "binary", "nominal", "date", "datetime", "identifier")

# Cells that are missing, in lower case, besides those that a column states.
_MISSING_CELLS = ("", "na", "n/a", "null", "none", "nan", "nat", "<na>")
# Category of a cell that is in no list.
_OTHER = "other"
# Distance of the number of a missing cell from the lower bound, over the width of the bounds.
_MISSING_GAP = 1e-3
# Numbers are float32, exact to 24 binary digits: those beyond this one are counted from the lower
# bound.
_FAR = 2**20
# Significant digits of a numeric column where no decimals are stated.
_DIGITS = 5
# Separators of categories and of cells in a file of columns.
_BETWEEN_CATEGORIES = "|"
_DELIMITERS = ",;\t"
_SECONDS = {"date": 86_400, "datetime": 1}
# Types of pandas without missing values, and those with.
_NULLABLE = {"bool": "boolean"}
_NULLABLE |= {f"int{bits}": f"Int{bits}" for bits in (8, 16, 32, 64)}
_NULLABLE |= {f"uint{bits}": f"UInt{bits}" for bits in (8, 16, 32, 64)}
_YES = ("true", "yes", "1")


@dataclass(frozen=True, kw_only=True)
class Column:
    """Public facts of one column; the table of the module says which kind has which.

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
        format: Format of dates as in ``datetime.strptime``; ISO by default.
        dtype: Type of the column of a DataFrame, as pandas names it; by default, that of the
            records. Empty for other tables.
        other: Whether a cell that is in no category of a nominal column counts as ``other``; if
            not, it is refused.

    Raises:
        InputError: If a fact is missing or does not fit the kind.

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
    format: str = ""
    dtype: str = ""
    other: bool = True

    def __post_init__(self) -> None:
        """Refuse facts that are missing or do not fit."""
        if self.kind not in KINDS:
            raise InputError(
                f"Expected kind of column {self.name} out of {', '.join(KINDS)}, got {self.kind!r}."
            )
        texts = [_text(category) for category in self.categories]
        if len(set(texts)) < len(texts):
            raise InputError(
                f"Expected different categories of column {self.name}, got a repeated one."
            )
        if self.kind == "nominal" and not texts:
            raise InputError(
                f"Expected categories of the nominal column {self.name}, got none; list what a "
                "cell can be."
            )
        if self.kind == "binary" and len(texts) not in (0, 2):
            raise InputError(
                f"Expected two categories of the binary column {self.name}, got {len(texts)}; "
                "a column of more is nominal."
            )
        if self.kind in ("numeric", "integer", "date", "datetime"):
            self._check_bounds()

    def _check_bounds(self) -> None:
        """Refuse bounds that are missing, or not increasing."""
        try:
            width = self._place(self.high) - self._place(self.low)
        except (TypeError, ValueError):
            width = math.nan
        if not 0 < width < math.inf:
            raise InputError(
                f"Expected low < high of the {self.kind} column {self.name}, got "
                f"low={self.low}, high={self.high}; state what its cells can be."
            )

    @property
    def is_left_out(self) -> bool:
        """Whether the column is no part of the records."""
        return self.kind == "identifier"

    @property
    def code_kind(self) -> str:
        """Kind of the numbers, out of :data:`dpswd.bins.KINDS`."""
        if self.kind in ("numeric", "nominal"):
            return self.kind
        if self.kind == "binary" and not self.missing:
            return "binary"
        return "integer"

    @property
    def code_bounds(self) -> tuple[float, float]:
        """Bounds of the numbers; the lower one is that of a missing cell, if there are any."""
        if self.missing:
            return self._missing_number, self._last
        return self._first, self._last

    @property
    def _origin(self) -> float:
        """Place on the axis of the column whose number is 0."""
        low = self._place(self.low)
        high = self._place(self.high)
        if self.kind in _SECONDS or max(abs(low), abs(high)) > _FAR:
            return low
        return 0.0

    @property
    def _first(self) -> float:
        """Least number of a cell that is not missing."""
        if self.kind in ("binary", "nominal"):
            return 1.0 if self.missing else 0.0
        return self._place(self.low) - self._origin

    @property
    def _last(self) -> float:
        """Largest number."""
        if self.kind in ("binary", "nominal"):
            return self._first + len(self._listed) - 1
        return self._place(self.high) - self._origin

    @property
    def _missing_number(self) -> float:
        """Number of a missing cell."""
        if self.kind == "numeric":
            return self._first - _MISSING_GAP * (self._last - self._first)
        return self._first - 1

    @property
    def _other_number(self) -> float:
        """Number of a cell that is in no category."""
        return self._first + [_text(category) for category in self._listed].index(_OTHER)

    @property
    def _listed(self) -> list[Any]:
        """Categories in the order of their numbers; ``other`` is the last, if it is not stated."""
        if self.kind == "binary":
            return list(self.categories) or [0, 1]
        categories = list(self.categories)
        if self.other and _OTHER not in map(_text, categories):
            categories.append(_OTHER)
        return categories

    def numbers(self, cells: Any, data: str, first_line: int = 1) -> NDArray[np.float64]:
        """Return the number of every cell.

        Args:
            cells: Cells (n,), text or values.
            data: Name of the table, for messages.
            first_line: Number of the line of the first cell, for messages.

        Raises:
            InputError: If a cell does not fit the facts. The message names the line, not the cell.
        """
        positions: dict[str, float] = {}
        if self.kind in ("binary", "nominal"):
            for position, category in enumerate(self._listed):
                positions[_text(category)] = self._first + position
        if self.kind == "binary" and not self.categories:
            positions |= {"False": positions["0"], "True": positions["1"]}
        result = np.empty(len(cells))
        for index, cell in enumerate(cells):
            try:
                result[index] = self._number(cell, positions)
            except (TypeError, ValueError, OverflowError):
                raise InputError(
                    f"Expected {self._wanted()} in column {self.name} of {data}, got another cell "
                    f"in line {first_line + index}; correct it, or the facts of the column."
                ) from None
        return result

    def _number(self, cell: Any, positions: Mapping[str, float]) -> float:
        """Return the number of one cell; ValueError if it does not fit."""
        text = _text(cell)
        if text in positions:
            return positions[text]
        if text.lower() in _MISSING_CELLS or text == self.missing:
            if not self.missing:
                raise ValueError("a missing cell")
            return self._missing_number
        if self.kind == "nominal" and self.other:
            return self._other_number
        if self.kind in ("binary", "nominal"):
            raise ValueError("no category")
        place = self._place(cell) - self._origin
        if self.kind != "numeric":
            place = round(place)
        if math.isnan(place):
            raise ValueError("no number")
        return min(max(place, self._first), self._last)

    def _place(self, cell: Any) -> float:
        """Return the place of a number, or of a date, on the axis of the column."""
        if self.kind not in _SECONDS:
            if isinstance(cell, str) and "_" in cell:  # Python reads 1_5 as 15
                raise ValueError("an underscore")
            return float(cell)
        moment = cell
        if isinstance(cell, str):
            moment = self._moment(cell.strip())
        elif not isinstance(cell, datetime.datetime):
            moment = datetime.datetime(cell.year, cell.month, cell.day)
        if moment.tzinfo is not None:
            raise ValueError("a time zone")
        elapsed: datetime.timedelta = moment - datetime.datetime(1970, 1, 1)
        return math.floor(elapsed.total_seconds() / _SECONDS[self.kind])

    def _moment(self, text: str) -> datetime.datetime:
        """Return the date in a text; bounds are always in ISO format."""
        if self.format and text not in (self.low, self.high):
            return datetime.datetime.strptime(text, self.format)
        return datetime.datetime.fromisoformat(text)

    def _wanted(self) -> str:
        """Return what a cell must be, for a message."""
        if self.kind == "nominal":
            return "a listed category"
        if self.kind == "binary":
            return " or ".join(map(_text, self._listed))
        if self.kind in _SECONDS:
            return f"a {self.kind} ({self.format or 'as in 2026-01-31'}, no time zone)"
        return "a number"

    def cells(self, numbers: NDArray[Any]) -> list[Any]:
        """Return the cells of generated numbers (n,); ``None`` for a missing one."""
        lower = self._first
        if self.missing:
            lower = (self._missing_number + self._first) / 2
        result: list[Any] = []
        for number in np.asarray(numbers, dtype=np.float64).tolist():
            if self.missing and number < lower:
                result.append(None)
            else:
                result.append(self._cell(min(max(number, self._first), self._last)))
        return result

    def _cell(self, number: float) -> Any:
        """Return the cell of one number within the bounds."""
        if self.kind in ("binary", "nominal"):
            return self._listed[round(number - self._first)]
        if self.kind in _SECONDS:
            seconds = (round(number) + self._origin) * _SECONDS[self.kind]
            moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)
            if self.dtype.startswith("datetime64"):
                return moment
            if self.format:
                return moment.strftime(self.format)
            return moment.date().isoformat() if self.kind == "date" else moment.isoformat(sep=" ")
        if self.kind == "integer":
            return round(number) + round(self._origin)
        digits = self.decimals
        if digits is None:
            width = float(self.high) - float(self.low)
            digits = max(0, _DIGITS - math.ceil(math.log10(width)))
        return round(number + self._origin, digits)


@dataclass(frozen=True)
class Table:
    """Public facts of all columns of a table, which are matched by their names.

    Args:
        columns: Facts of every column, those that are left out included.

    Raises:
        InputError: If two columns have one name, or none is part of the records.

    Example:
        >>> table = Table.of({"id": {"kind": "identifier"}, "age": {"low": 0, "high": 120}})
        >>> table.names, table.left_out
        (('age',), ['id'])
    """

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        """Refuse repeated names, and a table without columns."""
        names = [column.name for column in self.columns]
        if len(set(names)) < len(names):
            raise InputError("Expected facts of different columns, got one of them twice.")
        if not self.part:
            raise InputError("Expected facts of at least one column that is part of the records.")

    @classmethod
    def of(cls, columns: Any) -> "Table":
        """Return the table of a dictionary by names, of a list of columns, or of a file.

        Example:
            >>> table = Table.of({"age": {"kind": "integer", "low": 0, "high": 120}})
            >>> table.names, table.bounds, table.kinds
            (('age',), [(0.0, 120.0)], ['integer'])
        """
        if isinstance(columns, Table):
            return columns
        if isinstance(columns, str | Path):
            return read_columns(columns)
        if isinstance(columns, Mapping):
            return cls(tuple(_column(str(name), entry) for name, entry in columns.items()))
        items = list(columns)
        if not all(isinstance(item, Column) for item in items):
            raise InputError(
                "Expected columns as a dictionary by names, a file, or a list of Column, got "
                f"{type(columns).__name__}."
            )
        return cls(tuple(items))

    @property
    def part(self) -> tuple[Column, ...]:
        """The d columns that are part of the records."""
        return tuple(column for column in self.columns if not column.is_left_out)

    @property
    def left_out(self) -> list[str]:
        """Names of the columns that are left out."""
        return [column.name for column in self.columns if column.is_left_out]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the d columns."""
        return tuple(column.name for column in self.part)

    @property
    def bounds(self) -> list[tuple[float, float]]:
        """Bounds of the numbers of the d columns."""
        return [column.code_bounds for column in self.part]

    @property
    def kinds(self) -> list[str]:
        """Kinds of the numbers of the d columns."""
        return [column.code_kind for column in self.part]

    def numbers(
        self, cells: Mapping[Any, Any], data: str, first_line: int = 1
    ) -> NDArray[np.float64]:
        """Return the numbers (n, d) of the cells of a table.

        Args:
            cells: Cells (n,) of each column by its name.
            data: Name of the table, for messages.
            first_line: Number of the line of the first record, for messages.

        Raises:
            InputError: If the table has other columns, or a cell does not fit.
        """
        known = {column.name for column in self.columns}
        unknown = [name for name in cells if str(name) not in known]
        absent = [name for name in self.names if name not in cells]
        differences = []
        if absent:
            differences.append(f"no column {', '.join(absent)}")
        if unknown:
            differences.append(f"{', '.join(map(str, unknown))}, which the facts do not have")
        if differences:
            raise InputError(
                f"Expected the columns of the facts in {data}, got {' and '.join(differences)}; "
                "correct the names, leave a column out by kind identifier, or name the column of "
                "classes by target= (--target)."
            )
        parts = [column.numbers(cells[column.name], data, first_line) for column in self.part]
        return np.stack(parts, axis=1)

    def with_dtypes(self, dtypes: Mapping[str, str]) -> "Table":
        """Return the table with the types of the columns of a DataFrame."""
        columns = []
        for column in self.columns:
            dtype = column.dtype or dtypes.get(column.name, "")
            if column.missing:
                dtype = _NULLABLE.get(dtype, dtype)
            has_other = column.other and dtype != "category"  # whose type lists its categories
            columns.append(replace(column, dtype=dtype, other=has_other))
        return Table(tuple(columns))

    def check_types(self) -> None:
        """Raise OverflowError if a type of integers does not hold the bounds of its column."""
        for column in self.part:
            if column.kind == "integer" and column.dtype.lower().startswith(("int", "uint")):
                limits = np.iinfo(column.dtype.lower())
                if float(column.low) < limits.min or float(column.high) > limits.max:
                    raise OverflowError

    def cells(self, numbers: NDArray[Any]) -> dict[str, list[Any]]:
        """Return the cells of generated numbers (n, d), by the names of the columns."""
        return {
            column.name: column.cells(numbers[:, position])
            for position, column in enumerate(self.part)
        }

    def as_text(self, column: str, cells: Any) -> list[str]:
        """Return cells of a column as a ``.csv`` file has them."""
        missing = {part.name: part.missing for part in self.part}[column]
        mark = missing if isinstance(missing, str) else ""
        return [mark if is_missing_cell(cell) else str(cell) for cell in cells]


def read_columns(path: str | Path) -> Table:
    r"""Read the public facts of the columns of a table.

    A ``.csv`` file has the line ``column,low,high,kind,categories,missing,decimals,format``, of
    which all but the first may be absent, and a line for each column; categories are separated by
    ``|``. A YAML file has these facts by the name of each column.

    Raises:
        InputError: If the file cannot be read, is a draft that is not confirmed, or a fact does
            not fit.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "columns.csv"
        ...     _ = path.write_text("column,low,high,kind\nage,0,120,integer\n")
        ...     read_columns(path).bounds
        [(0.0, 120.0)]
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError):
        raise InputError(f"Expected a file of columns at {path}, got none that is text.") from None
    if path.suffix.lower() in (".yaml", ".yml"):
        return Table.of(_facts_of_yaml(text, path))
    return Table.of(_facts_of_csv(text, path))


def _facts_of_yaml(text: str, path: Path) -> dict[str, Any]:
    """Return the facts of each column in a YAML file."""
    import yaml  # type: ignore[import-untyped]  # needed for YAML alone

    try:
        content = yaml.load(text, Loader=yaml.BaseLoader)  # every value as text: no is no bool
    except yaml.YAMLError:
        content = None
    if isinstance(content, dict) and isinstance(content.get("columns"), dict):
        content = content["columns"]
    if not isinstance(content, dict) or not content:
        raise InputError(f"Expected names of columns with their facts in {path}, got other YAML.")
    return content


def _facts_of_csv(text: str, path: Path) -> dict[str, Any]:
    """Return the facts of each column in a ``.csv`` file."""
    lines = text.splitlines()
    if not lines:
        raise InputError(f"Expected a line for each column in {path}, got an empty file.")
    delimiter = max(_DELIMITERS, key=lines[0].count)
    reader = csv.DictReader(lines, delimiter=delimiter, skipinitialspace=True)
    columns: dict[str, Any] = {}
    for line in reader:
        cells = {str(key).strip(): value.strip() for key, value in line.items() if value}
        name = cells.pop("column", None)
        if name is None:
            raise InputError(
                f"Expected a file at {path} that starts with column,low,high,kind and has a line "
                "per column, got none, or one of a different form."
            )
        if name in columns:
            raise InputError(f"Expected one line for column {name} in {path}, got two.")
        columns[name] = {key: value for key, value in cells.items() if value}
    return columns


def _column(name: str, entry: Any) -> Column:
    """Return a column with facts from a dictionary or a file."""
    if isinstance(entry, Column):
        return entry
    known = [field.name for field in fields(Column) if field.name != "name"]
    if not isinstance(entry, Mapping) or not set(entry) <= {*known, "draft"}:
        raise InputError(
            f"Expected facts out of {', '.join(known)} of column {name}, got {entry!r}."
        )
    options = dict(entry)
    if _is_yes(options.pop("draft", False)):
        raise InputError(
            f"Expected facts of column {name} that you have confirmed, got a draft; check them "
            "without the records, and take the word draft out."
        )
    options.setdefault("kind", "numeric")
    categories = options.get("categories", ())
    if isinstance(categories, str):
        categories = categories.split(_BETWEEN_CATEGORIES)
    options["categories"] = tuple(categories)
    if "other" in options:
        options["other"] = _is_yes(options["other"])
    missing = options.get("missing", False)
    if isinstance(missing, str) and missing.lower() in (*_YES, "no", "false", "0"):
        options["missing"] = _is_yes(missing)
    if options.get("decimals") is not None:
        try:
            options["decimals"] = int(options["decimals"])
        except ValueError:
            raise InputError(f"Expected decimals of column {name} as an integer.") from None
    return Column(name=name, **options)


def _is_yes(value: Any) -> bool:
    """Return whether a fact is true, as Python or a file states it."""
    return str(value).lower() in _YES


def _text(cell: Any) -> str:
    """Return a cell as text; whole numbers have no decimal point."""
    if isinstance(cell, float | np.floating) and math.isfinite(cell) and cell == int(cell):
        return str(int(cell))
    return str(cell).strip()


def is_missing_cell(cell: Any) -> bool:
    """Return whether a cell is missing."""
    return _text(cell).lower() in _MISSING_CELLS
