"""Check of a row function on public random records.

Formal guarantee: docs/theory/private-side.md, Proposition 22.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpswd._fingerprint import Place, fingerprint
from dpswd.errors import DpswdError, InputError
from dpswd.row_copy import LabelledRows, RowCopy, RowFunction

__all__ = ["check_row_function"]

# Number of public random records on which a row function is checked, and the fewest of each class.
_N_RECORDS = 36
_N_OF_CLASS = 6

# Relative difference of two rows that rounding explains, and the absolute one in units of the
# largest entry: libraries compute batches of other sizes in another order.
_ROUNDING = 1e-3
_SMALL_ROUNDING = 1e-4


class _Scale(NamedTuple):
    """Scales of random vectors, such that one of them can be far from the others."""

    others: float
    changed: float


# A vector that is as long as the others shows a mean of the batch. One that is a hundred or 10^5
# times as long shows a largest entry, a threshold (x / 255 if x.max() > 30 else x) or a range.
_SCALES = (
    _Scale(others=1.0, changed=1.0),
    _Scale(others=1.0, changed=1e2),
    _Scale(others=1.0, changed=1e5),
    _Scale(others=1e-2, changed=1.0),
    _Scale(others=1e-2, changed=1e2),
    _Scale(others=1e2, changed=1.0),
)

# Numbers that stand for a missing entry.
_MARKERS_OF_VECTORS = (0.0, -1.0, -999.0)
_MARKERS_OF_IMAGES = (0.0,)

# Ranges of the pixels of random images. An image whose pixels are all 0, or all 1, is beyond them.
_RANGES = ((0.0, 1.0), (0.0, 0.01), (0.5, 0.6))


@torch.no_grad()
def check_row_function(
    row_function: RowFunction,
    shape: tuple[int, ...],
    n_classes: int = 1,
    n_groups: int | None = None,
) -> None:
    """Check on public random records that every row is a function of one record.

    The function is called on 36 records twice, then with the first record changed, then on two of
    them. The rows of the other records must be the same each time, up to rounding.

    Args:
        row_function: The function.
        shape: Shape of a record.
        n_classes: Number of classes of the records.
        n_groups: Number of groups of a :class:`LabelledRows`; ``None`` for any number.

    Raises:
        InputError: If a row depends on other records or on chance, if a group is not in
            ``[0, n_groups)``, or if the function changes a variable that its copy shares with it.

    Example:
        >>> check_row_function(lambda values: 2 * values, shape=(3,))
        >>> check_row_function(lambda values: values - values.mean(0), shape=(3,))
        Traceback (most recent call last):
        dpswd.errors.InputError: Expected rows that are computed from one record each, got ...
    """
    check = _Check(row_function, n_classes, n_groups)
    before = check.state()
    with torch.random.fork_rng(devices=[]):
        # of the CPU alone: torch.manual_seed also changes the state of a GPU, which is not restored
        torch.default_generator.manual_seed(0)
        for values, changed_values in _public_pairs(shape):
            check.compare(values, changed_values)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a function may divide by an entry, which is zero here
            for values, changed_values in _pairs_with_missing_entries(shape):
                check.compare(values, changed_values)
    for place, state in check.state().items():
        if state != before.get(place):
            raise InputError(
                f"Expected a row function that keeps nothing, got {place[0]}, which a call "
                "changes; use attributes of a module."
            )


@dataclass(frozen=True)
class _Check:
    """Calls of a row function on public records; see :func:`check_row_function`."""

    row_function: RowFunction
    n_classes: int
    n_groups: int | None

    @property
    def name(self) -> str:
        """Name of the function, for messages."""
        return getattr(self.row_function, "__name__", type(self.row_function).__name__)

    def state(self) -> dict[Place, Any]:
        """Return the state of what the function can reach.

        Its copy has no part in it. A class that appends every input to a list ``Encoder.inputs``,
        for example, shares the list with the copy: the list would keep private records.
        """
        function: Any = self.row_function
        if isinstance(self.row_function, LabelledRows):
            function = self.row_function.function
        states = fingerprint(function, self.name)
        for module in RowCopy(self.row_function).modules:  # also those within objects of libraries
            states |= fingerprint(type(module), type(module).__name__)
        return states

    def compare(self, values: Tensor, changed_values: Tensor) -> None:
        """Compare rows before and after a change of the first of records (n, ...).

        Raises:
            InputError: If another row changes, or if rows change between two calls.
        """
        labels = torch.arange(_N_RECORDS) % min(self.n_classes, _N_RECORDS // _N_OF_CLASS)
        changed_labels = labels.clone()
        changed_labels[0] = 1
        changed_labels %= self.n_classes
        first = self.rows_and_groups(values, labels)
        second = self.rows_and_groups(values, labels)
        changed = self.rows_and_groups(changed_values, changed_labels)
        two = self.rows_and_groups(values[1:3], labels[1:3])
        if not _same(first, second):
            raise InputError(
                "Expected rows that are a function of the record, "
                f"got {self.name}, whose rows change between two calls in evaluation mode; "
                "remove the randomness."
            )
        if not _same(first[1:], changed[1:]) or not _same(first[1:3], two):
            raise InputError(
                "Expected rows that are computed from one record each, "
                f"got {self.name}, whose rows change with another record of the batch; remove what "
                "looks at the batch or class (mean, attention, BatchNorm without running "
                "statistics)."
            )

    def rows_and_groups(self, values: Tensor, labels: Tensor) -> Tensor:
        """Return the rows (n, d) of records, with their groups as a further column.

        They come from a new copy, as those of private records do: a layer that is initialised by
        the first batch that it sees then shows that its rows depend on the batch.

        Raises:
            InputError: If the function fails, or if there are groups, and one of them does not
                exist.
        """
        copied = RowCopy(self.row_function)
        try:
            rows, groups = copied(values, labels)
        except DpswdError:
            raise
        except Exception as error:  # code of the user, which raises anything; the values are public
            shape = ", ".join(map(str, values.shape[1:]))
            words = " ".join(str(error).split())
            raise InputError(
                f"Expected rows= to map records (n, {shape}) to rows, got {type(error).__name__} "
                f"from {self.name} on random ones: {words}; let it accept this shape."
            ) from error
        if isinstance(self.row_function, LabelledRows) and self.n_groups is not None:
            is_outside = (groups < 0) | (groups >= self.n_groups)
            if self.n_groups > 1 and bool(is_outside.any()):
                raise InputError(
                    f"Expected groups from 0 to {self.n_groups - 1}, got groups outside from "
                    f"{self.name}; return a group that exists for every record."
                )
        return torch.cat([rows.double(), groups.double()[:, None]], dim=1)


def _same(rows: Tensor, other: Tensor) -> bool:
    """Compare rows up to rounding, which may differ between batches of another size."""
    if rows.shape != other.shape:
        return False
    scale = 0.0
    if rows.numel():
        scale = float(rows.abs().max())
    return torch.allclose(rows, other, rtol=_ROUNDING, atol=_SMALL_ROUNDING * scale)


def _public_pairs(shape: tuple[int, ...]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs of public data sets (36, *shape) that differ in the first record.

    The first record of the second set is far from the others, so that a largest pixel, a range or a
    threshold of the batch changes with it. Images of a range [0, 0.01], for example, are compared
    with the same where the first one is all white: a function that divides by the largest pixel of
    the batch then makes the other rows a hundred times as small.
    """
    if len(shape) == 3:
        yield from _pairs_of_images(shape)
    else:
        yield from _pairs_of_vectors(shape)


def _pairs_of_images(shape: tuple[int, ...]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs of random images (36, *shape).

    The second of a pair has a random, black or white first image.
    """
    for low, high in _RANGES:
        values = low + (high - low) * torch.rand(_N_RECORDS, *shape)
        for first in (torch.rand(*shape), torch.zeros(shape), torch.ones(shape)):
            yield values, torch.cat([first[None], values[1:]])


def _pairs_of_vectors(shape: tuple[int, ...]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs of random vectors (36, *shape).

    The second of a pair has a far first vector or its negative.
    """
    for scale in _SCALES:
        values = scale.others * torch.randn(_N_RECORDS, *shape)
        far = scale.changed * (1 + torch.randn(1, *shape).abs())
        for first in (far, -far):
            yield values, torch.cat([first, values[1:]])
        # positive ones: a logarithm of others is nan, and such a row counts as zero
        yield values.abs(), torch.cat([far, values[1:].abs()])


def _pairs_with_missing_entries(shape: tuple[int, ...]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs of random records (36, *shape) with missing entries.

    A function that replaces missing entries by the mean of the batch then shows the other records.
    """
    values = torch.randn(_N_RECORDS, *shape)
    first = 100 * (1 + torch.randn(1, *shape).abs())
    markers: tuple[float, ...] = _MARKERS_OF_VECTORS
    if len(shape) == 3:
        values = torch.rand(_N_RECORDS, *shape)
        first = torch.ones(1, *shape)
        markers = _MARKERS_OF_IMAGES
    for marker in markers:
        marked = _with_missing_entries(values, marker)
        yield marked, torch.cat([first, marked[1:]])


def _with_missing_entries(values: Tensor, marker: float) -> Tensor:
    """Return values (n, ...) with a marker in about half of the entries.

    The last entry of a record is kept, so that no record is zero.
    """
    rows = values.flatten(1)
    is_missing = torch.rand(rows.shape) < 0.5
    is_missing[:, -1] = False
    return rows.masked_fill(is_missing, marker).view(values.shape)
