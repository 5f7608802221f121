"""The ledger: what was released, written down before it happens. Standard library only.

A hash-chained file (:mod:`dpswd.accounting.chain`). A release is written and fsynced BEFORE its noise is drawn: a
crash may waste budget, it never hides a release.

===========  =====================================================================================
kind         fields
===========  =====================================================================================
header       format, and whatever the run wants to state (budget, plan, version, hash of its config)
run          run (an id), sample_size, plan, and the like; only in a ledger that several runs share
mechanism    id, sample_size, mechanism (its fields), run (in a shared ledger)
release      n (counts from 1), mechanism (an id); times, where a merged ledger has several at once
===========  =====================================================================================

What a run costs is its plan, even where it made fewer releases: the decision to stop may depend on private records.
A crash that is never resumed has spent its plan, too.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dpswd._validate import at_least, choice, positive, probability
from dpswd.accounting.chain import Chain, Entry
from dpswd.errors import BudgetExceededError, InputError
from dpswd.mechanism import GaussianMechanism, Mechanism, ProjectionMechanism, mechanism_from_dict

__all__ = ["Ledger", "ReleaseGroup", "plan_of"]

FORMAT = 1
ReleaseGroup = tuple[ProjectionMechanism | GaussianMechanism, int, int]  # (mechanism, sample_size, count)


class Ledger(Chain):
    """The releases of one run, or of several on the same records, in a file that only grows.

    Use :meth:`create` for a new file and :meth:`open_existing` for one that is there.

    Attributes:
        header: What the first line states.
        runs: What every run of a shared ledger states, by its id.
        n_releases: Releases written down so far.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.header: dict[str, Any] = {}
        self.runs: dict[str, dict[str, Any]] = {}
        self.n_releases = 0
        self._mechanisms: list[tuple[dict[str, Any], int, str | None]] = []
        self._counts: list[int] = []

    @classmethod
    def create(cls, path: str | Path, header: dict[str, Any]) -> "Ledger":
        """Starts a ledger; refuses to touch a file that exists, unless no release stands in it.

        Raises:
            InputError: If the file exists or cannot be written.
        """
        ledger = cls(Path(path))
        ledger._start({"kind": "header", "format": FORMAT, **header})
        return ledger

    @classmethod
    def check_free(cls, path: Path) -> None:
        """Raises what :meth:`create` would, without touching anything, where a ledger is there."""
        if path.is_file():
            ledger = cls(path)
            try:
                ledger._check_empty(path.read_bytes())
            except OSError as error:
                raise InputError(f"Expected to read the ledger at {path}, got: {error.strerror}.") from None

    @classmethod
    def open_existing(cls, path: str | Path) -> "Ledger":
        """Reads a ledger and verifies its chain.

        A last line without its line break is what a crash in the middle of a write leaves (``torn``). Its release was
        not made (the noise is drawn after the write returns), so it is not counted, and the next entry replaces it.

        Raises:
            InputError: If the file is missing, unreadable, or not the chain that was written.
        """
        ledger = cls(Path(path))
        ledger._read()
        if not ledger.header:
            raise InputError(f"Expected a ledger with a header at {path}, got an empty file.")
        return ledger

    @property
    def shared(self) -> bool:  # type: ignore[override]
        """Whether several runs write to it."""
        return self.header.get("scope") == "shared"

    def record(self, mechanism: Mechanism, sample_size: int, run: str | None = None) -> None:
        """Writes one release down and returns when it is on the disk.

        Args:
            mechanism: What is released.
            sample_size: Number N of records.
            run: Whose release it is, in a shared ledger.

        Raises:
            InputError: If it cannot be written; the release must not happen then.
            BudgetExceededError: If the plan of the run, in a shared ledger, does not hold it.
        """
        with self._locked() as file:
            if self.shared:
                self._check_planned(mechanism, sample_size, run)
            key, entries = (mechanism.to_dict(), sample_size, run), []
            if key not in self._mechanisms:
                entries.append(_mechanism_entry(len(self._mechanisms), *key))
            index = self._mechanisms.index(key) if not entries else len(self._mechanisms)
            entries.append({"kind": "release", "n": self.n_releases + 1, "mechanism": index})
            self._append(file, entries)

    def reserve(self, run: str, facts: dict[str, Any], check: Callable[["Ledger"], None]) -> None:
        """Adds a run, with its plan, to a shared ledger, if ``check`` of the ledger as it then stands does not raise.

        Other processes wait meanwhile, so that two runs cannot both get what is left of a budget.
        """
        with self._locked() as file:
            check(self)
            self._append(file, [{"kind": "run", "run": run, **facts}])

    def adopt(self, run: str, facts: dict[str, Any], groups: list[ReleaseGroup]) -> None:
        """Adds a run that has been made, with its releases, to a shared ledger."""
        entries: list[Entry] = [{"kind": "run", "run": run, **facts}]
        made = self.n_releases
        with self._locked() as file:
            for index, (mechanism, size, count) in enumerate(groups, start=len(self._mechanisms)):
                entries.append(_mechanism_entry(index, mechanism.to_dict(), size, run))
                entries.append({"kind": "release", "n": made + 1, "mechanism": index, "times": count})
                made += count
            self._append(file, entries)

    def count(self, mechanism: Mechanism, sample_size: int, run: str | None = None) -> int:
        """Returns how many releases of one mechanism were written down."""
        key = (mechanism.to_dict(), sample_size, run)
        return self._counts[self._mechanisms.index(key)] if key in self._mechanisms else 0

    def groups(self, run: str | None = None) -> list[ReleaseGroup]:
        """Returns (mechanism, sample size, releases made), for an accountant's ``step``, of one run or all."""
        return [
            (mechanism_from_dict(fields), size, count)
            for (fields, size, whose), count in zip(self._mechanisms, self._counts, strict=True)
            if count and run in (None, whose)
        ]

    def planned(self, run: str | None = None) -> list[ReleaseGroup]:
        """Returns what counts: the plan of one run or all, and what was made where no plan is stated or is overrun."""
        if not self.shared:
            return _at_least(plan_of(self.header), self.groups())
        runs = self.runs if run is None else [run]
        return [group for each in runs for group in _at_least(plan_of(self.runs[each]), self.groups(each))]

    def __iter__(self) -> Iterator[ReleaseGroup]:
        return iter(self.groups())

    def _may_restart(self) -> bool:
        """A run that was broken off before its first release has left nothing that must be remembered."""
        return not self.n_releases and not self.shared

    def _check_planned(self, mechanism: Mechanism, sample_size: int, run: str | None) -> None:
        if run not in self.runs:
            raise InputError(f"Expected a run that is planned in {self.path}, got another one; no release was made.")
        allowed = sum(c for other, size, c in plan_of(self.runs[run]) if (other, size) == (mechanism, sample_size))
        if self.count(mechanism, sample_size, run) >= allowed:
            raise BudgetExceededError(
                f"Expected at most {allowed} such releases by this run, as planned in {self.path}, got one more; "
                "the budget is used up."
            )

    def _take(self, entry: Entry) -> None:
        kind, number = entry["kind"], self._lines + 1
        if (kind == "header") != (number == 1):
            raise InputError(f"Expected the header on line 1 of {self.path} only, got {kind!r} on line {number}.")
        try:
            _check(entry)
        except InputError as error:
            raise InputError(f"Expected line {number} of {self.path} to make sense, got: {error}") from None
        if kind == "header":
            if entry.get("format") != FORMAT:
                raise InputError(f"Expected ledger format {FORMAT} in {self.path}, got {entry.get('format')!r}.")
            self.header = _without(entry, "kind")
        elif kind == "run" and self.shared and isinstance(entry.get("run"), str) and entry["run"] not in self.runs:
            self.runs[entry["run"]] = _without(entry, "kind", "run")
        elif kind == "mechanism":
            run = entry.get("run") if self.shared else None
            self._mechanisms.append((entry.get("mechanism", {}), entry.get("sample_size", 0), run))
            self._counts.append(0)
        elif kind == "release" and _is_count(entry.get("mechanism"), 0, len(self._counts) - 1):
            if not _is_count(times := entry.get("times", 1), 1) or entry.get("n") != self.n_releases + 1:
                raise InputError(
                    f"Expected release {self.n_releases + 1} on line {number} of {self.path}, got another number."
                )
            self._counts[entry["mechanism"]] += times
            self.n_releases += times
        else:
            raise InputError(f"Expected a release on line {number} of {self.path}, got {kind!r}: unknown entry.")


def plan_of(facts: dict[str, Any]) -> list[ReleaseGroup]:
    """Returns the plan that a header or a run states; empty where it states none."""
    try:
        parts = [(part["mechanism"], facts["sample_size"], part["n_releases"]) for part in facts.get("plan", [])]
        for _, size, count in parts:
            at_least(1, sample_size=size, n_releases=count)
        return [(mechanism_from_dict(fields), size, count) for fields, size, count in parts]
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"Expected a plan of mechanisms and numbers in the ledger, got another: {error}.") from None


def _check(entry: Entry) -> None:
    """Refuses what no run has written: numbers, mechanisms and plans that are none."""
    stated = {name: value for name, value in entry.items() if value is not None}
    if entry["kind"] == "mechanism":
        mechanism_from_dict(entry.get("mechanism", {}))
        at_least(1, sample_size=entry.get("sample_size"))
    if entry["kind"] not in ("header", "run"):
        return
    if "target_epsilon" in stated:
        positive(target_epsilon=stated["target_epsilon"])
    if "target_delta" in stated:
        probability(target_delta=stated["target_delta"])
    if "sample_size" in stated:
        at_least(1, sample_size=stated["sample_size"])
    if "accountant" in stated:
        choice(("pld", "rdp"), accountant=stated["accountant"])
    if not all(isinstance(stated.get(name, ""), str) for name in ("run", "version", "config_sha256")):
        raise InputError("Expected run, version and config_sha256 to be strings, got others.")
    plan_of(entry)


def _at_least(plan: list[ReleaseGroup], made: list[ReleaseGroup]) -> list[ReleaseGroup]:
    """Joins a plan with what was made beyond it."""
    allowed: dict[tuple[Any, int], int] = {}
    for mechanism, size, count in plan:
        allowed[mechanism, size] = allowed.get((mechanism, size), 0) + count
    for mechanism, size, count in made:
        allowed[mechanism, size] = max(allowed.get((mechanism, size), 0), count)
    return [(mechanism, size, count) for (mechanism, size), count in allowed.items()]


def _mechanism_entry(index: int, fields: dict[str, Any], sample_size: int, run: str | None) -> Entry:
    entry = {"kind": "mechanism", "id": index, "sample_size": sample_size, "mechanism": fields}
    return entry if run is None else {**entry, "run": run}


def _is_count(value: Any, least: int, most: float = float("inf")) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _without(entry: Entry, *names: str) -> Entry:
    return {name: value for name, value in entry.items() if name not in names}
