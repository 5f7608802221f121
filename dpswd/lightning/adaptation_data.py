"""Lightning data module of adaptation: labelled public source, private target."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import lightning as L
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from dpswd._labels import MIN_CLASSES
from dpswd._layout import Array
from dpswd._validate import at_least, stated_at_least, tensor
from dpswd.adaptation.reading import (
    Source,
    Target,
    read_records,
    read_source,
    refuse_common_records,
)
from dpswd.data.features import read_features
from dpswd.data.reading import find_path
from dpswd.errors import InputError
from dpswd.features.jitter import N_CODES, check_amounts, jitter
from dpswd.lightning._plan import batches_per_step, max_steps_of, mechanism_of
from dpswd.records import PrivateRecords
from dpswd.sampling import ReleaseLoader
from dpswd.units import Units

__all__ = ["AdaptationData", "SourceLoader"]

# Part of the source records that is kept for validation.
_VALIDATION_PART = 0.1
_VALIDATION_BATCH = 1000
# One source record to train on, and one for validation.
_LEAST_SOURCE = 2


class SourceLoader:
    """Endless loader of random batches of labelled public records, in shuffled epochs.

    Args:
        records: Records (n, ...) in float32.
        classes: Numbers (n,) of their classes.
        batch_size: Records of a batch; all of them where there are fewer.
        augment: Jitter of images: ``shift``, ``rotation``, ``zoom``, ``shear`` and ``elastic``, as
            in :func:`dpswd.features.jitter.jitter`.

    Raises:
        InputError: If a number is out of range, records or classes are not tensors, or the classes
            are no whole numbers.

    Example:
        >>> loader = SourceLoader(torch.rand(10, 3), torch.arange(10) % 2, batch_size=4)
        >>> records, classes = next(iter(loader))
        >>> records.shape, classes.shape
        (torch.Size([4, 3]), torch.Size([4]))
    """

    def __init__(
        self,
        records: Tensor,
        classes: Tensor,
        batch_size: int,
        augment: dict[str, float] | None = None,
    ) -> None:
        at_least(1, batch_size=batch_size)
        _check_source(records, classes)
        check_amounts(augment or {}, tuple(records.shape[1:]))
        check_classes(classes)
        self.records = records
        self.classes = classes
        self.batch_size = min(batch_size, len(records))
        self.augment: dict[str, Any] = dict(augment or {})

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        n_used = len(self.records) // self.batch_size * self.batch_size
        while True:
            order = torch.randperm(len(self.records))[:n_used]
            for indices in order.split(self.batch_size):
                yield self._augmented(self.records[indices]), self.classes[indices]

    def _augmented(self, records: Tensor) -> Tensor:
        """Return images after a random jitter; other records as they are."""
        if not any(self.augment.values()):
            return records
        codes = torch.randn(len(records), N_CODES)
        return jitter(records, codes, **self.augment)


def _check_source(records: Any, classes: Any) -> None:
    """Raise an InputError unless a source is of tensors, not of a handle."""
    if isinstance(records, PrivateRecords):
        raise InputError(
            "Expected records of a public source, got PrivateRecords; pass public records as a "
            "tensor, and private ones by ReleaseLoader as the target."
        )
    tensor(records=records, classes=classes)


def check_classes(classes: Tensor) -> None:
    """Refuse classes of a public source that are no whole numbers (n,)."""
    if classes.dim() != 1 or classes.is_floating_point():
        raise InputError(
            "Expected classes of the source as whole numbers (n,), got "
            f"{str(classes.dtype).removeprefix('torch.')} of shape {tuple(classes.shape)}; pass a "
            "number of type torch.long for each record."
        )


class AdaptationData(L.LightningDataModule):
    """Pairs of a batch of a labelled public source and a batch of a private target.

    A batch is a dictionary: ``source`` has records and numbers of classes, ``target`` is a
    :class:`~dpswd.PrivateBatch`. The labels of the target are never read. A tenth of the source is
    kept for validation.

    Args:
        source: Labelled public records: a folder, a file, or the name of a benchmark, as in
            :func:`dpswd.data.read`; also files of features.
        target: Private records, as ``source``. Images are scaled to the size of the source, each by
            itself, and columns of tables are matched by name.
        size: Side to which images of the source are scaled; ``None`` for the one that they have.
        channels: Channels of images of folders.
        label_column: Column of the classes in ``.csv`` files with a header.
        features: Whether ``.csv`` files are files of features: no header, and the class last in
            each line (:mod:`dpswd.data.features`). ``.mat`` files always are.
        root: Directory of the data sets; ``DPSWD_DATA`` or ``./data`` if not given.
        unit: What names the person of each target record, as in :func:`dpswd.data.read`.
        per_unit: Number of records of a person that enter at most.
        unreadable: ``"zero"`` maps an unreadable record to zeros; ``"refuse"`` raises.
        batch_size: Source records of a batch.
        release_size: Target records of a release, rounded down to a multiple of the module's
            blocks; ``None`` for as many as the blocks can hold of all records. It must agree with
            a ``batch_size`` of the module.
        n_releases: Number of releases, spread evenly over the steps.
        first_release: Training steps on the source alone before the first release.
        augment: Jitter of source images, as in :class:`SourceLoader`.
        n_source: Number of source records that are used, at least 2, chosen at random; ``None``
            for all.
        n_target: Number of target records, of persons where ``unit`` names them: the first ones,
            which is a public rule; ``None`` for all.

    Raises:
        InputError: If a number is out of range, or the records cannot be read or do not fit.

    Example:
        >>> data = AdaptationData("digits", "digits", batch_size=64)
        >>> data.sample_shape, data.records
        ((1, 8, 8), PrivateRecords(1438 records of shape (1, 8, 8)))
    """

    validates_on_public = True  # on the part of the source that is kept

    def __init__(
        self,
        source: str,
        target: str,
        size: int | None = None,
        channels: int | None = None,
        label_column: str | None = None,
        features: bool = False,
        root: str | None = None,
        unit: str | None = None,
        per_unit: int = 1,
        unreadable: str = "refuse",
        batch_size: int = 128,
        release_size: int | None = None,
        n_releases: int = 1,
        first_release: int = 0,
        augment: dict[str, float] | None = None,
        n_source: int | None = None,
        n_target: int | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("source", source), ("target", target)):
            if not isinstance(value, str | Path):
                raise InputError(
                    f"Expected {name} as a folder, a file or the name of a benchmark, got "
                    f"{type(value).__name__}; for arrays, pass the trainer a dictionary: source="
                    "SourceLoader(X, y, batch_size=128), target=ReleaseLoader(PrivateRecords(X), "
                    "...), and give AdaptationModule batch_size, adapter and space."
                )
        at_least(1, batch_size=batch_size, n_releases=n_releases, per_unit=per_unit)
        at_least(0, first_release=first_release)
        stated_at_least(1, release_size=release_size, n_target=n_target)
        refuse_common_records(source, target, root)
        stated_at_least(_LEAST_SOURCE, n_source=n_source)
        check_amounts(augment or {})
        self.source_name = str(source)
        self.target_name = str(target)
        self.batch_size = batch_size
        self.release_size = release_size
        self.n_releases = n_releases
        self.first_release = first_release
        self.augment = augment
        self.n_source = n_source
        self.n_target = n_target
        self.per_unit = per_unit
        self.has_features = features
        self._source_options: dict[str, Any] = {
            "size": size,
            "channels": channels,
            "target": label_column,
            "root": root,
            "unreadable": unreadable,
        }
        self._target_options: dict[str, Any] = {
            "target": label_column,
            "root": root,
            "unit": unit,
            "per_unit": per_unit,
            "unreadable": unreadable,
        }
        self._source: _Split | None = None
        self._records: PrivateRecords | None = None

    # Public facts and the handle

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of a record, that of the source."""
        return tuple(self._read_source().train[0].shape[1:])

    @property
    def class_names(self) -> Array:
        """Names (C,) of the classes of the source."""
        return self._read_source().class_names

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the columns of a table."""
        return self._read_source().columns

    @property
    def source_records(self) -> Tensor:
        """Source records (n, ...) that are trained on."""
        return self._read_source().train[0]

    @property
    def records(self) -> PrivateRecords:
        """The handle of the target; the records are read at the first access."""
        if self._records is None:
            self._records = self._read_target()
        return self._records

    def _read_source(self) -> "_Split":
        """Return the source, which is read at the first call."""
        if self._source is None:
            path = self._feature_path(self.source_name)
            if path is None:
                source = read_source(self.source_name, **self._source_options)
            else:
                unreadable = self._source_options["unreadable"]
                file = read_features(path, labelled=True, unreadable=unreadable)
                source = Source(file.values, cast(Array, file.labels), None)
            self._source = _Split.of(source, self.n_source)
        return self._source

    def _feature_path(self, name: str) -> Path | None:
        """Return the path of a file of features; ``None`` for other data."""
        path = find_path(name, self._source_options["root"])
        if path is None or not path.is_file():
            return None
        suffix = path.suffix.lower()
        if suffix == ".mat" or (suffix == ".csv" and self.has_features):
            return path
        return None

    def _read_target(self) -> PrivateRecords:
        """Read the target in the shape of the source; its labels are left out."""
        path = self._feature_path(self.target_name)
        if path is None:
            target = read_records(
                self.target_name, self.sample_shape, self.columns, **self._target_options
            )
        else:
            target = self._read_target_features(path)
        values = torch.from_numpy(target.records)
        units = None
        if target.unit_names is None:
            values = values[: self.n_target]
        else:
            units = Units.draw(target.unit_names, self.per_unit).first(self.n_target)
        return PrivateRecords.from_values(values, None, name="target", units=units)

    def _read_target_features(self, path: Path) -> Target:
        """Read a target from a file of features."""
        if self._target_options["unit"] is not None:
            raise InputError(
                f"Expected no data.unit for {path.name}, a file of features without names of "
                "persons, got one; pass an .npz file with an array that names them."
            )
        unreadable = self._target_options["unreadable"]
        values = read_features(path, labelled=False, unreadable=unreadable).values
        if values.shape[1:] != self.sample_shape:
            raise InputError(
                f"Expected records of shape {self.sample_shape} in {self.target_name}, as in the "
                f"source, got {values.shape[1:]}."
            )
        return Target(values, ())

    # Loaders

    def train_dataloader(self) -> dict[str, Any]:
        """Return the loaders of both domains.

        Raises:
            InputError: If the trainer has no ``max_steps``, over which the releases are spread, or
                if ``release_size`` is not that of the module.
        """
        split = self._read_source()
        batch_size = self._release_size()
        max_steps = max_steps_of(self.trainer)
        per_step = batches_per_step(self.trainer)
        n_steps = max_steps - self.first_release
        if n_steps < self.n_releases:
            raise InputError(
                f"Expected trainer.max_steps >= {self.first_release + self.n_releases}, a step for "
                f"each release after data.first_release, got {max_steps}."
            )
        return {
            "source": SourceLoader(*split.train, self.batch_size, self.augment),
            "target": ReleaseLoader(
                self.records,
                batch_size=batch_size,
                n_releases=self.n_releases,
                every=math.ceil(n_steps / self.n_releases) * per_step,
                after=self.first_release * per_step,
            ),
        }

    def val_dataloader(self) -> DataLoader[Any]:
        """Return a loader of the source records that are kept for validation."""
        validation = TensorDataset(*self._read_source().validation)
        return DataLoader(validation, batch_size=_VALIDATION_BATCH)

    def _release_size(self) -> int:
        """Return the number of records in a release, which is that of the module."""
        n_records = len(self.records)
        if self.release_size is not None and self.release_size > n_records:
            raise InputError(
                f"Expected data.release_size <= {n_records}, the number of target records, got "
                f"{self.release_size}."
            )
        mechanism = mechanism_of(self.trainer)
        if mechanism is None:
            return self.release_size or n_records
        if self.release_size is not None:
            remainder = self.release_size % (mechanism.n_quantiles or 1)
            if self.release_size - remainder != mechanism.batch_size:
                raise InputError(
                    f"Expected data.release_size={mechanism.batch_size}, the records of a release "
                    f"of the module, got {self.release_size}; leave it out, or batch_size of the "
                    "module."
                )
        return mechanism.batch_size


class _Split:
    """Public source records, of which a part is kept for validation.

    Attributes:
        train: Records (n, ...) in float32 and numbers (n,) of their classes.
        validation: Those that are kept.
        class_names: Names (C,) of the classes.
        columns: Names of the columns of a table.
    """

    def __init__(
        self,
        train: tuple[Tensor, Tensor],
        validation: tuple[Tensor, Tensor],
        class_names: Array,
        columns: tuple[str, ...] | None,
    ) -> None:
        self.train = train
        self.validation = validation
        self.class_names = class_names
        self.columns = columns

    @classmethod
    def of(cls, source: Source, limit: int | None) -> "_Split":
        """Split a source at random, by a fixed seed.

        Args:
            source: The source.
            limit: Most records that are used; ``None`` for all.

        Raises:
            InputError: If all records are of one class.
        """
        class_names, numbers = np.unique(source.labels, return_inverse=True)
        if len(class_names) < MIN_CLASSES:
            raise InputError(
                f"Expected source records of at least {MIN_CLASSES} classes, got "
                f"{len(source.labels)} of one class; pass records of all classes."
            )
        records = torch.from_numpy(source.records).float()
        classes = torch.from_numpy(numbers).long()
        order = torch.randperm(len(records), generator=torch.Generator().manual_seed(0))
        order = order[:limit]
        n_validation = max(1, round(_VALIDATION_PART * len(order)))
        validation = order[:n_validation]
        train = order[n_validation:]
        return cls(
            (records[train], classes[train]),
            (records[validation], classes[validation]),
            class_names,
            source.columns,
        )
