"""Records in ``.parquet`` and ``.feather`` files, some rows at a time."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dpswd._arrays import as_records
from dpswd._cells import check_types, frame_table, python_cells, table_records
from dpswd._frames import ARROW_FORMATS, arrow_to_pandas, require
from dpswd._labels import Labels, as_labels
from dpswd.columns import Table
from dpswd.data.names import check_column, check_names
from dpswd.data.reading import ReadOptions, ReadRecords, damaged_as_input_error, report_name
from dpswd.errors import InputError

_ROWS_AT_ONCE = 20_000  # whose cells are in memory as objects of Python


def arrow_column_names(path: Path) -> list[str]:
    """Return the names of the columns of a file."""
    with damaged_as_input_error(path, "content that does not fit its format"):
        return list(_dataset(path).schema.names)


def arrow_cells(path: Path) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """Return the cells of each column as text, and the kinds that its type states.

    Text may be of any kind. The table must be one that the user may look at.
    """
    with damaged_as_input_error(path, "content that does not fit its format"):
        arrow_table = _dataset(path).to_table()
    cells: dict[str, tuple[str, ...]] = {}
    kinds: dict[str, str] = {}
    for name, column in zip(arrow_table.schema.names, arrow_table.columns, strict=True):
        kind = _kind_of_type(column.type)
        if kind is not None:
            kinds[name] = kind
        values = python_cells(column.to_pylist, name, str(path))
        cells[name] = tuple(map(_as_text, values))
    return cells, kinds


def _kind_of_type(arrow_type: Any) -> str | None:
    """Return the kind of a column that its type of pyarrow states; ``None`` for text."""
    from pyarrow import types

    kinds = {
        "binary": types.is_boolean(arrow_type),
        "integer": types.is_integer(arrow_type),
        "numeric": types.is_floating(arrow_type) or types.is_decimal(arrow_type),
        "nominal": types.is_dictionary(arrow_type),
        "date": types.is_date(arrow_type),
        "datetime": types.is_timestamp(arrow_type),
    }
    for kind, is_this in kinds.items():
        if is_this:
            return kind
    return None


def _as_text(value: Any) -> str:
    """Return a value of Python as a file of text has it; "" for a missing one."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    return str(value)


def read_arrow(path: Path, options: ReadOptions) -> ReadRecords:
    """Read a ``.parquet`` or ``.feather`` file.

    ``options.target`` is the column of classes. Types of columns are those of the file.

    Raises:
        InputError: If the file cannot be read, or its columns do not fit the options.
    """
    with damaged_as_input_error(path, "content that does not fit its format"):
        dataset = _dataset(path)
        names = list(dataset.schema.names)
        check_column("target", options.target, names, path)
        check_column("unit", options.unit, names, path)
        if options.columns is None:
            return _read_numbers(dataset, path, options)
        return _read_cells(dataset, path, options, options.columns)


def _dataset(path: Path) -> Any:
    """Return the data set of pyarrow, which has read the schema of the file.

    Raises:
        InputError: If two columns have one name.
    """
    require("pandas", "pyarrow", data=path)
    import pyarrow.dataset
    import pyarrow.fs

    formats = {
        "parquet": pyarrow.dataset.ParquetFileFormat,
        "feather": pyarrow.dataset.FeatherFileFormat,
    }
    file_format = formats[ARROW_FORMATS[path.suffix.lower()]]()
    if path.is_file():
        names = file_format.inspect(str(path), pyarrow.fs.LocalFileSystem()).names
        check_names(names, path)
    return pyarrow.dataset.dataset(path, format=file_format)


def _read_numbers(dataset: Any, path: Path, options: ReadOptions) -> ReadRecords:
    """Read a file of numbers."""
    frame = arrow_to_pandas(dataset.to_table())
    labels = None
    if options.target is not None:
        label_cells = frame.pop(options.target).tolist()
        if options.labelled:
            labels = _labels(label_cells, options)
    unit_names = None
    if options.unit is not None:
        unit_names = tuple(frame.pop(options.unit).tolist())
    values, layout = as_records(frame, unreadable=options.unreadable)
    n_columns = values.shape[1]
    return ReadRecords(
        report_name(path),
        values,
        labels,
        replace(layout, target=options.target),
        kinds=layout.column_kinds(n_columns) or ["numeric"] * n_columns,
        columns=tuple(map(str, frame.columns)),
        unit_names=unit_names,
    )


def _read_cells(dataset: Any, path: Path, options: ReadOptions, table: Table) -> ReadRecords:
    """Read a file whose columns have stated facts."""
    label_columns = [name for name in (options.target, options.unit) if name is not None]
    empty = arrow_to_pandas(dataset.schema.empty_table()).drop(columns=label_columns)
    table, notice = frame_table(empty, table)
    check_types(table)
    label_cells: list[Any] = []
    unit_names: list[Any] = []
    numbers = []
    n_rows = 0
    for batch in dataset.to_batches(batch_size=_ROWS_AT_ONCE):
        columns: dict[str, list[Any]] = {}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            columns[name] = []
            if name in label_columns or name not in table.left_out:
                columns[name] = python_cells(column.to_pylist, name, str(path))
        if options.target is not None:
            label_cells += columns.pop(options.target)
        if options.unit is not None:
            unit_names += columns.pop(options.unit)
        numbers.append(table.numbers(columns, str(path), first_line=n_rows + 1))
        n_rows += batch.num_rows
    if n_rows == 0:
        raise InputError(f"Expected a table with records in {path}, got none.")
    values, layout = table_records(np.concatenate(numbers), table)
    notices: tuple[str, ...] = ()
    if notice:
        notices = (notice,)
    records = ReadRecords(
        report_name(path),
        values,
        labels=None,
        layout=replace(layout, target=options.target),
        notices=notices,
        columns=table.names,
    )
    if options.target is not None and options.labelled:
        records = replace(records, labels=_labels(label_cells, options))
    if options.unit is not None:
        records = replace(records, unit_names=tuple(unit_names))
    return records


def _labels(cells: list[Any], options: ReadOptions) -> Labels:
    """Return the classes of records, each cell read by itself."""
    return as_labels(
        cells,
        options.classes,
        min_classes=options.min_classes,
        missing_is_class=options.missing_is_class,
    )
