"""Lightning callbacks that write the generator's file and pictures of its samples."""

from pathlib import Path
from typing import Any

import lightning as L

from dpswd._progress import say
from dpswd._validate import at_least
from dpswd.files.generators import write_generator
from dpswd.files.pictures import save_samples
from dpswd.lightning.budget import PrivacyBudget

__all__ = ["GeneratorFile", "SampleGrid"]


class GeneratorFile(L.Callback):
    """Writes ``generator.pt`` at the end of a fit, with the guarantee of the run; ``dpswd sample`` reads it.

    No file is written if the module holds no release, as after a crash between the ledger's line and the noise.
    """

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the file on rank 0."""
        module: Any = pl_module
        if trainer.fast_dev_run or not trainer.is_global_zero:  # type: ignore[attr-defined]
            return
        if getattr(module, "released", module) is None:
            return
        budgets = [each for each in trainer.callbacks if isinstance(each, PrivacyBudget)]  # type: ignore[attr-defined]
        facts = budgets[0].statement() if budgets else {"private": False}
        records = getattr(getattr(trainer, "datamodule", None), "records", None)
        if records is not None:
            module.generator.class_names, module.generator.layout = records.classes, records.layout
        path = Path(trainer.default_root_dir) / "generator.pt"
        write_generator(module.generator, path, facts)
        say(f"Generator: {path}; dpswd sample {path} draws records.")


class SampleGrid(L.Callback):
    """Writes ``samples.png``, with ten images per class, during training and at its end, and to TensorBoard.

    ``every_n_steps`` are the training steps between pictures; 0 for the last one only.
    """

    def __init__(self, every_n_steps: int = 500) -> None:
        at_least(0, every_n_steps=every_n_steps)
        self.every_n_steps = every_n_steps

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Write a picture every ``every_n_steps`` steps."""
        if (
            self.every_n_steps
            and trainer.global_step
            and trainer.global_step % self.every_n_steps == 0
        ):
            self._write(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the last picture."""
        self._write(trainer, pl_module)

    def _write(self, trainer: L.Trainer, module: Any) -> None:
        generator = module.generator
        if len(generator.sample_shape) != 3 or not trainer.is_global_zero:
            return
        images = save_samples(generator, Path(trainer.default_root_dir) / "samples.png")
        board = getattr(trainer.logger, "experiment", None)
        if board is not None and hasattr(board, "add_image"):
            from torchvision.utils import make_grid

            board.add_image("samples", make_grid(images.clamp(0, 1), nrow=10), trainer.global_step)
