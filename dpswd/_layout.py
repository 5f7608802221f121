"""Layout of the caller's records, in which synthetic records are returned."""

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpswd._frames import as_pandas, frame_of_package, series_of_package
from dpswd._public_facts import taken_from_records
from dpswd.columns import Table
from dpswd.columns.files import DELIMITERS
from dpswd.errors import InputError

Array = NDArray[Any]

# Names of the types of numbers in NumPy, pandas and pyarrow.
NUMBERS = re.compile(
    r"(u?int|U?Int)(8|16|32|64)|[fF]loat(16|32|64)|float(80|96|128)"
    r"|(u?int(8|16|32|64)|halffloat|float|double)\[pyarrow\]|bool|boolean|bool\[pyarrow\]"
)
_PYARROW = "[pyarrow]"  # the end of a name of a type of pyarrow
_FLOATS_OF_PYARROW = {"halffloat": "float16", "float": "float32", "double": "float64"}

# Separators of the cells of a .csv file of records; in one of facts, | separates categories.
SEPARATORS = (*DELIMITERS, "|")

# Float64 holds integers exactly up to this one; integers beyond it would wrap in a conversion.
_MAX_EXACT = 2**53


@dataclass(frozen=True)
class Layout:
    """Public facts of the caller's format, in which synthetic records are returned.

    Attributes:
        kind: ``"images"`` (N, C, H, W) or ``"rows"`` (N, d).
        channels: Axis of the channels of the caller's images; ``"none"`` for images (N, H, W).
        as_bytes: Whether pixels are in uint8.
        dtypes: Types of the columns of a table, or the one type of an array; empty for lists.
        columns: Names of the columns of a table; ``None`` for arrays.
        target: Name of the column or Series of classes.
        table: Public facts of the columns, by which numbers become cells; ``None`` for numbers.
        package: Package of the caller's DataFrame, ``"polars"`` or ``"pyarrow"``; "" for pandas.
        separator: Separator of the cells of the caller's ``.csv`` file.
    """

    kind: Literal["images", "rows"] = "rows"
    channels: Literal["first", "last", "none"] = "none"
    as_bytes: bool = False
    dtypes: tuple[str, ...] = ()
    columns: tuple[str | int, ...] | None = None
    target: str | None = None
    table: Table | None = None
    package: str = ""
    separator: str = ","

    @classmethod
    def of(cls, values: Any) -> "Layout":
        """Return the layout of records that do not come from an array of the caller.

        Records have the shape (N, C, H, W) or (N, d).
        """
        if len(values.shape) == 2:
            return cls()
        channels: Literal["last", "none"] = "none" if values.shape[1] == 1 else "last"
        return cls("images", channels, values.dtype == torch.uint8)

    def fits(self, sample_shape: tuple[int, ...]) -> bool:
        """Return whether records of this shape can be returned in this layout.

        A layout that was read from a file may hold anything.
        """
        target: Any = self.target
        if not isinstance(target, str | None) or self.package not in ("", "polars", "pyarrow"):
            return False
        if self.separator not in SEPARATORS:
            return False
        if self.table is not None and self.table.names != self.columns:
            return False
        if self.kind == "images":
            is_known = self.channels in ("first", "last") or (
                self.channels == "none" and sample_shape[0] == 1
            )
            return len(sample_shape) == 3 and is_known and self.columns is None
        if self.kind != "rows" or len(sample_shape) != 1:
            return False
        n_columns = sample_shape[0]
        if self.columns is None:
            n_dtypes = len(self.dtypes)
            return n_dtypes in (0, 1) and all(map(_is_dtype, self.dtypes))
        are_names = all(isinstance(name, str | int) for name in self.columns)
        has_dtypes = len(self.dtypes) == n_columns and all(map(_is_dtype, self.dtypes))
        return len(self.columns) == n_columns and are_names and has_dtypes

    def column_kinds(self, n_columns: int) -> list[str] | None:
        """Return the kinds of the columns, which follow from their types.

        The result is ``None`` if all types are floats.
        """
        dtypes = self.dtypes
        if self.columns is None:
            dtypes = dtypes * n_columns
        kinds = [_kind(dtype) for dtype in dtypes]
        if all(kind == "numeric" for kind in kinds):
            return None
        return kinds

    def notice(self, n_columns: int) -> str | None:
        """Return the line about kinds and types that were taken from the columns.

        The result is ``None`` if all types are floats. Floats are the default and need no line.
        Other types are facts of all records: one missing entry in a column of integers makes floats
        of it.
        """
        kinds = self.column_kinds(n_columns)
        if kinds is None:
            return None
        if self.columns is None:
            return taken_from_records(kinds=f"{kinds[0]} ({self.dtypes[0]})")
        pairs = zip(kinds, self.dtypes, strict=True)
        return taken_from_records(kinds=[f"{kind} ({dtype})" for kind, dtype in pairs])

    def with_kinds(self, kinds: Sequence[str], *, of_file: bool = False) -> "Layout":
        """Return the layout with types that follow from stated kinds of the columns.

        Integers and binary columns are int64, numeric ones float64. In an array or a file, whose
        type of floats is public, floats keep it. In a DataFrame, one record can decide on it.

        Args:
            kinds: Kind of every column.
            of_file: Whether the columns are those of a file.
        """
        if self.columns is not None:
            pairs = zip(kinds, self.dtypes, strict=True)
            dtypes = [_dtype_of_kind(*pair, keeps_floats=of_file) for pair in pairs]
            return replace(self, dtypes=tuple(dtypes))
        if not self.dtypes:
            return self
        kind = "integer"
        if "numeric" in kinds:
            kind = "numeric"
        return replace(self, dtypes=(_dtype_of_kind(kind, self.dtypes[0], keeps_floats=True),))

    def restore(self, records: Tensor) -> Any:
        """Return records as an array or a DataFrame in the caller's format.

        Args:
            records: Images (n, C, H, W) in bytes or in [0, 1], or rows (n, d).
        """
        values = records.detach().cpu().numpy()
        if self.kind == "images":
            return self._restore_images(values)
        if self.table is not None:
            return self._restore_cells(self.table, values)
        if self.columns is None and not self.dtypes:
            return values
        if self.columns is None:
            return _typed(values, self.dtypes[0])
        if importlib.util.find_spec("pandas") is None:  # the table was a file
            return values
        import pandas as pd  # optional: needed for callers with data frames alone

        frame = pd.DataFrame(dict(enumerate(self.typed(values))))
        frame = frame.astype(dict(enumerate(self.dtypes)))
        frame.columns = pd.Index(self.columns)
        return frame_of_package(frame, self.package)

    def _restore_cells(self, table: Table, values: Array) -> Any:
        """Return generated numbers (n, d) as cells.

        Cells are a DataFrame, or an array of objects if pandas is not installed.
        """
        cells = table.cells(values)
        if importlib.util.find_spec("pandas") is None:
            return np.array(list(cells.values()), dtype=object).T
        import pandas as pd  # optional: needed for callers with data frames alone

        series = {}
        for column in table.included:
            restored = pd.Series(cells[column.name], dtype=object)
            if column.dtype == "category":
                categories = dict.fromkeys([*column.categories, *restored.dropna()])
                restored = restored.astype(pd.CategoricalDtype(list(categories)))
            elif column.dtype:
                restored = restored.astype(column.dtype)
            series[column.name] = restored
        return frame_of_package(pd.DataFrame(series), self.package)

    def numbers(self, records: Any) -> Array:
        """Return rows in the caller's format as numbers (n, d).

        Cells are converted as by :class:`Table`.

        Args:
            records: Rows (n, d), as :meth:`restore` returned them.
        """
        values = np.asarray(as_pandas(records))
        if self.table is None:
            return values
        cells = dict(zip(self.table.names, values.T, strict=True))
        return self.table.without_marks().numbers(cells, "the synthetic records")

    def _restore_images(self, values: Array) -> Array:
        """Return images (n, C, H, W) with the caller's axes and type of pixels."""
        images = values
        if images.dtype != np.uint8:
            images = images.astype(np.float32).clip(0, 1)
            if self.as_bytes:
                images = np.rint(images * 255).astype(np.uint8)
        if self.channels == "none":
            return images[:, 0]
        if self.channels == "first":
            return images
        return images.transpose(0, 2, 3, 1)

    def restore_labels(self, labels: Array) -> Any:
        """Return classes (n,) as a Series if the caller's classes had a name.

        Otherwise return them unchanged.
        """
        if self.target is None or importlib.util.find_spec("pandas") is None:
            return labels
        return series_of_package(labels, self.target, self.package)

    def typed(self, values: Array) -> list[Array]:
        """Return the columns of a table (n, d) in their types."""
        return [_typed(column, dtype) for column, dtype in zip(values.T, self.dtypes, strict=True)]


def column_order(columns: Sequence[str], expected: Sequence[str], data: str) -> list[int]:
    """Return the positions of the expected columns among those of a table.

    Args:
        columns: Names of the columns of the table.
        expected: Names in the order that is wanted.
        data: The table, for the message.

    Raises:
        InputError: If the table has other columns.
    """
    if sorted(columns) != sorted(expected):
        raise InputError(
            f"Expected the columns {', '.join(expected)} in {data}, got {', '.join(columns)}; "
            "rename them, or name the column of classes by target= (--target), that of persons by "
            "unit= (--unit)."
        )
    return [list(columns).index(name) for name in expected]


def _is_dtype(dtype: Any) -> bool:
    """Return whether a name is that of a type of numbers of NumPy, pandas or pyarrow."""
    return isinstance(dtype, str) and NUMBERS.fullmatch(dtype) is not None


def _kind(dtype: str) -> str:
    """Return the kind of a column of this type of NumPy, pandas or pyarrow."""
    name = dtype.lower()
    if name.startswith("bool"):
        return "binary"
    if name.startswith(("int", "uint")):
        return "integer"
    return "numeric"


def _dtype_of_kind(kind: str, dtype: str, *, keeps_floats: bool) -> str:
    """Return the type of a column of a stated kind.

    A numeric column is in float64 of the package whose type it has, whatever that type is: one
    fraction makes floats of a column of whole numbers.

    Args:
        kind: The stated kind.
        dtype: The type of the caller's column.
        keeps_floats: Whether floats keep their type.
    """
    if kind != "numeric":
        return "int64"
    if keeps_floats and _kind(dtype) == "numeric":
        return dtype
    if dtype.endswith(_PYARROW):
        return f"double{_PYARROW}"
    if dtype[0].isupper() or dtype == "boolean":  # as pandas names nullable types
        return "Float64"
    return "float64"


def _typed(values: Array, dtype: str) -> Array:
    """Convert floats to the NumPy type of this name.

    They become integers and booleans by rounding.
    """
    kind = _kind(dtype)
    if kind == "binary":
        return np.asarray(values > 0.5)
    plain = dtype.lower().removesuffix(_PYARROW)
    plain = _FLOATS_OF_PYARROW.get(plain, plain)
    if kind == "integer":
        limits = np.iinfo(plain)
        lowest = max(limits.min, -_MAX_EXACT)
        highest = min(limits.max, _MAX_EXACT)
        values = np.rint(values.astype(np.float64)).clip(lowest, highest)
    return values.astype(plain)
