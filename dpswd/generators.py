"""What a generator run writes besides its checkpoint: the generator's file, pictures, synthetic records.

A checkpoint is for resuming: it holds optimizer state, counters, and paths of the machine. ``generator.pt`` is the file
to publish. It holds tensors and plain values only, and :func:`read_generator` loads it with ``weights_only=True``.
"""

import inspect
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from dpswd import __version__
from dpswd._files import atomic_write, verified_archive
from dpswd._provenance import mark_runs
from dpswd._validate import at_least
from dpswd.errors import InputError
from dpswd.generation import generators
from dpswd.generation.generators import Generator
from dpswd.training.callback import PrivacyBudget

__all__ = ["GeneratorFile", "SampleGrid", "SyntheticWriter", "read_generator", "write_generator"]

FORMAT = 1
GUARANTEE = (  # facts of privacy.json that state the guarantee
    "private",
    "sound",
    "epsilon",
    "delta",
    "mu",
    "regret",
    "neighboring_relation",
    "run",
    "covered_runs",
    "weights_from_runs",
)
SCOPE = (
    "The guarantee covers the releases of all runs that the weights depend on (weights_from_runs). Releases of other "
    "runs on the same records compose with it."
)


def write_generator(generator: Generator, path: str | Path, guarantee: dict[str, Any] | None = None) -> None:
    """Writes a generator of :mod:`dpswd.generation.generators` atomically.

    Args:
        generator: Its constructor's arguments are attributes of the same names.
        path: File to write.
        guarantee: Facts as in ``privacy.json``; those that state the guarantee are kept, with its scope.

    Raises:
        InputError: If the class is not a public one of :mod:`dpswd.generation.generators`, or the file cannot be
            written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_generator(generators.MLPGenerator((4,), n_classes=2), f"{folder}/generator.pt")
        ...     read_generator(f"{folder}/generator.pt")[0].sample_shape
        (4,)
    """
    name = type(generator).__name__
    if getattr(generators, name, None) is not type(generator):
        raise InputError(
            f"Expected a generator of dpswd.generation.generators, got {name}; save its state_dict instead."
        )
    options = {option: getattr(generator, option) for option in inspect.signature(type(generator)).parameters}
    content = {
        "format": FORMAT,
        "version": __version__,
        "generator": name,
        "options": options,
        "classes": None if generator.class_names is None else list(generator.class_names),
        "guarantee": stated_guarantee(guarantee or {}),
        "state": {key: value.detach().cpu().clone() for key, value in generator.state_dict().items()},
    }
    buffer = io.BytesIO()
    torch.save(content, buffer)
    atomic_write(Path(path), buffer.getvalue())


def stated_guarantee(facts: dict[str, Any]) -> dict[str, Any]:
    """Returns the facts that state the guarantee of the weights, and its scope.

    Weights that have seen releases of further runs get the guarantee of all runs in the shared ledger.
    """
    stated = {key: value for key, value in facts.items() if key in GUARANTEE}
    if set(facts.get("weights_from_runs") or ()) - set(facts.get("covered_runs") or ()):
        across = facts.get("across_runs") or {"sound": False}
        stated |= {name: across.get(name) for name in ("epsilon", "delta", "mu", "regret", "sound")}
    if stated.get("private"):
        stated["scope"] = SCOPE
    return stated


@contextmanager
def read_file(path: str | Path, kind: str, file_format: int) -> Iterator[dict[str, Any]]:
    """Yields the content of a file of weights; no code of the file is run.

    Args:
        path: File written by ``torch.save``.
        kind: What it should hold, for messages.
        file_format: Number that the file should state.

    Raises:
        InputError: If the file is missing, or reading or using its content fails.
    """
    try:
        content = torch.load(verified_archive(path), map_location="cpu", weights_only=True)
        if content["format"] != file_format:
            raise InputError(f"Expected format {file_format} in {path}, got {content['format']!r}; use that version.")
        yield content
    except OSError as error:
        raise InputError(f"Expected a {kind} at {path}, got: {error.strerror}.") from None
    except InputError:
        raise
    except Exception:  # torch.load raises many types on damaged files
        raise InputError(f"Expected a {kind} written by dpswd at {path}, got another or a damaged file.") from None


def read_generator(path: str | Path) -> tuple[Generator, dict[str, Any]]:
    """Reads a generator in evaluation mode, and its guarantee; no code of the file is run.

    Args:
        path: File written by :func:`write_generator`.

    Returns:
        The generator and its guarantee: ``generator(generator.latent(n), labels)`` gives records.

    Raises:
        InputError: If the file is missing or is not a generator.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_generator(generators.MLPGenerator((4,), n_classes=2), f"{folder}/generator.pt", {"epsilon": 1.0})
        ...     generator, guarantee = read_generator(f"{folder}/generator.pt")
        >>> generator(generator.latent(3), torch.tensor([0, 1, 1])).shape, guarantee["epsilon"]
        (torch.Size([3, 4]), 1.0)
    """
    with read_file(path, "generator", FORMAT) as content:
        if content["generator"] not in set(generators.__all__) - {"Generator"}:
            raise InputError(
                f"Expected a generator of dpswd.generation.generators in {path}, got {content['generator']!r}."
            )
        generator: Generator = getattr(generators, content["generator"])(**content["options"])
        generator.load_state_dict(content["state"])
        generator.class_names = content["classes"]
        guarantee: dict[str, Any] = content["guarantee"]
        mark_runs(generator, guarantee.get("weights_from_runs") or ())
    return generator.eval(), guarantee


class GeneratorFile(L.Callback):
    """Writes the generator's file at the end of a fit, with the guarantee of this run.

    The guarantee is that of the trainer's :class:`~dpswd.training.callback.PrivacyBudget`; without a budget the file
    says ``private: False``. No file is written if the module holds no release, as after a crash between the ledger's
    line and the noise.

    Args:
        filename: Name of the file, in the trainer's ``default_root_dir``.

    Raises:
        InputError: If ``filename`` has directories.

    Example:
        >>> callback = GeneratorFile("generator.pt")  # L.Trainer(callbacks=[budget, callback], ...)
        >>> callback.filename
        'generator.pt'
    """

    def __init__(self, filename: str = "generator.pt") -> None:
        if Path(filename).name != filename or not filename:
            raise InputError(f"Expected a file name without directories, got {filename!r}.")
        self.filename = filename

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Writes the file on rank 0."""
        module: Any = pl_module
        if trainer.fast_dev_run or not trainer.is_global_zero:  # type: ignore[attr-defined]
            return
        if getattr(module, "released", module) is None:
            rank_zero_warn(f"The module holds no release, so that {self.filename} is not written.")
            return
        budgets = [each for each in trainer.callbacks if isinstance(each, PrivacyBudget)]  # type: ignore[attr-defined]
        facts = budgets[0].statement() if budgets else {"private": False}
        data: Any = getattr(trainer, "datamodule", None)
        if module.generator.n_classes and getattr(data, "class_names", None):
            module.generator.class_names = data.class_names
        write_generator(module.generator, Path(trainer.default_root_dir) / self.filename, facts)


@torch.no_grad()
def generate(module: Any, labels: Tensor, batch: int = 500) -> Tensor:
    """Generates a record for each class in ``labels`` (n,) in evaluation mode; returns ``(n, *sample_shape)``."""
    training = module.training
    module.eval()
    parts = [module.sample(part.to(module.device)).cpu() for part in labels.split(batch)]
    module.train(training)
    return torch.cat(parts)


def to_bytes(images: Tensor) -> np.ndarray:
    """Converts pixels (n, channels, h, w) in [0, 1] to bytes in torchvision's layout, (n, h, w) or (n, h, w, 3)."""
    pixels: np.ndarray = (images.clamp(0, 1) * 255).round().to(torch.uint8).numpy()
    return pixels[:, 0] if pixels.shape[1] == 1 else pixels.transpose(0, 2, 3, 1)


def save_grid(images: Tensor, path: Path, columns: int) -> None:
    """Writes images as one PNG, small images enlarged."""
    from torchvision.transforms.functional import to_pil_image
    from torchvision.utils import make_grid

    grid = make_grid(images.clamp(0, 1), nrow=columns, padding=1, pad_value=0.5)
    scale = max(1, round(56 / images.shape[-1]))
    buffer = io.BytesIO()
    to_pil_image(grid.repeat_interleave(scale, 1).repeat_interleave(scale, 2)).save(buffer, "PNG")
    atomic_write(path, buffer.getvalue())


class SampleGrid(L.Callback):
    """Writes ``samples.png``, with a row of images per class, during training and at its end.

    Args:
        columns: Images per class.
        every_n_steps: Training steps between pictures; 0 for the last one only.

    Raises:
        InputError: If a value is out of range.

    Example:
        >>> callback = SampleGrid(columns=8, every_n_steps=0)  # L.Trainer(callbacks=[callback], ...)
        >>> callback.columns
        8
    """

    def __init__(self, columns: int = 10, every_n_steps: int = 500) -> None:
        at_least(1, columns=columns)
        at_least(0, every_n_steps=every_n_steps)
        self.columns, self.every_n_steps = columns, every_n_steps

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Writes a picture every ``every_n_steps`` steps."""
        if self.every_n_steps and trainer.global_step and trainer.global_step % self.every_n_steps == 0:
            self._write(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Writes the last picture."""
        self._write(trainer, pl_module)

    def _write(self, trainer: L.Trainer, module: Any) -> None:
        if len(module.generator.sample_shape) != 3 or not trainer.is_global_zero:
            return
        classes = module.generator.n_classes or self.columns
        labels = torch.arange(classes).repeat_interleave(self.columns)
        images = generate(module, labels if module.generator.n_classes else torch.zeros_like(labels))
        save_grid(images, Path(trainer.default_root_dir) / "samples.png", self.columns)


class SyntheticWriter(BasePredictionWriter):
    """Writes the predictions of ``dpswd predict`` as a labelled synthetic data set.

    Images are written as ``data`` (n, h, w[, 3]) in uint8, vectors as ``data`` (n, d) in float32; classes as
    ``targets`` (n,) in int64: the layout of torchvision's data sets.

    Args:
        filename: Name of the file, in the trainer's ``default_root_dir``.

    Raises:
        InputError: If ``filename`` does not end in .npz.

    Example:
        >>> callback = SyntheticWriter("synthetic.npz")  # L.Trainer(callbacks=[callback]).predict(module, data)
        >>> callback.filename
        'synthetic.npz'
    """

    def __init__(self, filename: str = "synthetic.npz") -> None:
        super().__init__("epoch")
        if Path(filename).suffix != ".npz":
            raise InputError(f"Expected filename to end in .npz, got {filename!r}.")
        self.filename = filename

    def write_on_epoch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, predictions: Any, batch_indices: Any
    ) -> None:
        """Writes all predictions into one file."""
        records = torch.cat([part for part, _ in predictions]).cpu()
        labels = torch.cat([part for _, part in predictions]).cpu().numpy()
        data = to_bytes(records) if records.ndim == 4 else records.numpy()
        buffer = io.BytesIO()
        np.savez_compressed(buffer, data=data, targets=labels)
        path = Path(trainer.default_root_dir) / self.filename
        atomic_write(path, buffer.getvalue())
        print(f"{len(data)} synthetic records: {path}")  # noqa: T201  (the result of the command)
