"""Generator networks: maps from latent codes and classes to records.

====================  ===============================================  =============
class                 shape                                            parameters
====================  ===============================================  =============
``ConvGenerator``     two linear layers, two upsampled convolutions    167,161
``RefinedGenerator``  a draw of a normal law, refined by convolutions  about 250,000
``MLPGenerator``      three linear layers, for feature vectors         small
====================  ===============================================  =============
"""

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpswd._validate import nonnegative
from dpswd.errors import InputError
from dpswd.generators import Generator
from dpswd.mixture.features import Frequencies
from dpswd.mixture.jitter import N_CODES, jitter

__all__ = ["ConvGenerator", "MLPGenerator", "RefinedGenerator"]


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


class RefinedGenerator(Generator):
    """Draws low frequencies of an image from a normal law per class, and refines the image by a network.

    The network sees the image at half the resolution and a code, and adds a correction. It starts at the normal law,
    which :meth:`start_from` takes from a sketch; with ``n_frequencies=0`` there is no such law, and the network makes
    images from the code alone. Jitter is part of the generator, so that training goes through it.

    Args:
        sample_shape: (channels, height, width); height and width even.
        n_classes: Number C of classes; 0 for none.
        n_frequencies: Frequencies per axis of the normal law.
        width: Maps of the network.
        hidden: Size of its hidden layer.
        extra_dim: Latent coordinates besides those of the normal law.
        shift: Public amount of jitter; see :func:`dpswd.mixture.jitter.jitter`.
        rotation: As ``shift``.
        zoom: As ``shift``.
        shear: As ``shift``.
        elastic: As ``shift``.

    Raises:
        InputError: If ``sample_shape`` is not that of an image with even sides.

    Example:
        >>> generator = RefinedGenerator((1, 8, 8), n_classes=10, n_frequencies=4, width=8)
        >>> generator(generator.latent(5), torch.arange(5)).shape
        torch.Size([5, 1, 8, 8])
    """

    means: Tensor
    roots: Tensor
    centre: Tensor
    scale: Tensor

    def __init__(
        self,
        sample_shape: tuple[int, int, int] = (1, 28, 28),
        n_classes: int = 10,
        n_frequencies: int = 14,
        width: int = 32,
        hidden: int = 128,
        extra_dim: int = 16,
        shift: float = 0.0,
        rotation: float = 0.0,
        zoom: float = 0.0,
        shear: float = 0.0,
        elastic: float = 0.0,
    ) -> None:
        nonnegative(shift=shift, rotation=rotation, zoom=zoom, shear=shear, elastic=elastic)
        if len(sample_shape) != 3 or sample_shape[1] % 2 or sample_shape[2] % 2:
            raise InputError(f"Expected sample_shape (channels, even height, even width), got {tuple(sample_shape)}.")
        self_map = Frequencies(sample_shape, n_frequencies) if n_frequencies else None
        dim, groups = (self_map.dim if self_map else 0), max(1, n_classes)
        super().__init__(sample_shape, n_classes, dim + extra_dim + N_CODES)
        self.n_frequencies, self.width, self.hidden, self.extra_dim, self.dim = (
            n_frequencies,
            width,
            hidden,
            extra_dim,
            dim,
        )
        self.shift, self.rotation, self.zoom, self.shear, self.elastic = shift, rotation, zoom, shear, elastic
        self.map = self_map
        self.register_buffer("means", torch.zeros(groups, dim))
        self.register_buffer("roots", torch.zeros(groups, dim, dim))
        self.register_buffer("centre", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(()))
        channels, height, breadth = sample_shape
        half = (height // 2, breadth // 2)
        self.code_layers = nn.Sequential(
            nn.Linear(dim + extra_dim + n_classes, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Linear(hidden, 8 * math.prod(half)),
            nn.Unflatten(1, (8, *half)),
        )
        self.body = nn.Sequential(
            nn.Conv2d(4 * channels + 8, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        )
        self.last = nn.Conv2d(width, 4 * channels, 3, padding=1)
        if self.map is not None:
            nn.init.normal_(self.last.weight, std=1e-3)  # training starts at the normal law

    @torch.no_grad()
    def start_from(self, means: Tensor, moments: Tensor, centre: Tensor, scale: Tensor) -> None:
        """Set the normal law of each class from released means (C, d) and second moments (C, d, d) of rows."""
        covariances = moments.double() - means.double()[:, :, None] * means.double()[:, None, :]
        values, vectors = torch.linalg.eigh(covariances)
        self.roots.copy_((vectors * values.clamp(min=0).sqrt()[:, None, :]).mT)
        self.means.copy_(means)
        self.centre.copy_(centre)
        self.scale.copy_(scale)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """See :class:`~dpswd.generators.Generator`."""
        codes, moves = latent[:, : self.dim + self.extra_dim], latent[:, self.dim + self.extra_dim :]
        if self.map is None:
            images = latent.new_full((len(latent), *self.sample_shape), -0.1)
        else:
            rows = self.means[labels] + torch.einsum("nd,nde->ne", codes[:, : self.dim], self.roots[labels])
            images = self.map.decode(rows * self.scale + self.centre)
        maps = self.code_layers(self.code(codes, labels))
        change = self.last(self.body(torch.cat([F.pixel_unshuffle(images, 2), maps], dim=1)))
        images = images + F.pixel_shuffle(change, 2)
        images = F.softplus(images, 10) - F.softplus(images - 1, 10)  # a smooth limit to [0, 1]
        amounts = {name: getattr(self, name) for name in ("shift", "rotation", "zoom", "shear", "elastic")}
        return jitter(images, moves, **amounts) if any(amounts.values()) else images
