"""Files of the public facts of columns, and facts that are spelled as text."""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpswd.errors import InputError

# Separators of categories and of cells in a file of facts.
_BETWEEN_CATEGORIES = "|"
DELIMITERS = (",", ";", "\t")
_YES_OR_NO = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def read_facts(path: Path) -> dict[str, Any]:
    """Return the facts of each column in a ``.csv`` or YAML file, by its name.

    Raises:
        InputError: If the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(
            f"Expected a file of columns at {path}, got: {error.strerror}; check the path."
        ) from None
    except UnicodeDecodeError:
        raise InputError(
            f"Expected a file of columns at {path}, got text that is not UTF-8; save it in UTF-8."
        ) from None
    if path.suffix.lower() in (".yaml", ".yml"):
        return _facts_of_yaml(text, path)
    return _facts_of_csv(text, path)


def separator_of(first_line: str, separators: Sequence[str] = DELIMITERS) -> str:
    """Return the separator that the first line of a table has most often."""
    return max(separators, key=first_line.count)


def _facts_of_yaml(text: str, path: Path) -> dict[str, Any]:
    """Return the facts of each column in a YAML file."""
    import yaml  # type: ignore[import-untyped]  # needed for YAML alone

    try:
        content = yaml.load(text, Loader=yaml.BaseLoader)  # every value as text: no is no bool
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = ""
        if mark is not None:
            place = f" on line {mark.line + 1} ({error.problem})"
        raise InputError(
            f"Expected names of columns with their facts in {path}, got text that is no YAML"
            f"{place}; correct it."
        ) from None
    if not isinstance(content, dict) or not content:
        raise InputError(
            f"Expected names of columns with their facts in {path}, as in age: {{low: 0, "
            "high: 120}, got other YAML; correct it."
        )
    return content


def _facts_of_csv(text: str, path: Path) -> dict[str, Any]:
    """Return the facts of each column in a ``.csv`` file."""
    lines = text.splitlines()
    if not lines:
        raise InputError(f"Expected a line for each column in {path}, got an empty file.")
    reader = csv.DictReader(lines, delimiter=separator_of(lines[0]), skipinitialspace=True)
    columns: dict[str, Any] = {}
    for line in reader:
        if None in line:
            raise InputError(
                f"Expected as many cells in each line of {path} as in its first, got more; write "
                "a cell that contains the separator in quotation marks."
            )
        cells = {str(key).strip(): value.strip() for key, value in line.items() if value}
        name = cells.pop("column", None)
        if name is None:
            raise InputError(
                f"Expected a file at {path} that starts with column,low,high,kind and has a line "
                "per column, got none, or one of a different form."
            )
        if name in columns:
            raise InputError(
                f"Expected one line for column {name} in {path}, got two; delete one of them."
            )
        columns[name] = {key: value for key, value in cells.items() if value}
    return columns


def _yes_or_no(name: str, value: Any) -> bool:
    """Return a fact that is true or false, as Python or a file states it."""
    text = str(value).strip().lower()
    if text not in _YES_OR_NO:
        raise InputError(f"Expected true or false as a fact of column {name}, got {value!r}.")
    return _YES_OR_NO[text]


def _missing(name: str, value: Any) -> bool | str:
    """Return whether cells may be missing, or the text of a missing cell."""
    if value is None:
        return False
    text = str(value).strip()
    return _YES_OR_NO.get(text.lower(), text)


def _categories(name: str, value: Any) -> tuple[Any, ...]:
    """Return the categories of a column; text separates them by ``|``."""
    if isinstance(value, str):
        return tuple(category.strip() for category in value.split(_BETWEEN_CATEGORIES))
    if isinstance(value, np.ndarray):
        return tuple(value.tolist())
    if not isinstance(value, list | tuple):
        raise InputError(
            f"Expected categories of column {name} as a list, or as text such as a|b, got "
            f"{type(value).__name__}."
        )
    return tuple(value)


def _decimals(name: str, value: Any) -> int | None:
    """Return the number of digits after the point."""
    if value is None:
        return None
    try:
        decimals = int(value)
    except (TypeError, ValueError):
        decimals = -1
    if decimals < 0 or str(value).strip() != str(decimals):
        raise InputError(
            f"Expected decimals of column {name} as a whole number from 0 on, got {value!r}."
        )
    return decimals


def _text(name: str, value: Any) -> str:
    """Return a fact that is text, unchanged: a blank may be a mark between thousands."""
    if not isinstance(value, str):
        raise InputError(f"Expected text as a fact of column {name}, got {value!r}.")
    return value


# Functions of the name of a column and a fact of it that return the fact as Python has it.
FROM_TEXT: dict[str, Callable[[str, Any], Any]] = {
    "draft": _yes_or_no,
    "other": _yes_or_no,
    "missing": _missing,
    "categories": _categories,
    "decimals": _decimals,
    "decimal_mark": _text,
    "thousands_mark": _text,
    "format": _text,
}
