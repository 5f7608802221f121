"""Records of a source and a target from files, as arrays.

Size and channels of private images are those of the public source, never taken from them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from dpswd._labels import class_array
from dpswd._layout import Array, column_order
from dpswd._progress import say
from dpswd.columns import Coding, Table
from dpswd.data import read_public
from dpswd.data.folders import MIN_SIZE
from dpswd.data.reading import find_path
from dpswd.data.tables import TARGET, column_names, target_of
from dpswd.errors import InputError
from dpswd.records import Records

__all__ = [
    "Labelled",
    "Source",
    "Target",
    "read_records",
    "read_source",
    "read_test",
    "refuse_common_records",
]


@dataclass(frozen=True, eq=False)
class Source:
    """Labelled public records.

    Attributes:
        records: Images (n, C, H, W) in [0, 1], or rows (n, d).
        labels: Names (n,) of their classes.
        columns: Names of the columns of a table; of coded columns, where there is a coding.
        coding: Coding of a table with facts, of which the records are rows.
    """

    records: Array
    labels: Array
    columns: tuple[str, ...] | None
    coding: Coding | None = None


@dataclass(frozen=True, eq=False)
class Target:
    """Records of the shape of a source.

    They are PRIVATE if they are the target of an adaptation.

    Attributes:
        records: Records (n, *shape).
        files: Names (n,) of the files of images of a folder; none otherwise.
        unit_names: Name (n,) of the person of each record, if units were asked for.
    """

    records: Array
    files: tuple[str, ...]
    unit_names: tuple[Any, ...] | None = None


@dataclass(frozen=True, eq=False)
class Labelled:
    """Labelled records of the shape of a source, to test a classifier on.

    Attributes:
        values: Values (n, *shape), as the classifier reads them.
        records: The records as they were read, with their labels.
        classes: Names of the classes of the labels.
    """

    values: Array
    records: Records
    classes: list[Any]


def refuse_common_records(source: str, target: str, root: str | Path | None) -> None:
    """Refuse records that are public and private at once.

    A classifier is trained on the records of the source without noise.

    Raises:
        InputError: If source and target are one path, or one of them lies in the other.
    """
    paths = [find_path(data, root) for data in (source, target)]
    resolved = [path.resolve() for path in paths if path is not None]
    if len(resolved) < len(paths):  # a benchmark, which is public, or a wrong path
        return
    public, private = resolved
    if public.is_relative_to(private) or private.is_relative_to(public):
        raise InputError(
            f"Expected a public source and other, private records as the target, got {source} and "
            f"{target}, which have records in common; pass public records as the source, since a "
            "classifier is trained on them without noise."
        )


def read_source(
    data: str, *, size: int | None = None, table: Table | None = None, **options: Any
) -> Source:
    """Read labelled public records.

    Args:
        data: A folder, a file or a benchmark, as in :func:`dpswd.data.read`.
        size: Side to which images are scaled; ``None`` for the one that they have.
        table: Public facts of the columns of a table, which is then coded.
        options: Further options of :func:`dpswd.data.read`.

    Raises:
        InputError: If the records cannot be read, or have no classes.
    """
    benchmark = read_public(data, size=size, columns=table, **options)
    if benchmark.classes is None:
        remedy = "pass records with classes"
        if column_names(data, options.get("root")):
            remedy = TARGET
        raise InputError(
            f"Expected classes for the records of {data}, the labelled source, got none; {remedy}."
        )
    records = _resized(benchmark.train.floats(), size, size)
    names = class_array(benchmark.classes)
    labels = names[benchmark.train.labels.numpy()]
    if table is not None:
        numbers = records.double().numpy()
        coding = Coding.of(table, numbers)
        return Source(coding.rows(numbers), labels, coding.names, coding)
    return Source(records.numpy(), labels, benchmark.columns)


def read_records(
    data: str,
    shape: tuple[int, ...],
    columns: Sequence[str] | None = None,
    coding: Coding | None = None,
    **options: Any,
) -> Target:
    """Read records of the shape of a source; labels are ignored.

    Images are scaled to that shape, each by itself. Columns of a table are matched by name.

    Args:
        data: A folder, a file or a benchmark, as in :func:`dpswd.data.read`.
        shape: Shape of a record of the source: (C, H, W) or (d,).
        columns: Names of the columns of the source.
        coding: Coding of a source with facts of its columns.
        options: Further options of :func:`dpswd.data.read`.

    Raises:
        InputError: If the records cannot be read, or have another shape or other columns.
    """
    options["target"] = target_of(data, options.get("root"), options.get("target"))
    benchmark = read_public(data, labelled=False, **_shape_options(shape, coding), **options)
    records = _fitting(benchmark.train, benchmark.columns, data, shape, columns, coding)
    return Target(records, benchmark.files, benchmark.unit_names)


def read_test(
    data: str,
    shape: tuple[int, ...],
    columns: Sequence[str] | None = None,
    coding: Coding | None = None,
    **options: Any,
) -> Labelled:
    """Read labelled records of the shape of a source, to test a classifier on.

    Of a benchmark, they are the test part.

    Args:
        data: A folder, a file or a benchmark, as in :func:`dpswd.data.read`.
        shape: Shape of a record of the source: (C, H, W) or (d,).
        columns: Names of the columns of the source.
        coding: Coding of a source with facts of its columns.
        options: Further options of :func:`dpswd.data.read_public`.

    Raises:
        InputError: If the records cannot be read, have no classes, or have another shape or other
            columns.
    """
    benchmark = read_public(data, **_shape_options(shape, coding), **options)
    if benchmark.classes is None:
        raise InputError(
            f"Expected classes for the records of {data}, to compare predictions with, got none; "
            "pass records with classes, or get predictions by dpswd predict."
        )
    records = benchmark.test or benchmark.train
    values = _fitting(records, benchmark.columns, data, shape, columns, coding)
    return Labelled(values, records, benchmark.classes)


def _shape_options(shape: tuple[int, ...], coding: Coding | None) -> dict[str, Any]:
    """Return the options of a reader by which records have the shape of a source.

    Images of a folder are squares, which :func:`_fitting` scales to the shape of the source.
    """
    if coding is not None:
        return {"columns": coding.table}
    if len(shape) != 3:
        return {}
    channels, height, width = shape
    # Without a size, that of most images would be taken, which one private image decides.
    return {"size": max(MIN_SIZE, height, width), "channels": channels}


def _fitting(
    records: Records,
    names: Sequence[str] | None,
    data: str,
    shape: tuple[int, ...],
    columns: Sequence[str] | None,
    coding: Coding | None,
) -> Array:
    """Return values (n, *shape) of records whose columns have these names.

    Columns are brought into the order of ``columns``, and images are scaled.
    """
    values = records.floats()
    if coding is not None:
        return coding.rows(values.double().numpy())
    if columns is not None and names is not None:
        values = values[:, column_order(names, columns, data)]
    height = None
    width = None
    if len(shape) == 3:
        _, height, width = shape
    scaled = _resized(values, height, width)
    if scaled.shape[1:] != shape:
        raise InputError(
            f"Expected records of shape {shape} in {data}, as in the source, "
            f"got {tuple(scaled.shape[1:])}; pass such records."
        )
    if values.shape != scaled.shape:
        say(f"The images of {data} are scaled to {height} x {width}, the size of the source.")
    return scaled.numpy()


def _resized(values: Tensor, height: int | None, width: int | None) -> Tensor:
    """Scale images (n, C, h, w), each by itself; return vectors as they are."""
    if values.ndim != 4 or height is None or width is None:
        return values
    if tuple(values.shape[2:]) == (height, width):
        return values
    scaled = F.interpolate(values, size=(height, width), mode="bilinear", antialias=True)
    return scaled.clamp(0, 1)
