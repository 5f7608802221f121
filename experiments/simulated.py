"""Budgets without a ledger that stand in for a :class:`dpswd.Budget`."""

from dataclasses import dataclass, field

from dpswd.accounting.guarantee import Guarantee
from dpswd.audit.game import Unrecorded


@dataclass(frozen=True)
class SimulatedStatement:
    """Statement of simulated releases, which guarantees nothing."""

    guarantee: Guarantee = field(default_factory=Guarantee)


class SimulatedBudget(Unrecorded):
    """Budget without a ledger.

    A subclass sets the noise of its queries in ``__enter__``.
    """

    def statement(self) -> SimulatedStatement:
        """Return that nothing is guaranteed."""
        return SimulatedStatement()

    def __exit__(self, *error: object) -> None:
        """Do nothing."""
