"""LightningModules that train a generator by DP-SWD: on a sketch, or at every step, as in the paper."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, cast

import lightning as L
import torch
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

from dpswd._validate import at_least, positive
from dpswd.errors import InputError
from dpswd.features.frequencies import Frequencies
from dpswd.features.maps import FeatureMap
from dpswd.lightning.checkpoints import KeepsRelease
from dpswd.loss import DPSlicedWassersteinLoss
from dpswd.mechanism import ProjectionMechanism
from dpswd.networks.generator import Generator
from dpswd.networks.image_generators import ShuffleGenerator
from dpswd.records import PrivateBatch
from dpswd.row_copy import LabelledRows, RowFunction
from dpswd.sketch import MOST_FREQUENCIES, Sketch

__all__ = ["GeneratorModule", "SketchModule"]

_LABEL_NORM = 0.25  # of the one-hot class that labels="concat" appends to a row


class GeneratorModule(KeepsRelease):
    """Fits a generator to the noisy projections of private batches.

    A training step makes one release if its batch has records, and trains on the last release in any case. The callback
    :class:`~dpswd.PrivacyBudget` calibrates the noise.

    Labels are private. ``labels="blocks"`` releases the statistic of every class; ``"concat"`` appends the one-hot
    class, times 1/4, to the row before it is clipped; ``"none"`` ignores the classes.

    Args:
        generator: Maps latent codes and classes to records.
        features: Public map from private and generated records to the rows that are projected.
        batch_size: Number B of records in a release, that of the loader.
        n_projections: Number of directions; ``None`` for the dimension of the rows. With ``kind="orthogonal"``, the
            sensitivity of a multiple of that dimension is a constant.
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
        self.generator, self.features = generator, features
        self.labels, self.generated, self.lr = labels, generated, lr
        if labels != "none" and not generator.n_classes:
            raise InputError(
                "Expected a generator with n_classes for private labels, got 0; or set labels: none."
            )
        shapes = [tuple(each.sample_shape) for each in (generator, features)]
        if shapes[0] != shapes[1]:
            raise InputError(
                f"Expected one sample_shape for generator and features, got {shapes[0]} and {shapes[1]}."
            )
        dim = features.dim + (generator.n_classes if labels == "concat" else 0)
        self.criterion = DPSlicedWassersteinLoss(
            ProjectionMechanism(
                dim=dim,
                n_projections=n_projections or dim,
                batch_size=batch_size,
                statistic=statistic,
                n_quantiles=n_quantiles if statistic == "quantiles" else None,
                kind=kind,
                n_classes=generator.n_classes if labels == "blocks" else None,
            )
        )
        self._private_rows: RowFunction = (
            LabelledRows(self._labelled) if labels == "concat" else self.features
        )

    def _labelled(self, records: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Map records and classes to rows with the one-hot class appended."""
        one_hot = torch.nn.functional.one_hot(labels, self.generator.n_classes).to(records.dtype)
        return torch.cat([self.features(records), _LABEL_NORM * one_hot], dim=1), labels

    def on_fit_start(self) -> None:
        """Raise an InputError if the generator has other classes than the records."""
        records = getattr(getattr(self.trainer, "datamodule", None), "records", None)
        if (
            records is not None
            and self.labels != "none"
            and records.n_classes != self.generator.n_classes
        ):
            got = f"{self.generator.n_classes}; set model.generator.n_classes"
            raise InputError(
                f"Expected n_classes={records.n_classes} of the generator, as the data, got {got}."
            )

    def training_step(self, batch: PrivateBatch, batch_idx: int) -> Tensor:
        """Make a release if the batch has records; return the loss to the last release."""
        if len(batch):
            self.released = self.criterion.release(batch, rows=self._private_rows).to(self.device)
        if self.released is None:
            raise InputError(
                "Expected a release before the first free step, got none; resume from a checkpoint."
            )
        labels = torch.arange(self.generated, device=self.device) % max(1, self.generator.n_classes)
        made = self.generator(self.generator.latent(len(labels)), labels)
        rows = self._labelled(made, labels)[0] if self.labels == "concat" else self.features(made)
        loss = self.criterion.distance(
            self.released, rows, labels if self.labels == "blocks" else None
        )
        self.log("loss", loss, prog_bar=True, batch_size=1)  # a function of released values
        return loss

    def configure_optimizers(self) -> Any:
        """Return Adam with a cosine schedule down to a tenth of the learning rate."""
        return _optimisers(
            self, 0.5, lambda adam, n: CosineAnnealingLR(adam, n, eta_min=self.lr / 10)
        )


class SketchModule(L.LightningModule):
    """Trains a generator on a sketch: all releases are made at the start, every step is post-processing.

    Args:
        generator: Maps latent codes and classes to images. A :class:`~dpswd.networks.image_generators.ShuffleGenerator`
            determines the frequencies of the sketch, and starts at their released moments.
        pooled: Whether second moments are released for all classes together: for few records, or a small budget.
        batch_size: Generated records per step, spread evenly over the classes; at least two of each.
        lr: Largest learning rate of Adam: a linear warm-up over a twentieth of the steps, then a cosine to zero.

    Raises:
        InputError: If a number is out of range.

    Example:
        >>> module = SketchModule(ShuffleGenerator((1, 8, 8), n_classes=10))
        >>> [query.mechanism.name for query in module.sketch.queries()]
        ['sum of rows and squared norms', 'counts and sums of 10 classes', 'second moments of 10 classes']
    """

    def __init__(
        self, generator: Generator, pooled: bool = False, batch_size: int = 250, lr: float = 2e-3
    ) -> None:
        super().__init__()
        at_least(2 * max(1, generator.n_classes), batch_size=batch_size)
        positive(lr=lr)
        self.save_hyperparameters(ignore=["generator"])
        self.generator, self.batch_size, self.lr = generator, batch_size, lr
        if isinstance(generator, ShuffleGenerator):
            features = generator.features
        else:
            features = Frequencies(
                generator.sample_shape, min(MOST_FREQUENCIES, *generator.sample_shape[1:])
            )
        self.sketch = Sketch(features, generator.n_classes, pooled=pooled)

    def on_train_start(self) -> None:
        """Make the releases and start the generator at them, unless a checkpoint holds both."""
        if self.sketch.is_released:
            return
        self.sketch.make_releases(cast(Any, self.trainer).datamodule.records)
        if isinstance(self.generator, ShuffleGenerator):
            self.generator.start_at(*self.sketch.normal())

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the loss of generated records on the sketch."""
        labels = torch.arange(self.batch_size, device=self.device) % max(
            1, self.generator.n_classes
        )
        images = self.generator(self.generator.latent(len(labels)), labels)
        loss = self.sketch.loss(images, labels if self.generator.n_classes else None)
        self.log("loss", loss, prog_bar=True, batch_size=1)  # a function of released values
        return loss

    def configure_optimizers(self) -> Any:
        """Return Adam and its schedule."""
        return _optimisers(self, 0.9, lambda adam, n: LambdaLR(adam, partial(one_cycle, n_steps=n)))


def _optimisers(
    module: Any, beta: float, schedule: Callable[[torch.optim.Adam, int], Any]
) -> dict[str, Any]:
    """Return Adam of the generator, and its schedule over the steps of the run."""
    adam = torch.optim.Adam(module.generator.parameters(), lr=module.lr, betas=(beta, 0.99))
    scheduler = schedule(adam, max(1, int(module.trainer.estimated_stepping_batches)))
    return {"optimizer": adam, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def one_cycle(step: int, n_steps: int) -> float:
    """Return the factor on the learning rate: a linear warm-up over a twentieth of the steps, times half a cosine."""
    return (
        min(1.0, (step + 1) / max(1, n_steps // 20))
        * (1 + math.cos(math.pi * min(1.0, step / n_steps)))
        / 2
    )
