"""Statement of a run: the content of ``privacy.json``."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dpswd._public_facts import ONE_RECORD
from dpswd.accounting.guarantee import SCOPE, Guarantee
from dpswd.accounting.shared_ledger import LedgerStatement
from dpswd.budget.plan import Target
from dpswd.mechanism import Mechanism

__all__ = ["FORMAT", "NOT_COVERED", "RunStatement", "not_covered"]

# Version of the format of privacy.json. Version 0.3 wrote none.
FORMAT = 1

OTHER_RUNS = (
    "Other runs: further runs on the same records, copies of this one included; their guarantees "
    "compose."
)
# In place of the line above, for a run with a shared ledger.
OUTSIDE_LEDGER = (
    "Runs outside the shared ledger: further runs on the same records; their guarantees compose "
    "with that of the runs in the ledger."
)
SEVERAL_RECORDS = "Several records of one person: the unit of protection is one record."
NOT_COVERED = (
    "Choices: architecture, hyperparameters, number of steps or selection of a run after looking "
    "at private records.",
    "Evaluation: an accuracy measured on private records is a release without noise.",
    OTHER_RUNS,
    SEVERAL_RECORDS,
    "Floating-point arithmetic: the noise is a 53-bit approximation of the Gaussian of the proofs.",
    "Side channels: running time, memory, and error messages about private records (finite records "
    "are assumed).",
)


def not_covered(*, shared: bool, by_person: bool) -> tuple[str, ...]:
    """Return what a guarantee does not cover, one sentence each.

    Args:
        shared: Whether the ledger is shared by several runs.
        by_person: Whether the guarantee protects a person with several records.
    """
    lines = []
    for line in NOT_COVERED:
        if line == OTHER_RUNS and shared:
            lines.append(OUTSIDE_LEDGER)
        elif line != SEVERAL_RECORDS or not by_person:
            lines.append(line)
    return tuple(lines)


@dataclass(frozen=True)
class RunStatement:
    """What a run states.

    A key of ``privacy.json`` is also read as ``statement["epsilon"]``.

    Attributes:
        guarantee: Guarantee of this run alone.
        target: Budget of the run.
        version: Version of the library that started the run.
        sample_size: Number N of records; of units, where units are stated.
        planned_releases: Number of planned releases.
        releases_made: Number of releases in the ledger.
        mechanism: The mechanism of the loss, or of the last query.
        across_runs: Guarantee of all runs in the shared ledger; ``None`` without one.
        epsilon_by_accountant: Epsilon of the plan by each accountant; empty without subsampling.
    """

    guarantee: Guarantee
    target: Target
    version: str
    sample_size: int
    planned_releases: int
    releases_made: int
    mechanism: Mechanism
    across_runs: LedgerStatement | None = None
    epsilon_by_accountant: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def not_covered(self) -> tuple[str, ...]:
        """What the guarantee does not cover, one sentence each."""
        return not_covered(
            shared=self.across_runs is not None, by_person=self.guarantee.unit != ONE_RECORD
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``privacy.json``."""
        content = {
            "format": FORMAT,
            **self.guarantee.to_dict(),
            **self.target.to_dict(),
            "version": self.version,
            "sample_size": self.sample_size,
            "planned_releases": self.planned_releases,
            "releases_made": self.releases_made,
            "mechanism": self.mechanism.to_dict(),
            "not_covered": list(self.not_covered),
        }
        if self.epsilon_by_accountant:
            content["epsilon_by_accountant"] = dict(self.epsilon_by_accountant)
        if self.across_runs is not None:
            content["across_runs"] = self.across_runs.to_dict()
        return content

    def in_words(self) -> str:
        """Return the guarantee in words, and the total of a shared ledger below it."""
        words = self.guarantee_of_weights().in_words()
        if self.across_runs is None:
            return words
        total = self.across_runs.guarantee.line().removeprefix("Guarantee: ")
        return f"{words}\n  all runs in the shared ledger: {total}"

    def keys(self) -> Iterator[str]:
        """Return the keys of ``privacy.json``."""
        return iter(self.to_dict())

    def __getitem__(self, name: str) -> Any:
        return self.to_dict()[name]

    def guarantee_of_weights(self) -> Guarantee:
        """Return the guarantee of weights that depend on this run.

        It is that of all runs that the weights have seen. If the weights have seen other runs, too,
        the numbers are those of the shared ledger. Without a shared ledger, they are left out.
        """
        guarantee = self.guarantee
        if set(guarantee.weights_from_runs) - {guarantee.run}:
            together = Guarantee(private=guarantee.private)
            if self.across_runs is not None:
                together = self.across_runs.guarantee
            guarantee = dataclasses.replace(
                guarantee,
                private=together.private,
                sound=together.sound,
                epsilon=together.epsilon,
                delta=together.delta,
                mu=together.mu,
                regret=together.regret,
                assumptions=together.assumptions,
            )
        if guarantee.private:
            guarantee = dataclasses.replace(guarantee, scope=SCOPE)
        return guarantee
