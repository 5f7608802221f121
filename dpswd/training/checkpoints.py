"""Checkpoints that a crash cannot hurt: written whole or not at all, and at the moments that matter to a budget.

(Imports Lightning, like :mod:`dpswd.training.callback`.)
"""

import io
import os
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.callbacks import ModelCheckpoint

from dpswd._files import verified_archive
from dpswd.errors import InputError
from dpswd.training.callback import PrivacyBudget
from dpswd.training.checks import batch_length

__all__ = ["LastCheckpoint", "WholeCheckpoints"]

_FEW = 20  # releases up to which each has a checkpoint of its own


class WholeCheckpoints(TorchCheckpointIO):
    """Writes beside the old file and puts the new one in its place when it is on the disk.

    (Lightning's own way passes through the directory for temporary files, which may be another file system; the file
    is then copied, and half of it is what a crash leaves.)
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Saves, or leaves the old file as it was.

        Raises:
            InputError: If the file cannot be written.
        """
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        buffer, partial = io.BytesIO(), Path(f"{path}.part")
        torch.save(checkpoint, buffer)
        try:
            partial.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                file.write(buffer.getbuffer())
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except OSError as error:
            if partial.is_file():
                partial.unlink()
            raise InputError(
                f"Expected to write a checkpoint at {path}, got: {error.strerror}; the run has ended here, the old "
                "checkpoint is as it was: make room and resume."
            ) from None

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: bool | None = None) -> dict[str, Any]:
        """Loads, or says in one sentence that it cannot.

        Raises:
            InputError: If the file is damaged or no checkpoint.
        """
        try:
            if "://" in str(path):
                content = super().load_checkpoint(path, map_location, weights_only)
            else:
                content = torch.load(verified_archive(path), map_location=map_location, weights_only=weights_only)
        except FileNotFoundError:
            raise
        except Exception as error:  # what the reader of a damaged file stumbles over has no end
            raise InputError(
                f"Expected a checkpoint at {path}, got a file that cannot be read ({type(error).__name__}); see "
                "checkpoints/ in the run directory."
            ) from None
        if not isinstance(content, dict) or not isinstance(content.get("state_dict"), dict):
            raise InputError(f"Expected a checkpoint of a run at {path}, got another file; see checkpoints/.")
        return content


class LastCheckpoint(ModelCheckpoint):
    """Keeps ``checkpoints/last.ckpt``: before the first release, twenty times in a run, and when it is interrupted.

    A run of a few releases keeps one after each of them, too, since what it trains on cannot be had again. When a run
    is refused the old file stays as it is; when one of several processes breaks off the others are not waited for.
    """

    def __init__(self, directory: Path, max_steps: int) -> None:
        super().__init__(
            directory / "checkpoints",
            filename="last",
            every_n_train_steps=max(1, max_steps // 20),
            save_on_exception=True,
            enable_version_counter=False,
        )

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Saves before the first release: from here on there is something to resume from."""
        super().on_train_start(trainer, pl_module)
        self._save(trainer, fresh=True)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Saves what a module released before its first step."""
        if trainer.current_epoch == 0:
            self._save(trainer, fresh=True)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Saves on its turn, and after each of a few releases."""
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        budgets = [each for each in trainer.callbacks if isinstance(each, PrivacyBudget)]  # type: ignore[attr-defined]
        few = all(0 < budget.planned <= _FEW for budget in budgets)
        if budgets and few and batch_length(batch) and self._last_global_step_saved != trainer.global_step:
            self._save(trainer)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Saves, unless bad input was refused: then the old files stay as they are."""
        if not isinstance(exception, InputError) and trainer.world_size == 1:
            super().on_exception(trainer, pl_module, exception)

    def _save(self, trainer: L.Trainer, *, fresh: bool = False) -> None:
        if not (fresh and trainer.ckpt_path is not None):
            trainer.save_checkpoint(Path(str(self.dirpath)) / "last.ckpt", weights_only=False)
