"""Fresh subsets of fixed size: the sampling that the accountants assume.

At every release a uniform subset of B of the N records is drawn without replacement, afresh, in secret random order.
An epoch of a shuffled loader is not that (every record comes exactly once), nor is its short last batch. The indices
are as secret as the noise: they come from the operating system, and no state of the sampler can be saved or seeded.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import Sampler

from dpswd._validate import at_least
from dpswd.errors import InputError
from dpswd.randomness import random_source, subset

__all__ = ["FixedSizeSampler"]


class FixedSizeSampler(Sampler[Tensor]):
    """A batch sampler for ``DataLoader(dataset, batch_sampler=...)``: one index tensor per training step.

    Args:
        sample_size: Number N of records.
        batch_size: Number B <= N of records in a release.
        num_steps: Number of training steps.
        every: Training steps per release. Steps in between get no private record at all (an empty tensor); they train
            on what was released before, at no cost.
        start: Step to begin with, where a run is resumed.
        noise_seed: For tests only: NOT PRIVATE.

    Raises:
        InputError: If a size is out of range or B > N.

    Example:
        >>> [len(indices) for indices in FixedSizeSampler(100, 8, num_steps=5, every=2)]
        [8, 0, 8, 0, 8]
    """

    def __init__(
        self,
        sample_size: int,
        batch_size: int,
        *,
        num_steps: int,
        every: int = 1,
        start: int = 0,
        noise_seed: int | None = None,
    ) -> None:
        at_least(1, sample_size=sample_size, batch_size=batch_size, num_steps=num_steps, every=every)
        at_least(0, start=start)
        random_source(noise_seed)  # refuses a seed that is none
        if batch_size > sample_size:
            raise InputError(
                f"Expected batch_size <= the number of records, got batch_size={batch_size} and {sample_size} records."
            )
        self.sample_size, self.batch_size = sample_size, batch_size
        self.num_steps, self.every, self.start = num_steps, every, start
        self.noise_seed = noise_seed

    @property
    def num_releases(self) -> int:
        """Number T of releases of the whole run, from step 0."""
        return -(-self.num_steps // self.every)

    def __len__(self) -> int:
        return max(0, self.num_steps - self.start)

    def __iter__(self) -> Iterator[Tensor]:
        source = random_source(self.noise_seed)
        for step in range(self.start, self.num_steps):
            if step % self.every:
                yield torch.empty(0, dtype=torch.int64)
            else:
                yield torch.from_numpy(subset(source, self.sample_size, self.batch_size))
