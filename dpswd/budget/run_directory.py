"""Run directory: ledger, stored releases, and what a killed run left behind.

A release is written durably in this order: a marker ``RUN_DIR/releases/000001.drawing``, its line
in the ledger, and after the noise its value in ``000001.pt``. Then the marker is removed, and the
value is returned once no other process has gone on with the run. A release with a marker and
without a value was not returned. A resumed run draws its noise again, after a line ``redraw``
(docs/theory/private-side.md, Propositions 26 and 28).
"""

import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpswd._files import DirectoryLock, atomic_write, verified_archive, write_json
from dpswd.accounting.ledger import Draw, Ledger
from dpswd.accounting.shared_ledger import RunLedger, SharedLedger
from dpswd.budget.plan import Plan
from dpswd.budget.statement import RunStatement
from dpswd.errors import DpswdError, InputError, LedgerError
from dpswd.mechanism import Mechanism

# What the header of a run's ledger states.
_RUN_FACTS = {
    "run",
    "version",
    "target_epsilon",
    "target_delta",
    "accountant",
    "sample_size",
    "records",
    "plan",
}

__all__ = ["Recovered", "ResumePoint", "RunDirectory", "StoredRelease"]


@dataclass(frozen=True)
class ResumePoint:
    """What a checkpoint says about the run that it belongs to.

    Attributes:
        ledger_head: Hash of the last line of the run's ledger at its time; empty for none.
        shared_head: Hash of the last line of the shared ledger; empty for none.
        used: Number of releases of the last mechanism of the plan that the checkpoint contains.
    """

    ledger_head: str = ""
    shared_head: str = ""
    used: int = 0


@dataclass(frozen=True, eq=False)
class StoredRelease:
    """A release of an earlier process of the run, with its stored tensors."""

    mechanism: Mechanism
    tensors: dict[str, Tensor]


@dataclass(frozen=True)
class Recovered:
    """What earlier processes of a run left behind.

    Attributes:
        stored: The stored releases that the checkpoint does not contain, in order.
        unfinished: Mechanism of the last release if a crash lost its value before it was returned.
    """

    stored: tuple[StoredRelease, ...] = ()
    unfinished: Mechanism | None = None


class RunDirectory:
    """Files of one run, on rank 0; a second process is refused."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = DirectoryLock()
        self._ledger: RunLedger | None = None
        # Number of the release that each thread is drawing, which its value is stored under.
        self._number_by_thread: dict[int, int] = {}

    @property
    def ledger(self) -> RunLedger:
        """The ledger of the run."""
        if self._ledger is None:
            raise InputError(f"Expected an open run in {self.path}, got none; start one first.")
        return self._ledger

    # Opening

    def lock(self) -> None:
        """Refuse other processes from now on.

        There is no effect where the directory does not exist.
        """
        self._lock.acquire(self.path)

    def unlock(self) -> None:
        """Let other processes open the directory."""
        self._lock.release()

    def check_free(self, resume: str = "") -> None:
        """Raise an :class:`InputError` if the directory holds the ledger of a run.

        Args:
            resume: How to resume the run, for the message.
        """
        Ledger.check_free(self._ledger_path, resume)

    def has_reserved(self, shared: str | Path) -> bool:
        """Return whether a shared ledger holds the plan of the run in this directory."""
        with suppress(DpswdError):  # no ledger, or a damaged one
            own = Ledger.open_existing(self._ledger_path)
            return own.header.get("run") in SharedLedger.open_existing(shared).runs
        return False

    def create(self, header: dict[str, Any], shared: SharedLedger | None) -> None:
        """Write the header of a new ledger, and reserve its plan in the shared ledger."""
        own = Ledger.create(self._ledger_path, header)
        self.lock()  # the directory may not have existed before
        if shared is not None:
            shared.reserve(header["run"], header)
        self._ledger = RunLedger(own, shared)

    def read(self, point: ResumePoint) -> Ledger:
        """Read the ledger of the run.

        A ledger that does not contain the releases of the checkpoint is refused.
        """
        own = Ledger.open_existing(self._ledger_path)
        if not own.header.keys() >= _RUN_FACTS:
            raise LedgerError(
                f"Expected the ledger of a run at {own.path}, got one without plan or budget; "
                "check the run directory."
            )
        own.check_resumable(str(own.header["run"]), point.ledger_head)
        return own

    def resume(
        self, own: Ledger, shared: SharedLedger | None, plan: Plan, point: ResumePoint
    ) -> Recovered:
        """Go on with a run whose ledger was read.

        A copy is refused if another copy has gone on.

        Raises:
            LedgerError: If the ledgers do not fit together, or do not contain the checkpoint.
            InputError: If a stored release is beyond the ledger or is damaged.
        """
        ledger = RunLedger(own, shared)
        if shared is not None:
            shared.check_resumable(ledger.run, point.shared_head)
        ledger.reconcile()
        self._ledger = ledger
        n = ledger.n_releases
        following = self._value_path(n + 1)
        if following.exists():
            raise InputError(
                f"Expected no more than {n} releases, got {following}: the ledger was cut; put "
                "its last state back."
            )
        stored = self._stored_releases(plan, point.used)
        if n > 0 and self._value_path(n).exists():
            ledger.confirm(n)
            self._marker_path(n).unlink(missing_ok=True)
        return Recovered(stored, self._unfinished_release(plan))

    def _stored_releases(self, plan: Plan, n_used: int) -> tuple[StoredRelease, ...]:
        """Read the stored releases that the checkpoint does not contain.

        A mechanism with one planned release is read in any case: a module that has its value does
        not ask for it. ``n_used`` is the number of releases of the plan's last mechanism that the
        checkpoint contains.
        """
        releases: list[StoredRelease] = []
        n_passed = Counter[Mechanism]()
        for number, draw in self._last_draws().items():
            mechanism = draw.mechanism
            n_passed[mechanism] += 1
            is_used = mechanism == plan.mechanism and n_passed[mechanism] <= n_used
            path = self._value_path(number)
            if (not is_used or plan.count(mechanism) == 1) and path.exists():
                releases.append(StoredRelease(mechanism, self._read_tensors(path, draw.session)))
        return tuple(releases)

    def _unfinished_release(self, plan: Plan) -> Mechanism | None:
        """Return the mechanism of the last release if a crash lost its value.

        The value was not returned. ``None`` says that no value was lost.
        """
        n = self.ledger.n_releases
        if n == 0 or self._value_path(n).exists() or self.ledger.is_stored_elsewhere(n):
            return None
        mechanism = self.ledger.own.releases[-1]
        marker = self._marker_path(n)  # of an earlier attempt, unless it names this run
        if not plan.is_stored(mechanism) or not marker.is_file():
            return None
        if marker.read_bytes() != self.ledger.run.encode():
            return None
        return mechanism

    def _last_draws(self) -> dict[int, Draw]:
        """Return the line of the last draw of each release, by its number."""
        draws: dict[int, Draw] = {}
        for draw in self.ledger.own.draws():
            number = len(draws) if draw.is_redraw else len(draws) + 1
            draws[number] = draw
        return draws

    # Releases

    def record(self, mechanism: Mechanism, *, is_stored: bool) -> None:
        """Write a release to the ledgers before its noise is drawn.

        If its value will be stored, its marker is written first.
        """
        if is_stored:
            marker = self._marker_path(self.ledger.n_releases + 1)
            atomic_write(marker, self.ledger.run.encode())
        number = self.ledger.record(mechanism)
        self._number_by_thread[threading.get_ident()] = number

    def record_redraw(self) -> None:
        """Write to the ledgers that the noise of the unfinished release is drawn again.

        Raises:
            LedgerError: If another process has stored the value in the meantime.
        """
        number = self.ledger.record_redraw()
        path = self._value_path(number)
        if path.exists():
            raise LedgerError(
                f"Expected no value of release {number} in {path.parent}, got that of a second "
                "process; no release was made."
            )
        self._number_by_thread[threading.get_ident()] = number

    def count_releases(self) -> Counter[Mechanism]:
        """Return the number of releases in the ledger, by mechanism."""
        return Counter(self.ledger.own.releases)

    def store(self, tensors: dict[str, Tensor], notice: str = "") -> None:
        """Write noisy values before they are returned.

        The release is the one that this thread has recorded.

        Args:
            tensors: The values by name.
            notice: ``NOT PRIVATE`` and why, if the run is not.

        Raises:
            LedgerError: If another process has gone on with the run; the values must not be
                returned.
        """
        number = self._number_by_thread.pop(threading.get_ident())
        content = {
            "run": self.ledger.run,
            "session": self.ledger.own.session,
            "tensors": {name: value.cpu() for name, value in tensors.items()},
        }
        if notice:
            content["notice"] = notice
        self.ledger.own.check_unchanged()  # the value of a second process is not overwritten
        atomic_write(self._value_path(number), partial(torch.save, content))
        self.ledger.confirm(number)
        self._marker_path(number).unlink(missing_ok=True)

    def write_statement(self, statement: RunStatement) -> None:
        """Write ``privacy.json``."""
        write_json(self.path / "privacy.json", statement.to_dict())

    # Files

    @property
    def _ledger_path(self) -> Path:
        return self.path / "ledger.jsonl"

    def _value_path(self, number: int) -> Path:
        """Return the path of the value of a release."""
        return self.path / "releases" / f"{number:06d}.pt"

    def _marker_path(self, number: int) -> Path:
        """Return the path of the marker of a release whose noise is being drawn."""
        return self.path / "releases" / f"{number:06d}.drawing"

    def _read_tensors(self, path: Path, session: str) -> dict[str, Tensor]:
        """Read a stored release of this run, which the process ``session`` has drawn."""
        try:
            content = torch.load(verified_archive(path), weights_only=True)
            run = content["run"]
            writer = content.get("session", "")  # version 0.3 wrote none
            tensors = dict(content["tensors"])
        except Exception as error:  # torch.load raises many exception types on damaged files
            kind = type(error).__name__
            raise InputError(
                f"Expected a stored release at {path}, got a damaged file ({kind}); restore a copy "
                "of it."
            ) from None
        if run != self.ledger.run:
            raise InputError(
                f"Expected a release of run {self.ledger.run} at {path}, got one of run {run}; "
                "restore the file of this run."
            )
        if writer != session:
            raise InputError(
                f"Expected the release at {path} that the ledger names, got one that another "
                "process has drawn; resume in the directory that has gone on."
            )
        return tensors
