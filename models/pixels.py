"""A convolutional generator that draws pixels, and its training on slices.

It stands for a network of one's own (docs/howto/own-loss.md). All of it is post-processing of
:class:`dpswd.principal.PrincipalSlices`:

1. *Teacher.* A :class:`~dpswd.networks.principal_generator.PrincipalGenerator`, which works in the
   coordinates of the slices, is trained by their loss; a step of it takes little time.
2. *Imitation.* The network learns to draw the image that the teacher draws from the same code, by
   least squares. Every image has a target, so that small batches will do.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial

import torch
from torch import Tensor, nn

from dpswd.features.jitter import N_CODES, jitter
from dpswd.lightning.schedules import one_cycle
from dpswd.networks.generator import Generator
from dpswd.networks.image_generators import doubled_maps
from dpswd.networks.principal_generator import PrincipalGenerator
from dpswd.principal import PrincipalSlices

__all__ = ["PixelGenerator", "imitate", "teach"]


class PixelGenerator(Generator):
    """Two linear layers, and two convolutions 3 x 3 with pixel shuffle.

    Jitter is applied in evaluation mode only.

    Args:
        sample_shape: (channels, height, width).
        n_classes: Number C of classes.
        n_codes: Size of the code of an image without jitter.
        hidden: Outputs of the first linear layer.
        width: Channels before the first convolution; even.
        jitter: Public amounts of jitter; see :func:`dpswd.features.jitter.jitter`.
    """

    def __init__(
        self,
        sample_shape: tuple[int, int, int] = (1, 28, 28),
        n_classes: int = 10,
        n_codes: int = 60,
        hidden: int = 256,
        width: int = 32,
        jitter: dict[str, float] | None = None,
    ) -> None:
        self.n_codes = n_codes
        self.amounts = jitter or {}
        n_moves = N_CODES if self.amounts else 0
        super().__init__(sample_shape, n_classes, n_codes + n_moves)
        channels, height, image_width = sample_shape
        rows = math.ceil(height / 4)
        columns = math.ceil(image_width / 4)
        self.body = nn.Sequential(
            nn.Linear(n_codes + n_classes, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            *doubled_maps(hidden, width, rows, columns),
            nn.Conv2d(width // 2, 4 * channels, 3, padding=1),
            nn.PixelShuffle(2),
            nn.Sigmoid(),
        )

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """See :class:`~dpswd.networks.generator.Generator`."""
        _, height, width = self.sample_shape
        code = self.code(latent[:, : self.n_codes], labels)
        images: Tensor = self.body(code)[:, :, :height, :width]
        if self.training or not self.amounts:
            return images
        return jitter(images, latent[:, self.n_codes :], **self.amounts)


def teach(
    teacher: PrincipalGenerator, slices: PrincipalSlices, *, steps: int, batch: int, lr: float
) -> None:
    """Train a generator in principal coordinates by the loss of its coordinates.

    Args:
        teacher: The generator, which starts at the released means and deviations.
        slices: The released slices.
        steps: Number of steps.
        batch: Rows of a step; a multiple of 2 C.
        lr: Largest learning rate of Adam.
    """
    teacher.start_at(**asdict(slices.start()))
    labels = torch.arange(batch) % teacher.n_classes
    for optimiser in _steps(teacher, steps, lr):
        coordinates = teacher.coordinates(teacher.latent(batch), labels)
        loss = slices.distance(coordinates, labels)
        _update(optimiser, loss)


def imitate(
    generator: Generator, teacher: PrincipalGenerator, *, steps: int, batch: int, lr: float
) -> None:
    """Train a generator to draw the images that the teacher draws from the same codes.

    Args:
        generator: The generator, whose code has at least as many numbers as that of the teacher has
            principal directions.
        teacher: The trained generator in principal coordinates, without jitter or frequencies
            outside of the principal directions.
        steps: Number of steps.
        batch: Images of a step; a multiple of C.
        lr: Largest learning rate of Adam.
    """
    labels = torch.arange(batch) % teacher.n_classes
    for optimiser in _steps(generator, steps, lr):
        codes = generator.latent(batch)
        latent = teacher.latent(batch)
        latent[:, : teacher.n_directions] = codes[:, : teacher.n_directions]
        with torch.no_grad():
            targets = teacher(latent, labels)
        differences = generator(codes, labels) - targets
        loss = differences.flatten(1).square().sum(dim=1).mean()
        _update(optimiser, loss)


def _steps(generator: Generator, steps: int, lr: float) -> Iterator[torch.optim.Optimizer]:
    """Yield Adam at every step, with a warm-up and a cosine."""
    generator.train()
    optimiser = torch.optim.Adam(generator.parameters(), lr=lr, betas=(0.9, 0.99))
    factor = partial(one_cycle, n_steps=max(1, steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, factor)
    for _ in range(steps):
        yield optimiser
        schedule.step()


def _update(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    """Make a step down the gradient of a loss."""
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
