"""What a reader of files is asked for, and what it returns."""

import csv
import os
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpswd._arrays import Unreadable
from dpswd._cells import check_unreadable, say_left_out
from dpswd._labels import MIN_CLASSES, Labels
from dpswd._layout import Layout
from dpswd._progress import say
from dpswd._public_facts import taken_from_records
from dpswd._validate import at_least, choice
from dpswd.columns import Table
from dpswd.errors import InputError
from dpswd.records import PrivateRecords, Records, Stored
from dpswd.units import Units

# NumPy, zipfile and csv raise these on damaged files.
_DAMAGED = (
    ArithmeticError,
    AttributeError,
    EOFError,
    KeyError,
    OSError,
    RuntimeError,
    SystemError,  # of pyarrow
    TypeError,
    ValueError,
    csv.Error,
    zipfile.BadZipFile,
    zlib.error,
)
# Those that say that a file ends too early, in words about archives.
_CUT_SHORT = (EOFError, zipfile.BadZipFile, zlib.error)

# What to do with a file of another type, by its ending.
REMEDIES = {
    ".pt": "draw records from a generator.pt by dpswd sample, and read those",
    ".xlsx": "save the sheet as .csv",
    ".xls": "save the sheet as .csv",
    ".ods": "save the sheet as .csv",
    ".tsv": "rename it to .csv, whose cells may be separated by tabs",
    ".zip": "unpack it",
    ".gz": "unpack it",
    ".tar": "unpack it",
    ".png": "pass the folder of the images",
    ".jpg": "pass the folder of the images",
}


@dataclass(frozen=True)
class ReadOptions:
    """Options of :func:`dpswd.data.read`, of which each reader knows some."""

    root: str | Path | None = None
    size: int | None = None
    channels: int | None = None
    classes: Sequence[Any] | None = None
    labelled: bool = True
    target: str | None = None
    unit: str | None = None
    per_unit: int = 1
    unreadable: Unreadable = "refuse"
    download: bool = False
    in_memory: bool | None = None
    min_classes: int = MIN_CLASSES
    missing_is_class: bool = False
    columns: Table | None = None

    def __post_init__(self) -> None:
        choice(("refuse", "zero"), unreadable=self.unreadable)
        if self.columns is not None:
            check_unreadable(self.unreadable)
        if self.unit is not None and self.unit == self.target:
            raise InputError(
                "Expected different columns as target (--target) and unit (--unit), got "
                f"{self.unit!r} for both; the unit names the person, the target the class."
            )
        for option, name in (("target", self.target), ("unit", self.unit)):
            if self.columns is not None and name in self.columns.names:
                raise InputError(
                    f"Expected facts of other columns than the {option} {name}, got facts of it, "
                    "too; take it out of the facts."
                )
        if self.unit is None and self.per_unit != 1:
            raise InputError(
                f"Expected unit (--unit) with per_unit={self.per_unit!r}, got none; "
                "name the person of every record."
            )
        at_least(1, per_unit=self.per_unit)

    def stay_on_disk(self, stored: Stored) -> bool:
        """Return whether records stay on disk.

        ``in_memory`` decides; without it, records of more than 1 GiB stay on disk.
        """
        if self.in_memory is None:
            return stored.large
        return not self.in_memory


@dataclass(frozen=True, eq=False)
class ReadRecords:
    """Records of a folder or file, before they are put behind a handle. PRIVATE.

    Attributes:
        name: Name in reports.
        values: Records (N, *sample_shape), in memory or on disk.
        labels: Their classes, or ``None``.
        layout: Format in which synthetic records are returned.
        kinds: Kinds of the columns of a table, guessed from their entries. They are private until
            they are stated, or a line on the screen says that they are taken.
        notices: Lines about facts that were taken from the records, other than the classes.
        note: Line about what was read.
        files: Names of the files of images.
        columns: Names of the columns: those of a table, or the array ``columns`` of an ``.npz``
            file.
        unit_names: Name of the unit of every record (N,), if units were asked for.
        test: Public records for evaluation, if they were asked for and there are any.
    """

    name: str
    values: Tensor | Stored
    labels: Labels | None
    layout: Layout | None = None
    kinds: list[str] | None = None
    notices: tuple[str, ...] = ()
    note: str = ""
    files: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None
    unit_names: tuple[Any, ...] | None = None
    test: Records | None = None

    @property
    def classes(self) -> list[Any] | None:
        """Names of the classes, or ``None`` without labels."""
        if self.labels is None:
            return None
        return self.labels.classes

    def private(
        self, bounds: Any = None, kinds: Sequence[str] | None = None, per_unit: int = 1
    ) -> PrivateRecords:
        """Print the lines about the records, and return the handle.

        Args:
            bounds: Public bounds of the columns.
            kinds: Public kinds of the columns. Those of a table with bounds, which need kinds, are
                taken from its entries if they are not stated.
            per_unit: Number of records of a unit that enter at most, where there are units.
        """
        notices = list(self.notices)
        numbers = None
        if self.labels is not None:
            numbers = self.labels.numbers
            if self.labels.notice is not None:
                notices.append(self.labels.notice)
        layout = self.layout or Layout.of(self.values)
        if layout.table is not None:
            bounds = layout.table.bounds
            kinds = layout.table.kinds
            say_left_out(layout.table, has_units=self.unit_names is not None)
        elif kinds is not None:
            layout = layout.with_kinds(kinds, of_file=True)
        elif bounds is not None and self.kinds is not None:
            kinds = self.kinds
            layout = layout.with_kinds(kinds, of_file=True)
            notices.append(taken_from_records(kinds=self.kinds))
        elif layout.kind == "rows":
            notice = layout.notice(self.values.shape[1])
            if notice is not None:
                notices.append(notice)
        for line in (self.note, *notices):
            if line:
                say(line)
        units = None
        if self.unit_names is not None:
            units = Units.draw(self.unit_names, per_unit)
        return PrivateRecords.from_values(
            self.values,
            numbers,
            classes=self.classes,
            layout=layout,
            name=self.name,
            taken=notices,
            bounds=bounds,
            kinds=kinds,
            units=units,
        )

    def public(self) -> Records:
        """Return records that the user may look at; records without labels have label 0."""
        assert isinstance(self.values, Tensor)  # public records are read with in_memory=True
        labels = torch.zeros(len(self.values), dtype=torch.int64)
        if self.labels is not None:
            labels = self.labels.numbers
        nominal: tuple[int, ...] = ()
        if self.layout is not None and self.layout.table is not None:
            kinds = self.layout.table.kinds
            nominal = tuple(j for j, kind in enumerate(kinds) if kind == "nominal")
        return Records(self.values, labels, nominal)


def data_root(root: str | Path | None) -> Path:
    """Return the directory of the data sets.

    It is the argument, else ``DPSWD_DATA``, else ``./data``.
    """
    return Path(root or os.environ.get("DPSWD_DATA") or "data")


def find_path(data: str | Path, root: str | Path | None) -> Path | None:
    """Return the path of a folder or file, if it exists.

    The path is relative to the working directory, else to ``root``.
    """
    for path in (Path(data), data_root(root) / data):
        if path.exists():
            return path
    return None


def report_name(path: Path) -> str:
    """Return the name of a folder or file in reports.

    Bytes that are not UTF-8 become "?".
    """
    return path.resolve().stem.encode("utf-8", "replace").decode()


@contextmanager
def damaged_as_input_error(
    path: Path, reason: str = "", remedy: str = "write it again"
) -> Iterator[None]:
    """Turn the errors of readers on a damaged file into an InputError.

    They are those of NumPy, zipfile, csv and pyarrow.

    Args:
        path: The file.
        reason: What is wrong with the file, for the message; by default, the text of the error.
            It is stated for tables, whose errors have parts of cells in their text.
        remedy: What to do.
    """
    try:
        yield
    except InputError:
        raise
    except MemoryError:
        raise InputError(
            f"Expected {path} to fit into memory, got more, which a damaged file asks for, too; "
            "write it again, or in parts."
        ) from None
    except _DAMAGED as error:
        if isinstance(error, OSError) and error.strerror:
            reason = error.strerror
            remedy = "check the path and its permissions"
        if isinstance(error, _CUT_SHORT):
            reason = "a damaged file, or one that was not written to its end"
        if not reason:
            reason = str(error)
        raise InputError(f"Expected a readable file at {path}, got: {reason}; {remedy}.") from None
