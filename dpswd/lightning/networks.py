"""Generator networks: maps from latent codes and classes to records.

====================  ===============================================  =============
class                 shape                                            parameters
====================  ===============================================  =============
``ConvGenerator``     two linear layers, two upsampled convolutions    167,161
``ShuffleGenerator``  two linear layers, two convolutions, jitter      about 900,000
``MLPGenerator``      three linear layers, for feature vectors         small
====================  ===============================================  =============
"""

import math
from typing import cast

import torch
from torch import Tensor, nn

from dpswd._validate import at_least, nonnegative
from dpswd.errors import InputError
from dpswd.generators import Generator
from dpswd.mixture.jitter import N_CODES, jitter

__all__ = ["ConvGenerator", "MLPGenerator", "ShuffleGenerator"]


def _quarter(sample_shape: tuple[int, ...]) -> tuple[int, int]:
    if len(sample_shape) != 3:
        raise InputError(f"Expected sample_shape (channels, height, width) for images, got {tuple(sample_shape)}.")
    return math.ceil(sample_shape[1] / 4), math.ceil(sample_shape[2] / 4)


class ConvGenerator(Generator):
    """Two linear layers and two upsampled convolutions, for images, in the manner of Harder2021.

    With the defaults it has the sizes of Rakotomamonjy2021, Table 3, and 167,161 parameters.

    Args:
        sample_shape: (channels, height, width).
        n_classes: Number C of classes; 0 for none.
        latent_dim: Size of the latent code.
        hidden: Outputs of the first linear layer.
        width: Channels before the first convolution.

    Raises:
        InputError: If ``sample_shape`` is not that of an image.

    Example:
        >>> generator = ConvGenerator()
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


class ShuffleGenerator(Generator):
    """Two linear layers and two convolutions with pixel shuffle and batch normalisation, for images.

    Convolutions work at a quarter and at half of the resolution, so that a training step is cheap. Every class scales
    the hidden layer by factors of its own. Jitter is part of the generator, and training goes through it.

    Args:
        sample_shape: (channels, height, width).
        n_classes: Number C of classes; 0 for none.
        code_dim: Latent coordinates besides those of the jitter.
        hidden: Outputs of the first linear layer.
        width: Channels before the first convolution; even.
        shift: Public amount of jitter; see :func:`dpswd.mixture.jitter.jitter`.
        rotation: As ``shift``.
        zoom: As ``shift``.
        shear: As ``shift``.
        elastic: As ``shift``.

    Raises:
        InputError: If ``sample_shape`` is not that of an image, or an amount is negative.

    Example:
        >>> generator = ShuffleGenerator((1, 8, 8), n_classes=10, shift=0.5)
        >>> generator(generator.latent(5), torch.arange(5)).shape
        torch.Size([5, 1, 8, 8])
    """

    def __init__(
        self,
        sample_shape: tuple[int, int, int] = (1, 28, 28),
        n_classes: int = 10,
        code_dim: int = 64,
        hidden: int = 256,
        width: int = 64,
        shift: float = 0.0,
        rotation: float = 0.0,
        zoom: float = 0.0,
        shear: float = 0.0,
        elastic: float = 0.0,
    ) -> None:
        amounts = {"shift": shift, "rotation": rotation, "zoom": zoom, "shear": shear, "elastic": elastic}
        nonnegative(**amounts)
        at_least(1, code_dim=code_dim, hidden=hidden)
        at_least(2, width=width)
        height, breadth = _quarter(sample_shape)
        super().__init__(sample_shape, n_classes, code_dim + (N_CODES if any(amounts.values()) else 0))
        self.code_dim, self.hidden, self.width = code_dim, hidden, width
        self.shift, self.rotation, self.zoom, self.shear, self.elastic = shift, rotation, zoom, shear, elastic
        self.first = nn.Sequential(nn.Linear(code_dim + n_classes, hidden), nn.BatchNorm1d(hidden))
        self.gain = nn.Parameter(torch.ones(max(1, n_classes), hidden))
        self.body = nn.Sequential(
            nn.ReLU(),
            nn.Linear(hidden, width * height * breadth),
            nn.Unflatten(1, (width, height, breadth)),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 4 * (width // 2), 3, padding=1),
            nn.PixelShuffle(2),
            nn.BatchNorm2d(width // 2),
            nn.ReLU(),
            nn.Conv2d(width // 2, 4 * sample_shape[0], 3, padding=1),
            nn.PixelShuffle(2),
        )

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """See :class:`~dpswd.generators.Generator`."""
        codes, moves = latent[:, : self.code_dim], latent[:, self.code_dim :]
        maps = self.body(self.first(self.code(codes, labels)) * self.gain[labels if self.n_classes else 0])
        images = torch.sigmoid(maps[:, :, : self.sample_shape[1], : self.sample_shape[2]] - 2)  # starts dark
        amounts = {name: getattr(self, name) for name in ("shift", "rotation", "zoom", "shear", "elastic")}
        return jitter(images, moves, **amounts) if moves.shape[1] else images
