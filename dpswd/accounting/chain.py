"""An append-only file of JSON lines, each of which carries the hash of all before it. Standard library only.

A line that is changed, removed or inserted breaks the chain. What the chain cannot show by itself is that lines are
missing at the end; whoever keeps a head or a count elsewhere can. A line counts from the moment that it lies on the
disk with its line break: what a crash leaves of a line is no line, and the next one replaces it.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

from dpswd.errors import InputError

fcntl: Any = None
with contextlib.suppress(ImportError):  # not on Windows
    import fcntl

__all__ = ["Chain"]

Entry = dict[str, Any]


class Chain:
    """The file; a subclass knows what its entries mean.

    Formal guarantee:
        When :meth:`_append` returns, the entries are on the disk; when it raises, the file is what it was. Writers in
        several processes never overwrite each other's lines: each holds the file's lock, checks that the last line it
        knows still stands where it was, and reads what others have added, or (``shared`` false) refuses to go on.
        (Where the system has no such lock, Windows, one writer at a time is the user's duty.)

    Attributes:
        path: Where it lies.
        head: Hash of the last line.
        heads: Every hash so far: a checkpoint names the one that it was taken at.
        torn: Whether the file ended in the middle of a line when it was read.
    """

    shared = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head = ""
        self.heads: set[str] = set()
        self.torn = False
        self._lines = 0
        self._good_bytes = 0
        self._tail = b""  # the last line, to be found again

    def _take(self, entry: Entry) -> None:
        """Learns one entry. Raises InputError where it makes no sense."""
        raise NotImplementedError

    def _may_restart(self) -> bool:
        """Says whether all that was written may be given up."""
        return False

    def _start(self, first: Entry) -> None:
        """Begins the file with an entry; a file that never got so far as to say anything is begun again."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
            self._check_kind()
        except OSError as error:
            raise InputError(
                f"Expected to write a ledger at {self.path}, got: {error.strerror}; check the path."
            ) from None
        try:
            with self._locked(begin=True) as file:
                self._append(file, [first])
        except InputError:
            with contextlib.suppress(OSError):  # a full disk may have room for a name and none for a line
                if not self.path.stat().st_size:
                    self.path.unlink()
            raise
        with contextlib.suppress(OSError):  # the file's name, too, outlives a power cut where the system can do that
            directory = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)

    def _read(self) -> None:
        try:
            self._check_kind()
            content = self.path.read_bytes()
        except FileNotFoundError:
            raise InputError(f"Expected a ledger at {self.path}, got none; check the run directory.") from None
        except OSError as error:
            raise InputError(f"Expected to read the ledger at {self.path}, got: {error.strerror}.") from None
        self._replay(content)

    def _check_kind(self) -> None:
        """Keeps away from devices and pipes, which may have no end."""
        if not self.path.is_dir() and self.path.exists() and not self.path.is_file():
            raise InputError(
                f"Expected a plain file for a ledger at {self.path}, got a device or a pipe; choose another."
            )

    def _replay(self, content: bytes) -> None:
        """Verifies and learns what follows the lines that are known."""
        *lines, rest = content.split(b"\n")
        for line in lines:
            self._verify(line)
        if rest and not _is_torn(rest):
            raise InputError(
                f"Expected line {self._lines + 1} of {self.path} to be whole or cut off, got something else: corrupt."
            )
        self.torn = bool(rest)

    def _verify(self, line: bytes) -> None:
        number = self._lines + 1
        try:
            entry = json.loads(line)
            claimed = entry.pop("hash")
            entry["kind"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise InputError(f"Expected JSON on line {number} of {self.path}, got something else: corrupt.") from None
        if claimed != digest(self.head, entry):
            raise InputError(
                f"Expected line {number} of {self.path} to continue the chain, got another hash: "
                "the ledger was edited or a line is missing; do not rely on it."
            )
        self._accept(entry, claimed, line + b"\n")

    def _accept(self, entry: Entry, head: str, line: bytes) -> None:
        self._take(entry)
        self._lines += 1
        self._good_bytes += len(line)
        self._tail = line
        self.head = head
        self.heads.add(head)

    @contextlib.contextmanager
    def _locked(self, *, begin: bool = False) -> Iterator[FileIO]:
        """Keeps other writers out, and knows all that they wrote."""
        try:
            with self.path.open("r+b", buffering=0) as file:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX)
                if begin:
                    self._give_up(file)
                self._catch_up(file)
                yield file
        except OSError as error:
            raise InputError(
                f"Expected to write to the ledger at {self.path}, got: {error.strerror}; no release was made."
            ) from None

    def _give_up(self, file: FileIO) -> None:
        """Empties a file that says nothing yet; refuses to touch any other."""
        if content := file.readall():
            self._check_empty(content)
            file.truncate(0)

    def _check_empty(self, content: bytes) -> None:
        there = type(self)(self.path)
        with contextlib.suppress(InputError):
            there._replay(content)
            torn = not there._lines and content.startswith(b'{"')  # half a first line
            if not content or torn or (there._lines and there._may_restart()):
                return
        raise InputError(
            f"Expected no ledger at {self.path} for a new run, got one; resume that run from its checkpoint, "
            "or choose another directory."
        )

    def _catch_up(self, file: FileIO) -> None:
        file.seek(max(0, self._good_bytes - len(self._tail)))
        content = file.readall()
        if not content.startswith(self._tail):
            raise InputError(
                f"Expected {self.path} to end as this run left it, got another file: it was replaced, cut or edited; "
                "no release was made."
            )
        rest = content[len(self._tail) :]
        if b"\n" in rest and not self.shared:
            raise InputError(
                f"Expected to be the only writer of {self.path}, got entries by another run or copy; "
                "no release was made: start again from a checkpoint."
            )
        self._replay(rest)
        if self.torn:
            file.truncate(self._good_bytes)

    def _append(self, file: FileIO, entries: Sequence[Entry]) -> None:
        """Writes entries at the end of a locked file, all or none, and returns when they are on the disk."""
        head, block = self.head, []
        for entry in entries:
            head = digest(head, entry)
            block.append((entry, head, json.dumps({**entry, "hash": head}, sort_keys=True).encode() + b"\n"))
        rest = memoryview(b"".join(line for *_, line in block))
        try:
            file.seek(self._good_bytes)
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(self._good_bytes)
            raise
        self.torn = False
        for entry, head, line in block:
            self._accept(entry, head, line)


def _is_torn(rest: bytes) -> bool:
    """Says whether a crash may have left this of a line: its beginning, with zeros after it on some file systems.

    A whole line with another byte in the place of its line break is nothing that a crash leaves.
    """
    left = rest.rstrip(b"\0")
    if left[:2] not in (b"", b"{", b'{"') or not left.isascii() or not left.decode().isprintable():
        return False
    try:
        return not isinstance(json.loads(left if len(left) < len(rest) else left[:-1]), dict)
    except (ValueError, RecursionError):
        return True


def digest(previous: str, entry: Entry) -> str:
    """Returns the hash of an entry and of all before it, which ``previous`` stands for."""
    return hashlib.sha256((previous + json.dumps(entry, sort_keys=True)).encode()).hexdigest()
