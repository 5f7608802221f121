"""DataFrames of pandas, polars and pyarrow.

The library reads those of pandas; the others are converted first.
"""

import importlib.util
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
    if hasattr(X, "to_arrow"):  # polars
        require("pandas", "pyarrow", data="a DataFrame of polars")
        X = X.to_arrow()
    if hasattr(X, "schema") and hasattr(X, "to_pylist"):  # pyarrow
        require("pandas", data="a table of pyarrow")
        return arrow_to_pandas(X)
    return X


def arrow_to_pandas(table: Any) -> Any:
    """Return a table of pyarrow as a DataFrame with Arrow types.

    A column of categories has the type ``category``, which lists them.
    """
    import pandas as pd  # optional: needed for tables of pyarrow alone
    import pyarrow as pa

    def type_of(arrow_type: Any) -> Any:
        if pa.types.is_dictionary(arrow_type):
            return None  # the default, category
        return pd.ArrowDtype(arrow_type)

    try:
        return table.to_pandas(types_mapper=type_of)
    except (ArithmeticError, ValueError):
        raise InputError(
            "Expected columns that pandas can hold in a table of pyarrow, got another one, such as "
            "categories with a missing or a repeated one; cast it to text."
        ) from None


def require(*packages: str, data: Any) -> None:
    """Raise an InputError if a package that reads or writes the data is not installed."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"Expected {' and '.join(missing)} for {data}, got an environment without; run "
            "pip install 'dpswd[tables]'."
        )
