"""LightningModule that trains a generator on releases of private records."""

from typing import Any, Literal

import lightning as L
import torch
from torch import Tensor

from dpswd._validate import at_least, positive
from dpswd.errors import InputError
from dpswd.generation.features import FeatureMap, check_rowwise
from dpswd.generation.generators import Generator
from dpswd.generation.principal import PrincipalDirections
from dpswd.generation.rows import private_rows
from dpswd.loss import DPSlicedWassersteinLoss, Release
from dpswd.mechanism import ProjectionMechanism
from dpswd.queries import ClassCounts, SecondMoment

__all__ = ["GeneratorModule"]


class GeneratorModule(L.LightningModule):
    """Fits a generator to the noisy projections of private records.

    A training step that gets private records makes one release; a step that gets none trains on the last one, free of
    charge. So one-shot training (``release_every`` at least the number of steps, all records in one batch) and
    per-step releases are the same code. A :class:`dpswd.training.callback.PrivacyBudget` sets the noise.

    Labels are private too. With ``labels="blocks"`` (default) a record is embedded as features times one-hot class;
    with ``"concat"`` the one-hot class, times ``label_scale``, is appended to the features and clipped with them;
    with ``"none"`` classes are ignored.

    Args:
        generator: Maps latent codes and classes to records.
        features: Public map from records to the rows that are sliced; applied to both sides.
        n_projections: Number of directions; whole orthonormal bases (a multiple of the rows' dimension) for
            ``kind="orthogonal"`` have a sensitivity that is not random at all. ``None`` for one basis.
        n_quantiles: Block means per column (``statistic="quantiles"``).
        statistic: ``"quantiles"`` or ``"rows"``.
        kind: ``"orthogonal"`` or ``"iid"`` directions.
        bound: ``"exact"``, ``"bernstein"`` or ``"clt"``.
        labels: How classes enter a record.
        label_scale: Norm of the class part for ``labels="concat"``.
        release_every: Training steps per release. 0 for one release in the whole run.
        generated: Generated records per step.
        moment_share: Part of the squared mu of the budget spent on the second moment, where ``features`` are
            :class:`~dpswd.generation.principal.PrincipalDirections`.
        count_share: Part of it spent on class counts, after which records are generated in those proportions while
            training. 0 for none: as many of each class.
        lr: Learning rate of Adam; falls to a tenth by a cosine over the run.
        noise_seed: For tests only: NOT PRIVATE.
    """

    proportions: Tensor

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
        moment_share: float = 0.2,
        count_share: float = 0.0,
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
        self.moment = self.counts = None
        if isinstance(features, PrincipalDirections):
            self.moment = SecondMoment(features.base.dim, share=moment_share, noise_seed=noise_seed)
        if count_share:
            self.counts = ClassCounts(self.n_classes, share=count_share, noise_seed=noise_seed)
        self.register_buffer("proportions", torch.full((max(1, generator.n_classes),), 1 / max(1, generator.n_classes)))
        self.criterion: DPSlicedWassersteinLoss | None = None
        self.released: Release | None = None
        self._counted = False

    def mechanism(self, batch_size: int) -> ProjectionMechanism:
        """What one release is, for ``batch_size`` records. Its sigma is a placeholder until the budget sets it."""
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
        """Makes the loss once the data module knows how many records a batch has."""
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
        """Refuses records that do not fit (their shape and their classes are public) before anything is written."""
        if self.n_classes and classes is not None and classes != self.n_classes:
            raise InputError(
                f"Expected n_classes={classes} of the generator, as many as the data have, got {self.n_classes}; set "
                "model.generator.n_classes."
            )
        shape, wanted = tuple(records.values.shape[1:]), tuple(self.features.sample_shape)
        if shape != wanted:
            raise InputError(f"Expected records of shape {wanted}, got {shape}; set sample_shape to that of the data.")
        if self.n_classes and bool((records.labels >= self.n_classes).any()):
            raise InputError(
                f"Expected classes between 0 and {self.n_classes - 1}, got others; set n_classes of the generator."
            )

    def rows(self, records: Tensor, labels: Tensor) -> Tensor:
        """Maps generated records to the rows that are sliced, classes included where they are appended."""
        return self.with_classes(self.features(records), labels)

    def with_classes(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Appends the classes to rows of features, where they are to be."""
        if self.labels == "concat":
            one_hot = torch.nn.functional.one_hot(labels, self.n_classes).to(rows.dtype)
            rows = torch.cat([rows, self.label_scale * one_hot], dim=1)
        return rows

    def sample(self, labels: Tensor) -> Tensor:
        """Generates one record for each class in ``labels`` (n,)."""
        result: Tensor = self.generator(self.generator.latent(len(labels)), labels)
        return result

    def receive(self, batch: tuple[Tensor, Tensor]) -> Release:
        """Makes one release of the private records in a batch, if there are any; returns the last release."""
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
        """Whether every class has a block of its own."""
        return bool(self.labels == "blocks")

    def distance(self, released: Release, rows: Tensor, labels: Tensor) -> Tensor:
        """Compares rows (n, dim) of classes ``labels`` (n,) with a release: free."""
        assert self.criterion is not None
        return self.criterion.distance(released, rows, labels if self.in_blocks else None)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """One release if the batch holds private records; one step on the last release in any case."""
        released = self.receive(batch)
        labels = self.classes_of(self.generated)
        loss = self.distance(released, self.rows(self.sample(labels), labels), labels)
        self.log("loss", loss, prog_bar=True, batch_size=1)  # released values and generated ones only: safe to show
        return loss

    def predict_step(self, batch: Tensor, batch_idx: int) -> tuple[Tensor, Tensor]:
        """Generates a record for each class in the batch (n,)."""
        return self.sample(batch), batch

    def configure_optimizers(self) -> Any:
        """Adam with a cosine to a tenth of the learning rate."""
        optimizer = torch.optim.Adam(self.generator.parameters(), lr=self.lr, betas=(0.5, 0.99))
        steps = max(1, self.trainer.max_steps)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=self.lr / 10)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps the last release, which is public, so that a resumed run need not pay for it again."""
        if self.released is not None:
            checkpoint["released"] = self.released.state_dict()
        checkpoint["counted"] = self._counted

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Takes the last release back."""
        if "released" in checkpoint:
            self.released = Release.from_state_dict(checkpoint["released"])
        self._counted = bool(checkpoint.get("counted"))  # the proportions are a buffer

    def on_fit_start(self) -> None:
        """Refuses principal directions that somebody fitted before a new run: nobody knows what to, or who paid."""
        fitted = [part for part in self.features.modules() if isinstance(part, PrincipalDirections) and part.fitted]
        if fitted and self.trainer.ckpt_path is None:  # a checkpoint brings those of its run
            raise InputError(
                "Expected principal directions that are not fitted before a new run, got fitted ones; leave that to "
                "the run, which pays for the second moment."
            )

    def on_train_start(self) -> None:
        """Makes the releases that come before the projections; a resumed run has them in its checkpoint."""
        if self.released is not None:
            self.released = self.released.to(self.device)
            return
        private = self.trainer.datamodule.private  # type: ignore[attr-defined]
        if self.moment is not None and not bool(self.features.fitted):
            parts = torch.arange(len(private)).split(4096)
            features: Any = self.features  # released principal directions
            base = features.base
            rows = torch.cat([private_rows(base, private.floats(part).to(self.device)) for part in parts])
            features.fit(self.moment.release(rows), len(private))
        if self.counts is not None and not self._counted:
            counts = self.counts.release(private.labels).clamp(min=1)
            self._counted = True
            self.proportions.copy_(counts / counts.sum())

    def classes_of(self, n: int) -> Tensor:
        """Returns n classes (n,) in the proportions that are known: equal ones, or those that were released."""
        edges = (self.proportions.double().cumsum(0) * n).round().long()
        return torch.bucketize(torch.arange(n, device=self.device), edges[:-1].to(self.device), right=True)
