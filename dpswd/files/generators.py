"""Files of generators: written and read without code."""

import inspect
import math
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpswd import __version__
from dpswd._files import atomic_write
from dpswd._labels import as_classes
from dpswd._layout import Layout
from dpswd._provenance import mark_runs
from dpswd.accounting.guarantee import Guarantee
from dpswd.bins import KINDS
from dpswd.columns import Column, Table
from dpswd.errors import InputError
from dpswd.files.archives import read_file
from dpswd.mixture.generator import MixtureGenerator
from dpswd.networks.generator import Generator
from dpswd.networks.image_generators import ConvGenerator, ShuffleGenerator, TransposedGenerator
from dpswd.networks.principal_generator import PrincipalGenerator

__all__ = ["read_generator", "write_generator"]

# Version of the file format; it changes with the keys of a file or their meaning.
FORMAT = 2

# Constants that a generator derives from its options, such as the matrices of a cosine transform,
# may be this much larger than its weights.
_MAX_DERIVED_BYTES = 2**20

# Generators that a file may name; reading a file makes an instance of no other class.
_CLASSES: dict[str, type[Generator]] = {
    "ConvGenerator": ConvGenerator,
    "MixtureGenerator": MixtureGenerator,
    "PrincipalGenerator": PrincipalGenerator,
    "ShuffleGenerator": ShuffleGenerator,
    "TransposedGenerator": TransposedGenerator,
}


def write_generator(
    generator: Generator, path: str | Path, guarantee: Guarantee | None = None
) -> None:
    """Write a generator of this library atomically.

    Args:
        generator: A generator of one of the classes of this library.
        path: The file.
        guarantee: Guarantee of the weights; ``None`` for none.

    Raises:
        InputError: If the generator is of another class, or the file cannot be written.
    """
    check_writable(generator)
    kind = type(generator)
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": __version__,
        "generator": kind.__name__,
        "options": _options(generator),
        "classes": None,
        "proportions": generator.proportions,
        "layout": None,
        "kinds": generator.kinds,
        "guarantee": (guarantee or Guarantee()).to_dict(),
        "state": _weights(generator),
    }
    if generator.class_names is not None:
        content["classes"] = as_classes(generator.class_names)
    if generator.layout is not None:
        content["layout"] = asdict(generator.layout)
        if generator.layout.table is None:
            del content["layout"]["table"]  # which readers of earlier versions do not know
        if not generator.layout.package:
            del content["layout"]["package"]
        if generator.layout.separator == ",":
            del content["layout"]["separator"]
    atomic_write(path, partial(torch.save, content))


def check_writable(generator: Any) -> None:
    """Raise an InputError unless a file can hold the generator."""
    kind = type(generator)
    if _CLASSES.get(kind.__name__) is not kind:
        raise InputError(
            f"Expected a generator out of {', '.join(_CLASSES)}, got {kind.__name__}; "
            "save its state_dict instead."
        )


def read_generator(path: str | Path) -> tuple[Generator, Guarantee]:
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
        ...     write_generator(generator, f"{folder}/generator.pt", Guarantee(epsilon=1.0))
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
        generator = _build(_CLASSES[name], content["options"], content["state"])
        generator.class_names = _checked_classes(content["classes"], generator.n_classes)
        generator.proportions = _checked_proportions(content["proportions"], generator.n_classes)
        generator.layout = _checked_layout(content["layout"], generator.sample_shape)
        generator.kinds = _checked_kinds(content["kinds"], generator)
        guarantee = Guarantee.from_dict(content["guarantee"])
        mark_runs(generator, guarantee.weights_from_runs)
    return generator.eval(), guarantee


# The content of a file comes from anybody. Each of these functions returns a part of it, or raises
# ValueError, which read_file reports as a file that is no generator.


def _build(kind: type[Generator], options: dict[str, Any], state: dict[str, Tensor]) -> Generator:
    """Return a generator with these weights.

    Options of another size than the weights are refused before memory is allocated for them: a
    file of one kilobyte could ask for an image of a million pixels a side.
    """
    n_entries = sum(weight.numel() for weight in state.values())
    n_bytes = sum(weight.numel() * weight.element_size() for weight in state.values())
    if math.prod(options["sample_shape"]) > n_entries:
        raise ValueError("more entries in a record than in the weights")
    with torch.device("meta"):
        shapes = kind(**options)
    expected = {name: (weight.shape, weight.dtype) for name, weight in shapes.state_dict().items()}
    if {name: (weight.shape, weight.dtype) for name, weight in state.items()} != expected:
        raise ValueError("weights of other shapes than the options state")
    if sum(buffer.numel() * buffer.element_size() for buffer in shapes.buffers()) > (
        n_bytes + _MAX_DERIVED_BYTES
    ):
        raise ValueError("constants that are larger than the weights")
    generator = kind(**options)
    generator.load_state_dict(state)
    return generator


def _checked_classes(classes: Any, n_classes: int) -> list[Any] | None:
    """Return the names of the classes."""
    if classes is None:
        return None
    names = as_classes(classes)
    types = [type(name) for name in names]
    if len(names) != n_classes or types != [type(name) for name in classes]:
        raise ValueError("other names of classes than this library writes")
    return names


def _checked_proportions(proportions: Any, n_classes: int) -> list[float] | None:
    """Return the proportions of the classes."""
    if proportions is None:
        return None
    numbers = [float(number) for number in proportions]
    is_valid = all(0 <= number < math.inf for number in numbers) and sum(numbers) > 0
    if len(numbers) != max(1, n_classes) or not is_valid:
        raise ValueError("proportions that are no numbers of the classes")
    return numbers


def _checked_layout(layout: Any, sample_shape: tuple[int, ...]) -> Layout | None:
    """Return the layout of the records."""
    if layout is None:
        return None
    options = dict(layout)
    if options.get("table") is not None:
        columns = [Column(**entry) for entry in options["table"]["columns"]]
        options["table"] = Table(tuple(columns))
    checked = Layout(**options)
    if not checked.fits(sample_shape):
        raise ValueError("a layout of other records")
    return checked


def _checked_kinds(kinds: Any, generator: Generator) -> list[str] | None:
    """Return the kinds of the columns of a generator.

    Binary columns need the bounds of a generator of tables.
    """
    if kinds is None:
        return None
    n_columns = math.prod(generator.sample_shape)
    bounds = [generator.get_buffer(name) for name in ("low", "high")]
    if len(generator.sample_shape) != 1 or any(len(bound) != n_columns for bound in bounds):
        raise ValueError("kinds of columns without a table")
    if len(kinds) != n_columns or not set(kinds) <= set(KINDS):
        raise ValueError("unknown kinds of columns")
    return list(kinds)


def _options(generator: Generator) -> dict[str, Any]:
    """Return the arguments of the constructor, which are attributes, by name."""
    names = inspect.signature(type(generator)).parameters
    return {name: getattr(generator, name) for name in names}


def _weights(generator: Generator) -> dict[str, Tensor]:
    """Return copies of parameters and buffers on the CPU, by name."""
    state = generator.state_dict()
    return {name: value.detach().cpu().clone() for name, value in state.items()}
