"""Files of generators: written and read without code."""

import inspect
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dpswd import __version__
from dpswd._arrays import Layout
from dpswd._files import atomic_write
from dpswd._provenance import mark_runs
from dpswd.accounting.guarantee import stated_guarantee
from dpswd.errors import InputError
from dpswd.files.archives import read_file
from dpswd.mixture.generator import MixtureGenerator
from dpswd.networks.generator import Generator
from dpswd.networks.image_generators import ConvGenerator, ShuffleGenerator

__all__ = ["read_generator", "write_generator"]

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
    """Write a generator of this library atomically, with those facts of ``privacy.json`` that state the guarantee."""
    name = type(generator).__name__
    if _CLASSES.get(name) is not type(generator):
        raise InputError(
            f"Expected a generator out of {', '.join(_CLASSES)}, got {name}; save its state_dict instead."
        )
    content = {
        "format": FORMAT,
        "version": __version__,
        "generator": name,
        "options": {
            option: getattr(generator, option)
            for option in inspect.signature(type(generator)).parameters
        },
        "classes": None if generator.class_names is None else list(generator.class_names),
        "proportions": generator.proportions,
        "layout": None if generator.layout is None else asdict(generator.layout),
        "kinds": generator.kinds,
        "guarantee": stated_guarantee(guarantee or {}),
        "state": {
            key: value.detach().cpu().clone() for key, value in generator.state_dict().items()
        },
    }
    atomic_write(path, partial(torch.save, content))


def read_generator(path: str | Path) -> tuple[Generator, dict[str, Any]]:
    """Read a generator in evaluation mode, and its guarantee; no code of the file is run.

    Raises:
        InputError: If the file is missing or is not a generator.

    Example:
        >>> import tempfile
        >>> from dpswd.mixture.generator import MixtureGenerator
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_generator(MixtureGenerator((1, 8, 8), n_classes=2), f"{folder}/generator.pt", {"epsilon": 1.0})
        ...     generator, guarantee = read_generator(f"{folder}/generator.pt")
        >>> from dpswd.networks.generator import draw
        >>> draw(generator, torch.tensor([0, 1, 1])).shape, guarantee["epsilon"]
        (torch.Size([3, 1, 8, 8]), 1.0)
    """
    with read_file(path, "generator", FORMAT) as content:
        name = content["generator"]
        if name not in _CLASSES:
            raise InputError(
                f"Expected a generator out of {', '.join(_CLASSES)} in {path}, got {name!r}."
            )
        generator = _CLASSES[name](**content["options"])
        generator.load_state_dict(content["state"])
        generator.class_names, generator.proportions = content["classes"], content["proportions"]
        generator.layout = None if content["layout"] is None else Layout(**content["layout"])
        generator.kinds = content["kinds"]
        guarantee: dict[str, Any] = content["guarantee"]
        mark_runs(generator, guarantee.get("weights_from_runs") or ())
    return generator.eval(), guarantee
