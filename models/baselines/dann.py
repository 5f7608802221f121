"""DANN: a domain classifier and a gradient that is reversed in front of it (Ganin et al., JMLR 2016). NOT PRIVATE."""

from typing import Any

import torch
from torch import Tensor, nn

from models.baselines.unprotected import Side, rising

__all__ = ["DANNTerm", "DomainClassifier", "reverse"]


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, factor: float) -> Tensor:  # type: ignore[override]
        ctx.factor = factor
        return features.view_as(features)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return -ctx.factor * gradient, None


def reverse(features: Tensor, factor: float = 1.0) -> Tensor:
    """Passes features (n, d) on; sends their gradient back times ``-factor``."""
    reversed_: Tensor = _Reverse.apply(features, factor)
    return reversed_


class DomainClassifier(nn.Sequential):
    """Says from features (n, d) how likely a record is of the target: logits (n,).

    Args:
        dim: Size d of the features.
        hidden: Width of the hidden layer.
    """

    def __init__(self, dim: int, hidden: int = 100) -> None:
        super().__init__(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, 1), nn.Flatten(0))


class DANNTerm(nn.Module):
    """Cross-entropy of a domain classifier, the encoder's gradient reversed by a factor that rises from 0 to 1.

    Args:
        dim: Size of the features.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.domain = DomainClassifier(dim)

    def forward(self, source: Side, target: Side, progress: float) -> Tensor:
        """Returns the loss of the domain classifier, both domains weighing the same."""
        factor = rising(progress)
        ours, theirs = (self.domain(reverse(side.features, factor)) for side in (source, target))
        loss = nn.functional.binary_cross_entropy_with_logits
        return loss(ours, torch.zeros_like(ours)) / 2 + loss(theirs, torch.ones_like(theirs)) / 2
