"""Loaders of private batches: fixed size, without replacement, fresh.

A batch is fresh at every release. An epoch of a shuffled loader is different (every record occurs
exactly once), and so is its short last batch. The indices of a batch are as secret as the noise:
:mod:`dpswd.release` draws them from :mod:`dpswd._random` when the batch is released, and no state
can be saved or seeded.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.utils.data import Sampler

from dpswd._random import SecureRandom, subset
from dpswd._validate import at_least
from dpswd.errors import InputError
from dpswd.records import PrivateBatch, PrivateRecords, check_handle

__all__ = ["FixedSizeSampler", "ReleaseLoader"]


class ReleaseLoader:
    """Loader of handles: one :class:`~dpswd.PrivateBatch` for every planned release.

    It works with any Lightning ``Trainer``: :class:`~dpswd.lightning.PrivacyBudget` ends training
    after ``n_releases`` releases, even if ``max_epochs`` and ``max_steps`` allow more. A smaller
    ``max_steps`` ends it before, at the cost of the whole plan.

    Args:
        records: The private records.
        batch_size: Number B <= N of records in a release; of units, where units are stated.
        n_releases: Number of releases of the whole run, which the budget is calibrated for.
        every: Training steps per release. The steps between get an empty batch and train on the
            last release.
        after: Training steps before the first release, which get an empty batch, too.

    Attributes:
        n_done: Function that returns the number of steps that a resumed epoch has behind it; the
            budget sets it.

    Raises:
        InputError: If ``records`` is not a handle, a number is out of range, or B > N.

    Example:
        >>> records = PrivateRecords(torch.rand(50, 3))
        >>> [len(batch) for batch in ReleaseLoader(records, batch_size=8, n_releases=2, every=2)]
        [8, 0, 8, 0]
    """

    def __init__(
        self,
        records: PrivateRecords,
        *,
        batch_size: int,
        n_releases: int,
        every: int = 1,
        after: int = 0,
    ) -> None:
        check_handle(records)
        at_least(1, n_releases=n_releases, every=every)
        at_least(0, after=after)
        PrivateBatch(records, batch_size)  # refuses a size out of range
        self.records = records
        self.batch_size = batch_size
        self.n_releases = n_releases
        self.every = every
        self.after = after
        self.n_done: Callable[[], int] = int  # int() is 0: a new epoch has no step behind it

    def __len__(self) -> int:
        return self.after + self.n_releases * self.every

    def __iter__(self) -> Iterator[PrivateBatch]:
        for step in range(self.n_done(), len(self)):
            if step >= self.after and (step - self.after) % self.every == 0:
                yield PrivateBatch(self.records, self.batch_size)
            else:
                yield PrivateBatch(None, self.batch_size)  # a step without a release

    def state_dict(self) -> dict[str, int]:
        """Return no state: batches cannot be repeated, and the trainer counts its steps."""
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Do nothing."""


class FixedSizeSampler(Sampler[Tensor]):
    """Batch sampler for tensors that the caller hands over.

    At every step it draws a fresh uniform subset of fixed size, without replacement.

    Args:
        sample_size: Number N of records; tensors have no units.
        batch_size: Number B <= N of records in a release.
        n_steps: Number of training steps.

    Raises:
        InputError: If a size is out of range or B > N.

    Example:
        >>> [len(indices) for indices in FixedSizeSampler(100, 8, n_steps=3)]
        [8, 8, 8]
    """

    def __init__(self, sample_size: int, batch_size: int, *, n_steps: int) -> None:
        at_least(1, sample_size=sample_size, batch_size=batch_size, n_steps=n_steps)
        if batch_size > sample_size:
            raise InputError(
                f"Expected batch_size <= {sample_size}, the number of records, got {batch_size}; "
                "lower it."
            )
        self.sample_size = sample_size
        self.batch_size = batch_size
        self.n_steps = n_steps

    def __len__(self) -> int:
        return self.n_steps

    def __iter__(self) -> Iterator[Tensor]:
        for _ in range(self.n_steps):
            yield torch.from_numpy(subset(SecureRandom(), self.sample_size, self.batch_size))
