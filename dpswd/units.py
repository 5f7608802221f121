"""Units of privacy: which records belong to one person, and which of them enter.

A unit has exactly c entries, c = ``per_unit``: c of its records, drawn at random without
replacement, or all of them, repeated in turn, if it has fewer. Definitions and proofs:
docs/theory/units.md.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpswd._keys import MISSING_TEXTS, Key, is_rounded, label_key
from dpswd._random import SecureRandom
from dpswd._validate import at_least
from dpswd.errors import InputError

__all__ = ["Units"]


@dataclass(frozen=True, eq=False)
class Units:
    """The units of N_r records, and the entries that were drawn of them.

    Attributes:
        per_unit: Number c of entries of every unit. Public.
        numbers: Number (N_r,) of the unit of every record, from 0. PRIVATE.
        entries: Record numbers (N, c) of the entries of the N units. PRIVATE.

    Example:
        >>> units = Units.draw(["anna", "bert", "anna", "anna"], per_unit=2)
        >>> len(units), units.entries.shape
        (2, torch.Size([2, 2]))
        >>> units.entries[1].tolist()  # bert has one record, which enters twice
        [1, 1]
    """

    per_unit: int
    numbers: NDArray[np.int64]
    entries: Tensor

    @classmethod
    def draw(cls, names: Sequence[Any] | NDArray[Any], per_unit: int) -> Self:
        """Draw the entries of every unit by the secret generator.

        Args:
            names: Name of the unit of every record, text or a number. Names are compared as labels
                are (:mod:`dpswd._labels`): the number 7, 7.0 and the text "7" are one unit.
            per_unit: Number c >= 1 of entries of a unit.

        Raises:
            InputError: If a record has no unit, or ``per_unit`` is no positive integer.
        """
        at_least(1, per_unit=per_unit)
        keys_of_names = [_key(name, position) for position, name in enumerate(names)]
        number_of: dict[Key, int] = {}
        for key in keys_of_names:
            number_of.setdefault(key, len(number_of))
        numbers = np.array([number_of[key] for key in keys_of_names], dtype=np.int64)
        sizes = np.bincount(numbers)
        # records in the order of their units, and in random order within a unit
        keys = SecureRandom().words(len(numbers))
        order = np.lexsort((keys, numbers))
        starts = np.cumsum(sizes) - sizes
        turns = np.arange(per_unit) % sizes[:, None]  # (N, c)
        entries = order[starts[:, None] + turns]
        return cls(per_unit, numbers, torch.from_numpy(entries))

    def __len__(self) -> int:
        return len(self.entries)

    def first(self, n: int | None) -> Self:
        """Return the first n units by their first records; ``None`` for all.

        The rule is public, and neighbours stay neighbours (docs/theory/units.md). The first n
        records would not do: a person with more of them would move those of others.

        Example:
            >>> len(Units.draw(["anna", "anna", "bert", "carl"], per_unit=1).first(2))
            2
        """
        return replace(self, entries=self.entries[:n])


class PersonNames:
    """The person of every record, behind a handle: PRIVATE.

    No text of an estimator shows the names, and no pickle holds them.
    """

    def __init__(self, names: Any) -> None:
        self._names = names

    @classmethod
    def of(cls, unit: Any) -> Any:
        """Return names behind a handle.

        The name of a column, which is public, is returned as it is, and so is what is no list.
        """
        if isinstance(unit, str | cls) or not isinstance(unit, Iterable):
            return unit
        return cls(unit)

    def open_names(self) -> Any:
        """Return the names.

        Raises:
            InputError: If the handle comes from a pickle.
        """
        if self._names is None:
            raise InputError(
                "Expected unit with the person of every record, got an estimator that was pickled, "
                "which leaves them out; call set_params(unit=...)."
            )
        return self._names

    def __repr__(self) -> str:
        """Return the text in place of the names."""
        return "an array"

    def __getstate__(self) -> dict[str, None]:
        """Return the state without the names, for a pickle."""
        return {"_names": None}

    def __deepcopy__(self, memo: Any) -> Self:
        """Return the handle itself, as ``sklearn.clone`` needs it."""
        return self


def _key(name: Any, position: int) -> Key:
    """Return the key of the name of a unit; refuse a missing name.

    Names are compared by their keys. The position of the record is for the message.
    """
    key = label_key(name)
    if is_rounded(name):
        raise InputError(
            "Expected units as text or integers, got a float beyond 2^53, in which numbers of "
            "several persons can be one; read the column as text."
        )
    if isinstance(key, str):
        # An accent is one character or two; file systems write one or the other.
        key = unicodedata.normalize("NFC", key)
    if str(key).lower() in MISSING_TEXTS:
        raise InputError(
            "Expected the unit (the person) of every record, got none for record "
            f"{position + 1:,}, counted from 1; give such a record a unit of its own."
        )
    return key


def without_units(X: Any, unit: Any, per_unit: int) -> tuple[Any, Any]:
    """Return records without a column of units, and the unit of each record by name.

    The names are ``None`` where no units are stated. For ``unit="patient"``, they are the cells of
    that column of a DataFrame, which is taken out of the records.

    Raises:
        InputError: If ``unit`` is no column of the records and no list, or ``per_unit`` has none.
    """
    if isinstance(unit, PersonNames):
        unit = unit.open_names()
    if unit is None:
        if per_unit != 1:
            raise InputError(
                f"Expected unit, the person of every record, with per_unit={per_unit!r}, got none; "
                "pass unit=."
            )
        return X, None
    if isinstance(unit, str):
        if not hasattr(X, "columns") or unit not in X.columns:
            raise InputError(
                f"Expected unit={unit!r} to be a column of a DataFrame X, got no such column; "
                "pass its name, or an array with the unit of every record."
            )
        column = X[unit]
        if column.ndim != 1:
            raise InputError(f"Expected one column {unit!r} in X, got several; rename the others.")
        return X.drop(columns=[unit]), column.tolist()
    if hasattr(unit, "tolist"):
        unit = unit.tolist()
    if not isinstance(unit, Iterable):
        raise InputError(
            f"Expected unit as an array with the unit of every record, got {unit!r}; pass an "
            f"array, or the name of a column of a DataFrame."
        )
    return X, list(unit)
