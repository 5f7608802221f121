"""Ledger of several runs on the same records, and the total budget of these runs."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from dpswd._public_facts import ONE_RECORD
from dpswd._validate import choice, positive, probability
from dpswd.accounting.accountant import ACCOUNTANTS, PrivacyAccountant, ReleaseGroup
from dpswd.accounting.guarantee import Guarantee
from dpswd.accounting.ledger import CONDITIONS, HANDED_OVER, Draw, Entry, Ledger, plan_of
from dpswd.accounting.rounding import round_up
from dpswd.errors import BudgetExceededError, InputError, LedgerError
from dpswd.mechanism import Mechanism

__all__ = ["LedgerStatement", "RunLedger", "SharedLedger", "Standing", "statement"]

_CONSEQUENCES = {  # of a run for the numbers of all runs together; the gravest first
    "NOT PRIVATE": "do not hold",
    "NOT SOUND": "are not proven upper bounds",
    "CONDITIONAL": "hold on these conditions",
}
_DIGITS = 4  # significant digits of costs
_NOT_ADAPTIVE = (
    "Assumed: plans of later runs, and whether there are any, are not chosen after looking at "
    "earlier releases."
)


class SharedLedger(Ledger):
    """The releases of several runs on the same records, and their total budget.

    A run reserves its whole plan, under the file's lock, before it draws any noise, and can release
    nothing else.
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
        choice(ACCOUNTANTS, accountant=accountant)
        header = {
            "scope": "shared",
            "target_epsilon": float(target_epsilon),  # numbers of NumPy are not JSON
            "target_delta": float(target_delta),
            "accountant": accountant,
        }
        return super().create(path, header)

    @classmethod
    def open_existing(cls, path: str | Path) -> Self:
        """Read a shared ledger."""
        remedy = "make one with dpswd ledger create"
        if not Path(path).exists():
            raise InputError(f"Expected a shared ledger at {path}, got no file; {remedy}.")
        ledger = super().open_existing(path)
        if not ledger.shared:
            actual = "the ledger of one run"
            raise InputError(f"Expected a shared ledger at {path}, got {actual}; {remedy}.")
        return ledger

    def check(self, groups: Sequence[ReleaseGroup]) -> None:
        """Raise unless the budget covers the plan ``groups`` besides those in the ledger.

        Nothing is written.
        """
        reserved = self.planned()
        sizes = sorted({sample_size for _, sample_size, _ in [*reserved, *groups]})
        if len(sizes) > 1:
            raise InputError(
                f"Expected the same sample_size in all runs of {self.path}, got "
                f"{' and '.join(map(str, sizes))}; a shared ledger is for runs on the same records."
            )
        limit = self.header["target_epsilon"]
        delta = self.delta
        if sizes and delta * sizes[0] >= 1:
            raise InputError(
                f"Expected target_delta of {self.path} below 1 / N = {1 / sizes[0]:.2g}, got "
                f"{delta:g}; make a shared ledger with a smaller one."
            )
        total = self._epsilon([*reserved, *groups])
        if total > limit:
            total = round_up(total, _DIGITS)
            before = round_up(self._epsilon(reserved), _DIGITS)
            raise BudgetExceededError(
                f"Expected all runs in {self.path} to cost at most epsilon={limit:g} at "
                f"delta={delta:g}, got {total:g} with this run ({before:g} without it); use a "
                "smaller target_epsilon for this run."
            )

    def check_unit(self, unit: str) -> None:
        """Raise unless all runs in the ledger protect what the new run protects."""
        for header in self.runs.values():
            other = header.get("unit", ONE_RECORD)
            if other != unit:
                raise InputError(
                    f"Expected runs in {self.path} that all protect the same, got {other} and "
                    f"{unit}; use the same unit and per_unit in all runs, or another shared ledger."
                )

    def reserve(self, run: str, statement_of_run: Entry) -> None:
        """Add a run, if the budget covers its plan.

        The run states ``sample_size``, ``plan`` and further values.
        """
        with self.locked():
            self.check(plan_of(statement_of_run))
            self.check_unit(statement_of_run.get("unit", ONE_RECORD))
            self._append([{"kind": "run", "run": run, **statement_of_run}])

    def check_permitted(self, draw: Draw, run: str | None) -> None:
        """Raise unless the plan of a run has a further release of the mechanism."""
        if run not in self.runs:
            raise LedgerError(
                f"Expected a run that {self.path} holds a plan of, got {run!r}; no release was "
                "made."
            )
        if draw.is_redraw:
            return
        n_planned = 0
        for mechanism, sample_size, count in plan_of(self.runs[run]):
            if (mechanism, sample_size) == (draw.mechanism, draw.sample_size):
                n_planned += count
        if self.count(draw.mechanism, draw.sample_size, run) >= n_planned:
            raise BudgetExceededError(
                f"Expected at most {n_planned} releases of this mechanism, as run {run} planned in "
                f"{self.path}, got a further one; plan it in a new run."
            )

    def mark_stored(self, number: int, run: str) -> None:
        """Write that the value of a release of a run is in its run directory."""
        with self.locked():
            self._append([{"kind": "stored", "n": self._numbers[run][number - 1]}])

    def _epsilon(self, groups: list[ReleaseGroup]) -> float:
        """Return the epsilon of releases at the delta of this ledger."""
        if not groups:
            return 0.0
        return PrivacyAccountant.from_groups(groups, self.accountant).get_epsilon(self.delta)


class RunLedger:
    """The ledger of one run, together with its lines in a shared ledger.

    A run may have no shared ledger. A line is written to the ledger of the run first and to the
    shared ledger afterwards, both under the lock of the shared one. Before that, both must hold the
    same draws of the run. A copy of a run directory is refused for this reason when another copy
    has gone on. A process that is killed between both lines leaves the last one out of the shared
    ledger; the next process adds it (docs/theory/private-side.md, Proposition 28).

    Attributes:
        own: The ledger in the run directory.
        shared: The shared ledger, or ``None``.
        run: Identifier of the run.
        sample_size: Number N of records; of units, where units are stated.
    """

    def __init__(self, own: Ledger, shared: SharedLedger | None) -> None:
        self.own = own
        self.shared = shared
        self.run = str(own.header["run"])
        self.sample_size = int(own.header["sample_size"])
        self._n_compared = 0  # draws that were found in both ledgers

    @property
    def n_releases(self) -> int:
        """The number of releases of the run."""
        return self.own.n_releases

    def record(self, mechanism: Mechanism) -> int:
        """Write a release to the disk and return its number.

        If it raises, the release must not be made.
        """
        return self._write(Draw(mechanism, self.sample_size, self.own.session))

    def record_redraw(self) -> int:
        """Write that the noise of the last release is drawn again.

        Return the number of the release.
        """
        last = self.own.draws()[-1]
        return self._write(dataclasses.replace(last, session=self.own.session, is_redraw=True))

    def reconcile(self) -> None:
        """Check that both ledgers hold the same draws of the run.

        The last draw is added to the shared ledger if a crash left it out there.

        Raises:
            LedgerError: If another process has gone on with the run.
        """
        if self.shared is None:
            self.own.check_unchanged()
            return
        with self.shared.locked(), self.own.locked():
            self._compare(self.shared)

    def confirm(self, number: int) -> None:
        """Mark a release as stored.

        Call it after the value is stored and before the value is returned.

        Raises:
            LedgerError: If another process has gone on with the run.
        """
        with self._locked():
            if self.shared is None or self.shared.is_stored(number, self.run):
                return
            self.shared.mark_stored(number, self.run)

    def is_stored_elsewhere(self, number: int) -> bool:
        """Return whether the shared ledger marks a release as stored.

        Its value may be in a copy of the run directory.
        """
        return self.shared is not None and self.shared.is_stored(number, self.run)

    def _write(self, draw: Draw) -> int:
        """Write a draw to both ledgers and return the number of its release."""
        with self._locked():
            if self.shared is not None:
                self.shared.check_permitted(draw, self.run)
            self.own.write_draw(draw)
            if self.shared is not None:
                self.shared.write_draw(draw, self.run)
        return self.own.n_releases

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock both ledgers and check that they hold the same draws of the run."""
        if self.shared is None:
            with self.own.locked():
                yield
            return
        with self.shared.locked(), self.own.locked():
            self._compare(self.shared)
            yield

    def _compare(self, shared: SharedLedger) -> None:
        """Raise unless the shared ledger holds the draws of this run.

        The last draw is added if a crash left it out.
        """
        n_own = len(self.own.draws())
        n_shared = len(shared.draws(self.run))
        new_own = self.own.draws()[self._n_compared :]
        new_shared = shared.draws(self.run)[self._n_compared :]
        if new_own[: len(new_shared)] != new_shared:
            numbers = "different ones"
            if n_own != n_shared:
                numbers = f"{n_own} and {n_shared}"
            raise LedgerError(
                f"Expected the same releases of run {self.run} in {self.own.path} and in "
                f"{shared.path}, got {numbers}: a copy of this run directory has gone on, or an "
                "older state of it was restored; resume in the directory that has gone on, or "
                "start a new run in a new directory; no release was made."
            )
        missing = new_own[len(new_shared) :]
        if len(missing) > 1:
            raise LedgerError(
                f"Expected the {n_own} releases of {self.own.path} also in {shared.path}, got "
                f"{n_shared}: the ledger was cut, or an older state of it was restored; put its "
                "last state back; no release was made."
            )
        for draw in missing:
            shared.write_draw(draw, self.run)
        self._n_compared = n_own


@dataclass(frozen=True)
class Standing:
    """Whether the numbers of all runs in a ledger hold; no number is computed for it.

    Attributes:
        private: Whether every run is private.
        sound: Whether the numbers are proven and depend on no condition.
        sentences: Which runs void or condition them, and how; empty if all are sound.
    """

    private: bool
    sound: bool
    sentences: tuple[str, ...]

    @classmethod
    def of(cls, ledger: Ledger) -> Self:
        """Return the standing of the runs in a ledger."""
        shortcomings = _shortcomings(ledger)
        sentences = [
            f"{shortcoming.kind}: run {shortcoming.run}: {shortcoming.reason}."
            for shortcoming in shortcomings
        ]
        if shortcomings:
            gravest = _CONSEQUENCES[shortcomings[0].kind]
            sentences.append(f"The numbers for all runs together {gravest}.")
        private = all(shortcoming.kind != "NOT PRIVATE" for shortcoming in shortcomings)
        return cls(private, not shortcomings, tuple(sentences))


@dataclass(frozen=True)
class LedgerStatement:
    """Cost of all plans in a ledger.

    Attributes:
        guarantee: Guarantee of all runs together, every plan counted in full.
        sentence: Which runs void the guarantee, and what all runs share; empty for one sound run.
    """

    guarantee: Guarantee
    sentence: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**self.guarantee.to_dict(), "sentence": self.sentence}


def statement(ledger: Ledger) -> LedgerStatement:
    """Return the cost of all plans in a ledger, and which runs void it or share it.

    Where the plan of a later run is chosen after looking at earlier releases, only the total budget
    is proven to hold, if it was fixed before all runs and every release is exactly Gaussian (a
    privacy filter, SmithThakurta2022).
    """
    account = PrivacyAccountant.from_groups(ledger.planned(), ledger.accountant)
    guarantee = account.guarantee(ledger.delta)
    standing = Standing.of(ledger)
    sentences = list(standing.sentences)
    assumptions = guarantee.assumptions
    if ledger.shared:
        adaptivity = _adaptivity(ledger, account)
        assumptions = (*assumptions, adaptivity)
        sentences += [_cost(ledger, guarantee), adaptivity]
    guarantee = dataclasses.replace(
        guarantee,
        private=standing.private,
        sound=guarantee.sound and standing.sound,
        assumptions=assumptions,
    )
    return LedgerStatement(guarantee, " ".join(sentences))


def _cost(ledger: Ledger, guarantee: Guarantee) -> str:
    """Return what the runs in a shared ledger cost together, rounded up, in words."""
    epsilon = round_up(guarantee["epsilon"], _DIGITS)
    mu = round_up(guarantee["mu"], _DIGITS)
    return (
        f"Runs in the shared ledger: {len(ledger.runs)}, together epsilon {epsilon:g} at delta "
        f"{ledger.delta:g}, mu {mu:g}. Every plan is counted in full, also where a run stopped "
        f"early. The total budget is epsilon {ledger.header['target_epsilon']:g}."
    )


def _adaptivity(ledger: Ledger, account: PrivacyAccountant) -> str:
    """Return one sentence on plans that depend on the releases of earlier runs."""
    if account.history and account.gaussian_mu is None:
        return _NOT_ADAPTIVE
    return (
        "If you choose a run after you have looked at releases of an earlier one, state the total "
        f"budget, epsilon {ledger.header['target_epsilon']:g} at delta {ledger.delta:g}. If not, "
        "you may state the smaller cost so far."
    )


@dataclass(frozen=True)
class _Shortcoming:
    """Why the numbers of a run do not hold by themselves."""

    kind: str  # a key of _CONSEQUENCES
    run: str
    reason: str


def _shortcomings(ledger: Ledger) -> list[_Shortcoming]:
    """Return the shortcomings of runs, the gravest first.

    Runs that are private and sound have none.
    """
    shortcomings: list[_Shortcoming] = []
    for run, statement_of_run in ledger.runs.items():
        account = PrivacyAccountant.from_groups(ledger.planned(run))
        reasons = {mechanism.why_not_private for mechanism, _, _ in account.history} - {""}
        if reasons or not statement_of_run.get("private", True):
            reason = ", ".join(sorted(reasons)) or "it declares itself so"
            shortcomings.append(_Shortcoming("NOT PRIVATE", run, reason))
        elif statement_of_run.get("records") == HANDED_OVER:
            conditions = " ".join(f"({i}) {line}" for i, line in enumerate(CONDITIONS, 1))
            reason = f"records were {HANDED_OVER}, who answers for: {conditions}"
            shortcomings.append(_Shortcoming("CONDITIONAL", run, reason))
        elif not account.sound:
            reason = "its sensitivity bound is a normal approximation (CLT), not a theorem"
            shortcomings.append(_Shortcoming("NOT SOUND", run, reason))
    gravity = list(_CONSEQUENCES)
    return sorted(shortcomings, key=lambda shortcoming: gravity.index(shortcoming.kind))
