"""Check of a row function on public random records.

Formal guarantee: docs/theory/private-side.md, Proposition 22.
"""

import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dpswd.errors import InputError
from dpswd.row_copy import RowCopy, RowFunction, is_of_library

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

# Ranges of the pixels of random images. An image whose pixels are all 0, or all 1, is beyond them.
_RANGES = ((0.0, 1.0), (0.0, 0.01), (0.5, 0.6))


class _State(NamedTuple):
    """What tells that a variable was assigned to, or that a list in it has grown."""

    identity: int
    length: int | None  # of a list, dict or set


@torch.no_grad()
def check_row_function(
    row_function: RowFunction, shape: tuple[int, ...], n_classes: int = 1
) -> None:
    """Check on public random records that every row is a function of one record.

    The function is called on 36 records twice, then with the first record changed, then on two of
    them. The rows of the other records must be the same each time, up to rounding.

    Args:
        row_function: The function.
        shape: Shape of a record.
        n_classes: Number of classes of the records.

    Raises:
        InputError: If a row depends on other records or on chance, or if the function changes a
            variable that its copy shares with it.

    Example:
        >>> check_row_function(lambda values: 2 * values, shape=(3,))
        >>> check_row_function(lambda values: values - values.mean(0), shape=(3,))
        Traceback (most recent call last):
        dpswd.errors.InputError: Expected rows that are computed from one record each, got ...
    """
    copied = RowCopy(row_function)
    name = getattr(row_function, "__name__", type(row_function).__name__)
    before = _shared_variables(copied.modules)
    with torch.random.fork_rng(devices=[]):
        # of the CPU alone: torch.manual_seed also changes the state of a GPU, which is not restored
        torch.default_generator.manual_seed(0)
        for values, changed_values in _public_pairs(shape):
            _check_pair(copied, name, values, changed_values, n_classes)
    for variable, state in _shared_variables(copied.modules).items():
        if state != before.get(variable):
            raise InputError(
                f"Expected a row function that keeps nothing, got {variable}, which changes; "
                "use attributes."
            )


def _check_pair(
    copied: RowCopy, name: str, values: Tensor, changed_values: Tensor, n_classes: int
) -> None:
    """Check a row function on records (n, ...).

    It is checked also on the same records with another first one.
    """
    labels = torch.arange(_N_RECORDS) % min(n_classes, _N_RECORDS // _N_OF_CLASS)
    changed_labels = labels.clone()
    changed_labels[0] = 1
    changed_labels %= n_classes
    first = _rows_and_groups(copied, values, labels)
    second = _rows_and_groups(copied, values, labels)
    changed = _rows_and_groups(copied, changed_values, changed_labels)
    two = _rows_and_groups(copied, values[1:3], labels[1:3])
    if not _same(first, second):
        raise InputError(
            "Expected rows that are a function of the record, "
            f"got {name}, whose rows change between two calls in evaluation mode; "
            "remove the randomness."
        )
    if not _same(first[1:], changed[1:]) or not _same(first[1:3], two):
        raise InputError(
            "Expected rows that are computed from one record each, "
            f"got {name}, whose rows change with another record of the batch; remove what looks at "
            "the batch or class (mean, attention, BatchNorm without running statistics)."
        )


def _rows_and_groups(copied: RowCopy, values: Tensor, labels: Tensor) -> Tensor:
    """Return the rows (n, d) of records, with their groups as a further column."""
    rows, groups = copied(values, labels)
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


def _shared_variables(modules: list[nn.Module]) -> dict[str, _State]:
    """Return the variables that a copied module shares with the original.

    They come with their states. They are the attributes of its class and the global variables that
    its methods name. A class that appends every input to a list ``Encoder.inputs``, for example,
    has the variable "Encoder.inputs", whose length grows: the list would keep private records.
    """
    variables: dict[str, Any] = {}
    for module in modules:
        for kind in type(module).__mro__:
            if is_of_library(kind.__module__):
                continue
            for name, value in vars(kind).items():
                variables[f"{kind.__name__}.{name}"] = value
                if inspect.isfunction(value):
                    variables |= inspect.getclosurevars(value).globals
    return {name: _state(value) for name, value in variables.items()}


def _state(value: Any) -> _State:
    """Return identity and length of the value of a variable."""
    length = None
    if isinstance(value, list | dict | set):
        length = len(value)
    return _State(id(value), length)
