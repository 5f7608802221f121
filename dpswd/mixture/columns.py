"""Released distributions of columns, normal scores, and their inverse: public maps and post-processing only.

docs/tables.md has the method. The score of a value depends on its record and on released values only, so that scores
are rows like any others to :mod:`dpswd.queries`. In an atom it is the mean of the normal quantiles.

Shapes: n rows, d columns, C classes, K bins (columns with fewer are padded), M nodes of all trees.
"""

import math

import torch
from scipy.optimize import nnls
from torch import Tensor, nn

from dpswd.bins import Bins

__all__ = ["NormalScores", "estimate"]

_TAIL = 1e-4  # probability at which scores end, at +-3.7
_LEAST_MASS = 1e-12
_EMPTY = 1.0  # groups below this many standard deviations are empty
_LEAST_CLASS = 0.1  # share of a class, over that of equal classes


class NormalScores(nn.Module):
    """Released distributions of the columns of each class, and the map between values and normal scores."""

    def __init__(self, n_classes: int, n_columns: int, n_bins: int) -> None:
        super().__init__()
        self.masses = nn.Buffer(torch.zeros(n_classes, n_columns, n_bins, dtype=torch.float64))
        self.edges = nn.Buffer(torch.zeros(n_columns, n_bins + 1, dtype=torch.float64))
        self.atoms = nn.Buffer(torch.zeros(n_columns, n_bins, dtype=torch.float64))
        self.last = nn.Buffer(torch.zeros(n_columns, dtype=torch.int64))

    def set(self, bins: Bins, masses: Tensor) -> "NormalScores":
        """Set the bins and the masses (C, d, K), which add up to 1 over the bins."""
        self.masses.copy_(masses)
        self.edges.copy_(bins.edges)
        self.atoms.copy_(bins.atoms)
        self.last.copy_(torch.tensor(bins.n_bins) - 1)
        return self

    @property
    def below(self) -> Tensor:
        """Probability (C, d, K + 1) below each edge."""
        return nn.functional.pad(self.masses.cumsum(2), (1, 0)).clamp(0, 1)

    def scores(self, rows: Tensor, labels: Tensor | None) -> Tensor:
        """Return the normal scores (n, d) of rows (n, d) of classes (n,), each of one record alone."""
        bins = Bins(self.edges, self.atoms, tuple((self.last + 1).tolist())).index(rows)
        column, below = torch.arange(rows.shape[1], device=rows.device), self.below
        low, high = self.edges[column, bins], self.edges[column, bins + 1]
        groups = (
            rows.new_zeros(len(rows), dtype=torch.int64)
            if labels is None
            else labels % len(self.masses)
        )
        at = groups[:, None], column, bins
        part = ((rows.double() - low) / (high - low)).clamp(0, 1)
        quantile = torch.special.ndtri((below[at] + part * self.masses[at]).clamp(_TAIL, 1 - _TAIL))
        return torch.where(self.atoms[column, bins].isnan(), quantile, self._means(below)[at])

    def _means(self, below: Tensor) -> Tensor:
        """Return the mean normal score (C, d, K) of each bin; that of an empty bin is the quantile at its place."""
        density = torch.exp(-torch.special.ndtri(below).square() / 2) / math.sqrt(2 * math.pi)
        quantile = torch.special.ndtri(below[..., :-1].clamp(_TAIL, 1 - _TAIL))
        return torch.where(self.masses > _TAIL / 10, -density.diff(dim=2) / self.masses, quantile)

    def values(self, probabilities: Tensor, labels: Tensor) -> Tensor:
        """Return the quantiles (n, d) of probabilities (n, d) of classes (n,); those of integers are to be rounded."""
        given = probabilities.double().clamp(
            1e-7, 1 - 1e-7
        )  # rounding must not reach an empty last bin
        below, bins = self.below, torch.zeros_like(given, dtype=torch.int64)
        for c in labels.unique().tolist():
            mine = labels == c
            bins[mine] = torch.searchsorted(
                below[c, :, 1:].contiguous(), given[mine].T.contiguous(), right=True
            ).T
        bins, column = bins.minimum(self.last), torch.arange(given.shape[1], device=given.device)
        at = labels[:, None], column, bins
        low, high = self.edges[column, bins], self.edges[column, bins + 1]
        part = ((given - below[at]) / self.masses[at].clamp(min=_LEAST_MASS)).clamp(0, 1)
        atoms = self.atoms[column, bins]
        return torch.where(atoms.isnan(), low + part * (high - low), atoms).float()


def estimate(bins: Bins, counts: Tensor, sigma: float, n: int) -> tuple[Tensor, Tensor]:
    """Return the most likely masses (C, d, K) of the bins, and the sizes (C,) of the classes, from counts (C, M)."""
    parts = counts.split([groups for _, _, groups in bins.levels], dim=1)
    # every level counts all records of a class; a coarse one has less noise
    precision = torch.tensor([1 / groups for _, _, groups in bins.levels], dtype=torch.float64)
    sizes = (torch.stack([part.sum(1) for part in parts], dim=1) * precision).sum(
        1
    ) / precision.sum()
    sizes = sizes.clamp(min=_LEAST_CLASS * n / len(counts))
    sizes = sizes * (n / sizes.sum())
    masses = torch.zeros(len(counts), *bins.atoms.shape, dtype=torch.float64)
    pulled = [_pulled(part, sizes, sigma) for part in parts]
    for j, count in enumerate(bins.n_bins):
        levels = [
            (level, width)
            for level, (column, width, _) in zip(pulled, bins.levels, strict=True)
            if column == j
        ]
        for c, size in enumerate(sizes.tolist()):
            masses[c, j, :count] = _most_likely(
                [(level[c], width) for level, width in levels], size, sigma
            )
    return masses, sizes


def _pulled(counts: Tensor, sizes: Tensor, sigma: float) -> Tensor:
    """Return counts (C, groups) of one level, pulled to the shares of all classes (James-Stein)."""
    shares = sizes / sizes.sum()
    prior = shares[:, None] * counts.sum(0)
    noise_sq = sigma**2 * (1 - 2 * shares + len(sizes) * shares.square())
    found = (counts - prior).square().sum().clamp(min=_LEAST_MASS)
    return prior + (counts - prior) * (1 - noise_sq.sum() * counts.shape[1] / found).clamp(min=0)


def _most_likely(levels: list[tuple[Tensor, int]], size: float, sigma: float) -> Tensor:
    """Return the masses (K,) of bins by nonnegative least squares, from the levels of the tree and their widths."""
    count = len(levels[0][0])
    index, kept = torch.arange(count), torch.ones(count, dtype=torch.bool)
    for level, width in levels[1:]:
        kept &= (level >= _EMPTY * sigma)[index // width]
    kept = kept if kept.any() else ~kept
    heavy = 1e3 / math.sqrt(count)  # weight of the sum of all bins, which is known
    groups = [index // width == torch.arange(len(level))[:, None] for level, width in levels]
    system = torch.cat([*(group.double() for group in groups), torch.full((1, count), heavy)])[
        :, kept
    ]
    wanted = torch.cat(
        [*(level for level, _ in levels), torch.tensor([heavy * size], dtype=torch.float64)]
    )
    masses = torch.zeros(count, dtype=torch.float64)
    masses[kept] = torch.from_numpy(nnls(system.numpy(), wanted.numpy())[0])
    return masses / masses.sum()
