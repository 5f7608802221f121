"""Bins of the columns of a table, from public bounds and kinds, and the trees over them.

The values of a column fall into K bins [e_k, e_{k+1}). A bin of one value is an atom: an integer, the two values of a
binary column, the bounds of any column. The tree of a column groups its bins by 8, these groups by 8, and so on, while
there are at least two groups; its levels are the bins, the groups, the groups of groups. Values beyond the bounds count
as the bounds.

Shapes: n rows, d columns, K bins (columns with fewer are padded), M nodes of all trees.
"""

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dpswd._validate import at_least, choice
from dpswd.errors import InputError

__all__ = ["KINDS", "Bins", "Bounds"]

KINDS = ("numeric", "integer", "binary")
Bounds = Sequence[tuple[float, float]]  # (low, high) of each column

_BRANCH = 8


@dataclasses.dataclass(frozen=True)
class Bins:
    """Public bins of the columns of a table.

    Args:
        edges: (d, K + 1) in float64, increasing, padded with inf.
        atoms: (d, K), values of the bins that are atoms, nan for the others.
        n_bins: Number of bins of each column.
    """

    edges: Tensor
    atoms: Tensor
    n_bins: tuple[int, ...]

    @classmethod
    def of(cls, bounds: Bounds, kinds: Sequence[str] | None, n_bins: int) -> "Bins":
        """Return at least 4 bins of equal width, and atoms at the bounds; few integers have bins of their own.

        Raises:
            InputError: If a column has no two values within its bounds, or a number is out of range.
        """
        at_least(4, n_bins=n_bins)
        kinds = ["numeric"] * len(bounds) if kinds is None else list(kinds)
        if len(kinds) != len(bounds) or not kinds:
            raise InputError(
                f"Expected a kind for each of {len(bounds)} columns, got {len(kinds)} kinds."
            )
        found = [
            _bins(j, *bound, kind, n_bins)
            for j, (bound, kind) in enumerate(zip(bounds, kinds, strict=True))
        ]
        edges, atoms = [edges for edges, _ in found], [values for _, values in found]
        sizes = tuple(len(values) for values in atoms)
        return cls(pad_sequence(edges, True, math.inf), pad_sequence(atoms, True, math.nan), sizes)

    @property
    def levels(self) -> list[tuple[int, int, int]]:
        """Levels of all trees, in the order of the nodes: column, bins per group and number of groups."""
        return [
            (j, width, -(-count // width))
            for j, count in enumerate(self.n_bins)
            for width in _widths(count)
        ]

    @property
    def n_nodes(self) -> int:
        """Number M of nodes of all trees."""
        return sum(groups for _, _, groups in self.levels)

    def index(self, rows: Tensor) -> Tensor:
        """Return the bin (n, d) of every entry of ``rows`` (n, d)."""
        edges = self.edges.to(rows.device)
        inner = torch.searchsorted(edges, rows.double().T.contiguous(), right=True).T - 1
        return inner.clamp(min=0).minimum(torch.tensor(self.n_bins, device=rows.device) - 1)

    def nodes(self, rows: Tensor) -> Tensor:
        """Return the nodes (n, number of levels), out of M, that hold each row (n, d)."""
        bins, found, start = self.index(rows), [], 0
        for j, width, groups in self.levels:
            found.append(start + bins[:, j] // width)
            start += groups
        return torch.stack(found, dim=1)


def _bins(j: int, low: float, high: float, kind: str, n_bins: int) -> tuple[Tensor, Tensor]:
    """Return the edges (K + 1,) of the bins of column j and the values (K,) of its atoms."""
    choice(KINDS, kinds=kind)
    stated = f"({low:g}, {high:g})"
    low, high = torch.tensor([low, high], dtype=torch.float32).tolist()  # the precision of records
    if kind == "integer":
        low, high = math.ceil(low), math.floor(high)
    if not -math.inf < low < high < math.inf:
        raise InputError(
            f"Expected bounds with two values of the {kind} column {j} between them, got {stated}."
        )
    if kind == "binary":
        values = torch.tensor([low, high], dtype=torch.float64)
        return torch.tensor([low, (low + high) / 2, math.inf], dtype=torch.float64), values
    if kind == "numeric":
        inner = torch.linspace(low, high, n_bins - 1, dtype=torch.float64)
        above = inner.new_tensor([math.nextafter(low, math.inf), math.nextafter(high, math.inf)])
        values = torch.full((n_bins,), math.nan, dtype=torch.float64)
        values[0], values[-1] = low, high
        return torch.cat([inner[:1], above[:1], inner[1:], above[1:]]), values
    if high - low < n_bins:
        edges = torch.arange(low, high + 2, dtype=torch.float64)
    else:
        inner = torch.linspace(low + 1, high, n_bins - 1, dtype=torch.float64).floor()
        edges = torch.cat([inner.new_tensor([low]), inner, inner.new_tensor([high + 1])])
    return edges - 0.5, edges[:-1].where(edges.diff() == 1, math.nan)


def _widths(count: int) -> list[int]:
    """Return the numbers of bins in a group on each level of a tree, 1 first."""
    widths = [1]
    while count > widths[-1] * _BRANCH:
        widths.append(widths[-1] * _BRANCH)
    return widths
