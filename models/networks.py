"""For pictures of faces: the generator of Table 5 (our reading) and a public space of 8,192 dimensions."""

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpswd._validate import at_least
from dpswd.errors import InputError
from dpswd.generation.features import FeatureMap
from dpswd.generation.generators import Generator

__all__ = ["RandomConvolutions", "Table5Generator"]


class Table5Generator(Generator):
    """Rakotomamonjy2021, Table 5 (our reading): a code of 32, one linear layer, then convolutions up to 64 x 64.

    Every convolution is preceded by bilinear upsampling: transposed ones leave a checkerboard that the low frequencies
    of a release do not see.

    Args:
        sample_shape: (channels, side, side), the side 8 times a power of two.
        n_classes: 0: faces have none.
        latent_dim: Size of the code.
        width: Channels of the last hidden layer; they double towards the code.
    """

    def __init__(
        self,
        sample_shape: tuple[int, int, int] = (3, 64, 64),
        n_classes: int = 0,
        latent_dim: int = 32,
        width: int = 16,
    ) -> None:
        super().__init__(sample_shape, n_classes, latent_dim)
        at_least(1, width=width)
        ups = math.log2(sample_shape[1] / 4)
        if sample_shape[1] != sample_shape[2] or ups < 1 or ups != int(ups):
            raise InputError(f"Expected a square side of 8, 16, 32, 64, ..., got sample_shape={tuple(sample_shape)}.")
        channels = [width * 2**i for i in reversed(range(int(ups)))]
        layers: list[nn.Module] = [
            nn.Linear(latent_dim + n_classes, channels[0] * 16),
            nn.BatchNorm1d(channels[0] * 16),
            nn.ReLU(),
            nn.Unflatten(1, (channels[0], 4, 4)),
        ]
        for inputs, outputs in pairwise(channels):
            layers += [
                _double(),
                nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
            ]
        layers += [_double(), nn.Conv2d(channels[-1], sample_shape[0], 3, padding=1), nn.Sigmoid()]
        self.body = nn.Sequential(*layers)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """See :class:`dpswd.generation.generators.Generator`."""
        return self.body(self.code(latent, labels))


def _double() -> nn.Module:
    return nn.Upsample(scale_factor=2, mode="bilinear")


class RandomConvolutions(FeatureMap):
    """Two fixed random convolutions with a leaky rectifier between them: a public space that sees local texture.

    The weights are drawn once from a PUBLIC seed and never trained: they are a constant like any other, independent of
    the private records (a discriminator trained on them is not). Rows are treated one by one; what is farther out than
    ``radius`` is clipped by the loss. For 3 x 64 x 64 and 32 channels: 32 x 16 x 16 = 8,192 dimensions.

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
        """Convolves twice, flattens."""
        hidden = F.leaky_relu(F.conv2d(centered, self.first, stride=2, padding=1), 0.2)
        return F.conv2d(hidden, self.second, stride=2, padding=1).flatten(1)
