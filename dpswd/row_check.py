"""Check of a row function on public random records.

Formal guarantee: docs/theory/private-side.md, Proposition 22.
"""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from dpswd.errors import InputError
from dpswd.row_copy import RowFunction, _Copy, _of_library

__all__ = ["check_row_function"]

_N_PUBLIC = 36  # random records on which a row function is checked


_SCALES = (
    (1.0, 1.0),
    (1.0, 1e2),
    (1.0, 1e5),
    (1e-2, 1.0),
    (1e-2, 1e2),
    (1e2, 1.0),
)  # of vectors; of the one changed


_RANGES = ((0.0, 1.0), (0.0, 0.01), (0.5, 0.6))  # of pixels


@torch.no_grad()
def check_row_function(rows: RowFunction, shape: tuple[int, ...], n_classes: int = 1) -> None:
    """Check on public random records of a shape that every row is a function of one record, and that none is kept."""
    copied, name = _Copy(rows), getattr(rows, "__name__", type(rows).__name__)
    before = _shared_variables(copied.modules)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for values, changed in _public_pairs(shape):
            labels = torch.arange(_N_PUBLIC) % min(
                n_classes, _N_PUBLIC // 6
            )  # every class several times
            moved = torch.cat([labels[:1] + 1, labels[1:]]) % n_classes
            calls = (values, labels), (values, labels), (changed, moved), (values[1:3], labels[1:3])
            found = (copied(*arguments) for arguments in calls)
            first, again, other, part = (
                torch.cat([row.double(), group.double()[:, None]], 1) for row, group in found
            )
            if not _same(first, again):
                got = f"{name}, whose rows change between two calls in evaluation mode"
                raise InputError(
                    f"Expected rows that are a function of the record, got {got}; remove the randomness."
                )
            if not _same(first[1:], other[1:]) or not _same(first[1:3], part):
                got = f"{name}, whose rows change with another record of the batch"
                remedy = "remove what looks at the batch or class (mean, attention, BatchNorm without running statistics)"
                raise InputError(
                    f"Expected rows that are computed from one record each, got {got}; {remedy}."
                )
    after = _shared_variables(copied.modules)
    if kept := [variable for variable in after if after[variable] != before.get(variable)]:
        raise InputError(
            f"Expected a row function that keeps nothing, got {kept[0]}, which changes; use attributes."
        )


def _shared_variables(modules: list[nn.Module]) -> dict[str, tuple[int, int | None]]:
    """Return identity and length of what the copy of a module shares: attributes of its class, globals of methods."""
    found: dict[str, Any] = {}
    for kind in {
        kind
        for module in modules
        for kind in type(module).__mro__
        if not _of_library(kind.__module__)
    }:
        found |= {f"{kind.__name__}.{name}": value for name, value in vars(kind).items()}
        for method in filter(inspect.isfunction, vars(kind).values()):
            found |= inspect.getclosurevars(method).globals
    return {
        name: (id(each), len(each) if isinstance(each, list | dict | set) else None)
        for name, each in found.items()
    }


def _public_pairs(shape: tuple[int, ...]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs of data sets that differ in the first record, whose scale exposes extremes of the batch."""
    if len(shape) == 3:
        for low, high in _RANGES:
            values = low + (high - low) * torch.rand(_N_PUBLIC, *shape)
            for first in (torch.rand(*shape), torch.zeros(shape), torch.ones(shape)):
                yield values, torch.cat([first[None], values[1:]])
        return
    for scale, other in _SCALES:
        values = scale * torch.randn(_N_PUBLIC, *shape)
        far = other * (1 + torch.randn(1, *shape).abs())
        for first in (far, -far):
            yield values, torch.cat([first, values[1:]])


def _same(one: Tensor, other: Tensor) -> bool:
    """Compare rows up to rounding, which may differ between batches of another size."""
    scale = float(one.abs().max()) if one.numel() else 0.0
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-3, atol=1e-4 * scale)
