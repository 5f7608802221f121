"""Results of experiments: the JSON files of ``docs/results``."""

import json
from pathlib import Path
from typing import Any

from dpswd import __version__

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"

Row = dict[str, Any]
Result = dict[str, Any]


def read_result(name: str) -> Result:
    """Return the content of ``docs/results/NAME.json``."""
    result: Result = json.loads((RESULTS / f"{name}.json").read_text())
    return result


def outdated(result: Result, *, with_reasons: bool = False) -> bool:
    """Whether a result or one of its rows is of another minor version of the package.

    An entry whose ``reason`` says why it was kept counts only with ``with_reasons``.
    """
    entries = [result]
    for part in result.values():
        if isinstance(part, list):
            entries += [row for row in part if isinstance(row, dict)]
    if not with_reasons:
        entries = [entry for entry in entries if "reason" not in entry]
    return any(not _is_of_this_minor_version(entry) for entry in entries)


def _is_of_this_minor_version(entry: Row) -> bool:
    """Compare major and minor version; an entry without a version is current."""
    version = str(entry.get("version", __version__))
    return version.split(".")[:2] == __version__.split(".")[:2]
