"""DeepJDOT: joint optimal transport of features and classes (Damodaran et al., ECCV 2018), by POT. NOT PRIVATE."""

import ot
import torch
from torch import Tensor, nn

from dpswd._validate import positive
from models.baselines.unprotected import Side

__all__ = ["JDOTTerm"]


class JDOTTerm(nn.Module):
    """Transport cost between (features, classes) of the source and (features, scores) of the target, batch by batch.

    Args:
        feature_weight: Weight of the squared distance of features.
        label_weight: Weight of the cross-entropy of a source class under the target's scores.
    """

    def __init__(self, feature_weight: float = 0.01, label_weight: float = 1.0) -> None:
        super().__init__()
        positive(feature_weight=feature_weight, label_weight=label_weight)
        self.feature_weight, self.label_weight = feature_weight, label_weight

    def forward(self, source: Side, target: Side, progress: float) -> Tensor:
        """Returns the cost of the plan that is best for the features and scores as they are."""
        assert source.classes is not None
        moved = torch.cdist(source.features, target.features).square()  # (n, m)
        mistaken = -torch.log_softmax(target.scores, 1).T[source.classes]  # (n, m)
        cost = self.feature_weight * moved + self.label_weight * mistaken
        a, b = (torch.full((size,), 1 / size, dtype=torch.float64) for size in cost.shape)
        plan = ot.emd(a, b, cost.detach().double().cpu())
        return (plan.to(cost) * cost).sum()
