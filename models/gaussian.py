"""The class-wise Gaussian: a private count, mean and covariance per class, and samples from that normal law.

A baseline without a network, fitted in seconds from two Gaussian releases: counts and means, then covariances about the
released means. The rest is post-processing. Negative eigenvalues of a noisy covariance are set to zero; positive ones
keep their noise.
"""

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

    :meth:`fit` is (target_epsilon, target_delta)-differentially private under replace-one, classes included: the
    releases of :mod:`dpswd.queries`, whose noise the budget sets. Samples are post-processing. Deviations of rows from
    the released mean of their class are clipped at ``spread``; counts and means get ``mean_share`` of the squared mu.
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
        self.features, self.n_classes, self.spread, self.mean_share = (
            features,
            n_classes,
            spread,
            mean_share,
        )
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
        """Release the moments of ``records`` with classes; return the budget that was spent."""
        means = ClassMeans(self.n_classes, self.features.dim, share=self.mean_share)
        covariances = ClassCovariances(
            self.n_classes, self.features.dim, row_norm=self.spread, share=0.5
        )
        config = {
            "method": "class-wise Gaussian",
            "features": {"name": type(self.features).__name__, "dim": self.features.dim},
            "n_classes": self.n_classes,
            "spread": self.spread,
            "mean_share": self.mean_share,
        }
        queries, spent = (
            [means, covariances],
            {"target_epsilon": target_epsilon, "target_delta": target_delta},
        )
        with Budget(records, queries, **spent, run_dir=directory, config=config) as budget:
            counts, sums = means.release(records, rows=self.features)
            counts = counts.clamp(min=1)
            centres = sums / counts[:, None]
            about = LabelledRows(
                lambda values, labels: (self.features(values).double() - centres[labels], labels)
            )
            moments = covariances.release(records, rows=about)
        values, vectors = torch.linalg.eigh(moments / counts[:, None, None])
        self.counts.copy_(counts)
        self.means.copy_(centres)
        self.roots.copy_(vectors * values.clamp(min=0).sqrt()[:, None, :])
        return budget

    @torch.no_grad()
    def sample(self, labels: Tensor) -> Tensor:
        """Draw one record for each class in ``labels`` (n,); pixels are cut to [0, 1]."""
        noise = torch.randn(len(labels), self.features.dim, 1)
        rows = torch.empty(len(labels), self.features.dim)
        for c in labels.unique().tolist():
            mine = labels == c
            rows[mine] = self.means[c] + noise[mine, :, 0] @ self.roots[c].T
        records = self.features.decode(rows)
        return records.clamp(0, 1) if records.ndim == 4 else records
