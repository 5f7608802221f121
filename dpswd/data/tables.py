"""Records in tables of numbers, in ``.csv`` files.

Cells are separated by commas, semicolons, tabs or vertical bars.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from dpswd._arrays import MIXED, convert
from dpswd._cells import table_records
from dpswd._frames import ARROW_FORMATS
from dpswd._keys import EMPTY_CELLS, Key, label_key
from dpswd._labels import Labels, as_classes, as_labels
from dpswd._layout import SEPARATORS, Array, Layout
from dpswd._public_facts import DO_NOT_REMOVE
from dpswd.columns import Table
from dpswd.columns.files import separator_of
from dpswd.data.arrow_files import arrow_column_names
from dpswd.data.names import ADD_NAMES, check_column, check_names, closest_columns
from dpswd.data.reading import (
    REMEDIES,
    ReadOptions,
    ReadRecords,
    damaged_as_input_error,
    find_path,
    report_name,
)
from dpswd.errors import InputError

# Ends of sentences.
TARGET = "name the column of classes by target= (--target)"
UNIT = "name the column of persons by unit= (--unit)"
_NO_TABLE = "text that is not UTF-8, or no table of cells"
_WRITE_TABLE = "save the table as .csv in UTF-8"

_LINES_AT_ONCE = 20_000  # whose text is in memory
_STRAY = 0.01  # share of cells with text up to which a column is one of numbers
_FEWEST = 10  # cells from which on the share says something
_MAX_MESSAGE = 200  # characters of names of columns in a message


def column_names(data: str | Path, root: str | Path | None = None) -> list[str]:
    """Return the names of the columns of a table; none of another file."""
    path = find_path(data, root) or Path(data)
    if not path.is_file():
        return []
    if path.suffix.lower() in ARROW_FORMATS:
        return arrow_column_names(path)
    if path.suffix.lower() != ".csv":
        return []
    first_line = next(_lines(path), [])
    return _header(first_line, path)


def target_of(data: str, root: str | Path | None, *candidates: str | None) -> str | None:
    """Return the first of some names that is a column of a table, or ``None``."""
    names = column_names(data, root)
    for candidate in candidates:
        if candidate in names:
            return candidate
    return None


def check_target(target: str | None, sources: Sequence[str], root: str | Path | None) -> None:
    """Refuse a column of classes that none of some records has.

    Args:
        target: The column that the user named; ``None`` for none.
        sources: Folders, files and benchmarks. Where a table is missing, nothing is checked: its
            reader says so.
        root: Directory of the data sets.

    Raises:
        InputError: If no table has the column, or there is no table.
    """
    if target is None:
        return
    tables = [source for source in sources if _is_table(source)]
    if not tables:
        raise InputError(
            f"Expected a table with target (--target), got {', '.join(sources)}, whose classes are "
            f"not in a column {target!r}; leave it out."
        )
    names: list[str] = []
    for table in tables:
        if find_path(table, root) is None:
            return
        names += column_names(table, root)
    if target in names:
        return
    raise InputError(
        f"Expected target (--target) to be a column of {' or '.join(dict.fromkeys(tables))}, got "
        f"{target!r}; {closest_columns(target, names)}."
    )


def _is_table(source: str) -> bool:
    """Return whether records lie in a table, by the ending of their file."""
    return Path(source).suffix.lower() in (".csv", *ARROW_FORMATS)


def text_columns(path: Path) -> dict[str, tuple[str, ...]]:
    """Return the cells of a ``.csv`` file with names, by column.

    The table must be one that the user may look at.

    Raises:
        InputError: If the file has no names of columns.
    """
    if not path.exists():
        raise InputError(f"Expected a table at {path}, got no such file; check the path.")
    if path.is_dir():
        raise InputError(
            f"Expected a table in a .csv, .parquet or .feather file, got the folder {path}; pass "
            "the file of a table. Images of a folder need no facts of columns."
        )
    if path.suffix.lower() != ".csv":
        remedy = REMEDIES.get(path.suffix.lower(), "write it as .csv")
        raise InputError(
            f"Expected a table in a .csv, .parquet or .feather file, got {path.name}; {remedy}."
        )
    lines = _lines(path)
    header = _header(next(lines, []), path)
    if not header:
        raise InputError(f"Expected names of columns on the first line of {path}; {ADD_NAMES}.")
    columns = _columns(list(lines), header, path, 1)
    return {str(name): cells for name, cells in columns.items()}


def read_table(path: Path, options: ReadOptions) -> ReadRecords:
    """Read a ``.csv`` file of numbers; ``options.target`` is the column of classes.

    Raises:
        InputError: If the file is no table of numbers, or a class is not among the stated ones.
    """
    if options.columns is not None:
        return _read_cells(path, options, options.columns)
    lines = list(_lines(path))
    header: list[str] = []
    if lines:
        header = _header(lines[0], path)
    n_names = 0
    if header:
        n_names = 1
        del lines[0]
    columns = _columns(lines, header, path, n_names)
    labels = None
    if options.target is not None:
        check_column("target", options.target, header, path)
        cells = columns.pop(options.target)
        if options.labelled:
            labels = _labels(cells, options, path, n_names)
    unit_names = None
    if options.unit is not None:
        check_column("unit", options.unit, header, path)
        unit_names = columns.pop(options.unit)
    _check_numbers(columns, options, path, n_names)
    rows = np.array([[_number(cell) for cell in column] for column in columns.values()]).T
    if options.unreadable == "refuse":
        _check_finite(rows, list(columns), path, n_names)
    layout = Layout(
        dtypes=("float32",) * len(columns),
        columns=tuple(columns),
        target=options.target,
        separator=_separator(path),
    )
    names = None
    if header:
        names = tuple(map(str, columns))
    return ReadRecords(
        report_name(path),
        convert(rows, Layout(), options.unreadable),
        labels,
        layout,
        kinds=[_kind(column) for column in rows.T],
        columns=names,
        unit_names=unit_names,
    )


def _read_cells(path: Path, options: ReadOptions, table: Table) -> ReadRecords:
    """Read a ``.csv`` file whose columns have stated facts, some lines at a time.

    The text of a cell takes ten times the memory of its number.
    """
    lines = _lines(path)
    header = _header(next(lines, []), path)
    if not header:
        raise InputError(
            f"Expected names of columns on the first line of {path}, by which the stated columns "
            f"are matched, got none; {ADD_NAMES}."
        )
    check_column("target", options.target, header, path)
    check_column("unit", options.unit, header, path)
    numbers = []
    label_cells: list[str] = []
    unit_names: list[str] = []
    n_lines = 0
    block = list(islice(lines, _LINES_AT_ONCE))
    while block:
        columns = _columns(block, header, path, n_lines + 1)
        if options.target is not None:
            label_cells += columns.pop(options.target)
        if options.unit is not None:
            unit_names += columns.pop(options.unit)
        first_line = n_lines + 2  # below the names
        numbers.append(table.numbers(columns, str(path), first_line))
        n_lines += len(block)
        block = list(islice(lines, _LINES_AT_ONCE))
    if not numbers:
        raise InputError(f"Expected a table with records in {path}, got none.")
    labels = None
    if options.target is not None and options.labelled:
        labels = _labels(label_cells, options, path, 1)
    values, layout = table_records(np.concatenate(numbers), table)
    return ReadRecords(
        report_name(path),
        values,
        labels,
        replace(layout, target=options.target, separator=_separator(path)),
        columns=table.names,
        unit_names=tuple(unit_names) if options.unit is not None else None,
    )


def _lines(path: Path) -> Iterator[list[str]]:
    """Yield the cells of each line that is not empty.

    A quotation mark that is not closed would make one cell of all lines up to the next mark, so
    that one record would hide others. A line break in a cell is therefore refused.
    """
    with (
        damaged_as_input_error(path, _NO_TABLE, _WRITE_TABLE),
        path.open(newline="", encoding="utf-8-sig") as file,
    ):
        width = 0
        has_empty_line = False
        reader = _reader(file)
        header: list[str] = []
        n_lines = 0  # above the record
        for line in reader:
            is_broken = any("\n" in cell or "\r" in cell for cell in line)
            if width > 0 and is_broken:
                raise InputError(
                    f"Expected every record of {path} on a line of its own, got a line break in "
                    f"{_broken_cell(line, header)} on line {n_lines + 1}; write blanks in place "
                    "of line breaks in text, or close the quotation mark of the cell."
                )
            n_lines = reader.line_num
            header = header or line
            width = max(width, len(line))
            has_empty_line = has_empty_line or not line
            if line:
                yield line
        if has_empty_line and width == 1:
            raise InputError(
                f"Expected a number in every line of {path}, got an empty line, which may be a "
                "missing entry of its only column; write NA there, or take the line out."
            )


def _broken_cell(line: list[str], header: list[str]) -> str:
    """Return where the first line break of a record is, for a message."""
    position = next(place for place, cell in enumerate(line) if "\n" in cell or "\r" in cell)
    if position >= len(header):
        return "a cell"
    return f"column {header[position].strip()}"


def _reader(file: TextIO) -> Any:
    """Return the reader of the cells of a file, from its start."""
    separator = _separator_in(file)
    file.seek(0)
    return csv.reader(file, delimiter=separator)


def _separator(path: Path) -> str:
    """Return the separator of the cells of a file."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        return _separator_in(file)


def _separator_in(file: TextIO) -> str:
    """Return the separator that the first line with text has most often."""
    first_line = next((line for line in file if line.strip()), "")
    return separator_of(first_line, SEPARATORS)


def _place(path: Path, position: int) -> str:
    """Return where in a file the cells of a line stand, for a message.

    Args:
        path: The file.
        position: How many lines with cells stand above it; empty lines do not count.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = _reader(file)
        n_above = 0
        for line in reader:
            if line and n_above == position:
                return f"on line {reader.line_num}"
            if line:
                n_above += 1
    return "in the file"


def _header(line: list[str], path: Path) -> list[str]:
    """Return the names on the first line of a table.

    The list is empty if all cells of the line are numbers.
    """
    names = [cell.strip() for cell in line]
    if all(_is_number(name) for name in names):
        return []
    numbers = [name for name in names if name and _is_number(name)]
    from_zero = [str(position) for position in range(len(numbers))]
    from_one = [str(position + 1) for position in range(len(numbers))]
    if numbers not in ([], from_zero, from_one):
        raise InputError(
            f"Expected names of columns on the first line of {path}, got numbers beside text; "
            f"{ADD_NAMES}."
        )
    return names


def _columns(
    lines: list[list[str]], header: list[str], path: Path, n_above: int
) -> dict[str | int, tuple[str, ...]]:
    """Return the cells of each column by its name, or by its position without names.

    ``n_above`` lines with cells stand above the lines in the file.
    """
    if not lines:
        raise InputError(f"Expected a table with records in {path}, got none.")
    width = len(header or lines[0])
    for position, line in enumerate(lines, n_above):
        if len(line) != width:
            raise InputError(
                f"Expected {width} cells on every line of {path}, got {len(line)} "
                f"{_place(path, position)}; correct the line."
            )
    names: list[str | int] = [*header]
    if not header:
        names = [*range(width)]
    check_names(header, path)
    columns = dict(zip(names, zip(*lines, strict=True), strict=True))
    for name in header:
        if not _is_number(name) and name in map(str.strip, columns[name]):
            raise InputError(
                f"Expected names of columns on the first line of {path}, got a value that its "
                f"column repeats, as in a record; {ADD_NAMES}."
            )
    return columns


def _labels(cells: Sequence[str], options: ReadOptions, path: Path, n_above: int) -> Labels:
    """Read the column of classes, each cell by itself.

    ``n_above`` lines with cells stand above the first cell in the file.
    """
    keys = [label_key(cell) for cell in cells]
    stated_keys: set[Key] = set()
    if options.classes is not None:
        names_of_classes = as_classes(options.classes, min_classes=options.min_classes)
        stated_keys.update(map(label_key, names_of_classes))
    for position, (cell, key) in enumerate(zip(cells, keys, strict=True), n_above):
        is_missing = cell.strip().lower() in EMPTY_CELLS and key not in stated_keys
        if is_missing and not options.missing_is_class:
            raise InputError(
                f"Expected a class in column {options.target} on every line of {path}, got an "
                f"empty cell {_place(path, position)}; give it a class of its own."
            )
        if stated_keys and key not in stated_keys:
            names = ", ".join(map(str, options.classes or ()))[:_MAX_MESSAGE]
            raise InputError(
                f"Expected the classes {names} in column {options.target} of {path}, got one "
                f"{_place(path, position)} that is not listed; add it to classes= (--classes), or "
                "correct the cell."
            )
    return as_labels(
        keys,
        options.classes,
        min_classes=options.min_classes,
        missing_is_class=options.missing_is_class,
    )


def _check_numbers(
    columns: dict[str | int, tuple[str, ...]], options: ReadOptions, path: Path, n_above: int
) -> None:
    """Refuse a table without columns of numbers, or with columns of text.

    ``n_above`` lines with cells stand above the columns in the file.
    """
    text_columns = [str(name) for name, cells in columns.items() if not all(map(_is_number, cells))]
    if columns and not text_columns:
        return
    if len(text_columns) == 1:
        _refuse_stray_text(columns, text_columns[0], path, n_above)
    remedy = MIXED
    if options.target is None:
        remedy = f"{remedy}; {TARGET}"
    if options.unit is None:
        remedy = f"{remedy}; {UNIT}"
    names = ", ".join(text_columns)[:_MAX_MESSAGE]
    raise InputError(
        f"Expected columns of numbers in {path}, got text or mixed types ({names}); {remedy}."
    )


def _refuse_stray_text(
    columns: dict[str | int, tuple[str, ...]], column: str, path: Path, n_above: int
) -> None:
    """Refuse text in few cells of a column of numbers: a mistake in these cells."""
    cells_by_name = {str(name): cells for name, cells in columns.items()}
    cells = cells_by_name[column]
    positions = [position for position, cell in enumerate(cells) if not _is_number(cell)]
    if len(cells) >= _FEWEST and len(positions) <= max(1, _STRAY * len(cells)):
        raise InputError(
            f"Expected numbers in column {column} of {path}, got text in {len(positions)} of "
            f"{len(cells)} cells, first {_place(path, n_above + positions[0])}; correct the cells, "
            "or state what the column holds by columns= (--columns FILE)."
        )


def _check_finite(rows: Array, names: list[str | int], path: Path, n_above: int) -> None:
    """Refuse a table (N, d) with missing cells, NaN or inf."""
    positions, columns = np.nonzero(~np.isfinite(rows))
    if len(positions):
        raise InputError(
            f"Expected a number in every cell of {path}, got a missing one, NaN or inf in column "
            f"{names[columns[0]]} {_place(path, n_above + int(positions[0]))}; state missing cells "
            'by columns= (--columns FILE), or pass unreadable="zero" (--unreadable zero), which '
            f"maps the whole record to zeros. {DO_NOT_REMOVE}"
        )


def _number(cell: str) -> float:
    """Return the number in a cell, NaN for a missing one; ValueError for text."""
    if cell.strip().lower() in EMPTY_CELLS:
        return float("nan")
    if "_" in cell:  # Python reads 1_5 as 15
        raise ValueError
    return float(cell)


def _is_number(cell: str) -> bool:
    """Return whether a cell holds a number, or is missing."""
    try:
        _number(cell)
    except ValueError:
        return False
    return True


def _kind(column: Array) -> str:
    """Return the kind of a column (N,) by its finite entries."""
    numbers = column[np.isfinite(column)]
    if not bool((numbers == np.rint(numbers)).all()):
        return "numeric"
    if bool(np.isin(numbers, (0, 1)).all()):
        return "binary"
    return "integer"
