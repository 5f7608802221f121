r"""DP-CGAN: a conditional GAN with a private discriminator.

The model is that of Torkzadehmahani et al., 2019.

Each step releases the gradients of the discriminator's loss on real records: per record (Opacus),
clipped to norm C, summed, with noise. The gradient on generated records is public, since codes,
generator and discriminator follow from earlier releases; it is added unclipped, where the paper
clips it apart. The generator never sees a record.

Accounting is that of :mod:`models.dp_dann`: fresh uniform subsets of fixed size, replace-one,
sensitivity 2 C (the paper has Poisson sampling, add or remove, and the moments accountant). The
guarantee is conditional, since tensors are handed over.
"""

from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpswd._validate import positive
from models.gradients import ClippedGradients, add_to_gradients

HIDDEN = 128  # units of both networks, as in the authors' code


class ConditionalGenerator(nn.Module):
    """Two linear layers that map a code and a one-hot class to an image of 28 x 28.

    Args:
        latent_dim: Dimension of the code.
        n_classes: Number of classes.
    """

    sample_shape = (1, 28, 28)

    def __init__(self, latent_dim: int = 100, n_classes: int = 10) -> None:
        super().__init__()
        self.latent_dim = latent_dim
        self.n_classes = n_classes
        self.body = nn.Sequential(
            nn.Linear(latent_dim + n_classes, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, 784),
            nn.Sigmoid(),
        )

    def latent(self, n: int) -> Tensor:
        """Draw standard normal codes (n, latent_dim)."""
        return torch.randn(n, self.latent_dim)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Map codes (n, latent_dim) and classes (n,) to images (n, 1, 28, 28) in [0, 1]."""
        images: Tensor = self.body(torch.cat([latent, self.one_hot(labels)], dim=1))
        return images.view(-1, *self.sample_shape)

    def one_hot(self, labels: Tensor) -> Tensor:
        """Return classes (n,) as rows (n, C) of a one and zeros."""
        return F.one_hot(labels, self.n_classes).float()


class DPCGAN(L.LightningModule):
    """Conditional GAN whose discriminator learns from released gradients.

    A batch holds images (B, 1, 28, 28) in [0, 1] and classes (B,) of a fresh subset of fixed size.

    Args:
        batch_size: Number B of records in a batch.
        clip: Largest norm C of the gradient of a record.
        lr: Learning rate of the discriminator, by gradient descent.
        lr_generator: Learning rate of Adam for the generator.
    """

    def __init__(
        self,
        batch_size: int = 600,
        clip: float = 1.1,
        lr: float = 0.1,
        lr_generator: float = 1e-3,
    ) -> None:
        super().__init__()
        positive(clip=clip, lr=lr, lr_generator=lr_generator)
        self.automatic_optimization = False
        self.batch_size = batch_size
        self.lr = lr
        self.lr_generator = lr_generator
        self.generator = ConditionalGenerator()
        self.discriminator = nn.Sequential(
            nn.Linear(784 + self.generator.n_classes, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1)
        )
        n_parameters = sum(parameter.numel() for parameter in self.discriminator.parameters())
        self.gradients = ClippedGradients(n_parameters, clip, batch_size)

    def configure_optimizers(self) -> Any:
        """Return gradient descent for the discriminator and Adam for the generator."""
        return [
            torch.optim.SGD(self.discriminator.parameters(), lr=self.lr),
            torch.optim.Adam(self.generator.parameters(), lr=self.lr_generator, betas=(0.5, 0.9)),
        ]

    def on_fit_start(self) -> None:
        """Wrap a copy of the discriminator for Opacus, whose hooks stay off this one."""
        self.gradients.start(self.discriminator, _looks_real)

    def on_fit_end(self) -> None:
        """Delete the copy."""
        self.gradients.stop()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        """Release gradients of the discriminator; update it, and then the generator."""
        images, labels = batch
        optimisers: Any = self.optimizers()
        discriminator_optimiser, generator_optimiser = optimisers
        released = self.gradients.release(self._rows(images, labels))
        generated, classes = self._generated()
        discriminator_optimiser.zero_grad()
        self.manual_backward(self._loss(generated.detach(), classes, is_real=False))
        add_to_gradients(list(self.discriminator.parameters()), released / self.batch_size)
        discriminator_optimiser.step()
        generator_optimiser.zero_grad()
        self.manual_backward(self._loss(generated, classes, is_real=True))
        generator_optimiser.step()

    def _generated(self) -> tuple[Tensor, Tensor]:
        """Return generated images (B, 1, 28, 28) of random classes (B,)."""
        classes = torch.randint(self.generator.n_classes, (self.batch_size,), device=self.device)
        codes = self.generator.latent(self.batch_size).to(self.device)
        return self.generator(codes, classes), classes

    def _rows(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the rows (n, 784 + C) that the discriminator reads."""
        return torch.cat([images.flatten(1), self.generator.one_hot(labels)], dim=1)

    def _loss(self, images: Tensor, labels: Tensor, *, is_real: bool) -> Tensor:
        """Return the cross-entropy of the discriminator for images.

        ``is_real`` says whether the images are to look real.
        """
        logits = self.discriminator(self._rows(images, labels))
        return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(is_real)))


def _looks_real(logits: Tensor) -> Tensor:
    """Return the cross-entropy of logits of real images."""
    return F.binary_cross_entropy_with_logits(logits, torch.ones_like(logits))
