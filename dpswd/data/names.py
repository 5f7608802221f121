"""Names of the columns of a table, and options that state one of them."""

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from dpswd.errors import InputError

ADD_NAMES = "write a line of names above the records"

_N_CLOSEST = 3  # names that are offered for a misspelt one
_MAX_MESSAGE = 200  # characters of names in a message


def check_column(option: str, column: str | None, names: Sequence[str], data: str | Path) -> None:
    """Refuse an option that names no column of a table.

    Args:
        option: Name of the option: ``"target"`` or ``"unit"``.
        column: The column that the user named; ``None`` for none.
        names: Names of the columns of the table; empty for a table without names.
        data: The table, for the message.

    Raises:
        InputError: If no column has this name.
    """
    if column is None or column in names:
        return
    raise InputError(
        f"Expected {option} (--{option}) to be a column of {data}, got {column!r}; "
        f"{closest_columns(column, names)}."
    )


def closest_columns(name: str, names: Sequence[str]) -> str:
    """Return the end of a sentence with the columns that are spelled most like a name."""
    spelled: dict[str, str] = {}
    for column in names:
        spelled.setdefault(column.lower(), column)
    if not spelled:
        return ADD_NAMES
    closest = get_close_matches(name.lower(), spelled, n=_N_CLOSEST)
    if not closest:
        return f"its columns are {', '.join(spelled.values())[:_MAX_MESSAGE]}"
    return f"the closest columns are {', '.join(spelled[key] for key in closest)}"


def check_names(names: Sequence[str], data: str | Path) -> None:
    """Refuse a column without a name, and two columns of one name.

    Raises:
        InputError: If there are such columns.
    """
    if "" in names:
        position = names.index("")
        remedy = "name it, or write the table without it if it is an index"
        if position == len(names) - 1:
            remedy = "name it, or delete it: the lines may end in a separator"
        raise InputError(
            f"Expected a name for every column of {data}, got none for column {position + 1}; "
            f"{remedy}."
        )
    repeated = [name for position, name in enumerate(names) if name in names[:position]]
    if repeated:
        raise InputError(
            f"Expected different names of columns in {data}, got {repeated[0]} twice; rename one."
        )
