"""Bins of the columns of a table, and the trees over them.

Bins follow from public bounds and kinds. The values of a column fall into K bins [e_k, e_{k+1}). A
bin of one value is an atom: an integer, the two values of a binary column, the bounds of any
column. Values beyond the bounds count as the bounds.

The tree of a column groups its bins by 8, these groups by 8, and so on, while there are at least
two groups. Its levels are the bins, the groups, the groups of groups: a column of 64 bins has a
level of 64 nodes and one of 8; a binary column has one level of 2 nodes. The values of a nominal
column are numbers of categories, which have no order: each has a bin, and there are no groups.

Shapes: n rows, d columns, K bins (columns with fewer are padded), M nodes of all trees.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dpswd._validate import at_least, choice, pairs
from dpswd.errors import InputError

__all__ = ["KINDS", "Bins", "Bounds", "Level"]

KINDS = ("numeric", "integer", "binary", "nominal")
Bounds = Sequence[tuple[float, float]]  # (low, high) of each column

# Number of bins, or of groups, that a group of the next level holds.
_BRANCH = 8


class Level(NamedTuple):
    """One level of the tree of a column.

    Attributes:
        column: Number of the column.
        width: Number of neighbouring bins in a group; 1 for the bins themselves.
        n_groups: Number of groups.
    """

    column: int
    width: int
    n_groups: int


@dataclasses.dataclass(frozen=True)
class Bins:
    """Public bins of the columns of a table.

    Attributes:
        edges: (d, K + 1) in float64, increasing, padded with inf.
        atoms: (d, K), values of the bins that are atoms, nan for the others.
        n_bins: Number of bins of each column.
        nominal: Numbers of the nominal columns.
    """

    edges: Tensor
    atoms: Tensor
    n_bins: tuple[int, ...]
    nominal: tuple[int, ...] = ()

    @classmethod
    def of(cls, bounds: Bounds, kinds: Sequence[str] | None, n_bins: int) -> "Bins":
        """Return bins of equal width, and atoms at the bounds, for every column.

        Integers have bins of their own if there are fewer than ``n_bins`` of them, and the
        categories of a nominal column always. ``n_bins`` is at least 4.

        Args:
            bounds: Bounds (low, high) of every column.
            kinds: Kind of every column; ``None`` if all are numeric.
            n_bins: Most bins of a column.

        Raises:
            InputError: If bounds are no pairs of numbers, a column has no two values in its
                bounds, or a number is out of range.
        """
        at_least(4, n_bins=n_bins)
        bounds = pairs("bounds", bounds)
        if kinds is None:
            kinds = ["numeric"] * len(bounds)
        if len(kinds) != len(bounds) or not kinds:
            raise InputError(
                f"Expected a kind for each of {len(bounds)} columns, got {len(kinds)} kinds; pass "
                "as many."
            )
        edges = []
        atoms = []
        for column, (low, high) in enumerate(bounds):
            column_edges, column_atoms = _bins(column, low, high, kinds[column], n_bins)
            edges.append(column_edges)
            atoms.append(column_atoms)
        return cls(
            pad_sequence(edges, batch_first=True, padding_value=math.inf),
            pad_sequence(atoms, batch_first=True, padding_value=math.nan),
            tuple(len(values) for values in atoms),
            tuple(column for column, kind in enumerate(kinds) if kind == "nominal"),
        )

    @property
    def levels(self) -> list[Level]:
        """Levels of all trees, in the order of the nodes: column by column, bins first."""
        levels = []
        for column, count in enumerate(self.n_bins):
            widths = _widths(count)
            if column in self.nominal:
                widths = widths[:1]
            for width in widths:
                levels.append(Level(column, width, -(-count // width)))
        return levels

    @property
    def n_nodes(self) -> int:
        """Number M of nodes of all trees."""
        return sum(level.n_groups for level in self.levels)

    def index(self, rows: Tensor) -> Tensor:
        """Return the bin (n, d) of every entry of ``rows`` (n, d)."""
        edges = self.edges.to(rows.device)
        columns = rows.double().T.contiguous()
        bins = torch.searchsorted(edges, columns, right=True).T - 1
        last = torch.tensor(self.n_bins, device=rows.device) - 1
        return bins.clamp(min=0).minimum(last)

    def nodes(self, rows: Tensor) -> Tensor:
        """Return the nodes (n, number of levels), out of M, that hold each row (n, d)."""
        bins = self.index(rows)
        nodes = []
        start = 0  # first node of the level
        for level in self.levels:
            nodes.append(start + bins[:, level.column] // level.width)
            start += level.n_groups
        return torch.stack(nodes, dim=1)


def _bins(column: int, low: float, high: float, kind: str, n_bins: int) -> tuple[Tensor, Tensor]:
    """Return the edges (K + 1,) of the bins of a column and its atoms (K,)."""
    choice(KINDS, kinds=kind)
    bounds = f"({low:g}, {high:g})"
    # Records are float32, in which a bound may be another number.
    low, high = torch.tensor([low, high], dtype=torch.float32).tolist()
    are_finite = math.isfinite(low) and math.isfinite(high)
    if are_finite and kind in ("integer", "nominal"):
        low = math.ceil(low)
        high = math.floor(high)
    if not are_finite or low >= high:
        raise InputError(
            f"Expected finite bounds with two values of the {kind} column {column} between them, "
            f"got {bounds}; state wider ones, within the range of float32."
        )
    if kind == "binary":
        return _binary_bins(low, high)
    if kind == "numeric":
        return _numeric_bins(low, high, n_bins)
    if kind == "nominal":
        n_bins = int(high) - int(low) + 1
    return _integer_bins(int(low), int(high), n_bins)


def _binary_bins(low: float, high: float) -> tuple[Tensor, Tensor]:
    """Return two bins that meet in the middle, whose atoms are the two values."""
    edges = torch.tensor([low, (low + high) / 2, math.inf], dtype=torch.float64)
    return edges, torch.tensor([low, high], dtype=torch.float64)


def _numeric_bins(low: float, high: float, n_bins: int) -> tuple[Tensor, Tensor]:
    """Return an atom at each bound and ``n_bins - 2`` equal bins between them."""
    inner = torch.linspace(low, high, n_bins - 1, dtype=torch.float64)
    after_low = inner.new_tensor([math.nextafter(low, math.inf)])
    after_high = inner.new_tensor([math.nextafter(high, math.inf)])
    edges = torch.cat([inner[:1], after_low, inner[1:], after_high])
    atoms = torch.full((n_bins,), math.nan, dtype=torch.float64)
    atoms[0] = low
    atoms[-1] = high
    return edges, atoms


def _integer_bins(low: int, high: int, n_bins: int) -> tuple[Tensor, Tensor]:
    """Return a bin for each integer if they are few, else bins of about equal width.

    Edges lie between the integers. A bin of one integer is an atom, as are both bounds.
    """
    if high - low < n_bins:
        first_integers = torch.arange(low, high + 2, dtype=torch.float64)
    else:
        inner = torch.linspace(low + 1, high, n_bins - 1, dtype=torch.float64).floor()
        first_integers = torch.cat([inner.new_tensor([low]), inner, inner.new_tensor([high + 1])])
    n_integers = first_integers.diff()  # in each bin
    atoms = first_integers[:-1].where(n_integers == 1, math.nan)
    return first_integers - 0.5, atoms


def _widths(count: int) -> list[int]:
    """Return the numbers of bins in a group on each level of a tree, 1 first."""
    widths = [1]
    while count > widths[-1] * _BRANCH:
        widths.append(widths[-1] * _BRANCH)
    return widths
