"""Encoders of adaptation: records to features, each record by itself.

No network here has batch normalisation or another statistic of a batch: private records pass
through these networks, and a row must depend on one record alone (docs/theory/private-side.md).
"""

import math
from collections.abc import Sequence
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from dpswd._validate import at_least, choice

__all__ = ["ConvEncoder", "VectorEncoder"]

# Size of the convolutions, and of the windows of the maxima after them.
_KERNEL = 5
_POOL = 2
# Smallest side of an image of which something is left after two convolutions and two maxima.
_LEAST_SIDE = 16

_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


class ConvEncoder(nn.Module):
    """Map images to features by two convolutions of size 5 x 5 with maxima of 2 x 2.

    An image of 28 x 28 has 20 x 4 x 4 = 320 features. The code of Rakotomamonjy2021 has the same
    layers with 32 maps in the first one and a sigmoid after the second; its text (appendix 8.5.2)
    has no maxima after the second one.

    Args:
        sample_shape: Shape (channels, height, width) of an image, of side 16 at least.
        n_maps: Maps of both convolutions.

    Attributes:
        dim: Number of features.

    Raises:
        InputError: If a number is out of range.

    Example:
        >>> import torch
        >>> encoder = ConvEncoder((1, 28, 28))
        >>> encoder.dim, encoder(torch.rand(3, 1, 28, 28)).shape
        (320, torch.Size([3, 320]))
    """

    def __init__(
        self, sample_shape: Sequence[int] = (1, 28, 28), n_maps: Sequence[int] = (10, 20)
    ) -> None:
        super().__init__()
        channels, height, width = sample_shape
        first, second = n_maps
        at_least(1, channels=channels, first_maps=first, second_maps=second)
        at_least(_LEAST_SIDE, height=height, width=width)
        self.sample_shape = tuple(sample_shape)
        self.n_maps = (first, second)
        self.layers = nn.Sequential(
            nn.Conv2d(channels, first, _KERNEL),
            nn.ReLU(),
            nn.MaxPool2d(_POOL),
            nn.Conv2d(first, second, _KERNEL),
            nn.ReLU(),
            nn.MaxPool2d(_POOL),
            nn.Flatten(),
        )
        self.dim = second * _pooled(_pooled(height)) * _pooled(_pooled(width))

    def forward(self, images: Tensor) -> Tensor:
        """Map images (n, channels, height, width) to features (n, dim)."""
        return cast(Tensor, self.layers(images))


class VectorEncoder(nn.Module):
    """Map vectors to features by linear layers.

    Rakotomamonjy2021 (appendix 8.5.2) has ``sizes=(100, 50)`` for Office-31 and ``(100, 100)`` for
    VisDA, with ReLU, on vectors of 2,048 numbers.

    Args:
        input_dim: Length d of a vector.
        sizes: Sizes of the layers; the last one is the number of features.
        activation: ``"relu"`` or ``"tanh"``, after every layer.
        normalise: Whether vectors are scaled to norm sqrt(d) first.

    Attributes:
        dim: Number of features.

    Raises:
        InputError: If a number is out of range, or the activation is another one.

    Example:
        >>> import torch
        >>> VectorEncoder(2048, (100, 50))(torch.rand(3, 2048)).shape
        torch.Size([3, 50])
    """

    def __init__(
        self,
        input_dim: int,
        sizes: Sequence[int] = (100, 50),
        activation: str = "relu",
        normalise: bool = False,
    ) -> None:
        super().__init__()
        at_least(1, input_dim=input_dim, **{f"sizes_{i}": size for i, size in enumerate(sizes)})
        choice(tuple(_ACTIVATIONS), activation=activation)
        self.sample_shape = (input_dim,)
        self.input_dim = input_dim
        self.sizes = tuple(sizes)
        self.activation = activation
        self.normalise = normalise
        self.dim = self.sizes[-1]
        layers: list[nn.Module] = []
        n_inputs = input_dim
        for size in self.sizes:
            layers += [nn.Linear(n_inputs, size), _ACTIVATIONS[activation]()]
            n_inputs = size
        self.layers = nn.Sequential(*layers)

    def forward(self, vectors: Tensor) -> Tensor:
        """Map vectors (n, d) to features (n, dim)."""
        if self.normalise:
            vectors = F.normalize(vectors, dim=1) * math.sqrt(self.input_dim)
        return cast(Tensor, self.layers(vectors))


def _pooled(side: int) -> int:
    """Return the side of an image after a convolution and a maximum."""
    return (side - _KERNEL + 1) // _POOL
