"""Unprotected adaptation: one training loop, and the alignment terms of DANN and SWD. NOT PRIVATE.

Every step reads a raw batch of the target, and the gradient passes through it.

References:
    | DANN: Ganin et al., Domain-Adversarial Training of Neural Networks, JMLR 2016.
    | SWD: Lee et al., Sliced Wasserstein Discrepancy, CVPR 2019; Rakotomamonjy2021, Section 5.1.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from dpswd.sliced import sliced_wasserstein
from dpswd.slices import random_projections


def rising(progress: float) -> float:
    """Return a weight that rises from 0 to 1 (Ganin et al., Section 5.2.2)."""
    return 2 / (1 + math.exp(-10 * progress)) - 1


def endless(n: int, size: int, *, short: bool = False) -> Iterator[Tensor]:
    """Yield record numbers in shuffled epochs without end, ``size`` at a time; ``short`` keeps the rest of an epoch."""
    while True:
        yield from torch.randperm(n)[: n if short else n // size * size].split(size)


def fit_unprotected(
    encoder: nn.Module,
    classifier: nn.Module,
    term: nn.Module,
    source: Iterator[tuple[Tensor, Tensor]],
    target: Iterator[Tensor],
    *,
    steps: int,
    weight: float,
    lr: float,
) -> None:
    """Minimise cross-entropy on the source plus ``weight`` times the term, by Adam with a cosine to a tenth of ``lr``.

    The term is a scalar of features (n, d) of source and target, and of the progress of training from 0 to 1.
    """
    for part in (encoder, classifier, term):
        part.train()
    parameters = [p for part in (encoder, classifier, term) for p in part.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=lr / 10)
    for step in range(steps):
        records, classes = next(source)
        ours, theirs = encoder(records), encoder(next(target))
        loss = nn.functional.cross_entropy(classifier(ours), classes) + weight * term(
            ours, theirs, step / steps
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, factor: float) -> Tensor:  # type: ignore[override]
        ctx.factor = factor
        return features.view_as(features)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return -ctx.factor * gradient, None


def reverse(features: Tensor, factor: float = 1.0) -> Tensor:
    """Return features (n, d) unchanged, with their gradient multiplied by ``-factor``."""
    reversed_: Tensor = _Reverse.apply(features, factor)
    return reversed_


class DomainClassifier(nn.Sequential):
    """Map features (n, dim) to logits (n,) of belonging to the target."""

    def __init__(self, dim: int, hidden: int = 100) -> None:
        super().__init__(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, 1), nn.Flatten(0))


class DANNTerm(nn.Module):
    """DANN: cross-entropy of a domain classifier; the encoder's gradient is reversed, with a rising factor."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.domain = DomainClassifier(dim)

    def forward(self, source: Tensor, target: Tensor, progress: float) -> Tensor:
        """Return the loss of the domain classifier, with equal weight of both domains."""
        factor = rising(progress)
        ours, theirs = (self.domain(reverse(side, factor)) for side in (source, target))
        loss = nn.functional.binary_cross_entropy_with_logits
        return loss(ours, torch.zeros_like(ours)) / 2 + loss(theirs, torch.ones_like(theirs)) / 2


class SWDTerm(nn.Module):
    """SWD: d times the squared sliced Wasserstein distance of the features, along a fresh orthonormal basis."""

    def forward(self, source: Tensor, target: Tensor, progress: float) -> Tensor:
        """Return the distance, in squared units of the features."""
        dim = source.shape[1]
        return dim * sliced_wasserstein(
            source, target, random_projections(dim, dim, kind="orthogonal").to(source)
        )
