"""Ledger of releases: an append-only file that is written before noise is drawn.

A ledger holds the releases of one run, or those of several runs on the same records that share one budget
(:class:`SharedLedger`). Every line is a JSON object:

===========  =========================================================================================
``kind``     further fields
===========  =========================================================================================
header       format, and what the run states: budget, plan, versions, SHA-256 of its config
run          run (identifier), sample_size, plan, ...; only in a shared ledger
mechanism    id, sample_size, mechanism (the fields of ``to_dict``), run (in a shared ledger)
release      n (counts from 1), mechanism (an id)
===========  =========================================================================================

When :meth:`Ledger.record` returns, the release is on the disk; noise is drawn afterwards. When a write fails, the file
is what it was before. Processes never overwrite each other's lines (on Windows, the user must see to it).

A run costs its plan, even if it made fewer releases: the decision to stop may depend on private records.

Every line carries the SHA-256 of all lines before it, so that a changed, removed or inserted line is detected. Lines
missing at the end are not: compare :attr:`Ledger.head` with a copy that was published or stored in a checkpoint.
"""

import contextlib
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import Any, Self

from dpswd._files import fcntl, sync_directory
from dpswd._validate import choice, positive, probability
from dpswd.accounting.accountant import PrivacyAccountant, ReleaseGroup
from dpswd.errors import BudgetExceededError, DpswdError, InputError, LedgerError
from dpswd.mechanism import Mechanism, mechanism_from_dict

FORMAT = 3
HANDED_OVER = "handed over by the caller"
CONDITIONS = [
    "Every batch is a uniform subset of fixed size, drawn without replacement and afresh for each release.",
    "Every row depends on one record only.",
    "Nothing else that leaves the private side reads the records.",
]
_CONSEQUENCES = {  # of a run for the numbers of all runs together; the gravest first
    "NOT PRIVATE": "do not hold",
    "NOT SOUND": "are not proven upper bounds",
    "CONDITIONAL": "hold on these conditions",
}
Entry = dict[str, Any]


class Ledger:
    """The releases of one run. Use :meth:`create` for a new file and :meth:`open_existing` for an existing one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: Entry = {}
        self.delta, self.accountant = 1e-5, "pld"  # of the budget in the header
        self.runs: dict[
            str, Entry
        ] = {}  # what each run states, by its identifier; that of one run is the header
        self.releases: list[Mechanism] = []  # in order
        self.heads: list[
            str
        ] = []  # hashes of all lines; a checkpoint stores the last one at its time
        self.torn = False  # whether the file ended with an incomplete line when it was read
        self._counts: dict[
            tuple[Mechanism, int, str | None], int
        ] = {}  # by mechanism, sample size and run
        self._n_bytes = 0
        self._last_line = b""

    @classmethod
    def create(cls, path: str | Path, header: Entry) -> Self:
        """Start a ledger; of existing files, only the ledger of a run without any release is replaced."""
        ledger = cls(Path(path))
        with ledger._locked(create=True) as file:
            ledger._append(file, [{"kind": "header", "format": FORMAT, **header}])
        sync_directory(ledger.path.parent)
        return ledger

    @classmethod
    def check_free(cls, path: Path) -> None:
        """Raise what :meth:`create` would raise for an existing file, without writing."""
        if path.is_file():
            _check_unused(path, _read(path))

    @classmethod
    def open_existing(cls, path: str | Path) -> Self:
        """Read a ledger and verify its chain; an incomplete last line, which a crash leaves, is not counted."""
        ledger = cls(Path(path))
        ledger._replay(_read(ledger.path))
        if not ledger.header:
            raise LedgerError(f"Expected a ledger with a header at {path}, got an empty file.")
        return ledger

    @property
    def head(self) -> str:
        """The hash of the last line."""
        return self.heads[-1] if self.heads else ""

    @property
    def n_releases(self) -> int:
        """The number of releases."""
        return len(self.releases)

    @property
    def shared(self) -> bool:
        """Whether several runs write to this ledger."""
        return self.header.get("scope") == "shared"

    def record(self, mechanism: Mechanism, sample_size: int, run: str | None = None) -> None:
        """Write one release of ``run`` (in a shared ledger) to the disk; if it raises, the release must not be made."""
        with self._locked() as file:
            if self.shared:
                self._check_planned(mechanism, sample_size, run)
            key, known = (mechanism, sample_size, run), list(self._counts)
            index = known.index(key) if key in known else len(known)
            entry = {
                "kind": "mechanism",
                "id": index,
                "sample_size": sample_size,
                "mechanism": mechanism.to_dict(),
            }
            entries = [] if key in known else [entry if run is None else {**entry, "run": run}]
            self._append(
                file, [*entries, {"kind": "release", "n": self.n_releases + 1, "mechanism": index}]
            )

    def count(self, mechanism: Mechanism, sample_size: int, run: str | None = None) -> int:
        """Return the number of releases of one mechanism."""
        return self._counts.get((mechanism, sample_size, run), 0)

    def groups(self, run: str | None = None) -> list[ReleaseGroup]:
        """Return the releases made, by one run or by all."""
        made = [(*key, count) for key, count in self._counts.items() if count]
        return [
            (each, size, count)
            for each, size, owner, count in made
            if run is None or owner in (None, run)
        ]

    def planned(self, run: str | None = None) -> list[ReleaseGroup]:
        """Return the releases that count: the plan of one run or of all, or the releases made where they exceed it."""
        found: list[ReleaseGroup] = []
        for each in self.runs if run is None else [run]:
            larger = _counted(plan_of(self.runs[each])) | _counted(self.groups(each))
            found += [(mechanism, size, count) for (mechanism, size), count in larger.items()]
        return found

    def check_resumable(self, run: str, head: str) -> None:
        """Raise unless the ledger holds the run and the lines up to the ``head`` in a checkpoint, if it has one."""
        if run not in self.runs or head not in ("", *self.heads):
            raise LedgerError(
                f"Expected run {run} with the releases of the checkpoint in {self.path}, got other lines: the ledger "
                "was cut, or is that of a different run; the run cannot be resumed."
            )

    def _check_planned(self, mechanism: Mechanism, sample_size: int, run: str | None) -> None:
        if run not in self.runs:
            raise LedgerError(
                f"Expected a run that {self.path} holds a plan of, got {run!r}; no release was made."
            )
        allowed = _counted(plan_of(self.runs[run]))[mechanism, sample_size]
        if self.count(mechanism, sample_size, run) >= allowed:
            raise BudgetExceededError(
                f"Expected at most {allowed} releases of this mechanism, as run {run} planned in {self.path}, got more."
            )

    # Writing

    @contextlib.contextmanager
    def _locked(self, *, create: bool = False) -> Iterator[FileIO]:
        """Lock the file against other writers and read the lines that they added."""
        try:
            if create:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self.path.touch(0o644)
            with self.path.open("r+b", buffering=0) as file:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX)
                if create and (content := file.readall()):
                    _check_unused(self.path, content)
                    file.truncate(0)
                self._catch_up(file)
                yield file
        except OSError as error:
            raise LedgerError(
                f"Expected to write to the ledger at {self.path}, got: {error.strerror}; no release was made."
            ) from None

    def _catch_up(self, file: FileIO) -> None:
        """Check that the file still ends where this object left it; a shared ledger then reads further lines."""
        file.seek(max(0, self._n_bytes - len(self._last_line)))
        content = file.readall()
        rest = content.removeprefix(self._last_line)
        if not content.startswith(self._last_line) or (b"\n" in rest and not self.shared):
            raise LedgerError(
                f"Expected {self.path} to end as this run left it, got other content, or lines of a second process; "
                "no release was made."
            )
        self._replay(rest)
        if self.torn:
            file.truncate(self._n_bytes)

    def _append(self, file: FileIO, entries: Sequence[Entry]) -> None:
        """Write entries at the end of the locked file, all or none, and return when they are on the disk."""
        head, block = self.head, b""
        for entry in entries:
            head = digest(head, entry)
            block += json.dumps({**entry, "hash": head}, sort_keys=True).encode() + b"\n"
        rest = memoryview(block)
        try:
            file.seek(self._n_bytes)
            while rest:
                rest = rest[file.write(rest) :]
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
                raise LedgerError(f"Expected a JSON entry on {where}, got a damaged one.") from None
            if head != digest(self.head, entry):
                raise LedgerError(
                    f"Expected {where} to continue the chain, got another hash: it was edited."
                )
            self._apply(entry, where)
            self.heads.append(head)
            self._n_bytes += len(line) + 1
            self._last_line = line + b"\n"
        if rest and not _is_incomplete_line(rest):
            raise LedgerError(
                f"Expected line {len(self.heads) + 1} of {self.path} to be an entry, got a damaged one."
            )
        self.torn = bool(rest)

    def _apply(self, entry: Entry, where: str) -> None:
        """Add the content of one entry. Raises LedgerError if it is not valid."""
        kind = entry["kind"]
        if (kind == "header") == bool(self.heads):
            raise LedgerError(f"Expected a header on line 1 only, got {kind!r} on {where}.")
        try:
            if kind == "header":
                if entry.get("format") != FORMAT:
                    raise InputError(f"format {entry.get('format')!r} instead of {FORMAT}")
                plan_of(entry)
                self.header = {name: value for name, value in entry.items() if name != "kind"}
                self.delta = self.header.get("target_delta", self.delta)
                self.accountant = self.header.get("accountant", self.accountant)
                self.runs = {} if self.shared else {str(entry.get("run", "")): self.header}
            elif kind == "run" and entry["run"] not in self.runs:
                plan_of(entry)
                self.runs[entry["run"]] = entry
            elif kind == "mechanism" and entry["id"] == len(self._counts):
                self._counts[
                    mechanism_from_dict(entry["mechanism"]), entry["sample_size"], entry.get("run")
                ] = 0
            elif (
                kind == "release" and entry["n"] == self.n_releases + 1 and entry["mechanism"] >= 0
            ):
                key = list(self._counts)[entry["mechanism"]]
                self._counts[key] += 1
                self.releases.append(key[0])
            else:
                raise InputError(
                    f"{kind!r} number {entry.get('n')!r} after {self.n_releases} releases"
                )
        except (InputError, KeyError, IndexError, TypeError) as error:
            raise LedgerError(f"Expected a valid entry on {where}, got: {error}.") from None


class SharedLedger(Ledger):
    """The releases of several runs on the same records, and the total budget of these runs.

    A run reserves its whole plan, under the file's lock, before it draws any noise, and can release nothing else.
    """

    @classmethod
    def create(  # type: ignore[override]
        cls,
        path: str | Path,
        *,
        target_epsilon: float,
        target_delta: float,
        accountant: str = "pld",
    ) -> Self:
        """Create a shared ledger with a total budget, before the first of its runs."""
        positive(target_epsilon=target_epsilon)
        probability(target_delta=target_delta)
        choice(("pld", "rdp"), accountant=accountant)
        budget = {
            "target_epsilon": target_epsilon,
            "target_delta": target_delta,
            "accountant": accountant,
        }
        return super().create(path, {"scope": "shared", **budget})

    @classmethod
    def open_existing(cls, path: str | Path) -> Self:
        """Read a shared ledger."""
        ledger = super().open_existing(path) if Path(path).exists() else None
        if ledger is None or not ledger.shared:
            got = "no file" if ledger is None else "the ledger of one run"
            raise InputError(
                f"Expected a shared ledger at {path}, got {got}; make one with dpswd ledger create."
            )
        return ledger

    def check(self, groups: Sequence[ReleaseGroup]) -> None:
        """Raise unless the budget covers the plan ``groups`` besides those in the ledger; write nothing."""
        spent = self.planned()
        sizes = sorted({size for _, size, _ in [*spent, *groups]})
        if len(sizes) > 1:
            raise InputError(
                f"Expected the same sample_size in all runs of {self.path}, got {' and '.join(map(str, sizes))}; "
                "a shared ledger is for runs on the same records."
            )
        limit, delta = self.header["target_epsilon"], self.delta
        if sizes and delta * sizes[0] >= 1:
            raise InputError(
                f"Expected target_delta of {self.path} below 1 / N = {1 / sizes[0]:.2g}, got {delta:g}."
            )
        total = PrivacyAccountant.from_groups([*spent, *groups], self.accountant).get_epsilon(delta)
        if total > limit:
            before = (
                PrivacyAccountant.from_groups(spent, self.accountant).get_epsilon(delta)
                if spent
                else 0
            )
            raise BudgetExceededError(
                f"Expected all runs in {self.path} to cost at most epsilon={limit:g} at delta={delta:g}, got "
                f"{total:.4g} with this run ({before:.4g} without it); use a smaller target_epsilon for this run."
            )

    def reserve(self, run: str, facts: dict[str, Any]) -> None:
        """Add a run that states ``sample_size``, ``plan`` and other ``facts``, if the budget covers its plan."""
        with self._locked() as file:
            self.check(plan_of(facts))
            self._append(file, [{"kind": "run", "run": run, **facts}])


def statement(ledger: Ledger) -> dict[str, Any]:
    """Return the cost of all plans in a ledger, ``private``, and in one ``sentence`` which runs void or share it.

    Where the plan of a later run is chosen after looking at earlier releases, only the total budget is proven to hold,
    if it was fixed before all runs and every release is exactly Gaussian (a privacy filter, SmithThakurta2022).
    """
    account = PrivacyAccountant.from_groups(ledger.planned(), ledger.accountant)
    facts, found = account.guarantee(ledger.delta), _shortcomings(ledger)
    sentences = [f"{kind}: run {run}: {why}." for kind, run, why in found]
    if found:
        sentences.append(f"The numbers for all runs together {_CONSEQUENCES[found[0][0]]}.")
    if ledger.shared:
        budget = ledger.header["target_epsilon"]
        adaptive = "Assumed: plans of later runs, and whether there are any, are not chosen after looking at earlier releases."
        if not account.history or account.gaussian_mu is not None:
            adaptive = (
                "Plans of later runs may be chosen after looking at earlier releases: the total budget, epsilon "
                f"{budget:g} at delta {ledger.delta:g}, then holds. The cost so far holds for plans "
                "that were not chosen so."
            )
        facts["assumptions"] = [*facts["assumptions"], adaptive]
        sentences += [
            f"Runs in the shared ledger: {len(ledger.runs)}, together epsilon {facts['epsilon']:.4g} at delta "
            f"{ledger.delta:g}, mu {facts['mu']:.4g}, every plan counted in full; their total budget is epsilon "
            f"{budget:g}.",
            adaptive,
        ]
    private = not any(kind == "NOT PRIVATE" for kind, *_ in found)
    return {
        **facts,
        "private": private,
        "sound": facts["sound"] and not found,
        "sentence": " ".join(sentences),
    }


def _shortcomings(ledger: Ledger) -> list[tuple[str, str, str]]:
    """Return kind, run and reason of the runs that are not private or not sound, the gravest first."""
    found = []
    for run, facts in ledger.runs.items():
        account = PrivacyAccountant.from_groups(ledger.planned(run))
        if not all(
            [
                facts.get("private", True),
                *(mechanism.is_private for mechanism, *_ in account.history),
            ]
        ):
            found.append(
                (
                    "NOT PRIVATE",
                    run,
                    "its noise seed is fixed, so that its noise can be computed and removed",
                )
            )
        elif facts.get("records") == HANDED_OVER:
            conditions = " ".join(f"({i}) {line}" for i, line in enumerate(CONDITIONS, 1))
            found.append(
                ("CONDITIONAL", run, f"records were {HANDED_OVER}, who answers for: {conditions}")
            )
        elif not account.sound:
            found.append(
                (
                    "NOT SOUND",
                    run,
                    "its sensitivity bound is a normal approximation (CLT), not a theorem",
                )
            )
    return sorted(found, key=lambda each: [*_CONSEQUENCES].index(each[0]))


def plan_of(facts: dict[str, Any]) -> list[ReleaseGroup]:
    """Return the plan that a header or a run states; empty if it states none."""
    return [
        (mechanism_from_dict(part["mechanism"]), facts["sample_size"], part["n_releases"])
        for part in facts.get("plan", [])
    ]


def digest(previous: str, entry: Entry) -> str:
    """Return the hash of an entry and of all entries before it, which ``previous`` is the hash of."""
    return hashlib.sha256((previous + json.dumps(entry, sort_keys=True)).encode()).hexdigest()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"Expected a ledger at {path}, got: {error.strerror}; check the run directory."
        ) from None


def _check_unused(path: Path, content: bytes) -> None:
    """Raise unless a file is empty, holds an incomplete first line, or a run's ledger without any release."""
    existing = Ledger(path)
    with contextlib.suppress(DpswdError):
        existing._replay(content)
        if not (existing.n_releases or existing.shared) and (
            existing.heads or content[:2] in (b"", b'{"')
        ):
            return
    raise InputError(
        f"Expected no ledger at {path}, got an existing file; resume that run (resume, ckpt_path), or choose another "
        "file or directory (run_dir, --out)."
    )


def _counted(groups: list[ReleaseGroup]) -> Counter[tuple[Mechanism, int]]:
    """Return the number of releases of every mechanism and sample size."""
    counts: Counter[tuple[Mechanism, int]] = Counter()
    for mechanism, size, count in groups:
        counts[mechanism, size] += count
    return counts


def _is_incomplete_line(rest: bytes) -> bool:
    """Whether a crash may have left this: the start of a line, with zeros after it on some file systems.

    A complete object whose line break was overwritten is not incomplete; it would hide a release.
    """
    left = rest.rstrip(b"\0")
    if left[:2] not in (b"", b"{", b'{"') or not left.isascii() or not left.decode().isprintable():
        return False
    try:
        return not isinstance(json.loads(left if len(left) < len(rest) else left[:-1]), dict)
    except (ValueError, RecursionError):
        return True
