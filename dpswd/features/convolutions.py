"""Random convolutions as a public space of comparison for images."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from dpswd.errors import InputError
from dpswd.features.frequencies import dct_matrix, reference_spectrum
from dpswd.features.maps import FeatureMap, image_sides

__all__ = ["RandomConvolutions"]

# Public random images by which the scale of the rows is determined.
_N_IMAGES = 64


class RandomConvolutions(FeatureMap):
    """Features of random convolutions of stride 2, fixed by a seed.

    No record is read for them. The layers are those of the discriminator in the code that
    Rakotomamonjy2021 builds on for faces: convolutions 4 x 4 of stride 2, leaky ReLU between them,
    tanh at the end; with the defaults 3 x 64 x 64 pixels have 512 x 4 x 4 = 8,192 features. That
    discriminator is trained on private images without noise, and has batch normalisation; this one
    has random weights of unit gain. Rows are scaled by a public number: the root mean square norm
    is 1/2 for 64 random images whose amplitudes fall as 1 / f.

    Args:
        sample_shape: (channels, height, width); sides are multiples of 2 to the number of layers.
        widths: Channels after each convolution.
        seed: Seed of the weights. It is public.

    Raises:
        InputError: If the sides of an image do not fit.

    Example:
        >>> features = RandomConvolutions((1, 8, 8), widths=(4, 8))
        >>> features.dim, features(torch.rand(3, 1, 8, 8)).shape
        (32, torch.Size([3, 32]))
    """

    def __init__(
        self,
        sample_shape: tuple[int, int, int] = (3, 64, 64),
        widths: Sequence[int] = (64, 128, 256, 512),
        seed: int = 0,
    ) -> None:
        super().__init__(sample_shape, centre=0.5)
        channels, height, width = image_sides(sample_shape)
        shrink = 2 ** len(widths)
        if not widths or height % shrink or width % shrink:
            raise InputError(
                f"Expected sides that are multiples of {shrink} for {len(widths)} convolutions, "
                f"got {height} x {width}; use fewer widths."
            )
        source = torch.Generator().manual_seed(seed)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise((channels, *widths)):
            if layers:
                layers.append(nn.LeakyReLU(0.2))
            convolution = nn.Conv2d(inputs, outputs, 4, stride=2, padding=1, bias=False)
            shape = convolution.weight.shape
            weights = torch.randn(shape, generator=source) * math.sqrt(2 / (16 * inputs))
            convolution.weight = nn.Parameter(weights, requires_grad=False)
            layers.append(convolution)
        self.body = nn.Sequential(*layers, nn.Tanh(), nn.Flatten())
        self.dim = widths[-1] * (height // shrink) * (width // shrink)
        self.radius = self._typical_norm(source)

    def transform(self, centred: Tensor) -> Tensor:
        """Map centred images (n, channels, h, w) to features (n, dim)."""
        features: Tensor = self.body(4 * centred)  # a standard deviation of 1/4 becomes 1
        return features

    @torch.no_grad()
    def _typical_norm(self, source: torch.Generator) -> float:
        """Return the root mean square norm of the features of public random images."""
        _, height, width = self.sample_shape
        spectrum = reference_spectrum(self.sample_shape)
        normal = torch.randn(_N_IMAGES, *self.sample_shape, generator=source)
        frequencies = normal * spectrum
        vertical = dct_matrix(height).float()
        horizontal = dct_matrix(width).float()
        images = (vertical.T @ frequencies @ horizontal).clamp(-0.5, 0.5)
        return float(self.transform(images).square().sum(1).mean().sqrt())
