"""Handles of private records, which show public facts and no record, and records that the user may look at.

Public facts are the number N of records, their shape, the classes, and for columns their bounds and kinds. They are
stated by the user, or taken from the records with a line on the screen. Records are opened in one place,
:mod:`dpswd.release`. Proofs: docs/theory/private-side.md.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np
import torch
from torch import Tensor

from dpswd._arrays import Unreadable, as_records
from dpswd._labels import as_labels
from dpswd._layout import Array, Layout
from dpswd._progress import say
from dpswd._validate import at_least, choice, real
from dpswd.bins import KINDS, Bins, Bounds
from dpswd.errors import InputError

__all__ = ["PrivateBatch", "PrivateRecords", "Records"]

IN_MEMORY = 2**30  # bytes of records above which readers leave them on disk


class SharesHandles(dict[int, Any]):
    """Memo of a deepcopy that shares the handles which it meets."""


class _Handle:
    """Base of the handles: neither pickled nor copied, so that no checkpoint or worker process holds a record."""

    def __deepcopy__(self, memo: Any) -> Self:
        return self if isinstance(memo, SharesHandles) else self.__reduce_ex__(4)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        name = f"{type(self).__name__}, which would hold private records"
        remedy = "leave it out: self.save_hyperparameters(ignore=[...])"
        raise InputError(
            f"Expected no copy of {name}, got one (pickle, deepcopy, torch.save, ...); {remedy}."
        )


@dataclass(frozen=True)
class Stored:
    """Records on disk, of which :attr:`read` reads some."""

    read: Callable[
        [Tensor], Tensor
    ]  # maps numbers (n,) to records (n, *sample_shape); InputError at an invalid one
    shape: tuple[int, ...]  # (N, *sample_shape)
    dtype: torch.dtype  # uint8 or float32
    key: str = ""  # checksum of the records or of their names, equal on all ranks of a run

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Tensor) -> Tensor:
        return self.read(index)

    @property
    def large(self) -> bool:
        """Whether the records need more than ``IN_MEMORY`` bytes."""
        return math.prod(self.shape) * self.dtype.itemsize > IN_MEMORY


class PrivateRecords(_Handle):
    """Private records behind a handle: ``len``, ``shape`` and classes are shown, records are not.

    Queries and losses release noisy statistics of them within a :class:`dpswd.Budget` or
    :class:`dpswd.PrivacyBudget`. The handle can be neither indexed, iterated, pickled nor copied.

    Args:
        X: Images (N, H, W), (N, H, W, C) or (N, C, H, W), as bytes or as floats in [0, 1]; or rows (N, d). NumPy,
            torch, or a DataFrame of numbers.
        y: Classes (N,), or ``None``.
        classes: Public list of classes. Without it, they are taken from ``y`` with a line on the screen.
        bounds: Public bounds (low, high) of every column of rows.
        kinds: Public kind of every column: ``"numeric"``, ``"integer"`` or ``"binary"``.
        unreadable: ``"zero"`` maps a record with NaN or inf to zeros; ``"refuse"`` raises.
        name: Name of the records in reports.

    Attributes:
        shape: Shape of one record; images as (channels, height, width).
        n_classes: Number of classes; 0 for none.
        classes: Names of the classes in the order of their numbers; ``None`` without classes.
        taken: The lines that said which facts were taken from the records.

    Raises:
        InputError: If the records, classes or bounds have another form.

    Example:
        >>> records = PrivateRecords(torch.zeros(6, 8, 8), ["a", "b"] * 3, classes=["a", "b"])
        >>> len(records), records.shape, records.n_classes
        (6, (1, 8, 8), 2)
    """

    def __init__(
        self,
        X: Any,
        y: Any = None,
        *,
        classes: Sequence[Any] | None = None,
        bounds: Bounds | None = None,
        kinds: Sequence[str] | None = None,
        unreadable: Unreadable = "refuse",
        name: str = "records",
    ) -> None:
        values, layout = as_records(X, unreadable=unreadable)
        taken = []
        numbers = None
        if y is not None:
            labels = as_labels(y, classes)
            numbers = labels.numbers
            classes = labels.classes
            if labels.notice is not None:
                taken.append(labels.notice)
        name_of_y = getattr(y, "name", None)
        if isinstance(name_of_y, str):
            layout = replace(layout, target=name_of_y)
        if kinds is not None:
            layout = layout.with_kinds(kinds)
        elif layout.kind == "rows":
            notice = layout.notice(values.shape[1])
            if notice is not None:
                taken.append(notice)
            if bounds is not None:
                kinds = layout.column_kinds(len(bounds))
        for line in taken:
            say(line)
        self._set(
            values,
            numbers,
            classes=classes,
            layout=layout,
            name=name,
            taken=taken,
            bounds=bounds,
            kinds=kinds,
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
        from dpswd.data import read  # upwards: readers make handles

        return read(
            Path(path), size=size, channels=channels, classes=classes, unreadable=unreadable
        )  # type: ignore[return-value]

    @classmethod
    def from_values(cls, values: Tensor | Stored, labels: Tensor | None, **facts: Any) -> Self:
        """Make a handle of converted records; for readers. The facts are those of :meth:`_set`."""
        records = cls.__new__(cls)
        records._set(values, labels, **facts)
        return records

    def _set(
        self,
        values: Tensor | Stored,  # (N, *sample_shape), bytes or floats
        labels: Tensor | None,  # numbers (N,) of the classes in int64
        *,
        classes: Sequence[Any] | None = None,
        layout: Layout | None = None,  # of the caller's records
        name: str = "records",
        taken: Sequence[str] = (),  # lines that were shown about facts taken from the records
        bounds: Bounds | None = None,
        kinds: Sequence[str] | None = None,
    ) -> None:
        """Check the facts and keep the records."""
        if labels is None and classes is not None:
            raise InputError(
                f"Expected y, the class of every record, with classes={list(classes)}, got none; pass it."
            )
        if labels is not None and len(labels) != len(values):
            raise InputError(
                f"Expected a class per record, got {len(values)} records and {len(labels)} classes."
            )
        self.shape: tuple[int, ...] = tuple(values.shape[1:])
        self.layout, self.name, self.taken = layout or Layout.of(values), name, tuple(taken)
        self.classes = None if classes is None else list(classes)
        self.n_classes = len(self.classes or ())
        labels = (
            torch.zeros(len(values), dtype=torch.int64)
            if labels is None or classes is None
            else labels
        )
        for what, given in (("bounds", bounds), ("kinds", kinds)):
            if given is not None and len(self.shape) != 1:
                raise InputError(
                    f"Expected {what} of vectors only, got records of shape {self.shape}; leave them out."
                )
            if given is not None and len(given) != self.shape[0]:
                raise InputError(
                    f"Expected {what} for each of the {self.shape[0]} columns of rows, got {len(given)}."
                )
        self.bounds = (
            None
            if bounds is None
            else [(real("bounds", low), real("bounds", high)) for low, high in bounds]
        )
        self.kinds = None if kinds is None else list(kinds)
        names = self.layout.columns or range(len(self.bounds or ()))
        for column, (low, high) in zip(names, self.bounds or (), strict=False):
            if not -math.inf < low < high < math.inf:
                raise InputError(
                    f"Expected bounds low < high, got ({low:g}, {high:g}) for column {column}."
                )
        for kind in self.kinds or ():
            choice(KINDS, kinds=kind)
        if self.bounds and self.kinds:
            Bins.of(self.bounds, self.kinds, 4)  # refuses a column without two values
        self._values, self._labels = values, labels

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        classes = f", n_classes={self.n_classes}" if self.n_classes else ""
        return f"PrivateRecords({len(self)} records of shape {self.shape}{classes})"

    def open_records(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return records at ``index`` as float32, pixels in [0, 1], and their classes. PRIVATE: for dpswd.release."""
        return floats(self._values[index]), self._labels[index]

    def digest(self) -> str:
        """Return a hash of the records, or of their names on disk, that tells two data sets apart. PRIVATE."""
        found = hashlib.blake2b(repr((len(self), self.shape)).encode())
        found.update(self._labels.contiguous().numpy().data)
        values = self._values
        found.update(
            values.key.encode()
            if isinstance(values, Stored)
            else values.cpu().contiguous().numpy().data
        )
        return found.hexdigest()


class PrivateBatch(_Handle):
    """Handle of one secret batch of private records; it has a length and nothing else.

    A loss releases it once. Its records are drawn at that moment, by :mod:`dpswd.release`.

    Args:
        records: The records, or ``None`` for the empty batch of a training step without a release.
        size: Number B of records in the batch.

    Example:
        >>> batch = PrivateBatch(PrivateRecords(torch.zeros(6, 3)), size=4)
        >>> len(batch), batch.to("cpu") is batch
        (4, True)
    """

    def __init__(self, records: PrivateRecords | None, size: int) -> None:
        if records is not None:
            at_least(1, batch_size=size)
            if size > len(records):
                raise InputError(
                    f"Expected batch_size <= {len(records)}, the number of records, got {size}."
                )
        self.records, self._size, self._released = records, 0 if records is None else size, False

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"PrivateBatch({self._size} records)"

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Return itself: the library moves the records."""
        return self

    def consume(self) -> PrivateRecords:
        """Return the handle of the records, once; for the loss that releases the batch."""
        if self.records is None:
            raise InputError(
                "Expected a batch with records, got the empty batch of a step without a release."
            )
        if self._released:
            raise InputError(
                "Expected a new batch, got one that was released; each batch serves one release."
            )
        self._released = True
        return self.records


@dataclass(frozen=True)
class Records:
    """Records that the user may look at: test sets, public sources, benchmarks.

    Attributes:
        values: ``(N, *sample_shape)`` in uint8 or float32.
        labels: Classes (N,) in int64.

    Raises:
        InputError: If there are no records, or their numbers differ.

    Example:
        >>> records = Records(torch.full((4, 1, 2, 2), 255, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]))
        >>> len(records), records.floats().max(), records.select(records.labels == 1).labels
        (4, tensor(1.), tensor([1, 1]))
    """

    values: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if not len(self.values) or len(self.values) != len(self.labels):
            raise InputError(
                f"Expected a label per record, got {len(self.values)} and {len(self.labels)}."
            )

    def __len__(self) -> int:
        return len(self.values)

    def floats(self, index: Tensor | slice = slice(None)) -> Tensor:
        """Return records as float32; bytes become pixels in [0, 1]."""
        return floats(self.values[index])

    def rows(self) -> Array:
        """Return records as rows (N, d) in float32."""
        return np.asarray(self.floats().flatten(1).numpy())

    def select(self, index: Tensor) -> "Records":
        """Return the records at ``index``."""
        return Records(self.values[index], self.labels[index])

    def private(
        self, *, classes: Sequence[Any] | None = None, name: str = "records"
    ) -> PrivateRecords:
        """Return a handle of these records, which play the private ones; ``classes=None`` leaves the labels out."""
        return PrivateRecords.from_values(self.values, self.labels, classes=classes, name=name)


def floats(values: Tensor) -> Tensor:
    """Return records as float32; bytes become pixels in [0, 1]."""
    return (
        values.to(torch.float32) / 255 if values.dtype == torch.uint8 else values.to(torch.float32)
    )
