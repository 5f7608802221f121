"""``diagnostics.json``: what the report's appendix shows of Wasserstein DP and tangent DP, when asked for."""

import json
import os
from pathlib import Path
from typing import Any

from dpswd._validate import choice
from dpswd.errors import InputError

__all__ = ["NOTE", "TITLES", "WARNING", "diagnostics_appendix", "read_diagnostics", "write_diagnostics"]

NOTE = "A diagnostic, not a privacy guarantee; it satisfies no budget (docs/notions.md says what it is worth)."

WARNING = (
    "Tangent numbers, and Wasserstein numbers made from gradients of private records, are statistics of those records "
    "without noise: a report that shows them stays on the private side."
)

TITLES = {"wdp": "Wasserstein DP (Yang2024)", "tangent": "Tangent DP (Ying2024)"}


def write_diagnostics(run_dir: Path, name: str, entry: dict[str, Any]) -> Path:
    """Adds or replaces one entry, ``"wdp"`` or ``"tangent"``, of ``run_dir/diagnostics.json``.

    Raises:
        InputError: If the entry has another name or calls a number epsilon, the directory cannot be written,
            or the file there is not such a file.
    """
    choice(tuple(TITLES), name=name)
    if _claims_epsilon(entry):
        raise InputError("Expected a diagnostic under a name of its own, got a key that is called epsilon; rename it.")
    path = run_dir / "diagnostics.json"
    partial = path.with_suffix(".json.part")
    content = _read(path) if path.exists() else {}
    content[name] = entry | {"is_guarantee": False, "note": NOTE}
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(content, indent=2) + "\n")
        os.replace(partial, path)
    except OSError as error:
        raise InputError(f"Expected to write {path}, got: {error.strerror}; choose a writable directory.") from None
    return path


def read_diagnostics(run_dir: Path) -> dict[str, Any]:
    """The entries of ``run_dir/diagnostics.json``, for the report's appendix.

    Raises:
        InputError: If there is no such file or it is not one of ours.
    """
    path = run_dir / "diagnostics.json"
    if not path.exists():
        raise InputError(f"Expected {path}, got none; write it by dpswd wdp or dpswd tangent with --run-dir {run_dir}.")
    return _read(path)


def diagnostics_appendix(content: dict[str, Any]) -> list[tuple[str, list[tuple[str, Any]]]]:
    """The appendix as titles and rows (what, value); nested entries become rows of their own."""
    return [(TITLES[name], _rows("", entry)) for name, entry in sorted(content.items())]


def _rows(prefix: str, entry: dict[str, Any]) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in entry.items():
        label = f"{prefix}{key.replace('_', ' ')}"
        if isinstance(value, dict):
            rows += _rows(f"{label}, ", value)
        elif (prefix, key) not in {("", "note"), ("", "is_guarantee")}:  # the appendix says both at its top
            rows.append((label, value))
    return rows


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(content, allow_nan=False)
    except (OSError, ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or not all(name in TITLES and _is_ours(entry) for name, entry in content.items()):
        raise InputError(f"Expected diagnostics that this program wrote in {path}, got something else; remove it.")
    return content


def _is_ours(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.get("is_guarantee") is False and not _claims_epsilon(entry)


def _claims_epsilon(value: Any) -> bool:
    if isinstance(value, list):
        return any(_claims_epsilon(part) for part in value)
    return isinstance(value, dict) and any(
        key.lower() in ("epsilon", "eps") or _claims_epsilon(part) for key, part in value.items()
    )
