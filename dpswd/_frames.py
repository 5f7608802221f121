"""DataFrames of pandas, polars and pyarrow.

The library reads those of pandas; the others are converted first.
"""

import importlib.util
import sys
from typing import Any

from dpswd.errors import InputError

# Files of tables that pyarrow reads, by ending, as it names them.
ARROW_FORMATS = {".parquet": "parquet", ".feather": "feather"}


def as_pandas(X: Any) -> Any:
    """Return a frame of polars or pyarrow as one of pandas; other records as they are.

    Columns keep their Arrow types, so that integers with missing cells stay exact.

    Raises:
        InputError: If pandas or pyarrow is not installed.
    """
    if frame_package(X) == "polars":
        require("pandas", "pyarrow", data="a DataFrame of polars")
        X = X.to_arrow()
    if frame_package(X) == "pyarrow":
        require("pandas", data="a table of pyarrow")
        return arrow_to_pandas(X)
    return X


def frame_package(X: Any) -> str:
    """Return ``"polars"`` or ``"pyarrow"`` for their frames; "" for other records."""
    if hasattr(X, "to_arrow"):
        return "polars"
    if hasattr(X, "schema") and hasattr(X, "to_pylist"):
        return "pyarrow"
    return ""


def frame_of_package(frame: Any, package: str) -> Any:
    """Return a DataFrame of pandas as a frame of a package.

    It stays one of pandas if ``package`` is "", or if the package is not installed.
    """
    if not package or importlib.util.find_spec(package) is None:
        return frame
    if package == "polars":
        import polars  # optional: needed for callers with frames of polars alone

        return polars.from_pandas(frame)
    import pyarrow as pa  # optional, as above

    return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata()


def series_of_package(labels: Any, name: str, package: str) -> Any:
    """Return labels (n,) as a Series of polars, or of pandas for other packages."""
    if package == "polars" and importlib.util.find_spec(package) is not None:
        import polars  # optional: needed for callers with frames of polars alone

        return polars.Series(name, labels)
    import pandas as pd  # optional: needed for callers with a Series alone

    return pd.Series(labels, name=name)


def arrow_to_pandas(table: Any) -> Any:
    """Return a table of pyarrow as a DataFrame with Arrow types.

    A column of categories has the type ``category``, which lists them. Decimals become floats, and
    views of text become text: pandas cannot name their types.
    """
    import pandas as pd  # optional: needed for tables of pyarrow alone
    import pyarrow as pa

    def type_of(arrow_type: Any) -> Any:
        if pa.types.is_dictionary(arrow_type):
            return None  # the default, category
        if pa.types.is_decimal(arrow_type):
            return pd.ArrowDtype(pa.float64())
        if pa.types.is_string_view(arrow_type):
            return pd.ArrowDtype(pa.large_string())
        return pd.ArrowDtype(arrow_type)

    try:
        return table.to_pandas(types_mapper=type_of)
    except (ArithmeticError, ValueError):
        raise InputError(
            "Expected columns that pandas can hold in a table of pyarrow, got another one, such as "
            "categories with a missing or a repeated one; cast it to text."
        ) from None


def conversion_errors() -> tuple[type[Exception], ...]:
    """Return the errors of cells for which Python has no value.

    Those of pyarrow are among them where it is in use.
    """
    arrow = sys.modules.get("pyarrow")
    if arrow is None:
        return (ArithmeticError, ValueError)
    return (ArithmeticError, ValueError, arrow.ArrowException)


def require(*packages: str, data: Any) -> None:
    """Raise an InputError if a package that reads or writes the data is not installed."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"Expected {' and '.join(missing)} for {data}, got an environment without; run "
            "pip install 'dpswd[tables]'."
        )
