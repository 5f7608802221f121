"""Keys of labels and cells: functions of one value alone.

They are equal in every type of array.

NumPy and pandas hold the integers 1 and 2 as floats beside a missing value, and as text beside a
text. A comparison of keys sees the same value in all of these, so that one record cannot change how
the values of others are read. The table of :mod:`dpswd._labels` has examples.
"""

import datetime
import math
import re
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

import numpy as np

Key = int | float | str

# Cells of a table that hold no number and name no class, in lower case.
EMPTY_CELLS = ("", "na", "n/a", "null")
# Texts that name no person and stand for a missing value of a column with facts, in lower case.
MISSING_TEXTS = (*EMPTY_CELLS, "none", "nan", "nat", "<na>")
# Missing values of Python, NumPy and pandas, as text.
MISSING_VALUES = ("None", "nan", "NaT", "<NA>")

# Longer digits are text: Python refuses to convert more than 4,300 of them.
_INTEGER = re.compile(r"[+-]?\d{1,300}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_TIME = re.compile(r"\d\d:\d\d(:\d\d(\.\d+)?)?", re.ASCII)
_MOMENT = re.compile(rf"\d{{4}}-\d\d-\d\d[T ]{_TIME.pattern}(Z|[+-]\d\d(:?\d\d)?)?", re.ASCII)

# Float64 holds integers exactly below this one.
_EXACT = 2.0**53


def label_key(label: Any) -> Key:
    """Return the key of a label, a class or a cell: see the table of dpswd._labels."""
    if isinstance(label, np.datetime64):
        return plain_text(label)
    if isinstance(label, np.floating):
        # The text of a float32 is the shortest decimal number that reads as it: 0.1, not
        # 0.10000000149.
        return _key_of_text(str(label))
    if hasattr(label, "item"):
        label = label.item()
    if isinstance(label, Integral):
        return int(label)
    if isinstance(label, Real | Decimal):
        return key_of_number(label)
    return _key_of_text(plain_text(label))


def cell_key(cell: Any) -> Key:
    """Return the key of a cell or a category of a table.

    Readers of tables turn a column of ``TRUE`` and ``FALSE`` into truth values, and one of times
    into times, unless one cell is another text. So these texts have the keys of the values.
    Fractions are compared in float32: a column of float32 becomes one of float64 or of text where
    one cell is of that type.

    Example:
        >>> import datetime
        >>> cell_key("true"), cell_key("10:30"), cell_key(datetime.time(10, 30))
        (1, '10:30:00', '10:30:00')
        >>> cell_key(np.float32(0.1)), cell_key(float(np.float32(0.1))), cell_key("0.1")
        (0.1, 0.1, 0.1)
    """
    key = label_key(cell)
    if isinstance(key, float):
        return key_of_number(float(str(np.float32(key))))
    if isinstance(key, str):
        return _key_of_typed_text(key)
    return key


def _key_of_typed_text(text: str) -> Key:
    """Return the key of the truth value or time that a text is, or the text."""
    if text.lower() in ("false", "true"):
        return int(text.lower() == "true")
    try:
        if _TIME.fullmatch(text):
            return datetime.time.fromisoformat(text).isoformat()
        if _MOMENT.fullmatch(text):
            moment = datetime.datetime.fromisoformat(text)
            if moment.tzinfo is not None:
                moment = moment.astimezone(datetime.UTC)
            return plain_text(moment)
    except (ValueError, OverflowError):  # such as 25:00, or a time zone at the end of the calendar
        return text
    return text


def plain_text(name: Any) -> str:
    """Return a name as text, a date in ISO format."""
    if isinstance(name, bytes):
        return name.decode(errors="surrogateescape")
    if isinstance(name, str):
        return str.__str__(name)  # of an enumeration of texts: its value
    if isinstance(name, np.datetime64):
        if np.isnat(name):
            return "NaT"
        return plain_text(name.astype("datetime64[us]").item())
    if isinstance(name, datetime.date | datetime.datetime):
        # of midnight the day alone, as tables have it
        return name.isoformat().removesuffix("T00:00:00")
    return str(name)


def _key_of_text(text: str) -> Key:
    """Return the number that a text reads as, else the text without outer blanks."""
    text = text.strip()
    if _INTEGER.fullmatch(text):
        return int(text)
    if text in ("False", "True"):
        return int(text == "True")
    if _DECIMAL.fullmatch(text) and math.isfinite(float(text)):
        return key_of_number(float(text))
    return text


def key_of_number(number: Any) -> Key:
    """Return a number as an integer, a float, or the text of NaN or infinity.

    A whole number becomes an integer.
    """
    if not math.isfinite(number):
        return str(float(number))
    rounded = int(number)
    if rounded == number:
        return rounded
    return float(number)


def is_rounded(value: Any) -> bool:
    """Return whether a value is a float in which an integer may be rounded."""
    return isinstance(value, float | np.floating) and _EXACT <= abs(float(value)) < math.inf
