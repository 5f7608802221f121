"""Networks of Rakotomamonjy2021: the generator of Table 5, its space of comparison, and the encoders of appendix 8.5.2.

The generator of Table 3 is :class:`dpswd.generation.generators.Table3Generator`.

==========================  ==================================================================  ==========
class                       layers                                                              parameters
==========================  ==================================================================  ==========
``Table5Generator``         five transposed convolutions 4 x 4, code 32 to 3 x 64 x 64           3,019,648
``FaceDiscriminator``       four convolutions 4 x 4 with stride 2, 3 x 64 x 64 to 512 x 4 x 4    2,765,569
``PublishedDigitEncoder``   two convolutions 5 x 5 with 32 and 20 maps, 28 x 28 to 320 features  16,852
``PublishedFeatureEncoder`` two linear layers, 2048-100-50 or 2048-100-100                       209,950
==========================  ==================================================================  ==========
"""

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpswd._validate import at_least
from dpswd.errors import InputError
from dpswd.generation.features import FeatureMap
from dpswd.generation.generators import Generator


class Table5Generator(Generator):
    """Generator of Table 5: 32-512-256-128-64-3, batch normalisation and ReLU, tanh at the end, for 3 x 64 x 64.

    The table prints stride 1 for every layer, which would give 16 x 16. The code that the paper builds on has stride 1
    and no padding in the first layer, stride 2 and padding 1 in the others, and no bias: 1-4-8-16-32-64. The tanh is
    mapped to pixels in [0, 1].

    Args:
        sample_shape: (3, 64, 64).
        n_classes: 0; faces have no labels.
        latent_dim: Size of the code.
    """

    def __init__(
        self, sample_shape: tuple[int, int, int] = (3, 64, 64), n_classes: int = 0, latent_dim: int = 32
    ) -> None:
        super().__init__(sample_shape, n_classes, latent_dim)
        if tuple(sample_shape[1:]) != (64, 64):
            raise InputError(f"Expected images of 64 x 64 for Table 5, got sample_shape={tuple(sample_shape)}.")
        layers: list[nn.Module] = [nn.Unflatten(1, (latent_dim + n_classes, 1, 1))]
        widths = (latent_dim + n_classes, 512, 256, 128, 64)
        for i, (inputs, outputs) in enumerate(pairwise(widths)):
            stride, padding = (1, 0) if i == 0 else (2, 1)
            layers += [
                nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
            ]
        layers += [nn.ConvTranspose2d(widths[-1], sample_shape[0], 4, 2, 1, bias=False), nn.Tanh()]
        self.body = nn.Sequential(*layers)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """See :class:`dpswd.generation.generators.Generator`."""
        images: Tensor = (self.body(self.code(latent, labels)) + 1) / 2
        return images


class FaceDiscriminator(nn.Module):
    """Discriminator whose last feature map is the space of 8,192 dimensions in which the paper compares faces.

    Convolutions 4 x 4 with stride 2, 3-64-128-256-512, leaky ReLU, batch normalisation from the second on, tanh. The
    published algorithm trains it on private images without noise: NOT PRIVATE (docs/errata.md, item 7).
    """

    dim = 8192

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 64, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
        for inputs, outputs in pairwise((64, 128, 256, 512)):
            layers += [nn.Conv2d(inputs, outputs, 4, 2, 1, bias=False), nn.BatchNorm2d(outputs)]
            layers += [nn.LeakyReLU(0.2) if outputs < 512 else nn.Tanh()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Conv2d(512, 1, 4)

    def features(self, images: Tensor) -> Tensor:
        """Map images (n, 3, 64, 64) in [0, 1] to rows (n, 8192)."""
        rows: Tensor = self.body(2 * images - 1).flatten(1)
        return rows

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (n,) of being real."""
        logits: Tensor = self.head(self.features(images).unflatten(1, (512, 4, 4))).flatten()
        return logits


class PublishedDigitEncoder(nn.Sequential):
    """Encoder of appendix 8.5.2: grey images (n, 1, 28, 28) to 320 features, 20 maps of 4 x 4.

    Convolution 5 x 5 with 32 maps, ReLU, max-pooling; convolution 5 x 5 with 20 maps, max-pooling, sigmoid.
    """

    dim = 320

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 32, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 20, 5),
            nn.MaxPool2d(2),
            nn.Sigmoid(),
            nn.Flatten(),
        )


class PublishedFeatureEncoder(nn.Sequential):
    """Encoder of appendix 8.5.2 for features of a ResNet-50: 2048-100-``dim`` with ReLU after both layers.

    Args:
        dim: 50 for Office-31, 100 for VisDA-2017.
        input_dim: Size of the features.
    """

    def __init__(self, dim: int = 50, input_dim: int = 2048) -> None:
        at_least(1, dim=dim, input_dim=input_dim)
        super().__init__(nn.Linear(input_dim, 100), nn.ReLU(), nn.Linear(100, dim), nn.ReLU())
        self.dim = dim


class RandomConvolutions(FeatureMap):
    """Two fixed random convolutions with a leaky ReLU between them: a public space of local texture.

    The weights are drawn from a public seed and never trained, so that they are constants, unlike a discriminator. For
    3 x 64 x 64 and 32 channels: 32 x 16 x 16 = 8,192 dimensions.

    Args:
        sample_shape: (channels, height, width), sides divisible by 4.
        channels: Maps in both layers.
        center: Public constant subtracted from every pixel.
        radius: Public norm of the maps that becomes 1/2.
        seed: Public seed of the weights.
    """

    first: Tensor
    second: Tensor

    def __init__(
        self,
        sample_shape: tuple[int, int, int] = (3, 64, 64),
        channels: int = 32,
        center: float = 0.45,
        radius: float = 25.0,
        seed: int = 0,
    ) -> None:
        super().__init__(sample_shape, center, radius)
        at_least(1, channels=channels)
        at_least(0, seed=seed)
        colours, height, width = sample_shape
        if height % 4 or width % 4:
            raise InputError(f"Expected sides divisible by 4, got sample_shape={tuple(sample_shape)}.")
        self.channels = channels
        generator = torch.Generator().manual_seed(seed)
        for name, inputs in (("first", colours), ("second", channels)):
            weight = torch.randn(channels, inputs, 4, 4, generator=generator) / math.sqrt(16 * inputs)
            self.register_buffer(name, weight, persistent=False)

    @property
    def dim(self) -> int:
        """Channels times a sixteenth of the pixels."""
        return self.channels * (self.sample_shape[1] // 4) * (self.sample_shape[2] // 4)

    def rows(self, centered: Tensor) -> Tensor:
        """Convolves twice and flattens."""
        hidden = F.leaky_relu(F.conv2d(centered, self.first, stride=2, padding=1), 0.2)
        return F.conv2d(hidden, self.second, stride=2, padding=1).flatten(1)
