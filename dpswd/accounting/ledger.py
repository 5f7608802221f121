"""Ledger of releases: an append-only file that is written before noise is drawn.

A ledger holds the releases of one run, or those of several runs on the same records that share one
budget (:class:`dpswd.accounting.shared_ledger.SharedLedger`). Every line is a JSON object:

===========  =======================================================================================
``kind``     further fields
===========  =======================================================================================
header       format, and what the run states: budget, plan, versions, SHA-256 of its config
run          run (identifier), sample_size, plan, ...; only in a shared ledger
mechanism    id, sample_size, mechanism (the fields of ``to_dict``), run (in a shared ledger)
release      n (counts from 1), mechanism (an id), session
redraw       n (the last release of its run, whose noise is drawn again after a crash), session
stored       n (a release whose value is in the run directory); only in a shared ledger
===========  =======================================================================================

When :meth:`Ledger.record` returns, the release is on the disk; noise is drawn afterwards. When a
write fails, the file is what it was before. Processes never overwrite each other's lines (on
Windows, the user must see to it).

A release and a redraw each permit one draw of noise. They carry the session, a random identifier of
the process that wrote the line, so that copies of a run directory that go on separately have
different ledgers.

A run costs its plan, even if it made fewer releases: the decision to stop may depend on private
records.

Every line carries the SHA-256 of all lines before it, so that a changed, removed or inserted line
is detected. Lines missing at the end are not: compare :attr:`Ledger.head` with a copy that was
published or stored in a checkpoint.
"""

import contextlib
import hashlib
import json
import os
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Self

from dpswd._files import fcntl, sync_directory
from dpswd.accounting.accountant import ReleaseGroup
from dpswd.errors import DpswdError, InputError, LedgerError
from dpswd.mechanism import Mechanism, mechanism_from_dict

__all__ = ["CONDITIONS", "HANDED_OVER", "Draw", "Ledger"]

FORMAT = 4
READABLE_FORMATS = (3, 4)  # version 0.3 wrote format 3, without sessions, redraws and stored
HANDED_OVER = "handed over by the caller"
CONDITIONS = [
    "Every batch is a uniform subset of fixed size, drawn without replacement and afresh for each "
    "release.",
    "Every row depends on one record only.",
    "Nothing else that leaves the private side reads the records.",
]

Entry = dict[str, Any]  # a line of the file: parsed JSON


@dataclass(frozen=True)
class Draw:
    """A line that permits one draw of noise.

    Attributes:
        mechanism: What is released.
        sample_size: Number N of records; of units, where units are stated.
        session: Identifier of the process that wrote the line; empty in ledgers of version 0.3.
        is_redraw: Whether the line repeats the release before it, whose value a crash lost.
    """

    mechanism: Mechanism
    sample_size: int
    session: str
    is_redraw: bool = False


@dataclass(frozen=True)
class _Group:
    """Releases that are counted together."""

    mechanism: Mechanism
    sample_size: int
    run: str | None  # None in the ledger of one run


class Ledger:
    """The releases of one run.

    Use :meth:`create` for a new file and :meth:`open_existing` for an existing one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.session = secrets.token_hex(8)  # of the lines that this object writes
        self.header: Entry = {}
        self.delta = 1e-5  # of the budget in the header
        self.accountant = "pld"  # of the budget in the header
        # What each run states, by its identifier; that of one run is the header.
        self.runs: dict[str, Entry] = {}
        # Hashes of all lines; a checkpoint stores the last one at its time.
        self.heads: list[str] = []
        self.torn = False  # whether a crash has left an incomplete line at the end of the file
        self._counts: dict[_Group, int] = {}  # in the order of the ids
        self._releases: list[_Group] = []  # in order
        self._draws: dict[str | None, list[Draw]] = {}  # by run, in order
        self._numbers: dict[str | None, list[int]] = {}  # of the releases, by run
        self._stored: set[int] = set()  # numbers of releases
        self._n_bytes = 0
        self._last_line = b""
        self._file: FileIO | None = None  # while it is locked

    @classmethod
    def create(cls, path: str | Path, header: Entry) -> Self:
        """Start a ledger.

        Of existing files, only the ledger of a run without any release is replaced.
        """
        ledger = cls(Path(path))
        with ledger._open_for_writing(create=True) as file:
            content = file.readall()
            if content:
                _check_unused(ledger.path, content)
                file.truncate(0)
            ledger._append([{"kind": "header", "format": FORMAT, **header}])
        sync_directory(ledger.path.parent)
        return ledger

    @classmethod
    def check_free(cls, path: Path, resume: str = "") -> None:
        """Raise what :meth:`create` would raise for an existing file, without writing.

        Args:
            path: The file.
            resume: How to resume the run of the file, for the message.
        """
        if path.is_file():
            _check_unused(path, _read(path), resume)

    @classmethod
    def open_existing(cls, path: str | Path) -> Self:
        """Read a ledger and verify its chain.

        An incomplete last line, which a crash leaves, is not counted.
        """
        ledger = cls(Path(path))
        ledger._replay(_read(ledger.path))
        if not ledger.header:
            raise LedgerError(
                f"Expected a ledger with a header at {path}, got a file without a complete line; "
                "restore a copy of it."
            )
        return ledger

    # Content

    @property
    def head(self) -> str:
        """The hash of the last line."""
        return self.heads[-1] if self.heads else ""

    @property
    def n_releases(self) -> int:
        """The number of releases."""
        return len(self._releases)

    @property
    def releases(self) -> list[Mechanism]:
        """The mechanisms of all releases, in order."""
        return [group.mechanism for group in self._releases]

    @property
    def shared(self) -> bool:
        """Whether several runs write to this ledger."""
        return self.header.get("scope") == "shared"

    def count(self, mechanism: Mechanism, sample_size: int, run: str | None = None) -> int:
        """Return the number of releases of one mechanism."""
        return self._counts.get(_Group(mechanism, sample_size, run), 0)

    def draws(self, run: str | None = None) -> Sequence[Draw]:
        """Return the lines of a run that permit a draw of noise, in order.

        Pass ``run`` for a shared ledger.
        """
        return self._draws.get(run, [])

    def is_stored(self, number: int, run: str | None = None) -> bool:
        """Return whether a release of a run is marked as stored.

        The numbers of a run start with 1.
        """
        return self._numbers[run][number - 1] in self._stored

    def groups(self, run: str | None = None) -> list[ReleaseGroup]:
        """Return the releases made, by one run or by all."""
        groups: list[ReleaseGroup] = []
        for group, count in self._counts.items():
            is_of_run = group.run in (None, run)  # None in the ledger of one run
            if count and (run is None or is_of_run):
                groups.append((group.mechanism, group.sample_size, count))
        return groups

    def planned(self, run: str | None = None) -> list[ReleaseGroup]:
        """Return the releases that count.

        These are the plan of one run or of all runs, or the releases made where they exceed the
        plan.
        """
        runs = list(self.runs)
        if run is not None:
            runs = [run]
        groups: list[ReleaseGroup] = []
        for name in runs:
            planned = _totals(plan_of(self.runs[name]))
            released = _totals(self.groups(name))
            # The union of two counters has the larger one of both counts.
            for (mechanism, sample_size), count in (planned | released).items():
                groups.append((mechanism, sample_size, count))
        return groups

    def check_resumable(self, run: str, head: str) -> None:
        """Raise unless the ledger holds the run and all lines of a checkpoint.

        The lines end with the one whose hash is ``head``; it is empty without a ledger.
        """
        if run not in self.runs or head not in ("", *self.heads):
            raise LedgerError(
                f"Expected run {run} with the releases of the checkpoint in {self.path}, got other "
                "lines: the ledger was cut, or is that of a different run; the run cannot be "
                "resumed."
            )

    # Writing

    def record(self, mechanism: Mechanism, sample_size: int, run: str | None = None) -> None:
        """Write one release of ``run`` (in a shared ledger) to the disk.

        If it raises, the release must not be made.
        """
        self.write_draw(Draw(mechanism, sample_size, self.session), run)

    def write_draw(self, draw: Draw, run: str | None = None) -> None:
        """Write a line that permits one draw of noise.

        If it raises, noise must not be drawn.
        """
        with self.locked():
            self.check_permitted(draw, run)
            if draw.is_redraw:
                number = self._numbers[run][-1]
                self._append([{"kind": "redraw", "n": number, "session": draw.session}])
            else:
                self._append(self._release_entries(draw, run))

    def check_permitted(self, draw: Draw, run: str | None) -> None:
        """Raise if a draw must not be recorded. The ledger of one run records every draw."""

    def check_unchanged(self) -> None:
        """Raise if another process has written to the ledger of this run.

        While this object holds the lock there is nothing to check: no other process can write.
        """
        if self._file is not None:
            return
        with self._open_for_writing() as file:
            self._catch_up(file)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the file against other writers and read the lines that they added.

        A method that writes may be called inside.
        """
        if self._file is not None:
            yield
            return
        with self._open_for_writing() as file:
            self._catch_up(file)
            yield

    def _release_entries(self, draw: Draw, run: str | None) -> list[Entry]:
        """Return the line of a release, after a line of its mechanism if that is new."""
        group = _Group(draw.mechanism, draw.sample_size, run)
        known = list(self._counts)
        entries: list[Entry] = []
        if group in known:
            index = known.index(group)
        else:
            index = len(known)
            entry = {
                "kind": "mechanism",
                "id": index,
                "sample_size": draw.sample_size,
                "mechanism": draw.mechanism.to_dict(),
            }
            if run is not None:
                entry["run"] = run
            entries.append(entry)
        release = {
            "kind": "release",
            "n": self.n_releases + 1,
            "mechanism": index,
            "session": draw.session,
        }
        return [*entries, release]

    @contextlib.contextmanager
    def _open_for_writing(self, *, create: bool = False) -> Iterator[FileIO]:
        """Open and lock the file; errors of the disk become a LedgerError."""
        try:
            if create:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self.path.touch(0o644)
            with self.path.open("r+b", buffering=0) as file:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX)
                self._file = file
                yield file
        except OSError as error:
            raise LedgerError(
                f"Expected to write to the ledger at {self.path}, got: {error.strerror}; no "
                "release was made."
            ) from None
        finally:
            self._file = None

    def _catch_up(self, file: FileIO) -> None:
        """Check that the file still ends where this object left it.

        A shared ledger then reads further lines.
        """
        file.seek(max(0, self._n_bytes - len(self._last_line)))
        content = file.readall()
        rest = content.removeprefix(self._last_line)
        if not content.startswith(self._last_line) or (b"\n" in rest and not self.shared):
            raise LedgerError(
                f"Expected {self.path} to end as this run left it, got other content, or lines of "
                "a second process; no release was made."
            )
        self._replay(rest)
        if self.torn:
            file.truncate(self._n_bytes)

    def _append(self, entries: Sequence[Entry]) -> None:
        """Write entries at the end of the locked file, all or none.

        When the method returns, they are on the disk.
        """
        file = self._file
        if file is None:
            raise LedgerError(f"Expected {self.path} to be locked, got no lock.")
        head = self.head
        block = b""
        for entry in entries:
            head = digest(head, entry)
            block += json.dumps({**entry, "hash": head}, sort_keys=True).encode() + b"\n"
        rest = memoryview(block)
        try:
            file.seek(self._n_bytes)
            while rest:
                n_written = file.write(rest)
                rest = rest[n_written:]
            os.fsync(file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(self._n_bytes)
            raise
        self._replay(block)

    # Reading

    def _replay(self, content: bytes) -> None:
        """Verify and add the lines that follow those already read."""
        *lines, rest = content.split(b"\n")
        for line in lines:
            where = f"line {len(self.heads) + 1} of {self.path}"
            try:
                entry = json.loads(line)
                head = entry.pop("hash")
                entry["kind"]
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise LedgerError(
                    f"Expected a JSON entry on {where}, got a damaged one; pass the ledger.jsonl "
                    "of a run, or restore a copy of it."
                ) from None
            if head != digest(self.head, entry):
                raise LedgerError(
                    f"Expected {where} to continue the chain, got another hash: it was edited; "
                    "restore a copy of it."
                )
            self._apply(entry, where)
            self.heads.append(head)
            self._n_bytes += len(line) + 1
            self._last_line = line + b"\n"
        if rest and not _is_incomplete_line(rest):
            raise LedgerError(
                f"Expected line {len(self.heads) + 1} of {self.path} to be an entry, got a damaged "
                "one; restore a copy of it."
            )
        self.torn = bool(rest)

    def _apply(self, entry: Entry, where: str) -> None:
        """Add the content of one entry. Raises LedgerError if it is not valid."""
        kind = entry["kind"]
        is_first = not self.heads
        if (kind == "header") != is_first:
            raise LedgerError(
                f"Expected a header on line 1 only, got {kind!r} on {where}; restore a copy of it."
            )
        methods = {
            "header": self._apply_header,
            "run": self._apply_run,
            "mechanism": self._apply_mechanism,
            "release": self._apply_release,
            "redraw": self._apply_redraw,
            "stored": self._apply_stored,
        }
        try:
            methods[kind](entry)
        except (InputError, KeyError, IndexError, TypeError) as error:
            raise LedgerError(
                f"Expected a valid entry on {where}, got: {error}; restore a copy of it."
            ) from None

    def _apply_header(self, entry: Entry) -> None:
        """Set budget, plan and runs from the first line."""
        if entry.get("format") not in READABLE_FORMATS:
            known = " or ".join(map(str, READABLE_FORMATS))
            version = entry.get("version", "of an unknown version")
            raise InputError(
                f"format {entry.get('format')!r} instead of {known}, written by dpswd {version}"
            )
        plan_of(entry)  # raises if the plan is not valid
        self.header = {name: value for name, value in entry.items() if name != "kind"}
        self.delta = self.header.get("target_delta", self.delta)
        self.accountant = self.header.get("accountant", self.accountant)
        if not self.shared:
            self.runs = {str(entry.get("run", "")): self.header}

    def _apply_run(self, entry: Entry) -> None:
        """Add a run and its plan."""
        if entry["run"] in self.runs:
            raise InputError(f"a second plan of run {entry['run']}")
        plan_of(entry)  # raises if the plan is not valid
        self.runs[entry["run"]] = entry

    def _apply_mechanism(self, entry: Entry) -> None:
        """Add a mechanism, of which no release is made so far."""
        if entry["id"] != len(self._counts):
            raise InputError(f"mechanism {entry['id']!r} after {len(self._counts)} mechanisms")
        mechanism = mechanism_from_dict(entry["mechanism"])
        self._counts[_Group(mechanism, entry["sample_size"], entry.get("run"))] = 0

    def _apply_release(self, entry: Entry) -> None:
        """Count a release."""
        number = entry["n"]
        if number != self.n_releases + 1:
            raise InputError(f"release {number!r} after {self.n_releases} releases")
        if entry["mechanism"] < 0:
            raise InputError(f"mechanism {entry['mechanism']!r}")
        group = list(self._counts)[entry["mechanism"]]
        self._counts[group] += 1
        self._releases.append(group)
        self._numbers.setdefault(group.run, []).append(number)
        draw = Draw(group.mechanism, group.sample_size, entry.get("session", ""))
        self._draws.setdefault(group.run, []).append(draw)

    def _apply_redraw(self, entry: Entry) -> None:
        """Add a permission to draw the noise of the last release of a run again."""
        group = self._group_of(entry["n"])
        if entry["n"] != self._numbers[group.run][-1]:
            raise InputError(f"release {entry['n']}, which is not the last one of its run")
        draw = Draw(group.mechanism, group.sample_size, entry["session"], is_redraw=True)
        self._draws[group.run].append(draw)

    def _apply_stored(self, entry: Entry) -> None:
        """Mark a release as stored."""
        self._group_of(entry["n"])
        self._stored.add(entry["n"])

    def _group_of(self, number: int) -> _Group:
        """Return the group of a release that is not stored.

        Raise if no release has this number, or if it is stored.
        """
        if not 1 <= number <= self.n_releases:
            raise InputError(f"release {number!r} of {self.n_releases} releases")
        if number in self._stored:
            raise InputError(f"release {number}, which is stored")
        return self._releases[number - 1]


def plan_of(entry: Entry) -> list[ReleaseGroup]:
    """Return the plan in the line of a header or a run, or an empty one."""
    plan: list[ReleaseGroup] = []
    for part in entry.get("plan", []):
        mechanism = mechanism_from_dict(part["mechanism"])
        plan.append((mechanism, entry["sample_size"], part["n_releases"]))
    return plan


def digest(previous: str, entry: Entry) -> str:
    """Return the hash of an entry and of all entries before it.

    ``previous`` is the hash of the entries before it.
    """
    return hashlib.sha256((previous + json.dumps(entry, sort_keys=True)).encode()).hexdigest()


def _read(path: Path) -> bytes:
    """Return the content of a file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"Expected a ledger at {path}, got: {error.strerror}; check the run directory."
        ) from None


def _check_unused(path: Path, content: bytes, resume: str = "") -> None:
    """Raise unless a new ledger may replace the content of a file.

    It may if the file is empty, or holds an incomplete first line or the ledger of a run without
    any release.
    """
    existing = Ledger(path)
    with contextlib.suppress(DpswdError):
        existing._replay(content)
        is_unused = existing.n_releases == 0 and not existing.shared
        has_started_as_ledger = bool(existing.heads) or content[:2] in (b"", b'{"')
        if is_unused and has_started_as_ledger:
            return
    remedy = "choose another file or directory"
    if resume:
        remedy = (
            f"resume that run by {resume}, or choose another directory for a new one, which spends "
            "a budget of its own: on the same records, the budgets add up"
        )
    raise InputError(
        f"Expected no ledger at {path}, got an existing file, whose releases stay spent; {remedy}."
    )


def _totals(groups: list[ReleaseGroup]) -> Counter[tuple[Mechanism, int]]:
    """Return the number of releases of every mechanism and sample size."""
    counts: Counter[tuple[Mechanism, int]] = Counter()
    for mechanism, sample_size, count in groups:
        counts[mechanism, sample_size] += count
    return counts


def _is_incomplete_line(rest: bytes) -> bool:
    """Return whether a crash may have left these bytes at the end of a file.

    They follow the last line break. A crash while a line is written leaves its start, such as
    ``{"hash": "3f``. Some file systems lengthen a file before they write its content, which leaves
    zeros after the start, or only zeros. The release of such a line was not made: noise is drawn
    after the whole line is written.

    A complete object with another byte in place of its line break is not incomplete, but damaged.
    If it were skipped, it would hide a release.
    """
    text = rest.rstrip(b"\0")
    if text[:2] not in (b"", b"{", b'{"'):
        return False
    if not text.isascii() or not text.decode().isprintable():
        return False
    # The last byte, or the first zero, may be what was written over a line break.
    before_last_byte = text
    if len(text) == len(rest):
        before_last_byte = text[:-1]
    try:
        return not isinstance(json.loads(before_last_byte), dict)
    except (ValueError, RecursionError):
        return True
