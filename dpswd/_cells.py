"""Cells of DataFrames and of tables in files as records.

Facts of the columns (:mod:`dpswd.columns`) say which number stands for each cell.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpswd._arrays import Unreadable, check_names
from dpswd._frames import conversion_errors
from dpswd._layout import Array, Layout
from dpswd._progress import say
from dpswd._public_facts import taken_from_records
from dpswd.columns import Table
from dpswd.errors import InputError


def check_unreadable(unreadable: Unreadable) -> None:
    """Refuse ``unreadable="zero"`` beside facts of columns.

    These facts say what a cell can be.
    """
    if unreadable == "zero":
        raise InputError(
            "Expected unreadable='refuse' (--unreadable refuse) with facts of columns, got 'zero'; "
            "state missing cells by missing of their column."
        )


def frame_table(X: Any, columns: Any) -> tuple[Table, str]:
    """Return the public facts of the columns of a DataFrame.

    Return also the line about its types. The types are facts of all records: one missing cell makes
    floats of a column of integers.
    """
    check_frame(X)
    stated_table = Table.of(columns)
    dtypes = {str(name): str(dtype) for name, dtype in zip(X.columns, X.dtypes, strict=True)}
    table = stated_table.with_dtypes(dtypes)
    types = []  # those that the user has not stated
    for stated_column, column in zip(stated_table.included, table.included, strict=True):
        if not stated_column.dtype:
            types.append(f"{column.name} {column.dtype}")
    notice = ""
    if types:
        notice = taken_from_records(dtype=types)
    return table, notice


def check_frame(X: Any) -> None:
    """Refuse what is no DataFrame, and one with repeated names."""
    if not (hasattr(X, "columns") and hasattr(X, "iloc")):
        raise InputError(
            f"Expected X as a DataFrame with columns=, got {type(X).__name__}; pass a DataFrame, "
            "whose columns have names."
        )
    check_names(X.columns)


def cells_as_records(X: Any, table: Table) -> tuple[Tensor, Layout]:
    """Return the numbers (N, d) of the cells of a DataFrame, and their layout."""
    check_types(table)
    return table_records(frame_numbers(X, table), table)


def frame_numbers(X: Any, table: Table) -> Array:
    """Return the numbers (N, d) of the cells of a DataFrame, in float64.

    Raises:
        InputError: If X is no DataFrame or has other columns, or a cell does not fit.
    """
    check_frame(X)
    cells: dict[str, list[Any]] = {}
    for name in map(str, X.columns):
        cells[name] = []
        if name not in table.left_out:
            cells[name] = python_cells(X[name].tolist, name, "X")
    return table.numbers(cells, "X", first_line=0, is_frame=True)


def python_cells(convert: Callable[[], list[Any]], name: str, data: str) -> list[Any]:
    """Return the cells of a column as values of Python.

    Args:
        convert: Function that converts the cells.
        name: Name of the column, for messages.
        data: Name of the table, for messages.

    Raises:
        InputError: If Python has no value for a cell, such as a date after the year 9999.
    """
    try:
        return convert()
    except conversion_errors():
        raise InputError(
            f"Expected cells that Python can hold in column {name} of {data}, got another one, "
            "such as a date outside of the years 1 to 9999, or text that is not UTF-8; correct it."
        ) from None


def check_types(table: Table) -> None:
    """Refuse bounds and categories that the types of their columns cannot hold."""
    bounds = torch.tensor(table.bounds, dtype=torch.float32).T
    try:
        _table_layout(table).restore(bounds)
        table.check_types()
    except (TypeError, ValueError, OverflowError, NotImplementedError):
        raise InputError(
            "Expected facts of the columns that fit their types in X, got a type that cannot hold "
            "the bounds or categories of its column, such as a list or no value at all; correct "
            "them, or convert the column."
        ) from None


def table_records(numbers: Array, table: Table) -> tuple[Tensor, Layout]:
    """Return the numbers (N, d) of cells as records, and their layout."""
    if not len(numbers):
        raise InputError(
            "Expected a table with records, got none; pass one with a row for every record."
        )
    return torch.from_numpy(numbers.astype(np.float32)), _table_layout(table)


def _table_layout(table: Table) -> Layout:
    """Return the layout of a table whose columns have facts."""
    names = tuple(table.names)
    return Layout(dtypes=("float64",) * len(names), columns=names, table=table)


def say_left_out(table: Table, *, has_units: bool) -> None:
    """Say which columns are left out, as the user stated.

    A column that names persons may name one of them in several rows, which the guarantee of a row
    does not cover. The line depends on the stated kinds alone, not on the records.

    Args:
        table: Facts of the columns.
        has_units: Whether the persons of the records are stated.
    """
    if not table.left_out:
        return
    line = f"Left out, as stated: {', '.join(table.left_out)} (identifier)."
    if not has_units:
        line += (
            " The guarantee is for one record: if a person may have several, name the column of "
            "persons by unit= (--unit), and how many records of a person enter by per_unit= "
            "(--per-unit)."
        )
    say(line)
