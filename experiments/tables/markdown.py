"""Tables in Markdown, and the line on the origin of a result below them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from experiments.results import Result, Row
from experiments.tables.values import MISSING, number


class Table:
    """A table with a line for each row of a result, made column by column.

    >>> table = Table([{"method": "DP-MERF", "mean": 92.12}])
    >>> table.text("method", "method")
    >>> table.number("accuracy", "mean", form=".1f")
    >>> print(table.markdown())
    | method | accuracy |
    |---|---|
    | DP-MERF | 92.1 |
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.columns: dict[str, list[str]] = {}  # the cells below each heading

    def column(self, heading: str, cell: Callable[[Row], str]) -> None:
        """Add a column whose cells are computed from the rows."""
        self.columns[heading] = [cell(row) for row in self.rows]

    def text(self, heading: str, key: str) -> None:
        """Add a column with the text under a key of the rows."""
        self.columns[heading] = [row[key] for row in self.rows]

    def number(self, heading: str, *keys: str, form: str) -> None:
        """Add a column with numbers in a form as ``".2f"``; a missing one is a dash.

        Several keys lead to a number in a dictionary of the row, as ``"accuracy", "cnn"``.
        """
        self.columns[heading] = [number(_look_up(row, keys), form) for row in self.rows]

    def formatted(self, heading: str, key: str, form: Callable[[Any], str]) -> None:
        """Add a column with values that a function formats, as ``milliseconds``."""
        self.columns[heading] = [form(row[key]) for row in self.rows]

    def markdown(self) -> str:
        """Return the table in Markdown."""
        return to_markdown(list(self.columns), zip(*self.columns.values(), strict=True))


class Pivot:
    """A table with a line for each group of rows, and columns from the rows.

    ``headings`` are those of the cells that identify a line, ``last`` those of the cells after the
    columns. Columns stand in the order of their first appearance; a cell that no row fills is a
    dash.

    >>> pivot = Pivot("data set")
    >>> pivot.add(["digits"], column="ε = 10", cell="95.1")
    >>> pivot.add(["digits"], column="ε = 1", cell="88.0")
    >>> pivot.add(["USPS"], column="ε = 1", cell="90.3")
    >>> print(pivot.markdown())
    | data set | ε = 10 | ε = 1 |
    |---|---|---|
    | digits | 95.1 | 88.0 |
    | USPS | - | 90.3 |
    """

    def __init__(self, *headings: str, last: Sequence[str] = ()) -> None:
        self.headings = headings
        self.last_headings = last
        self.columns: list[str] = []
        self.cells: dict[tuple[str, ...], dict[str, str]] = {}
        self.last_cells: dict[tuple[str, ...], Sequence[str]] = {}

    def add(self, line: Sequence[str], column: str, cell: str, last: Sequence[str] = ()) -> None:
        """Fill a cell of a line; the first row of a line also gives its last cells.

        Raises:
            ValueError: if the cell is filled already, which would hide one of two rows.
        """
        key = tuple(line)
        cells = self.cells.setdefault(key, {})
        if column in cells:
            raise ValueError(
                f"Expected headings that tell rows apart, got two rows for {key} and {column!r}."
            )
        cells[column] = cell
        self.last_cells.setdefault(key, last)
        if column not in self.columns:
            self.columns.append(column)

    def markdown(self) -> str:
        """Return the table in Markdown."""
        lines = []
        for key, cells in self.cells.items():
            middle = [cells.get(column, MISSING) for column in self.columns]
            lines.append([*key, *middle, *self.last_cells[key]])
        return to_markdown([*self.headings, *self.columns, *self.last_headings], lines)


def with_origin(
    table: Table | Pivot,
    result: Result,
    rows: Sequence[Row],
    *,
    note: str = "",
    command: str = "",
) -> str:
    """Return a table and a line on its origin.

    The line has the command, a note, the version and the reasons for old rows. ``command`` replaces
    the command in the file where its last run made only some of the rows.
    """
    if command:
        command = f"python -m experiments run {command}"
    else:
        command = result["command"]
    parts = [f"`{command}`"]
    if note:
        parts.append(note)
    parts.append(f"dpswd {result['version']}.")
    reasons: dict[str, None] = {}  # an ordered set
    for entry in (result, *rows):
        if "reason" in entry:
            reasons[entry["reason"]] = None
    origin = " ".join([", ".join(parts), *reasons])
    return f"{table.markdown()}\n\n{origin}"


def to_markdown(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown from its headings and the cells of its lines."""
    rule = "|" + "---|" * len(headings)
    text = [_line(headings), rule]
    text += [_line(cells) for cells in lines]
    return "\n".join(text)


def _look_up(row: Row, keys: Sequence[str]) -> Any:
    """Return the value under nested keys, ``None`` if a key is missing."""
    value: Any = row
    for key in keys:
        value = value.get(key)
    return value


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
