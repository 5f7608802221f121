"""LightningModules that train a generator by DP-SWD.

:class:`GeneratorModule` makes releases during the training, as in the paper; :class:`MomentModule`
makes all of them before the first step.
"""

import math
from functools import partial
from typing import Any, Literal, cast

import lightning as L
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler

from dpswd._validate import at_least, positive
from dpswd.errors import InputError
from dpswd.features.frequencies import Frequencies
from dpswd.features.maps import FeatureMap
from dpswd.lightning.checkpoints import KeepsRelease
from dpswd.loss import DPSlicedWassersteinLoss
from dpswd.mechanism import ProjectionMechanism
from dpswd.moments import MOST_FREQUENCIES, MomentMatcher
from dpswd.networks.generator import Generator
from dpswd.networks.image_generators import ShuffleGenerator
from dpswd.records import PrivateBatch
from dpswd.row_copy import LabelledRows, RowFunction

__all__ = ["GeneratorModule", "MomentModule"]

# Norm of the one-hot class that labels="concat" appends to a row, whose own norm is at most 1/2.
_LABEL_NORM = 0.25


class GeneratorModule(KeepsRelease):
    """Fits a generator to the noisy projections of private batches.

    A training step makes one release if its batch has records, and trains on the last release in
    any case. The callback :class:`~dpswd.PrivacyBudget` calibrates the noise.

    Labels are private. ``labels="blocks"`` releases the statistic of every class; ``"concat"``
    appends the one-hot class, times 1/4, to the row before it is clipped; ``"none"`` ignores the
    classes.

    Args:
        generator: Maps latent codes and classes to records.
        features: Public map from private and generated records to the rows that are projected.
        batch_size: Number B of records in a release, that of the loader.
        n_projections: Number of directions; ``None`` for the dimension of the rows. With
            ``kind="orthogonal"``, the sensitivity of a multiple of that dimension is a constant.
        n_quantiles: Block means per column (``statistic="quantiles"``).
        statistic: ``"quantiles"`` or ``"rows"``.
        kind: ``"orthogonal"`` or ``"iid"`` directions.
        labels: How classes enter a record.
        generated: Number of generated records per step, spread evenly over the classes.
        lr: Learning rate of Adam; it decays to a tenth over the run (cosine schedule).

    Raises:
        InputError: If a number is out of range, or generator and features do not fit.

    Example:
        >>> from dpswd.networks.image_generators import ConvGenerator
        >>> from dpswd.features.frequencies import DCT
        >>> module = GeneratorModule(ConvGenerator(), DCT((1, 28, 28), size=12), batch_size=60_000)
        >>> module.criterion.mechanism.description
        '144 orthogonal projections of 144-d rows, 100 block means each for each of 10 classes'
    """

    def __init__(
        self,
        generator: Generator,
        features: FeatureMap,
        batch_size: int,
        n_projections: int | None = None,
        n_quantiles: int | None = 100,
        statistic: Literal["rows", "quantiles"] = "quantiles",
        kind: Literal["iid", "orthogonal"] = "orthogonal",
        labels: Literal["blocks", "concat", "none"] = "blocks",
        generated: int = 500,
        lr: float = 2e-3,
    ) -> None:
        super().__init__()
        at_least(1, generated=generated)
        positive(lr=lr)
        self.save_hyperparameters(ignore=["generator", "features"])
        _check_parts(generator, features, has_labels=labels != "none")
        self.generator = generator
        self.features = features
        self.labels = labels
        self.generated = generated
        self.lr = lr
        dim = features.dim
        if labels == "concat":
            dim += generator.n_classes
        if statistic == "rows":
            n_quantiles = None
        n_classes = None
        if labels == "blocks":
            n_classes = generator.n_classes
        mechanism = ProjectionMechanism(
            dim=dim,
            n_projections=n_projections or dim,
            batch_size=batch_size,
            statistic=statistic,
            n_quantiles=n_quantiles,
            kind=kind,
            n_classes=n_classes,
        )
        self.criterion = DPSlicedWassersteinLoss(mechanism)
        self._private_rows: RowFunction
        if labels == "concat":
            self._private_rows = LabelledRows(self.rows_with_classes)
        else:
            self._private_rows = features

    def on_fit_start(self) -> None:
        """Raise an InputError if the generator has other classes than the records."""
        records = getattr(getattr(self.trainer, "datamodule", None), "records", None)
        if records is None or self.labels == "none":
            return
        if records.n_classes != self.generator.n_classes:
            raise InputError(
                f"Expected n_classes={records.n_classes} of the generator, as the data, "
                f"got {self.generator.n_classes}; set model.generator.n_classes."
            )

    def training_step(self, batch: PrivateBatch, batch_idx: int) -> Tensor:
        """Make a release if the batch has records; return the loss to the last release."""
        if len(batch):
            release = self.criterion.release(batch, rows=self._private_rows)
            self.released = release.to(self.device)
        if self.released is None:
            raise InputError(
                "Expected a release before the first free step, got none; resume from a checkpoint."
            )
        classes = _even_classes(self.generated, self.generator.n_classes, self.device)
        records = self.generator(self.generator.latent(len(classes)), classes)
        if self.labels == "concat":
            rows, _ = self.rows_with_classes(records, classes)
        else:
            rows = self.features(records)
        blocks = None
        if self.labels == "blocks":
            blocks = classes
        loss = self.criterion.distance(self.released, rows, blocks)
        self.log("loss", loss, prog_bar=True, batch_size=1)  # a function of released values
        return loss

    def rows_with_classes(self, records: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        """Append the one-hot class to the row of a record; return rows and classes.

        Args:
            records: Records (n, ...).
            classes: Their classes (n,).
        """
        rows = self.features(records)
        one_hot = torch.nn.functional.one_hot(classes, self.generator.n_classes)
        return torch.cat([rows, _LABEL_NORM * one_hot.to(records.dtype)], dim=1), classes

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Return Adam with a cosine schedule down to a tenth of the learning rate."""
        optimiser = torch.optim.Adam(self.generator.parameters(), lr=self.lr, betas=(0.5, 0.99))
        schedule = CosineAnnealingLR(optimiser, _n_steps(self), eta_min=self.lr / 10)
        return _with_schedule(optimiser, schedule)


class MomentModule(L.LightningModule):
    """Trains a generator to match released means and second moments, which is not DP-SWD.

    All releases are made at the start, and every step is post-processing.

    Args:
        generator: Maps latent codes and classes to images. A
            :class:`~dpswd.networks.image_generators.ShuffleGenerator` determines the frequencies of
            the moments, and starts at their released moments.
        pooled: Whether second moments are released for all classes together: for few records, or a
            small budget.
        batch_size: Generated records per step, spread evenly over the classes; at least two of
            each.
        lr: Largest learning rate of Adam: a linear warm-up over a twentieth of the steps, then a
            cosine to zero.

    Raises:
        InputError: If a number is out of range.

    Example:
        >>> module = MomentModule(ShuffleGenerator((1, 8, 8), n_classes=10))
        >>> for query in module.matcher.queries():
        ...     print(query.mechanism.name)
        sum of rows and squared norms
        counts and sums of 10 classes
        second moments of 10 classes
    """

    def __init__(
        self, generator: Generator, pooled: bool = False, batch_size: int = 250, lr: float = 2e-3
    ) -> None:
        super().__init__()
        at_least(2 * max(1, generator.n_classes), batch_size=batch_size)
        positive(lr=lr)
        self.save_hyperparameters(ignore=["generator"])
        self.generator = generator
        self.batch_size = batch_size
        self.lr = lr
        self.matcher = MomentMatcher(_frequencies_of(generator), generator.n_classes, pooled=pooled)

    def on_train_start(self) -> None:
        """Make the releases and start the generator at them.

        A resumed run has both from its checkpoint.
        """
        if self.matcher.is_released:
            return
        self.matcher.make_releases(cast(Any, self.trainer).datamodule.records)
        if isinstance(self.generator, ShuffleGenerator):
            means, covariances = self.matcher.normal()
            self.generator.start_at(means, covariances)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the loss of generated records on the released moments."""
        classes = _even_classes(self.batch_size, self.generator.n_classes, self.device)
        images = self.generator(self.generator.latent(len(classes)), classes)
        if self.generator.n_classes:
            loss = self.matcher.loss(images, classes)
        else:
            loss = self.matcher.loss(images, None)
        self.log("loss", loss, prog_bar=True, batch_size=1)  # a function of released values
        return loss

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Return Adam, and a schedule with a warm-up and a cosine."""
        optimiser = torch.optim.Adam(self.generator.parameters(), lr=self.lr, betas=(0.9, 0.99))
        factor = partial(one_cycle, n_steps=_n_steps(self))
        return _with_schedule(optimiser, LambdaLR(optimiser, factor))


def one_cycle(step: int, n_steps: int) -> float:
    """Return the factor on the learning rate at a step.

    It is a linear warm-up over a twentieth of the steps, times half a cosine.
    """
    warm_up = min(1.0, (step + 1) / max(1, n_steps // 20))
    progress = min(1.0, step / n_steps)
    return warm_up * (1 + math.cos(math.pi * progress)) / 2


def _check_parts(generator: Generator, features: FeatureMap, *, has_labels: bool) -> None:
    """Raise an InputError unless generator, features and private labels fit."""
    if has_labels and not generator.n_classes:
        raise InputError(
            "Expected a generator with n_classes for private labels, got 0; or set labels: none."
        )
    generated_shape = tuple(generator.sample_shape)
    mapped_shape = tuple(features.sample_shape)
    if generated_shape != mapped_shape:
        raise InputError(
            "Expected one sample_shape for generator and features, "
            f"got {generated_shape} and {mapped_shape}."
        )


def _frequencies_of(generator: Generator) -> FeatureMap:
    """Return the frequencies of a moment matcher: those of the generator, or the lowest ones."""
    if isinstance(generator, ShuffleGenerator):
        return generator.features
    sides = generator.sample_shape[1:]
    return Frequencies(generator.sample_shape, min(MOST_FREQUENCIES, *sides))


def _even_classes(n: int, n_classes: int, device: torch.device) -> Tensor:
    """Return classes (n,), of each equally many up to one; zeros without classes."""
    return torch.arange(n, device=device) % max(1, n_classes)


def _n_steps(module: L.LightningModule) -> int:
    """Return the number of training steps of a run."""
    return max(1, int(module.trainer.estimated_stepping_batches))


def _with_schedule(
    optimiser: torch.optim.Optimizer, schedule: LRScheduler
) -> OptimizerLRSchedulerConfig:
    """Return an optimiser whose learning rate changes at every step."""
    return {
        "optimizer": optimiser,
        "lr_scheduler": {"scheduler": schedule, "interval": "step"},
    }
