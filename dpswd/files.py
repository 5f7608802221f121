"""Files that are written whole or not at all. Standard library only."""

import json
import os
from pathlib import Path
from typing import Any

from dpswd.errors import InputError

__all__ = ["write_json"]


def write_json(path: Path, content: Any) -> None:
    """Writes JSON so that a reader sees the old file or the new one, never half of it.

    Raises:
        InputError: If the directory cannot be written.
    """
    partial = path.with_suffix(path.suffix + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(content, indent=2) + "\n")
        os.replace(partial, path)
    except OSError as error:
        raise InputError(f"Expected to write {path}, got: {error.strerror}; choose a writable directory.") from None
