"""LightningModule that trains a generator on releases of private records."""

from typing import Any, Literal, cast

import torch
from torch import Tensor

from dpswd._validate import at_least, positive
from dpswd.errors import InputError
from dpswd.generation.features import FeatureMap, check_rowwise
from dpswd.generation.generators import Generator
from dpswd.generation.rows import private_rows
from dpswd.loss import DPSlicedWassersteinLoss, Release
from dpswd.mechanism import ProjectionMechanism
from dpswd.training.checkpoints import KeepsRelease

__all__ = ["GeneratorModule"]


class GeneratorModule(KeepsRelease):
    """Fits a generator to the noisy projections of private records.

    A training step makes one release if its batch holds private records, and trains on the last release in any case.
    One-shot training is the case ``release_every=0`` with all records in one batch. The callback
    :class:`dpswd.training.callback.PrivacyBudget` calibrates the noise.

    Labels are private. ``labels="blocks"`` releases the statistic of every class; ``"concat"`` appends the one-hot
    class, times ``label_scale``, to the row before it is clipped; ``"none"`` ignores the classes.

    Args:
        generator: Maps latent codes and classes to records.
        features: Public map from private and generated records to the rows that are projected.
        n_projections: Number of directions; ``None`` for the dimension of the rows. With ``kind="orthogonal"``, the
            sensitivity of a multiple of that dimension is a constant.
        n_quantiles: Block means per column (``statistic="quantiles"``).
        statistic: ``"quantiles"`` or ``"rows"``.
        kind: ``"orthogonal"`` or ``"iid"`` directions.
        bound: ``"exact"``, ``"bernstein"`` or ``"clt"``.
        labels: How classes enter a record.
        label_scale: Norm of the class part for ``labels="concat"``.
        release_every: Training steps per release. 0 for one release in the whole run.
        generated: Number of generated records per step, spread evenly over the classes.
        lr: Learning rate of Adam; it decays to a tenth over the run (cosine schedule).
        noise_seed: For tests only: NOT PRIVATE.

    Raises:
        InputError: If a number is out of range, or generator and features do not fit.

    Example:
        >>> from dpswd.generation.features import DCT
        >>> from dpswd.generation.generators import Table3Generator
        >>> module = GeneratorModule(Table3Generator(), DCT((1, 28, 28), size=12))
        >>> module.mechanism(batch_size=60_000).description
        '144 orthogonal projections of 144-d rows, 100 block means each for each of 10 classes'
    """

    def __init__(
        self,
        generator: Generator,
        features: FeatureMap,
        n_projections: int | None = None,
        n_quantiles: int | None = 100,
        statistic: Literal["rows", "quantiles"] = "quantiles",
        kind: Literal["iid", "orthogonal"] = "orthogonal",
        bound: Literal["exact", "bernstein", "clt"] = "exact",
        labels: Literal["blocks", "concat", "none"] = "blocks",
        label_scale: float = 0.25,
        release_every: int = 0,
        generated: int = 500,
        lr: float = 2e-3,
        noise_seed: int | None = None,
    ) -> None:
        super().__init__()
        at_least(0, release_every=release_every)
        at_least(1, generated=generated)
        positive(lr=lr, label_scale=label_scale)
        self.save_hyperparameters(ignore=["generator", "features"])
        self.n_projections, self.n_quantiles = n_projections, n_quantiles if statistic == "quantiles" else None
        self.statistic, self.kind, self.bound, self.labels, self.label_scale = (
            statistic,
            kind,
            bound,
            labels,
            label_scale,
        )
        self.release_every, self.generated, self.lr, self.noise_seed = release_every, generated, lr, noise_seed
        self.generator, self.features = generator, features
        self.n_classes = generator.n_classes if labels != "none" else 0
        if labels != "none" and not generator.n_classes:
            raise InputError("Expected a generator with n_classes for private labels, got 0; or set labels: none.")
        if tuple(generator.sample_shape) != tuple(features.sample_shape):
            raise InputError(
                f"Expected one sample_shape for generator and features, got {tuple(generator.sample_shape)} and "
                f"{tuple(features.sample_shape)}."
            )
        self.criterion: DPSlicedWassersteinLoss | None = None

    def mechanism(self, batch_size: int) -> ProjectionMechanism:
        """Returns the mechanism of one release of ``batch_size`` records; the budget replaces its sigma."""
        dim = self.features.dim + (self.n_classes if self.labels == "concat" else 0)
        return ProjectionMechanism(
            dim=dim,
            n_projections=self.n_projections or dim,
            sigma=1.0,
            batch_size=batch_size,
            statistic=self.statistic,
            n_quantiles=self.n_quantiles,
            kind=self.kind,
            bound=self.bound,
            n_classes=self.n_classes if self.labels == "blocks" else None,
            noise_seed=self.noise_seed,
        )

    def setup(self, stage: str) -> None:
        """Creates the loss for the batch size of the data module."""
        if stage != "fit":
            return
        data = getattr(self.trainer, "datamodule", None)
        if data is None or not hasattr(data, "release_size"):
            raise InputError("Expected a data module with release_size (see dpswd.data), got none; pass --data.")
        check_rowwise(self.features)
        self._check(data.private, getattr(data, "n_classes", None))
        data.release_every = self.release_every
        size = data.release_size(self.n_quantiles)
        self.criterion = DPSlicedWassersteinLoss(self.mechanism(size))

    def _check(self, records: Any, classes: int | None) -> None:
        """Checks the public shape and classes of the records before any file is written."""
        if self.n_classes and classes is not None and classes != self.n_classes:
            raise InputError(
                f"Expected n_classes={classes} of the generator, the number of classes of the data, got "
                f"{self.n_classes}; set model.generator.n_classes."
            )
        shape, wanted = tuple(records.values.shape[1:]), tuple(self.features.sample_shape)
        if shape != wanted:
            raise InputError(f"Expected records of shape {wanted}, got {shape}; set sample_shape to that of the data.")
        if self.n_classes and bool((records.labels >= self.n_classes).any()):
            raise InputError(
                f"Expected labels in [0, {self.n_classes - 1}], got labels outside; set n_classes of the generator."
            )

    def rows(self, records: Tensor, labels: Tensor) -> Tensor:
        """Maps generated records ``(n, *sample_shape)`` with classes (n,) to the rows that are projected."""
        return self.with_classes(self.features(records), labels)

    def with_classes(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Appends the one-hot classes to the rows if ``labels="concat"``."""
        if self.labels == "concat":
            one_hot = torch.nn.functional.one_hot(labels, self.n_classes).to(rows.dtype)
            rows = torch.cat([rows, self.label_scale * one_hot], dim=1)
        return rows

    def sample(self, labels: Tensor) -> Tensor:
        """Generates one record for each class in ``labels`` (n,)."""
        return cast(Tensor, self.generator(self.generator.latent(len(labels)), labels))

    def receive(self, batch: tuple[Tensor, Tensor]) -> Release:
        """Releases the private records of the batch, if it has any; returns the last release."""
        records, classes = batch
        assert self.criterion is not None
        if len(records):
            if self.criterion.recorder is None:
                raise InputError("Expected a PrivacyBudget among the trainer's callbacks, got none; it sets the noise.")
            private = self.with_classes(private_rows(self.features, records), classes)
            self.released = self.criterion.release(private, classes if self.in_blocks else None)
        if self.released is None:
            raise InputError("Expected a release before the first free step, got none; resume from a checkpoint.")
        return self.released

    @property
    def in_blocks(self) -> bool:
        """Whether the statistic of every class is released separately."""
        return bool(self.labels == "blocks")

    def distance(self, released: Release, rows: Tensor, labels: Tensor) -> Tensor:
        """Returns the distance of rows (n, dim) with classes (n,) to a release; post-processing."""
        assert self.criterion is not None
        return self.criterion.distance(released, rows, labels if self.in_blocks else None)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Makes a release if the batch holds private records; returns the loss to the last release."""
        released = self.receive(batch)
        labels = torch.arange(self.generated, device=self.device) % max(1, self.generator.n_classes)
        loss = self.distance(released, self.rows(self.sample(labels), labels), labels)
        self.log("loss", loss, prog_bar=True, batch_size=1)  # a function of released values
        return loss

    def predict_step(self, batch: Tensor, batch_idx: int) -> tuple[Tensor, Tensor]:
        """Generates a record for each class in the batch (n,)."""
        return self.sample(batch), batch

    def configure_optimizers(self) -> Any:
        """Adam with a cosine schedule down to a tenth of the learning rate."""
        optimizer = torch.optim.Adam(self.generator.parameters(), lr=self.lr, betas=(0.5, 0.99))
        steps = max(1, self.trainer.max_steps)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=self.lr / 10)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
