"""Layout of the caller's records, in which synthetic records are returned."""

import importlib.util
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]


MIXED = (  # the end of a sentence
    "mixed tables with categories are another field: see smartnoise-synth or dpmm, or pass the columns of numbers only"
)


EXACT = 2**53  # integers up to it are exact as float64


@dataclass(frozen=True)
class Layout:
    """Public facts of the caller's format, in which synthetic records are returned."""

    kind: Literal["images", "rows"] = "rows"
    channels: Literal["first", "last", "none"] = "none"
    as_bytes: bool = False  # pixels in uint8
    dtypes: tuple[
        str, ...
    ] = ()  # of the columns of a data frame, or the one of an array; empty for lists
    columns: tuple[str | int, ...] | None = None  # names
    target: str | None = None  # name of the column or Series of classes

    @classmethod
    def of(cls, values: Any) -> "Layout":
        """Return the layout of records (N, C, H, W) or (N, d), in memory or not, that come from no caller's array."""
        if len(values.shape) == 2:
            return cls()
        return cls(
            "images", "none" if values.shape[1] == 1 else "last", values.dtype == torch.uint8
        )

    def column_kinds(self, dim: int) -> list[str] | None:
        """Return the kinds of ``dim`` columns as their types state them, ``None`` if all are floats."""
        kinds = [
            _kind(dtype) for dtype in (self.dtypes * dim if self.columns is None else self.dtypes)
        ]
        return kinds if set(kinds) - {"numeric"} else None

    def restore(self, records: Tensor) -> Any:
        """Return records (n, C, H, W) in [0, 1], or rows (n, d), as an array or a DataFrame in the caller's format."""
        values = records.detach().cpu().numpy()
        if self.kind == "images":
            images = values if values.dtype == np.uint8 else values.astype(np.float32).clip(0, 1)
            if self.as_bytes and images.dtype != np.uint8:
                images = np.rint(images * 255).astype(np.uint8)
            return {"none": images[:, 0], "first": images, "last": images.transpose(0, 2, 3, 1)}[
                self.channels
            ]
        if self.columns is None:
            return _typed(values, self.dtypes[0]) if self.dtypes else values
        if (pd := _pandas()) is None:
            return values
        frame = pd.DataFrame(dict(enumerate(self.typed(values)))).astype(
            dict(enumerate(self.dtypes))
        )
        frame.columns = pd.Index(self.columns)
        return frame

    def restore_labels(self, labels: Array) -> Any:
        """Return classes (n,) as a Series if those of the caller had a name, else as they are."""
        if self.target is None or (pd := _pandas()) is None:
            return labels
        return pd.Series(labels, name=self.target)

    def typed(self, values: Array) -> list[Array]:
        """Return the columns of a table (n, d) in their types."""
        return [_typed(column, dtype) for column, dtype in zip(values.T, self.dtypes, strict=True)]


def _kind(dtype: str) -> str:
    """Return the kind of a column of this type of NumPy, pandas or pyarrow."""
    plain = dtype.lower()
    return (
        "binary"
        if plain.startswith("bool")
        else "integer"
        if plain.startswith(("int", "uint"))
        else "numeric"
    )


def _typed(values: Array, dtype: str) -> Array:
    """Convert floats to the NumPy type of this name, integers and booleans by rounding."""
    if _kind(dtype) == "binary":
        return np.asarray(values > 0.5)
    plain = dtype.lower().removesuffix("[pyarrow]").replace("double", "float64")
    if _kind(dtype) == "integer":
        limits = np.iinfo(plain)
        values = np.rint(values.astype(np.float64)).clip(
            max(limits.min, -EXACT), min(limits.max, EXACT)
        )
    return values.astype(plain)


def _pandas() -> Any:
    """Return pandas, or ``None`` where it is not installed: the table was a file."""
    return importlib.import_module("pandas") if importlib.util.find_spec("pandas") else None
