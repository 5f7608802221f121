"""LightningModules that train a generator by DP-SWD.

:class:`GeneratorModule` makes releases during the training, as in the paper; :class:`MomentModule`
makes all of them before the first step.
"""

import inspect
import warnings
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import lightning as L
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

from dpswd._labels import labels_from_one
from dpswd._progress import say
from dpswd._validate import at_least, padded_size, positive, stated_at_least
from dpswd.errors import InputError, UtilityWarning
from dpswd.features.frequencies import Frequencies
from dpswd.features.maps import FeatureMap
from dpswd.lightning._plan import records_of
from dpswd.lightning._trial import check_shape_of, trial
from dpswd.lightning.budget import budget_of, required_budget
from dpswd.lightning.checkpoints import KeepsRelease
from dpswd.lightning.schedules import n_steps_of, one_cycle, with_schedule
from dpswd.loss import DPSlicedWassersteinLoss, Release
from dpswd.mechanism import ProjectionMechanism
from dpswd.moments import MOST_FREQUENCIES, MomentMatcher
from dpswd.networks.generator import Generator
from dpswd.networks.image_generators import ShuffleGenerator
from dpswd.networks.principal_generator import PrincipalGenerator
from dpswd.principal import PrincipalSlices, SlicePlan, plan_slices
from dpswd.records import PrivateBatch, PrivateRecords
from dpswd.row_copy import LabelledRows, RowFunction

__all__ = ["GeneratorModule", "MomentModule"]

# Norm of the one-hot class that labels="concat" appends to a row, whose own norm is at most 1/2.
_LABEL_NORM = 0.25

# Records that are drawn and mapped before the first release, to see that the parts fit.
_N_TRIED = 2

# Generated records of a step, unless another number is stated.
_GENERATED = 500

# Generated pixels that lie farther than this from [0, 1] are in other units than private ones.
_FAR = 4

# Data that a GeneratorModule reads.
_DATA_OF_GENERATOR = (
    "pass trainer.fit datamodule=PrivateDataModule('records.npz'), also for arrays, which "
    "np.savez('records.npz', images=X, labels=y) saves"
)

# Block means per column of rows that are not whitened.
_N_QUANTILES = 100


class GeneratorModule(KeepsRelease):
    """Fits a generator to the noisy projections of private batches.

    A training step makes one release if its batch has records, and trains on the last release in
    any case. The callback :class:`~dpswd.PrivacyBudget` calibrates the noise.

    Labels are private. ``labels="blocks"`` releases the statistic of every class; ``"concat"``
    appends the one-hot class, times 1/4, to the row before it is clipped; ``"none"`` ignores the
    classes.

    With ``whiten=True`` all releases are made at the start
    (:class:`dpswd.principal.PrincipalSlices`): means and a second moment, whose leading directions
    are scaled, then block means of all records in them, for each class. A
    :class:`~dpswd.networks.principal_generator.PrincipalGenerator` starts at the released means and
    deviations.

    Args:
        generator: Maps latent codes and classes to records.
        features: Public map from private and generated records to the rows that are projected.
        batch_size: Number B of records in a release, that of the loader; ``None`` with ``whiten``,
            which reads all records; the slices read as many of them as fill their blocks.
        n_projections: Number of directions; ``None`` for the dimension of the rows, or 30 bases
            with ``whiten``. With ``kind="orthogonal"``, the sensitivity of a multiple of that
            dimension is a constant. ``None`` with ``kind="structured"`` is one frame.
        n_quantiles: Block means per column (``statistic="quantiles"``); ``None`` for 100, or for
            the choice of :func:`dpswd.principal.plan_slices` with ``whiten``.
        statistic: ``"quantiles"`` or ``"rows"``.
        kind: ``"orthogonal"``, ``"iid"`` or, without ``whiten``, ``"structured"`` directions, as of
            :class:`~dpswd.ProjectionMechanism`.
        bound: Treatment of the random sensitivity of ``"iid"`` directions: ``"exact"``,
            ``"bernstein"``, or ``"clt"`` (not rigorous).
        failure_prob: Tail probability per release of the Bernstein and CLT bounds; ``None`` for the
            choice of the accountant.
        whiten: Whether rows are reduced to scaled principal directions, which are released first.
        labels: How classes enter a record.
        generated: Number of generated records per step, spread evenly over the classes. With
            ``whiten`` it is rounded down to two batches of every class, of one record or more each,
            and a line says so.
        lr: Largest learning rate of Adam; it decays to a tenth over the run (cosine schedule), or
            with ``whiten`` to zero after a warm-up.

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
        batch_size: int | None = None,
        n_projections: int | None = None,
        n_quantiles: int | None = None,
        statistic: Literal["rows", "quantiles"] = "quantiles",
        kind: Literal["iid", "orthogonal", "structured"] = "orthogonal",
        bound: Literal["exact", "bernstein", "clt"] = "exact",
        failure_prob: float | None = None,
        whiten: bool = False,
        labels: Literal["blocks", "concat", "none"] = "blocks",
        generated: int = _GENERATED,
        lr: float = 2e-3,
    ) -> None:
        super().__init__()
        at_least(1, generated=generated)
        stated_at_least(
            1, batch_size=batch_size, n_projections=n_projections, n_quantiles=n_quantiles
        )
        positive(lr=lr)
        self.save_hyperparameters(ignore=["generator", "features"])
        _check_parts(generator, features, has_labels=labels != "none")
        self.generator = generator
        self.features = features
        self.labels = labels
        self.generated = generated
        self.lr = lr
        self.slices: PrincipalSlices | None = None
        self.releases_once = whiten
        self._private_rows: RowFunction
        self._choices = _Choices(n_projections, n_quantiles, statistic, kind, bound, failure_prob)
        if whiten:
            _check_whitened(self._choices, batch_size, labels, generator.n_classes)
            _check_frequencies(generator, features)
            self.generated = _two_batches_of_each(generated, generator.n_classes)
            return
        if batch_size is None:
            raise InputError(
                "Expected batch_size, the records of a release, got none; set it for a release of "
                "each batch, or whiten=True for releases of all records, made once."
            )
        self.criterion = DPSlicedWassersteinLoss(self._mechanism(batch_size))
        self.criterion.remedy_of_long_rows = features.remedy_of_long_rows
        if labels == "concat":
            self._private_rows = LabelledRows(RowsWithClasses(features, generator.n_classes))
        else:
            self._private_rows = features

    def _mechanism(self, batch_size: int) -> ProjectionMechanism:
        """Return the mechanism of a release of rows that are not whitened."""
        choices = self._choices
        dim = self.features.dim
        if self.labels == "concat":
            dim += self.generator.n_classes
        n_projections = choices.n_projections
        if n_projections is None:
            n_projections = dim
            if choices.kind == "structured":
                n_projections = padded_size(dim)
        n_quantiles = None
        if choices.statistic == "quantiles":
            n_quantiles = choices.n_quantiles or _N_QUANTILES
        n_classes = None
        if self.labels == "blocks":
            n_classes = self.generator.n_classes
        return ProjectionMechanism(
            dim=dim,
            n_projections=n_projections,
            batch_size=batch_size,
            statistic=choices.statistic,
            n_quantiles=n_quantiles,
            kind=choices.kind,
            bound=choices.bound,
            failure_prob=choices.failure_prob,
            n_classes=n_classes,
        )

    def setup(self, stage: str) -> None:
        """Plan the releases of whitened rows by the number of records and the budget."""
        if not self.releases_once or self.slices is not None:
            return
        records = _required_records(self.trainer)
        n_classes = self.generator.n_classes
        mu = required_budget(self.trainer).mu
        plan = plan_slices(len(records), n_classes, mu, self.features.dim)
        plan = self._choices.changed(plan, len(records))
        self.slices = PrincipalSlices(
            self.features,
            n_classes,
            plan,
            kind=self._choices.kind,
            bound=self._choices.bound,
            failure_prob=self._choices.failure_prob,
        )
        self.criterion = self.slices.criterion
        generator = self.generator
        if isinstance(generator, PrincipalGenerator):
            self.generator = generator.with_directions(plan.n_directions)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the last release; refuse one of other sizes, as another budget has.

        ``load_from_checkpoint`` restores the generator alone, since a module without a trainer has
        no plan of its slices.
        """
        super().on_load_checkpoint(checkpoint)
        if self.slices is None:
            if self.releases_once:
                _drop_slices(checkpoint["state_dict"])
            return
        for name, own in self.slices.state_dict().items():
            stored = checkpoint["state_dict"].get(f"slices.{name}")
            if stored is not None and stored.shape != own.shape:
                raise InputError(
                    f"Expected slices of shape {tuple(stored.shape)} as in the checkpoint, got "
                    f"shape {tuple(own.shape)}, which follows from {_sizes(self.trainer)}; resume "
                    "with target_epsilon, target_delta, data and model of the run of the "
                    "checkpoint."
                )

    def on_fit_start(self) -> None:
        """Raise an InputError if records, generator, features or budget do not fit.

        Two records of random codes are drawn and mapped, which costs nothing.
        """
        budget = budget_of(self.trainer)
        if budget is not None and budget.stated_sample_size is not None:
            raise InputError(
                f"Expected a PrivacyBudget without sample_size for {type(self).__name__}, which "
                f"reads no tensors, got sample_size={budget.stated_sample_size}; leave it and "
                f"n_releases out, and {_DATA_OF_GENERATOR}."
            )
        records = records_of(self.trainer)
        if records is not None:
            required_budget(self.trainer)
            _check_shape(records.shape, self.generator)
            if self.labels != "none":
                _check_classes(records.n_classes, self.generator)
        _check_first_draw(self.generator, self.features)

    def on_train_start(self) -> None:
        """Release the principal directions of whitened rows; a resumed run has them."""
        if self.slices is None or self.slices.has_directions:
            return
        self.slices.release_directions(_required_records(self.trainer))
        if isinstance(self.generator, PrincipalGenerator):
            self.generator.start_at(**asdict(self.slices.start()))

    def training_step(self, batch: PrivateBatch, batch_idx: int) -> Tensor:
        """Make a release if the batch has records; return the loss to the last release.

        Raises:
            InputError: If the batch is not one of a loader of private batches.
        """
        if not isinstance(batch, PrivateBatch):
            raise InputError(
                f"Expected a private batch in {type(self).__name__}, got {type(batch).__name__}; "
                f"{_DATA_OF_GENERATOR}, and a PrivacyBudget among the callbacks."
            )
        if len(batch):
            self._release(batch)
        if self.released is None:
            raise InputError(
                "Expected a release before the first free step, got none; resume from a checkpoint."
            )
        classes = _even_classes(self.generated, self.generator.n_classes, self.device)
        latent = self.generator.latent(len(classes))
        if self.slices is not None:
            loss = self._distance_of_slices(self.slices, latent, classes)
        else:
            loss = self._distance_of_rows(self.released, latent, classes)
        self.log("loss", loss, prog_bar=True, batch_size=1)  # a function of released values
        return loss

    def _release(self, batch: PrivateBatch) -> None:
        """Make a release of a batch."""
        if self.slices is None:
            release = self.criterion.release(batch, rows=self._private_rows)
        else:
            release = self.slices.release_slices(batch)
        self.released = release.to(self.device)

    def _distance_of_slices(
        self, slices: PrincipalSlices, latent: Tensor, classes: Tensor
    ) -> Tensor:
        """Return the loss of generated records in principal coordinates."""
        labels = None
        if self.generator.n_classes:
            labels = classes
        if isinstance(self.generator, PrincipalGenerator):
            return slices.distance(self.generator.coordinates(latent, classes), labels)
        return slices.loss(self.generator(latent, classes), labels)

    def _distance_of_rows(self, released: Release, latent: Tensor, classes: Tensor) -> Tensor:
        """Return the loss of generated records in the rows of the feature map."""
        records = self.generator(latent, classes)
        if isinstance(self._private_rows, LabelledRows):
            rows, _ = self._private_rows.function(records, classes)
        else:
            rows = self._private_rows(records)
        blocks = None
        if self.labels == "blocks":
            blocks = classes
        return self.criterion.distance(released, rows, blocks)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Return Adam with a schedule; see ``lr``."""
        if self.releases_once:
            return _adam_in_one_cycle(self, self.generator, self.lr)
        optimiser = torch.optim.Adam(self.generator.parameters(), lr=self.lr, betas=(0.5, 0.99))
        schedule = CosineAnnealingLR(optimiser, n_steps_of(self.trainer), eta_min=self.lr / 10)
        return with_schedule(optimiser, schedule)


def _check_shape(shape: tuple[int, ...], generator: Generator) -> None:
    """Refuse records of another shape, before a ledger is written."""
    drawn = tuple(generator.sample_shape)
    if tuple(shape) == drawn:
        return
    remedy = (
        f"give generator and features the sample_shape {tuple(shape)}, in dpswd fit by "
        f'--model.generator.sample_shape "{list(shape)}" and --model.features.sample_shape'
    )
    if isinstance(generator, PrincipalGenerator) and generator.features.size > min(shape[1:]):
        size = min(shape[1:])
        remedy += f", and both size={size} (--model.generator.size, --model.features.size)"
    if len(shape) == len(drawn) == 3:
        channels, _, side = drawn
        remedy += (
            f"; or, for images of a folder, pass size={side} (--data.size {side}) and "
            f"channels={channels} (--data.channels {channels})"
        )
    raise InputError(
        f"Expected records of shape {drawn}, which the generator draws, got {tuple(shape)}; "
        f"{remedy}."
    )


def _check_classes(n_classes: int, generator: Generator) -> None:
    """Refuse a generator of another number of classes than the records."""
    if n_classes == generator.n_classes:
        return
    if not n_classes:
        raise InputError(
            f"Expected records with labels, as n_classes={generator.n_classes} of the generator, "
            "got records without; pass path= (--path) of records with labels, and for a table "
            "target= (--target), the column of its classes; or set labels='none' "
            "(--model.labels none) and n_classes=0 (--model.generator.n_classes 0)."
        )
    name = type(generator).__name__
    remedy = f"set n_classes={n_classes} (--model.generator.n_classes {n_classes})"
    if "n_classes" not in inspect.signature(type(generator)).parameters:
        remedy = (
            f"write n_classes={n_classes} in the call of super().__init__ in {name}, whose "
            "constructor has no argument n_classes"
        )
    if n_classes == generator.n_classes + 1:
        remedy = f"{labels_from_one(generator.n_classes)}; otherwise, {remedy}"
    raise InputError(
        f"Expected n_classes={n_classes} of the generator, as the data, got {generator.n_classes}; "
        f"{remedy}."
    )


def _check_first_draw(generator: Generator, features: FeatureMap) -> None:
    """Refuse a generator whose records the features do not map.

    It is called before the first release. The codes are random, so that the draw is public and
    costs nothing.
    """
    name = type(generator).__name__
    codes = f"codes (n, {generator.latent_dim}) and classes (n,)"
    with trial(generator, f"{name}.forward to map {codes} to records"):
        latent = generator.latent(_N_TRIED)
        classes = _even_classes(_N_TRIED, generator.n_classes, latent.device)
        records = generator(latent, classes)
    with trial(generator, f"records from {name} that {type(features).__name__} maps"):
        remedy = "make its forward return records of its sample_shape"
        shape = generator.sample_shape
        check_shape_of(records, _N_TRIED, shape, f"records from {name}", remedy)
        rows = features(records)
        name = f"rows from {type(features).__name__}"
        remedy = "set its dim to the number of its columns"
        check_shape_of(rows, _N_TRIED, (features.dim,), name, remedy)
    _warn_of_pixels(records, type(generator).__name__)


def _warn_of_pixels(images: Tensor, name: str) -> None:
    """Warn of generated images whose pixels lie far outside [0, 1]; they are public.

    Those of an untrained network without a last sigmoid lie a little outside.
    """
    if images.dim() != 4:
        return
    low = float(images.min())
    high = float(images.max())
    if low < -_FAR or high > 1 + _FAR:
        warnings.warn(
            f"Expected images from {name} with pixels in [0, 1], as private images have, got "
            f"pixels from {low:.3g} to {high:.3g}; end its forward with a sigmoid, or divide its "
            "images by a constant, such as 255.",
            UtilityWarning,
            stacklevel=2,
        )


def _check_frequencies(generator: Generator, features: FeatureMap) -> None:
    """Refuse whitened rows of other frequencies than those that the generator draws."""
    if not isinstance(generator, PrincipalGenerator):
        return
    own = generator.features
    if not isinstance(features, Frequencies):
        raise InputError(
            f"Expected features of class Frequencies with whiten, as the generator has, got "
            f"{type(features).__name__}; pass Frequencies(sample_shape, size={own.size}). Nothing "
            "was released."
        )
    for name in ("size", "chroma_size", "centre"):
        expected = getattr(own, name)
        actual = getattr(features, name)
        if actual != expected:
            raise InputError(
                f"Expected features with {name}={expected}, as the generator has, got {actual}; "
                f"give both the same {name}. Nothing was released."
            )


class RowsWithClasses(nn.Module):
    """Appends the one-hot class of a record, times 1/4, to its row.

    A release copies its row function. This one holds the feature map alone, so that the generator
    and the last release are not copied.

    Args:
        features: Maps records to rows.
        n_classes: Number of classes.

    Example:
        >>> from dpswd.features.maps import Flatten
        >>> row_function = RowsWithClasses(Flatten((1, 1, 2)), n_classes=2)
        >>> rows, classes = row_function(torch.zeros(1, 1, 1, 2), torch.tensor([1]))
        >>> rows[:, 2:]
        tensor([[0.0000, 0.2500]])
    """

    def __init__(self, features: FeatureMap, n_classes: int) -> None:
        super().__init__()
        self.features = features
        self.n_classes = n_classes

    def forward(self, records: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of records (n, ...), and their classes (n,)."""
        rows = self.features(records)
        one_hot = torch.nn.functional.one_hot(classes, self.n_classes)
        return torch.cat([rows, _LABEL_NORM * one_hot.to(records.dtype)], dim=1), classes


class MomentModule(L.LightningModule):
    """Trains a generator to match released moments, which is not DP-SWD.

    The moments are means and second moments. All releases are made at the start, and every step is
    post-processing.

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

    def on_fit_start(self) -> None:
        """Raise an InputError if the generator has another shape than the records."""
        _check_shape(_required_records(self.trainer).shape, self.generator)
        _check_first_draw(self.generator, _frequencies_of(self.generator))

    def on_train_start(self) -> None:
        """Make the releases and start the generator at them.

        A resumed run has both from its checkpoint.
        """
        if self.matcher.is_released:
            return
        self.matcher.make_releases(_required_records(self.trainer))
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
        return _adam_in_one_cycle(self, self.generator, self.lr)


@dataclass(frozen=True)
class _Choices:
    """Options of the mechanism of a GeneratorModule.

    ``None`` leaves a number to the library.
    """

    n_projections: int | None
    n_quantiles: int | None
    statistic: Literal["rows", "quantiles"]
    kind: Literal["iid", "orthogonal", "structured"]
    bound: Literal["exact", "bernstein", "clt"]
    failure_prob: float | None

    def changed(self, plan: SlicePlan, n_records: int) -> SlicePlan:
        """Return a plan with the numbers that are stated."""
        if self.n_projections is not None:
            if self.n_projections % plan.n_directions:
                raise InputError(
                    f"Expected n_projections to be a multiple of {plan.n_directions}, the number "
                    f"of principal directions, got {self.n_projections}."
                )
            plan = plan._replace(n_bases=self.n_projections // plan.n_directions)
        if self.n_quantiles is not None:
            if not 1 <= self.n_quantiles <= n_records:
                raise InputError(
                    f"Expected n_quantiles from 1 to {n_records}, got {self.n_quantiles}."
                )
            batch_size = n_records // self.n_quantiles * self.n_quantiles
            plan = plan._replace(n_quantiles=self.n_quantiles, batch_size=batch_size)
        return plan


def _check_whitened(choices: _Choices, batch_size: int | None, labels: str, n_classes: int) -> None:
    """Raise an InputError for options that ``whiten`` does not have."""
    if batch_size is not None:
        raise InputError(
            f"Expected no batch_size with whiten, which chooses it, got {batch_size}; leave it out."
        )
    if choices.statistic != "quantiles":
        raise InputError(f"Expected statistic='quantiles' with whiten, got {choices.statistic!r}.")
    if choices.kind == "structured":
        raise InputError(
            "Expected kind='orthogonal' or 'iid' with whiten, whose rows are short, got "
            "'structured'."
        )
    if labels == "concat" or (labels == "none") != (n_classes == 0):
        raise InputError(
            "Expected labels='blocks' with whiten, or 'none' for a generator without classes, "
            f"got {labels!r}."
        )


def _drop_slices(state: dict[str, Any]) -> None:
    """Remove the released slices from the state of a module."""
    for name in list(state):
        if name.startswith(("slices.", "criterion.")):
            del state[name]


def _two_batches_of_each(generated: int, n_classes: int) -> int:
    """Return the number of generated records of a step.

    They are two equal batches of every class. The number is rounded down, but to no less than one
    record in each batch, and a line says so.
    """
    step = 2 * max(1, n_classes)
    rounded = max(step, generated - generated % step)
    if rounded != generated:
        batches = f"two batches of {rounded // step:,}"
        if n_classes:
            batches += f" for each of {n_classes} classes"
        origin = ", the default," if generated == _GENERATED else ""
        say(
            f"Each step generates {rounded:,} records: {batches}; generated={generated}{origin} is "
            f"no multiple of {step}."
        )
    return rounded


def _required_records(trainer: L.Trainer) -> PrivateRecords:
    """Return the records of the data module; refuse a trainer without them."""
    records = records_of(trainer)
    if records is None:
        raise InputError(
            "Expected a data module with private records for releases of all of them, got loaders "
            f"or another data module; {_DATA_OF_GENERATOR}."
        )
    return records


def _sizes(trainer: L.Trainer) -> str:
    """Return the numbers that the sizes of slices follow from, for a message."""
    budget = required_budget(trainer)
    return (
        f"target_epsilon={budget.target_epsilon:g}, target_delta={budget.target_delta:g} and "
        f"{len(_required_records(trainer)):,} records"
    )


def _adam_in_one_cycle(
    module: L.LightningModule, generator: Generator, lr: float
) -> OptimizerLRSchedulerConfig:
    """Return Adam, and a schedule with a warm-up and a cosine."""
    optimiser = torch.optim.Adam(generator.parameters(), lr=lr, betas=(0.9, 0.99))
    factor = partial(one_cycle, n_steps=n_steps_of(module.trainer))
    return with_schedule(optimiser, LambdaLR(optimiser, factor))


def _check_parts(generator: Generator, features: FeatureMap, *, has_labels: bool) -> None:
    """Raise an InputError unless generator, features and private labels fit."""
    if not isinstance(generator, Generator):
        raise InputError(
            "Expected the generator to be a subclass of dpswd.networks.generator.Generator, got "
            f"{type(generator).__name__}; derive your network from it."
        )
    if has_labels and not generator.n_classes:
        raise InputError(
            "Expected a generator with n_classes for private labels, got 0; or set labels: none."
        )
    generated_shape = tuple(generator.sample_shape)
    mapped_shape = tuple(features.sample_shape)
    if generated_shape != mapped_shape:
        raise InputError(
            "Expected one sample_shape for generator and features, "
            f"got {generated_shape} and {mapped_shape}; give both the shape of the records."
        )


def _frequencies_of(generator: Generator) -> FeatureMap:
    """Return the frequencies of a moment matcher.

    They are those of the generator, or the lowest ones.
    """
    if isinstance(generator, ShuffleGenerator):
        return generator.features
    sides = generator.sample_shape[1:]
    return Frequencies(generator.sample_shape, min(MOST_FREQUENCIES, *sides))


def _even_classes(n: int, n_classes: int, device: torch.device) -> Tensor:
    """Return classes (n,) in turn, such as 0, 1, 2, 0, 1; zeros without classes."""
    return torch.arange(n, device=device) % max(1, n_classes)
