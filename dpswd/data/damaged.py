"""Errors of damaged files."""

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpswd.errors import InputError

_DAMAGED = (
    ValueError,
    OSError,
    EOFError,
    TypeError,
    AttributeError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn the errors of NumPy on damaged files into an InputError."""
    try:
        yield
    except InputError:
        raise
    except (*_DAMAGED, KeyError) as error:
        said = str(error).split(". ")[0]  # not NumPy's advice to load a pickle
        raise InputError(
            f"Expected a readable file at {path}, got: {said}; write it again."
        ) from None
