"""Lightning data module of private records: a handle, and the loader of its batches."""

from typing import Any

import lightning as L

from dpswd._validate import at_least
from dpswd.data import read
from dpswd.errors import InputError
from dpswd.records import PrivateRecords
from dpswd.sampling import ReleaseLoader

__all__ = ["PrivateDataModule"]


class PrivateDataModule(L.LightningDataModule):
    """Reads private records with :func:`dpswd.data.read` and loads their batches.

    Args:
        path: Folder, file, or name of a benchmark.
        batch_size: Number B of records in a release; that of the model where it is not given.
        n_releases: Number of releases of the run; ``trainer.max_steps / every`` where it is not given.
        every: Training steps per release.
        options: Those of :func:`dpswd.data.read`: ``root``, ``size``, ``channels``, ``classes``, ...

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
        at_least(1, every=every)
        self.path, self.batch_size, self.n_releases, self.every = (
            path,
            batch_size,
            n_releases,
            every,
        )
        self._options = options
        self._records: PrivateRecords | None = None

    @property
    def records(self) -> PrivateRecords:
        """The handle; the records are read at the first access."""
        if (
            self._records is None
        ):  # jsonargparse finds the options of read here, which it does not in a cached_property
            self._records = read(self.path, **self._options)
        return self._records

    def train_dataloader(self) -> ReleaseLoader:
        """Return one batch per planned release; for a module without a loss of batches, one and its training steps.

        Raises:
            InputError: If the number of releases follows from nothing.
        """
        criterion = getattr(getattr(self.trainer, "lightning_module", None), "criterion", None)
        size = self.batch_size or getattr(getattr(criterion, "mechanism", None), "batch_size", None)
        steps = -1 if self.trainer is None else self.trainer.max_steps
        n_releases, every = self.n_releases, self.every
        if n_releases is None:
            if steps < 1:
                raise InputError(
                    "Expected data.n_releases or trainer.max_steps, got neither; the budget needs a plan."
                )
            n_releases, every = (-(-steps // every), every) if size else (1, steps)
        return ReleaseLoader(
            self.records, batch_size=size or len(self.records), n_releases=n_releases, every=every
        )
