"""Files that are written whole or not at all, directories that one run at a time may use. Standard library only."""

import contextlib
import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

from dpswd.errors import InputError

fcntl: Any = None
with contextlib.suppress(ImportError):  # not on Windows
    import fcntl

__all__ = ["DirectoryLock", "atomic_write", "verified_archive", "write_json"]


class DirectoryLock:
    """Keeps other runs out of a directory while this one lives; the system ends it with the process, however it dies.

    Where the system has no such lock (Windows, some network file systems) nothing is kept out; the ledger then refuses
    a second writer at its first release.
    """

    def __init__(self) -> None:
        self._descriptor: int | None = None

    def take(self, directory: Path) -> None:
        """Takes a directory, unless it is taken by this lock already or is not there.

        Raises:
            InputError: If another run has it.
        """
        if self._descriptor is not None or fcntl is None or not directory.is_dir():
            return
        try:
            descriptor = os.open(directory, os.O_RDONLY)
        except OSError:  # what cannot be read is refused by whoever writes to it
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise InputError(
                f"Expected no other run in {directory}, got one that is in progress; wait for it, or choose another "
                "directory."
            ) from None
        except OSError:
            os.close(descriptor)
            return
        self._descriptor = descriptor

    def free(self) -> None:
        """Lets others in."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def verified_archive(path: str | Path) -> io.BytesIO:
    """Reads a file of ``torch.save`` and compares what lies in it with its checksums, which ``torch.load`` does not do.

    Returns:
        The same archive, written again from what was compared: nothing else of the file is looked at.

    Raises:
        ValueError: If a byte was changed, or the file is no such archive.
        OSError: If it cannot be read.
    """
    content = io.BytesIO(Path(path).read_bytes())
    verified = io.BytesIO()
    try:
        with zipfile.ZipFile(content) as archive, zipfile.ZipFile(verified, "w") as again:
            for name in archive.namelist():
                again.writestr(name, archive.read(name))
    except Exception as error:  # zipfile has many words for a damaged file
        raise ValueError(f"no archive: {error}") from None
    verified.seek(0)
    return verified


def atomic_write(path: Path, content: bytes) -> None:
    """Writes a file such that a reader sees the old content or the new one, never a part.

    Raises:
        InputError: If the directory cannot be written.
    """
    partial = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # without it a power cut may leave the new name on an empty file
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise InputError(f"Expected to write {path}, got: {error.strerror}; choose a writable directory.") from None


def write_json(path: Path, content: Any) -> None:
    """Writes JSON atomically; see :func:`atomic_write`."""
    atomic_write(path, (json.dumps(content, indent=2) + "\n").encode())
