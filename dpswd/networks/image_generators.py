"""Generator networks: maps from latent codes and classes to images."""

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpswd._symmetric import root
from dpswd.errors import InputError
from dpswd.features.frequencies import Frequencies
from dpswd.features.jitter import N_CODES, check_amounts, jitter
from dpswd.networks.generator import Generator

__all__ = ["ConvGenerator", "ShuffleGenerator"]


def _quarter(sample_shape: tuple[int, ...]) -> tuple[int, int]:
    if len(sample_shape) != 3:
        raise InputError(
            f"Expected sample_shape (channels, height, width) for images, got {tuple(sample_shape)}."
        )
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


class ShuffleGenerator(Generator):
    """A linear layer per class to the low frequencies of an image, corrected by two convolutions with pixel shuffle.

    With the defaults it has about 850,000 parameters.

    The code has as many coordinates as there are frequencies, so that the linear layers can have any covariance; their
    weights are in units of the reference spectrum. The correction starts at zero. Its convolutions work at a quarter
    and at half of the resolution, and every class scales its hidden layer by factors of its own. Jitter is applied in
    evaluation mode only: it adds variety to what the network was trained to.

    Args:
        sample_shape: (channels, height, width).
        n_classes: Number C of classes; 0 for none.
        size: Frequencies per axis, at most the side of the image; see :class:`dpswd.features.frequencies.Frequencies`.
        chroma_size: Those of the two other opponent colours; ``None`` for ``size``.
        hidden: Outputs of the first linear layer of the correction.
        width: Channels before the first convolution; even.
        jitter: Public amounts of jitter; see :func:`dpswd.features.jitter.jitter`.

    Attributes:
        features: The map to the low frequencies.

    Raises:
        InputError: If ``sample_shape`` is not that of an image, or an amount is negative.

    Example:
        >>> generator = ShuffleGenerator((1, 8, 8), n_classes=10, jitter={"shift": 0.5})
        >>> generator(generator.latent(5), torch.arange(5)).shape
        torch.Size([5, 1, 8, 8])
    """

    def __init__(
        self,
        sample_shape: tuple[int, int, int] = (1, 28, 28),
        n_classes: int = 10,
        size: int = 14,
        chroma_size: int | None = None,
        hidden: int = 256,
        width: int = 32,
        jitter: dict[str, float] | None = None,
    ) -> None:
        check_amounts(jitter or {})
        height, breadth = _quarter(sample_shape)
        features = Frequencies(sample_shape, min(size, *sample_shape[1:]), chroma_size)
        dim, groups = features.dim, max(1, n_classes)
        super().__init__(sample_shape, n_classes, dim + (N_CODES if jitter else 0))
        self.size, self.chroma_size, self.hidden, self.width = size, chroma_size, hidden, width
        self.jitter: dict[str, Any] = jitter or {}
        self.features = features
        self.deviations = nn.Buffer(features.reference.sqrt().float(), persistent=False)
        self.linear = nn.Parameter(torch.randn(groups, dim, dim) / math.sqrt(dim))
        self.offset = nn.Parameter(torch.zeros(groups, dim))
        self.first = nn.Sequential(nn.Linear(dim + n_classes, hidden), nn.BatchNorm1d(hidden))
        self.gain = nn.Parameter(torch.ones(groups, hidden))
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
            last := nn.Conv2d(width // 2, 4 * sample_shape[0], 3, padding=1),
            nn.PixelShuffle(2),
        )
        nn.init.zeros_(last.weight)
        nn.init.zeros_(cast(Tensor, last.bias))

    @torch.no_grad()
    def start_at(self, means: Tensor, covariances: Tensor) -> None:
        """Start at normal distributions of the rows of ``features``: means (C, d) and covariances (C, d, d)."""
        self.offset.copy_(means / self.deviations)
        self.linear.copy_(root(covariances) / self.deviations[:, None])

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """See :class:`~dpswd.networks.generator.Generator`."""
        codes, moves = latent[:, : self.features.dim], latent[:, self.features.dim :]
        groups = F.one_hot(labels, len(self.linear)).to(codes.dtype)
        each = (groups[:, :, None] * codes[:, None]).flatten(
            1
        )  # the code at the place of its class, zero elsewhere
        rows = groups @ self.offset + each @ self.linear.mT.flatten(0, 1)
        correction = self.body(self.first(self.code(codes, labels)) * (groups @ self.gain))
        _, height, width = self.sample_shape
        images = (
            self.features.decode(rows * self.deviations) + correction[:, :, :height, :width]
        ).clamp(0, 1)
        return images if self.training or not self.jitter else jitter(images, moves, **self.jitter)
