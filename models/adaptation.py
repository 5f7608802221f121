r"""Alignment of source and target by DP-SWD inside the training: the sound version of Rakotomamonjy2021, for Table 1.

The product is :class:`dpswd.PrivateAdapter`, which makes a synthetic target first.

An encoder g and a classifier h are trained on source records. An optional public adapter T maps the source records to
records that look like those of the target; a release of the target's rows determines T:

.. math:: \min_{g, h, T} \; \mathbb{E}\, \ell(h(g(T x_s)), y_s) + \lambda \, d \, (2 R)^2 \,
          SW_2^2(r(T x_s), \text{release}).

With ``space``, rows are those of a fixed public map, and the distance moves T alone. Without it they are features
:math:`r(x) = (g(x) - c) / (2 R)`, with c and R computed from public source records, and the distance moves g and T.
Target records are read at a release only: :math:`r(x_t)` row by row (:mod:`dpswd.rowwise`), clipped to norm 1/2,
projected, averaged in blocks, noised, detached. The training steps that follow use the cached release.

Formal guarantee:
    All releases are what :class:`dpswd.training.callback.PrivacyBudget` accounts for. No gradient passes through
    :math:`g(x_t)`, so that the map of each release is a function of public records and earlier releases; weights and
    logged losses are post-processing (docs/theory/private-side.md, Proposition 23). The published algorithm lets the
    gradient pass and is not private (docs/errata.md, items 4 and 5).

References:
    | Rakotomamonjy2021, Section 5.1 and appendix 8.5.2; Lee et al., Sliced Wasserstein Discrepancy, CVPR 2019.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from dpswd.data.base import Records, release_loader, whole_blocks
from dpswd.generation.features import FeatureMap, check_rowwise
from dpswd.rowwise import BATCH_NORMS, INSTANCE_NORMS, check_encoder, digest, finite_or_zero, rowwise
from dpswd.training.checkpoints import KeepsRelease
from torch import Tensor, nn
from torch.utils.data import Dataset

from dpswd._validate import at_least, choice, nonnegative, positive
from dpswd.errors import InputError
from dpswd.loss import DPSlicedWassersteinLoss, Release
from dpswd.mechanism import ProjectionMechanism
from dpswd.sampling import ReleaseLoader
from models.encoders import classifier as two_layers

__all__ = [
    "AdaptationModule",
    "AlignmentData",
    "SourceBatches",
    "TargetRecords",
    "accuracy",
    "fit_source",
    "source_batches",
]

_REFERENCE = 2048  # source records whose features give the public centre and radius
_SHARE = 0.99  # share of them that lies within the radius


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


class AlignmentData(L.LightningDataModule):
    """Labelled public batches, and private records without labels.

    Args:
        source: Labelled public records.
        target: Private records (N, ...).
        source_batch: Public records in a step.
        augment: Applied to the records of every public batch.
    """

    def __init__(
        self,
        source: Records,
        target: Tensor,
        source_batch: int = 128,
        augment: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.source, self.private, self.source_batch, self.augment = source, target, source_batch, augment
        self.release_every = 1

    def source_loader(self) -> SourceBatches:
        """Return labelled public batches."""
        return SourceBatches(self.source, self.source_batch, self.augment)

    def release_size(self, n_quantiles: int | None) -> int:
        """Return the number of private records in a release, a multiple of ``n_quantiles``."""
        return whole_blocks(len(self.private), None, n_quantiles)

    def train_dataloader(self) -> ReleaseLoader:
        """Return one batch per training step, empty in steps without a release."""
        assert self.trainer is not None
        return release_loader(self.trainer, TargetRecords(self.private), self.release_every)


class AdaptationModule(KeepsRelease):
    """Adapts ``encoder`` and ``classifier`` to private records; the module docstring states the guarantee.

    ``encoders.jsonl`` in the run directory records the SHA-256 of the map that was used at each release.

    Args:
        encoder: Maps records (n, ...) to features (n, dim), each record by itself.
        n_classes: Number of classes of the source.
        dim: Size of the features; ``encoder.dim`` if not given.
        classifier: Maps features to scores (n, n_classes); two layers if not given.
        adapter: Trainable map of source records to records like the target's.
        space: Fixed public map whose rows are compared instead of the encoder's features.
        source: Labelled public batches (records, classes); the data module's ``source_loader()`` if not given.
        release_size: Private records in a release; the data module's choice if not given.
        alignment: Weight of the distance; 0 ignores the release.
        adapter_lr: Learning rate of the adapter.
        release_every: Training steps per release; 0 for one release in the whole run.
        pretrain_steps: Steps on the source alone before the first release.
        warmup_steps: Steps over which the weight of the distance rises.
        n_projections: Number of directions; one orthonormal basis if not given.
        n_quantiles: Block means per direction for ``statistic="quantiles"``.
        statistic: ``"quantiles"`` or ``"rows"``.
        kind: ``"orthogonal"`` or ``"iid"`` directions.
        radius: Public bound R on the distance of a feature row from the centre, enforced by clipping; the 99th
            percentile of the source's at every release if not given.
        lr: Learning rate of Adam for encoder and classifier.
        noise_seed: For tests only: NOT PRIVATE.

    Raises:
        InputError: If an argument is out of range, the encoder mixes rows, a class of the source is empty, or target
            batches contain labels.
    """

    public_buffers = ("center", "spread")  # of source features; they change between a private batch and its release
    center: Tensor
    spread: Tensor

    def __init__(
        self,
        encoder: nn.Module,
        n_classes: int,
        dim: int | None = None,
        classifier: nn.Module | None = None,
        adapter: nn.Module | None = None,
        space: FeatureMap | None = None,
        source: Iterable[Any] | None = None,
        release_size: int | None = None,
        alignment: float = 1.0,
        adapter_lr: float = 2e-2,
        release_every: int = 20,
        pretrain_steps: int = 0,
        warmup_steps: int = 0,
        n_projections: int | None = None,
        n_quantiles: int | None = 16,
        statistic: Literal["rows", "quantiles"] = "quantiles",
        kind: Literal["iid", "orthogonal"] = "orthogonal",
        radius: float | None = None,
        lr: float = 1e-3,
        noise_seed: int | None = None,
    ) -> None:
        super().__init__()
        at_least(2, n_classes=n_classes)
        at_least(0, release_every=release_every, pretrain_steps=pretrain_steps, warmup_steps=warmup_steps)
        positive(lr=lr, adapter_lr=adapter_lr, **({} if radius is None else {"radius": radius}))
        nonnegative(alignment=alignment)
        choice(("rows", "quantiles"), statistic=statistic)
        if dim is None and not isinstance(dim := getattr(encoder, "dim", None), int):
            raise InputError("Expected dim, the size of the encoder's features, got None; pass dim.")
        self.save_hyperparameters(ignore=["encoder", "classifier", "adapter", "space", "source"])
        self.encoder, self.dim, self.n_classes = encoder, dim, n_classes
        self.classifier = classifier or two_layers(dim, n_classes)
        self.adapter, self.space = adapter, space
        self.source, self.release_size = source, release_size
        self.alignment, self.release_every = alignment, release_every
        self.pretrain_steps, self.warmup_steps = pretrain_steps, warmup_steps
        self.n_projections, self.n_quantiles = n_projections, n_quantiles if statistic == "quantiles" else None
        self.statistic, self.kind, self.radius, self.lr, self.adapter_lr = statistic, kind, radius, lr, adapter_lr
        self.noise_seed = noise_seed
        self.register_buffer("center", torch.zeros(dim))
        self.register_buffer("spread", torch.ones(()))
        self.criterion: DPSlicedWassersteinLoss | None = None
        self._batches: Iterator[tuple[Tensor, Tensor]] | None = None
        kinds = (*BATCH_NORMS, *INSTANCE_NORMS)
        self._frozen = [layer for layer in encoder.modules() if isinstance(layer, kinds) and not layer.training]

    def train(self, mode: bool = True) -> "AdaptationModule":
        """Set the mode; batch normalisation that was given in evaluation mode stays in it."""
        super().train(mode)
        for layer in getattr(self, "_frozen", []):
            layer.eval()
        return self

    def forward(self, records: Tensor) -> Tensor:
        """Return scores (n, n_classes)."""
        scores: Tensor = self.classifier(self.encoder(records))
        return scores

    def features(self, records: Tensor, batch: int = 2048) -> Tensor:
        """Return adapted features (n, dim) in evaluation mode, without gradients."""
        return torch.cat([rowwise(self.encoder, part.to(self.device)) for part in records.split(batch)])

    def mechanism(self, batch_size: int) -> ProjectionMechanism:
        """Return the mechanism of one release of ``batch_size`` records; the budget replaces its sigma."""
        dim = self.dim if self.space is None else self.space.dim
        return ProjectionMechanism(
            dim=dim,
            n_projections=self.n_projections or dim,
            sigma=1.0,
            batch_size=batch_size,
            statistic=self.statistic,
            n_quantiles=self.n_quantiles,
            kind=self.kind,
            noise_seed=self.noise_seed,
        )

    def setup(self, stage: str) -> None:
        """Check source and encoder and makes the loss, before target records are read or files are written."""
        if stage != "fit":
            return
        if self.trainer.world_size > 1:
            raise InputError(
                f"Expected one process for adaptation, got {self.trainer.world_size}; set trainer.devices to 1."
            )
        data: Any = getattr(self.trainer, "datamodule", None)
        source = self.source if self.source is not None else getattr(data, "source_loader", lambda: None)()
        if source is None:
            raise InputError("Expected labelled public records, got none; pass source=DataLoader(...).")
        self._batches = source_batches(source, self.n_classes)
        records, _ = next(self._batches)
        check_encoder(self.encoder, records[:8].to(self.device), self.dim)
        if self.space is not None:
            check_rowwise(self.space)
        size = self.release_size
        if data is not None and hasattr(data, "release_size"):
            data.release_every = self.release_every
            size = size or data.release_size(self.n_quantiles)
        if size is None:
            raise InputError("Expected release_size, the private records in a release, got None; pass it.")
        self.criterion = DPSlicedWassersteinLoss(self.mechanism(size))

    def on_train_start(self) -> None:
        """Train on the source alone for ``pretrain_steps``, except in a resumed run."""
        super().on_train_start()
        if self.released is None and self.pretrain_steps:
            self.train()
            steps = 1 if self.trainer.fast_dev_run else self.pretrain_steps  # type: ignore[attr-defined]
            fit_source(self.encoder, self.classifier, self._next_source, steps, self.lr)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Make a release if the batch holds private records, and takes one step against the last release."""
        if not isinstance(batch, Tensor):
            raise InputError(
                f"Expected target batches of records alone, got {type(batch).__name__} of {len(batch)} parts; labels "
                "of the target are private and not used: leave them out."
            )
        if len(batch):
            self.receive(batch)
        records, classes = self._next_source()
        adapted = records if self.adapter is None else self.adapter(records)
        features = self.encoder(adapted if self.space is None else adapted.detach())
        supervised = nn.functional.cross_entropy(self.classifier(features), classes)
        distance = self._distance(adapted, features)
        weight = self.alignment * min(1.0, (self.global_step + 1) / (self.warmup_steps + 1))
        self.log_dict({"source_loss": supervised, "distance": distance}, prog_bar=True, batch_size=1)
        return supervised + weight * distance

    def _distance(self, adapted: Tensor, features: Tensor) -> Tensor:
        """Squared distance of source rows from the release, in units of the features."""
        if self.released is None or self.criterion is None:
            raise InputError("Expected a release before the first step without one, got none; resume a checkpoint.")
        rows = self._rows(features) if self.space is None else self.space(adapted)
        return rows.shape[1] * (2 * self.spread) ** 2 * self.criterion.distance(self.released, rows)

    def _rows(self, features: Tensor) -> Tensor:
        return (features - self.center) / (2 * self.spread)

    def receive(self, records: Tensor) -> Release:
        """Make one release of private records (B, ...) through the present map, and records the map's digest."""
        assert self.criterion is not None
        if self.criterion.recorder is None:
            raise InputError("Expected a PrivacyBudget among the trainer's callbacks, got none; it sets the noise.")
        if self.space is not None:
            self.spread.fill_(self.space.radius)
            rows, state = rowwise(self.space, records), digest(self.space)
        else:
            self._measure_source()
            rows, state = self._rows(rowwise(self.encoder, records)), digest(self.encoder)
        self.released = self.criterion.release(finite_or_zero(rows))
        self._write_digest(state)
        return self.released

    @torch.no_grad()
    def _measure_source(self) -> None:
        """Set centre and radius from the present features of public source records."""
        parts: list[Tensor] = []
        while sum(map(len, parts)) < _REFERENCE:
            parts.append(rowwise(self.encoder, self._next_source()[0]))
        features = torch.cat(parts)
        self.center.copy_(features.mean(0))
        norms: Tensor = torch.linalg.vector_norm(features - self.center, dim=1)
        self.spread.fill_(float(norms.quantile(_SHARE).clamp(min=1e-6)) if self.radius is None else self.radius)

    def _write_digest(self, state: str) -> None:
        assert self.criterion is not None
        directory = Path(self.trainer.default_root_dir)
        directory.mkdir(parents=True, exist_ok=True)
        fact = {"release": self.criterion.n_releases, "step": self.global_step, "sha256": state}
        fact |= {"map": "encoder" if self.space is None else type(self.space).__name__, "radius": float(self.spread)}
        if self.space is None:
            fact["center"] = self.center.tolist()
        with (directory / "encoders.jsonl").open("a") as file:
            file.write(json.dumps(fact) + "\n")

    def _next_source(self) -> tuple[Tensor, Tensor]:
        assert self._batches is not None
        records, classes = next(self._batches)
        return records.to(self.device), classes.to(self.device)

    def predict_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        """Predicts the class of each record in the batch (n, ...)."""
        scores: Tensor = self(batch)
        return scores.argmax(1)

    def configure_optimizers(self) -> Any:
        """Return Adam with a cosine that ends near zero, and a learning rate of its own for the adapter."""
        network = [*self.encoder.parameters(), *self.classifier.parameters()]
        groups: list[dict[str, Any]] = [{"params": network, "lr": self.lr}]
        if self.adapter is not None:
            groups.append({"params": list(self.adapter.parameters()), "lr": self.adapter_lr})
        optimizer = torch.optim.Adam(groups)
        steps = max(1, self.trainer.max_steps)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def source_batches(source: Iterable[Any], n_classes: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Return an endless iterator over labelled public batches, after checking the classes in one pass.

    Raises:
        InputError: If batches are not (records, classes), or a class is empty or out of range.
    """
    counts = torch.zeros(n_classes, dtype=torch.int64)
    for batch in source:
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise InputError(
                f"Expected source batches of (records, classes), got {type(batch).__name__}; the source must be "
                "labelled."
            )
        classes = batch[1]
        if bool(((classes < 0) | (classes >= n_classes)).any()):
            raise InputError(
                f"Expected classes of the source between 0 and {n_classes - 1}, got a class outside; check n_classes."
            )
        counts += torch.bincount(classes.cpu(), minlength=n_classes)
    if empty := (counts == 0).nonzero().flatten().tolist():
        raise InputError(
            f"Expected source records of all {n_classes} classes, got none of class {empty[0]}; add some, or lower "
            "n_classes."
        )

    def endless() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from source

    return endless()


def fit_source(
    encoder: nn.Module, classifier: nn.Module, batches: Callable[[], tuple[Tensor, Tensor]], steps: int, lr: float
) -> None:
    """Train encoder and classifier on the source alone, by Adam with a one-cycle learning rate.

    Args:
        encoder: Maps records to features.
        classifier: Maps features to scores.
        batches: Returns the next batch (records, classes).
        steps: Training steps.
        lr: Mean learning rate; its peak is four times as high.
    """
    network = [*encoder.parameters(), *classifier.parameters()]
    optimizer = torch.optim.Adam(network, lr=lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4 * lr, max(2, steps))
    with torch.enable_grad():
        for _ in range(steps):
            records, classes = batches()
            loss = nn.functional.cross_entropy(classifier(encoder(records)), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


@torch.no_grad()
def accuracy(module: torch.nn.Module, records: Records) -> float:
    """Return the accuracy of a module's predictions in percent, in evaluation mode."""
    training = module.training
    module.eval()
    device = next(module.parameters()).device
    parts = records.floats().split(2000)
    scores = torch.cat([module(part.to(device)).cpu() for part in parts])
    module.train(training)
    return float(100 * (scores.argmax(1) == records.labels).float().mean())
