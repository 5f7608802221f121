"""Checkpoints that a crash cannot damage.

They are written at the moments that matter to a budget.
"""

import math
import shlex
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.callbacks import ModelCheckpoint

from dpswd._files import atomic_write, verified_archive
from dpswd.errors import DpswdError, InputError
from dpswd.loss import Release

# Checkpoints of a run between its start and its end, and the steps between two of them in a run
# without a limit.
_N_CHECKPOINTS = 20
_STEPS_WITHOUT_LIMIT = 500


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints atomically and verifies their checksums when it reads them.

    Lightning's own plugin copies from a temporary directory, which may be another file system; a
    crash during the copy leaves a partial file.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Save a checkpoint; an InputError leaves an old file unchanged."""
        atomic_write(path, partial(torch.save, checkpoint))

    def load_checkpoint(
        self, path: Any, map_location: Any = "cpu", weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Load a checkpoint.

        An InputError says that the file is missing, damaged, or not a checkpoint.
        """
        try:
            archive = verified_archive(path)
            content: dict[str, Any] = torch.load(
                archive, map_location=map_location, weights_only=weights_only
            )
            dict(content["state_dict"])  # that of a module, in a checkpoint
        except Exception as error:  # torch.load raises many exception types on damaged files
            raise InputError(
                f"Expected a checkpoint at {path}, got no file, or one that cannot be read "
                f"({type(error).__name__}); pass the .ckpt file of a run."
            ) from None
        return content


class LastCheckpoint(ModelCheckpoint):
    """Keeps ``checkpoints/last.ckpt``, from which a run can be resumed.

    It is written before the first release, and then at most twenty times in ``trainer.max_steps``.
    A run without ``max_steps`` writes it twenty times in an epoch, or every 500 steps of an endless
    epoch. ``dpswd fit`` writes it at the end, too.

    Releases are stored by the budget itself, see :mod:`dpswd.budget.budget`.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(
            directory / "checkpoints",
            filename="last",
            every_n_train_steps=1,  # of which on_train_batch_end passes on one per interval
            save_on_exception=True,
            enable_version_counter=False,
        )
        self._interval = 1
        self._has_started = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save before the first release of a new run.

        Every release can then be resumed from.
        """
        super().on_train_start(trainer, pl_module)
        self._has_started = True
        self._interval = _interval_of(trainer)
        if trainer.ckpt_path is None:
            trainer.save_checkpoint(Path(str(self.dirpath)) / "last.ckpt", weights_only=False)

    def on_train_batch_end(self, trainer: L.Trainer, *arguments: Any, **options: Any) -> None:
        """Save at the end of every interval."""
        if trainer.global_step % self._interval == 0:
            super().on_train_batch_end(trainer, *arguments, **options)

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Save, except before the first step, after refused input and on several ranks.

        Several ranks would wait for a lost one. Before the first step a checkpoint is refused that
        does not fit: nothing is trained, and the user has named one to go on from.
        """
        if not self._has_started:
            return
        if not isinstance(exception, InputError) and trainer.world_size == 1:
            super().on_exception(trainer, pl_module, exception)
        last = Path(str(self.dirpath)) / "last.ckpt"
        if not isinstance(exception, DpswdError) and last.exists():
            exception.add_note(
                "To finish the run, which pays for no release twice, add: "
                f"{shlex.join(['--ckpt_path', str(last)])}"
            )


def _interval_of(trainer: L.Trainer) -> int:
    """Return the number of training steps between two checkpoints."""
    n_steps: float = trainer.max_steps
    if n_steps < 1:
        n_steps = trainer.num_training_batches
    if not math.isfinite(n_steps):
        return _STEPS_WITHOUT_LIMIT
    return max(1, math.ceil(n_steps / _N_CHECKPOINTS))


class KeepsRelease(L.LightningModule):
    """Module whose checkpoints hold its last release, which is public.

    A resumed run does not pay for it again.
    """

    released: Release | None = None  # the last one

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store the last release."""
        if self.released is not None:
            checkpoint["released"] = self.released.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the last release."""
        if "released" in checkpoint:
            self.released = Release.from_state_dict(checkpoint["released"])
