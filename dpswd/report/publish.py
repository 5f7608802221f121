"""Writes report.html, report.md and report.json: all three or none."""

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from dpswd.errors import InputError
from dpswd.report.collect import collect
from dpswd.report.plots import draw
from dpswd.report.render_html import html
from dpswd.report.render_markdown import markdown

__all__ = ["write_all", "write_report"]


def write_report(run_dir: str | Path, *, diagnostics: bool = False) -> dict[str, Any]:
    """Reports on a run: writes the three files into its directory.

    Args:
        run_dir: Directory of the run.
        diagnostics: Whether to append ``diagnostics.json`` (Wasserstein DP, tangent DP).

    Returns:
        The facts, as in report.json.

    Raises:
        InputError: If the run cannot be read, contradicts itself, or its directory cannot be written; nothing
            is
            written then.
    """
    report, curve = collect(run_dir, diagnostics=diagnostics)
    pictures = draw(report, curve)
    content = {
        "report.json": json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
        "report.md": markdown(report),
        "report.html": html(report, pictures),
    }
    write_all(Path(run_dir), content)
    return report


def write_all(directory: Path, content: dict[str, str]) -> None:
    """Writes several text files so that all of them are the new ones or none is.

    Everything is on the disk under temporary names before the first file takes its place; if one cannot take
    its place, those that did are put back as they were.

    Raises:
        InputError: If a file cannot be written.
    """
    waiting: dict[Path, str] = {}
    before: dict[Path, bytes | None] = {}
    try:
        for name, text in content.items():
            target = directory / name
            before[target] = target.read_bytes() if target.exists() else None
            descriptor, waiting[target] = tempfile.mkstemp(prefix=f".{name}.", dir=directory)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(waiting[target], 0o644)
        done: list[Path] = []
        try:
            for target, temporary in waiting.items():
                os.replace(temporary, target)
                done.append(target)
        except OSError:
            for target in done:
                _put_back(target, before[target])
            raise
    except OSError as error:
        raise InputError(
            f"Expected to write the report into {directory}, got: {error.strerror}; nothing was written, "
            f"make the directory writable."
        ) from None
    finally:
        for temporary in waiting.values():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


def _put_back(target: Path, content: bytes | None) -> None:
    if content is None:
        target.unlink()
    else:
        target.write_bytes(content)
