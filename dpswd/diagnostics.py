"""``diagnostics.json``: what the report's appendix shows of Wasserstein DP and tangent DP, when asked for."""

import json
import os
from pathlib import Path
from typing import Any

from dpswd.errors import InputError

__all__ = ["NOTE", "diagnostics_appendix", "write_diagnostics"]

NOTE = "A diagnostic, not a privacy guarantee; it satisfies no budget (docs/notions.md says what it is worth)."

_TITLES = {"wdp": "Wasserstein DP (Yang2024)", "tangent": "Tangent DP (Ying2024)"}


def write_diagnostics(run_dir: Path, name: str, entry: dict[str, Any]) -> Path:
    """Adds or replaces one entry, ``"wdp"`` or ``"tangent"``, of ``run_dir/diagnostics.json``.

    Raises:
        InputError: If the directory cannot be written or the file there is not such a file.
    """
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


def diagnostics_appendix(run_dir: Path) -> str | None:
    """The appendix as Markdown, or ``None`` where the run has no ``diagnostics.json``.

    Raises:
        InputError: If the file is not one of ours.
    """
    path = run_dir / "diagnostics.json"
    if not path.exists():
        return None
    lines = ["## Appendix: diagnostics", "", NOTE, ""]
    for name, entry in sorted(_read(path).items()):
        lines += [f"### {_TITLES.get(name, name)}", "", "| what | value |", "|---|---|"]
        lines += [f"| {key} | {_cell(value)} |" for key, value in entry.items() if key != "note"] + [""]
    return "\n".join(lines)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        content = None
    if not isinstance(content, dict) or not all(isinstance(entry, dict) for entry in content.values()):
        raise InputError(f"Expected diagnostics that this program wrote in {path}, got something else; remove it.")
    return content


def _cell(value: Any) -> str:
    text = json.dumps(value) if isinstance(value, dict | list) else str(value)
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
