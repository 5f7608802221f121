"""The ledger: what was released, written down before it happens. Standard library only.

An append-only file of JSON lines. Every line carries the SHA-256 of the line before it, so that a line that
is changed, removed or inserted breaks the chain. A release is written and fsynced BEFORE its noise is drawn:
a crash may waste budget, it never hides a release. What the chain cannot show by itself is that lines are
missing at the end; a run compares the count with its checkpoint.

===========  =====================================================================
kind         fields
===========  =====================================================================
header       format, version, and whatever the run wants to state (budget, config)
mechanism    id, sample_size, mechanism (its fields)
release      n (counts from 1), mechanism (an id)
===========  =====================================================================
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from dpswd.errors import InputError
from dpswd.mechanism import GaussianMechanism, Mechanism, ProjectionMechanism, mechanism_from_dict

fcntl: Any = None
with contextlib.suppress(ImportError):  # not on Windows
    import fcntl

__all__ = ["Ledger", "ReleaseGroup"]

FORMAT = 1
ReleaseGroup = tuple[ProjectionMechanism | GaussianMechanism, int, int]  # (mechanism, sample_size, count)


class Ledger:
    """The releases of one run (or of several on the same records), in a file that only grows.

    Use :meth:`create` for a new file and :meth:`open_existing` for one that is there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: dict[str, Any] = {}
        self.head = ""
        self.heads: set[str] = set()  # every one so far: a checkpoint names the one that it was taken at
        self.n_releases = 0
        self._mechanisms: list[tuple[dict[str, Any], int]] = []
        self._counts: list[int] = []
        self._good_bytes = 0
        self._failed = b""

    @classmethod
    def create(cls, path: str | Path, header: dict[str, Any]) -> "Ledger":
        """Starts a ledger; refuses to touch a file that exists.

        Raises:
            InputError: If the file exists or cannot be written.
        """
        ledger = cls(Path(path))
        if ledger.path.exists():
            raise ledger._taken()
        try:
            ledger.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(ledger.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except OSError as error:
            if isinstance(error, FileExistsError) and ledger.path.exists():
                raise ledger._taken() from None
            raise InputError(f"Expected to write a ledger at {path}, got: {error.strerror}; check the path.") from None
        os.close(descriptor)
        ledger.header = {"format": FORMAT, **header}
        ledger._append({"kind": "header", **ledger.header})
        return ledger

    @classmethod
    def open_existing(cls, path: str | Path) -> "Ledger":
        """Reads a ledger and verifies its chain.

        A last line without its line break is what a crash in the middle of a write leaves. Its release was
        not made (the noise is drawn after the write returns), so it is not counted, and the next entry
        replaces it.

        Raises:
            InputError: If the file is missing, unreadable, or not the chain that was written.
        """
        ledger = cls(Path(path))
        try:
            content = ledger.path.read_bytes()
        except FileNotFoundError:
            raise InputError(f"Expected a ledger at {path}, got none; check the run directory.") from None
        except OSError as error:
            raise InputError(f"Expected to read the ledger at {path}, got: {error.strerror}.") from None
        ledger._good_bytes = content.rfind(b"\n") + 1
        for number, line in enumerate(content[: ledger._good_bytes].splitlines(), start=1):
            ledger._replay(number, line)
        if not ledger.header:
            raise InputError(f"Expected a ledger with a header at {path}, got an empty file.")
        return ledger

    def record(self, mechanism: Mechanism, sample_size: int) -> None:
        """Writes one release down and returns when it is on the disk.

        Raises:
            InputError: If it cannot be written; the release must not happen then.
        """
        key = (mechanism.to_dict(), sample_size)
        if key not in self._mechanisms:
            entry = {"id": len(self._mechanisms), "sample_size": sample_size, "mechanism": key[0]}
            self._append({"kind": "mechanism", **entry})
            self._mechanisms.append(key)
            self._counts.append(0)
        index = self._mechanisms.index(key)
        self._append({"kind": "release", "n": self.n_releases + 1, "mechanism": index})
        self._counts[index] += 1
        self.n_releases += 1

    def count(self, mechanism: Mechanism, sample_size: int) -> int:
        """Returns how many releases of one mechanism were written down."""
        key = (mechanism.to_dict(), sample_size)
        return self._counts[self._mechanisms.index(key)] if key in self._mechanisms else 0

    def groups(self) -> list[ReleaseGroup]:
        """Returns (mechanism, sample size, number of releases) for an accountant's ``step``."""
        return [
            (mechanism_from_dict(fields), size, count)
            for (fields, size), count in zip(self._mechanisms, self._counts, strict=True)
            if count
        ]

    def __iter__(self) -> Iterator[ReleaseGroup]:
        return iter(self.groups())

    def _taken(self) -> InputError:
        return InputError(
            f"Expected no ledger at {self.path} for a new run, got one; resume that run from its checkpoint, "
            "or choose another directory."
        )

    def _append(self, entry: dict[str, Any]) -> None:
        head = _digest(self.head, entry)
        line = json.dumps({**entry, "hash": head}, sort_keys=True).encode() + b"\n"
        try:
            with self.path.open("r+b") as file:
                _lock(file)
                file.seek(self._good_bytes)
                if b"\n" in (rest := file.read()) and rest != self._failed:  # lines of somebody else
                    raise InputError(
                        f"Expected to be the only writer of {self.path}, got entries by another run or copy; "
                        "no release was made: start again from a checkpoint."
                    )
                file.truncate(self._good_bytes)  # what a crash left of a line
                file.seek(self._good_bytes)
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            self._failed = line
            raise InputError(
                f"Expected to write to the ledger at {self.path}, got: {error.strerror}; no release was made."
            ) from None
        self._good_bytes += len(line)
        self.head = head
        self.heads.add(head)

    def _replay(self, number: int, line: bytes) -> None:
        try:
            entry = json.loads(line)
            claimed = entry.pop("hash")
            kind = entry["kind"]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(f"Expected JSON on line {number} of {self.path}, got something else: corrupt.") from None
        if claimed != _digest(self.head, entry):
            raise InputError(
                f"Expected line {number} of {self.path} to continue the chain, got another hash: "
                "the ledger was edited or a line is missing; do not rely on it."
            )
        if (kind == "header") != (number == 1):
            raise InputError(f"Expected the header on line 1 of {self.path} only, got {kind!r} on line {number}.")
        if kind == "header":
            if entry.get("format") != FORMAT:
                raise InputError(f"Expected ledger format {FORMAT} in {self.path}, got {entry.get('format')!r}.")
            self.header = {name: value for name, value in entry.items() if name != "kind"}
        elif kind == "mechanism":
            self._mechanisms.append((entry.get("mechanism", {}), entry.get("sample_size", 0)))
            self._counts.append(0)
        elif kind == "release" and entry.get("mechanism") in range(len(self._counts)):
            self._counts[entry["mechanism"]] += 1
            self.n_releases += 1
        else:
            raise InputError(f"Expected a release on line {number} of {self.path}, got {kind!r}: unknown entry.")
        self.head = claimed
        self.heads.add(claimed)


def _lock(file: IO[bytes]) -> None:
    """Keeps other writers out until the file is closed, where the system has such locks."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX)


def _digest(previous: str, entry: dict[str, Any]) -> str:
    return hashlib.sha256((previous + json.dumps(entry, sort_keys=True)).encode()).hexdigest()
