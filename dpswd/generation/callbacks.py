"""What a generator run leaves behind besides its checkpoint: pictures and synthetic records."""

import os
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import BasePredictionWriter
from torch import Tensor

from dpswd._validate import at_least
from dpswd.errors import InputError

__all__ = ["SampleGrid", "SyntheticWriter", "generate", "save_grid", "to_bytes"]


@torch.no_grad()
def generate(module: L.LightningModule, labels: Tensor, batch: int = 500) -> Tensor:
    """Generates a record for each class in ``labels`` (n,), in evaluation mode; returns (n, *sample_shape)."""
    training = module.training
    module.eval()
    parts = [module.sample(part.to(module.device)).cpu() for part in labels.split(batch)]
    module.train(training)
    return torch.cat(parts)


def to_bytes(images: Tensor) -> np.ndarray:
    """Turns pixels (n, channels, h, w) in [0, 1] into bytes in torchvision's layout, (n, h, w) or (n, h, w, 3)."""
    pixels = (images.clamp(0, 1) * 255).round().to(torch.uint8).numpy()
    return pixels[:, 0] if pixels.shape[1] == 1 else pixels.transpose(0, 2, 3, 1)


def save_grid(images: Tensor, path: Path, columns: int) -> None:
    """Writes images as one PNG, small ones enlarged; the old file or the new one, never half."""
    from torchvision.transforms.functional import to_pil_image
    from torchvision.utils import make_grid

    grid = make_grid(images.clamp(0, 1), nrow=columns, padding=1, pad_value=0.5)
    scale = max(1, round(56 / images.shape[-1]))
    picture = to_pil_image(grid.repeat_interleave(scale, 1).repeat_interleave(scale, 2))
    partial = path.with_suffix(".part.png")
    picture.save(partial)
    os.replace(partial, path)


class SampleGrid(L.Callback):
    """Writes ``samples.png``, a row of images for each class, now and then and at the end of training.

    Args:
        columns: Images per class.
        every_n_steps: Training steps between pictures; 0 for the last one only.
    """

    def __init__(self, columns: int = 10, every_n_steps: int = 500) -> None:
        at_least(1, columns=columns)
        at_least(0, every_n_steps=every_n_steps)
        self.columns, self.every_n_steps = columns, every_n_steps

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Writes a picture on its turn."""
        if self.every_n_steps and trainer.global_step % self.every_n_steps == 0:
            self._write(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Writes the last picture."""
        self._write(trainer, pl_module)

    def _write(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if len(module.generator.sample_shape) != 3 or not trainer.is_global_zero:
            return
        classes = module.generator.n_classes or self.columns
        labels = torch.arange(classes).repeat_interleave(self.columns)
        images = generate(module, labels if module.generator.n_classes else torch.zeros_like(labels))
        save_grid(images, Path(trainer.default_root_dir) / "samples.png", self.columns)


class SyntheticWriter(BasePredictionWriter):
    """Turns ``dpswd predict`` into a labelled synthetic data set.

    Images are written as ``data`` (n, h, w[, 3]) in uint8, vectors as ``data`` (n, d) in float32; classes as
    ``targets`` (n,) in int64: the layout of torchvision's data sets.

    Args:
        filename: Name of the file, in the trainer's ``default_root_dir``.
    """

    def __init__(self, filename: str = "synthetic.npz") -> None:
        super().__init__("epoch")
        if Path(filename).suffix != ".npz":
            raise InputError(f"Expected filename to end in .npz, got {filename!r}.")
        self.filename = filename

    def write_on_epoch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, predictions: Any, batch_indices: Any
    ) -> None:
        """Writes everything at once."""
        records = torch.cat([part for part, _ in predictions]).cpu()
        labels = torch.cat([part for _, part in predictions]).cpu().numpy()
        data = to_bytes(records) if records.ndim == 4 else records.numpy()
        path = Path(trainer.default_root_dir) / self.filename
        partial = path.with_suffix(".part.npz")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savez_compressed(partial, data=data, targets=labels)
            os.replace(partial, path)
        except OSError as error:
            raise InputError(f"Expected to write {path}, got: {error.strerror}; choose a writable directory.") from None
        print(f"{len(data)} synthetic records: {path}")  # noqa: T201  (the result of the command)
