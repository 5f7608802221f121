"""Pairs of a labelled public source and an unlabelled private target: digits, Office-Caltech-10, feature files.

The guarantee protects the target rows that train (``private``); their labels are not used. ``test`` is for evaluation
only: separate rows for digits (inductive), the target rows themselves for public feature files (transductive, as in
Rakotomamonjy2021).

Office-31 and VisDA-2017 are read as features of a ResNet-50 trained on ImageNet (the 2,048 values before its last
layer, which torchvision computes from the images): one ``.npz`` per domain, ``features`` (N, 2048) and ``labels`` (N,).
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dpswd._validate import at_least, choice
from dpswd.adaptation.adapters import frame, jitter
from dpswd.data.base import Records, Unreadable, release_loader, whole_blocks
from dpswd.data.benchmarks import MNIST, USPS
from dpswd.data.features import FeatureFile
from dpswd.errors import InputError
from dpswd.generation.evaluation import write_evaluation
from dpswd.sampling import ReleaseLoader

__all__ = [
    "AdaptationData",
    "DigitAdaptation",
    "FeatureAdaptation",
    "OfficeCaltech",
    "SourceBatches",
    "TargetAccuracy",
    "TargetRecords",
    "accuracy",
]

OFFICE = {"A": "amazon", "W": "webcam", "D": "dslr"}
_FIRST = 10_000  # images of MNIST that are used: the first ones


class TargetRecords(Dataset[Tensor]):
    """Private records (N, ...) without labels, batched by an index tensor."""

    def __init__(self, records: Tensor) -> None:
        if not isinstance(records, Tensor):
            raise InputError(
                f"Expected target records as one tensor, got {type(records).__name__}; labels of the target are "
                "private and not used: leave them out."
            )
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Tensor:
        return self.records[index]

    def __getitems__(self, index: Tensor) -> Tensor:
        return self.records[index]


class SourceBatches:
    """Shuffled batches (records, classes) of public records, without the short last batch of a pass.

    Args:
        records: The records.
        batch_size: Records per batch.
        augment: Applied to the records of every batch.
    """

    def __init__(
        self, records: Records, batch_size: int = 128, augment: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        at_least(1, batch_size=batch_size)
        self.values, self.labels, self.augment = records.floats(), records.labels, augment
        self.batch_size = min(batch_size, len(records))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.labels))[: len(self.labels) // self.batch_size * self.batch_size]
        for part in order.split(self.batch_size):
            values = self.values[part]
            yield values if self.augment is None else self.augment(values), self.labels[part]


class AdaptationData(L.LightningDataModule):
    """Base class of the pairs; a subclass implements :meth:`load`.

    Args:
        root: Directory of the data sets; ``DPSWD_DATA`` or ``./data`` if not given.
        batch_size: Private records in a release. ``None`` for the largest number that gives whole blocks; the records
            that are left out are drawn at random.
        source_batch: Public records in a step.

    Attributes:
        public_benchmark: Whether the target is public, so that exact statistics of it may be published.
    """

    name = "adaptation"
    public_benchmark: bool = False

    def __init__(self, root: str | None = None, batch_size: int | None = None, source_batch: int = 128) -> None:
        super().__init__()
        if batch_size is not None:
            at_least(1, batch_size=batch_size)
        at_least(1, source_batch=source_batch)
        self.root, self.batch_size, self.source_batch = root, batch_size, source_batch
        self.release_every = 1
        self._parts: tuple[Records, Tensor, Records | None] | None = None

    def load(self) -> tuple[Records, Tensor, Records | None]:
        """Reads (labelled source, unlabelled private target (N, ...), labelled test records of the target)."""
        raise NotImplementedError

    def _loaded(self) -> tuple[Records, Tensor, Records | None]:
        if self._parts is None:
            source, target, test = self.load()
            for records in (target, *([] if test is None else [test.values])):
                if source.values.shape[1:] != records.shape[1:]:
                    raise InputError(
                        f"Expected source and target of one shape, got {tuple(source.values.shape[1:])} and "
                        f"{tuple(records.shape[1:])}; use features of the same network."
                    )
            self._parts = source, target, test
        return self._parts

    @property
    def source(self) -> Records:
        """Labelled public records."""
        return self._loaded()[0]

    @property
    def private(self) -> Tensor:
        """Target records (N, ...) that the guarantee protects."""
        return self._loaded()[1]

    @property
    def test(self) -> Records | None:
        """Labelled records of the target domain, for evaluation only."""
        return self._loaded()[2]

    def setup(self, stage: str) -> None:
        """Reads the records before a fit."""
        if stage == "fit":
            self._loaded()

    def source_loader(self) -> SourceBatches:
        """Returns labelled public batches."""
        return SourceBatches(self.source, self.source_batch)

    def release_size(self, n_quantiles: int | None) -> int:
        """Returns the number of private records in a release, a multiple of ``n_quantiles``."""
        return whole_blocks(len(self.private), self.batch_size, n_quantiles)

    def train_dataloader(self) -> ReleaseLoader:
        """Returns one batch per training step, empty in steps without a release."""
        assert self.trainer is not None
        return release_loader(self.trainer, TargetRecords(self.private), self.release_every)

    def predict_dataloader(self) -> DataLoader[Any]:
        """Returns the test records without labels, or the private records if none were given."""
        records = self.private if self.test is None else self.test.floats()
        return DataLoader(records, batch_size=500)  # type: ignore[arg-type]


class DigitAdaptation(AdaptationData):
    """MNIST and USPS: 10,000 and 7,291 records for training, 10,000 and 2,007 of the official test sets for testing.

    The paper has other sizes: 60,000 MNIST and 7,438 USPS images, and MNIST's test set as a target.

    Args:
        source: ``"MNIST"`` or ``"USPS"``, with labels.
        target: The other one; its training images are the private records.
        framing: ``"framed"`` makes each image upright, centred and of one size
            (:func:`dpswd.adaptation.adapters.frame`); ``"resized"`` scales it to 28 x 28.
        root: See :class:`AdaptationData`.
        batch_size: See :class:`AdaptationData`.
        source_batch: See :class:`AdaptationData`.
        public_benchmark: States whether the target is public; by the checksums of its files if not given.
    """

    def __init__(
        self,
        source: Literal["MNIST", "USPS"] = "MNIST",
        target: Literal["MNIST", "USPS"] = "USPS",
        framing: Literal["framed", "resized"] = "framed",
        root: str | None = None,
        batch_size: int | None = None,
        source_batch: int = 128,
        public_benchmark: bool | None = None,
    ) -> None:
        super().__init__(root, batch_size, source_batch)
        choice(("MNIST", "USPS"), source=source, target=target)
        choice(("framed", "resized"), framing=framing)
        if source == target:
            raise InputError(f"Expected two data sets, got {source} for both; adapt from one to the other.")
        makers: dict[str, Any] = {"MNIST": MNIST, "USPS": USPS}
        self._source, self._target = (
            makers[name](root, public_benchmark=public_benchmark) for name in (source, target)
        )
        self.framing, self.name = framing, f"{source}-{target}"

    @property
    def public_benchmark(self) -> bool:  # type: ignore[override]
        """Whether the target is public."""
        return bool(self._target.public_benchmark)

    def source_loader(self) -> SourceBatches:
        """Returns labelled public batches, augmented by :func:`dpswd.adaptation.adapters.jitter`."""
        return SourceBatches(self.source, self.source_batch, jitter)

    def load(self) -> tuple[Records, Tensor, Records | None]:
        """See :class:`AdaptationData`."""
        (source, _), (target, test) = self._source.load(), self._target.load()
        assert test is not None
        return self._framed(source, _FIRST), self._framed(target, _FIRST).values, self._framed(test)

    def _framed(self, records: Records, limit: int | None = None) -> Records:
        images = records.floats(slice(limit))
        if self.framing == "framed":
            images = torch.cat([frame(part) for part in images.split(2000)])
        elif images.shape[-1] != 28:
            images = torch.nn.functional.interpolate(images, size=28, mode="bilinear", antialias=True)
        return Records(images, records.labels[:limit])


class FeatureAdaptation(AdaptationData):
    """Feature vectors of two domains, one ``.npz`` each: ``features`` (N, d), and ``labels`` (N,) for the source.

    Args:
        source: File of the labelled domain, relative to the working directory or to the root.
        target: File of the private domain. Its labels are ignored unless it is public.
        root: See :class:`AdaptationData`.
        batch_size: See :class:`AdaptationData`.
        source_batch: See :class:`AdaptationData`.
        test: File of labelled records of the target domain that are not in ``target``.
        public_benchmark: States that the target is public, as Office-31 is. Its labels are then read and, without
            ``test``, it is the test set too.
        unreadable: ``"zero"`` maps a target row with NaN or inf to zeros; ``"refuse"`` raises.
    """

    def __init__(
        self,
        source: str,
        target: str,
        root: str | None = None,
        batch_size: int | None = None,
        source_batch: int = 64,
        test: str | None = None,
        public_benchmark: bool = False,
        unreadable: Unreadable = "refuse",
    ) -> None:
        super().__init__(root, batch_size, source_batch)
        self.paths, self.public_benchmark, self.unreadable = (source, target, test), public_benchmark, unreadable
        self.name = f"{Path(source).stem}-{Path(target).stem}"

    def load(self) -> tuple[Records, Tensor, Records | None]:
        """See :class:`AdaptationData`."""
        source, target, test = self.paths
        labelled = self.public_benchmark and test is None
        rows = self._file(target, labelled=labelled, unreadable=self.unreadable)
        if test is not None:
            return self._file(source, labelled=True), rows.floats(), self._file(test, labelled=True)
        return self._file(source, labelled=True), rows.floats(), rows if labelled else None

    def _file(self, path: str, **options: Any) -> Records:
        return FeatureFile(path, self.root, test_split=False, **options).private


class OfficeCaltech(FeatureAdaptation):
    """Office-Caltech-10, GoogLeNet features (1,024): Amazon 958, Webcam 295, DSLR 157 rows of 10 classes; public.

    Args:
        source: ``"A"``, ``"W"`` or ``"D"``.
        target: Another one, which plays the private domain.
        root: See :class:`AdaptationData`.
        batch_size: See :class:`AdaptationData`.
        source_batch: See :class:`AdaptationData`.
    """

    def __init__(
        self,
        source: Literal["A", "W", "D"] = "A",
        target: Literal["A", "W", "D"] = "W",
        root: str | None = None,
        batch_size: int | None = None,
        source_batch: int = 64,
    ) -> None:
        choice(tuple(OFFICE), source=source, target=target)
        if source == target:
            raise InputError(f"Expected two domains, got {source} for both; adapt from one to the other.")
        files = [f"office_caltech10/{OFFICE[letter]}_GoogleNet1024.npz" for letter in (source, target)]
        super().__init__(files[0], files[1], root, batch_size, source_batch, public_benchmark=True)
        self.name = f"{source}-{target}"


class TargetAccuracy(L.Callback):
    """Writes ``evaluation.json`` at the end of a fit: accuracy on labelled test records of the target.

    An accuracy is an exact statistic of its records, which no budget covers. It is measured on public benchmarks, or
    where the user states that the test records are public and disjoint from the private ones.

    Args:
        test_is_public: States that the test records are public and that none of them is among the private records.
    """

    def __init__(self, test_is_public: bool = False) -> None:
        self.test_is_public = test_is_public

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Refuses test records that are missing or not stated to be public.

        Raises:
            InputError: See above.
        """
        data: AdaptationData = trainer.datamodule  # type: ignore[attr-defined]
        if not data.public_benchmark and not self.test_is_public:
            raise InputError(
                f"Expected test records of {data.name} that are public, got no statement; set test_is_public: true of "
                "TargetAccuracy if they are public and disjoint from the private records, or remove the callback."
            )
        if data.test is None:
            raise InputError(f"Expected test records for {data.name}, got none; set data.test.")

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Measures the accuracy and writes it."""
        data: AdaptationData = trainer.datamodule  # type: ignore[attr-defined]
        if trainer.fast_dev_run or not trainer.is_global_zero:  # type: ignore[attr-defined]
            return
        assert data.test is not None
        row = {
            "dataset": data.name,
            "classifier": "adapted",
            "train": "source and released target",
            "accuracy": round(accuracy(pl_module, data.test), 2),
            "n_train": len(data.source),
            "n_test": len(data.test),
        }
        write_evaluation(trainer.default_root_dir, [row], public=True)


@torch.no_grad()
def accuracy(module: torch.nn.Module, records: Records) -> float:
    """Returns the accuracy of a module's predictions in percent, in evaluation mode."""
    training = module.training
    module.eval()
    device = next(module.parameters()).device
    parts = records.floats().split(2000)
    scores = torch.cat([module(part.to(device)).cpu() for part in parts])
    module.train(training)
    return float(100 * (scores.argmax(1) == records.labels).float().mean())
