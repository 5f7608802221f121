"""Learning rates over a run, which depend on its number of steps."""

import math

import lightning as L
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch.optim.lr_scheduler import LRScheduler

from dpswd.errors import InputError

__all__ = ["n_steps_of", "one_cycle", "warm_up_and_cosine", "with_schedule"]

# Warm-up of the learning rates of an adaptation, as a part of the steps, and the lowest factor at
# the end.
_WARM_UP = 0.1
_LOWEST_FACTOR = 0.02


def n_steps_of(trainer: L.Trainer) -> int:
    """Return the number of training steps of a run, at least 1.

    Raises:
        InputError: If the run has no limit, as a schedule needs one.
    """
    n_steps = trainer.estimated_stepping_batches
    if not math.isfinite(n_steps):
        raise InputError("Expected trainer.max_steps, got no limit; set it.")
    return max(1, int(n_steps))


def one_cycle(step: int, n_steps: int) -> float:
    """Return the factor on the learning rate of a generator at a step.

    It is a linear warm-up over a twentieth of the steps, times half a cosine.
    """
    warm_up = min(1.0, (step + 1) / max(1, n_steps // 20))
    progress = min(1.0, step / n_steps)
    return warm_up * (1 + math.cos(math.pi * progress)) / 2


def warm_up_and_cosine(step: int, n_steps: int) -> float:
    """Return the factor on the learning rates of an adaptation at a step.

    It is a linear warm-up over a tenth of the steps, and then half a cosine down to a fiftieth.
    """
    n_warm_up = max(1, round(_WARM_UP * n_steps))
    if step < n_warm_up:
        return (step + 1) / n_warm_up
    progress = min(1.0, (step - n_warm_up) / max(1, n_steps - n_warm_up))
    return _LOWEST_FACTOR + (1 - _LOWEST_FACTOR) * 0.5 * (1 + math.cos(math.pi * progress))


def with_schedule(
    optimiser: torch.optim.Optimizer, schedule: LRScheduler
) -> OptimizerLRSchedulerConfig:
    """Return an optimiser whose learning rate changes at every step."""
    return {
        "optimizer": optimiser,
        "lr_scheduler": {"scheduler": schedule, "interval": "step"},
    }
