r"""Rows of private records: every one by itself, whatever the map.

A release is proved for rows :math:`z_i = \phi(x_i)`, with a map that is fixed before the records are read. The maps of
this library are such: a row is computed from the entries of ONE record, and none has a state that a call
changes. They get a whole batch. Any other map, a subclass included (or one of ours with a hook or a method replaced),
is handed one record at a time by :func:`dpswd.rowwise.rowwise`: ``if x.max() > 1: x = x / 255`` then divides the
record that it saw, and a buffer that keeps the largest entry keeps it in a copy that is thrown away.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from dpswd.errors import InputError
from dpswd.generation.features import DCT, Basis, Flatten, Frequencies
from dpswd.generation.principal import PrincipalDirections
from dpswd.rowwise import finite_or_zero, rowwise

__all__ = ["known_rowwise", "private_rows", "rows_in_parts"]

_PART = 8192  # records whose rows are in memory at a time
_KNOWN = (Basis, DCT, Flatten, Frequencies, PrincipalDirections)


def known_rowwise(features: nn.Module) -> bool:
    """Whether a map and all its parts are exactly classes of this library, without hooks or methods of their own."""
    hooked = features._forward_hooks or features._forward_pre_hooks
    replaced = vars(features).keys() & set(dir(type(features)))
    if type(features) not in _KNOWN or hooked or replaced:
        return False
    return all(known_rowwise(part) for part in features.children())


@torch.no_grad()
def private_rows(features: nn.Module, records: Tensor) -> Tensor:
    """Maps private records (n, ...) to rows (n, d), row by row, without gradients; keeps nothing of them.

    A row that is not finite becomes the zero row, see :func:`dpswd.rowwise.finite_or_zero`.

    Raises:
        InputError: See :func:`dpswd.rowwise.rowwise`.
    """
    rows = features.eval()(records) if known_rowwise(features) or not len(records) else rowwise(features, records)
    return finite_or_zero(rows)


def rows_in_parts(features: nn.Module, records: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Maps records (N, ...), bytes or floats, to rows, a part at a time: they need not fit in memory together.

    Raises:
        InputError: If there is not one label per record.
    """
    if len(records) != len(labels):
        raise InputError(f"Expected a label per record, got {len(records)} and {len(labels)}.")
    for some, classes in zip(records.split(_PART), labels.split(_PART), strict=True):
        pixels = some.float() / 255 if some.dtype == torch.uint8 else some
        yield private_rows(features, pixels), classes
