"""Trial of networks on public input before the first release."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dpswd.errors import InputError

__all__ = ["check_shape_of", "in_evaluation", "trial"]

NOTHING_RELEASED = "Nothing was released."


@contextmanager
def in_evaluation(module: nn.Module) -> Iterator[None]:
    """Run a module in evaluation mode and without gradients.

    Its modes and the random state of torch are as before at the end.
    """
    was_training = [(part, part.training) for part in module.modules()]
    module.eval()
    devices = range(torch.cuda.device_count())
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            yield
    finally:
        for part, mode in was_training:
            part.training = mode


@contextmanager
def trial(module: nn.Module, purpose: str, remedy: str = "") -> Iterator[None]:
    """Run a module on public input before the first release.

    It runs as in :func:`in_evaluation`.

    Args:
        module: The module.
        purpose: What is tried, for the message about an error: "Expected ...".
        remedy: What to do about an error.

    Raises:
        InputError: In place of every error in the block; it says that nothing was released.
    """
    try:
        with in_evaluation(module):
            yield
    except InputError as error:
        raise InputError(f"{error} {NOTHING_RELEASED}") from None
    except Exception as error:  # code of the user, which raises anything
        words = " ".join(str(error).split()).rstrip(".")
        what_to_do = f"; {remedy}" if remedy else ""
        raise InputError(
            f"Expected {purpose}, got {type(error).__name__}: {words}{what_to_do}. "
            f"{NOTHING_RELEASED}"
        ) from error


def check_shape_of(
    values: Tensor, n_rows: int, shape: tuple[int, ...], name: str, remedy: str
) -> None:
    """Raise an InputError unless a batch (n, ``*shape``) was computed.

    Args:
        values: What was computed.
        n_rows: Number n of entries that it was computed from.
        shape: Shape of one entry of the batch.
        name: What it is, and by whom it is computed.
        remedy: What to do.
    """
    if tuple(values.shape[1:]) != tuple(shape):
        raise InputError(
            f"Expected {name} of shape (n, {', '.join(map(str, shape))}), got "
            f"{tuple(values.shape)}; {remedy}."
        )
    if len(values) != n_rows:
        raise InputError(
            f"Expected {n_rows} {name}, of a batch of {n_rows}, got {len(values)}; return one for "
            "each entry of the batch."
        )
