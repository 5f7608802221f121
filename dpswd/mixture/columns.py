"""Released distributions of columns, normal scores, and their inverse.

All of it is post-processing; docs/tables.md has the method. The score of a value depends on its
record and on released values only, so that scores are rows like any others to :mod:`dpswd.queries`.
In an atom, a bin of one value, it is the mean of the normal quantiles.

Shapes: n rows, d columns, C classes, K bins (columns with fewer are padded), M nodes of all trees.
"""

import math
from dataclasses import dataclass

import torch
from scipy.optimize import nnls
from torch import Tensor, nn

from dpswd._symmetric import with_fixed_signs
from dpswd.bins import Bins

__all__ = ["ColumnEstimate", "NormalScores", "category_order", "estimate"]

# Probability at which scores end, at +-3.7: a single far record must not make a row long.
_TAIL = 1e-4
# Mass of a bin below which its mean score is not the quotient of two tiny numbers.
_EMPTY_MASS = _TAIL / 10
# Probability that keeps quantiles out of an empty last bin, which rounding could reach.
_EDGE = 1e-7
# Divisor that keeps quotients by an empty bin or a zero difference finite.
_LEAST_MASS = 1e-12
# Groups of bins below this many standard deviations of their noise are empty.
_EMPTY_COUNT = 1.0
# Least size of a class, over that of equal classes: noise must not make a class vanish.
_LEAST_CLASS = 0.1
# Weight of the size of a class, which is known, against counts of weight 1 in the least squares.
_SIZE_WEIGHT = 1e3


class NormalScores(nn.Module):
    """Released distributions of the columns, which map values to normal scores.

    Args:
        n_groups: Number of distributions of a column: the number C of classes, or 1 for all
            together.
        n_columns: Number d of columns.
        n_bins: Most bins K of a column.
    """

    def __init__(self, n_groups: int, n_columns: int, n_bins: int) -> None:
        super().__init__()
        masses = torch.zeros(n_groups, n_columns, n_bins, dtype=torch.float64)
        self.masses = nn.Buffer(masses)
        self.edges = nn.Buffer(torch.zeros(n_columns, n_bins + 1, dtype=torch.float64))
        self.atoms = nn.Buffer(torch.zeros(n_columns, n_bins, dtype=torch.float64))
        self.last = nn.Buffer(torch.zeros(n_columns, dtype=torch.int64))
        # Position of each bin in the order of the masses, which the fit alone uses.
        positions = torch.arange(n_bins).repeat(n_columns, 1)
        self.positions = nn.Buffer(positions, persistent=False)

    @classmethod
    def of(cls, bins: Bins, masses: Tensor, order: Tensor) -> "NormalScores":
        """Return the scores of bins.

        Args:
            bins: Public bins of the columns.
            masses: Masses (C, d, K) of the bins, which add up to 1 over the bins.
            order: Bins (d, K) of each column in the order of their scores. Those of columns that
                are not nominal stay in their place.
        """
        scores = cls(*masses.shape)
        scores.masses.copy_(masses.gather(2, order.expand_as(masses)))
        scores.edges.copy_(bins.edges)
        scores.atoms.copy_(bins.atoms.gather(1, order))
        scores.positions.copy_(order.argsort(1))
        scores.last.copy_(torch.tensor(bins.n_bins) - 1)
        return scores

    @property
    def below(self) -> Tensor:
        """Probability (C, d, K + 1) below each edge."""
        return nn.functional.pad(self.masses.cumsum(2), (1, 0)).clamp(0, 1)

    def scores(self, rows: Tensor, labels: Tensor | None) -> Tensor:
        """Return the normal scores (n, d) of rows, each of one record alone.

        Args:
            rows: Values (n, d) of the columns.
            labels: Classes (n,) of the rows; ``None`` where all have one distribution in common.
        """
        n_bins = tuple((self.last + 1).tolist())
        bins = Bins(self.edges, self.atoms, n_bins).index(rows)
        columns = torch.arange(rows.shape[1], device=rows.device)
        groups = rows.new_zeros(len(rows), dtype=torch.int64)
        if labels is not None:
            groups = labels % len(self.masses)  # 0 where all classes have one distribution
        positions = self.positions[columns, bins]
        index = (groups[:, None], columns, positions)
        low = self.edges[columns, bins]
        high = self.edges[columns, bins + 1]
        part = ((rows.double() - low) / (high - low)).clamp(0, 1)
        below = self.below
        probabilities = below[index] + part * self.masses[index]
        quantiles = torch.special.ndtri(probabilities.clamp(_TAIL, 1 - _TAIL))
        is_atom = ~self.atoms[columns, positions].isnan()
        return torch.where(is_atom, self._mean_scores(below)[index], quantiles)

    def _mean_scores(self, below: Tensor) -> Tensor:
        """Return the mean normal score (C, d, K) of each bin.

        An empty bin has the score of its quantile.
        """
        ends = torch.special.ndtri(below)
        density = torch.exp(-ends.square() / 2)
        density = density / math.sqrt(2 * math.pi)
        means = -density.diff(dim=2) / self.masses
        starts = below[..., :-1].clamp(_TAIL, 1 - _TAIL)
        return torch.where(self.masses > _EMPTY_MASS, means, torch.special.ndtri(starts))

    def values(self, probabilities: Tensor, labels: Tensor) -> Tensor:
        """Return quantiles (n, d) of the columns.

        Those of integer columns are to be rounded.

        Args:
            probabilities: Probabilities (n, d).
            labels: Groups (n,) of distributions: classes, or 0.
        """
        inner = probabilities.double().clamp(_EDGE, 1 - _EDGE)
        below = self.below
        bins = self._bins_at(inner, labels, below)
        columns = torch.arange(inner.shape[1], device=inner.device)
        index = (labels[:, None], columns, bins)
        low = self.edges[columns, bins]
        high = self.edges[columns, bins + 1]
        masses = self.masses[index].clamp(min=_LEAST_MASS)
        part = ((inner - below[index]) / masses).clamp(0, 1)
        atoms = self.atoms[columns, bins]
        return torch.where(atoms.isnan(), low + part * (high - low), atoms).float()

    def _bins_at(self, probabilities: Tensor, labels: Tensor, below: Tensor) -> Tensor:
        """Return the bins (n, d) in which the distributions reach probabilities (n, d)."""
        bins = torch.zeros_like(probabilities, dtype=torch.int64)
        for c in labels.unique().tolist():
            is_of_class = labels == c
            ends = below[c, :, 1:].contiguous()  # probability up to the end of each bin
            columns = probabilities[is_of_class].T.contiguous()
            bins[is_of_class] = torch.searchsorted(ends, columns, right=True).T
        return bins.minimum(self.last)


@dataclass(frozen=True, eq=False)
class ColumnEstimate:
    """Estimated distributions of columns, and sizes of classes."""

    masses: Tensor  # (C, d, K), which add up to 1 over the bins
    sizes: Tensor  # (C,), which add up to the number of records


@dataclass(frozen=True, eq=False)
class _LevelCounts:
    """Counts on one level of the tree of a column."""

    counts: Tensor  # (C, n_groups), or (n_groups,) of one class
    width: int  # bins per group

    def of_class(self, c: int) -> "_LevelCounts":
        """Return the counts (n_groups,) of class c."""
        return _LevelCounts(self.counts[c], self.width)


def estimate(bins: Bins, counts: Tensor, sigma: float, n: int) -> ColumnEstimate:
    """Return the most likely masses of the bins and sizes of the classes.

    Args:
        bins: Public bins of the columns.
        counts: Released counts (C, M) in the nodes of the trees.
        sigma: Standard deviation of a count.
        n: Number of records, which is public.
    """
    n_groups = [level.n_groups for level in bins.levels]
    released = counts.split(n_groups, dim=1)
    sizes = _sizes(released, n)
    trees: list[list[_LevelCounts]] = [[] for _ in bins.n_bins]
    for level, level_counts in zip(bins.levels, released, strict=True):
        pulled = _pulled(level_counts, sizes, sigma)
        trees[level.column].append(_LevelCounts(pulled, level.width))
    masses = torch.zeros(len(counts), *bins.atoms.shape, dtype=torch.float64)
    for j, tree in enumerate(trees):
        for c, size in enumerate(sizes.tolist()):
            levels = [level.of_class(c) for level in tree]
            masses[c, j, : bins.n_bins[j]] = _most_likely(levels, size, sigma)
    return ColumnEstimate(masses, sizes)


def category_order(bins: Bins, estimated: ColumnEstimate) -> Tensor:
    """Return the order (d, K) of the bins.

    Categories are ordered by the classes that have them. The number of a category is its coordinate
    on the first axis of a correspondence analysis of classes and categories. With two classes it
    grows with the log odds of the classes, given the category: of the categories of a ward, the one
    with the most sick is at an end. Without classes, categories are ordered by their frequency.
    """
    order = torch.arange(bins.atoms.shape[1]).repeat(len(bins.atoms), 1)
    parts = estimated.sizes / estimated.sizes.sum()
    for column in bins.nominal:
        count = bins.n_bins[column]
        joint = estimated.masses[:, column, :count] * parts[:, None]
        frequencies = joint.sum(0)
        coordinates = -frequencies
        if len(joint) > 1:
            expected = parts[:, None] * frequencies
            residuals = (joint - expected) / expected.clamp(min=_LEAST_MASS).sqrt()
            axes = torch.linalg.svd(residuals, full_matrices=False).Vh
            (axis,) = with_fixed_signs(axes[:1])
            coordinates = axis / frequencies.clamp(min=_LEAST_MASS).sqrt()
        order[column, :count] = coordinates.argsort(stable=True)
    return order


def _sizes(levels: tuple[Tensor, ...], n: int) -> Tensor:
    """Return the sizes (C,) of the classes, which add up to n.

    Every level of every tree counts all records of a class. A level with few groups has less noise,
    and its weight is the inverse of their number.

    Args:
        levels: Counts (C, n_groups) of each level.
        n: Number of records.
    """
    weights = torch.tensor([1 / counts.shape[1] for counts in levels], dtype=torch.float64)
    totals = torch.stack([counts.sum(1) for counts in levels], dim=1)
    sizes = (totals * weights).sum(1) / weights.sum()
    least = _LEAST_CLASS * n / len(sizes)
    sizes = sizes.clamp(min=least)
    return sizes * (n / sizes.sum())


def _pulled(counts: Tensor, sizes: Tensor, sigma: float) -> Tensor:
    """Return the counts of one level, pulled to those of all classes (James-Stein).

    Args:
        counts: Released counts (C, n_groups).
        sizes: Sizes (C,) of the classes.
        sigma: Standard deviation of a count.
    """
    parts = sizes / sizes.sum()
    prior = parts[:, None] * counts.sum(0)
    difference = counts - prior
    distance = difference.square().sum().clamp(min=_LEAST_MASS)
    noise_sq = sigma**2 * (1 - 2 * parts + len(sizes) * parts.square())
    expected = noise_sq.sum() * counts.shape[1]  # of noise alone
    weight = (1 - expected / distance).clamp(min=0)
    return prior + difference * weight


def _most_likely(levels: list[_LevelCounts], size: float, sigma: float) -> Tensor:
    """Return the masses (K,) of the bins of a column, by nonnegative least squares.

    Bins in groups that are empty up to noise have no mass.

    Args:
        levels: Counts of the levels of the tree, that of the bins first.
        size: Number of records of the class.
        sigma: Standard deviation of a count.
    """
    n_bins = len(levels[0].counts)
    used = _used_bins(levels, sigma)
    index = torch.arange(n_bins)
    weight = _SIZE_WEIGHT / math.sqrt(n_bins)
    equations = []
    results = []
    for level in levels:
        groups = torch.arange(len(level.counts))[:, None]
        equations.append((index // level.width == groups).double())
        results.append(level.counts)
    equations.append(torch.full((1, n_bins), weight))
    results.append(torch.tensor([weight * size], dtype=torch.float64))
    system = torch.cat(equations)[:, used]
    solution, _ = nnls(system.numpy(), torch.cat(results).numpy())
    masses = torch.zeros(n_bins, dtype=torch.float64)
    masses[used] = torch.from_numpy(solution)
    return masses / masses.sum()


def _used_bins(levels: list[_LevelCounts], sigma: float) -> Tensor:
    """Return which bins (K,) are in groups that are not empty; all of them if none is."""
    n_bins = len(levels[0].counts)
    index = torch.arange(n_bins)
    used = torch.ones(n_bins, dtype=torch.bool)
    for level in levels[1:]:
        is_filled = level.counts >= _EMPTY_COUNT * sigma
        used &= is_filled[index // level.width]
    if not used.any():
        return ~used
    return used
