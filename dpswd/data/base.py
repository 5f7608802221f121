"""What all data modules share: records in memory, a loader that makes releases, labels to generate for."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dpswd._validate import at_least
from dpswd.errors import InputError
from dpswd.sampling import FixedSizeSampler, ReleaseLoader

__all__ = ["PrivateData", "Records", "data_root", "every_fifth", "release_loader", "whole_blocks"]


def data_root(root: str | None) -> Path:
    """Returns where data sets lie: the argument, else ``DPSWD_DATA``, else ``./data``."""
    return Path(root or os.environ.get("DPSWD_DATA") or "data")


@dataclass(frozen=True)
class Records:
    """Records (N, *sample_shape), uint8 or float, and their classes (N,) in int64."""

    values: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if not len(self.values):
            raise InputError("Expected at least one record, got none; check the data directory.")
        if len(self.values) != len(self.labels):
            raise InputError(f"Expected a label per record, got {len(self.values)} and {len(self.labels)}.")
        if bool((self.labels < 0).any()):
            raise InputError("Expected labels of at least 0, got others; number the classes from 0.")
        if self.values.is_floating_point() and not bool(torch.isfinite(self.values).all()):
            raise InputError("Expected finite records, got nan or inf; clean the data before it is used.")

    def __len__(self) -> int:
        return len(self.values)

    def floats(self, index: Tensor | slice = slice(None)) -> Tensor:
        """Returns records as float32; bytes become pixels in [0, 1]."""
        values = self.values[index]
        return values.to(torch.float32) / 255 if values.dtype == torch.uint8 else values.to(torch.float32)

    def select(self, index: Tensor) -> "Records":
        """Returns the records at ``index``."""
        return Records(self.values[index], self.labels[index])


def every_fifth(records: Records) -> tuple[Records, Records]:
    """Splits off every fifth record for testing: a rule that does not look at the data."""
    index = torch.arange(len(records))
    return records.select(index[index % 5 != 4]), records.select(index[index % 5 == 4])


class _Batches(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, records: Records) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__(torch.tensor([index]))

    def __getitems__(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return self.records.floats(index), self.records.labels[index]


def whole_blocks(n_records: int, batch_size: int | None, n_quantiles: int | None) -> int:
    """Returns the number of records in a release: ``batch_size``, or the largest multiple of ``n_quantiles``.

    Raises:
        InputError: If there are fewer records than that.
    """
    if batch_size is not None:
        if batch_size > n_records:
            raise InputError(
                f"Expected batch_size <= the number of records, got batch_size={batch_size} and {n_records} records."
            )
        return batch_size
    blocks = n_quantiles or 1
    if blocks > n_records:
        raise InputError(f"Expected n_quantiles <= the number of records, got {blocks} and {n_records} records.")
    return n_records // blocks * blocks


def release_loader(trainer: L.Trainer, dataset: Any, every: int) -> ReleaseLoader:
    """Makes one batch per training step: private records where there is a release, none in between.

    Args:
        trainer: Its steps are those that the budget is planned over; its module knows the mechanism.
        dataset: Private records, indexed by tensors.
        every: Training steps per release; 0 for one release in the whole run.

    Raises:
        InputError: If the number of steps is not set.
    """
    steps = trainer.max_steps
    if steps < 1:
        raise InputError(f"Expected trainer.max_steps >= 1, got {steps}; the budget is planned over steps.")
    criterion: Any = trainer.lightning_module.criterion
    mechanism = criterion.mechanism
    sampler = FixedSizeSampler(
        len(dataset),
        mechanism.batch_size,
        n_steps=steps,
        every=every or steps,
        noise_seed=mechanism.noise_seed,
    )
    return ReleaseLoader(dataset, sampler)


class PrivateData(L.LightningDataModule):
    """Base of the data modules. A subclass loads the records; the rest is the same for all.

    Args:
        root: Directory of the data sets; ``DPSWD_DATA`` or ``./data`` if not given.
        batch_size: Number B of records in a release. ``None`` for all of them, less the few that must go so that the
            blocks are whole (which ones is drawn at random, not looked at).
        n_synthetic: Number of records that ``dpswd predict`` generates, spread evenly over the classes.
    """

    name = "records"
    public_benchmark = False  # whether the records are public in truth, so that unnoised statistics of them do no harm
    n_classes: int | None = None  # where the data say it, in public, once they are loaded

    def __init__(self, root: str | None = None, batch_size: int | None = None, n_synthetic: int = 10_000) -> None:
        super().__init__()
        if batch_size is not None:
            at_least(1, batch_size=batch_size)
        at_least(1, n_synthetic=n_synthetic)
        self.root, self.batch_size, self.n_synthetic = root, batch_size, n_synthetic
        self.release_every = 1
        self._splits: tuple[Records, Records | None] | None = None

    def load(self) -> tuple[Records, Records | None]:
        """Reads (private records, public test records or ``None``).

        Raises:
            InputError: If the data are missing, unreadable or no records of one shape.
        """
        raise NotImplementedError

    @property
    def private(self) -> Records:
        """The records that the guarantee protects."""
        return self._loaded()[0]

    @property
    def test(self) -> Records | None:
        """Records for evaluation only, not covered by the guarantee."""
        return self._loaded()[1]

    def _loaded(self) -> tuple[Records, Records | None]:
        if self._splits is None:
            self._splits = self.load()
        return self._splits

    def setup(self, stage: str) -> None:
        """Reads the records, before anything else happens. Generating needs none of them."""
        if stage == "fit":
            self._loaded()

    def release_size(self, n_quantiles: int | None) -> int:
        """Returns the number of records in a release, a multiple of ``n_quantiles``."""
        return whole_blocks(len(self.private), self.batch_size, n_quantiles)

    def train_dataloader(self) -> ReleaseLoader:
        """One batch per training step: private records where there is a release, none in between."""
        assert self.trainer is not None
        return release_loader(self.trainer, _Batches(self.private), self.release_every)

    def predict_dataloader(self) -> DataLoader[Tensor]:
        """Batches of the classes to generate for: public."""
        assert self.trainer is not None
        classes = max(1, self.trainer.lightning_module.generator.n_classes)
        return DataLoader(torch.arange(self.n_synthetic) % classes, batch_size=500)  # type: ignore[arg-type]
