"""Atomic writes, directory locks and verified archives. Standard library only."""

import contextlib
import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpswd.errors import InputError

fcntl: Any = None
with contextlib.suppress(ImportError):  # not on Windows
    import fcntl


class DirectoryLock:
    """Exclusive lock of a directory until the process ends.

    Where ``flock`` is missing nothing is locked; the ledger refuses a second writer.
    """

    def __init__(self) -> None:
        self._descriptor: int | None = None

    def acquire(self, directory: Path) -> None:
        """Lock a directory; no effect if it does not exist or is locked by this object.

        Raises:
            InputError: If another process holds the lock.
        """
        if self._descriptor is not None or fcntl is None or not directory.is_dir():
            return
        with contextlib.suppress(OSError):  # an unreadable directory fails at the first write
            self._descriptor = os.open(directory, os.O_RDONLY)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.release()
                raise InputError(
                    f"Expected no other run in {directory}, got one in progress; wait for it."
                ) from None

    def release(self) -> None:
        """Unlock the directory, if it is locked."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def verified_archive(path: str | Path) -> io.BytesIO:
    """Read a file of ``torch.save`` and verify its checksums.

    ``torch.load`` does not verify them.

    Raises:
        ValueError: If the file is damaged; or if it is compressed, or has entries that share bytes,
            which ``torch.save`` does not write: a small file could fill the memory.
    """
    content = io.BytesIO(Path(path).read_bytes())
    size = len(content.getbuffer())
    verified = io.BytesIO()
    try:
        with zipfile.ZipFile(content) as archive, zipfile.ZipFile(verified, "w") as copied:
            if sum(entry.file_size for entry in archive.infolist()) > size:
                raise ValueError("entries that are larger than the file")
            for entry in archive.infolist():
                if entry.compress_type != zipfile.ZIP_STORED:
                    raise ValueError("compressed")
                copied.writestr(entry.filename, archive.read(entry))
    except Exception as error:  # zipfile raises many exception types on damaged files
        raise ValueError(f"not a valid archive: {error}") from None
    verified.seek(0)
    return verified


def sync_directory(path: Path) -> None:
    """Put the names in a directory on the disk, where the system supports it.

    Otherwise a power cut may lose them.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def check_new(path: Path, option: str = "--out") -> None:
    """Refuse a file that exists, and a folder that is not empty.

    Args:
        path: The file or folder.
        option: The option of the command line that names another one.

    Raises:
        InputError: If it exists.
    """
    is_taken = path.exists()
    if path.is_dir():
        is_taken = any(path.iterdir())
    if is_taken:
        raise InputError(
            f"Expected a new file or folder, got {path}, which exists; choose another one "
            f"({option})."
        )


def atomic_write(path: str | Path, content: bytes | Callable[[io.BytesIO], Any]) -> None:
    """Write a file, so that a reader sees the old content or the new one.

    Args:
        path: The file; its directory is made.
        content: The content, or a function that writes it to an open file.

    Raises:
        InputError: If the file cannot be written.
    """
    if not isinstance(content, bytes):
        buffer = io.BytesIO()
        content(buffer)
        content = buffer.getvalue()
    path = Path(path)
    partial = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            # otherwise a power cut may leave the new name on an empty file
            os.fsync(file.fileno())
        os.replace(partial, path)
        sync_directory(path.parent)
        sync_directory(path.parent.parent)  # may be new, too
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise InputError(
            f"Expected to write {path}, got: {error.strerror}; choose a writable directory."
        ) from None


def write_json(path: Path, content: Any) -> None:
    """Write JSON atomically; see :func:`atomic_write`."""
    atomic_write(path, (json.dumps(content, indent=2) + "\n").encode())
