r"""DP-MERF (Harder2021): a generator that matches noisy mean embeddings.

Random Fourier features of a Gaussian kernel with lengthscale :math:`\ell`,

.. math:: \phi(x) = D^{-1/2} (\cos W^T x, \sin W^T x), \quad
          W \in \mathbb{R}^{d \times D}, W_{ij} \sim N(0, \ell^{-2}),

have norm 1 for every x, so that clipping is not needed. One release holds, per class, the count and
the sum of :math:`\phi(x_i)`: sensitivity 2 under replace-one, at no extra cost for the counts
(:class:`dpswd.queries.ClassMeans`, R = 1). The generator minimises
:math:`\sum_c \|\hat m_c - \operatorname{mean} \phi(G(z, c))\|^2`: post-processing, for any number
of steps.

W is public and independent of the data. The lengthscale is a public constant: the median heuristic
on private records, which implementations use, is a statistic of them and would need a release of
its own.
"""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpswd.budget.budget import Budget
from dpswd.queries import ClassMeans
from dpswd.records import PrivateRecords

# Factor of the learning rate after an epoch, in the code of Harder2021.
_DECAY = 0.9


class FourierFeatures(nn.Module):
    """Map records to random Fourier features of norm 1.

    Args:
        dim: Number of entries of a record.
        n_frequencies: Number D of frequencies; a row has 2 D entries.
        lengthscale: Lengthscale of the Gaussian kernel, in units of the records.
    """

    frequencies: Tensor

    def __init__(self, dim: int, n_frequencies: int = 5000, lengthscale: float = 10.0) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.randn(dim, n_frequencies) / lengthscale)

    @property
    def n_frequencies(self) -> int:
        """Number D of frequencies."""
        return self.frequencies.shape[1]

    @property
    def dim(self) -> int:
        """Dimension 2 D of the features."""
        return 2 * self.n_frequencies

    def forward(self, records: Tensor) -> Tensor:
        """Map records (n, ...) to features (n, 2 D)."""
        phases = records.flatten(1) @ self.frequencies
        waves = torch.cat([phases.cos(), phases.sin()], dim=1)
        return waves / math.sqrt(self.n_frequencies)


class DPMERF(nn.Module):
    """A generator with classes, fitted to a private mean embedding.

    :meth:`release` is (target_epsilon, target_delta)-differentially private under replace-one,
    classes included; :meth:`train_generator` and :meth:`sample` read the release only.

    Args:
        generator: Maps latent codes and classes to records.
        n_frequencies: Number of random frequencies.
        lengthscale: Lengthscale of the kernel.
        generated: Generated records in a training step, spread evenly over the classes.
        lr: Learning rate of Adam at the start.
    """

    counts: Tensor
    embedding: Tensor

    def __init__(
        self,
        generator: Any,
        n_frequencies: int = 5000,
        lengthscale: float = 10.0,
        generated: int = 500,
        lr: float = 1e-2,
    ) -> None:
        super().__init__()
        self.generator = generator
        self.lengthscale = lengthscale
        self.generated = generated
        self.lr = lr
        dim = math.prod(generator.sample_shape)
        self.features = FourierFeatures(dim, n_frequencies, lengthscale)
        self.register_buffer("counts", torch.zeros(generator.n_classes))
        self.register_buffer("embedding", torch.zeros(generator.n_classes, self.features.dim))

    def release(
        self,
        records: PrivateRecords,
        directory: str | Path,
        target_epsilon: float,
        target_delta: float,
    ) -> Budget:
        """Release counts and embeddings of the classes; return the budget that was spent.

        Args:
            records: The private records, with classes.
            directory: Directory of the ledger.
            target_epsilon: Budget.
            target_delta: Budget; below 1 / N.
        """
        query = ClassMeans(self.generator.n_classes, self.features.dim, row_norm=1.0)
        budget = Budget(
            records,
            [query],
            target_epsilon=target_epsilon,
            target_delta=target_delta,
            run_dir=directory,
            config={
                "method": "DP-MERF",
                "generator": type(self.generator).__name__,
                "n_frequencies": self.features.n_frequencies,
                "lengthscale": self.lengthscale,
                "generated": self.generated,
                "lr": self.lr,
            },
        )
        with budget:
            counts, sums = query.release(records, rows=self.features)
        counts = counts.clamp(min=1)
        self.counts.copy_(counts)
        self.embedding.copy_(sums / counts[:, None])
        return budget

    def distance(self, records: Tensor, labels: Tensor) -> Tensor:
        """Return the squared distance of mean embeddings from the released ones.

        Args:
            records: Generated records (n, *sample_shape).
            labels: Their classes (n,). Classes without a record are left out.

        Returns:
            Scalar tensor.
        """
        one_hot = nn.functional.one_hot(labels, len(self.counts)).to(records.dtype)
        counts = one_hot.sum(0)
        means = one_hot.T @ self.features(records) / counts.clamp(min=1)[:, None]
        occurs = counts > 0
        return (means - self.embedding)[occurs].square().sum()

    def train_generator(self, steps: int, epoch: int | None = None) -> None:
        """Train on equally many generated records of each class. Post-processing.

        Args:
            steps: Number of training steps.
            epoch: Steps after which the learning rate is multiplied by 0.9, as in the code of
                Harder2021; if not given, it falls to a tenth by a cosine.
        """
        optimiser = torch.optim.Adam(self.generator.parameters(), lr=self.lr)
        schedule: torch.optim.lr_scheduler.LRScheduler
        if epoch is None:
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
                optimiser, steps, eta_min=self.lr / 10
            )
        else:
            schedule = torch.optim.lr_scheduler.StepLR(optimiser, epoch, _DECAY)
        labels = torch.arange(self.generated) % len(self.counts)
        self.train()
        for _ in range(steps):
            optimiser.zero_grad()
            records = self.generator(self.generator.latent(len(labels)), labels)
            self.distance(records, labels).backward()
            optimiser.step()
            schedule.step()
        self.eval()

    @torch.no_grad()
    def sample(self, labels: Tensor) -> Tensor:
        """Generate one record for each class in ``labels`` (n,)."""
        return self.generator(self.generator.latent(len(labels)), labels)
