"""Records in memory or on disk, and the base class of the data modules."""

import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dpswd._distributed import Processes
from dpswd._validate import at_least
from dpswd.errors import InputError
from dpswd.sampling import FixedSizeSampler, ReleaseLoader

__all__ = ["PrivateData", "Records", "Stored", "Unreadable"]

Unreadable = Literal["refuse", "zero"]  # what happens to a record that cannot be read


IN_MEMORY = 2**30  # bytes of records above which they stay on disk


def data_root(root: str | None) -> Path:
    """Return the directory of the data sets: the argument, else ``DPSWD_DATA``, else ``./data``."""
    return Path(root or os.environ.get("DPSWD_DATA") or "data")


class Stored:
    """Records ``(N, *sample_shape)`` on disk, of which an index reads some.

    Args:
        read: Maps record numbers (n,) to records ``(n, *sample_shape)``; raises InputError at one that is not valid.
        shape: ``(N, *sample_shape)``.
        dtype: uint8 or float32.
        index: Numbers (N,) of the records, ``None`` for all.
        key: Checksum of the records or of their names, equal on all ranks of a run.

    Example:
        >>> numbers = Stored(lambda index: index[:, None].float(), (1000, 1), torch.float32)
        >>> numbers[500:502].flatten(), len(numbers.select(torch.arange(3)))
        (tensor([500., 501.]), 3)
    """

    def __init__(
        self,
        read: Callable[[Tensor], Tensor],
        shape: tuple[int, ...],
        dtype: torch.dtype,
        index: Tensor | None = None,
        key: str = "",
    ) -> None:
        self.read, self.shape, self.dtype, self.index, self.key = read, shape, dtype, index, key

    def __len__(self) -> int:
        return self.shape[0]

    def _numbers(self, index: Tensor | slice) -> Tensor:
        if isinstance(index, Tensor) and self.index is None and index.dtype != torch.bool:
            return index
        return (torch.arange(len(self)) if self.index is None else self.index)[index]

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        return self.read(self._numbers(index))

    def select(self, index: Tensor) -> "Stored":
        """Return the records at ``index``, unread."""
        numbers = self._numbers(index)
        return Stored(self.read, (len(numbers), *self.shape[1:]), self.dtype, numbers, self.key)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def large(self) -> bool:
        """Whether the records need more than ``IN_MEMORY`` bytes."""
        return math.prod(self.shape) * self.dtype.itemsize > IN_MEMORY


@dataclass(frozen=True)
class Records:
    """Records ``(N, *sample_shape)`` in uint8 or float, and their classes (N,) in int64.

    Attributes:
        values: ``(N, *sample_shape)``, in memory or :class:`Stored`.
        labels: (N,).

    Raises:
        InputError: If there are no records, a label is missing or negative, or a record in memory is not finite.

    Example:
        >>> records = Records(torch.full((4, 1, 2, 2), 255, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]))
        >>> len(records), records.floats().max(), records.select(records.labels == 1).labels
        (4, tensor(1.), tensor([1, 1]))
    """

    values: Tensor | Stored
    labels: Tensor

    def __post_init__(self) -> None:
        if not len(self.values):
            raise InputError("Expected at least one record, got none; check the data directory.")
        if len(self.values) != len(self.labels):
            raise InputError(f"Expected a label per record, got {len(self.values)} and {len(self.labels)}.")
        if bool((self.labels < 0).any()):
            raise InputError("Expected labels of at least 0, got negative ones; number the classes from 0.")
        if isinstance(self.values, Tensor):
            finite_records(self.values, "refuse")

    def __len__(self) -> int:
        return len(self.values)

    def digest(self) -> str:
        """Return a hash of labels and of records, or of the key of those on disk, to compare several ranks. PRIVATE."""
        found = hashlib.blake2b(repr((tuple(self.values.shape), self.values.dtype)).encode())
        found.update(self.labels.contiguous().numpy().data)
        values = self.values
        found.update(values.key.encode() if isinstance(values, Stored) else values.cpu().contiguous().numpy().data)
        return found.hexdigest()

    def floats(self, index: Tensor | slice = slice(None)) -> Tensor:
        """Return records as float32; bytes become pixels in [0, 1]."""
        values = self.values[index]
        return values.to(torch.float32) / 255 if values.dtype == torch.uint8 else values.to(torch.float32)

    def select(self, index: Tensor) -> "Records":
        """Return the records at ``index``; those on disk stay there."""
        values = self.values.select(index) if isinstance(self.values, Stored) else self.values[index]
        return Records(values, self.labels[index])


def finite_records(values: Tensor, unreadable: Unreadable) -> Tensor:
    """Return records (n, ...), those with NaN or inf mapped to zeros if ``unreadable="zero"``.

    The map acts on each record by itself and costs no privacy (docs/theory/private-side.md, Proposition 22).

    Raises:
        InputError: If ``unreadable="refuse"`` and a record is not finite.
    """
    if not values.is_floating_point() or bool(torch.isfinite(values).all()):
        return values
    if unreadable == "refuse":
        raise InputError(
            "Expected finite records, got nan or inf; set unreadable=zero, which maps such a record to zeros. "
            "Dropping records instead makes their number depend on private values."
        )
    finite = torch.isfinite(values).flatten(1).all(1).reshape(-1, *[1] * (values.ndim - 1))
    return torch.where(finite, values, torch.zeros_like(values))


def held_out(n: int) -> int:
    """Return the number of records out of n that a test split holds out."""
    return n // 5 if n >= 5 else 0


def every_fifth(records: Records) -> tuple[Records, Records]:
    """Hold out every fifth record, by position, for testing."""
    index = torch.arange(len(records))
    return records.select(index[index % 5 != 4]), records.select(index[index % 5 == 4])


class _Batches(Dataset[Any]):
    """Batches of records and labels; of record numbers if ``in_parts``."""

    def __init__(self, records: Records, in_parts: bool) -> None:
        self.records, self.in_parts = records, in_parts

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__(torch.tensor([index]))

    def __getitems__(self, index: Tensor | list[int]) -> Any:
        index = torch.as_tensor(index)
        return index if self.in_parts else self.read(index)

    def read(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return self.records.floats(index), self.records.labels[index]


def whole_blocks(n_records: int, batch_size: int | None, n_quantiles: int | None) -> int:
    """Return the number of records in a release: ``batch_size``, or the largest multiple of ``n_quantiles``."""
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
    """Return a loader of one batch per training step, empty in steps without a release.

    Args:
        trainer: Its ``max_steps`` are the steps that the budget is planned over; its module holds the mechanism.
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
    """Base class of the data modules, which all take its arguments; a subclass implements :meth:`load`.

    Args:
        root: Directory of the data sets; ``DPSWD_DATA`` or ``./data`` if not given.
        batch_size: Number B of records in a release of a loss. ``None`` for the largest number that gives whole
            blocks; the records that are left out are drawn at random. Queries read all records.
        n_synthetic: Number of records that ``dpswd predict`` generates, spread evenly over the classes.

    Attributes:
        name: Name of the data set in reports.
        public_benchmark: Whether the records are public, so that exact statistics of them may be published.
        reference: Public vectors that look like the private ones up to an affine map, if there are any.
        release_every: Training steps per release, set by the module that is trained.
        in_parts: Whether the module that is trained reads the records itself; the only batch has their numbers.

    Raises:
        InputError: If a value is out of range.

    Example:
        >>> class Mine(PrivateData):
        ...     def load(self):
        ...         return Records(torch.rand(100, 3), torch.zeros(100, dtype=torch.int64)), None
        >>> Mine().public_facts(), Mine().release_size(n_quantiles=30)
        ((100, (3,), 0), 90)
    """

    name = "records"
    public_benchmark: bool = False
    reference: Tensor | None = None

    def __init__(self, root: str | None = None, batch_size: int | None = None, n_synthetic: int = 10_000) -> None:
        super().__init__()
        if batch_size is not None:
            at_least(1, batch_size=batch_size)
        at_least(1, n_synthetic=n_synthetic)
        self.root, self.batch_size, self.n_synthetic = root, batch_size, n_synthetic
        self.release_every, self.in_parts = 1, False
        self._splits: tuple[Records, Records | None] | None = None

    def load(self) -> tuple[Records, Records | None]:
        """Read (private records, held-out records or ``None``).

        Raises:
            InputError: If the data are missing or unreadable, or records differ in shape.
        """
        raise NotImplementedError

    @property
    def private(self) -> Records:
        """Records that the guarantee protects."""
        return self._loaded()[0]

    @property
    def test(self) -> Records | None:
        """Records for evaluation only, which the guarantee does not cover."""
        return self._loaded()[1]

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one record: public."""
        return tuple(self.private.values.shape[1:])

    @property
    def n_classes(self) -> int | None:
        """Number of classes, public: 0 for records without labels, ``None`` where the data do not state it."""
        return None

    @property
    def class_names(self) -> list[Any] | None:
        """Public names of the classes, in the order of their numbers, where the data have names."""
        return None

    def public_facts(self) -> tuple[int, tuple[int, ...], int]:
        """Return the number of private records, their shape and the number of classes (0 if none is stated).

        No record is read where the files state these numbers otherwise.
        """
        n = self._count() if self._splits is None else len(self.private)
        return n, self.sample_shape, self.n_classes or 0

    def _count(self) -> int:
        """Number of private records."""
        return len(self.private)

    def _loaded(self) -> tuple[Records, Records | None]:
        if self._splits is None:
            self._splits = self.load()
        return self._splits

    def setup(self, stage: str) -> None:
        """Read the records before a fit, and compare those of several ranks; prediction needs none.

        Raises:
            InputError: If a rank cannot read its records, or ranks see different ones.
        """
        if stage == "fit":
            processes = Processes()
            processes.run_on_all(self._loaded)
            if processes.world_size > 1 and len(set(processes.all_gather(self.private.digest()))) > 1:
                raise InputError(
                    "Expected the same list of records on every rank, got different ones; give every rank the same "
                    "records in the same order, of which it reads its share."
                )

    def release_size(self, n_quantiles: int | None) -> int:
        """Return the number of records in a release, a multiple of ``n_quantiles``."""
        return whole_blocks(len(self.private), self.batch_size, n_quantiles)

    def train_dataloader(self) -> DataLoader[Any]:
        """Return one batch per training step, empty in steps without a release; or one with all record numbers."""
        assert self.trainer is not None
        batches = _Batches(self.private, self.in_parts)
        if self.in_parts:
            return DataLoader(batches, batch_size=len(batches), collate_fn=lambda batch: batch)
        return release_loader(self.trainer, batches, self.release_every)

    def predict_dataloader(self) -> DataLoader[Tensor]:
        """Return batches of the classes to generate for."""
        assert self.trainer is not None
        module: Any = self.trainer.lightning_module
        classes = max(1, module.generator.n_classes)
        return DataLoader(torch.arange(self.n_synthetic) % classes, batch_size=500)
