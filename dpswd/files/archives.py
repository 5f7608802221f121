"""Files of weights, which are read without running code of theirs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from dpswd._files import verified_archive
from dpswd.errors import InputError

__all__ = ["read_file"]


@contextmanager
def read_file(path: str | Path, kind: str, file_format: int) -> Iterator[dict[str, Any]]:
    """Yield the content of a file of weights; no code of it is run. InputError if the file or the use of it fails."""
    try:
        content = torch.load(verified_archive(path), map_location="cpu", weights_only=True)
        if content["format"] != file_format:
            got = f"format {content['format']!r}: another kind of file, or one of another version of dpswd"
            raise InputError(f"Expected a {kind} of format {file_format} at {path}, got {got}.")
        yield content
    except OSError as error:
        raise InputError(f"Expected a {kind} at {path}, got: {error.strerror}.") from None
    except InputError:
        raise
    except Exception:  # torch.load raises many types on damaged files
        raise InputError(
            f"Expected a {kind} written by dpswd at {path}, got a file that is not one."
        ) from None
