"""Facts of a trainer, its module and its data, from which releases are planned."""

import lightning as L

from dpswd.errors import InputError
from dpswd.mechanism import ProjectionMechanism
from dpswd.records import PrivateRecords


def max_steps_of(trainer: L.Trainer | None, expected: str = "trainer.max_steps") -> int:
    """Return the number of training steps.

    Args:
        trainer: The trainer; ``None`` before there is one.
        expected: Options that state the number, for the message.

    Raises:
        InputError: If the trainer has no limit.
    """
    if trainer is None or trainer.max_steps < 1:
        raise InputError(
            f"Expected {expected}, got none; state the number of steps, since max_epochs does not: "
            "the schedule of the learning rate and the releases are planned by it."
        )
    return trainer.max_steps


def batches_per_step(trainer: L.Trainer | None) -> int:
    """Return the number of batches of a training step, ``accumulate_grad_batches``."""
    return int(getattr(trainer, "accumulate_grad_batches", 1))


def mechanism_of(trainer: L.Trainer | None) -> ProjectionMechanism | None:
    """Return the mechanism of the loss of the module that is trained.

    The result is ``None`` if the module has no loss that releases batches.
    """
    module = getattr(trainer, "lightning_module", None)
    mechanism = getattr(getattr(module, "criterion", None), "mechanism", None)
    if isinstance(mechanism, ProjectionMechanism):
        return mechanism
    return None


def records_of(trainer: L.Trainer) -> PrivateRecords | None:
    """Return the private records of the data module.

    The result is ``None`` without a data module, or with one whose ``records`` are something else.
    """
    records = getattr(getattr(trainer, "datamodule", None), "records", None)
    if isinstance(records, PrivateRecords):
        return records
    return None
