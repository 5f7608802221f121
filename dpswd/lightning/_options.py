"""Options of a Trainer that mean something else where releases are real."""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import lightning as L
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from dpswd.errors import InputError, PrivacyWarning, UtilityWarning
from dpswd.lightning._plan import batches_per_step
from dpswd.sampling import FixedSizeSampler, ReleaseLoader

__all__ = [
    "refuse_epochs",
    "refuse_trial_run",
    "warn_of_few_steps",
    "warn_of_idle_early_stopping",
    "warn_of_validation",
]

# Samplers of torch whose batches are no uniform subsets that are drawn afresh.
_EPOCHS = (
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)


def refuse_trial_run(trainer: L.Trainer) -> None:
    """Refuse ``fast_dev_run``, whose releases would be as real as those of any run.

    Raises:
        InputError: If the trainer has it.
    """
    any_trainer: Any = trainer
    if any_trainer.fast_dev_run:
        raise InputError(
            f"Expected no fast_dev_run, got {any_trainer.fast_dev_run}: its releases are real, and "
            "it would spend the whole plan. Leave it out; to try the code, train on public "
            "stand-ins of the records with target_epsilon=inf (--privacy.target_epsilon inf)."
        )


def refuse_epochs(loaders: Sequence[Any], batch_size: int | None, sample_size: int) -> None:
    """Refuse loaders of tensors that cannot have the batches of the account.

    These are fresh uniform subsets of B of the N records. Which of several loaders has the private
    records is not known. For example, the loader of a public source may pass through it in epochs
    if that of the private target draws fresh subsets.

    Args:
        loaders: All training loaders.
        batch_size: Number B of records in a release; ``None`` for a query of all records.
        sample_size: Number N of records.

    Raises:
        InputError: If all loaders of B < N records have a sampler of torch, or draw subsets of
            another number of records.
    """
    if batch_size is None or batch_size >= sample_size:
        return
    sampler = _sampler_of_epochs(loaders, batch_size)
    if sampler is not None:
        raise InputError(
            "Expected batches that are fresh random subsets, which the account assumes, got a "
            f"DataLoader with a {type(sampler).__name__}, which passes through the records in "
            f"epochs; pass DataLoader(dataset, batch_sampler=FixedSizeSampler({sample_size}, "
            f"{batch_size}, n_steps=...)), or PrivateRecords with a ReleaseLoader."
        )
    numbers = [batches.sample_size for batches in _fixed_size_samplers(loaders)]
    if numbers and sample_size not in numbers:
        raise InputError(
            f"Expected PrivacyBudget with sample_size={numbers[0]}, from which the "
            f"FixedSizeSampler draws, got {sample_size}; make them equal."
        )


def _sampler_of_epochs(loaders: Sequence[Any], batch_size: int) -> Any:
    """Return a sampler of epochs if all batches come from such samplers."""
    samplers = []
    for loader in loaders:
        if not isinstance(loader, DataLoader):
            return None  # a loader of the user may draw fresh subsets
        batches = loader.batch_sampler
        if type(batches) is not BatchSampler:
            return None
        if loader.batch_size == batch_size and isinstance(batches.sampler, _EPOCHS):
            samplers.append(batches.sampler)
    if not samplers:
        return None
    return samplers[0]


def _fixed_size_samplers(loaders: Sequence[Any]) -> list[FixedSizeSampler]:
    """Return the samplers of fresh subsets of all loaders."""
    samplers: list[Any] = []
    for loader in loaders:
        if isinstance(loader, DataLoader):
            samplers.append(loader.batch_sampler)
    return [sampler for sampler in samplers if isinstance(sampler, FixedSizeSampler)]


def warn_of_validation(trainer: L.Trainer, module: L.LightningModule) -> None:
    """Say that no budget counts what validation steps read.

    The data modules of this library validate on public records, and say so by the attribute
    ``validates_on_public``. A validation step that reads a private batch is refused when it makes
    its release.
    """
    if getattr(getattr(trainer, "datamodule", None), "validates_on_public", False):
        return
    loaders = trainer.val_dataloaders
    if isinstance(loaders, ReleaseLoader):
        return
    name = type(module).__name__
    warnings.warn(
        f"The validation steps of {name} read records that no budget counts. They must be public: "
        "a metric on private records is a release without noise, and so is stopping, or choosing "
        "a checkpoint or a learning rate, by it.",
        PrivacyWarning,
        stacklevel=2,
    )


def warn_of_idle_early_stopping(trainer: L.Trainer) -> None:
    """Say that an ``EarlyStopping`` stops nothing in one epoch without validation.

    All batches of a :class:`~dpswd.ReleaseLoader` are one epoch.
    """
    any_trainer: Any = trainer
    is_one_epoch = any_trainer.limit_train_batches == 1.0 and not any_trainer.enable_validation
    if any_trainer.early_stopping_callbacks and is_one_epoch:
        warnings.warn(
            "EarlyStopping looks at its metric at the end of an epoch or of a validation, and this "
            "run is one epoch without validation: it stops nothing. A callback stops a run by "
            "trainer.should_stop = True in on_train_batch_end; the whole plan is counted.",
            UtilityWarning,
            stacklevel=2,
        )


def warn_of_few_steps(
    trainer: L.Trainer, n_releases: int, *, every: int = 1, after: int = 0
) -> None:
    """Say that a training has fewer steps than its planned releases need.

    The steps of a module with manual optimisation are not known, and nothing is said.

    Args:
        trainer: The trainer.
        n_releases: Number of planned releases, at most one in a batch of the training loader.
        every: Batches of the loader per release.
        after: Batches of the loader before its first release.
    """
    n_steps = trainer.estimated_stepping_batches
    if not trainer.lightning_module.automatic_optimization or not 0 < n_steps < math.inf:
        return
    per_step = batches_per_step(trainer)
    n_batches = int(min(trainer.num_training_batches, n_steps * per_step))  # of an epoch
    n_epochs, n_further = divmod(int(n_steps), math.ceil(n_batches / per_step))
    n_reached = n_epochs * _n_releases_in(n_batches, every, after)
    n_reached += _n_releases_in(n_further * per_step, every, after)
    if n_reached >= n_releases:
        return
    options = "trainer.max_epochs or trainer.limit_train_batches"
    if n_steps == trainer.max_steps:
        options = "trainer.max_steps"
    warnings.warn(
        f"The training ends at step {int(n_steps)}, after {n_reached} of {n_releases} planned "
        f"releases, and the whole plan is counted. Raise {options}, or lower n_releases.",
        UtilityWarning,
        stacklevel=2,
    )


def _n_releases_in(n_batches: int, every: int, after: int) -> int:
    """Return the number of releases in the first batches of an epoch."""
    return max(0, math.ceil((n_batches - after) / every))
