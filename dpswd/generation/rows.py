r"""Rows of private records, each computed from one record only.

The guarantee of a release assumes rows :math:`z_i = \phi(x_i)` with a map :math:`\phi` that is fixed before the records
are read. The maps of this library satisfy this by construction and are applied to a whole batch. Every other map,
including a subclass and a map with a hook or a replaced method, is applied to one record at a time by
:func:`dpswd.rowwise.rowwise`, on a copy whose state is discarded.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from dpswd.errors import InputError
from dpswd.generation.features import DCT, Basis, Flatten, Frequencies, Histogram
from dpswd.rowwise import finite_or_zero, rowwise

_PART = 8192  # records per part, which limits memory
_KNOWN = (Basis, DCT, Flatten, Frequencies, Histogram)


def known_rowwise(features: nn.Module) -> bool:
    """Whether a map and all its submodules are unmodified instances of the classes of this library."""
    hooked = features._forward_hooks or features._forward_pre_hooks
    replaced = vars(features).keys() & set(dir(type(features)))
    if type(features) not in _KNOWN or hooked or replaced:
        return False
    return all(known_rowwise(part) for part in features.children())


@torch.no_grad()
def private_rows(features: nn.Module, records: Tensor) -> Tensor:
    """Maps private records (n, ...) to rows (n, d), row by row and without gradients.

    A row that is not finite becomes the zero row, see :func:`dpswd.rowwise.finite_or_zero`.

    Raises:
        InputError: See :func:`dpswd.rowwise.rowwise`.
    """
    rows = features.eval()(records) if known_rowwise(features) or not len(records) else rowwise(features, records)
    return finite_or_zero(rows)


def rows_in_parts(features: nn.Module, records: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Maps records (N, ...), bytes or floats, to rows and labels, one part at a time.

    Raises:
        InputError: If the numbers of records and labels differ.
    """
    if len(records) != len(labels):
        raise InputError(f"Expected a label per record, got {len(records)} and {len(labels)}.")
    for part, classes in zip(records.split(_PART), labels.split(_PART), strict=True):
        values = part.float() / 255 if part.dtype == torch.uint8 else part
        yield private_rows(features, values), classes
