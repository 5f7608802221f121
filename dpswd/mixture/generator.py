"""Generators: maps from latent codes and classes to records.

====================  ==========================================================================  ============
class                 shape                                                                       parameters
====================  ==========================================================================  ============
``Table3Generator``   two linear layers, two upsampled convolutions (Rakotomamonjy2021, Table 3;  167,161
                      the design is that of Harder2021)
``MLPGenerator``      three linear layers, for feature vectors                                    small
``MixtureGenerator``  normal distributions of cells, a tone curve, jitter                                 small
====================  ==========================================================================  ============
"""

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpswd._provenance import track_runs
from dpswd._validate import at_least, nonnegative
from dpswd.errors import InputError
from dpswd.generation.features import Frequencies
from dpswd.generation.jitter import N_CODES, jitter

__all__ = ["Generator", "MLPGenerator", "MixtureGenerator", "Table3Generator"]


class Generator(nn.Module):
    """Base class of generators: sizes and latent codes.

    A subclass stores its arguments as attributes of the same names, from which
    :func:`dpswd.generation.export.write_generator` writes them.

    Args:
        sample_shape: Shape of one record.
        n_classes: Number C of classes; 0 for none.
        latent_dim: Size of the latent code.

    Attributes:
        class_names: Public names of the classes, in the order of their numbers, if they have names.

    Raises:
        InputError: If a value is out of range.

    Example:
        >>> class Linear(Generator):
        ...     def __init__(self, sample_shape, n_classes, latent_dim):
        ...         super().__init__(sample_shape, n_classes, latent_dim)
        ...         self.map = nn.Linear(latent_dim + n_classes, sample_shape[0])
        ...     def forward(self, latent, labels):
        ...         return self.map(self.code(latent, labels))
        >>> generator = Linear((3,), n_classes=2, latent_dim=4)
        >>> generator(generator.latent(5), torch.zeros(5, dtype=torch.int64)).shape
        torch.Size([5, 3])
    """

    class_names: list[Any] | None = None

    def __init__(self, sample_shape: tuple[int, ...], n_classes: int, latent_dim: int) -> None:
        super().__init__()
        track_runs(self)
        at_least(1, latent_dim=latent_dim)
        at_least(0, n_classes=n_classes)
        self.sample_shape, self.n_classes, self.latent_dim = tuple(sample_shape), n_classes, latent_dim

    def latent(self, n: int) -> Tensor:
        """Draws standard normal codes (n, latent_dim)."""
        return torch.randn(n, self.latent_dim, device=next(self.parameters()).device)

    def code(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Concatenates codes and one-hot classes: (n, latent_dim + C)."""
        if not self.n_classes:
            return latent
        return torch.cat([latent, F.one_hot(labels, self.n_classes).to(latent.dtype)], dim=1)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Maps codes (n, latent_dim) and classes (n,) to records ``(n, *sample_shape)``; pixels in [0, 1]."""
        raise NotImplementedError


def _quarter(sample_shape: tuple[int, ...]) -> tuple[int, int]:
    if len(sample_shape) != 3:
        raise InputError(f"Expected sample_shape (channels, height, width) for images, got {tuple(sample_shape)}.")
    return math.ceil(sample_shape[1] / 4), math.ceil(sample_shape[2] / 4)


class Table3Generator(Generator):
    """Generator of Rakotomamonjy2021, Table 3: two linear layers, two upsampled convolutions.

    The first linear layer has 20 inputs: a code of 10 and a one-hot class of 10. The table prints a reshape to 28 x 28;
    two upsamplings to 28 x 28 require 16 x 7 x 7, as in Harder2021. 167,161 parameters.

    Args:
        sample_shape: (channels, height, width).
        n_classes: Number C of classes; 0 for none.
        latent_dim: Size of the latent code.
        hidden: Outputs of the first linear layer.
        width: Channels before the first convolution.

    Raises:
        InputError: If ``sample_shape`` is not that of an image.

    Example:
        >>> generator = Table3Generator()
        >>> sum(parameter.numel() for parameter in generator.parameters())
        167161
    """

    def __init__(
        self,
        sample_shape: tuple[int, int, int] = (1, 28, 28),
        n_classes: int = 10,
        latent_dim: int = 10,
        hidden: int = 200,
        width: int = 16,
    ) -> None:
        super().__init__(sample_shape, n_classes, latent_dim)
        self.hidden, self.width = hidden, width
        height, breadth = _quarter(sample_shape)
        self.body = nn.Sequential(
            nn.Linear(latent_dim + n_classes, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Linear(hidden, width * height * breadth),
            nn.BatchNorm1d(width * height * breadth),
            nn.ReLU(),
            nn.Unflatten(1, (width, height, breadth)),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.Conv2d(width, width // 2, 5, padding=2),
            nn.ReLU(),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.Conv2d(width // 2, sample_shape[0], 5, padding=2),
            nn.Sigmoid(),
        )

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """See :class:`Generator`."""
        _, height, width = self.sample_shape
        return cast(Tensor, self.body(self.code(latent, labels))[:, :, :height, :width])


class MLPGenerator(Generator):
    """Three linear layers for records of any shape; ``bounded`` adds a final sigmoid, for pixels.

    Args:
        sample_shape: Shape of one record.
        n_classes: Number C of classes; 0 for none.
        latent_dim: Size of the latent code.
        hidden: Outputs of the first two layers.
        bounded: Add a sigmoid.

    Example:
        >>> generator = MLPGenerator((64,), n_classes=10)
        >>> generator(generator.latent(5), torch.arange(5)).shape
        torch.Size([5, 64])
    """

    def __init__(
        self,
        sample_shape: tuple[int, ...] = (64,),
        n_classes: int = 10,
        latent_dim: int = 32,
        hidden: int = 256,
        bounded: bool = False,
    ) -> None:
        super().__init__(sample_shape, n_classes, latent_dim)
        self.hidden, self.bounded = hidden, bounded
        layers = [
            nn.Linear(latent_dim + n_classes, hidden),
            nn.SiLU(),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
            nn.Linear(hidden, math.prod(sample_shape)),
        ]
        self.body = nn.Sequential(*layers, *([nn.Sigmoid()] if bounded else []))

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """See :class:`Generator`."""
        return cast(Tensor, self.body(self.code(latent, labels)).unflatten(1, self.sample_shape))


class MixtureGenerator(Generator):
    r"""Mixture of normal distributions, a tone curve and jitter.

    .. math:: x = J(T(D(m_c + (L_c z, s \odot z')) + r))

    One latent coordinate selects the cell c among those of the class; z and z' are the latent coordinates of the p
    leading and of the remaining directions. D maps rows to records, and r has the unreleased frequencies, drawn from
    the reference spectrum. With ``contrast``, z, z' and r of a record have one log-normal factor in common, since
    photographs differ in contrast. The tone curve T limits pixels to [0, 1]; J is the jitter of
    :mod:`dpswd.generation.jitter`.
    :class:`~dpswd.generation.mixture_module.MixtureModule` sets means m, roots L and the buffers.

    Args:
        sample_shape: Shape of one record.
        n_classes: Number C of classes; 0 for none.
        n_cells: Number of cells per class.
        n_components: Number p of leading directions.
        dim: Dimension D of the rows; ``None`` for ``n_components``.
        bounded: Limit records to [0, 1] (pixels).
        n_levels: Levels of the tone curve, at least 3; 0 clamps.
        residual: Draw the unreleased frequencies from the reference spectrum.
        contrast: Standard deviation of the logarithm of that factor, whose square has mean 1; 0 for none.
        shift: Public amount of jitter, for images; see :func:`dpswd.generation.jitter.jitter`.
        rotation: As ``shift``.
        zoom: As ``shift``.
        shear: As ``shift``.
        elastic: As ``shift``.

    Raises:
        InputError: If a number is out of range, or jitter is set for records that are not images.

    Example:
        >>> generator = MixtureGenerator((1, 8, 8), n_classes=10, n_cells=2, n_components=6, shift=1.0)
        >>> generator(generator.latent(5), torch.arange(5)).shape
        torch.Size([5, 1, 8, 8])
    """

    weights: Tensor
    spread: Tensor
    synthesis: Tensor
    offset: Tensor
    residual_scale: Tensor
    reflect: Tensor
    tones: Tensor

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
        shift: float = 0.0,
        rotation: float = 0.0,
        zoom: float = 0.0,
        shear: float = 0.0,
        elastic: float = 0.0,
    ) -> None:
        dim = n_components if dim is None else dim
        at_least(1, n_cells=n_cells, n_components=n_components)
        at_least(n_components, dim=dim)
        nonnegative(contrast=contrast, shift=shift, rotation=rotation, zoom=zoom, shear=shear, elastic=elastic)
        jittered = any((shift, rotation, zoom, shear, elastic))
        if (jittered or residual) and len(sample_shape) != 3:
            raise InputError(
                f"Expected sample_shape (channels, height, width) for jitter or residual, got {tuple(sample_shape)}; "
                "leave the amounts of jitter at 0 and residual at false."
            )
        size, cells = math.prod(sample_shape), max(1, n_classes) * n_cells
        super().__init__(sample_shape, n_classes, dim + 1 + (N_CODES if jittered else 0) + (size if residual else 0))
        self.n_cells, self.n_components, self.dim = n_cells, n_components, dim
        self.bounded, self.n_levels, self.residual, self.jittered = bounded, n_levels, residual, jittered
        self.shift, self.rotation, self.zoom, self.shear = shift, rotation, zoom, shear
        self.contrast, self.elastic = contrast, elastic
        self.register_buffer("weights", torch.full((max(1, n_classes), n_cells), 1 / n_cells))
        self.means = nn.Parameter(torch.zeros(cells, dim))
        self.roots = nn.Parameter(torch.zeros(cells, n_components, n_components))
        self.register_buffer("spread", torch.zeros(dim - n_components))
        self.register_buffer("synthesis", torch.zeros(dim, size))
        self.register_buffer("offset", torch.zeros(size))
        self.register_buffer("residual_scale", torch.zeros(sample_shape if residual else (0,)))
        self.register_buffer(
            "tones", (torch.arange(n_levels - 1) + 0.5) / (n_levels - 1) if n_levels else torch.zeros(0)
        )
        self.register_buffer("reflect", torch.tensor(False))
        self.frequencies = Frequencies(sample_shape, 1) if residual else None  # type: ignore[arg-type]

    def latent(self, n: int) -> Tensor:
        """Draws codes (n, latent_dim): normal ones, times the contrast except those of the cell and of jitter."""
        latent = super().latent(n)
        if not self.contrast:
            return latent

        factor = torch.exp(self.contrast * torch.randn_like(latent[:, :1]) - self.contrast**2)
        end = self.dim + 1 + (N_CODES if self.jittered else 0)
        return torch.cat([factor * latent[:, : self.dim], latent[:, self.dim : end], factor * latent[:, end:]], dim=1)

    def cell(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Returns the cell (n,) that coordinate D of each code (n, latent_dim) selects."""
        edges = self.weights.cumsum(1)[:, :-1][labels]
        inside = (torch.special.ndtr(latent[:, self.dim, None]) > edges).sum(1)
        return cast(Tensor, labels * self.n_cells + inside)

    def rows(self, latent: Tensor, cells: Tensor) -> Tensor:
        """Returns rows (n, D) of the mixture."""
        p = self.n_components
        z = latent[:, :p, None]
        rows = self.means[cells]
        rows[:, p:] += self.spread * latent[:, p : self.dim]
        for c in cells.unique().tolist():  # one product per cell; a root per code takes much memory
            mine = cells == c
            rows[mine, :p] += (self.roots[c] @ z[mine])[:, :, 0]
        return rows

    def render(self, rows: Tensor, codes: Tensor | None = None) -> Tensor:
        """Maps rows (n, D) to records, limited to [0, 1] if ``bounded``, without jitter; see :meth:`linear`."""
        records = self.linear(rows, codes)
        if not self.bounded:
            return records
        if not self.n_levels:
            return records.clamp(0, 1)
        upper = torch.bucketize(records, self.tones).clamp(1, len(self.tones) - 1)
        start, end = self.tones[upper - 1], self.tones[upper]
        part = ((records - start) / (end - start).clamp(min=1e-6)).clamp(0, 1)
        values = (upper - 0.5 + part) / (self.n_levels - 1)
        return values.where(records >= self.tones[0], 0.0).where(records <= self.tones[-1], 1.0)

    def linear(self, rows: Tensor, codes: Tensor | None = None) -> Tensor:
        """Maps rows (n, D) to records without limits.

        Args:
            rows: (n, D).
            codes: (n, size of a record), standard normal, of the residual; ``None`` for no residual.
        """
        records = (rows @ self.synthesis + self.offset).unflatten(1, self.sample_shape)
        if codes is not None:
            assert self.frequencies is not None
            frequencies = codes.unflatten(1, self.sample_shape) * self.residual_scale
            records = records + self.frequencies.from_frequencies(frequencies)
        return cast(Tensor, records)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """See :class:`Generator`."""
        cells = self.cell(latent, labels)
        rows = self.rows(latent, cells)
        records = self.render(rows, latent[:, -math.prod(self.sample_shape) :] if self.residual else None)
        if not self.jittered:
            return records
        return jitter(
            records,
            latent[:, self.dim + 1 : self.dim + 1 + N_CODES],
            shift=self.shift,
            rotation=self.rotation,
            zoom=self.zoom,
            shear=self.shear,
            elastic=self.elastic,
            padding="reflection" if bool(self.reflect) else "zeros",
        )
