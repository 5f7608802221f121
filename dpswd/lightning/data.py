"""Lightning data module of private records: a handle and a loader of its batches."""

import math
from pathlib import Path
from typing import Any

import lightning as L

from dpswd._validate import at_least, stated_at_least
from dpswd.data import read
from dpswd.errors import InputError
from dpswd.lightning._plan import batches_per_step, max_steps_of, mechanism_of
from dpswd.records import PrivateRecords
from dpswd.sampling import ReleaseLoader

__all__ = ["PrivateDataModule"]

# Options from which the number of releases follows.
_PLAN = "data.n_releases or trainer.max_steps"


class PrivateDataModule(L.LightningDataModule):
    """Reads private records with :func:`dpswd.data.read` and loads their batches.

    Args:
        path: Folder, file, or name of a benchmark.
        batch_size: Number B of records in a release; that of the model where it is not given.
        n_releases: Number of releases of the run; ``trainer.max_steps / every`` if not given.
        every: Training steps per release.
        options: Those of :func:`dpswd.data.read`: ``root``, ``size``, ``channels``, ``classes`` and
            others.

    Raises:
        InputError: If a number is out of range or the records cannot be read.

    Example:
        >>> data = PrivateDataModule("digits", batch_size=100, n_releases=5)
        >>> data.records, len(data.train_dataloader())
        (PrivateRecords(1438 records of shape (1, 8, 8), n_classes=10), 5)
    """

    def __init__(
        self,
        path: str,
        batch_size: int | None = None,
        n_releases: int | None = None,
        every: int = 1,
        **options: Any,
    ) -> None:
        super().__init__()
        if not isinstance(path, str | Path):
            raise InputError(
                f"Expected path as a folder, a file or the name of a benchmark, got "
                f"{type(path).__name__}; save arrays by np.savez('records.npz', images=X, "
                "labels=y), and pass 'records.npz'."
            )
        at_least(1, every=every)
        stated_at_least(1, batch_size=batch_size, n_releases=n_releases)
        self.path = str(path)
        self.batch_size = batch_size
        self.n_releases = n_releases
        self.every = every
        self._options = options
        self._records: PrivateRecords | None = None

    @property
    def records(self) -> PrivateRecords:
        """The handle; the records are read at the first access."""
        # jsonargparse follows **options to read() here, which it does not in a cached_property.
        if self._records is None:
            self._records = read(self.path, **self._options)
        return self._records

    def train_dataloader(self) -> ReleaseLoader:
        """Return a loader of one batch per planned release.

        A module that makes its releases at the start, or by itself, gets one batch of all records,
        and empty batches for the other training steps. With ``accumulate_grad_batches=k`` a
        training step has k batches, of which one at most has records.

        Raises:
            InputError: If neither ``n_releases`` nor ``trainer.max_steps`` is given.
        """
        batch_size = self.batch_size
        mechanism = mechanism_of(self.trainer)
        if batch_size is None and mechanism is not None:
            batch_size = mechanism.batch_size
        module = getattr(self.trainer, "lightning_module", None)
        releases_once = getattr(module, "releases_once", False)
        if releases_once:
            n_releases = 1
            every = max_steps_of(self.trainer)
        elif self.n_releases is not None:
            n_releases = self.n_releases
            every = self.every
        elif batch_size:
            n_releases = math.ceil(max_steps_of(self.trainer, _PLAN) / self.every)
            every = self.every
        else:
            n_releases = 1
            every = max_steps_of(self.trainer, _PLAN)
        return ReleaseLoader(
            self.records,
            batch_size=batch_size or len(self.records),
            n_releases=n_releases,
            every=every * batches_per_step(self.trainer),
        )
