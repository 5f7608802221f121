"""Provenance of weights: the runs whose releases a module has seen, carried in the metadata of its ``state_dict``.

A ``state_dict`` keeps its metadata through ``torch.save`` and ``copy.deepcopy``. A dictionary rebuilt from its items
loses it; such weights are not recognised.
"""

from collections.abc import Iterable
from typing import Any

from torch import nn

_KEY = "dpswd_runs"


def track_runs(module: nn.Module) -> None:
    """Let a module carry run identifiers in its ``state_dict``, and add those of every one that is loaded."""
    module.seen_runs = set()  # type: ignore[assignment]
    module.register_state_dict_post_hook(_save)
    module.register_load_state_dict_pre_hook(_load)


def seen_runs(module: nn.Module) -> set[str]:
    """Return the run identifiers that a module and its submodules carry."""
    return {run for part in _tracked(module) for run in part.seen_runs}


def mark_runs(module: nn.Module, runs: Iterable[str]) -> None:
    """Add run identifiers to every tracked submodule, whose weights depend on these runs from now on."""
    for part in _tracked(module):
        part.seen_runs |= set(runs)


def _tracked(module: nn.Module) -> list[Any]:
    return [part for part in module.modules() if isinstance(getattr(part, "seen_runs", None), set)]


def _save(module: Any, state_dict: Any, prefix: str, metadata: dict[str, Any]) -> None:
    if module.seen_runs:
        metadata[_KEY] = sorted(module.seen_runs)


def _load(module: Any, state_dict: Any, prefix: str, metadata: dict[str, Any], *_: Any) -> None:
    module.seen_runs |= set(metadata.get(_KEY, ()))
