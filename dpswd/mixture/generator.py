r"""Mixture of normal distributions as a generator.

.. math:: x = J(T(D(m_c + (L_c z, s \odot z')) + r))

One latent coordinate selects the cell c among those of the class. z and z' are the latent
coordinates of the p leading and of the remaining directions. D maps rows to records, and r has the
frequencies that are not released, drawn from the reference spectrum. With ``contrast``, z, z' and r
of a record have one log-normal factor in common, since photographs differ in contrast. The tone
curve T limits pixels to [0, 1], and clamping limits columns to their bounds. J is the jitter of
:mod:`dpswd.features.jitter`. Of tables, D gives normal scores, and T maps these to the released
distributions of the columns of their class (:mod:`dpswd.mixture.columns`).

Of shapes, D and T give images of distances (:mod:`dpswd.features.shapes`). Where there are several
draws of each record, the one that is closest to the distances of a shape is used.

Shapes: n records, C classes (1 without labels), n_cells per class, D dimensions of the rows,
    the p leading ones with covariances of cells. A latent code has D coordinates of rows and one
    that selects the cell, for every draw of a record; then those of jitter, and one for every pixel
    of the residual.
"""

import math
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from dpswd.errors import InputError
from dpswd.features.frequencies import Frequencies
from dpswd.features.jitter import N_CODES, check_amounts, jitter
from dpswd.features.shapes import check_shapes, from_distances, inconsistency
from dpswd.mixture.columns import NormalScores
from dpswd.networks.generator import Generator

__all__ = ["MixtureGenerator"]

# Least width of a level of the tone curve, and least standard deviation of a score: no division by
# 0.
_LEAST_WIDTH = 1e-6
# Draws of a record, at most: a file that states more must not take all of the memory.
_MOST_DRAWS = 16


class MixtureGenerator(Generator):
    """Mixture of normal distributions, a tone curve and jitter.

    :func:`dpswd.mixture.fit` sets its buffers.

    Args:
        sample_shape: Shape of a record.
        n_classes: Number of classes; 0 for none.
        n_cells: Cells per class.
        n_components: Number p of leading directions. With 0, the coordinates of rows are those of
            the record, scaled, and vary independently of each other within a cell.
        dim: Dimension D of the rows; ``None`` for p.
        bounded: Whether records are limited: pixels to [0, 1], columns to their bounds.
        n_levels: Levels of the tone curve, at least 3; 0 limits by clamping.
        residual: Whether frequencies that are not released are drawn from the reference spectrum.
        contrast: Standard deviation of the logarithm of the factor, whose square has mean 1.
        jitter: Public amounts of jitter, for images.
        n_bins: Most bins of the distributions of columns, of which rows are the normal scores; 0
            for no such distributions.
        own_columns: Whether each class has its own distributions of columns.
        shapes: ``"light"`` or ``"dark"`` where rows are those of images of distances; ``None`` for
            pixels or columns.
        n_draws: Draws per image of a shape, of which the most consistent one is used; 1 without
            shapes. Files of version 0.4.0 state 4.
        largest_distance: Largest distance of images of distances, in pixels. The default is that of
            files of version 0.4.0, which do not state it.

    Raises:
        InputError: If jitter or a residual is asked of vectors, an amount is not valid, records
            that are no shapes have several draws, or rows without leading directions are not the
            entries of a record.
    """

    def __init__(
        self,
        sample_shape: tuple[int, ...] = (1, 28, 28),
        n_classes: int = 10,
        n_cells: int = 5,
        n_components: int = 40,
        dim: int | None = None,
        bounded: bool = True,
        n_levels: int = 0,
        residual: bool = False,
        contrast: float = 0.0,
        jitter: Mapping[str, float] | None = None,
        n_bins: int = 0,
        own_columns: bool = True,
        shapes: str | None = None,
        n_draws: int = 1,
        largest_distance: float = 4.0,
    ) -> None:
        jitter = dict(jitter or {})
        check_amounts(jitter, tuple(sample_shape))
        amounts = {name: amount for name, amount in jitter.items() if amount}
        if shapes is not None:
            check_shapes(shapes, tuple(sample_shape))
        if dim is None:
            dim = n_components
        if (amounts or residual) and len(sample_shape) != 3:
            raise InputError(
                f"Expected images for jitter or residual, got shape {tuple(sample_shape)}; "
                "leave them out."
            )
        if not 1 <= n_draws <= _MOST_DRAWS:
            raise InputError(f"Expected 1 to {_MOST_DRAWS} draws, got n_draws={n_draws}.")
        if not 0 < largest_distance <= 4:
            raise InputError(
                f"Expected 0 < largest_distance <= 4 pixels, got {largest_distance!r}; "
                "leave it out."
            )
        if n_draws > 1 and shapes is None:
            raise InputError(
                f"Expected one draw without shapes, got n_draws={n_draws}; pass shapes."
            )
        n_entries = math.prod(sample_shape)
        if not n_components and dim != n_entries:
            raise InputError(
                f"Expected dim={n_entries} without leading directions, as the records have, got "
                f"dim={dim}."
            )
        draws_end = n_draws * (dim + 1)
        jitter_end = draws_end
        if amounts:
            jitter_end += N_CODES
        latent_dim = jitter_end
        residual_shape: tuple[int, ...] = (0,)
        if residual:
            latent_dim += n_entries
            residual_shape = tuple(sample_shape)
        super().__init__(sample_shape, n_classes, latent_dim)
        self.n_cells = n_cells
        self.n_components = n_components
        self.dim = dim
        self.bounded = bounded
        self.n_levels = n_levels
        self.residual = residual
        self.contrast = contrast
        self.n_bins = n_bins
        self.own_columns = own_columns
        self.shapes = shapes
        self.n_draws = n_draws
        self.largest_distance = largest_distance
        self.jitter: dict[str, Any] = amounts
        self._draws_end = draws_end
        self._jitter_end = jitter_end
        is_image = len(sample_shape) == 3
        n_groups = max(1, n_classes)
        n_all = n_groups * n_cells  # cells of all classes
        # The mixture: proportions of the cells in their class, their means m, the roots L of their
        # covariances in the leading directions, and standard deviations s in the remaining ones.
        self.weights = nn.Buffer(torch.full((n_groups, n_cells), 1 / n_cells))
        self.means = nn.Buffer(torch.zeros(n_all, dim))
        self.roots = nn.Buffer(torch.zeros(n_all, n_components, n_components))
        self.tail = nn.Buffer(torch.zeros(dim - n_components))
        # The map D from rows to records, which is affine: rows @ synthesis + offset. Without
        # leading directions every entry has a coordinate and a factor of its own.
        self.synthesis = nn.Buffer(torch.zeros((dim, n_entries) if n_components else (dim,)))
        self.offset = nn.Buffer(torch.zeros(n_entries))
        # Standard deviations of the frequencies r that are not released.
        self.residual_scale = nn.Buffer(torch.zeros(residual_shape))
        # Edges between the levels of the tone curve, as pixels before the curve.
        self.tones = nn.Buffer(_even_tones(n_levels))
        # Whether jitter reflects images at their border, or moves black in.
        self.reflect = nn.Buffer(torch.tensor(False))
        # Limits of pixels, or bounds of columns.
        self.low = nn.Buffer(torch.zeros(1 if is_image else sample_shape))
        self.high = nn.Buffer(torch.ones_like(self.low))
        self.columns = None
        if n_bins:
            n_distributions = n_groups if own_columns else 1
            self.columns = NormalScores(n_distributions, sample_shape[0], n_bins)
        self.frequencies = None
        if residual:
            self.frequencies = Frequencies(sample_shape, 1)

    def latent(self, n: int, spread: float = 1.0) -> Tensor:
        """Draw normal codes (n, latent_dim).

        Those of rows and residual are multiplied by ``spread`` and by the contrast of the record;
        those that select the cell and the jitter are not.
        """
        latent = super().latent(n)
        if not self.contrast and spread == 1:
            return latent
        exponent = self.contrast * torch.randn_like(latent[:, :1]) - self.contrast**2
        factor = spread * torch.exp(exponent)
        scaled = factor * latent
        for start in range(self.dim, self._draws_end, self.dim + 1):
            scaled[:, start] = latent[:, start]
        scaled[:, self._draws_end : self._jitter_end] = latent[
            :, self._draws_end : self._jitter_end
        ]
        return scaled

    def cells(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Return the cells (n,) that coordinate D of codes (n, at least D + 1) selects."""
        edges = self.weights.cumsum(1)[:, :-1][labels]
        uniform = torch.special.ndtr(latent[:, self.dim, None])
        inside = (uniform > edges).sum(1)
        return cast(Tensor, labels * self.n_cells + inside)

    def mixture_rows(self, latent: Tensor, cells: Tensor) -> Tensor:
        """Map codes (n, at least D) of cells (n,) to rows (n, D) of the mixture."""
        p = self.n_components
        leading = latent[:, :p, None]
        rows = self.means[cells]
        rows[:, p:] += self.tail * latent[:, p : self.dim]
        if not p:
            return rows
        # One product per cell: a root for every code would take much memory.
        for c in cells.unique().tolist():
            is_in_cell = cells == c
            rows[is_in_cell, :p] += (self.roots[c] @ leading[is_in_cell])[:, :, 0]
        return rows

    def limit(self, records: Tensor) -> Tensor:
        """Limit records to their bounds, by the tone curve if there is one.

        The tone curve is linear between two tones: a pixel at the middle of tones k - 1 and k gets
        the brightness k / (n_levels - 1).
        """
        if not self.n_levels:
            return records.clamp(self.low, self.high)
        tones = self.tones
        upper = torch.bucketize(records, tones).clamp(1, len(tones) - 1)
        start = tones[upper - 1]
        width = (tones[upper] - start).clamp(min=_LEAST_WIDTH)
        part = ((records - start) / width).clamp(0, 1)
        values = (upper - 0.5 + part) / (self.n_levels - 1)
        values = values.where(records >= tones[0], 0.0)
        return values.where(records <= tones[-1], 1.0)

    def column_values(self, columns: NormalScores, scores: Tensor, labels: Tensor) -> Tensor:
        """Return records whose columns have the released distributions.

        The mixture's own distribution of a score maps it to (0, 1), and the released distribution
        of the column maps this to a value.

        Args:
            columns: Released distributions of the columns.
            scores: Scores (n, d).
            labels: Classes (n,).
        """
        p = self.n_components
        means = self._decoded(self.means)
        if p:
            leading = (self.roots.mT @ self.synthesis[:p]).square().sum(1)
            remaining = (self.tail[:, None] * self.synthesis[p:]).square().sum(0)
            variances = leading + remaining
        else:
            variances = (self.tail * self.synthesis).square().expand_as(means)
        deviations = variances.sqrt().clamp(min=_LEAST_WIDTH)
        weights: Tensor = self.weights
        if not self.own_columns:  # one mixture of the cells of all classes
            proportions = weights.new_tensor(self.proportions)
            weights = (weights * proportions[:, None]).reshape(1, -1)
            labels = torch.zeros_like(labels)
        means = means.unflatten(0, weights.shape)
        deviations = deviations.unflatten(0, weights.shape)
        distances = (scores[:, None] - means[labels]) / deviations[labels]  # (n, cells, d)
        cell_probabilities = torch.special.ndtr(distances)
        below = (weights[labels][:, :, None] * cell_probabilities).sum(1)
        return columns.values(below, labels).clamp(self.low, self.high)

    def _decoded(self, rows: Tensor) -> Tensor:
        """Map rows (n, D) to flat records, by the affine part of the map."""
        if self.n_components:
            return rows @ self.synthesis + self.offset
        return rows * self.synthesis + self.offset

    def linear(self, rows: Tensor, latent: Tensor | None = None) -> Tensor:
        """Map rows (n, D) to records without limits.

        With codes (n, latent_dim), the frequencies that are not released are added.
        """
        flat = self._decoded(rows)
        records = flat.unflatten(1, self.sample_shape)
        if latent is not None and self.frequencies is not None:
            n_entries = math.prod(self.sample_shape)
            codes = latent[:, -n_entries:].unflatten(1, self.sample_shape)
            residual = self.frequencies.from_frequencies(codes * self.residual_scale)
            records = records + residual
        return cast(Tensor, records)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Map codes (n, latent_dim) and classes (n,) to records ``(n, *sample_shape)``."""
        records = self._draw(latent, labels)
        if self.n_draws > 1:
            records = self._most_consistent(records, latent, labels)
        if self.jitter:
            records = self.jittered(records, latent)
        if self.shapes is not None:
            records = from_distances(records, self.shapes, self.largest_distance)
        return records

    def jittered(self, images: Tensor, latent: Tensor) -> Tensor:
        """Jitter images by the codes (n, latent_dim) of these."""
        return jitter(
            images,
            latent[:, self._draws_end : self._jitter_end],
            padding="reflection" if bool(self.reflect) else "zeros",
            resampling="bilinear" if self.shapes is None else "bicubic",
            **self.jitter,
        )

    def _draw(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Map codes (n, latent_dim) to limited records, by their first draw."""
        rows = self.mixture_rows(latent, self.cells(latent, labels))
        records = self.linear(rows, latent)
        if self.columns is not None:
            return self.column_values(self.columns, records, labels)
        if self.bounded:
            records = self.limit(records)
        return records

    def _most_consistent(self, first: Tensor, latent: Tensor, labels: Tensor) -> Tensor:
        """Return the most consistent of all draws of each image of distances.

        Args:
            first: Images (n, 1, h, w) of the first draw.
            latent: Codes (n, latent_dim).
            labels: Classes (n,).
        """
        best = first
        least = inconsistency(first, self.largest_distance)
        for number in range(1, self.n_draws):
            drawn = self._draw(latent[:, number * (self.dim + 1) :], labels)
            value = inconsistency(drawn, self.largest_distance)
            is_better = value < least
            best = torch.where(is_better[:, None, None, None], drawn, best)
            least = torch.minimum(value, least)
        return best


def _even_tones(n_levels: int) -> Tensor:
    """Return edges (n_levels - 1,) half-way between equidistant levels.

    Without levels, the list is empty.
    """
    if not n_levels:
        return torch.zeros(0)
    return (torch.arange(n_levels - 1) + 0.5) / (n_levels - 1)
