"""Fingerprint of a function: everything that a call could change in place.

Two fingerprints, before and after a call, show whether the call has written to an attribute, a
class, a global variable, a default argument, a container, a tensor or an array.
"""

import functools
import hashlib
import sys
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpswd.row_copy import global_variables, is_of_library, names_in

__all__ = ["fingerprint"]

# Values that are compared by what they are.
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_SEQUENCES = (list, tuple, set, frozenset, deque)
# Folders of installed packages.
_INSTALLED = {"site-packages", "dist-packages"}

# Variables with their names.
Parts = list[tuple[str, Any]]

# The name of a variable, and the identity of what holds it: two variables may have one name.
Place = tuple[str, int]


def fingerprint(value: Any, name: str) -> dict[Place, Any]:
    """Return the state of every variable that a value leads to.

    The state of a plain value is the value, that of a tensor or an array a digest of its entries,
    and that of other objects their identity. Containers and the attributes of modules are examined
    wherever they come from. Objects, classes and functions are examined in files of the user; of
    installed packages, the classes are, with the variables that their methods name, but not the
    functions that they call. Of Python's standard library and of the libraries in
    :mod:`dpswd.row_copy`, none is.

    Args:
        value: A function, a module or another object.
        name: Its name.

    Example:
        >>> seen = {"inputs": [1, 2]}
        >>> before = fingerprint(seen, "seen")
        >>> seen["inputs"].append(3)
        >>> [name for name, _ in set(fingerprint(seen, "seen")) - set(before)]
        ["seen['inputs'][2]"]
    """
    states: dict[Place, Any] = {}
    _add(value, (name, 0), states, {})
    return states


def _add(value: Any, place: Place, states: dict[Place, Any], visited: dict[int, Any]) -> None:
    """Add the states of a value in a place, and of what it leads to.

    ``visited`` has the values that were added, by identity: they are kept alive, so that no other
    object gets the same identity.
    """
    if isinstance(value, _PLAIN):
        states[place] = (type(value), repr(value))
        return
    if id(value) in visited:
        states.setdefault(place, id(value))
        return
    states[place] = id(value)
    visited[id(value)] = value
    if isinstance(value, Tensor):
        states[place] = (id(value), _digest_of_tensor(value))
    elif isinstance(value, np.ndarray):
        states[place] = (id(value), _digest_of_array(value))
    else:
        for name, part in _parts(value, place[0]):
            _add(part, (name, id(value)), states, visited)


def _parts(value: Any, name: str) -> Parts:
    """Return what a value consists of, with names."""
    if isinstance(value, Mapping):
        return [(f"{name}[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, _SEQUENCES):
        return [(f"{name}[{number}]", part) for number, part in enumerate(value)]
    if isinstance(value, functools.partial):
        return [(name, value.func), (name, value.args), (name, value.keywords)]
    if isinstance(value, MethodType):
        return [(name, value.__func__), (name, value.__self__)]
    if isinstance(value, staticmethod | classmethod):
        return [(name, value.__func__)]
    if isinstance(value, property):
        return [(name, value.fget)]
    if isinstance(value, FunctionType):
        return _parts_of_function(value, name)
    if isinstance(value, type):
        return _parts_of_class(value)
    kind = type(value)
    if isinstance(value, ModuleType):
        return []
    if not isinstance(value, nn.Module) and not _is_of_user(kind.__module__):
        return []
    # of an object with __slots__, which has a copy of its own, only the class
    attributes = [(f"{name}.{key}", part) for key, part in getattr(value, "__dict__", {}).items()]
    return [(kind.__name__, kind), *attributes]


def _parts_of_function(function: FunctionType, name: str) -> Parts:
    """Return defaults, attributes and variables of a function in a file of the user."""
    if not _is_of_user(function.__module__):
        return []
    return _variables_of(function, name)


def _variables_of(function: FunctionType, name: str) -> Parts:
    """Return defaults, attributes, and the variables that a function names."""
    parts: Parts = [
        (f"a default of {name}", function.__defaults__),
        (f"a default of {name}", function.__kwdefaults__),
        (f"an attribute of {name}", vars(function)),
    ]
    variables = global_variables(function)
    for key, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # of a function that names itself before it is defined
            variables[key] = cell.cell_contents
    attributes = names_in(function.__code__)
    for key, part in variables.items():
        parts.append((f"{function.__module__}.{key}", part))
        if isinstance(part, ModuleType) and _is_of_user(part.__name__):
            for attribute in attributes:
                if attribute in vars(part):
                    parts.append((f"{part.__name__}.{attribute}", vars(part)[attribute]))
    return parts


def _parts_of_class(kind: type) -> Parts:
    """Return the attributes of a class and of its bases, but for those of libraries."""
    parts: Parts = []
    for base in kind.__mro__:
        if _is_skipped(base.__module__):
            continue
        for key, part in vars(base).items():
            name = f"{base.__name__}.{key}"
            if isinstance(part, FunctionType):
                parts.append((name, part))
                parts += _variables_of(part, name)
            elif not key.startswith("__"):  # as __slotnames__, which copy.copy writes
                parts.append((name, part))
    return parts


def _is_skipped(module: str | None) -> bool:
    """Return whether a Python module is of Python or of a library that keeps nothing."""
    return str(module).partition(".")[0] in sys.stdlib_module_names or is_of_library(module)


def _is_of_user(module: str | None) -> bool:
    """Return whether a Python module is a file of the user.

    Those of installed packages are not.
    """
    path = getattr(sys.modules.get(str(module)), "__file__", None) or ""
    return not _is_skipped(module) and _INSTALLED.isdisjoint(Path(path).parts)


def _digest_of_tensor(tensor: Tensor) -> str:
    """Return a digest of the entries; empty for a tensor whose entries cannot be read."""
    try:
        entries = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
    except (RuntimeError, NotImplementedError):  # sparse, quantised or without memory
        return ""
    return hashlib.sha256(entries.numpy().tobytes()).hexdigest()


def _digest_of_array(array: NDArray[Any]) -> str:
    """Return a digest of the entries."""
    if array.dtype.hasobject:
        return hashlib.sha256(repr(array.tolist()).encode()).hexdigest()
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
