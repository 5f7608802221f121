"""The source of an adaptation: labelled public records, gone round for ever, and a classifier trained on them alone."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from dpswd.errors import InputError

__all__ = ["fit_source", "source_batches"]


def source_batches(source: Iterable[Any], n_classes: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Goes round the labelled public batches for ever, after one round in which their classes are checked.

    Raises:
        InputError: At once, if batches are no (records, classes), or a class is empty or out of range.
    """
    counts = torch.zeros(n_classes, dtype=torch.int64)
    for batch in source:
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise InputError("Expected source batches of (records, classes), got others; the source must be labelled.")
        classes = batch[1]
        if bool(((classes < 0) | (classes >= n_classes)).any()):
            raise InputError(f"Expected classes of the source between 0 and {n_classes - 1}, got others; check them.")
        counts += torch.bincount(classes.cpu(), minlength=n_classes)
    if empty := (counts == 0).nonzero().flatten().tolist():
        raise InputError(
            f"Expected source records of all {n_classes} classes, got none of class {empty[0]}; the classifier cannot "
            "learn it: add some, or lower n_classes."
        )

    def round_and_round() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from source

    return round_and_round()


def fit_source(
    encoder: nn.Module, classifier: nn.Module, batches: Callable[[], tuple[Tensor, Tensor]], steps: int, lr: float
) -> None:
    """Trains encoder and classifier, in the modes they are in, on the source alone: Adam, a one-cycle learning rate.

    Args:
        encoder: Maps records to features.
        classifier: Maps features to scores.
        batches: Called for a batch (records, classes).
        steps: Training steps.
        lr: Mean learning rate; its peak is four times as high.
    """
    network = [*encoder.parameters(), *classifier.parameters()]
    optimizer = torch.optim.Adam(network, lr=lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4 * lr, max(2, steps))
    with torch.enable_grad():
        for _ in range(steps):
            records, classes = batches()
            loss = nn.functional.cross_entropy(classifier(encoder(records)), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
