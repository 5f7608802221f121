"""Pairs of a labelled public source and an unlabelled private target: digits, Office-Caltech-10, feature files.

The guarantee protects the target rows that train (``private``); their labels are never handed out. ``test`` is for
evaluation only: rows of their own for digits (inductive), the target rows themselves for features (transductive, as is
usual for these data sets and in Rakotomamonjy2021). Which pixels an image has after framing is a function of that image
alone (:func:`dpswd.adaptation.adapters.frame`).

Office-31 and VisDA-2017 come as features of a ResNet-50 that was trained on ImageNet (its 2,048 values before the last
layer), which whoever has the images computes with torchvision: one ``.npz`` per domain, ``features`` (N, 2048) and
``labels`` (N,).
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dpswd._files import write_json
from dpswd._validate import at_least, choice
from dpswd.adaptation.adapters import frame, jitter
from dpswd.data import MNIST, USPS, FeatureFile, Records
from dpswd.data.base import release_loader, whole_blocks
from dpswd.errors import InputError
from dpswd.sampling import ReleaseLoader

__all__ = [
    "AdaptationData",
    "DigitAdaptation",
    "FeatureAdaptation",
    "OfficeCaltech",
    "SourceBatches",
    "TargetAccuracy",
    "TargetRecords",
]

OFFICE = {"A": "amazon", "W": "webcam", "D": "dslr"}
_FIRST = 10_000  # images of MNIST that are used, as in the paper: the first ones


class TargetRecords(Dataset[Tensor]):
    """Private records (N, ...) without labels, batched by index tensor."""

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
    """Shuffled batches (records, classes) of public records; every iteration is one round, without the short last one.

    Args:
        records: The records.
        batch_size: Records per batch.
        augment: Applied to every batch of records.
    """

    def __init__(
        self, records: Records, batch_size: int = 128, augment: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        at_least(1, batch_size=batch_size)
        self.values, self.labels, self.augment = records.floats(), records.labels, augment
        self.batch_size = min(batch_size, len(records))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.labels))
        for part in order[: len(order) // self.batch_size * self.batch_size].split(self.batch_size):
            values = self.values[part]
            yield values if self.augment is None else self.augment(values), self.labels[part]


class AdaptationData(L.LightningDataModule):
    """Base of the pairs. A subclass loads them.

    Args:
        root: Directory of the data sets; ``DPSWD_DATA`` or ``./data`` if not given.
        batch_size: Private records in a release; all of them if not given, less the few that must go so that the
            blocks are whole (which ones is drawn at random, not looked at).
        source_batch: Public records in a step.
    """

    name = "adaptation"
    public_benchmark = False  # whether the target is public in truth, so that unnoised statistics of it do no harm

    def __init__(self, root: str | None = None, batch_size: int | None = None, source_batch: int = 128) -> None:
        super().__init__()
        if batch_size is not None:
            at_least(1, batch_size=batch_size)
        at_least(1, source_batch=source_batch)
        self.root, self.batch_size, self.source_batch = root, batch_size, source_batch
        self.release_every = 1
        self._parts: tuple[Records, Tensor, Records] | None = None

    def load(self) -> tuple[Records, Tensor, Records]:
        """Reads (labelled source, unlabelled private target (N, ...), labelled test records of the target)."""
        raise NotImplementedError

    def _loaded(self) -> tuple[Records, Tensor, Records]:
        if self._parts is None:
            source, target, test = self.load()
            if source.values.shape[1:] != target.shape[1:]:
                raise InputError(
                    f"Expected source and target of one shape, got {tuple(source.values.shape[1:])} and "
                    f"{tuple(target.shape[1:])}; use features of the same network."
                )
            self._parts = source, target, test
        return self._parts

    @property
    def source(self) -> Records:
        """Labelled public records."""
        return self._loaded()[0]

    @property
    def private(self) -> Tensor:
        """The target records (N, ...) that the guarantee protects."""
        return self._loaded()[1]

    @property
    def test(self) -> Records:
        """Labelled records of the target, for evaluation only."""
        return self._loaded()[2]

    def setup(self, stage: str) -> None:
        """Reads the records, before anything else happens."""
        if stage == "fit":
            self._loaded()

    def source_loader(self) -> SourceBatches:
        """Labelled public batches, for the module."""
        return SourceBatches(self.source, self.source_batch)

    def release_size(self, n_quantiles: int | None) -> int:
        """Returns the number of private records in a release, a multiple of ``n_quantiles``."""
        return whole_blocks(len(self.private), self.batch_size, n_quantiles)

    def train_dataloader(self) -> ReleaseLoader:
        """One batch per training step: private records where there is a release, none in between."""
        assert self.trainer is not None
        return release_loader(self.trainer, TargetRecords(self.private), self.release_every)

    def predict_dataloader(self) -> DataLoader[Any]:
        """The test records, without labels."""
        return DataLoader(self.test.floats(), batch_size=500)  # type: ignore[arg-type]


class DigitAdaptation(AdaptationData):
    """MNIST and USPS: 10,000 and 7,291 for training; the official test sets (10,000 and 2,007) for testing.

    Args:
        source: ``"MNIST"`` or ``"USPS"``, with labels.
        target: The other one; its training images are the private records.
        framing: ``"framed"``: each image upright, centred and of one size; ``"resized"``: scaled to 28 x 28, as it is.
        root: See :class:`AdaptationData`, like the rest.
        batch_size: Private records in a release.
        source_batch: Public records in a step.
    """

    public_benchmark = True

    def __init__(
        self,
        source: Literal["MNIST", "USPS"] = "MNIST",
        target: Literal["MNIST", "USPS"] = "USPS",
        framing: Literal["framed", "resized"] = "framed",
        root: str | None = None,
        batch_size: int | None = None,
        source_batch: int = 128,
    ) -> None:
        super().__init__(root, batch_size, source_batch)
        choice(("MNIST", "USPS"), source=source, target=target)
        choice(("framed", "resized"), framing=framing)
        if source == target:
            raise InputError(f"Expected two data sets, got {source} for both; adapt from one to the other.")
        self.names, self.framing = (source, target), framing
        self.name = f"{source}-{target}"

    def source_loader(self) -> SourceBatches:
        """Labelled public batches, each image moved, turned and thickened a little (:func:`dpswd.adaptation.adapters.jitter`)."""
        return SourceBatches(self.source, self.source_batch, jitter)

    def load(self) -> tuple[Records, Tensor, Records]:
        """See :class:`AdaptationData`."""
        makers: dict[str, Any] = {"MNIST": MNIST, "USPS": USPS}
        (source, _), (target, test) = (makers[name](self.root).load() for name in self.names)
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
    """Feature vectors of two domains, one ``.npz`` each (``features`` (N, d), ``labels`` (N,)); transductive.

    Args:
        source: File of the labelled domain, as given or below the root.
        target: File of the private domain, without labels.
        root: See :class:`AdaptationData`, like the rest.
        batch_size: Private records in a release.
        source_batch: Public records in a step.
        public_benchmark: Whether the target is public in truth, as Office-31 is. Only then are labels of it looked at,
            for nothing but :class:`TargetAccuracy`.
    """

    def __init__(
        self,
        source: str,
        target: str,
        root: str | None = None,
        batch_size: int | None = None,
        source_batch: int = 64,
        public_benchmark: bool = False,
    ) -> None:
        super().__init__(root, batch_size, source_batch)
        self.paths, self.public_benchmark = (source, target), public_benchmark
        self.name = f"{Path(source).stem}-{Path(target).stem}"

    def load(self) -> tuple[Records, Tensor, Records]:
        """See :class:`AdaptationData`."""
        source, _ = FeatureFile(self.paths[0], self.root, test_split=False).load()
        target, _ = FeatureFile(self.paths[1], self.root, test_split=False, labelled=self.public_benchmark).load()
        return source, target.floats(), target


class OfficeCaltech(FeatureAdaptation):
    """Office-Caltech-10, GoogLeNet features (1,024): Amazon 958, Webcam 295, DSLR 157 rows of 10 classes; transductive.

    Args:
        source: ``"A"``, ``"W"`` or ``"D"``.
        target: Another one: private.
        root: See :class:`AdaptationData`, like the rest.
        batch_size: Private records in a release.
        source_batch: Public records in a step.
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
    """Writes ``downstream.json`` at the end of a fit: accuracy on labelled test records of the target.

    Measured on records that the guarantee does not cover, and on the private records themselves (transductively) for
    public benchmarks only: an accuracy counts labels without noise. No part of a release; nothing is chosen by it.
    """

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Refuses to count labels of records that are private in earnest."""
        data: Any = trainer.datamodule
        if not data.public_benchmark and torch.equal(data.test.floats(), data.private):
            raise InputError(
                f"Expected no TargetAccuracy for {data.name}, got one: it tests on the private records, whose labels "
                "would leave without noise; take it out, or say public_benchmark: true if the target is no secret."
            )

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Tests, writes, prints."""
        data: Any = trainer.datamodule
        if trainer.fast_dev_run or not trainer.is_global_zero:
            return
        row = {"dataset": data.name, "classifier": "adapted", "train": "source and released target"}
        row |= {"accuracy": round(accuracy(pl_module, data.test), 2)}
        row |= {"n_train": len(data.source), "n_test": len(data.test)}
        write_json(Path(trainer.default_root_dir) / "downstream.json", {"rows": [row]})
        print(json.dumps([row]))


@torch.no_grad()
def accuracy(module: torch.nn.Module, records: Records) -> float:
    """Share of records, in percent, whose class a module predicts, in evaluation mode."""
    training = module.training
    module.eval()
    device = next(module.parameters()).device
    scores = torch.cat([module(part.to(device)).cpu() for part in records.floats().split(2000)])
    module.train(training)
    return float(100 * (scores.argmax(1) == records.labels).float().mean())
