"""Privacy budget of a run: plan, calibration, ledger, stored releases, resume and statement. Knows no framework.

The plan is a list of mechanisms with their numbers of releases. Where several processes work together, rank 0 keeps
the ledger; all ranks count, and each of them can refuse.

Releases are written to ``RUN_DIR/releases/`` before they are returned, and a resumed run takes them from there. While a
release is drawn, a marker lies beside them. If the ledger's last line has a marker and no value, the resumed run draws
it afresh, under the same line (docs/theory/private-side.md, Proposition 26).
"""

import contextlib
import dataclasses
import hashlib
import math
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
import yaml  # type: ignore[import-untyped]
from torch import Tensor

from dpswd import __version__
from dpswd._distributed import Processes, check_joined
from dpswd._files import DirectoryLock, atomic_write, verified_archive, write_json
from dpswd._progress import say
from dpswd._validate import at_least, positive, probability
from dpswd._versions import package_versions
from dpswd.accounting.accountant import PrivacyAccountant, ReleaseGroup
from dpswd.accounting.calibrate import calibrate_sigma, mu_of_epsilon
from dpswd.accounting.ledger import (
    CONDITIONS,
    HANDED_OVER,
    Ledger,
    SharedLedger,
    plan_of,
    statement,
)
from dpswd.errors import BudgetExceededError, InputError
from dpswd.mechanism import GaussianMechanism, Mechanism, ProjectionMechanism
from dpswd.records import PrivateRecords
from dpswd.release import Recorder, Releasing, check_same_records

__all__ = ["Budget"]

STORED_BYTES = 2**28  # of all releases of one mechanism, up to which each is stored
_FEW = 20  # releases of one mechanism that are stored in any case

_LOCK = (
    threading.Lock()
)  # no thread may release between the check of another thread and its ledger entry
_released: dict[
    str, str
] = {}  # run directory by digest of the records that this process has released from

Plan = list[tuple[Any, int]]  # (mechanism, n_releases); a loss is the last entry

OTHER_RUNS = "Other runs: further runs on the same records, copies of this one included; their guarantees compose."
NOT_COVERED = [
    "Choices: architecture, hyperparameters, number of steps or selection of a run after looking at private records.",
    "Evaluation: an accuracy measured on private records is a release without noise.",
    OTHER_RUNS,
    "Several records of one person: the unit of protection is one record.",
    "Floating-point arithmetic: the noise is a 53-bit approximation of the Gaussian of the proofs.",
    "Side channels: running time, memory, and error messages about private records (finite records are assumed).",
]


class RunBudget(Recorder):
    """Base of the budgets: plans the releases of a run and keeps them within (target_epsilon, target_delta)."""

    run_dir: Path
    sample_size: int

    def __init__(
        self,
        target_epsilon: float,
        target_delta: float,
        accountant: str,
        shared_ledger: str | Path | None,
    ) -> None:
        positive(target_epsilon=target_epsilon)
        probability(target_delta=target_delta)
        PrivacyAccountant(accountant)
        self.target_epsilon, self.target_delta, self.accountant = (
            target_epsilon,
            target_delta,
            accountant,
        )
        self.shared_ledger = shared_ledger
        self.records: PrivateRecords | None = None  # None: the caller hands tensors over
        self.weights_from_runs: set[str] = set()
        self.before_ledger: Callable[[], None] | None = None
        self._checkpoint: Any = None  # of a run that is resumed: the heads of its ledgers, and more
        self._lock = DirectoryLock()
        self._reset()

    def _reset(self) -> None:
        self.plan: Plan = []
        self._header: dict[str, Any] = {}  # of the ledger: what the run states
        self._ledger: Ledger | None = None  # on rank 0
        self._shared: SharedLedger | None = None  # on rank 0
        self._made: Counter[Mechanism] = Counter()  # on every rank
        self._running = False
        self._stored: list[
            tuple[Mechanism, dict[str, Tensor]]
        ] = []  # of earlier processes, not asked for so far
        self._again: Mechanism | None = None  # in the ledger's last line, without a file
        self._epsilon_of: dict[int, float] = {}

    @property
    def mu(self) -> float:
        """Budget of Gaussian differential privacy, of which queries and structure take their shares."""
        if self.accountant == "pld":
            return mu_of_epsilon(self.target_epsilon, self.target_delta)
        unit = GaussianMechanism(sensitivity=1.0, sigma=1.0)
        return 1 / calibrate_sigma(unit, sample_size=1, n_releases=1, **self.settings)

    @property
    def settings(self) -> dict[str, Any]:
        """The budget as the ledger's header states it."""
        return {
            "target_epsilon": self.target_epsilon,
            "target_delta": self.target_delta,
            "accountant": self.accountant,
        }

    @property
    def run(self) -> str:
        """Identifier of the run; empty before its ledger is opened."""
        return str(self._header.get("run", ""))

    @property
    def n_releases(self) -> int:
        """Releases in the ledger, by this process and by those that it resumes."""
        return sum(self._made.values())

    @property
    def mechanism(self) -> Any:
        """The calibrated mechanism of the loss, or of the last query."""
        return self.plan[-1][0]

    # Recorder: called by the loss and the queries, on every rank

    def before_release(
        self, mechanism: Mechanism, records: PrivateRecords | None
    ) -> dict[str, Tensor] | None:
        """Check that a release is allowed now; return a stored one if an earlier process of this run has made it."""
        with _LOCK:
            if self._running and records is not self.records:
                wanted = (
                    "the records of this budget"
                    if self.records is not None
                    else "tensors, as planned"
                )
                raise InputError(
                    f"Expected {wanted}, got {'a tensor' if records is None else 'another handle'}."
                )
            for i, (made, tensors) in enumerate(self._stored):
                if made == mechanism:
                    del self._stored[i]
                    return tensors
            self.check(mechanism)
            return None

    def record(self, mechanism: Mechanism) -> None:
        """Write a release to the ledger, before its noise is drawn; if it raises, the release must not be made."""
        with _LOCK:
            self.check(mechanism)
            again = self._again == mechanism
            self._again = None
            if self._ledger is not None and not again:
                if self._is_stored(mechanism):
                    atomic_write(
                        self._file(self._ledger.n_releases + 1, "drawing"), self.run.encode()
                    )
                self._ledger.record(mechanism, self.sample_size)
            made = self._made[mechanism] + (not again)
            # a killed process may have written it to the shared ledger already
            if (
                self._shared is not None
                and self._shared.count(mechanism, self.sample_size, self.run) < made
            ):
                self._shared.record(mechanism, self.sample_size, self.run)
            self._made[mechanism] = made

    def store(self, mechanism: Mechanism, tensors: dict[str, Tensor]) -> None:
        """Write the noisy values of the last release, on rank 0, before they are returned."""
        if self._ledger is not None and self._is_stored(mechanism):
            facts = {
                "run": self.run,
                "tensors": {name: value.cpu() for name, value in tensors.items()},
            }
            atomic_write(self._file(self._ledger.n_releases, "pt"), partial(torch.save, facts))
            self._file(self._ledger.n_releases, "drawing").unlink(missing_ok=True)

    def _file(self, number: int, ending: str) -> Path:
        """Return the path of a release's value, or of the marker that says that it is being drawn."""
        return self.run_dir / "releases" / f"{number:06d}.{ending}"

    def check(self, mechanism: Mechanism) -> None:
        """Raise BudgetExceededError unless the run has started and the plan has a further release of this mechanism."""
        if not self._running:
            raise BudgetExceededError(
                "Expected a release within a run of its budget, got one outside: not accounted."
            )
        planned = self._n_planned_of(mechanism)
        if not planned:
            raise BudgetExceededError(
                "Expected a mechanism of the plan of this budget, got one that is not in it."
            )
        if self._made[mechanism] >= planned and self._again != mechanism:
            raise BudgetExceededError(
                f"Expected at most {planned} releases, got a further one: the budget is used up."
            )

    def _is_stored(self, mechanism: Mechanism) -> bool:
        """Whether every release of a mechanism is written to a file."""
        planned = self._n_planned_of(mechanism)
        if planned <= _FEW or not isinstance(mechanism, ProjectionMechanism):
            return True
        values = mechanism.n_projections * (
            mechanism.dim + mechanism.n_values * (mechanism.n_classes or 1)
        )
        return 8 * values * planned <= STORED_BYTES

    def _n_planned_of(self, mechanism: Mechanism) -> int:
        return sum(count for other, count in self.plan if other == mechanism)

    def _n_used(self, mechanism: Mechanism) -> int:
        """Return the number of releases of a mechanism that are neither waiting in a file nor to be drawn again."""
        waiting = [made for made, _ in self._stored] + [self._again]
        return self._made[mechanism] - waiting.count(mechanism)

    # Opening

    def _open(self, parts: list[tuple[Releasing[Any], int]]) -> None:
        """Start or resume a run of parts with numbers of releases, with the other ranks, and calibrate the parts.

        What can be refused is refused before a file is written.
        """
        check_joined()
        wanted, shares = (
            [(part.mechanism, n) for part, n in parts],
            [part.share for part, _ in parts[:-1]],
        )
        digest = None if self.records is None else check_same_records(self.records)
        opened = Processes().broadcast(lambda: self._open_files(wanted, shares))
        if digest in _released and self.shared_ledger is None and self._checkpoint is None:
            say(
                f"Warning: a run on these records was started before, in {_released[digest]}. This run spends a "
                "further budget, and both guarantees compose; pass shared_ledger to keep one budget for all runs."
            )
        if digest is not None:
            _released[digest] = str(self.run_dir)
        header, made, self._stored, self._again = opened
        self._take(header, made)
        for (part, _), (mechanism, _) in zip(parts, self.plan, strict=True):
            part.mechanism, part.recorder = mechanism, self
        self._running = True

    def _open_files(self, wanted: Plan, shares: list[float]) -> tuple[Any, ...]:
        """Start or resume the run, on rank 0."""
        try:
            self._lock.take(self.run_dir)
            if self.target_delta * self.sample_size >= 1:
                limit = (
                    f"1 / N = {1 / self.sample_size:.2g}, which permits publishing a whole record"
                )
                raise InputError(
                    f"Expected target_delta below {limit}, got {self.target_delta:g}; lower it."
                )
            if self.shared_ledger is not None:
                self._shared = SharedLedger.open_existing(self.shared_ledger)
            ledger = (
                self._start(wanted, shares) if self._checkpoint is None else self._resume(wanted)
            )
        except BaseException:
            self._lock.free()
            raise
        self._ledger = ledger
        return ledger.header, ledger.groups(), self._stored, self._again

    def _take(self, header: dict[str, Any], made: list[ReleaseGroup]) -> None:
        """Take the plan from the header of the ledger, and the number of releases made."""
        self._header, self.sample_size = header, header["sample_size"]
        self.plan = [(mechanism, count) for mechanism, _, count in plan_of(header)]
        self._made = Counter({mechanism: count for mechanism, _, count in made})

    def _start(self, wanted: Plan, shares: list[float]) -> Ledger:
        path = self.run_dir / "ledger.jsonl"
        Ledger.check_free(path)
        known = set(self._shared.runs) if self._shared is not None else set()
        if foreign := sorted(self.weights_from_runs - known):
            got = f"weights from run {', '.join(foreign)}"
            remedy = (
                "start from new weights, or set shared_ledger to a ledger that contains these runs"
            )
            raise InputError(
                f"Expected weights that no earlier private run has trained, got {got}; {remedy}."
            )
        plan = self._calibrate(wanted, shares)
        account = self._account(plan)
        guarantee = account.guarantee(
            self.target_delta
        )  # before any file is written, since it may fail
        if self._shared is not None:
            self._shared.check(account.history)
        if self.before_ledger is not None:
            self.before_ledger()
        config = self.run_dir / "config.yaml"
        header = {
            "run": secrets.token_hex(8),  # two runs of one plan have different ledgers
            "version": __version__,
            "versions": package_versions(),
            "config_sha256": hashlib.sha256(config.read_bytes()).hexdigest()
            if config.is_file()
            else None,
            **self._stated,
            "guarantee": guarantee,
            "private": all(mechanism.is_private for mechanism, _ in plan),
            "planned_releases": sum(count for _, count in plan),
            "plan": [
                {"mechanism": mechanism.to_dict(), "n_releases": count} for mechanism, count in plan
            ],
        }
        ledger = Ledger.create(path, header)
        self._lock.take(self.run_dir)  # the directory may not have existed before
        if self._shared is not None:
            self._shared.reserve(header["run"], header)
        return ledger

    def _resume(self, wanted: Plan) -> Ledger:
        """Take plan and stored releases from the directory of the interrupted run."""
        stated, ledger = self._stated, self._read_ledger()
        for name, value in stated.items():
            if ledger.header.get(name) != value:
                found = f"{name}={ledger.header.get(name)!r} as in the ledger of the resumed run"
                raise InputError(
                    f"Expected {found}, got {value!r}; resume with the settings of that run."
                )
        parts = [
            [(dataclasses.replace(each, sigma=1.0), n) for each, n in plan]
            for plan in (self.plan, wanted)
        ]
        if parts[0] != parts[1]:  # apart from the noise
            raise InputError(
                "Expected the mechanisms of the resumed run, got different ones; use its config.yaml."
            )
        if self._shared is not None:
            self._shared.check_resumable(self.run, self._checkpoint["shared_head"])
        self._read_stored(ledger)
        return ledger

    def _read_ledger(self) -> Ledger:
        """Read the ledger of the resumed run; refuse one that does not contain the releases of the checkpoint."""
        ledger = Ledger.open_existing(self.run_dir / "ledger.jsonl")
        self._take(ledger.header, ledger.groups())
        ledger.check_resumable(self.run, self._checkpoint["ledger_head"])
        return ledger

    def _read_stored(self, ledger: Ledger) -> None:
        """Read the stored releases that the checkpoint does not contain, and find a last release without a file.

        A mechanism with one planned release is kept in any case: a module that has its value does not ask for it.
        """
        made, used = (
            Counter[Mechanism](),
            Counter({self.mechanism: self._checkpoint.get("used", 0)}),
        )
        for number, mechanism in enumerate(ledger.releases, 1):
            made[mechanism] += 1
            needed = made[mechanism] > used[mechanism] or self._n_planned_of(mechanism) == 1
            if needed and (path := self._file(number, "pt")).exists():
                self._stored.append((mechanism, self._tensors(path)))
        n = ledger.n_releases
        if (further := self._file(n + 1, "pt")).exists():
            raise InputError(
                f"Expected no more than {n} releases, got {further}: the ledger was cut."
            )
        marker = self._file(
            n, "drawing"
        )  # of an earlier attempt, unless the run is the same and the value is missing
        if self._file(n, "pt").exists():
            marker.unlink(missing_ok=True)
        unfinished = marker.is_file() and marker.read_bytes() == self.run.encode()
        if n and unfinished and self._is_stored(ledger.releases[-1]):
            self._again = ledger.releases[-1]

    def _tensors(self, path: Path) -> dict[str, Tensor]:
        """Read a stored release of this run."""
        try:
            content = torch.load(verified_archive(path), weights_only=True)
            run, tensors = content["run"], dict(content["tensors"])
        except Exception as error:  # torch.load raises many exception types on damaged files
            kind = type(error).__name__
            raise InputError(
                f"Expected a stored release at {path}, got a damaged file ({kind})."
            ) from None
        if run != self.run:
            raise InputError(
                f"Expected a release of run {self.run} at {path}, got one of run {run}."
            )
        return tensors

    def _calibrate(self, wanted: Plan, shares: list[float]) -> Plan:
        """Give each query its share of the squared mu of the whole budget, and the last entry what remains."""
        if sum(shares) >= 1:
            raise InputError(
                f"Expected shares of the budget that add up to less than 1, got {sum(shares):g}."
            )
        plan: Plan = []
        spent, mu = PrivacyAccountant(self.accountant), self.mu if shares else math.inf
        for (query, count), share in zip(wanted[:-1], shares, strict=True):
            sigma = query.unit_sensitivity * math.sqrt(query.law.mean) / (mu * math.sqrt(share))
            plan.append((dataclasses.replace(query, sigma=sigma), count))
            spent.step(plan[-1][0], sample_size=self.sample_size, n_releases=count)
        last, count = wanted[-1]
        sigma = calibrate_sigma(
            last, sample_size=self.sample_size, n_releases=count, spent=spent, **self.settings
        )
        return [*plan, (dataclasses.replace(last, sigma=sigma), count)]

    def _close(self) -> None:
        """End the run: no further release, the directory is free."""
        self._running = False
        self._lock.free()

    # Statements

    @property
    def _stated(self) -> dict[str, Any]:
        """What the header of the ledger states, and a resumed run must state again."""
        return {
            **self.settings,
            "sample_size": self.sample_size,
            "records": "behind a handle" if self.records is not None else HANDED_OVER,
            "shared": self.shared_ledger is not None,
        }

    def _account(self, plan: Plan) -> PrivacyAccountant:
        return PrivacyAccountant.from_groups(
            [(each, self.sample_size, n) for each, n in plan], self.accountant
        )

    def _spent(self) -> float:
        """Upper bound of the epsilon spent so far: the number of releases is rounded up to a power of two."""
        if not self.n_releases:
            return 0.0
        *queries, (mechanism, planned) = self.plan
        count = min(planned, 2 ** math.ceil(math.log2(max(self._made[mechanism], 1))))
        if count not in self._epsilon_of:
            self._epsilon_of[count] = self._account([*queries, (mechanism, count)]).get_epsilon(
                self.target_delta
            )
        return self._epsilon_of[count]

    def statement(self) -> dict[str, Any]:
        """Return the content of ``privacy.json``.

        ``epsilon`` and ``mu`` cover ``run``. The weights have seen the releases of ``weights_from_runs``; the total of
        a shared ledger is in ``across_runs``. ``sound`` is False where the guarantee depends on ``conditions``.

        Raises:
            InputError: If no run has been started.
        """
        if not self._header:
            raise InputError(
                "Expected a run within this budget, got none; call statement() after its start."
            )
        header, guarantee = self._header, self._header["guarantee"]
        conditional = header["records"] == HANDED_OVER
        names = (
            *self.settings,
            "run",
            "version",
            "sample_size",
            "planned_releases",
            "records",
            "private",
        )
        facts = {
            **{name: header[name] for name in names},
            **guarantee,
            "sound": guarantee["sound"] and not conditional,
            "conditions": CONDITIONS if conditional else [],
            "neighboring_relation": "replace-one",
            "mechanism": self.mechanism.to_dict(),
            "releases_made": self.n_releases,
            "weights_from_runs": sorted(self.weights_from_runs | {self.run}),
            "not_covered": NOT_COVERED,
        }
        if self._shared is not None:
            facts["across_runs"] = statement(SharedLedger.open_existing(self._shared.path))
            facts["not_covered"] = [line for line in NOT_COVERED if line != OTHER_RUNS]
        return facts

    def _write(self) -> None:
        if self._ledger is not None:  # on rank 0
            write_json(self.run_dir / "privacy.json", self.statement())


class Budget(RunBudget):
    r"""Budget of a method that releases queries of all records, or a loss, as a context manager.

    Within the context each may be released ``n_releases`` times, queries with noise for their share of :math:`\mu^2`
    (Dong2022, Corollary 3.3). The directory then holds config.yaml, ledger.jsonl, privacy.json and the releases.

    Args:
        records: The records; every query reads all of them.
        queries: The queries, or :class:`dpswd.DPSlicedWassersteinLoss`; the last one takes the rest of the budget. They
            may be set before the context is entered.
        target_epsilon: Budget of this run.
        target_delta: Budget of this run; below 1 / N.
        run_dir: The run directory; a directory with the ledger of a run is refused.
        n_releases: Planned releases of each query or loss.
        config: Plain values that describe the method, written to config.yaml.
        accountant: ``"pld"`` or ``"rdp"``.
        shared_ledger: Ledger of several runs on the same records, made by ``dpswd ledger create``.
        resume: Finish the run in ``run_dir``, if there is one. Its releases are taken from their files.

    Raises:
        InputError: If a share or a number is out of range, or the directory cannot be used.
        BudgetExceededError: In the context, if a release is not in the plan.

    Example:
        >>> import tempfile, torch
        >>> from dpswd.queries import ClassCounts
        >>> records = PrivateRecords(torch.rand(10, 3), torch.arange(10) % 2, classes=[0, 1])
        >>> query = ClassCounts(2)
        >>> with Budget(records, [query], target_epsilon=1, target_delta=1e-5, run_dir=tempfile.mkdtemp()) as budget:
        ...     released = query.release(records)
        >>> len(released), budget.n_releases
        (2, 1)
    """

    def __init__(
        self,
        records: PrivateRecords,
        queries: Sequence[Releasing[Any]] = (),
        *,
        target_epsilon: float,
        target_delta: float,
        run_dir: str | Path,
        n_releases: int = 1,
        config: Mapping[str, Any] | None = None,
        accountant: str = "pld",
        shared_ledger: str | Path | None = None,
        resume: bool = False,
    ) -> None:
        super().__init__(target_epsilon, target_delta, accountant, shared_ledger)
        if not isinstance(records, PrivateRecords):
            raise InputError(
                f"Expected PrivateRecords, got {type(records).__name__}; wrap them: PrivateRecords(X, y)."
            )
        at_least(1, n_releases=n_releases)
        self.records, self.sample_size, self.n_planned = records, len(records), n_releases
        self.queries, self.run_dir = list(queries), Path(run_dir)
        if config is not None:
            text = yaml.safe_dump(dict(config), sort_keys=False)
            self.before_ledger = partial(atomic_write, self.run_dir / "config.yaml", text.encode())
        if not resume:
            Budget.check_free(run_dir)
        elif not Budget.is_free(run_dir):
            self._checkpoint = {"ledger_head": "", "shared_head": ""}

    @staticmethod
    def is_free(run_dir: str | Path) -> bool:
        """Return whether a directory holds no ledger with releases."""
        with contextlib.suppress(InputError):
            Budget.check_free(run_dir)
            return True
        return False

    @staticmethod
    def check_free(run_dir: str | Path) -> None:
        """Raise an :class:`InputError` if a directory holds the ledger of a run."""
        Processes().broadcast(lambda: Ledger.check_free(Path(run_dir) / "ledger.jsonl"))

    def __enter__(self) -> Self:
        """Calibrate the queries and open the ledger."""
        if not self.queries:
            raise InputError("Expected at least one query in queries, got none.")
        self._open([(query, self.n_planned) for query in self.queries])
        return self

    def __exit__(self, *_: Any) -> None:
        """Close the budget and write ``privacy.json``."""
        self._close()
        self._write()
