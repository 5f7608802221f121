"""Files of generators: written and read without code."""

import inspect
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpswd import __version__
from dpswd._files import atomic_write
from dpswd._layout import Layout
from dpswd._provenance import mark_runs
from dpswd.accounting.guarantee import stated_guarantee
from dpswd.errors import InputError
from dpswd.files.archives import read_file
from dpswd.mixture.generator import MixtureGenerator
from dpswd.networks.generator import Generator
from dpswd.networks.image_generators import ConvGenerator, ShuffleGenerator

__all__ = ["read_generator", "write_generator"]

# Version of the file format; it changes with the keys of a file or their meaning.
FORMAT = 2

# Generators that a file may name; reading a file makes an instance of no other class.
_CLASSES: dict[str, type[Generator]] = {
    "ConvGenerator": ConvGenerator,
    "MixtureGenerator": MixtureGenerator,
    "ShuffleGenerator": ShuffleGenerator,
}


def write_generator(
    generator: Generator, path: str | Path, guarantee: dict[str, Any] | None = None
) -> None:
    """Write a generator of this library atomically.

    Args:
        generator: A generator of one of the classes of this library.
        path: The file.
        guarantee: Facts of ``privacy.json``; those that state the guarantee are written.

    Raises:
        InputError: If the generator is of another class, or the file cannot be written.
    """
    kind = type(generator)
    if _CLASSES.get(kind.__name__) is not kind:
        raise InputError(
            f"Expected a generator out of {', '.join(_CLASSES)}, got {kind.__name__}; "
            "save its state_dict instead."
        )
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": __version__,
        "generator": kind.__name__,
        "options": _options(generator),
        "classes": None,
        "proportions": generator.proportions,
        "layout": None,
        "kinds": generator.kinds,
        "guarantee": stated_guarantee(guarantee or {}),
        "state": _weights(generator),
    }
    if generator.class_names is not None:
        content["classes"] = list(generator.class_names)
    if generator.layout is not None:
        content["layout"] = asdict(generator.layout)
    atomic_write(path, partial(torch.save, content))


def read_generator(path: str | Path) -> tuple[Generator, dict[str, Any]]:
    """Read a generator in evaluation mode, and its guarantee.

    No code of the file is run.

    Args:
        path: A file of :func:`write_generator`, such as the ``generator.pt`` of a run.

    Raises:
        InputError: If the file is missing or is not a generator.

    Example:
        >>> import tempfile
        >>> from dpswd.mixture.generator import MixtureGenerator
        >>> from dpswd.networks.generator import draw
        >>> generator = MixtureGenerator((1, 8, 8), n_classes=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_generator(generator, f"{folder}/generator.pt", {"epsilon": 1.0})
        ...     generator, guarantee = read_generator(f"{folder}/generator.pt")
        >>> draw(generator, torch.tensor([0, 1, 1])).shape, guarantee["epsilon"]
        (torch.Size([3, 1, 8, 8]), 1.0)
    """
    with read_file(path, "generator", FORMAT) as content:
        name = content["generator"]
        if name not in _CLASSES:
            raise InputError(
                f"Expected a generator out of {', '.join(_CLASSES)} in {path}, got {name!r}; "
                "pass the generator.pt of a run."
            )
        generator = _CLASSES[name](**content["options"])
        generator.load_state_dict(content["state"])
        generator.class_names = content["classes"]
        generator.proportions = content["proportions"]
        if content["layout"] is not None:
            generator.layout = Layout(**content["layout"])
        generator.kinds = content["kinds"]
        guarantee: dict[str, Any] = content["guarantee"]
        mark_runs(generator, guarantee.get("weights_from_runs") or ())
    return generator.eval(), guarantee


def _options(generator: Generator) -> dict[str, Any]:
    """Return the arguments of the constructor, which are attributes, by name."""
    names = inspect.signature(type(generator)).parameters
    return {name: getattr(generator, name) for name in names}


def _weights(generator: Generator) -> dict[str, Tensor]:
    """Return copies of parameters and buffers on the CPU, by name."""
    state = generator.state_dict()
    return {name: value.detach().cpu().clone() for name, value in state.items()}
