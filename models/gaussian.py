"""The class-wise Gaussian: private moments per class and samples of normal laws.

A baseline without a network, fitted in seconds from two Gaussian releases: counts and means, then
covariances about the released means. The rest is post-processing. Negative eigenvalues of a noisy
covariance are set to zero; positive ones keep their noise.
"""

from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from dpswd.budget.budget import Budget
from dpswd.features.maps import FeatureMap
from dpswd.queries import ClassCovariances, ClassMeans
from dpswd.records import PrivateRecords
from dpswd.row_copy import LabelledRows


class ClassGaussian(nn.Module):
    """Normal laws per class in the space of ``features``, fitted within a budget.

    :meth:`fit` is (target_epsilon, target_delta)-differentially private under replace-one, classes
    included: the releases of :mod:`dpswd.queries`, whose noise the budget sets. Samples are
    post-processing.

    Args:
        features: Public map from records to rows (n, d), and back.
        n_classes: Number C of classes.
        spread: Norm at which deviations of rows from the released mean of their class are clipped.
        mean_share: Part of the squared mu that counts and means get.
    """

    counts: Tensor
    means: Tensor
    roots: Tensor

    def __init__(
        self,
        features: FeatureMap,
        n_classes: int = 10,
        spread: float = 0.3,
        mean_share: float = 0.2,
    ) -> None:
        super().__init__()
        self.features = features
        self.n_classes = n_classes
        self.spread = spread
        self.mean_share = mean_share
        dim = features.dim
        self.register_buffer("counts", torch.zeros(n_classes))
        self.register_buffer("means", torch.zeros(n_classes, dim))
        self.register_buffer("roots", torch.zeros(n_classes, dim, dim))

    def fit(
        self,
        records: PrivateRecords,
        directory: str | Path,
        target_epsilon: float,
        target_delta: float,
    ) -> Budget:
        """Release the moments of records with classes; return the budget that was spent.

        Args:
            records: The private records.
            directory: Directory of the ledger.
            target_epsilon: Budget.
            target_delta: Budget; below 1 / N.
        """
        dim = self.features.dim
        means = ClassMeans(self.n_classes, dim, share=self.mean_share)
        covariances = ClassCovariances(self.n_classes, dim, row_norm=self.spread)
        budget = Budget(
            records,
            [means, covariances],
            target_epsilon=target_epsilon,
            target_delta=target_delta,
            run_dir=directory,
            config={
                "method": "class-wise Gaussian",
                "features": {"name": type(self.features).__name__, "dim": dim},
                "n_classes": self.n_classes,
                "spread": self.spread,
                "mean_share": self.mean_share,
            },
        )
        with budget:
            counts, sums = means.release(records, rows=self.features)
            counts = counts.clamp(min=1)
            centres = sums / counts[:, None]
            deviations = LabelledRows(partial(self._deviations, centres))
            moments = covariances.release(records, rows=deviations)
        eigenvalues, eigenvectors = torch.linalg.eigh(moments / counts[:, None, None])
        self.counts.copy_(counts)
        self.means.copy_(centres)
        self.roots.copy_(eigenvectors * eigenvalues.clamp(min=0).sqrt()[:, None, :])
        return budget

    def _deviations(
        self, centres: Tensor, records: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return rows about the centres of their classes, and the classes.

        Args:
            centres: Centres (C, d).
            records: Records (n, ...).
            labels: Their classes (n,).
        """
        return self.features(records).double() - centres[labels], labels

    @torch.no_grad()
    def sample(self, labels: Tensor) -> Tensor:
        """Draw one record for each class in ``labels`` (n,); pixels are clamped to [0, 1]."""
        noise = torch.randn(len(labels), self.features.dim, 1)
        rows = torch.empty(len(labels), self.features.dim)
        for number in labels.unique().tolist():
            members = labels == number
            rows[members] = self.means[number] + noise[members, :, 0] @ self.roots[number].T
        records = self.features.decode(rows)
        if records.ndim == 4:
            return records.clamp(0, 1)
        return records
