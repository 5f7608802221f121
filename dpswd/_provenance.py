"""Provenance of weights: the runs whose releases a module has seen.

The metadata of the ``state_dict`` of a module carry the identifiers of the runs. ``torch.save`` and
``copy.deepcopy`` keep them. A dictionary that is rebuilt from its items loses them; such weights
are not recognised.
"""

from collections.abc import Iterable
from typing import Any

from torch import nn

# Name of the entry in the metadata of a state_dict.
_KEY = "dpswd_runs"


def track_runs(module: nn.Module) -> None:
    """Let a module carry run identifiers in its ``state_dict``.

    Those of every ``state_dict`` that is loaded into it are added.
    """
    module.seen_runs = set()  # type: ignore[assignment]  # no parameter, buffer or module
    module.register_state_dict_post_hook(_save)
    module.register_load_state_dict_pre_hook(_load)


def track_all(module: nn.Module) -> None:
    """Let a module and all of its submodules carry run identifiers."""
    tracked = _tracked(module)
    for part in module.modules():
        if part not in tracked:
            track_runs(part)


def seen_runs(module: nn.Module) -> set[str]:
    """Return the run identifiers that a module and its submodules carry."""
    runs: set[str] = set()
    for part in _tracked(module):
        runs |= part.seen_runs
    return runs


def mark_runs(module: nn.Module, runs: Iterable[str]) -> None:
    """Add run identifiers to every tracked submodule.

    The weights of these submodules depend on the runs.
    """
    for part in _tracked(module):
        part.seen_runs |= set(runs)


def _tracked(module: nn.Module) -> list[Any]:
    """Return the submodules for which :func:`track_runs` was called.

    The module itself is one of them if it is tracked.
    """
    return [part for part in module.modules() if isinstance(getattr(part, "seen_runs", None), set)]


def _save(module: Any, state_dict: Any, prefix: str, metadata: dict[str, Any]) -> None:
    """Write the run identifiers into the metadata; a hook of ``state_dict``."""
    if module.seen_runs:
        metadata[_KEY] = sorted(module.seen_runs)


def _load(module: Any, state_dict: Any, prefix: str, metadata: dict[str, Any], *_: Any) -> None:
    """Add the run identifiers of the metadata; a hook of ``load_state_dict``."""
    module.seen_runs |= set(metadata.get(_KEY, ()))
