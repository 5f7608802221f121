"""The generator of Rakotomamonjy2021, trained as printed, for comparison only. NOT PRIVATE (docs/errata.md).

As printed: Table 3 generator with a code of 10, pixels divided by the largest norm of the private batch, both sides
projected on 1,000 fresh directions and noised with the sigma of Table 4 (2.94 by Bernstein's bound, 0.84 by the CLT's,
none for SWD), Adam with a learning rate of 1e-4, 100 epochs of shuffled batches of 100: 60,100 steps by the count of
the authors' code.

The generative code is not public. The distance is that of the authors' code for adaptation (its root, times the norm
that the rows were divided by), and the paper does not say how classes enter it (a distance of images alone cannot tie
an image to its class). Here a batch has 10 records of every class and each class is compared with its own records;
labels are not accounted for. No ledger is written, and all numbers come from torch's generator, so that anyone who
knows the seed can remove the noise.
"""

import io
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from dpswd._files import atomic_write, verified_archive
from dpswd._validate import at_least, choice
from dpswd.data.base import Records
from dpswd.errors import InputError
from dpswd.generation.generators import Table3Generator
from experiments.accounting.published import TABLE4
from models.published import published_loss

__all__ = ["PUBLISHED_STEPS", "Published", "published_run", "published_sigma_of", "train_resumably"]

Bound = Literal["none", "bernstein", "clt"]
ROWS = {row.bound: row for row in TABLE4 if row.name.startswith("MNIST (")}
SETTING = ROWS["bernstein"]
PUBLISHED_STEPS = SETTING.n_releases
LEARNING_RATE = 1e-4
EVERY = 1000  # steps between checkpoints


def published_sigma_of(bound: Bound) -> float:
    """The printed noise, in units in which a row moves by at most 1; 0 for SWD."""
    choice(("none", "bernstein", "clt"), bound=bound)
    return 0.0 if bound == "none" else ROWS[bound].sigma


class Published(NamedTuple):
    """A trained generator, the noise of the projections, and the seconds of training."""

    generator: Table3Generator
    sigma: float
    seconds: float


def published_run(
    private: Records, bound: Bound, steps: int = PUBLISHED_STEPS, checkpoint: Path | None = None
) -> Published:
    """Trains the generator of Table 3 from torch's current random state.

    Args:
        private: Images of 28 x 28 pixels in 10 classes.
        bound: ``"none"`` (SWD), ``"bernstein"`` (DP-SWD-b) or ``"clt"`` (DP-SWD-c).
        steps: Training steps; the noise is that of ``PUBLISHED_STEPS`` in any case.
        checkpoint: See :func:`train_resumably`.
    """
    at_least(1, steps=steps)
    sigma, per_class = published_sigma_of(bound), SETTING.batch_size // 10
    generator: Any = Table3Generator(latent_dim=10).to(memory_format=torch.channels_last)  # half the time on a CPU
    optimizer = torch.optim.Adam(generator.parameters(), lr=LEARNING_RATE)
    orders = [_shuffled(torch.nonzero(private.labels == c)[:, 0], per_class * steps) for c in range(10)]
    classes = torch.arange(10).repeat_interleave(per_class)

    def work(step: int) -> float:
        batch = torch.cat([order[step * per_class : (step + 1) * per_class] for order in orders])
        rows = private.floats(batch).flatten(1)
        generated = generator(generator.latent(len(classes)), classes).flatten(1)
        loss = published_loss(generated, rows, sigma, SETTING.n_projections, groups=10)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    setting = [sigma, float(steps), float(len(private))]
    parts = {"generator": generator, "optimizer": optimizer}
    seconds = train_resumably(work, parts, steps, setting, checkpoint)
    return Published(generator.eval(), sigma, seconds)


def train_resumably(
    work: Callable[[int], float], parts: dict[str, Any], steps: int, setting: list[float], checkpoint: Path | None
) -> float:
    """Calls ``work`` with the number of every step; returns the seconds of training.

    Args:
        work: Trains one step; returns its loss.
        parts: Modules and optimizers, by name.
        steps: Number of steps.
        setting: Numbers that a checkpoint of this run has.
        checkpoint: File that is written every ``EVERY`` steps and at the end. If it exists, the run goes on from it
            and has the numbers of a run without interruption, provided that the random state at the call is the same.
    """
    first, seconds, total = 0, 0.0, 0.0
    if checkpoint is not None and checkpoint.exists():
        state = torch.load(verified_archive(checkpoint), weights_only=True)
        if state["setting"] != setting:
            raise InputError(f"Expected a checkpoint of {setting}, got one of {state['setting']}; remove {checkpoint}.")
        for name, part in parts.items():
            part.load_state_dict(state[name])
        torch.set_rng_state(state["random"])
        first, seconds = state["step"], state["seconds"]
    started = time.monotonic() - seconds
    for step in range(first, steps):
        total += work(step)
        if (step + 1) % EVERY and step + 1 < steps:
            continue
        seconds = time.monotonic() - started
        mean = total / (step % EVERY + 1)
        print(f"step {step + 1:,} of {steps:,}, distance {mean:.4f}, {seconds:.0f} s", file=sys.stderr, flush=True)
        total = 0.0
        if checkpoint is not None:
            state = {name: part.state_dict() for name, part in parts.items()}
            state |= {"setting": setting, "step": step + 1, "seconds": seconds, "random": torch.get_rng_state()}
            buffer = io.BytesIO()
            torch.save(state, buffer)
            atomic_write(checkpoint, buffer.getvalue())
    return seconds


def _shuffled(index: Tensor, wanted: int) -> Tensor:
    """Repeats ``index`` in random orders, one epoch after the other, up to ``wanted`` entries."""
    epochs = -(-wanted // len(index))
    return torch.cat([index[torch.randperm(len(index))] for _ in range(epochs)])
