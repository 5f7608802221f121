"""Sampling of fixed-size batches without replacement, as the accountants assume.

At every release a uniform subset of B of the N records is drawn without replacement, afresh and in secret random order.
An epoch of a shuffled loader is different (every record occurs exactly once), and so is its short last batch. The
indices are as secret as the noise: they come from :mod:`dpswd._random`, and no state can be saved or seeded.

Several processes (``torch.distributed``) share one subset: rank 0 draws and broadcasts it, each rank takes its part.
N, B and q are then those of a single process. (Independent subsets per rank would be stratified sampling, for which the
accounting does not hold.)
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from dpswd._distributed import Processes
from dpswd._random import random_source, subset
from dpswd._validate import at_least
from dpswd.errors import InputError

__all__ = ["FixedSizeSampler", "ReleaseLoader"]


class FixedSizeSampler(Sampler[Tensor]):
    """Batch sampler for ``DataLoader(dataset, batch_sampler=...)``: one index tensor per training step.

    Args:
        sample_size: Number N of records.
        batch_size: Number B <= N of records in a release.
        n_steps: Number of training steps.
        every: Training steps per release. The steps between get an empty tensor and train on the last release.
        noise_seed: For tests only: NOT PRIVATE.

    Raises:
        InputError: If a size is out of range or B > N.

    Example:
        >>> [len(indices) for indices in FixedSizeSampler(100, 8, n_steps=5, every=2)]
        [8, 0, 8, 0, 8]
    """

    def __init__(
        self,
        sample_size: int,
        batch_size: int,
        *,
        n_steps: int,
        every: int = 1,
        noise_seed: int | None = None,
    ) -> None:
        at_least(1, sample_size=sample_size, batch_size=batch_size, n_steps=n_steps, every=every)
        random_source(noise_seed)  # validates the seed
        if batch_size > sample_size:
            raise InputError(
                f"Expected batch_size <= the number of records, got batch_size={batch_size} and {sample_size} records."
            )
        self.sample_size, self.batch_size = sample_size, batch_size
        self.n_steps, self.every, self.noise_seed = n_steps, every, noise_seed
        self.start = 0  # first step of a resumed run

    @property
    def n_releases(self) -> int:
        """Number T of releases of the whole run, counted from step 0."""
        return -(-self.n_steps // self.every)

    def __len__(self) -> int:
        return max(0, self.n_steps - self.start)

    def __iter__(self) -> Iterator[Tensor]:
        source, processes = random_source(self.noise_seed), Processes()
        if self.batch_size < processes.world_size:
            raise InputError(
                f"Expected batch_size >= the number of processes, got batch_size={self.batch_size} and "
                f"{processes.world_size} processes; use fewer processes."
            )
        for step in range(self.start, self.n_steps):
            if step % self.every:
                yield torch.empty(0, dtype=torch.int64)
            else:
                indices = torch.from_numpy(
                    processes.broadcast(partial(subset, source, self.sample_size, self.batch_size))
                )
                yield torch.tensor_split(indices, processes.world_size)[processes.rank]


class ReleaseLoader(DataLoader[Any]):
    """Data loader over a :class:`FixedSizeSampler`; a resumed run continues at the next step.

    Its state is the number of steps taken. The subsets can be neither saved nor repeated.

    Args:
        dataset: Private records, a map-style dataset.
        sampler: Draws the subsets.

    Example:
        >>> loader = ReleaseLoader(torch.arange(50), FixedSizeSampler(50, 8, n_steps=3))
        >>> [len(batch) for batch in loader]
        [8, 8, 8]
    """

    def __init__(self, dataset: Any, sampler: FixedSizeSampler) -> None:
        super().__init__(dataset, batch_sampler=sampler, collate_fn=_identity)  # type: ignore[arg-type]
        self._steps_taken = sampler.start

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            self._steps_taken += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Return the number of steps taken."""
        return {"start": self._steps_taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue after the number of steps in ``state``."""
        sampler: Any = self.batch_sampler
        sampler.start = self._steps_taken = state["start"]


def _identity(batch: Any) -> Any:
    return batch
