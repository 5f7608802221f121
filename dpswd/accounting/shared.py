"""Adapter of :class:`SharedLedger` for dpswd.training.budget; removed when the budget uses that class."""

from pathlib import Path
from typing import Any

from dpswd.accounting.ledger import ReleaseGroup, SharedLedger
from dpswd.mechanism import Mechanism


class SharedBudget:
    """A shared ledger together with the identifier of a run."""

    def __init__(self, path: str | Path, target_epsilon: float | None, target_delta: float, accountant: str) -> None:
        if target_epsilon is not None and not (Path(path).is_file() and Path(path).stat().st_size):
            SharedLedger.create(path, target_epsilon=target_epsilon, target_delta=target_delta, accountant=accountant)
        self.ledger = SharedLedger.open_existing(path)
        self.target_epsilon, self.run = self.ledger.target_epsilon, ""

    def check(self, plan: list[ReleaseGroup]) -> None:
        """See SharedLedger.check."""
        self.ledger.check(plan)

    def reserve(self, run: str, facts: dict[str, Any], plan: list[ReleaseGroup]) -> None:
        """See SharedLedger.reserve."""
        self.run = run
        self.ledger.reserve(run, facts)

    def resume(self, run: str, releases: int, head: str) -> None:
        """See SharedLedger.resume."""
        self.run = run
        self.ledger.resume(run, releases, head)

    def record(self, mechanism: Mechanism, sample_size: int) -> None:
        """See Ledger.record."""
        self.ledger.record(mechanism, sample_size, self.run)

    @property
    def head(self) -> str:
        """See Ledger.head."""
        return self.ledger.head

    def facts(self) -> dict[str, Any]:
        """See SharedLedger.statement."""
        return self.ledger.statement()
