"""Absolute paths in settings.

They may name people and projects, so that a report has their last parts only, and a bundle has no
config with such paths.
"""

import re
from typing import Any

__all__ = ["has_absolute_path", "mask_lines", "mask_paths"]

# Start of an absolute path: of POSIX, of a home directory, of a Windows share or drive, or a URL.
_START = r"(?:/|~(?:[^\W\d][\w.-]*)?(?:[/\\]|$)|\\\\|[A-Za-z]:[/\\]|(?i:file:))"
_AT_START = re.compile(rf"^\s*{_START}")
# What may stand before a value in a line of YAML.
_BEFORE = r"""(?:^|(?<=[\s'"\[{,:=]))"""
_ANYWHERE = re.compile(rf"{_BEFORE}{_START}.*")
_SEPARATORS = re.compile(r"[/\\]")


def has_absolute_path(text: str) -> bool:
    r"""Return whether a line of a text starts with an absolute path.

    Example:
        >>> [has_absolute_path(text) for text in ("/home/jane", "~/scans", r"C:\\jane", "a/b")]
        [True, True, True, False]
    """
    return any(map(_AT_START.match, text.splitlines()))


def mask_paths(value: Any) -> Any:
    """Return settings in which absolute paths have their last part only.

    Args:
        value: Plain values, nested in dictionaries and lists.

    Example:
        >>> mask_paths({"root": "/home/jane/scans", "files": ["a/b"]})
        {'root': '.../scans', 'files': ['a/b']}
    """
    if isinstance(value, dict):
        return {mask_paths(key): mask_paths(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [mask_paths(entry) for entry in value]
    if isinstance(value, str) and has_absolute_path(value):
        return "\n".join(map(_last_part, value.splitlines()))
    return value


def _last_part(line: str) -> str:
    """Return the last part of a path; a line that is no absolute path unchanged."""
    if not _AT_START.match(line):
        return line
    parts = _SEPARATORS.split(line)
    if len(parts) == 1:
        return "..."
    return f".../{parts[-1]}"


def mask_lines(text: str) -> str:
    """Return a text without absolute paths and what follows them on their lines.

    It is for files that cannot be parsed, where the end of a path is unknown.

    Example:
        >>> mask_lines("{root: /home/jane/scans, n: 3")
        '{root: ...'
    """
    return "\n".join(_ANYWHERE.sub("...", line) for line in text.splitlines())
