"""Training that goes on from a checkpoint after an interruption."""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dpswd._files import atomic_write, verified_archive
from dpswd.errors import InputError

EVERY = 1000  # steps between checkpoints


@dataclass(frozen=True)
class Progress:
    """Number of finished steps, and the seconds that they took."""

    step: int = 0
    seconds: float = 0.0


def train_resumably(
    work: Callable[[int], float],
    parts: Mapping[str, Any],
    steps: int,
    setting: list[float],
    checkpoint: Path | None,
) -> float:
    """Call ``work`` with the number of every step; return the seconds of training.

    Where the checkpoint exists, the run goes on from it, with the numbers of a run without
    interruption from the same random state.

    Args:
        work: makes a step and returns its loss.
        parts: modules and optimisers, whose state the checkpoint has.
        steps: number of steps.
        setting: numbers of the run; a checkpoint with others is refused.
        checkpoint: path of the file, ``None`` for no checkpoints.

    Raises:
        InputError: if the checkpoint is of another run.
    """
    progress = Progress()
    if checkpoint is not None and checkpoint.exists():
        progress = _restored(checkpoint, parts, setting)
    started = time.monotonic() - progress.seconds
    total = 0.0
    for step in range(progress.step, steps):
        total += work(step)
        is_last = step + 1 == steps
        if (step + 1) % EVERY and not is_last:
            continue
        progress = Progress(step + 1, time.monotonic() - started)
        average = total / (step % EVERY + 1)
        line = f"step {step + 1:,} of {steps:,}, distance {average:.4f}, {progress.seconds:.0f} s"
        print(line, file=sys.stderr, flush=True)
        total = 0.0
        if checkpoint is not None:
            _save(checkpoint, parts, setting, progress)
    return progress.seconds


def _restored(checkpoint: Path, parts: Mapping[str, Any], setting: list[float]) -> Progress:
    """Set parts and random state to those of a checkpoint; return its progress."""
    state = torch.load(verified_archive(checkpoint), weights_only=True)
    if state["setting"] != setting:
        raise InputError(
            f"Expected a checkpoint of {setting}, got one of {state['setting']}; "
            f"remove {checkpoint}."
        )
    for name, part in parts.items():
        part.load_state_dict(state[name])
    torch.set_rng_state(state["random"])
    return Progress(state["step"], state["seconds"])


def _save(
    checkpoint: Path, parts: Mapping[str, Any], setting: list[float], progress: Progress
) -> None:
    """Write a checkpoint in place of the last one."""
    state: dict[str, Any] = {name: part.state_dict() for name, part in parts.items()}
    state["setting"] = setting
    state["step"] = progress.step
    state["seconds"] = progress.seconds
    state["random"] = torch.get_rng_state()
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(checkpoint, partial(torch.save, state))
