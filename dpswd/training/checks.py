"""What a trainer and a module are made of, checked: one loss, its queries, and a loader that draws fresh subsets."""

from typing import Any

from torch import Tensor, nn

from dpswd.errors import InputError
from dpswd.loss import DPSlicedWassersteinLoss
from dpswd.mechanism import ProjectionMechanism
from dpswd.queries import GaussianQuery
from dpswd.sampling import FixedSizeSampler

__all__ = ["batch_length", "the_loss", "the_parts", "the_queries", "the_sampler"]


def the_parts(module: nn.Module) -> list[DPSlicedWassersteinLoss | GaussianQuery]:
    """Returns whatever in a module makes releases: losses and queries, in order."""
    return [child for child in module.modules() if isinstance(child, DPSlicedWassersteinLoss | GaussianQuery)]


def the_queries(module: nn.Module) -> list[GaussianQuery]:
    """Returns the queries of a module, in order."""
    return [child for child in module.modules() if isinstance(child, GaussianQuery)]


def the_loss(module: nn.Module) -> DPSlicedWassersteinLoss:
    """Returns the loss of a module, which must have exactly one.

    Raises:
        InputError: If it has none or several.
    """
    losses = [child for child in module.modules() if isinstance(child, DPSlicedWassersteinLoss)]
    if len(losses) != 1:
        raise InputError(
            f"Expected exactly one DPSlicedWassersteinLoss in {type(module).__name__}, got {len(losses)}; "
            "make it an attribute of the module."
        )
    return losses[0]


def the_sampler(trainer: Any, mechanism: ProjectionMechanism) -> FixedSizeSampler:
    """Returns the sampler of the training loader.

    Raises:
        InputError: If it is not the one that the accountant assumes.
    """
    sampler = getattr(trainer.train_dataloader, "batch_sampler", None)
    if not isinstance(sampler, FixedSizeSampler):
        raise InputError(
            "Expected the training loader to draw fresh fixed-size subsets (batch_sampler=dpswd.FixedSizeSampler), got "
            f"{type(sampler).__name__}; shuffled epochs are not what the accountant assumes."
        )
    if sampler.batch_size != mechanism.batch_size:
        raise InputError(
            f"Expected the loader's batch_size to be the mechanism's, got {sampler.batch_size} and "
            f"{mechanism.batch_size}; make them equal."
        )
    if sampler.noise_seed is not None and mechanism.is_private:
        raise InputError("Expected secret batches, got a sampler with noise_seed; leave it out, or mark the mechanism.")
    records: Any = getattr(trainer.train_dataloader, "dataset", None)
    if hasattr(records, "__len__") and len(records) != sampler.sample_size:
        raise InputError(
            f"Expected sample_size to be the number of records, got {sampler.sample_size} and {len(records)} records; "
            "make the sampler with len(dataset)."
        )
    if trainer.overfit_batches:
        raise InputError("Expected overfit_batches=0, got a repeated batch, which the accountant does not cover.")
    return sampler


def batch_length(batch: Any) -> int:
    """Number of private records in a batch, which may be a tensor or a sequence or mapping of tensors."""
    if isinstance(batch, Tensor):
        return len(batch)
    values = list(batch.values()) if isinstance(batch, dict) else list(batch)
    return batch_length(values[0]) if values else 0
