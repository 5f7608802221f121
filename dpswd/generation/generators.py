"""Generators: latent code and class in, record out.

====================  ==========================================================================  ============
class                 shape                                                                       parameters
====================  ==========================================================================  ============
``Table3Generator``   two linear layers, two upsampled convolutions (Rakotomamonjy2021, Table 3;  167,161
                      the design is that of Harder2021)
``MLPGenerator``      three linear layers, for feature vectors                                    small
``MixtureGenerator``  a cell of a mixture, its normal law, bent by linear layers, pixels, jitter          small
====================  ==========================================================================  ============
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpswd._provenance import track_runs
from dpswd._validate import at_least, nonnegative
from dpswd.errors import InputError
from dpswd.generation.jitter import N_CODES, jitter

__all__ = ["Generator", "MLPGenerator", "MixtureGenerator", "Table3Generator"]


class Generator(nn.Module):
    """Base: holds the sizes and draws latent codes. A subclass keeps its arguments as attributes of the same names.

    Args:
        sample_shape: Shape of one record.
        n_classes: Number C of classes; 0 for none.
        latent_dim: Size of the latent code.

    Attributes:
        class_names: Public names of the classes, in the order of their numbers, if they have names.
    """

    class_names: list[Any] | None = None

    def __init__(self, sample_shape: tuple[int, ...], n_classes: int, latent_dim: int) -> None:
        super().__init__()
        track_runs(self)
        at_least(1, latent_dim=latent_dim)
        at_least(0, n_classes=n_classes)
        self.sample_shape, self.n_classes, self.latent_dim = tuple(sample_shape), n_classes, latent_dim

    def latent(self, n: int) -> Tensor:
        """Draws n codes (n, latent_dim) from the standard normal law."""
        return torch.randn(n, self.latent_dim, device=next(self.parameters()).device)

    def code(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Joins codes and one-hot classes: (n, latent_dim + C)."""
        if not self.n_classes:
            return latent
        return torch.cat([latent, F.one_hot(labels, self.n_classes).to(latent.dtype)], dim=1)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Maps codes (n, latent_dim) and classes (n,) to records (n, *sample_shape); pixels in [0, 1]."""
        raise NotImplementedError


def _quarter(sample_shape: tuple[int, ...]) -> tuple[int, int]:
    if len(sample_shape) != 3:
        raise InputError(f"Expected sample_shape (channels, height, width) for images, got {tuple(sample_shape)}.")
    return math.ceil(sample_shape[1] / 4), math.ceil(sample_shape[2] / 4)


class Table3Generator(Generator):
    """Generator of Rakotomamonjy2021, Table 3: two linear layers, two upsampled convolutions.

    The first linear layer has 20 inputs: a code of 10 and a one-hot class of 10. The table prints a reshape to 28 x 28;
    only 16 x 7 x 7 fits two upsamplings to 28, as in Harder2021. 167,161 parameters.
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
        return self.body(self.code(latent, labels))[:, :, :height, :width]


class MLPGenerator(Generator):
    """Linear layers for records of any shape; ``bounded`` ends in a sigmoid (pixels), otherwise values are free."""

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
        return self.body(self.code(latent, labels)).unflatten(1, self.sample_shape)


class MixtureGenerator(Generator):
    r"""A mixture of normal laws in a space of principal directions, bent by a small network, cut to pixels and moved.

    .. math:: x = J(D(m_c + L_c z + f(z, c)))

    with the cell c drawn from those of the class by one latent coordinate, z others, D the map from rows to records, f
    a network that starts at zero and J the jitter of :mod:`dpswd.generation.jitter`. Everything but f and J is set by
    :class:`~dpswd.generation.mixture_module.MixtureModule` from released values.

    Args:
        sample_shape: Shape of one record.
        n_classes: Number C of classes.
        n_cells: Cells per class.
        components: Dimension p of the rows.
        hidden: Units of the network.
        bounded: Cut records to [0, 1] (pixels).
        shift: Jitter, for images; see :func:`dpswd.generation.jitter.jitter`. Public constants.
        rotation: Likewise.
        zoom: Likewise.
        shear: Likewise.
    """

    weights: Tensor
    means: Tensor
    roots: Tensor
    synthesis: Tensor
    offset: Tensor

    def __init__(
        self,
        sample_shape: tuple[int, ...] = (1, 28, 28),
        n_classes: int = 10,
        n_cells: int = 5,
        components: int = 40,
        hidden: int = 256,
        bounded: bool = True,
        shift: float = 0.0,
        rotation: float = 0.0,
        zoom: float = 0.0,
        shear: float = 0.0,
    ) -> None:
        at_least(1, n_classes=n_classes, n_cells=n_cells, components=components, hidden=hidden)
        nonnegative(shift=shift, rotation=rotation, zoom=zoom, shear=shear)
        jittered = any((shift, rotation, zoom, shear))
        if jittered and len(sample_shape) != 3:
            raise InputError(
                f"Expected sample_shape (channels, height, width) for jitter, got {tuple(sample_shape)}; leave shift, "
                "rotation, zoom and shear at 0."
            )
        super().__init__(sample_shape, n_classes, components + 1 + (N_CODES if jittered else 0))
        self.n_cells, self.components, self.hidden, self.bounded = n_cells, components, hidden, bounded
        self.shift, self.rotation, self.zoom, self.shear, self.jittered = shift, rotation, zoom, shear, jittered
        size, cells = math.prod(sample_shape), n_classes * n_cells
        self.register_buffer("weights", torch.full((n_classes, n_cells), 1 / n_cells))
        self.register_buffer("means", torch.zeros(cells, components))
        self.register_buffer("roots", torch.zeros(cells, components, components))
        self.register_buffer("synthesis", torch.zeros(components, size))
        self.register_buffer("offset", torch.zeros(size))
        self.bend = nn.Sequential(
            nn.Linear(components + cells, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU()
        )
        self.bend.append(nn.Linear(hidden, components))
        nn.init.zeros_(self.bend[-1].weight)
        nn.init.zeros_(self.bend[-1].bias)

    def cell(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Cell (n,) of each code, drawn by the coordinate after the rows' in the proportions of the class."""
        edges = self.weights.cumsum(1)[:, :-1][labels]
        inside = (torch.special.ndtr(latent[:, self.components, None]) > edges).sum(1)
        return labels * self.n_cells + inside

    def straight(self, latent: Tensor, cells: Tensor) -> Tensor:
        """Rows (n, p) of the mixture itself."""
        z = latent[:, : self.components, None]
        rows = torch.empty(len(latent), self.components, device=latent.device)
        for c in cells.unique().tolist():  # a root per cell, not per code
            mine = cells == c
            rows[mine] = self.means[c] + (self.roots[c] @ z[mine])[:, :, 0]
        return rows

    def correction(self, latent: Tensor, cells: Tensor) -> Tensor:
        """What the network adds to the rows (n, p)."""
        return self.bend(torch.cat([latent[:, : self.components], F.one_hot(cells, len(self.means)).float()], dim=1))

    def render(self, rows: Tensor) -> Tensor:
        """Maps rows (n, p) to records, cut to pixels where they are, not moved."""
        records = rows @ self.synthesis + self.offset
        return (records.clamp(0, 1) if self.bounded else records).unflatten(1, self.sample_shape)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """See :class:`Generator`."""
        cells = self.cell(latent, labels)
        records = self.render(self.straight(latent, cells) + self.correction(latent, cells))
        if not self.jittered:
            return records
        return jitter(records, latent[:, -N_CODES:], self.shift, self.rotation, self.zoom, self.shear)
