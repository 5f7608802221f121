"""Generator networks: maps from latent codes and classes to records.

==================  ===============================================  ==========
class               shape                                            parameters
==================  ===============================================  ==========
``ConvGenerator``   two linear layers, two upsampled convolutions    167,161
``MLPGenerator``    three linear layers, for feature vectors         small
==================  ===============================================  ==========
"""

import math
from typing import cast

from torch import Tensor, nn

from dpswd.errors import InputError
from dpswd.generators import Generator

__all__ = ["ConvGenerator", "MLPGenerator"]


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
