"""Functions that a module which ``torch.compile`` compiles calls as they are."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import torch

P = ParamSpec("P")
T = TypeVar("T")


def uncompiled(function: Callable[P, T]) -> Callable[P, T]:
    """Let a compiled module call a function as it is.

    torch.compile would trace the noise of a release, and show parts of it in its messages. It
    cannot trace the sorts of a distance, which compute their gradients themselves.
    """

    @functools.wraps(function)
    def run_uncompiled(*args: P.args, **kwargs: P.kwargs) -> T:
        if torch.compiler.is_compiling():
            return cast(T, torch.compiler.disable(function)(*args, **kwargs))
        return function(*args, **kwargs)

    return run_uncompiled
