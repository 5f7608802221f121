"""``diagnostics.json``: Wasserstein DP and tangent DP for the appendix of a report."""

import json
from pathlib import Path
from typing import Any

from dpswd._files import write_json
from dpswd._validate import choice
from dpswd.errors import InputError

__all__ = ["read_diagnostics", "write_diagnostics"]

NOTE = "A diagnostic, not a privacy guarantee; it satisfies no budget (docs/notions.md explains why)."

WARNING = (
    "Tangent numbers, and Wasserstein numbers computed from gradients of private records, are statistics of those "
    "records without noise: do not publish a report that shows them."
)

TITLES = {"wdp": "Wasserstein DP (Yang2024)", "tangent": "Tangent DP (Ying2024)"}


def write_diagnostics(run_dir: Path, name: str, entry: dict[str, Any]) -> Path:
    """Add or replace one entry, ``"wdp"`` or ``"tangent"``, of ``run_dir/diagnostics.json``.

    Args:
        run_dir: The run directory.
        name: ``"wdp"`` or ``"tangent"``.
        entry: Plain values.

    Returns:
        Path of the file.

    Raises:
        InputError: If ``name`` is another one, the directory cannot be written, or the present file is not a
            diagnostics file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_diagnostics(Path(folder), "wdp", {"wdp_diagnostic": 1.5}).name
        'diagnostics.json'
    """
    choice(tuple(TITLES), name=name)
    path = run_dir / "diagnostics.json"
    content = read_diagnostics(run_dir) if path.exists() else {}
    write_json(path, content | {name: entry | {"is_guarantee": False, "note": NOTE}})
    return path


def read_diagnostics(run_dir: Path) -> dict[str, Any]:
    """Return the entries of ``run_dir/diagnostics.json``.

    Args:
        run_dir: The run directory.

    Raises:
        InputError: If there is no such file, or it is not a diagnostics file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = write_diagnostics(Path(folder), "wdp", {"wdp_diagnostic": 1.5})
        ...     read_diagnostics(Path(folder))["wdp"]["is_guarantee"]
        False
    """
    path = run_dir / "diagnostics.json"
    if not path.exists():
        raise InputError(f"Expected {path}, got no such file; run dpswd wdp or dpswd tangent with --run-dir {run_dir}.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(content, allow_nan=False)
    except (OSError, ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or not all(name in TITLES and _is_valid(entry) for name, entry in content.items()):
        raise InputError(f"Expected {path} as written by dpswd wdp or dpswd tangent, got other content; remove it.")
    return content


def diagnostics_appendix(content: dict[str, Any]) -> list[tuple[str, list[tuple[str, Any]]]]:
    """Return titles and rows (label, value); nested entries become rows of their own."""
    return [(TITLES[name], _rows("", entry)) for name, entry in sorted(content.items())]


def _rows(prefix: str, entry: dict[str, Any]) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in entry.items():
        label = f"{prefix}{key.replace('_', ' ')}"
        if isinstance(value, dict):
            rows += _rows(f"{label}, ", value)
        elif (prefix, key) not in {("", "note"), ("", "is_guarantee")}:  # the head of the appendix states both
            rows.append((label, value))
    return rows


def _is_valid(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.get("is_guarantee") is False
