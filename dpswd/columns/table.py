"""Public facts of all columns of a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpswd.columns.column import Column
from dpswd.columns.files import FROM_TEXT, read_facts
from dpswd.errors import InputError

# Types of pandas without missing values, and those with.
_NULLABLE = {"bool": "boolean"}
_NULLABLE |= {f"int{bits}": f"Int{bits}" for bits in (8, 16, 32, 64)}
_NULLABLE |= {f"uint{bits}": f"UInt{bits}" for bits in (8, 16, 32, 64)}


@dataclass(frozen=True, repr=False)
class Table:
    """Public facts of all columns of a table, which are matched by their names.

    Args:
        columns: Facts of every column, those that are left out included.

    Raises:
        InputError: If two columns have one name, or none is part of the records.

    Example:
        >>> table = Table.of({"id": {"kind": "identifier"}, "age": {"low": 0, "high": 120}})
        >>> table, table.names, table.left_out
        (Table(1 column), ('age',), ['id'])
    """

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        """Refuse repeated names, and a table without columns."""
        names = [column.name for column in self.columns]
        if len(set(names)) < len(names):
            raise InputError(
                "Expected facts of different columns, got one of them twice; state each once."
            )
        if not self.included:
            raise InputError(
                "Expected facts of at least one column that is part of the records, got none; add "
                "a column, or state another kind than identifier."
            )

    def __repr__(self) -> str:
        noun = "column"
        if len(self.included) != 1:
            noun = "columns"
        return f"Table({len(self.included)} {noun})"

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
            columns = read_facts(Path(columns))
        if isinstance(columns, Mapping):
            return cls(tuple(_column(str(name), entry) for name, entry in columns.items()))
        items = []
        if isinstance(columns, list | tuple):
            items = list(columns)
        if not items or not all(isinstance(item, Column) for item in items):
            raise InputError(
                "Expected columns as a dictionary by names, a file, or a list of Column, got "
                f"{type(columns).__name__}."
            )
        return cls(tuple(items))

    @cached_property
    def included(self) -> tuple[Column, ...]:
        """The d columns that are part of the records."""
        return tuple(column for column in self.columns if column.is_included)

    @property
    def left_out(self) -> list[str]:
        """Names of the columns that are left out."""
        return [column.name for column in self.columns if not column.is_included]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the d columns."""
        return tuple(column.name for column in self.included)

    @property
    def bounds(self) -> list[tuple[float, float]]:
        """Bounds of the numbers of the d columns."""
        return [column.number_bounds for column in self.included]

    @property
    def kinds(self) -> list[str]:
        """Kinds of the numbers of the d columns."""
        return [column.number_kind for column in self.included]

    def numbers(
        self,
        cells: Mapping[Any, Any],
        data: str,
        first_line: int = 1,
        *,
        is_frame: bool = False,
    ) -> NDArray[np.float64]:
        """Return the numbers (n, d) of the cells of a table.

        Args:
            cells: Cells (n,) of each column by its name.
            data: Name of the table, for messages.
            first_line: Number of the line of the first record, for messages.
            is_frame: Whether the table is an argument of Python, and no file.

        Raises:
            InputError: If the table has other columns, or a cell does not fit.
        """
        known = {column.name for column in self.columns}
        unknown = [str(name) for name in cells if str(name) not in known]
        absent = [name for name in self.names if name not in cells]
        if absent or unknown:
            raise _other_columns(data, absent, unknown, is_frame=is_frame)
        numbers = [column.numbers(cells[column.name], data, first_line) for column in self.included]
        return np.stack(numbers, axis=1)

    def without_marks(self) -> "Table":
        """Return the table for cells whose numbers are numbers, and no text with marks."""
        columns = [replace(column, decimal_mark=".", thousands_mark="") for column in self.columns]
        return Table(tuple(columns))

    def with_dtypes(self, dtypes: Mapping[str, str]) -> "Table":
        """Return the table with the types of the columns of a DataFrame."""
        columns = []
        for column in self.columns:
            if not column.is_included:
                columns.append(column)
                continue
            dtype = column.dtype or dtypes.get(column.name, "")
            if column.missing:
                dtype = _NULLABLE.get(dtype, dtype)
            other = column.other
            if column.kind == "nominal" and dtype == "category":
                other = False  # the type lists its categories
            columns.append(replace(column, dtype=dtype, other=other))
        return Table(tuple(columns))

    def check_types(self) -> None:
        """Raise OverflowError if bounds do not fit the type of integers of a column."""
        for column in self.included:
            dtype = column.dtype.lower().removesuffix("[pyarrow]")
            if column.kind == "integer" and dtype.startswith(("int", "uint")):
                limits = np.iinfo(dtype)
                if column.low < limits.min or column.high > limits.max:
                    raise OverflowError

    def cells(self, numbers: NDArray[Any]) -> dict[str, list[Any]]:
        """Return the cells of generated numbers (n, d), by the names of the columns."""
        return {
            column.name: column.cells(numbers[:, position])
            for position, column in enumerate(self.included)
        }

    def as_text(self, name: str, cells: Any) -> list[str]:
        """Return the cells of a column as a ``.csv`` file has them."""
        position = self.names.index(name)
        return self.included[position].as_text(cells)


def _other_columns(
    data: str, absent: Sequence[str], unknown: Sequence[str], *, is_frame: bool
) -> InputError:
    """Return the error of a table that has other columns than the facts.

    Args:
        data: Name of the table.
        absent: Columns of the facts that the table lacks.
        unknown: Columns of the table that the facts lack.
        is_frame: Whether the table is an argument of Python, whose classes are no column of it.
    """
    differences = []
    remedies = []
    if absent and unknown:
        remedies.append("correct the names")
    if absent:
        differences.append(f"lacks {', '.join(absent)}")
        remedies.append("delete the facts of a column that the table lacks")
    if unknown:
        differences.append(f"has {', '.join(unknown)}, which the facts do not have")
        name = unknown[0]
        remedies.append(
            f"add to columns= (--columns) its facts, as in {name}: {{kind: integer, low: 0, high: "
            "120}"
        )
        remedies.append(f"leave it out by {name}: {{kind: identifier}}")
        remedies.append(
            "pass it as y" if is_frame else "name it by target= (--target) if it has the classes"
        )
    remedy = remedies[0]
    if len(remedies) > 1:
        numbered = [f"({number}) {text}" for number, text in enumerate(remedies, 1)]
        remedy = f"do one of these: {', '.join(numbered)}"
    return InputError(
        f"Expected the columns of the facts in {data}, got a table that "
        f"{', and '.join(differences)}; {remedy}."
    )


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
    return Table.of(path)


def _closest_fact(fact: Any, known: Sequence[str]) -> str:
    """Return what to do about an unknown fact: the known one that resembles it."""
    similar = get_close_matches(str(fact).lower(), known, n=1)
    if similar:
        return f"did you mean {similar[0]}?"
    return "leave it out"


def _column(name: str, entry: Any) -> Column:
    """Return a column with facts from a dictionary or a file."""
    if isinstance(entry, Column):
        return entry
    known = [field.name for field in fields(Column) if field.name != "name"]
    if not isinstance(entry, Mapping):
        raise InputError(
            f"Expected facts out of {', '.join(known)} of column {name}, got {entry!r}; correct "
            "them, as in low: 0 and high: 120."
        )
    for fact in entry:
        if fact not in (*known, "draft"):
            raise InputError(
                f"Expected facts out of {', '.join(known)} of column {name}, got {fact!r}; "
                f"{_closest_fact(fact, known)}."
            )
    options = dict(entry)
    if FROM_TEXT["draft"](name, options.pop("draft", False)):
        raise InputError(
            f"Expected facts of column {name} that you have confirmed, got a draft; correct them "
            "by what you know without the records, and delete the line draft: true of each column."
        )
    options.setdefault("kind", "numeric")
    for fact, convert in FROM_TEXT.items():
        if fact in options:
            options[fact] = convert(name, options[fact])
    return Column(name=name, **options)
