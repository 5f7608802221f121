r"""DP-MERF (Harder2021): one noisy mean embedding per class, and a generator that matches it.

Random Fourier features of a Gaussian kernel with lengthscale :math:`\ell`,

.. math:: \phi(x) = D^{-1/2} (\cos W^T x, \sin W^T x), \quad W \in \mathbb{R}^{d \times D}, W_{ij} \sim N(0, \ell^{-2}),

have norm 1 for every x, so that clipping is not needed. One release holds, per class, the count and the sum of
:math:`\phi(x_i)`: sensitivity 2 under replace-one, at no extra cost for the counts
(:class:`dpswd.queries.ClassMeans`, R = 1). The generator minimises
:math:`\sum_c \|\hat m_c - \operatorname{mean} \phi(G(z, c))\|^2`: post-processing, for any number of steps.

W is public and independent of the data. The lengthscale is a public constant: the median heuristic on private records,
which implementations use, is a statistic of them and would need a release of its own.
"""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpswd.budget.budget import Budget
from dpswd.queries import ClassMeans
from dpswd.records import PrivateRecords


class FourierFeatures(nn.Module):
    """Map records (n, ...) of ``dim`` entries to features (n, 2 * n_frequencies) of norm 1."""

    frequencies: Tensor

    def __init__(self, dim: int, n_frequencies: int = 5000, lengthscale: float = 10.0) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.randn(dim, n_frequencies) / lengthscale)

    @property
    def dim(self) -> int:
        """Dimension of the features."""
        return 2 * self.frequencies.shape[1]

    def forward(self, records: Tensor) -> Tensor:
        """Map (n, ...) to (n, dim)."""
        phases = records.flatten(1) @ self.frequencies
        return torch.cat([phases.cos(), phases.sin()], dim=1) / math.sqrt(self.frequencies.shape[1])


class DPMERF(nn.Module):
    """A generator with classes, fitted to a private mean embedding in steps of ``generated`` records.

    :meth:`release` is (target_epsilon, target_delta)-differentially private under replace-one, classes included;
    :meth:`train_generator` and :meth:`sample` read the release only.
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
        self.generator, self.lengthscale, self.generated, self.lr = (
            generator,
            lengthscale,
            generated,
            lr,
        )
        self.features = FourierFeatures(
            math.prod(generator.sample_shape), n_frequencies, lengthscale
        )
        self.register_buffer("counts", torch.zeros(generator.n_classes))
        self.register_buffer("embedding", torch.zeros(generator.n_classes, self.features.dim))

    def release(
        self,
        records: PrivateRecords,
        directory: str | Path,
        target_epsilon: float,
        target_delta: float,
    ) -> Budget:
        """Release counts and embeddings of ``records`` with classes; return the budget that was spent."""
        query = ClassMeans(self.generator.n_classes, self.features.dim, row_norm=1.0)
        config = {
            "method": "DP-MERF",
            "generator": type(self.generator).__name__,
            "n_frequencies": self.features.dim // 2,
            "lengthscale": self.lengthscale,
            "generated": self.generated,
            "lr": self.lr,
        }
        spent = {"target_epsilon": target_epsilon, "target_delta": target_delta}
        with Budget(records, [query], **spent, run_dir=directory, config=config) as budget:
            counts, sums = query.release(records, rows=self.features)
        self.counts.copy_(counts.clamp(min=1))
        self.embedding.copy_(sums / counts.clamp(min=1)[:, None])
        return budget

    def distance(self, records: Tensor, labels: Tensor) -> Tensor:
        """Squared distance of embeddings of generated records (n, *sample_shape) from the released ones, a scalar.

        Classes without a record are left out.
        """
        one_hot = nn.functional.one_hot(labels, len(self.counts)).to(records.dtype)
        means = one_hot.T @ self.features(records) / one_hot.sum(0).clamp(min=1)[:, None]
        there = one_hot.sum(0) > 0
        return (means - self.embedding)[there].square().sum()

    def train_generator(self, steps: int, epoch: int | None = None) -> None:
        """Train for ``steps`` steps on equally many generated records of each class; no release is made.

        The learning rate falls to a tenth by a cosine, or by a factor 0.9 every ``epoch`` steps (code of Harder2021).
        """
        optimizer = torch.optim.Adam(self.generator.parameters(), lr=self.lr)
        schedule: torch.optim.lr_scheduler.LRScheduler
        if epoch is None:
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
                optimizer, steps, eta_min=self.lr / 10
            )
        else:
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, epoch, 0.9)
        labels = torch.arange(self.generated) % len(self.counts)
        self.train()
        for _ in range(steps):
            optimizer.zero_grad()
            self.distance(
                self.generator(self.generator.latent(len(labels)), labels), labels
            ).backward()
            optimizer.step()
            schedule.step()
        self.eval()

    @torch.no_grad()
    def sample(self, labels: Tensor) -> Tensor:
        """Generate one record for each class in ``labels`` (n,)."""
        return self.generator(self.generator.latent(len(labels)), labels)
