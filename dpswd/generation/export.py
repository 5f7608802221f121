"""The one file to hand out: a generator's weights, how to build it, and the guarantee. Nothing else is in it.

A checkpoint is for resuming: it holds the optimizer's moments, counters, and paths of the machine. The file that is
written here holds tensors and plain values only, which :func:`read_generator` takes back with ``weights_only=True``.
"""

import inspect
import io
import os
from pathlib import Path
from typing import Any

import lightning as L
import torch

from dpswd import __version__
from dpswd._files import verified_archive
from dpswd.errors import InputError
from dpswd.generation import generators
from dpswd.generation.generators import Generator
from dpswd.training.callback import PrivacyBudget

__all__ = ["GeneratorFile", "read_generator", "write_generator"]

FORMAT = 1
GUARANTEE = ("private", "sound", "epsilon", "delta", "mu", "regret", "neighboring_relation")  # of privacy.json


def write_generator(generator: Generator, path: str | Path, guarantee: dict[str, Any] | None = None) -> None:
    """Writes a generator of :mod:`dpswd.generation.generators`: the old file or the new one, never half.

    Args:
        generator: Its constructor's arguments are attributes of the same names.
        path: File to write.
        guarantee: Facts as in ``privacy.json``; the few that state the guarantee are kept.

    Raises:
        InputError: If the class is no public one of :mod:`dpswd.generation.generators`, or the file cannot be written.
    """
    name = type(generator).__name__
    if getattr(generators, name, None) is not type(generator):
        raise InputError(
            f"Expected a generator of dpswd.generation.generators, got {name}; save its state_dict yourself."
        )
    options = {option: getattr(generator, option) for option in inspect.signature(type(generator)).parameters}
    facts = {key: value for key, value in (guarantee or {}).items() if key in GUARANTEE}
    state = {key: value.detach().cpu().clone() for key, value in generator.state_dict().items()}
    buffer = io.BytesIO()
    torch.save(
        {
            "format": FORMAT,
            "version": __version__,
            "generator": name,
            "options": options,
            "guarantee": facts,
            "state": state,
        },
        buffer,
    )
    path = Path(path)
    partial = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(buffer.getvalue())
        os.replace(partial, path)
    except OSError as error:
        raise InputError(f"Expected to write {path}, got: {error.strerror}; choose a writable directory.") from None


def read_generator(path: str | Path) -> tuple[Generator, dict[str, Any]]:
    """Reads a generator back, in evaluation mode.

    Returns:
        The generator and its guarantee: ``generator(generator.latent(n), labels)`` gives records.

    Raises:
        InputError: If the file is missing or no generator. No code of the file is run.
    """
    try:
        content = torch.load(verified_archive(path), map_location="cpu", weights_only=True)
        if content["format"] != FORMAT:
            raise InputError(f"Expected format {FORMAT} in {path}, got {content['format']!r}; use the version for it.")
        if content["generator"] not in set(generators.__all__) - {"Generator"}:
            raise InputError(
                f"Expected a generator of dpswd.generation.generators in {path}, got {content['generator']!r}."
            )
        generator: Generator = getattr(generators, content["generator"])(**content["options"])
        generator.load_state_dict(content["state"])
        guarantee: dict[str, Any] = content["guarantee"]
    except OSError as error:
        raise InputError(f"Expected a generator at {path}, got: {error.strerror}.") from None
    except InputError:
        raise
    except Exception:  # what the reader of a damaged file stumbles over has no end
        raise InputError(f"Expected a generator written by dpswd at {path}, got something else.") from None
    return generator.eval(), guarantee


class GeneratorFile(L.Callback):
    """Writes the generator's file at the end of a fit.

    The guarantee is what the :class:`~dpswd.training.callback.PrivacyBudget` among the trainer's callbacks states of this very
    run; files that lie in the directory are not asked. Without a budget the file says ``private: False``.

    Args:
        filename: Name of the file, in the trainer's ``default_root_dir``.
    """

    def __init__(self, filename: str = "generator.pt") -> None:
        if Path(filename).name != filename or not filename:
            raise InputError(f"Expected a file name without directories, got {filename!r}.")
        self.filename = filename

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Writes it, with the guarantee of this run."""
        if trainer.fast_dev_run or not trainer.is_global_zero:
            return
        budgets = [each for each in trainer.callbacks if isinstance(each, PrivacyBudget)]
        facts = budgets[0].statement() if budgets else {"private": False}
        write_generator(pl_module.generator, Path(trainer.default_root_dir) / self.filename, facts)
