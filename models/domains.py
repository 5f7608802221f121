"""Data module and accuracy of the baselines of Table 1. NOT PRIVATE.

Both domains are as they are.

Digits: of MNIST, the training set as a source and the test set as a target, with pixels in [-1, 1],
as in the authors' code (arakotom/dp_swd at 97164ee). Of USPS, whose file in that code is not
available, a random 7,438 of all 9,298 images, enlarged from 16 x 16 to ``box`` pixels a side and
padded to 28 x 28. Other names are files of features, all records of which are used, with their
classes.

The target is also the test: the labels of its records measure the accuracy, and nothing else reads
them.
"""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpswd._files import write_json
from dpswd._validate import at_least
from dpswd.data import benchmark, data_root, read_public
from dpswd.data.features import is_feature_file, read_features
from dpswd.errors import InputError
from dpswd.lightning.adaptation_data import SourceLoader
from dpswd.records import Records
from dpswd.sampling import FixedSizeSampler

N_USPS = 7438  # images of USPS, as in appendix 8.5.2
BENCHMARKS = ("mnist", "fashion", "usps")

_SIDE = 28
_CHUNK = 2048  # records that are classified together, which bounds the memory
_CURVE_STRIDE = 5  # accuracies along a run are of every fifth record


class TargetLoader:
    """Endless loader of raw records of the target. NOT PRIVATE.

    Args:
        records: Records (N, ...).
        batch_size: Records of a batch.
        fresh: Whether every batch is a fresh uniform subset of fixed size, which the account of
            DP-DANN requires; otherwise batches are those of shuffled epochs, of which the last one
            is short, as in the code of Rakotomamonjy2021 for USPS-MNIST.
    """

    def __init__(self, records: Tensor, batch_size: int, *, fresh: bool = False) -> None:
        at_least(1, batch_size=batch_size)
        self.records = records
        self.batch_size = min(batch_size, len(records))
        self.fresh = fresh

    def __iter__(self) -> Iterator[Tensor]:
        n = len(self.records)
        while True:
            if self.fresh:
                epoch: Any = FixedSizeSampler(n, self.batch_size, n_steps=n)
            else:
                epoch = torch.randperm(n).split(self.batch_size)
            for indices in epoch:
                yield self.records[indices]


class Domains(L.LightningDataModule):
    """Pairs of batches of the source and the target. NOT PRIVATE.

    The batch of the source is labelled, that of the target is raw.

    Args:
        source: ``"mnist"``, ``"fashion"``, ``"usps"``, or a file of features: ``.npz``, ``.mat``,
            or ``.csv`` without a header and with the class last in each line.
        target: The same. Its classes are read for the accuracy.
        root: Directory of the data sets; ``DPSWD_DATA`` or ``./data`` if not given.
        batch_size: Records of a batch, of both domains.
        box: Side to which images of USPS are enlarged before they are padded.
        fresh: Whether batches of the target are fresh subsets (:class:`TargetLoader`).

    Raises:
        InputError: If a number is out of range, or the records cannot be read or do not fit.
    """

    def __init__(
        self,
        source: str,
        target: str,
        root: str | None = None,
        batch_size: int = 128,
        box: int = 20,
        fresh: bool = False,
    ) -> None:
        super().__init__()
        at_least(1, batch_size=batch_size, box=box)
        if box > _SIDE:
            raise InputError(f"Expected box <= {_SIDE}, the side of an image, got {box}; lower it.")
        self.source_name = source
        self.target_name = target
        self.root = root
        self.batch_size = batch_size
        self.box = box
        self.fresh = fresh
        self._domains: tuple[Records, Records] | None = None

    @property
    def source(self) -> Records:
        """Labelled records of the source."""
        return self._read()[0]

    @property
    def target(self) -> Records:
        """Records of the target, with the classes by which they are tested."""
        return self._read()[1]

    def _read(self) -> tuple[Records, Records]:
        """Return both domains, which are read at the first call."""
        if self._domains is None:
            source = self._read_one(self.source_name, is_source=True)
            target = self._read_one(self.target_name, is_source=False)
            if source.values.shape[1:] != target.values.shape[1:]:
                raise InputError(
                    f"Expected records of shape {tuple(source.values.shape[1:])} in "
                    f"{self.target_name}, as in the source, got {tuple(target.values.shape[1:])}."
                )
            self._domains = (source, target)
        return self._domains

    def _read_one(self, name: str, *, is_source: bool) -> Records:
        """Return the labelled records of a benchmark or a file."""
        if name == "usps":
            return usps(self.root, self.box)
        if name in BENCHMARKS:
            return _digits(name, self.root, is_source=is_source)
        return _features(name, self.root)

    def train_dataloader(self) -> dict[str, Any]:
        """Return endless loaders of both domains."""
        records = self.source
        return {
            "source": SourceLoader(records.values, records.labels, self.batch_size),
            "target": TargetLoader(self.target.values, self.batch_size, fresh=self.fresh),
        }


@lru_cache(maxsize=2)  # several runs of a process read the same records
def _digits(name: str, root: str | None, *, is_source: bool) -> Records:
    """Return training images of 28 x 28 as a source, test images as a target."""
    loaded = benchmark(name, root)
    records = loaded.train
    if not is_source:
        assert loaded.test is not None
        records = loaded.test
    return Records(2 * records.floats() - 1, records.labels)


@lru_cache(maxsize=2)
def usps(root: str | Path | None, box: int) -> Records:
    """Return 7,438 images of USPS, enlarged to ``box`` pixels a side and padded to 28."""
    loaded = benchmark("usps", root)
    assert loaded.test is not None
    images = torch.cat([loaded.train.floats(), loaded.test.floats()])
    labels = torch.cat([loaded.train.labels, loaded.test.labels])
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    index = order[:N_USPS]
    margin = (_SIDE - box) // 2
    rest = _SIDE - box - margin
    enlarged = F.interpolate(images[index], box, mode="bilinear")
    padded = F.pad(enlarged, (margin, rest, margin, rest))
    return Records(2 * padded - 1, labels[index])


def _features(name: str, root: str | None) -> Records:
    """Return the records of a file of features.

    Classes are in the order of their names.
    """
    path = Path(name)
    if not path.exists():
        path = data_root(root) / name
    if not is_feature_file(path):
        return read_public(path).train
    read = read_features(path, labelled=True)
    assert read.labels is not None
    _, numbers = np.unique(read.labels, return_inverse=True)
    return Records(torch.from_numpy(read.values).float(), torch.from_numpy(numbers).long())


class TargetAccuracy(L.Callback):
    """Writes ``target_accuracy.json``: accuracy on the target, in percent.

    The accuracy is that on all records of the target. The callback reads the labels of the target,
    which must therefore be public: no guarantee covers the file. ``curve`` has accuracies of
    every fifth record along the run.

    Args:
        n_points: Number of accuracies along the run.
    """

    def __init__(self, n_points: int = 5) -> None:
        at_least(1, n_points=n_points)
        self.n_points = n_points
        self.curve: list[float] = []

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start a new curve."""
        self.curve = []

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Measure at the end of each of ``n_points`` equal parts of the run."""
        step = trainer.global_step
        n_steps = max(1, trainer.max_steps)
        if step * self.n_points // n_steps > (step - 1) * self.n_points // n_steps:
            target = _target(trainer)
            part = target.select(torch.arange(0, len(target), _CURVE_STRIDE))
            self.curve.append(round(accuracy(pl_module, part), 2))

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Measure on all records, and write the file."""
        any_trainer: Any = trainer
        if any_trainer.fast_dev_run or not trainer.is_global_zero:
            return
        content = {
            "accuracy": round(accuracy(pl_module, _target(trainer)), 2),
            "curve": self.curve,
            "steps": trainer.global_step,
        }
        write_json(Path(trainer.default_root_dir) / "target_accuracy.json", content)


def _target(trainer: L.Trainer) -> Records:
    """Return the labelled target of the data module."""
    data = getattr(trainer, "datamodule", None)
    if not isinstance(data, Domains):
        raise InputError(
            f"Expected Domains as the data module for TargetAccuracy, got {type(data).__name__}; "
            "leave the callback out."
        )
    return data.target


@torch.no_grad()
def accuracy(module: nn.Module, records: Records) -> float:
    """Return the accuracy of a module of scores on labelled records, in percent."""
    was_training = module.training
    module.eval()
    scores = [module(chunk) for chunk in records.values.split(_CHUNK)]
    module.train(was_training)
    hits = torch.cat(scores).argmax(1) == records.labels
    return float(100 * hits.float().mean())
