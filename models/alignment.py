"""Unprotected adaptation by DANN and SWD: the terms and a loop. NOT PRIVATE.

Every step reads a raw batch of the target, and the gradient passes through it.

References:
    | DANN: Ganin et al., Domain-Adversarial Training of Neural Networks, JMLR 2016.
    | SWD: Lee et al., Sliced Wasserstein Discrepancy, CVPR 2019; Rakotomamonjy2021, Section 6.2.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from dpswd.sliced import sliced_wasserstein
from dpswd.slices import random_projections


def rising(progress: float) -> float:
    """Return a weight that rises from 0 to 1 during the training.

    Args:
        progress: Part of the training that is done, from 0 to 1.

    References:
        | Ganin et al., Section 5.2.2.
    """
    return 2 / (1 + math.exp(-10 * progress)) - 1


def endless(n: int, size: int, *, short: bool = False) -> Iterator[Tensor]:
    """Yield indices of records in shuffled epochs without end.

    Args:
        n: Number of records.
        size: Number of indices in a batch.
        short: Whether an epoch ends with the remaining records, fewer than ``size``; otherwise they
            are left out.
    """
    n_used = n
    if not short:
        n_used = n // size * size
    while True:
        yield from torch.randperm(n)[:n_used].split(size)


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
    """Minimise cross-entropy on the source plus a weighted alignment term, in place.

    The optimiser is Adam; the learning rate falls to a tenth by a cosine.

    Args:
        encoder: Maps records to features (n, d).
        classifier: Maps features to logits (n, C).
        term: Scalar of features of source and target, and of the progress from 0 to 1.
        source: Batches of records and their classes, without end.
        target: Batches of raw target records, without end.
        steps: Number of training steps.
        weight: Weight of the term.
        lr: Learning rate at the start.
    """
    parameters = []
    for module in (encoder, classifier, term):
        module.train()
        parameters += list(module.parameters())
    optimiser = torch.optim.Adam(parameters, lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps, eta_min=lr / 10)
    for step in range(steps):
        records, classes = next(source)
        source_features = encoder(records)
        target_features = encoder(next(target))
        cross_entropy = nn.functional.cross_entropy(classifier(source_features), classes)
        loss = cross_entropy + weight * term(source_features, target_features, step / steps)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()


# DANN


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
    unchanged: Tensor = _Reverse.apply(features, factor)
    return unchanged


class DomainClassifier(nn.Sequential):
    """Map features (n, dim) to logits (n,) of belonging to the target."""

    def __init__(self, dim: int, hidden: int = 100) -> None:
        super().__init__(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, 1), nn.Flatten(0))


class DANNTerm(nn.Module):
    """DANN: cross-entropy of a domain classifier, which the encoder maximises.

    The gradient that reaches the encoder is reversed, with a rising factor.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.domain = DomainClassifier(dim)

    def forward(self, source: Tensor, target: Tensor, progress: float) -> Tensor:
        """Return the loss of the domain classifier, with equal weight of both domains."""
        factor = rising(progress)
        source_logits = self.domain(reverse(source, factor))
        target_logits = self.domain(reverse(target, factor))
        cross_entropy = nn.functional.binary_cross_entropy_with_logits
        source_loss = cross_entropy(source_logits, torch.zeros_like(source_logits))
        target_loss = cross_entropy(target_logits, torch.ones_like(target_logits))
        return source_loss / 2 + target_loss / 2


# SWD


class SWDTerm(nn.Module):
    """SWD: squared sliced Wasserstein distance of the features (n, d), times d.

    The directions are a fresh orthonormal basis at every call.
    """

    def forward(self, source: Tensor, target: Tensor, progress: float) -> Tensor:
        """Return the distance, in squared units of the features."""
        dim = source.shape[1]
        basis = random_projections(dim, dim, kind="orthogonal").to(source)
        return dim * sliced_wasserstein(source, target, basis)
