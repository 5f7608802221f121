"""Networks of Rakotomamonjy2021: generators, a discriminator and an encoder.

=========================  ======================================================  ==========
class                      layers                                                  parameters
=========================  ======================================================  ==========
``Table3Generator``        two linear layers, two upsampled convolutions 5 x 5,    167,161
                           code 20 to 28 x 28
``Table5Generator``        five transposed convolutions 4 x 4,                     3,019,648
                           code 32 to 3 x 64 x 64
``FaceDiscriminator``      four convolutions 4 x 4 with stride 2,                  2,765,569
                           3 x 64 x 64 to 512 x 4 x 4, the space of comparison
``PublishedDigitEncoder``  two convolutions 5 x 5 with 32 and 20 maps,             16,852
                           28 x 28 to 320
=========================  ======================================================  ==========
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Table3Generator(nn.Module):
    """Generator of Table 3, as in MERF's ``ConvCondGen``.

    It maps a latent code of 10 and a one-hot class of 10 to an image of 28 x 28. The table prints a
    reshape to 28 x 28; two upsamplings to 28 x 28 require 16 x 7 x 7. The table and MERF's code
    have no activation after the second batch normalisation. MERF's code upsamples bilinearly with
    aligned corners, and has a ReLU after the first batch normalisation, which the table leaves
    out. MERF has a latent code of 5.
    """

    sample_shape = (1, 28, 28)
    n_classes = 10

    def __init__(self, latent_dim: int = 10) -> None:
        super().__init__()
        self.latent_dim = latent_dim
        self.body = nn.Sequential(
            nn.Linear(latent_dim + self.n_classes, 200),
            nn.BatchNorm1d(200),
            nn.ReLU(),
            nn.Linear(200, 784),
            nn.BatchNorm1d(784),
            nn.Unflatten(1, (16, 7, 7)),
            nn.UpsamplingBilinear2d(scale_factor=2),  # with aligned corners
            nn.Conv2d(16, 8, 5, padding=2),
            nn.ReLU(),
            nn.UpsamplingBilinear2d(scale_factor=2),
            nn.Conv2d(8, 1, 5, padding=2),
            nn.Sigmoid(),
        )

    def latent(self, n: int) -> Tensor:
        """Draw standard normal codes (n, latent_dim)."""
        return torch.randn(n, self.latent_dim)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Map codes (n, latent_dim) and classes (n,) to images (n, 1, 28, 28) in [0, 1]."""
        one_hot = F.one_hot(labels, self.n_classes).to(latent.dtype)
        images: Tensor = self.body(torch.cat([latent, one_hot], dim=1))
        return images


class Table5Generator(nn.Module):
    """Generator of Table 5: latent code of 32, maps 512-256-128-64-3, for 3 x 64 x 64.

    As printed, every layer but the last one has a batch normalisation and a ReLU, and the last one
    a tanh. The table prints stride 1 for every layer, which would give 16 x 16. The code that the
    paper builds on (VinAIResearch/DSW) has stride 1 and no padding in the first layer, stride 2 and
    padding 1 in the others, and no bias: the sides are 1-4-8-16-32-64. The tanh is mapped to pixels
    in [0, 1].
    """

    latent_dim = 32

    def __init__(self) -> None:
        super().__init__()
        first = nn.ConvTranspose2d(self.latent_dim, 512, 4, stride=1, padding=0, bias=False)
        layers: list[nn.Module] = [nn.Unflatten(1, (self.latent_dim, 1, 1)), first]
        for inputs, outputs in pairwise((512, 256, 128, 64, 3)):
            layers += [
                nn.BatchNorm2d(inputs),
                nn.ReLU(),
                nn.ConvTranspose2d(inputs, outputs, 4, stride=2, padding=1, bias=False),
            ]
        layers.append(nn.Tanh())
        self.body = nn.Sequential(*layers)

    def forward(self, latent: Tensor) -> Tensor:
        """Map codes (n, latent_dim) to images (n, 3, 64, 64) in [0, 1]."""
        images: Tensor = (self.body(latent) + 1) / 2
        return images


class FaceDiscriminator(nn.Module):
    """Discriminator in whose last feature map the paper compares faces: 8,192 entries.

    Convolutions 4 x 4 with stride 2, 3-64-128-256-512, leaky ReLU, batch normalisation from the
    second on, tanh. The published algorithm trains it on private images without noise: NOT PRIVATE
    (docs/errata.md, item 7).
    """

    dim = 8192

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 64, 4, stride=2, padding=1, bias=False)]
        for inputs, outputs in pairwise((64, 128, 256, 512)):
            layers += [
                nn.LeakyReLU(0.2),
                nn.Conv2d(inputs, outputs, 4, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
            ]
        layers.append(nn.Tanh())
        self.body = nn.Sequential(*layers)
        self.head = nn.Conv2d(512, 1, 4)

    def features(self, images: Tensor) -> Tensor:
        """Map images (n, 3, 64, 64) in [0, 1] to rows (n, 8192)."""
        rows: Tensor = self.body(2 * images - 1).flatten(1)
        return rows

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (n,) of being real."""
        maps = self.features(images).unflatten(1, (512, 4, 4))
        logits: Tensor = self.head(maps).flatten()
        return logits


class PublishedDigitEncoder(nn.Sequential):
    """Encoder of appendix 8.5.2, as in the authors' code.

    It maps grey images (n, 1, 28, 28) to 320 features, which are 20 maps of 4 x 4. Convolution
    5 x 5 with 32 maps, ReLU, max-pooling; convolution 5 x 5 with 20 maps, max-pooling, sigmoid. The
    paper has neither the second max-pooling, without which there are 1,280 features, nor the
    dropout of 0.5 of the 20 maps.
    """

    dim = 320

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(
            nn.Conv2d(1, 32, 5),
            nn.MaxPool2d(2),  # before the ReLU: the same function, half the time
            nn.ReLU(),
            nn.Conv2d(32, 20, 5),
            nn.Dropout2d(dropout),
            nn.MaxPool2d(2),
            nn.Sigmoid(),
            nn.Flatten(),
        )
