"""Generator of Table 5 of Rakotomamonjy2021, on faces. NOT PRIVATE.

It is trained by SWD or by the published DP-SWD.

The distance is that of features of a discriminator, as in the code that the paper builds on
(VinAIResearch/DSW), which is trained at every step on the raw images, without noise
(docs/errata.md, item 7).
"""

from collections.abc import Iterator
from typing import Any, cast

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor

from dpswd._validate import at_least, nonnegative, positive
from dpswd.data import benchmark
from dpswd.records import Records
from models.networks import FaceDiscriminator, Table5Generator
from models.published import published_loss


class FaceLoader:
    """Endless loader of random batches of raw images (B, 3, 64, 64). NOT PRIVATE."""

    def __init__(self, records: Records, batch_size: int) -> None:
        at_least(1, batch_size=batch_size)
        self.records = records
        self.batch_size = min(batch_size, len(records))

    def __iter__(self) -> Iterator[Tensor]:
        while True:
            indices = torch.randperm(len(self.records))[: self.batch_size]
            yield self.records.floats(indices)


class Faces(L.LightningDataModule):
    """Raw batches of the training faces of CelebA. NOT PRIVATE.

    Args:
        root: Directory of the data sets; ``DPSWD_DATA`` or ``./data`` if not given.
        batch_size: Images of a batch.
        n_records: Number of faces: the first ones.

    Raises:
        InputError: If a number is out of range, or the images cannot be read.
    """

    def __init__(
        self, root: str | None = None, batch_size: int = 256, n_records: int = 162_000
    ) -> None:
        super().__init__()
        at_least(1, batch_size=batch_size, n_records=n_records)
        self.root = root
        self.batch_size = batch_size
        self.n_records = n_records

    def train_dataloader(self) -> FaceLoader:
        """Return the loader."""
        records = benchmark("celeba", self.root, public=True).train
        numbers = torch.arange(min(len(records), self.n_records))
        return FaceLoader(records.select(numbers), self.batch_size)


class PublishedFaceGenerator(L.LightningModule):
    """Trains generator and discriminator on raw images. NOT PRIVATE.

    Args:
        sigma: Standard deviation of the noise on the projections; 0 is SWD, Table 4 has those of
            DP-SWD.
        n_projections: Number of directions, which are new at every step.
        lr: Learning rate of Adam, with betas 0.5 and 0.999.

    Raises:
        InputError: If a number is out of range.
    """

    def __init__(self, sigma: float = 0.0, n_projections: int = 2000, lr: float = 5e-4) -> None:
        super().__init__()
        nonnegative(sigma=sigma)
        positive(lr=lr)
        at_least(1, n_projections=n_projections)
        self.automatic_optimization = False  # two optimisers take turns
        self.generator = Table5Generator()
        self.discriminator = FaceDiscriminator()
        self.sigma = sigma
        self.n_projections = n_projections
        self.lr = lr

    def training_step(self, real: Tensor, batch_idx: int) -> None:
        """Train the discriminator, then the generator.

        The trainer counts the steps of the generator only.
        """
        generator_optimizer, _ = cast(Any, self.optimizers())
        _, discriminator_optimizer = cast(Any, self.optimizers(use_pl_optimizer=False))
        codes = torch.randn(len(real), self.generator.latent_dim, device=real.device)
        fake = self.generator(codes)
        discriminator_optimizer.zero_grad()
        self.manual_backward(self._discrimination(real, fake.detach()))
        discriminator_optimizer.step()
        with torch.no_grad():
            target = self.discriminator.features(real)
        source = self.discriminator.features(fake)
        loss = published_loss(source, target, self.sigma, self.n_projections)
        generator_optimizer.zero_grad()
        self.manual_backward(loss)
        generator_optimizer.step()
        self.log("distance", loss, prog_bar=True, batch_size=len(real))

    def _discrimination(self, real: Tensor, fake: Tensor) -> Tensor:
        """Return the cross-entropy of telling real images from generated ones."""
        real_scores = self.discriminator(real)
        fake_scores = self.discriminator(fake)
        truth = torch.cat([torch.ones_like(real_scores), torch.zeros_like(fake_scores)])
        return F.binary_cross_entropy_with_logits(torch.cat([real_scores, fake_scores]), truth)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the optimisers of generator and discriminator."""
        return [
            torch.optim.Adam(network.parameters(), lr=self.lr, betas=(0.5, 0.999))
            for network in (self.generator, self.discriminator)
        ]
