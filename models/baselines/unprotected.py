"""The training loop that the unprotected adaptation baselines share: NOT PRIVATE, whatever the term that aligns.

Every step reads a raw batch of the target and sends the gradient through it.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from dpswd._validate import at_least, positive

__all__ = ["Side", "Term", "fit_unprotected", "raw_batches", "rising"]


class Side(NamedTuple):
    """One domain in a step: features (n, d), scores (n, C), classes (n,) where they are known."""

    features: Tensor
    scores: Tensor
    classes: Tensor | None


class Term(Protocol):
    """What aligns: a scalar of both domains. May have parameters of its own."""

    def __call__(self, source: Side, target: Side, progress: float) -> Tensor:
        """Compares the domains; ``progress`` runs from 0 to 1 over training."""


def rising(progress: float) -> float:
    """Weight that rises from 0 to 1 (Ganin et al., Domain-Adversarial Training, JMLR 2016, Section 5.2.2)."""
    return 2 / (1 + math.exp(-10 * progress)) - 1


def raw_batches(records: Tensor, size: int) -> Iterator[Tensor]:
    """Shuffled batches of the target, for ever."""
    while True:
        order = torch.randperm(len(records))
        for part in order[: len(order) // size * size].split(size):
            yield records[part]


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
    """Minimises cross-entropy on the source plus ``weight`` times the term, by Adam with a cosine.

    Args:
        encoder: Maps records to features (n, d).
        classifier: Maps features to scores.
        term: A :class:`Term`.
        source: Endless labelled batches.
        target: Endless raw batches.
        steps: Training steps.
        weight: Of the term.
        lr: Learning rate; falls to a tenth.
    """
    at_least(1, steps=steps)
    positive(weight=weight, lr=lr)
    for part in (encoder, classifier, term):
        part.train()
    parameters = [p for part in (encoder, classifier, term) for p in part.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=lr / 10)
    for step in range(steps):
        records, classes = next(source)
        ours, theirs = encoder(records), encoder(next(target))
        known, unknown = Side(ours, classifier(ours), classes), Side(theirs, classifier(theirs), None)
        loss = nn.functional.cross_entropy(known.scores, classes)
        loss = loss + weight * term(known, unknown, step / steps)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
