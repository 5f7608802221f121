"""Handles of private records, and records that the user may look at.

Handles show public facts: the number N of records, their shape, the classes, and for columns their
bounds and kinds. They are stated by the user, or taken from the records with a line on the screen.
Records are opened in one place, :mod:`dpswd.release`. Proofs:
docs/theory/private-side.md.

Terms. The guarantee protects a *unit*: a record, or where units are stated a person with all
records. N is the number of units, and ``len`` of a handle. Of each unit, c records enter a release
as its *entries*; without units, the entries are the records.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np
import torch
from torch import Tensor

from dpswd._arrays import Unreadable, as_records
from dpswd._cells import cells_as_records, check_unreadable, frame_table, say_left_out
from dpswd._frames import as_pandas, frame_package
from dpswd._labels import as_labels, labels_from_one
from dpswd._layout import Array, Layout
from dpswd._progress import say
from dpswd._public_facts import ONE_RECORD
from dpswd._validate import at_least, choice, pairs
from dpswd.bins import KINDS, Bins, Bounds
from dpswd.errors import InputError
from dpswd.features.shapes import check_shapes, to_distances
from dpswd.units import Units, without_units

__all__ = ["PrivateBatch", "PrivateRecords", "Records"]

# Records of more bytes than this are left on disk by readers.
MOST_BYTES_IN_MEMORY = 2**30

# Images that are mapped to distances at a time, which bounds the memory.
_IMAGES_AT_ONCE = 1000

# Fewest bins of a column, with which a column is refused that has no two values in its bounds.
_FEWEST_BINS = 4


class SharesHandles(dict[int, Any]):
    """Memo for ``copy.deepcopy(value, memo)`` under which a handle is its own copy.

    With any other memo, a copy of a handle raises an error. The library copies a row function with
    this one (:mod:`dpswd.row_copy`). Such a function may be a method of an object that also holds
    the records; object and method are copied, the handle is not.
    """


class _Handle:
    """Base of the handles, which can be neither pickled nor copied.

    No checkpoint and no worker process can hold a record therefore.
    """

    def __getitem__(self, index: Any) -> NoReturn:
        """Refuse to show a record.

        Iteration, NumPy and loaders of torch call this method, too.
        """
        raise InputError(
            f"Expected no look at the records of {type(self).__name__}, which are private, got "
            "one; pass the handle to a loss or a query, which releases noisy statistics of them."
        )

    def __deepcopy__(self, memo: Any) -> Self:
        """Return itself under the memo of the library; refuse any other copy."""
        if isinstance(memo, SharesHandles):
            return self
        raise self._refused_copy()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse ``pickle``, ``copy.copy`` and ``torch.save``, which call this method."""
        raise self._refused_copy()

    def _refused_copy(self) -> InputError:
        """Return the error of a copy."""
        return InputError(
            f"Expected no copy of {type(self).__name__}, which would hold private records, got one "
            "(pickle, deepcopy, torch.save, ...); leave it out: "
            "self.save_hyperparameters(ignore=[...]), and torch.save(module.state_dict(), path) in "
            "place of a whole module."
        )


@dataclass(frozen=True)
class Stored:
    """Records on disk, of which :attr:`read` reads some.

    Attributes:
        read: Maps indices (n,) to records (n, *sample_shape); raises an :class:`InputError` at a
            record that cannot be read.
        shape: (N, *sample_shape).
        dtype: uint8 or float32.
        key: Checksum of the records or of their names, equal on all ranks of a run.
    """

    read: Callable[[Tensor], Tensor]
    shape: tuple[int, ...]
    dtype: torch.dtype
    key: str = ""

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Tensor) -> Tensor:
        return self.read(index)

    @property
    def large(self) -> bool:
        """Whether the records need more than ``MOST_BYTES_IN_MEMORY``."""
        return math.prod(self.shape) * self.dtype.itemsize > MOST_BYTES_IN_MEMORY


class PrivateRecords(_Handle):
    """Private records behind a handle.

    The handle shows ``len``, ``shape`` and classes, and no records. Queries and losses release
    noisy statistics of records within a :class:`dpswd.Budget` or :class:`dpswd.PrivacyBudget`. The
    handle can be neither indexed, iterated, pickled nor copied.

    Args:
        X: Images (N, H, W), (N, H, W, C) or (N, C, H, W), as bytes or as floats in [0, 1]; or
            vectors (N, d). NumPy, torch, or a DataFrame of numbers (of pandas or polars, or a
            table of pyarrow).
        y: Classes (N,), or ``None``.
        classes: Public list of classes. Without it, they are taken from ``y`` with a line on the
            screen.
        bounds: Public bounds (low, high) of every column of vectors.
        kinds: Public kind of every column: ``"numeric"``, ``"integer"``, ``"binary"``, or
            ``"nominal"`` for numbers of categories.
        columns: Public facts of the columns of a DataFrame, with categories, dates and missing
            cells: a dictionary by names, or a file (:mod:`dpswd.columns`).
        unit: The unit of every record, for example the number of the patient: an array (N,), or the
            name of a column of a DataFrame, which is then no part of the records. The guarantee
            protects a unit with all of its records (docs/theory/units.md). ``None``: every record
            is a unit.
        per_unit: Number c of records of a unit that enter at most; they are drawn at random.
        unreadable: ``"zero"`` maps a record with NaN or inf to zeros; ``"refuse"`` raises.
        name: Name of the records in reports.

    Attributes:
        shape: Shape of one record; images as (channels, height, width).
        has_units: Whether units are stated.
        per_unit: Number c of entries of a unit; 1 without units.
        n_entries: Number N c of entries, of which sums have a term each.
        n_classes: Number of classes; 0 for none.
        classes: Names of the classes in the order of their numbers; ``None`` without classes.
        bounds: Bounds of the columns; ``None`` if they are not stated.
        kinds: Kinds of the columns; ``None`` if they are not stated.
        layout: Format of the caller's records, in which synthetic records are returned.
        taken: The lines that said which facts were taken from the records.
        shapes: ``"light"`` or ``"dark"`` for images of distances (:meth:`as_shapes`); else
            ``None``.

    Raises:
        InputError: If the records, classes or bounds have another form.

    Example:
        >>> records = PrivateRecords(torch.zeros(6, 8, 8), ["a", "b"] * 3, classes=["a", "b"])
        >>> len(records), records.shape, records.n_classes
        (6, (1, 8, 8), 2)
        >>> scans = PrivateRecords(torch.zeros(6, 3), unit=[1, 1, 1, 2, 2, 3], per_unit=2)
        >>> scans, scans.n_entries
        (PrivateRecords(3 units of at most 2 records of shape (3,)), 6)
    """

    def __init__(
        self,
        X: Any,
        y: Any = None,
        *,
        classes: Sequence[Any] | None = None,
        bounds: Bounds | None = None,
        kinds: Sequence[str] | None = None,
        columns: Any = None,
        unit: Any = None,
        per_unit: int = 1,
        unreadable: Unreadable = "refuse",
        name: str = "records",
    ) -> None:
        package = frame_package(X)
        X, unit_names = without_units(as_pandas(X), unit, per_unit)
        notices: list[str | None] = []  # lines about facts that are taken from the records
        if columns is None:
            values, layout = as_records(X, unreadable=unreadable)
        else:
            _refuse_beside_columns(bounds, kinds, unreadable)
            table, types_notice = frame_table(X, columns)
            notices.append(types_notice)
            values, layout = cells_as_records(X, table)
            bounds = table.bounds
            kinds = table.kinds
        if package:
            layout = replace(layout, package=package)
        class_numbers = None
        if y is not None:
            labels = as_labels(y, classes)
            notices.append(labels.notice)
            class_numbers = labels.numbers
            classes = labels.classes
        name_of_classes = getattr(y, "name", None)
        if isinstance(name_of_classes, str):  # of a Series
            layout = replace(layout, target=name_of_classes)
        if columns is None:
            layout, kinds, kinds_notice = _kinds_of_numbers(values, layout, bounds, kinds)
            notices.append(kinds_notice)
        lines = [notice for notice in notices if notice]
        for line in lines:
            say(line)
        if layout.table is not None:
            say_left_out(layout.table, has_units=unit_names is not None)
        units = None
        if unit_names is not None:
            units = Units.draw(unit_names, per_unit)
        self._set(
            values,
            class_numbers,
            classes=classes,
            layout=layout,
            name=name,
            taken=lines,
            bounds=bounds,
            kinds=kinds,
            units=units,
        )

    @classmethod
    def from_folder(
        cls,
        path: str | Path,
        *,
        size: int | None = None,
        channels: int | None = None,
        classes: Sequence[str] | None = None,
        unreadable: Unreadable = "refuse",
    ) -> Self:
        """Read images of a folder, whose innermost folders are the classes.

        The options and their defaults are those of :func:`dpswd.data.read`.
        """
        # This import points upwards, since readers make handles: see .importlinter.
        from dpswd.data import read

        return read(  # type: ignore[return-value]  # a subclass gets a handle of the base class
            Path(path), size=size, channels=channels, classes=classes, unreadable=unreadable
        )

    @classmethod
    def from_values(
        cls,
        values: Tensor | Stored,
        labels: Tensor | None,
        *,
        classes: Sequence[Any] | None = None,
        layout: Layout | None = None,
        name: str = "records",
        taken: Sequence[str] = (),
        bounds: Bounds | None = None,
        kinds: Sequence[str] | None = None,
        units: Units | None = None,
    ) -> Self:
        """Make a handle of converted records; for readers.

        Args:
            values: Records ``(N, *sample_shape)``, bytes or floats.
            labels: Numbers (N,) of the classes in int64, or ``None``.
            classes: Public names of the classes; without them, labels are not used.
            layout: Format of the caller's records; that of ``values`` by default.
            name: Name of the records in reports.
            taken: Lines that were shown about facts taken from the records.
            bounds: Public bounds of every column.
            kinds: Public kind of every column.
            units: Units of the records; ``None``: every record is one.

        Raises:
            InputError: If the facts do not fit the records.
        """
        records = cls.__new__(cls)  # without __init__, which converts what a caller passes
        records._set(
            values,
            labels,
            classes=classes,
            layout=layout,
            name=name,
            taken=taken,
            bounds=bounds,
            kinds=kinds,
            units=units,
        )
        return records

    def _set(
        self,
        values: Tensor | Stored,
        labels: Tensor | None,
        *,
        classes: Sequence[Any] | None,
        layout: Layout | None,
        name: str,
        taken: Sequence[str],
        bounds: Bounds | None,
        kinds: Sequence[str] | None,
        units: Units | None,
    ) -> None:
        """Check the facts and keep the records.

        The arguments are those of :meth:`from_values`.
        """
        _check_lengths(len(values), labels, classes, units)
        self.shapes: str | None = None  # as_shapes sets it
        self.has_units = units is not None
        self.per_unit = 1
        if units is not None:
            self.per_unit = units.per_unit
        self.name = name
        self.taken = tuple(taken)
        self.shape: tuple[int, ...] = tuple(values.shape[1:])
        if layout is None:
            layout = Layout.of(values)
        self.layout: Layout = layout
        self.classes: list[Any] | None = None
        self.n_classes = 0
        if classes is not None:
            self.classes = list(classes)
            self.n_classes = len(self.classes)
        self.bounds = self._checked_bounds(bounds)
        self.kinds: list[str] | None = None
        if kinds is not None:
            self.kinds = _checked_kinds(kinds, self.shape)
        if self.bounds and self.kinds:
            Bins.of(self.bounds, self.kinds, _FEWEST_BINS)  # refuses a column without two values
        if labels is None or classes is None:
            labels = torch.zeros(len(values), dtype=torch.int64)  # all in one class
        self._values = values
        self._labels = labels
        self._units = units

    def _checked_bounds(self, bounds: Bounds | None) -> list[tuple[float, float]] | None:
        """Return bounds of the columns as floats; refuse those that are not increasing."""
        if bounds is None:
            return None
        checked = pairs("bounds", bounds)
        _check_columns("bounds", len(checked), self.shape)
        names = self.layout.columns or range(len(checked))
        for column, (low, high) in zip(names, checked, strict=True):
            if not -math.inf < low < high < math.inf:
                raise InputError(
                    f"Expected bounds low < high, got ({low:g}, {high:g}) for column {column}; "
                    "correct them."
                )
        return checked

    def __len__(self) -> int:
        """Return the number N of units: of records, where no units are stated."""
        if self._units is not None:
            return len(self._units)
        return len(self._values)

    @property
    def protects(self) -> str:
        """What neighbouring data sets differ in, in words, as ledger and report state it."""
        if not self.has_units:
            return ONE_RECORD
        if self.per_unit == 1:
            return "one person, at most 1 record"
        return f"one person, at most {self.per_unit} records"

    @property
    def n_entries(self) -> int:
        """Number N c of entries: the number of records, where no units are stated."""
        return len(self) * self.per_unit

    @property
    def entry_noun(self) -> str:
        """What a count of entries counts, for a message: records, or entries of units."""
        if self.has_units:
            return "entries"
        return "records"

    def __repr__(self) -> str:
        classes = ""
        if self.n_classes:
            classes = f", n_classes={self.n_classes}"
        units = ""
        if self.has_units:
            units = f"units of at most {self.per_unit} "
        return f"PrivateRecords({len(self)} {units}records of shape {self.shape}{classes})"

    def as_shapes(self, ink: str) -> Self:
        """Return a handle of the images as signed distances to the border of their shape.

        The map is public, and maps each image by itself (:mod:`dpswd.features.shapes`), so that
        neighbours stay neighbours, and all sensitivities are those of images in [0, 1].

        Args:
            ink: ``"light"`` for light shapes on a dark ground, ``"dark"`` for dark ones on light.

        Raises:
            InputError: If the records are no grey images, or the ink is another one.
        """
        check_shapes(ink, self.shape)
        values: Tensor | Stored
        if isinstance(self._values, Stored):
            values = _stored_shapes(self._values, ink)
        else:
            parts = self._values.split(_IMAGES_AT_ONCE)
            values = torch.cat([to_distances(floats(part), ink) for part in parts])
        mapped = type(self).from_values(
            values,
            self._labels,
            classes=self.classes,
            layout=self.layout,
            name=self.name,
            taken=self.taken,
            units=self._units,
        )
        mapped.shapes = ink
        return mapped

    def entries_of(self, units: Tensor) -> Tensor:
        """Return the indices (n c,) of the entries of some units (n,), unit after unit."""
        return (units[:, None] * self.per_unit + torch.arange(self.per_unit)).flatten()

    def open_records(self, entries: Tensor) -> tuple[Tensor, Tensor]:
        """Return the records of entries with indices (n,), and their classes. PRIVATE.

        Records are ``(n, *shape)``, classes (n,). Records are float32, pixels in [0, 1]. Only
        :mod:`dpswd.release` may call this method.
        """
        indices = entries
        if self._units is not None:
            indices = self._units.entries.flatten()[entries]
        return floats(self._values[indices]), self._labels[indices]

    def digest(self) -> str:
        """Return a hash that tells two data sets apart. PRIVATE.

        It is computed from number and shape, classes, units and the records themselves; of records
        on disk, from their :attr:`Stored.key`.
        """
        digest = hashlib.blake2b(repr((len(self), self.shape)).encode())
        digest.update(self._labels.contiguous().numpy().data)
        if self._units is not None:
            digest.update(self._units.numbers.data)
        if isinstance(self._values, Stored):
            digest.update(self._values.key.encode())
        else:
            digest.update(self._values.cpu().contiguous().numpy().data)
        return digest.hexdigest()


def check_handle(records: Any, name: str = "records") -> None:
    """Raise an InputError unless records are behind a handle."""
    if not isinstance(records, PrivateRecords):
        raise InputError(
            f"Expected {name} to be PrivateRecords, got {type(records).__name__}; wrap them: "
            "PrivateRecords(X, y)."
        )


def _refuse_beside_columns(
    bounds: Bounds | None, kinds: Sequence[str] | None, unreadable: Unreadable
) -> None:
    """Refuse arguments that facts of columns leave no meaning."""
    if bounds is not None or kinds is not None:
        raise InputError(
            "Expected columns, or bounds and kinds, got both; leave bounds and kinds out."
        )
    check_unreadable(unreadable)


def _kinds_of_numbers(
    values: Tensor, layout: Layout, bounds: Bounds | None, kinds: Sequence[str] | None
) -> tuple[Layout, Sequence[str] | None, str | None]:
    """Return layout and kinds of columns of numbers, and a line on the kinds.

    Where the kinds are not stated, they follow from the types of the columns, and the line says so.
    """
    if kinds is not None:
        checked = _checked_kinds(kinds, tuple(values.shape[1:]))
        return layout.with_kinds(checked), checked, None
    if layout.kind != "rows":
        return layout, None, None
    notice = layout.notice(values.shape[1])
    if bounds is not None:
        kinds = layout.column_kinds(values.shape[1])
    return layout, kinds, notice


def _checked_kinds(kinds: Sequence[str], shape: tuple[int, ...]) -> list[str]:
    """Return kinds of columns as a list; refuse those that do not fit a shape."""
    if isinstance(kinds, str) or not isinstance(kinds, Iterable):
        raise InputError(
            f"Expected kinds as a list, one for each column, got {kinds!r}; pass a list of "
            f"{', '.join(KINDS)}."
        )
    checked = list(kinds)
    _check_columns("kinds", len(checked), shape)
    for kind in checked:
        choice(KINDS, kinds=kind)
    return checked


def _check_columns(name: str, count: int, shape: tuple[int, ...]) -> None:
    """Refuse ``count`` facts of columns that do not fit records of a shape.

    They fit if records are vectors of this length.
    """
    if len(shape) != 1:
        raise InputError(
            f"Expected {name} of vectors only, got records of shape {shape}; leave them out."
        )
    if count != shape[0]:
        raise InputError(
            f"Expected {name} for each of the {shape[0]} columns of rows, got {count}; pass as "
            "many."
        )


def check_n_classes(records: PrivateRecords, n_classes: int, owner: str) -> None:
    """Refuse records of another number of classes than their owner has.

    Args:
        records: The records.
        n_classes: Number of classes of the owner; 0 for none.
        owner: What releases the records, for the message.
    """
    if records.n_classes == n_classes:
        return
    if not records.n_classes:
        raise InputError(
            f"Expected records with labels, as n_classes={n_classes} of {owner}, got records "
            "without; pass their labels and classes, PrivateRecords(X, y, classes=[...]), or leave "
            "classes out."
        )
    remedy = f"set n_classes={records.n_classes}"
    if records.n_classes == n_classes + 1:
        remedy = f"{labels_from_one(n_classes)}; otherwise, {remedy}"
    raise InputError(
        f"Expected n_classes={records.n_classes} of {owner}, as the records, got {n_classes}; "
        f"{remedy}."
    )


def _check_lengths(
    n_records: int, labels: Tensor | None, classes: Sequence[Any] | None, units: Units | None
) -> None:
    """Refuse classes or units that are not one for each record."""
    if labels is None and classes is not None:
        raise InputError(
            f"Expected y, the class of every record, with classes={list(classes)}, got none; "
            "pass it."
        )
    if labels is not None and len(labels) != n_records:
        raise InputError(
            f"Expected a label for each record, got {n_records:,} records and {len(labels):,} "
            "labels; pass the labels of the same records."
        )
    if units is not None and len(units.numbers) != n_records:
        raise InputError(
            f"Expected a unit per record, got {n_records} records and {len(units.numbers)} units; "
            "pass as many."
        )


def _stored_shapes(stored: Stored, ink: str) -> Stored:
    """Return images on disk as images of distances.

    Distances are computed when the images are read.
    """

    def read_distances(indices: Tensor) -> Tensor:
        return to_distances(floats(stored.read(indices)), ink)

    return replace(
        stored, read=read_distances, dtype=torch.uint8, key=f"{stored.key}, shapes {ink}"
    )


class PrivateBatch(_Handle):
    """Handle of one secret batch of private records; it has a length and nothing else.

    A loss releases it once. Its records are drawn at that moment, by :mod:`dpswd.release`.

    Args:
        records: The records, or ``None`` for the empty batch of a training step without a release.
        size: Number B of records in the batch; of units, where units are stated.

    Raises:
        InputError: If the records are not behind a handle, or are fewer than B.

    Example:
        >>> batch = PrivateBatch(PrivateRecords(torch.zeros(6, 3)), size=4)
        >>> len(batch), batch.to("cpu") is batch
        (4, True)
    """

    def __init__(self, records: PrivateRecords | None, size: int) -> None:
        if records is None:
            size = 0
        else:
            check_handle(records)
            at_least(1, batch_size=size)
            if size > len(records):
                raise InputError(
                    f"Expected batch_size <= {len(records)}, the number of records, got {size}; "
                    "lower it."
                )
        self.records = records
        self._size = size
        self._is_released = False

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"PrivateBatch({self._size} records)"

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Return itself: the library moves the records."""
        return self

    def consume(self) -> PrivateRecords:
        """Return the handle of the records, once; for the loss that releases the batch.

        Raises:
            InputError: If the batch is empty, or was released before.
        """
        if self.records is None:
            raise InputError(
                "Expected a batch with records, got the empty batch of a step without a release; "
                "use loss.distance(last_release, rows), which costs nothing."
            )
        if self._is_released:
            raise InputError(
                "Expected a new batch, got one that was released; each batch serves one release."
            )
        self._is_released = True
        return self.records


@dataclass(frozen=True)
class Records:
    """Records that the user may look at: test sets, public sources, benchmarks.

    Attributes:
        values: ``(N, *sample_shape)`` in uint8 or float32.
        labels: Classes (N,) in int64.
        nominal: Positions of the columns of rows whose numbers stand for categories without an
            order.

    Raises:
        InputError: If there are no records, or their numbers differ.

    Example:
        >>> values = torch.full((4, 1, 2, 2), 255, dtype=torch.uint8)
        >>> records = Records(values, torch.tensor([0, 1, 0, 1]))
        >>> len(records), records.floats().max(), records.select(records.labels == 1).labels
        (4, tensor(1.), tensor([1, 1]))
    """

    values: Tensor
    labels: Tensor
    nominal: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.values) or len(self.values) != len(self.labels):
            raise InputError(
                "Expected at least one record, and a label per record, got "
                f"{len(self.values)} records and {len(self.labels)} labels; pass as many."
            )

    def __len__(self) -> int:
        return len(self.values)

    def floats(self, index: Tensor | slice = slice(None)) -> Tensor:
        """Return records as float32; bytes become pixels in [0, 1]."""
        return floats(self.values[index])

    def vectors(self) -> Array:
        """Return records as vectors (N, d) in float32, a NumPy array."""
        return np.asarray(self.floats().flatten(1).numpy())

    def select(self, index: Tensor) -> "Records":
        """Return the records at ``index``."""
        return Records(self.values[index], self.labels[index], self.nominal)

    def evenly_spread(self, n: int) -> "Records":
        """Return at most n records, evenly spread.

        Example:
            >>> rows = torch.arange(9.0)[:, None]
            >>> Records(rows, torch.zeros(9)).evenly_spread(3).values.flatten().tolist()
            [0.0, 4.0, 8.0]
        """
        if n >= len(self):
            return self
        return self.select(torch.linspace(0, len(self) - 1, n).round().long())

    def private(
        self, *, classes: Sequence[Any] | None = None, name: str = "records"
    ) -> PrivateRecords:
        """Return a handle of these records, which play the private ones.

        ``classes=None`` leaves the labels out.
        """
        return PrivateRecords.from_values(self.values, self.labels, classes=classes, name=name)


def floats(values: Tensor) -> Tensor:
    """Return records as float32; bytes become pixels in [0, 1]."""
    converted = values.to(torch.float32)
    if values.dtype == torch.uint8:
        return converted / 255
    return converted
