"""What a report states, as frozen dataclasses: the content of report.json.

Names and order of the fields are those of schema.json, in this directory, which describes them;
only ``n_releases`` and ``n_planned`` have shorter names there.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from dpswd._json import plain_values
from dpswd._public_facts import ONE_RECORD

SCHEMA_VERSION = 7


@dataclass(frozen=True)
class ErrorRates:
    """One point of a trade-off curve; all rates are probabilities."""

    fpr: float
    fnr: float  # of any attack, at least
    tpr: float  # of any attack, at most: 1 - fnr
    tpr_gaussian: float  # the same of mu-GDP


@dataclass(frozen=True)
class Epsilons:
    """Epsilon of both accountants at one delta.

    It is ``None`` where the tails of a bound use up delta.
    """

    delta: float
    epsilon_pld: float | None
    epsilon_rdp: float | None


@dataclass(frozen=True)
class ProfilePoint:
    """One point of the privacy profile."""

    epsilon: float
    delta: float


@dataclass(frozen=True)
class GuaranteeNumbers:
    """The numbers of the guarantee: upper bounds for all planned releases together."""

    tier: int  # of Gomez2025: 1 or 2
    mu: float
    regret: float
    advantage: float
    advantage_rates: ErrorRates  # where the advantage is attained: alpha* of Gomez2025
    exactly_gaussian: bool
    epsilon: float | None  # at delta, by the accountant of the budget
    delta: float
    attack: ErrorRates  # at one small false-positive rate, for the first sentence of the report
    trade_off: tuple[ErrorRates, ...]
    epsilon_delta: tuple[Epsilons, ...]
    profile: tuple[ProfilePoint, ...]


@dataclass(frozen=True)
class RecordFacts:
    """Public facts of the private records."""

    size: int  # number of records, or of persons where the unit is a person
    opened: str | None  # "behind a handle" or "handed over by the caller"
    classes: tuple[str, ...]  # empty where the run does not state them
    unit: str  # what neighbours differ in: "one record", or "one person, at most 3 records"
    columns: tuple[str, ...] = ()  # name and values of each column; empty without columns

    @property
    def is_by_person(self) -> bool:
        """Whether the guarantee protects a person with several records."""
        return self.unit != ONE_RECORD


@dataclass(frozen=True)
class EqualReleases:
    """Releases by one mechanism."""

    count: int
    description: str
    sample_size: int
    batch_size: int
    sampling_rate: float
    sigma: float
    sensitivity: float  # in the L2 norm; root mean square where it is random
    sensitivity_is_random: bool
    mechanism: dict[str, Any]  # all fields, as in the ledger


@dataclass(frozen=True)
class Releases:
    """What left the private side."""

    n_releases: int
    n_planned: int  # what is accounted for; at least n_releases
    sample_size: int
    neighboring_relation: str
    groups: tuple[EqualReleases, ...]


@dataclass(frozen=True)
class Runs:
    """Identifiers of runs, as in the headers of ledgers."""

    this: str | None
    weights_from: tuple[str, ...]


@dataclass(frozen=True)
class Together:
    """Cost of all runs of a shared ledger when this run ended, as the run states it."""

    mu: float | None
    epsilon: float
    delta: float


@dataclass(frozen=True)
class LedgerFacts:
    """Identity of the ledger."""

    config_sha256: str | None
    version: str | None
    head: str  # hash of the last entry, which depends on all entries before it


@dataclass(frozen=True)
class ConfigFile:
    """config.yaml of the run directory; both are ``None`` without such a file."""

    sha256: str | None
    text: str | None  # with the last parts of absolute paths


@dataclass(frozen=True)
class Accuracy:
    """A row of evaluation.json: accuracy on a public benchmark, in percent."""

    dataset: Any
    classifier: Any
    train: Any  # "synthetic" or "real"
    accuracy: Any
    n_train: Any
    n_test: Any


@dataclass(frozen=True)
class Report:
    """Everything that a report states."""

    schema_version: int
    title: str
    private: bool
    conditions: tuple[str, ...]
    sound: bool
    reasons: tuple[str, ...]
    records: RecordFacts
    public: tuple[str, ...]
    protected: tuple[str, ...]
    not_covered: tuple[str, ...]
    guarantee: GuaranteeNumbers
    releases: Releases
    runs: Runs
    accountant: str
    assumptions: tuple[str, ...]
    ledger: LedgerFacts
    config: ConfigFile
    versions: dict[str, str | None]
    pictures: dict[str, str]  # base64 of PNG files by their names
    evaluation: tuple[Accuracy, ...]
    caveats: tuple[str, ...]
    together: Together | None = None  # with other runs of a shared ledger
    publishing: str = ""  # what may be published, and what not
    # Names of pictures that this library is not known to have drawn: they may show records.
    unchecked_pictures: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the content of report.json."""
        content = dataclasses.asdict(self)
        if self.together is None:
            del content["together"]
        if not self.publishing:
            del content["publishing"]
        releases = content["releases"]
        numbers = {"made": releases.pop("n_releases"), "planned": releases.pop("n_planned")}
        content["releases"] = numbers | releases
        return {name: plain_values(value) for name, value in content.items()}
