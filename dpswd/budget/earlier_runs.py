"""Search for earlier runs with the same public facts.

The budgets of runs on the same records add up. Only public facts are compared: the number of
records, their shape and their classes. Nothing of a record is stored.
"""

import contextlib
import itertools
import json
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from dpswd._public_facts import ONE_RECORD
from dpswd.errors import PrivacyWarning
from dpswd.records import PrivateRecords

_MOST_BYTES = 2**20  # of the first line of a ledger that is read
_MOST_NAMES = 3  # of directories in the warning


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
        """Return whether two runs with these facts may have read the same records.

        The number of records of a data set says nothing of the number of persons.
        """
        if (self.shape, self.classes) != (other.shape, other.classes):
            return False
        if self.is_by_person != other.is_by_person:
            return True
        return self.n_records == other.n_records

    @property
    def is_by_person(self) -> bool:
        """Whether persons are protected, and counted, in place of records."""
        return self.unit != ONE_RECORD

    def to_dict(self) -> dict[str, Any]:
        """Return what the header of a ledger states, besides ``sample_size``."""
        return {"shape": list(self.shape), "classes": list(self.classes)}

    def __str__(self) -> str:
        classes = f" in {len(self.classes)} classes" if self.classes else ""
        records = f"records of shape {self.shape}{classes}"
        if self.is_by_person:  # the other runs may count records
            return records
        return f"{self.n_records:,} {records}"


# Directories of the runs of this process that made a release, by their identifiers.
_runs_of_process: dict[PublicFacts, dict[str, Path]] = {}


def remember_run(facts: PublicFacts, run_id: str, run_dir: Path) -> None:
    """Remember a run of this process that makes a release.

    It is remembered even if its directory is removed.
    """
    _runs_of_process.setdefault(facts, {})[run_id] = run_dir


def find_earlier_runs(
    facts: PublicFacts, run_dir: Path, accounted: Collection[str]
) -> dict[str, Path]:
    """Return the directories of earlier runs with the same public facts.

    The keys are the identifiers of the runs. Earlier runs are those beside ``run_dir`` and those of
    this process.

    Args:
        facts: Public facts of the records of the new run.
        run_dir: Its directory; the directories beside it are searched.
        accounted: Identifiers of runs whose budget is that of the new run, in a shared ledger.
    """
    directories_by_id = _runs_beside(run_dir, facts)
    for earlier, directories_of_process in _runs_of_process.items():
        if earlier.may_be_of(facts):
            directories_by_id |= directories_of_process
    for run_id in accounted:
        directories_by_id.pop(run_id, None)
    return directories_by_id


def warn_of_earlier_runs(facts: PublicFacts, directories: Collection[Path]) -> None:
    """Warn that earlier runs had the same public facts, if there are any."""
    names = [str(path) for path in sorted(set(directories))]
    if not names:
        return
    noun = "An earlier run"
    if len(names) > 1:
        noun = f"{len(names)} earlier runs"
    if len(names) > _MOST_NAMES:
        names = [*names[:_MOST_NAMES], "..."]
    warnings.warn(
        f"{noun} ({', '.join(names)}) had the same public facts: {facts}. If the records were the "
        "same, the budgets add up; to keep one budget for all runs, make a file by dpswd ledger "
        "create, and pass shared_ledger (--shared-ledger).",
        PrivacyWarning,
        stacklevel=2,
    )


def _runs_beside(run_dir: Path, facts: PublicFacts) -> dict[str, Path]:
    """Return the directories beside ``run_dir`` of runs on such records.

    The keys are the identifiers of the runs. Each of them has made a release. Beside a published
    copy of a run, its own directory is returned.
    """
    directories_by_id: dict[str, Path] = {}
    for path in sorted(run_dir.parent.glob("*/ledger.jsonl"), key=_is_copy):
        header = _header_of_releases(path)
        with contextlib.suppress(KeyError, TypeError):
            if PublicFacts.from_header(header).may_be_of(facts):
                directories_by_id.setdefault(header["run"], path.parent)
    return directories_by_id


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
