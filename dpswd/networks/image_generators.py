"""Generator networks: maps from latent codes and classes to images."""

import math
from itertools import pairwise
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpswd._symmetric import root
from dpswd.errors import InputError
from dpswd.features.frequencies import Frequencies
from dpswd.features.jitter import N_CODES, check_amounts, jitter
from dpswd.networks.generator import Generator, affine_by_class

__all__ = ["ConvGenerator", "ShuffleGenerator", "TransposedGenerator"]


class ConvGenerator(Generator):
    """Image generator of two linear layers and two upsampled convolutions.

    The layers have the sizes of those of Harder2021. There is a ReLU after both batch
    normalisations, where the network of Harder2021 has one after the first only and aligned
    corners in its upsampling. With the defaults the sizes are those of Rakotomamonjy2021, Table 3,
    with 167,161 parameters.

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
        self.hidden = hidden
        self.width = width
        rows, columns = _quarter_size(sample_shape)
        n_inputs = latent_dim + n_classes
        n_values = width * rows * columns
        half_width = width // 2
        self.body = nn.Sequential(
            nn.Linear(n_inputs, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Linear(hidden, n_values),
            nn.BatchNorm1d(n_values),
            nn.ReLU(),
            nn.Unflatten(1, (width, rows, columns)),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.Conv2d(width, half_width, 5, padding=2),
            nn.ReLU(),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.Conv2d(half_width, sample_shape[0], 5, padding=2),
            nn.Sigmoid(),
        )

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """See :class:`~dpswd.networks.generator.Generator`."""
        code = self.code(latent, labels)
        images = self.body(code)
        return _cut(images, self.sample_shape)


class TransposedGenerator(Generator):
    """Image generator of transposed convolutions.

    The layers are those of Rakotomamonjy2021, Table 5, with the strides of the code that the paper
    builds on: the first layer has stride 1 and no padding, the others stride 2 and padding 1, all
    without offsets, with batch normalisation and ReLU between them. A tanh at the end is mapped to
    pixels in [0, 1]. With the defaults there are 3,019,648 parameters. The paper has no classes;
    with classes the one-hot class is appended to the code.

    Args:
        sample_shape: (channels, side, side), where the side is 4 times a power of two.
        n_classes: Number C of classes; 0 for none.
        latent_dim: Size of the latent code.
        width: Channels before the last layer; every layer before it has twice as many.

    Raises:
        InputError: If ``sample_shape`` is not that of a square image of such a side.

    Example:
        >>> generator = TransposedGenerator()
        >>> sum(parameter.numel() for parameter in generator.parameters())
        3019648
    """

    def __init__(
        self,
        sample_shape: tuple[int, int, int] = (3, 64, 64),
        n_classes: int = 0,
        latent_dim: int = 32,
        width: int = 64,
    ) -> None:
        super().__init__(sample_shape, n_classes, latent_dim)
        n_doublings = _doublings(sample_shape)
        self.width = width
        n_inputs = latent_dim + n_classes
        n_channels = [width * 2**i for i in reversed(range(n_doublings))]
        n_channels.append(sample_shape[0])
        layers: list[nn.Module] = []
        layers.append(nn.Unflatten(1, (n_inputs, 1, 1)))
        layers.append(nn.ConvTranspose2d(n_inputs, n_channels[0], 4, bias=False))
        for before, after in pairwise(n_channels):
            layers.append(nn.BatchNorm2d(before))
            layers.append(nn.ReLU())
            doubling = nn.ConvTranspose2d(before, after, 4, stride=2, padding=1, bias=False)
            layers.append(doubling)
        layers.append(nn.Tanh())
        self.body = nn.Sequential(*layers)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """See :class:`~dpswd.networks.generator.Generator`."""
        code = self.code(latent, labels)
        values: Tensor = self.body(code)  # in [-1, 1]
        return (values + 1) / 2


class ShuffleGenerator(Generator):
    """Image generator of linear layers to low frequencies, and a correction.

    Every class has a linear layer from the code to the low frequencies of an image. Two
    convolutions with pixel shuffle correct the image. With the defaults there are about 850,000
    parameters.

    The code has as many coordinates as there are frequencies, so that the linear layers can have
    any covariance; their weights are in units of the reference spectrum. The correction starts at
    zero. Its two convolutions work at a quarter and at half of the resolution, and every class
    scales its hidden layer by factors of its own. Jitter is applied in evaluation mode only: it
    adds variety to the images that the network was trained to make.

    Args:
        sample_shape: (channels, height, width).
        n_classes: Number C of classes; 0 for none.
        size: Number of frequencies along each axis, not of pixels: 12 x 12 with ``size=12``; see
            :class:`dpswd.features.frequencies.Frequencies`.
        chroma_size: Frequencies per axis of the two other opponent colours; ``None`` for ``size``.
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
        amounts: dict[str, Any] = jitter or {}
        check_amounts(amounts, sample_shape)
        rows, columns = _quarter_size(sample_shape)
        _, height, image_width = sample_shape
        features = Frequencies(sample_shape, min(size, height, image_width), chroma_size)
        dim = features.dim
        n_moves = N_CODES if amounts else 0
        super().__init__(sample_shape, n_classes, latent_dim=dim + n_moves)
        self.size = size
        self.chroma_size = chroma_size
        self.hidden = hidden
        self.width = width
        self.jitter = amounts
        self.features = features
        deviations = features.reference.sqrt()
        self.deviations = nn.Buffer(deviations.float(), persistent=False)
        n_groups = max(1, n_classes)
        n_inputs = dim + n_classes
        # The order of construction fixes the order of the random draws of the initial weights.
        weights = torch.randn(n_groups, dim, dim) / math.sqrt(dim)
        self.linear = nn.Parameter(weights)
        self.offset = nn.Parameter(torch.zeros(n_groups, dim))
        self.first = nn.Sequential(nn.Linear(n_inputs, hidden), nn.BatchNorm1d(hidden))
        self.gain = nn.Parameter(torch.ones(n_groups, hidden))
        self.body = nn.Sequential(
            nn.ReLU(),
            *doubled_maps(hidden, width, rows, columns),
            _zero_convolution(width // 2, 4 * sample_shape[0]),
            nn.PixelShuffle(2),
        )

    @torch.no_grad()
    def start_at(self, means: Tensor, covariances: Tensor) -> None:
        """Start at normal distributions of the rows of ``features``.

        Args:
            means: Means (C, d) of the rows of each class.
            covariances: Their covariances (C, d, d).
        """
        roots = root(covariances)
        self.offset.copy_(means / self.deviations)
        self.linear.copy_(roots / self.deviations[:, None])

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """See :class:`~dpswd.networks.generator.Generator`."""
        dim = self.features.dim
        codes = latent[:, :dim]
        membership = F.one_hot(labels, len(self.linear)).to(codes.dtype)
        rows = affine_by_class(self.linear, self.offset, codes, membership) * self.deviations
        gains = membership @ self.gain
        hidden = self.first(self.code(codes, labels)) * gains
        correction = _cut(self.body(hidden), self.sample_shape)
        images = self.features.decode(rows) + correction
        images = images.clamp(0, 1)
        if self.training or not self.jitter:
            return images
        return jitter(images, latent[:, dim:], **self.jitter)


def _doublings(sample_shape: tuple[int, ...]) -> int:
    """Return how often 4 is doubled to the side of a square image."""
    if len(sample_shape) == 3:
        _, height, width = sample_shape
        quarter = height // 4
        n_doublings = quarter.bit_length() - 1
        side = 4 * 2**n_doublings
        if n_doublings >= 1 and height == width == side:
            return n_doublings
    raise InputError(
        "Expected sample_shape (channels, side, side) with a side of 8, 16, 32, 64, ..., "
        f"got {tuple(sample_shape)}."
    )


def doubled_maps(n_inputs: int, width: int, rows: int, columns: int) -> list[nn.Module]:
    """Return layers that make ``width // 2`` maps (2 rows, 2 columns) of a vector.

    A linear layer makes ``width`` maps (rows, columns), and a convolution with pixel shuffle
    doubles their sides. ``width`` is even.
    """
    half_width = width // 2
    return [
        nn.Linear(n_inputs, width * rows * columns),
        nn.Unflatten(1, (width, rows, columns)),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 4 * half_width, 3, padding=1),
        nn.PixelShuffle(2),
        nn.BatchNorm2d(half_width),
        nn.ReLU(),
    ]


def _zero_convolution(n_inputs: int, n_outputs: int) -> nn.Conv2d:
    """Return a 3 x 3 convolution whose weights and offsets are zero."""
    convolution = nn.Conv2d(n_inputs, n_outputs, 3, padding=1)
    nn.init.zeros_(convolution.weight)
    nn.init.zeros_(cast(Tensor, convolution.bias))
    return convolution


def _quarter_size(sample_shape: tuple[int, ...]) -> tuple[int, int]:
    """Return a quarter of the height and of the width of an image, rounded up."""
    if len(sample_shape) != 3:
        raise InputError(
            f"Expected sample_shape (channels, height, width), got {tuple(sample_shape)}; "
            "ConvGenerator and ShuffleGenerator make images only."
        )
    _, height, width = sample_shape
    return math.ceil(height / 4), math.ceil(width / 4)


def _cut(images: Tensor, sample_shape: tuple[int, ...]) -> Tensor:
    """Cut images to the height and width of ``sample_shape``."""
    _, height, width = sample_shape
    return images[:, :, :height, :width]
