r"""A budget that spans runs: several plans on the same records in one ledger, and what they cost together.

A run is admitted with its whole plan, before it draws any noise, if the composition of all plans keeps the budget; it
can then release nothing that its plan does not hold. Admission happens under the file's lock.

What the composed number rests on, and what holds where plans are chosen by looking: :mod:`dpswd.accounting.across`.
"""

import os
from pathlib import Path
from typing import Any

from dpswd import __version__
from dpswd._validate import positive, probability
from dpswd.accounting.across import across, compose, cost
from dpswd.accounting.ledger import Ledger, ReleaseGroup
from dpswd.errors import BudgetExceededError, InputError
from dpswd.mechanism import Mechanism

__all__ = ["SharedBudget", "merge"]


class SharedBudget:
    """What several runs may cost together, and the ledger they share.

    Args:
        path: The ledger; begun by the first run that is admitted.
        target_epsilon: Budget of all runs together; that of the ledger if not given.
        target_delta: Its probability, the same for all runs.
        accountant: What composes the runs, where the ledger is begun here.

    Raises:
        InputError: If the ledger is no ledger for several runs, or has another budget.
    """

    def __init__(self, path: str | Path, target_epsilon: float | None, target_delta: float, accountant: str) -> None:
        probability(target_delta=target_delta)
        self.path, self.run = Path(path), ""
        self.target_delta, self.accountant = target_delta, accountant
        self.ledger = Ledger.open_existing(path) if _begun(self.path) else None
        stated = self._check_header(target_epsilon)
        if target_epsilon is None and stated is None:
            raise InputError(
                f"Expected a budget for all runs in {path}, got none; give privacy.ledger_epsilon (--target-epsilon)."
            )
        self.target_epsilon = float(target_epsilon if target_epsilon is not None else stated or 0.0)
        positive(ledger_epsilon=self.target_epsilon)

    def check(self, plan: list[ReleaseGroup]) -> None:
        """Refuses a plan that the budget does not cover, without writing anything.

        Raises:
            BudgetExceededError: If all runs together would cost more than the budget.
            InputError: If the plan is for a data set of another size.
        """
        self._check(self.ledger, plan)

    def reserve(self, run: str, facts: dict[str, Any], plan: list[ReleaseGroup]) -> None:
        """Admits a run; its plan is spent from here on. Raises what :meth:`check` does."""
        self.run = run
        if self.ledger is None:
            self.ledger = self._begin(plan[0][1])
        self.ledger.reserve(run, facts, lambda ledger: self._check(ledger, plan))

    def resume(self, run: str, releases: int, head: str) -> None:
        """Takes a run up again that the ledger knows, with at least so many releases, and this head in its chain."""
        self.run = run
        if self.ledger is None or run not in self.ledger.runs:
            raise InputError(f"Expected the run that is resumed in {self.path}, got none; give the ledger of that run.")
        found = sum(count for *_, count in self.ledger.groups(run))
        if found < releases or (head and head not in self.ledger.heads):
            raise InputError(
                f"Expected at least {releases} releases of this run in {self.path} (the checkpoint's count) and the "
                f"checkpoint's hash, got {found}; the ledger was cut or is another one, so the run cannot go on."
            )

    def record(self, mechanism: Mechanism, sample_size: int) -> None:
        """Writes a release of the run down."""
        assert self.ledger is not None
        self.ledger.record(mechanism, sample_size, self.run)

    @property
    def head(self) -> str:
        """Hash of the ledger's last line that this run knows of."""
        return self.ledger.head if self.ledger is not None else ""

    def facts(self) -> dict[str, Any]:
        """What the runs in the ledger cost together, as it stands on the disk; for ``privacy.json`` and the report."""
        ledger = Ledger.open_existing(self.path)
        words: dict[str, Any] = {"noun": "the ledger that this one shares", "budget": self.target_epsilon}
        found = across(ledger, self.target_delta, self.accountant, **words)
        return {"runs": len(ledger.runs), "target_epsilon": self.target_epsilon, **found}

    def _check_header(self, target_epsilon: float | None) -> float | None:
        if self.ledger is None:
            return None
        header = self.ledger.header
        if not self.ledger.shared:
            raise InputError(
                f"Expected a ledger for several runs at {self.path}, got that of one run; make one of it with "
                "dpswd ledger merge."
            )
        if header.get("target_delta") != self.target_delta:
            raise InputError(
                f"Expected target_delta={header.get('target_delta')!r} as in {self.path}, got {self.target_delta!r}; "
                "runs that share a ledger share its delta."
            )
        stated = header.get("target_epsilon")
        if target_epsilon is not None and stated is not None and target_epsilon > stated:
            raise InputError(
                f"Expected a budget of at most epsilon={stated!r} for all runs in {self.path}, which began with it, "
                f"got {target_epsilon!r}; leave it out."
            )
        self.accountant = str(header.get("accountant", self.accountant))
        return None if stated is None else float(stated)

    def _begin(self, sample_size: int) -> Ledger:
        header = {
            "scope": "shared",
            "version": __version__,
            "sample_size": sample_size,
            "target_epsilon": self.target_epsilon,
            "target_delta": self.target_delta,
            "accountant": self.accountant,
        }
        try:
            return Ledger.create(self.path, header)
        except InputError:
            self.ledger = Ledger.open_existing(self.path)  # begun by another process meanwhile
            self._check_header(self.target_epsilon)
            return self.ledger

    def _check(self, ledger: Ledger | None, plan: list[ReleaseGroup]) -> None:
        spent = ledger.planned() if ledger is not None else []
        stated = ledger.header.get("sample_size") if ledger is not None else None
        sizes = {size for _, size, _ in plan}
        if stated is not None and sizes != {stated}:
            raise InputError(
                f"Expected {stated} records as the other runs in {self.path}, got {sorted(sizes)[0]}; a ledger is for "
                "runs on the same records: begin another one."
            )
        total = compose([*spent, *plan], self.accountant).get_epsilon(self.target_delta)
        if total > self.target_epsilon:
            before = compose(spent, self.accountant).get_epsilon(self.target_delta) if spent else 0.0
            raise BudgetExceededError(
                f"Expected all runs in {self.path} to cost at most epsilon={self.target_epsilon:g} at "
                f"delta={self.target_delta:g}, got {total:.4g} with this one ({before:.4g} without); give it a smaller "
                "target_epsilon, or stop here."
            )


def merge(
    paths: list[Path],
    out: Path,
    *,
    target_epsilon: float | None = None,
    target_delta: float | None = None,
    accountant: str = "pld",
    different_sizes: bool = False,
) -> Ledger:
    """Joins the ledgers of several runs on the same records into one, to which further runs can be added.

    Sound as an upper bound for a record that is in each data set at most once. Copies of one run that went on
    separately are two runs, each counted with its whole plan; the same run given twice is refused.

    Args:
        paths: Ledgers of runs, or of several runs.
        out: The new file.
        target_epsilon: Budget of all runs together, for further runs.
        target_delta: Its probability; that of the ledgers if they agree.
        accountant: What composes further runs.
        different_sizes: Whether data sets of different sizes are meant, not a mistake.

    Raises:
        InputError: If a ledger is broken, a run comes twice, sizes differ, or ``out`` is there.
    """
    ledgers = [Ledger.open_existing(path) for path in paths]
    if target_delta is None:
        target_delta = ledgers[0].header.get("target_delta")
        if target_delta is None or any(ledger.header.get("target_delta") != target_delta for ledger in ledgers):
            raise InputError("Expected --delta for ledgers that do not all state the same one, got none; give it.")
    probability(target_delta=target_delta)
    sizes = {size for ledger in ledgers for _, size, _ in ledger.planned()}
    if len(sizes) > 1 and not different_sizes:
        raise InputError(
            f"Expected ledgers of runs on the same records, got data sets of {', '.join(map(str, sorted(sizes)))} "
            "records; if a record may be in each of them once, say --different-sizes (costs add up, disjoint or not)."
        )
    _refuse_doubles(ledgers)
    if out.exists():
        raise InputError(f"Expected a new file for the merged ledger, got {out}, which is there; choose another --out.")
    partial = out.with_name(out.name + ".part")
    header = {
        "scope": "shared",
        "version": __version__,
        "sample_size": sizes.pop() if len(sizes) == 1 else None,
        "target_epsilon": target_epsilon,
        "target_delta": target_delta,
        "accountant": accountant,
        "merged_from": [ledger.head for ledger in ledgers],
    }
    if partial.is_file():
        partial.unlink()  # of a merge that was killed
    try:
        merged = Ledger.create(partial, header)
        for ledger in ledgers:
            for run, facts in _runs(ledger).items():
                name = run if run not in merged.runs else f"{run}-{ledger.head[:8]}"  # a copy that went its own way
                merged.adopt(name, facts, ledger.groups(run if ledger.shared else None))
        total = cost(merged.planned(), target_delta, accountant)["epsilon"]  # what cannot be accounted for is refused
        if target_epsilon is not None:
            positive(target_epsilon=target_epsilon)
            if total > target_epsilon:
                raise InputError(f"Expected these runs to cost at most epsilon={target_epsilon:g}, got {total:.4g}.")
        os.replace(partial, out)
    finally:
        if partial.is_file():
            partial.unlink()
    return Ledger.open_existing(out)


def _begun(path: Path) -> bool:
    """Says whether there is a ledger; a first line that a crash has torn is none."""
    if not path.is_file():
        return path.exists()
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"Expected to read the ledger at {path}, got: {error.strerror}.") from None
    return b"\n" in content or content[:2] not in (b"", b'{"')


def _runs(ledger: Ledger) -> dict[str, dict[str, Any]]:
    """Returns what every run states, by its id."""
    if ledger.shared:
        return ledger.runs
    wanted = (
        "version",
        "config_sha256",
        "target_epsilon",
        "target_delta",
        "accountant",
        "sample_size",
        "private",
        "plan",
    )
    facts = {name: ledger.header[name] for name in wanted if name in ledger.header}
    return {str(ledger.header.get("run", ledger.head[:16])): {**facts, "head": ledger.head}}


def _refuse_doubles(ledgers: list[Ledger]) -> None:
    for i, ledger in enumerate(ledgers):
        for other in ledgers[:i]:
            common = sorted(set(_runs(ledger)) & set(_runs(other)))
            copies = ledger.head in other.heads or other.head in ledger.heads
            if copies or (common and (ledger.shared or other.shared)):
                which = f" (run {common[0]})" if common else ""
                raise InputError(
                    f"Expected different runs, got the same one in {other.path} and {ledger.path}{which}; give it once."
                )
