r"""Mixture of normal distributions as a generator.

.. math:: x = J(T(D(m_c + (L_c z, s \odot z')) + r))

One latent coordinate selects the cell c among those of the class; z and z' are the latent coordinates of the p leading
and of the remaining directions. D maps rows to records, and r has the unreleased frequencies, drawn from the reference
spectrum. With ``contrast``, z, z' and r of a record have one log-normal factor in common, since photographs differ in
contrast. The tone curve T limits pixels to [0, 1], and clamping limits columns to their bounds; J is the jitter of
:mod:`dpswd.features.jitter`. Of tables, D gives normal scores, and T maps these to the released distributions of the
columns of their class (:mod:`dpswd.mixture.columns`).
"""

import math
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from dpswd.errors import InputError
from dpswd.features.frequencies import Frequencies
from dpswd.features.jitter import N_CODES, check_amounts, jitter
from dpswd.mixture.columns import NormalScores
from dpswd.networks.generator import Generator

__all__ = ["MixtureGenerator"]


class MixtureGenerator(Generator):
    """Mixture of normal distributions, a tone curve and jitter; :func:`dpswd.mixture.fit` sets the buffers.

    Shapes: C classes, n_cells per class, D dimensions of the rows, the p leading ones with covariances of cells.
    """

    def __init__(
        self,
        sample_shape: tuple[int, ...] = (1, 28, 28),
        n_classes: int = 10,
        n_cells: int = 5,
        n_components: int = 40,  # p
        dim: int | None = None,  # D, by default p
        bounded: bool = True,  # limit records to ``low`` and ``high``: pixels to [0, 1], columns to their bounds
        n_levels: int = 0,  # of the tone curve, at least 3; 0 clamps
        residual: bool = False,  # draw the unreleased frequencies from the reference spectrum
        contrast: float = 0.0,  # standard deviation of the logarithm of the factor, whose square has mean 1
        jitter: Mapping[str, float] | None = None,  # public amounts, for images
        n_bins: int = 0,  # of the distributions of columns, of which rows are the normal scores
        own_columns: bool = True,  # whether each class has its own distributions of columns
    ) -> None:
        dim = n_components if dim is None else dim
        check_amounts(jitter or {})
        amounts = {name: amount for name, amount in (jitter or {}).items() if amount}
        if (amounts or residual) and len(sample_shape) != 3:
            raise InputError(
                f"Expected images for jitter or residual, got shape {tuple(sample_shape)}; leave them out."
            )
        size, cells = math.prod(sample_shape), max(1, n_classes) * n_cells
        super().__init__(
            sample_shape,
            n_classes,
            dim + 1 + (N_CODES if amounts else 0) + (size if residual else 0),
        )
        self.n_cells, self.n_components, self.dim = n_cells, n_components, dim
        self.bounded, self.n_levels, self.residual = bounded, n_levels, residual
        self.contrast, self.n_bins, self.own_columns = contrast, n_bins, own_columns
        self.jitter: dict[str, Any] = amounts
        self.weights = nn.Buffer(torch.full((max(1, n_classes), n_cells), 1 / n_cells))
        self.means = nn.Buffer(torch.zeros(cells, dim))
        self.roots = nn.Buffer(torch.zeros(cells, n_components, n_components))
        self.tail = nn.Buffer(torch.zeros(dim - n_components))
        self.synthesis = nn.Buffer(torch.zeros(dim, size))
        self.offset = nn.Buffer(torch.zeros(size))
        self.residual_scale = nn.Buffer(torch.zeros(sample_shape if residual else (0,)))
        self.tones = nn.Buffer(
            (torch.arange(n_levels - 1) + 0.5) / (n_levels - 1) if n_levels else torch.zeros(0)
        )
        self.reflect = nn.Buffer(torch.tensor(False))
        self.low = nn.Buffer(torch.zeros(1 if len(sample_shape) == 3 else sample_shape))
        self.high = nn.Buffer(torch.ones_like(self.low))
        groups = max(1, n_classes) if own_columns else 1
        self.columns = NormalScores(groups, sample_shape[0], n_bins) if n_bins else None
        self.frequencies = Frequencies(sample_shape, 1) if residual else None

    def latent(self, n: int, spread: float = 1.0) -> Tensor:
        """Draw normal codes (n, latent_dim); those of the noise within cells are multiplied by contrast and spread."""
        latent = super().latent(n)
        if not self.contrast and spread == 1:
            return latent
        factor = spread * torch.exp(
            self.contrast * torch.randn_like(latent[:, :1]) - self.contrast**2
        )
        end = self.dim + 1 + (N_CODES if self.jitter else 0)
        return torch.cat(
            [factor * latent[:, : self.dim], latent[:, self.dim : end], factor * latent[:, end:]],
            dim=1,
        )

    def cell(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Return the cell (n,) that coordinate D of each code (n, latent_dim) selects."""
        edges = self.weights.cumsum(1)[:, :-1][labels]
        inside = (torch.special.ndtr(latent[:, self.dim, None]) > edges).sum(1)
        return cast(Tensor, labels * self.n_cells + inside)

    def rows(self, latent: Tensor, cells: Tensor) -> Tensor:
        """Return rows (n, D) of the mixture."""
        p = self.n_components
        z = latent[:, :p, None]
        rows = self.means[cells]
        rows[:, p:] += self.tail * latent[:, p : self.dim]
        for c in cells.unique().tolist():  # one product per cell; a root per code takes much memory
            mine = cells == c
            rows[mine, :p] += (self.roots[c] @ z[mine])[:, :, 0]
        return rows

    def limited(self, records: Tensor) -> Tensor:
        """Limit records to their bounds, by the tone curve if there is one."""
        if not self.n_levels:
            return records.clamp(self.low, self.high)
        upper = torch.bucketize(records, self.tones).clamp(1, len(self.tones) - 1)
        start, end = self.tones[upper - 1], self.tones[upper]
        part = ((records - start) / (end - start).clamp(min=1e-6)).clamp(0, 1)
        values = (upper - 0.5 + part) / (self.n_levels - 1)
        return values.where(records >= self.tones[0], 0.0).where(records <= self.tones[-1], 1.0)

    def quantiles(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return records (n, d) whose columns have the released distributions, from scores (n, d) of classes (n,)."""
        assert self.columns is not None
        p = self.n_components
        means = self.means @ self.synthesis + self.offset
        variances = (self.roots.mT @ self.synthesis[:p]).square().sum(1)
        variances = variances + (self.tail[:, None] * self.synthesis[p:]).square().sum(0)
        weights: Tensor = self.weights
        if not self.own_columns:  # one mixture of the cells of all classes
            weights = (weights * weights.new_tensor(self.proportions)[:, None]).reshape(1, -1)
            labels = torch.zeros_like(labels)
        means, deviations = (
            each.unflatten(0, weights.shape) for each in (means, variances.sqrt().clamp(min=1e-6))
        )
        inside = torch.special.ndtr(
            (scores[:, None] - means[labels]) / deviations[labels]
        )  # of each cell (n, cells, d)
        below = (weights[labels][:, :, None] * inside).sum(1)
        return self.columns.values(below, labels).clamp(self.low, self.high)

    def linear(self, rows: Tensor, latent: Tensor | None = None) -> Tensor:
        """Map rows (n, D) to records without limits, with the residual of latent codes if they are given."""
        records = (rows @ self.synthesis + self.offset).unflatten(1, self.sample_shape)
        if latent is not None and self.frequencies is not None:
            codes = latent[:, -math.prod(self.sample_shape) :].unflatten(1, self.sample_shape)
            records = records + self.frequencies.from_frequencies(codes * self.residual_scale)
        return cast(Tensor, records)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """See :class:`Generator`."""
        records = self.linear(self.rows(latent, self.cell(latent, labels)), latent)
        if self.columns is not None:
            return self.quantiles(records, labels)
        records = self.limited(records) if self.bounded else records
        if not self.jitter:
            return records
        codes = latent[:, self.dim + 1 : self.dim + 1 + N_CODES]
        return jitter(
            records, codes, padding="reflection" if bool(self.reflect) else "zeros", **self.jitter
        )
