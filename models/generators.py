"""Generators: latent code and class in, record out.

====================  ==========================================================================  ============
class                 shape                                                                       parameters
====================  ==========================================================================  ============
``Table3Generator``   two linear layers, two upsampled convolutions (Rakotomamonjy2021, Table 3;  about 180 K
                      the design is that of Harder2021)
``ResNetGenerator``   residual upsampling blocks modulated by class and latent code               about 1 M
``MLPGenerator``      three linear layers, for feature vectors                                    small
====================  ==========================================================================  ============
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpswd._validate import at_least
from dpswd.errors import InputError

__all__ = ["Generator", "MLPGenerator", "ResNetGenerator", "Table3Generator"]


class Generator(nn.Module):
    """Base: holds the sizes and draws latent codes. A subclass keeps its arguments as attributes of the same names.

    Args:
        sample_shape: Shape of one record.
        n_classes: Number C of classes; 0 for none.
        latent_dim: Size of the latent code.
    """

    def __init__(self, sample_shape: tuple[int, ...], n_classes: int, latent_dim: int) -> None:
        super().__init__()
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
    """The paper's generator: linear, linear, upsample, convolution, upsample, convolution.

    For 28 x 28 grey images with 10 classes and a latent code of 100: 185,161 parameters.
    """

    def __init__(
        self,
        sample_shape: tuple[int, int, int] = (1, 28, 28),
        n_classes: int = 10,
        latent_dim: int = 100,
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


class _Block(nn.Module):
    """Upsample, then a residual pair of convolutions whose channels the code scales and shifts."""

    def __init__(self, inputs: int, outputs: int, code: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1)
        self.modulation = nn.Linear(code, 2 * outputs)

    def forward(self, x: Tensor, code: Tensor) -> Tensor:
        x = F.interpolate(x, scale_factor=2, mode="bilinear")
        scale, shift = self.modulation(code)[:, :, None, None].chunk(2, dim=1)
        hidden = self.first(F.silu(x)) * (1 + scale) + shift
        return self.skip(x) + self.second(F.silu(hidden))


class ResNetGenerator(Generator):
    """A stronger conditional generator: every block sees the class and the latent code again."""

    def __init__(
        self,
        sample_shape: tuple[int, int, int] = (1, 28, 28),
        n_classes: int = 10,
        latent_dim: int = 64,
        hidden: int = 256,
        width: int = 48,
    ) -> None:
        super().__init__(sample_shape, n_classes, latent_dim)
        self.hidden, self.width = hidden, width
        height, breadth = _quarter(sample_shape)
        self.embed = nn.Sequential(
            nn.Linear(latent_dim + n_classes, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU()
        )
        self.start = nn.Sequential(
            nn.Linear(hidden, width * height * breadth), nn.Unflatten(1, (width, height, breadth))
        )
        self.blocks = nn.ModuleList([_Block(width, width, hidden), _Block(width, width // 2, hidden)])
        self.end = nn.Conv2d(width // 2, sample_shape[0], 3, padding=1)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """See :class:`Generator`."""
        code = self.embed(self.code(latent, labels))
        x = self.start(code)
        for block in self.blocks:
            x = block(x, code)
        _, height, width = self.sample_shape
        return torch.sigmoid(self.end(F.silu(x)))[:, :, :height, :width]


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
