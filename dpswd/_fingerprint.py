"""Fingerprint of a function: everything that a call could change in place.

Two fingerprints, before and after a call, show whether the call has written to an attribute, a
class, a global variable, a default argument, a container, a tensor or an array.
"""

import functools
import hashlib
import inspect
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpswd.row_copy import is_of_library

__all__ = ["fingerprint"]

# Values that are compared by what they are.
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
# Folders of installed packages.
_INSTALLED = {"site-packages", "dist-packages"}
_SEQUENCES = (list, tuple, set, frozenset, deque)


def fingerprint(value: Any, name: str) -> dict[str, Any]:
    """Return the state of every variable that a value leads to, by its name.

    The state of a plain value is the value, that of a tensor or an array a digest of its entries,
    and that of other objects their identity. Attributes of modules are examined; other objects,
    classes and functions are where they come from a file of the user, and not from the standard
    library or an installed package, whose tables and caches change for reasons of their own.

    Args:
        value: A function, a module or another object.
        name: Its name.

    Example:
        >>> seen = {"inputs": [1, 2]}
        >>> before = fingerprint(seen, "seen")
        >>> seen["inputs"].append(3)
        >>> set(fingerprint(seen, "seen")) - set(before)
        {"seen['inputs'][2]"}
    """
    states: dict[str, Any] = {}
    _add(value, name, states, {})
    return states


def _add(value: Any, name: str, states: dict[str, Any], visited: dict[int, Any]) -> None:
    """Add the states of a value and of what it leads to.

    ``visited`` has the values that were added, by identity: they are kept alive, so that no other
    object gets the same identity.
    """
    if isinstance(value, _PLAIN):
        states[name] = (type(value), repr(value))
        return
    states[name] = id(value)
    if id(value) in visited:
        return
    visited[id(value)] = value
    if isinstance(value, Tensor):
        states[name] = (id(value), _digest_of_tensor(value))
    elif isinstance(value, np.ndarray):
        states[name] = (id(value), _digest_of_array(value))
    else:
        for part_name, part in _parts(value, name):
            _add(part, part_name, states, visited)


def _parts(value: Any, name: str) -> list[tuple[str, Any]]:
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
    if isinstance(value, ModuleType) or not hasattr(value, "__dict__"):
        return []
    kind = type(value)
    if not isinstance(value, nn.Module) and not _is_examined(kind.__module__):
        return []
    attributes = [(f"{name}.{key}", part) for key, part in vars(value).items()]
    return [(kind.__name__, kind), *attributes]


def _parts_of_function(function: FunctionType, name: str) -> list[tuple[str, Any]]:
    """Return defaults, attributes, and the variables that a function names."""
    if not _is_examined(function.__module__):
        return []
    parts: list[tuple[str, Any]] = [
        (f"a default of {name}", function.__defaults__),
        (f"a default of {name}", function.__kwdefaults__),
        (f"an attribute of {name}", vars(function)),
    ]
    try:
        variables = inspect.getclosurevars(function)
    except ValueError:  # of a function that names itself before it is defined
        return parts
    for key, part in {**variables.globals, **variables.nonlocals}.items():
        parts.append((f"{function.__module__}.{key}", part))
    return parts


def _parts_of_class(kind: type) -> list[tuple[str, Any]]:
    """Return the attributes of a class and of its bases, but for those of libraries."""
    parts: list[tuple[str, Any]] = []
    for base in kind.__mro__:
        if not _is_examined(base.__module__):
            continue
        for key, part in vars(base).items():
            is_of_python = key.startswith("__") and not isinstance(part, FunctionType)
            if not is_of_python:  # such as __slotnames__, which copy.copy writes
                parts.append((f"{base.__name__}.{key}", part))
    return parts


def _is_examined(module: str | None) -> bool:
    """Return whether a Python module is a file of the user."""
    name = str(module)
    if name.partition(".")[0] in sys.stdlib_module_names or is_of_library(name):
        return False
    path = getattr(sys.modules.get(name), "__file__", None) or ""
    return _INSTALLED.isdisjoint(Path(path).parts)


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
