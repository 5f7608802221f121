"""Search for earlier runs that may have read the same records.

The budgets of runs on the same records add up. Only public facts are compared. Runs that read as
many records may have read the same ones: the shape, the columns and the names of the classes differ
where one run resized images or left columns out. The number of records of a data set says nothing
of the number of its persons, so that between a run that counts persons and one that counts records,
shape and classes are compared. Nothing of a record is stored.
"""

import contextlib
import itertools
import json
import math
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from dpswd._public_facts import ONE_RECORD
from dpswd.accounting.calibrate import epsilon_of_mu
from dpswd.errors import PrivacyWarning
from dpswd.records import PrivateRecords

_MOST_BYTES = 2**20  # of the first line of a ledger that is read
_MOST_NAMES = 3  # of runs in the warning
# Where the commands write their runs by default.
_RUNS = Path("runs")


@dataclass(frozen=True)
class PublicFacts:
    """What may be known of records.

    Attributes:
        n_records: Number N of records; of persons, where units are stated.
        shape: Shape of one record.
        classes: Names of the classes; empty without classes.
        unit: What neighbours differ in: one record, or one person.
    """

    n_records: int
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    unit: str = ONE_RECORD

    @classmethod
    def of(cls, records: PrivateRecords) -> Self:
        """Return the public facts of records."""
        classes = tuple(str(name) for name in records.classes or ())
        return cls(len(records), tuple(records.shape), classes, records.protects)

    @classmethod
    def from_header(cls, header: dict[str, Any]) -> Self:
        """Read the facts that the header of a ledger states."""
        unit = header.get("unit", ONE_RECORD)
        return cls(header["sample_size"], tuple(header["shape"]), tuple(header["classes"]), unit)

    def may_be_of(self, other: "PublicFacts") -> bool:
        """Return whether two runs with these facts may have read the same records."""
        if self.is_by_person != other.is_by_person:
            return (self.shape, self.classes) == (other.shape, other.classes)
        return self.n_records == other.n_records

    @property
    def is_by_person(self) -> bool:
        """Whether persons are protected, and counted, in place of records."""
        return self.unit != ONE_RECORD

    def to_dict(self) -> dict[str, Any]:
        """Return what the header of a ledger states, besides ``sample_size``."""
        return {"shape": list(self.shape), "classes": list(self.classes)}

    @property
    def number(self) -> str:
        """The number of records, or of persons, in words."""
        if self.is_by_person:
            return f"as many persons: {self.n_records:,}"
        return f"as many records: {self.n_records:,}"

    @property
    def form(self) -> str:
        """Shape and classes in words."""
        classes = f" in {len(self.classes)} classes" if self.classes else ""
        return f"the same public facts: records of shape {self.shape}{classes}"


@dataclass(frozen=True)
class EarlierRun:
    """A run that has made a release.

    Attributes:
        path: Its directory.
        public_facts: Those of its records.
        mu: That of its guarantee; infinite without one.
    """

    path: Path
    public_facts: PublicFacts
    mu: float


# Runs of this process that made a release, by their identifiers.
_runs_of_process: dict[str, EarlierRun] = {}


def remember_run(facts: PublicFacts, run_id: str, run_dir: Path, mu: float | None) -> None:
    """Remember a run of this process that makes a release.

    It is remembered even if its directory is removed.

    Args:
        facts: Public facts of its records.
        run_id: Its identifier.
        run_dir: Its directory.
        mu: That of its guarantee; ``None`` without one.
    """
    _runs_of_process[run_id] = EarlierRun(run_dir, facts, _or_infinity(mu))


def find_earlier_runs(
    facts: PublicFacts, run_dir: Path, accounted: Collection[str]
) -> dict[str, EarlierRun]:
    """Return the earlier runs that may have read the same records.

    The keys are the identifiers of the runs. Earlier runs are those beside ``run_dir``, those in
    ``runs`` of the working folder, and those of this process.

    Args:
        facts: Public facts of the records of the new run.
        run_dir: Its directory; the directories beside it are searched.
        accounted: Identifiers of runs whose budget is that of the new run, in a shared ledger.
    """
    runs_by_id = _runs_in([run_dir.parent, _RUNS]) | _runs_of_process
    return {
        run_id: run
        for run_id, run in runs_by_id.items()
        if run_id not in accounted and run.public_facts.may_be_of(facts)
    }


def warn_of_earlier_runs(
    facts: PublicFacts, runs: Mapping[str, EarlierRun], mu: float | None, delta: float
) -> None:
    """Warn of earlier runs that may have read the same records, if there are any.

    A run is named by its directory and by its identifier, which ledger and report have.

    Args:
        facts: Public facts of the records of the new run.
        runs: The runs of :func:`find_earlier_runs`.
        mu: That of the guarantee of the new run; ``None`` without one.
        delta: Where epsilon of all runs together is stated.
    """
    if not runs:
        return
    alike = []
    others = []
    for run_id, run in runs.items():
        name = f"{run.path}, run {run_id}"
        if run.public_facts.is_by_person == facts.is_by_person:
            alike.append(name)
        else:
            others.append(name)
    sentences = []
    if alike:
        sentences.append(f"{_subject(alike)} had {facts.number}.")
    if others:
        sentences.append(f"{_subject(others)} had {facts.form}.")
    total = _in_total([run.mu for run in runs.values()], _or_infinity(mu), delta)
    warnings.warn(
        f"{' '.join(sentences)} If the records were the same, the budgets add up: {total}. To keep "
        "one budget for all runs, make a file by dpswd ledger create, and pass shared_ledger "
        "(--shared-ledger).",
        PrivacyWarning,
        stacklevel=2,
    )


def _or_infinity(mu: Any) -> float:
    """Return the mu of a run, infinity for a run without a guarantee."""
    if isinstance(mu, float | int):
        return float(mu)
    return math.inf


def _in_total(earlier: Collection[float], new: float, delta: float) -> str:
    """Return what all runs together protect, by their mu; the squares add up."""
    total = math.hypot(new, *earlier)
    if math.isinf(total):
        return "a run without a guarantee leaves none to all of them together"
    epsilon = epsilon_of_mu(total, delta)
    return (
        f"together with this run, they protect the records as one run of epsilon {epsilon:.3g} at "
        f"delta {delta:g} does"
    )


def _subject(names: Sequence[str]) -> str:
    """Return the subject of a sentence on earlier runs, with the first of their names."""
    noun = "An earlier run"
    if len(names) > 1:
        noun = f"{len(names)} earlier runs"
    first_names = sorted(names)[:_MOST_NAMES]
    if len(names) > _MOST_NAMES:
        first_names.append("...")
    return f"{noun} ({'; '.join(first_names)})"


def _runs_in(folders: Iterable[Path]) -> dict[str, EarlierRun]:
    """Return the runs in folders that have made a release.

    The keys are their identifiers. Of a run and its published copy, the directory of the run is
    returned.
    """
    ledgers = [path for folder in folders for path in folder.glob("*/ledger.jsonl")]
    runs_by_id: dict[str, EarlierRun] = {}
    for path in sorted(ledgers, key=_is_copy):
        header = _header_of_releases(path)
        with contextlib.suppress(KeyError, TypeError):
            mu = header["guarantee"].get("mu")
            if not header.get("private", True):
                mu = None
            run = EarlierRun(path.parent, PublicFacts.from_header(header), _or_infinity(mu))
            runs_by_id.setdefault(header["run"], run)
    return runs_by_id


def _is_copy(ledger: Path) -> bool:
    """Return whether a ledger is in a published copy, which has no stored releases."""
    return not (ledger.parent / "releases").is_dir()


def _header_of_releases(path: Path) -> dict[str, Any]:
    """Return the header of a ledger with a release; empty for any other file."""
    with contextlib.suppress(OSError, ValueError, RecursionError), path.open("rb") as file:
        header = json.loads(file.readline(_MOST_BYTES))
        # A line of the mechanism and one of its release follow.
        following = itertools.islice(file, 2)
        if isinstance(header, dict) and any(b'"kind": "release"' in line for line in following):
            return header
    return {}
