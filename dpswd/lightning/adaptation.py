r"""LightningModule of adaptation by DP-SWD.

The source is labelled and public, the target is private. An encoder g and a classifier h are
trained on source records. A distance to released projections of the target makes the source look
like the target:

.. math:: \min_{g, h, T} \; \mathbb{E}\, \ell(h(g(T x_s)), y_s) + \lambda \, d \, (2 R)^2 \,
          SW_2^2(r(T x_s), \text{release}).

``align="input"`` compares the adapted source :math:`T x_s` with the target in a fixed public space:
r is a public map, and the distance moves T alone, a map of few parameters. ``align="features"``
compares features of the encoder, :math:`r(x) = (g(T x) - c) / (2 R)` with c and R computed from
public source records, and the distance moves g and T.

Formal guarantee:
    The target is a handle, which the loss opens at a release only. Its rows are computed in
    evaluation mode without gradients, by a function of public records and earlier releases
    (docs/theory/private-side.md). The gradient therefore moves the source branch alone. The
    published algorithm lets it pass through :math:`g(x_t)` as well and is not private
    (docs/errata.md, items 4 and 5).

References:
    | Rakotomamonjy2021, Sections 4 and 6.2 and appendix 8.5.2.
    | Lee et al., Sliced Wasserstein Discrepancy, CVPR 2019.
"""

import math
import warnings
from functools import partial
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from dpswd._validate import at_least, choice, nonnegative, positive, stated_at_least
from dpswd.errors import InputError, UtilityWarning
from dpswd.features.encoded import EncodedRows
from dpswd.features.frequencies import DCT
from dpswd.features.maps import FeatureMap, Flatten
from dpswd.lightning._trial import check_shape_of, trial
from dpswd.lightning.adaptation_data import AdaptationData, check_classes
from dpswd.lightning.budget import required_budget
from dpswd.lightning.checkpoints import KeepsRelease
from dpswd.lightning.schedules import n_steps_of, warm_up_and_cosine, with_schedule
from dpswd.loss import DPSlicedWassersteinLoss
from dpswd.mechanism import ProjectionMechanism
from dpswd.networks.adapters import ImageAdapter, VectorAdapter
from dpswd.records import PrivateBatch

__all__ = ["AdaptationModule"]

# Frequencies per axis of the public space of images.
_FREQUENCIES = 10
# Part of the source records that lies within the radius of the public space.
_WITHIN_RADIUS = 0.99
# Up to so many dimensions of the space two bases of directions are released, above it one.
_FEW_DIMENSIONS = 100
# Source records that measure the public centre and radius of features.
_N_REFERENCE = 2048
# Source records that pass through the networks before the first release, to see that they fit.
_N_TRIED = 2
# Source images in a picture.
_N_SHOWN = 10


class AdaptationModule(KeepsRelease):
    """Trains an encoder and a classifier for a private target by DP-SWD.

    A batch is a dictionary: ``source`` has labelled public records, ``target`` a
    :class:`~dpswd.PrivateBatch`, as :class:`~dpswd.lightning.adaptation_data.AdaptationData` and a
    dictionary of loaders make it. A step whose private batch has records makes a release; every
    step trains on the last one. The callback :class:`~dpswd.PrivacyBudget` calibrates the noise.

    Args:
        encoder: Maps records to features (n, dim), each record by itself; with
            ``align="features"``, its attribute ``dim`` is their number.
        classifier: Maps features to scores (n, C).
        adapter: Maps source records to records of the target's kind. ``None`` for that of the kind
            of records with ``align="input"``
            (:class:`~dpswd.networks.adapters.ImageAdapter`,
            :class:`~dpswd.networks.adapters.VectorAdapter`), and for none with ``"features"``.
        space: Public map from records to the rows that are compared, with ``align="input"``.
            ``None`` for the 10 x 10 lowest frequencies of images, or the entries of vectors, with a
            radius from the public source.
        align: ``"input"`` or ``"features"``.
        alignment: Weight of the distance. With ``"input"`` and the default optimiser it has hardly
            an effect, since the distance alone moves the adapter.
        batch_size: Target records of a release; ``None`` for as many as the blocks can hold of all
            records of the data module.
        n_projections: Number of directions; ``None`` for one or two whole bases.
        n_quantiles: Block means per direction, with ``statistic="quantiles"``.
        statistic: ``"quantiles"`` or ``"rows"``.
        kind: ``"orthogonal"`` or ``"iid"`` directions.
        bound: Treatment of the random sensitivity of ``"iid"`` directions: ``"exact"``,
            ``"bernstein"``, or ``"clt"`` (not rigorous).
        failure_prob: Tail probability per release of the Bernstein and CLT bounds; ``None`` for the
            choice of the accountant.
        lr: Largest learning rate of encoder and classifier.
        adapter_lr: Largest learning rate of the adapter.

    Attributes:
        criterion: The loss that makes the releases; ``None`` before ``setup``.

    Raises:
        InputError: If an option is out of range, or the parts do not fit.

    Example:
        >>> from dpswd.networks.classifiers import Head
        >>> from dpswd.networks.encoders import ConvEncoder
        >>> module = AdaptationModule(ConvEncoder((1, 28, 28)), Head(320, 10))
        >>> module.align
        'input'
    """

    def __init__(
        self,
        encoder: nn.Module,
        classifier: nn.Module,
        adapter: nn.Module | None = None,
        space: FeatureMap | None = None,
        align: Literal["input", "features"] = "input",
        alignment: float = 1.0,
        batch_size: int | None = None,
        n_projections: int | None = None,
        n_quantiles: int = 32,
        statistic: Literal["rows", "quantiles"] = "quantiles",
        kind: Literal["iid", "orthogonal"] = "orthogonal",
        bound: Literal["exact", "bernstein", "clt"] = "exact",
        failure_prob: float | None = None,
        lr: float = 2e-3,
        adapter_lr: float = 2e-2,
    ) -> None:
        super().__init__()
        choice(("input", "features"), align=align)
        nonnegative(alignment=alignment)
        positive(lr=lr, adapter_lr=adapter_lr)
        at_least(1, n_quantiles=n_quantiles)
        stated_at_least(1, batch_size=batch_size, n_projections=n_projections)
        if batch_size is not None and statistic == "quantiles" and batch_size % n_quantiles:
            whole_blocks = max(n_quantiles, batch_size - batch_size % n_quantiles)
            raise InputError(
                f"Expected batch_size to be a multiple of n_quantiles={n_quantiles}, got "
                f"{batch_size}; pass {whole_blocks}."
            )
        if align == "features" and space is not None:
            raise InputError(
                "Expected no space with align='features', which compares features of the encoder, "
                "got one; leave it out."
            )
        self.save_hyperparameters(ignore=["encoder", "classifier", "adapter", "space"])
        self.encoder = encoder
        self.classifier = classifier
        self.adapter = adapter
        self.space = space
        self.align = align
        self.alignment = alignment
        self.lr = lr
        self.adapter_lr = adapter_lr
        self.features: EncodedRows | None = None
        self.criterion: DPSlicedWassersteinLoss | None = None
        self._shown = torch.empty(0)  # the first source records of the first batch
        self._batch_size = batch_size
        self._mechanism_options: dict[str, Any] = {
            "n_projections": n_projections,
            "n_quantiles": n_quantiles if statistic == "quantiles" else None,
            "statistic": statistic,
            "kind": kind,
            "bound": bound,
            "failure_prob": failure_prob,
        }

    # Parts that depend on the data

    def setup(self, stage: str) -> None:
        """Make the parts that were left out, and the loss, from public facts of the data."""
        if self.criterion is not None:
            return
        data = getattr(self.trainer, "datamodule", None)
        if isinstance(data, AdaptationData):
            _check_networks(self.encoder, self.classifier, data)
        else:
            data = None
        if self.align == "features":
            self.features = EncodedRows(self.encoder, _n_features(self.encoder))
        else:
            self._complete_input_parts(data)
        self.criterion = DPSlicedWassersteinLoss(self._mechanism(data))
        if self.space is None:
            self.criterion.remedy_of_long_rows = (
                "divide the features by a public constant at the end of the encoder"
            )
        else:
            self.criterion.remedy_of_long_rows = self.space.remedy_of_long_rows

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the last release; refuse a checkpoint of a run with another ``align``."""
        super().on_load_checkpoint(checkpoint)
        before = checkpoint.get("hyper_parameters", {}).get("align", self.align)
        if before != self.align:
            raise InputError(
                f"Expected align={before!r} as in the checkpoint, got {self.align!r}; resume with "
                "the settings of that run."
            )

    def on_fit_start(self) -> None:
        """Refuse networks that do not fit the data module, before a file is written.

        A trainer without a budget is refused, too.
        """
        required_budget(self.trainer)
        data = getattr(self.trainer, "datamodule", None)
        if not isinstance(data, AdaptationData):
            return
        scores = self._tried_scores(data.source_records[:_N_TRIED].to(self.device))
        with trial(self, "scores of the classes of the source"):
            name = f"scores from {type(self.classifier).__name__}"
            remedy = "give it an output for each class of the source"
            check_shape_of(scores, _N_TRIED, data.class_names.shape, name, remedy)

    def _tried_scores(self, records: Tensor) -> Tensor:
        """Return scores of public source records; refuse networks that do not fit."""
        shape = tuple(records.shape[1:])
        with trial(
            self,
            f"an encoder that maps source records of shape {shape}",
            "fit the layers of adapter and encoder to that shape, and to each other",
        ):
            adapted = records
            if self.adapter is not None:
                adapted = self.adapter(records)
            features = self.encoder(adapted)
            if self.features is not None:
                name = f"features from {type(self.encoder).__name__}"
                dim = self.features.dim
                check_shape_of(features, len(records), (dim,), name, "set its attribute dim")
            if self.space is not None:
                name = f"rows from {type(self.space).__name__}"
                rows = self.space(adapted)
                check_shape_of(rows, len(records), (self.space.dim,), name, "set its dim")
        width = tuple(features.shape[1:])
        with trial(
            self,
            f"a classifier that maps features of shape {width}, those of the encoder, to scores",
            "make the input size of the classifier the output size of the encoder",
        ):
            return cast(Tensor, self.classifier(features))

    def _complete_input_parts(self, data: AdaptationData | None) -> None:
        """Make adapter and space from the shape and the size of public source records."""
        if self.adapter is not None and self.space is not None:
            return
        if data is None:
            raise InputError(
                "Expected adapter and space, or AdaptationData as the data module, from which they "
                "follow, got neither; pass both: for images, ImageAdapter() of "
                "dpswd.networks.adapters and Frequencies(shape, size=10) of "
                "dpswd.features.frequencies."
            )
        is_image = len(data.sample_shape) == 3
        if self.adapter is None:
            if is_image:
                self.adapter = ImageAdapter()
            else:
                self.adapter = VectorAdapter(math.prod(data.sample_shape))
        if self.space is None:
            norms = torch.linalg.vector_norm(data.source_records.flatten(1), dim=1)
            radius = float(norms.quantile(_WITHIN_RADIUS)) or 1.0
            if is_image:
                n_frequencies = min(_FREQUENCIES, *data.sample_shape[1:])
                self.space = DCT(data.sample_shape, n_frequencies, radius=radius)
            else:
                self.space = Flatten(data.sample_shape, radius=radius)

    def _mechanism(self, data: AdaptationData | None) -> ProjectionMechanism:
        """Return the mechanism of a release, without noise yet."""
        dim = self.row_function.dim
        options = dict(self._mechanism_options)
        if options["n_projections"] is None:
            n_bases = 1
            if dim <= _FEW_DIMENSIONS:
                n_bases = 2
            options["n_projections"] = n_bases * dim
        batch_size = self._batch_size
        if batch_size is None and data is not None:
            batch_size = data.release_size or len(data.records)
            if options["n_quantiles"] is not None:
                batch_size = _whole_blocks(batch_size, options["n_quantiles"])
        if batch_size is None:
            raise InputError(
                "Expected batch_size, the target records of a release, or AdaptationData as the "
                "data module, from which it follows, got neither; set batch_size to a multiple of "
                "n_quantiles, and that of the ReleaseLoader."
            )
        return ProjectionMechanism(dim=dim, batch_size=batch_size, **cast(Any, options))

    @property
    def row_function(self) -> FeatureMap | EncodedRows:
        """The map from records to the rows that are compared."""
        if self.space is not None:
            return self.space
        if self.features is None:
            raise InputError("Expected a module after setup, got one before; start the trainer.")
        return self.features

    # Training

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Make a release if the private batch has records; return the loss."""
        _check_batch(batch)
        records, classes = batch["source"]
        if not len(self._shown):
            self._shown = records[:_N_SHOWN].clone()
        if len(batch["target"]):
            if self.released is None:
                self._try_batch(records, classes)
                _warn_of_pixels(records, batch["target"])
            self._release(batch["target"], records)
        adapted = records
        if self.adapter is not None:
            adapted = self.adapter(records)
        if self.align == "input":
            # The distance moves the adapter, and the cross-entropy encoder and classifier.
            features = self.encoder(adapted.detach())
        else:
            features = self.encoder(adapted)
        cross_entropy = F.cross_entropy(self.classifier(features), classes)
        self.log("cross_entropy", cross_entropy, prog_bar=True, batch_size=len(records))
        if self.released is None:  # before the first release
            return cross_entropy
        distance = self._distance(adapted, features)
        self.log("distance", distance, prog_bar=True, batch_size=len(records))
        return cross_entropy + self.alignment * distance

    def _try_batch(self, records: Tensor, classes: Tensor) -> None:
        """Refuse networks that do not fit a batch of the source, before the first release.

        Loaders without a data module show no records before.
        """
        name = f"scores from {type(self.classifier).__name__}"
        with trial(self, f"{name} for the source's classes"):
            check_classes(classes)
            if self.space is not None:
                _check_source_shape(records, self.adapter, self.space)
        scores = self._tried_scores(records)
        with trial(self, f"{name} for the source's classes"):
            largest = int(classes.max())
            if scores.shape[1] <= largest:
                remedy = "give it an output for each class of the source"
                if scores.shape[1] == largest:
                    remedy = (
                        f"if the classes are 1 to {largest}, pass y - 1 to SourceLoader in place "
                        f"of y; otherwise, {remedy}"
                    )
                raise InputError(
                    f"Expected {name} of shape (n, C) with C > {largest}, the largest class of the "
                    f"source, got {tuple(scores.shape)}; {remedy}."
                )
            F.cross_entropy(scores, classes)

    def _release(self, private: PrivateBatch, source: Tensor) -> None:
        """Make a release.

        The centre and the radius of features are those of the public source.
        """
        if self.features is not None:
            data = getattr(self.trainer, "datamodule", None)
            if isinstance(data, AdaptationData):
                source = data.source_records[:_N_REFERENCE].to(self.device)
            self.features.measure(source)
        criterion = cast(DPSlicedWassersteinLoss, self.criterion)
        release = criterion.release(private, rows=self.row_function)
        self.released = release.to(self.device)

    def _distance(self, adapted: Tensor, features: Tensor) -> Tensor:
        """Return the distance of source records to the release.

        Its unit is that of the space, squared.
        """
        if self.features is None:
            rows = self.row_function(adapted)
        else:
            rows = self.features.rows(features)
        criterion = cast(DPSlicedWassersteinLoss, self.criterion)
        distance = criterion.distance(cast(Any, self.released), rows)
        diameter = 2 * float(self.row_function.radius)
        return self.row_function.dim * diameter**2 * distance

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Log the accuracy on adapted source records that are not trained on; all public."""
        records, classes = batch
        predicted = self(records).argmax(1)
        accuracy = (predicted == classes).float().mean()
        self.log("source_accuracy", accuracy, prog_bar=True, batch_size=len(records))

    def forward(self, records: Tensor) -> Tensor:
        """Return the scores (n, C) of source records, which are adapted first."""
        if self.adapter is not None:
            records = self.adapter(records)
        return cast(Tensor, self.classifier(self.encoder(records)))

    def sample_images(self) -> dict[str, Tensor]:
        """Return ten source images, and the same ones adapted, for ``SampleGrid``.

        The source is public. The dictionary is empty without an adapter, before the first step,
        and where records are not images.
        """
        is_image = self._shown.dim() == 4 and self._shown.shape[1] in (1, 3)
        if self.adapter is None or not is_image:
            return {}
        return {"source": self._shown, "source, adapted": self.adapter(self._shown)}

    def configure_optimizers(self) -> Any:
        """Return Adam, and a schedule with a warm-up and a cosine."""
        trained = [*self.encoder.parameters(), *self.classifier.parameters()]
        groups: list[dict[str, Any]] = [{"params": trained, "lr": self.lr}]
        if self.adapter is not None:
            groups.append({"params": list(self.adapter.parameters()), "lr": self.adapter_lr})
        optimiser = torch.optim.Adam(groups)
        factor = partial(warm_up_and_cosine, n_steps=n_steps_of(self.trainer))
        return with_schedule(optimiser, LambdaLR(optimiser, factor))


def _check_batch(batch: Any) -> None:
    """Raise unless a batch has labelled source records and a private target."""
    kinds = type(batch).__name__
    if isinstance(batch, dict):
        source = batch.get("source")
        is_labelled = isinstance(source, tuple | list) and len(source) == 2
        if is_labelled and isinstance(batch.get("target"), PrivateBatch):
            return
        kinds = ", ".join(f"{name}: {type(entry).__name__}" for name, entry in batch.items())
    raise InputError(
        "Expected a dictionary of loaders, source=SourceLoader(X, y, batch_size=...) and "
        f"target=ReleaseLoader(PrivateRecords(X), ...), got batches of {kinds}; pass both loaders "
        "by these names."
    )


def _check_networks(encoder: nn.Module, classifier: nn.Module, data: AdaptationData) -> None:
    """Refuse networks of this library that were made for other records or classes."""
    shape = getattr(encoder, "sample_shape", data.sample_shape)
    if tuple(shape) != data.sample_shape:
        raise InputError(
            f"Expected an encoder of records of shape {data.sample_shape}, as the source, got one "
            f"of shape {tuple(shape)}; set model.encoder, or data.size of images."
        )
    n_classes = getattr(classifier, "n_classes", len(data.class_names))
    if n_classes != len(data.class_names):
        raise InputError(
            f"Expected n_classes={len(data.class_names)} of the classifier, as the source, got "
            f"{n_classes}; set model.classifier.n_classes."
        )


def _check_source_shape(records: Tensor, adapter: nn.Module | None, space: FeatureMap) -> None:
    """Refuse source records of another shape than that which the space maps.

    That shape is the one of the target.
    """
    adapted = records
    if adapter is not None:
        adapted = adapter(records)
    shape = tuple(adapted.shape[1:])
    if shape != space.sample_shape:
        raise InputError(
            f"Expected source records of shape {space.sample_shape}, as space has for source and "
            f"target, got {shape}; give source, target and space one shape."
        )


def _warn_of_pixels(source: Tensor, target: PrivateBatch) -> None:
    """Warn of source images whose pixels leave [0, 1], where those of the target lie."""
    if target.records is None or len(target.records.shape) != 3:
        return
    low = float(source.min())
    high = float(source.max())
    if low >= 0 and high <= 1:
        return
    warnings.warn(
        f"Expected source images with pixels in [0, 1], as the private images have, got pixels "
        f"from {low:.3g} to {high:.3g}; map them there by public constants, as (x + 1) / 2 does "
        "from [-1, 1].",
        UtilityWarning,
        stacklevel=2,
    )


def _whole_blocks(n_records: int, n_quantiles: int) -> int:
    """Return how many records blocks of equal sizes can hold; a few may be left out."""
    if n_records < n_quantiles:
        raise InputError(
            f"Expected n_quantiles <= {n_records}, the target records of a release, got "
            f"{n_quantiles}; lower n_quantiles."
        )
    return n_records - n_records % n_quantiles


def _n_features(encoder: nn.Module) -> int:
    """Return the number of features of an encoder, its attribute ``dim``."""
    dim = getattr(encoder, "dim", None)
    if not isinstance(dim, int):
        raise InputError(
            f"Expected an encoder with the attribute dim, the number of its features, got "
            f"{type(encoder).__name__} without it; set self.dim in its constructor."
        )
    return dim
