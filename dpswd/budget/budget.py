"""Privacy budget of a run: calibration, releases, resume and statement.

This module knows no framework.

A run goes through these steps. It *opens* with a setting (:class:`RunSetting`): rank 0 calibrates a
plan, a list of mechanisms with their numbers of releases (:mod:`dpswd.budget.plan`), or reads that
of an interrupted run, and sends the state (:class:`RunState`) to all ranks. Before each release the
loss or query asks the budget (:meth:`RunBudget.before_release`), which writes it to the ledger
(:meth:`RunBudget.record`) before the noise is drawn. At the end the run *closes*, and is stated in
``privacy.json``.

:class:`Budget` is for code of one's own and the one-shot methods. Trainings by Lightning use
:class:`dpswd.PrivacyBudget`, which has a :class:`RunBudget` and opens it at the start of training.

Where several processes work together, rank 0 keeps the run directory
(:mod:`dpswd.budget.run_directory`); all ranks count, and each of them can refuse.
"""

import dataclasses
import hashlib
import math
import secrets
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml  # type: ignore[import-untyped]
from torch import Tensor

from dpswd import __version__
from dpswd._distributed import Processes, check_joined
from dpswd._files import atomic_write
from dpswd._public_facts import ONE_RECORD
from dpswd._validate import at_least
from dpswd._versions import package_versions
from dpswd.accounting.guarantee import Guarantee
from dpswd.accounting.ledger import CONDITIONS, HANDED_OVER, Ledger
from dpswd.accounting.shared_ledger import SharedLedger, statement
from dpswd.budget.earlier_runs import (
    EarlierRun,
    PublicFacts,
    find_earlier_runs,
    remember_run,
    warn_of_earlier_runs,
)
from dpswd.budget.plan import Plan, ReleaseRequest, Target
from dpswd.budget.run_directory import Recovered, ResumePoint, RunDirectory, StoredRelease
from dpswd.budget.statement import RunStatement
from dpswd.errors import BudgetExceededError, InputError, PrivacyWarning
from dpswd.mechanism import Mechanism
from dpswd.records import PrivateRecords, check_handle
from dpswd.release import Recorder, Releasing, check_same_records

__all__ = ["NOISE_FREE", "Budget", "differences"]

# Said on the screen and in the config of a run with epsilon = inf.
NOISE_FREE = (
    "NOT PRIVATE: target_epsilon=inf adds no noise to any release; use it on public stand-ins of "
    "records only."
)

# Said before anything else of a run whose noise has a fixed seed.
FIXED_SEED = (
    "NOT PRIVATE: a fixed noise_seed makes the noise of this run repeatable; it is for tests only, "
    "leave it out."
)

# How to resume a run of a Budget.
_RESUME = "resume=True (--resume)"

# Entries of config.yaml that may differ in a resumed run: the name of the records, since their file
# may have been renamed, and the list of public facts that were taken from the records, since the
# user may have stated them in the meantime.
_CONFIG_MAY_CHANGE = {"records.name", "records.taken"}


@dataclass(frozen=True)
class RunSetting:
    """What a run reads, and where it is written.

    Attributes:
        run_dir: The run directory.
        sample_size: Number N of records; of units, where units are stated.
        records: The records; ``None`` if the caller hands tensors over.
        weights_from_runs: Identifiers of earlier runs on whose releases the weights of the module
            depend (:mod:`dpswd._provenance`); their guarantees compose with that of this run.
        before_ledger: Called before the ledger is written; writes ``config.yaml``.
        resume_point: What the checkpoint of a resumed run says; ``None`` for a new run.
    """

    run_dir: Path
    sample_size: int
    records: PrivateRecords | None
    weights_from_runs: frozenset[str] = frozenset()
    before_ledger: Callable[[], None] | None = None
    resume_point: ResumePoint | None = None

    @property
    def public_facts(self) -> PublicFacts | None:
        """Public facts of the records; ``None`` if the caller hands tensors over."""
        return None if self.records is None else PublicFacts.of(self.records)

    @property
    def protects(self) -> str:
        """What neighbours differ in: one record, or one person with several."""
        if self.records is None:
            return ONE_RECORD
        return self.records.protects

    def of_units(self, mechanism: Mechanism) -> Mechanism:
        """Return a mechanism with the sensitivity to all records of a unit together."""
        if self.records is None:
            return mechanism
        return dataclasses.replace(mechanism, per_unit=self.records.per_unit)


@dataclass(frozen=True)
class RunState:
    """State of a run that rank 0 has started or resumed; it is sent to all ranks.

    Attributes:
        header: Header of the ledger: what the run states.
        plan: The calibrated plan.
        guarantee: Epsilon, delta, mu and further facts of the plan.
        n_made: Number of releases in the ledger, by mechanism.
        recovered: What earlier processes of the run left behind.
    """

    header: dict[str, Any]
    plan: Plan
    guarantee: Guarantee
    n_made: dict[Mechanism, int]
    recovered: Recovered


class RunBudget(Recorder):
    """Plans the releases of a run and keeps them within its budget.

    It is the part that :class:`Budget` and :class:`dpswd.PrivacyBudget` have in common.

    Args:
        target: The budget.
        shared_ledger: Ledger of several runs on the same records, or ``None``.
        check_moment: Called before each release; raises if no release is allowed at this moment.
        resume: How to resume a run, for messages.
    """

    def __init__(
        self,
        target: Target,
        shared_ledger: str | Path | None = None,
        check_moment: Callable[[], None] | None = None,
        resume: str = "",
    ) -> None:
        self.target = target
        self.shared_ledger = shared_ledger
        self._check_moment = check_moment
        self._how_to_resume = resume
        self._setting: RunSetting | None = None
        self._state: RunState | None = None
        self._directory: RunDirectory | None = None  # on rank 0
        self._n_made: Counter[Mechanism] = Counter()
        self._stored: list[StoredRelease] = []  # of earlier processes, not asked for so far
        # Mechanism of the last release of an interrupted run whose value a crash lost: it is in the
        # ledger, and its noise is drawn again.
        self._to_redraw: Mechanism | None = None
        self._is_running = False
        self._has_warned = False  # of a fixed seed
        # No thread may release between the check of another thread and its ledger entry.
        self._threads = threading.Lock()

    @property
    def target_epsilon(self) -> float:
        """Budget epsilon of this run, together with ``target_delta``."""
        return self.target.epsilon

    @property
    def target_delta(self) -> float:
        """Budget delta of this run."""
        return self.target.delta

    @property
    def accountant(self) -> str:
        """Name of the accountant."""
        return self.target.accountant

    @property
    def mu(self) -> float:
        """Budget of Gaussian differential privacy.

        Queries and structure get their shares of it.
        """
        return self.target.mu

    @property
    def run_id(self) -> str:
        """Identifier of the run; empty before its ledger is opened."""
        return "" if self._state is None else str(self._state.header["run"])

    @property
    def plan(self) -> Plan:
        """The calibrated plan.

        Raises:
            InputError: If no run has been started.
        """
        return self._opened_state.plan

    @property
    def mechanism(self) -> Mechanism:
        """The calibrated mechanism of the loss, or without a loss of the last query.

        It is the last part of the plan. A training makes its releases step by step, after those of
        all queries, so that they are the ones that progress is shown of.
        """
        return self.plan.mechanism

    @property
    def n_releases(self) -> int:
        """Releases in the ledger, by this process and by those that it resumes."""
        return sum(self._n_made.values())

    @property
    def heads(self) -> tuple[str, str]:
        """Hashes of the last lines of both ledgers, for a checkpoint.

        The ledgers are that of the run and the shared one; a hash is empty without its ledger. A
        run that resumes from the checkpoint is refused if a ledger does not contain the line.
        """
        if self._directory is None:
            return "", ""
        ledger = self._directory.ledger
        return ledger.own.head, "" if ledger.shared is None else ledger.shared.head

    @property
    def notice(self) -> str:
        """``NOT PRIVATE`` and why; empty for a private run, and before a run has started."""
        return "" if self._state is None else self._state.guarantee.notice

    @property
    def keeps_ledger(self) -> bool:
        """Whether this process writes to a ledger: on rank 0 of a run that has started."""
        return self._directory is not None

    @property
    def _opened_state(self) -> RunState:
        """The state of the run.

        Raises:
            InputError: If no run has been started.
        """
        if self._state is None:
            raise InputError(
                "Expected a run within this budget, got none; call statement() after its start."
            )
        return self._state

    # Recorder: called by the loss and the queries, on every rank

    def before_release(
        self, mechanism: Mechanism, records: PrivateRecords | None
    ) -> dict[str, Tensor] | None:
        """Check that a release is allowed now.

        A stored release is returned if an earlier process of this run has made it.
        """
        with self._threads:
            self._check_records(records)
            for release in self._stored:
                if release.mechanism == mechanism:
                    self._stored.remove(release)
                    return release.tensors
            self.check(mechanism)
            return None

    def record(self, mechanism: Mechanism) -> None:
        """Write a release to the ledger, before its noise is drawn.

        If it raises, the release must not be made.
        """
        with self._threads:
            self.check(mechanism)
            is_redraw = self._to_redraw == mechanism
            self._to_redraw = None
            if self._directory is None:  # on ranks above 0
                if not is_redraw:  # a redraw is counted already
                    self._n_made[mechanism] += 1
                return
            try:
                if is_redraw:
                    self._directory.record_redraw()
                else:
                    is_stored = self.plan.is_stored(mechanism)
                    self._directory.record(mechanism, is_stored=is_stored)
            finally:
                # Also after an error: the line may be in the ledger, which is what counts.
                self._n_made = self._directory.count_releases()
            self._remember_run()

    def store(self, mechanism: Mechanism, tensors: dict[str, Tensor]) -> None:
        """Write the noisy values of the last release, on rank 0, before they are returned."""
        if self._directory is not None and self.plan.is_stored(mechanism):
            with self._threads:
                self._directory.store(tensors, self.notice)

    def check(self, mechanism: Mechanism) -> None:
        """Raise BudgetExceededError unless a release of this mechanism is allowed.

        It is allowed if the run has started and the plan has a further release of the mechanism.
        """
        if self._check_moment is not None:
            self._check_moment()
        if not self._is_running:
            raise BudgetExceededError(
                "Expected a release within a run of its budget, got one outside of it, which no "
                "ledger would count; make it inside of 'with budget:', or of the training."
            )
        n_planned = self.plan.count(mechanism)
        if n_planned == 0:
            raise BudgetExceededError(
                "Expected a mechanism of the plan of this budget, got one that is not in it; pass "
                "its query or loss to the budget."
            )
        if self._n_made[mechanism] >= n_planned and self._to_redraw != mechanism:
            raise BudgetExceededError(
                f"Expected at most {n_planned} releases, got a further one: the budget is used up; "
                "plan more n_releases in a new run."
            )

    def n_used(self, mechanism: Mechanism) -> int:
        """Return the number of releases of a mechanism that were returned.

        A release that waits in a file, or is to be drawn again, does not count.
        """
        n_waiting = sum(release.mechanism == mechanism for release in self._stored)
        n_unfinished = 1 if self._to_redraw == mechanism else 0
        return self._n_made[mechanism] - n_waiting - n_unfinished

    def _check_records(self, records: PrivateRecords | None) -> None:
        """Raise an InputError unless a release reads the records of the run."""
        if not self._is_running or self._setting is None:
            return  # check() refuses the release
        if records is self._setting.records:
            return
        if self._setting.records is None:
            raise InputError(
                "Expected tensors, as planned, got a handle; train on a ReleaseLoader of it, and "
                "leave out sample_size of PrivacyBudget."
            )
        if records is None:
            raise InputError(
                "Expected the records of this budget, got a tensor; pass "
                "PrivateBatch(records, batch_size) of its handle."
            )
        raise InputError(
            "Expected the records of this budget, got another handle; pass the one that the budget "
            "or the loader has."
        )

    def _remember_run(self) -> None:
        """Let later runs of this process know that this one has made a release."""
        if self._setting is None:
            return
        public_facts = self._setting.public_facts
        if public_facts is not None:
            mu = _guaranteed_mu(self._opened_state.guarantee)
            remember_run(public_facts, self.run_id, self._setting.run_dir, mu)

    # Opening

    def open(self, setting: RunSetting, modules: Sequence[tuple[Releasing[Any], int]]) -> None:
        """Start or resume a run, together with the other ranks, and calibrate its modules.

        What can be refused is refused before a file is written.

        Args:
            setting: What the run reads, and where it is written.
            modules: Queries, and a loss as the last one, each with its number of releases. Each
                gets the calibrated mechanism, and this budget as its recorder.
        """
        check_joined()  # otherwise each process of a launcher would spend a budget of its own
        self.warn_of_fixed_seed([module for module, _ in modules])
        requests = []
        for module, n_releases in modules:
            mechanism = setting.of_units(module.mechanism)
            requests.append(ReleaseRequest(mechanism, n_releases, module.share))
        if setting.records is not None:
            check_same_records(setting.records)
        self._setting = setting
        self._set_state(Processes().run_on_rank_0(self._open_directory, setting, requests))
        for (module, _), planned in zip(modules, self.plan.parts, strict=True):
            module.mechanism = planned.mechanism  # has its sigma now
            module.recorder = self
        self._is_running = True

    def warn_of_fixed_seed(self, modules: Iterable[Releasing[Any]]) -> None:
        """Warn once, on rank 0, if the noise of a module has a fixed seed."""
        has_seed = any(module.mechanism.noise_seed is not None for module in modules)
        if has_seed and not self._has_warned and Processes().rank == 0:
            self._has_warned = True
            warnings.warn(FIXED_SEED, PrivacyWarning, stacklevel=2)

    def read(self, setting: RunSetting) -> None:
        """Read the ledger of a resumed run, so that the run can be stated.

        Nothing is opened for writing. A training whose steps are all done resumes in this way.
        """
        self._setting = setting
        self._set_state(Processes().run_on_rank_0(self._read, setting))

    def close(self) -> None:
        """End the run: refuse further releases and unlock the directory."""
        self._is_running = False
        if self._directory is not None:
            self._directory.unlock()

    def _set_state(self, state: RunState) -> None:
        """Set the state of a run that rank 0 has opened."""
        self._state = state
        self._n_made = Counter(state.n_made)
        self._stored = list(state.recovered.stored)
        self._to_redraw = state.recovered.unfinished

    def _open_directory(self, setting: RunSetting, requests: Sequence[ReleaseRequest]) -> RunState:
        """Start or resume the run, on rank 0."""
        directory = RunDirectory(setting.run_dir)
        try:
            directory.lock()
            self.target.check_sample_size(setting.sample_size)
            shared = None
            if self.shared_ledger is not None:
                shared = SharedLedger.open_existing(self.shared_ledger)
            if setting.resume_point is None:
                state = self._start(directory, setting, shared, requests)
            else:
                state = self._resume(directory, setting, setting.resume_point, shared, requests)
        except BaseException:
            directory.unlock()
            raise
        self._directory = directory
        return state

    def _start(
        self,
        directory: RunDirectory,
        setting: RunSetting,
        shared: SharedLedger | None,
        requests: Sequence[ReleaseRequest],
    ) -> RunState:
        """Calibrate the plan and write the header of the ledger."""
        directory.check_free(self._how_to_resume)
        known_runs = set() if shared is None else set(shared.runs)
        _check_weights(setting.weights_from_runs - known_runs)
        plan = Plan.calibrate(requests, self.target, setting.sample_size)
        account = plan.account()
        guarantee = account.guarantee(self.target.delta)  # may fail: before any file is written
        if shared is not None:
            shared.check(account.history)
            shared.check_unit(setting.protects)
        if self.target.is_noise_free:
            warnings.warn(NOISE_FREE, PrivacyWarning, stacklevel=2)
        earlier_runs: dict[str, EarlierRun] = {}
        if setting.public_facts is not None:
            earlier_runs = find_earlier_runs(setting.public_facts, setting.run_dir, known_runs)
            mu = _guaranteed_mu(guarantee)
            warn_of_earlier_runs(setting.public_facts, earlier_runs, mu, self.target.delta)
        if setting.before_ledger is not None:
            setting.before_ledger()
        guarantee = dataclasses.replace(guarantee, unit=setting.protects)
        header = self._header(setting, plan, guarantee)
        if earlier_runs:
            header["earlier_runs"] = sorted(earlier_runs)
        directory.create(header, shared)
        return RunState(directory.ledger.own.header, plan, guarantee, {}, Recovered())

    def _resume(
        self,
        directory: RunDirectory,
        setting: RunSetting,
        point: ResumePoint,
        shared: SharedLedger | None,
        requests: Sequence[ReleaseRequest],
    ) -> RunState:
        """Read plan and stored releases from the directory of the interrupted run."""
        own = directory.read(point)
        _check_same_settings(own.header, self._settings(setting))
        if setting.public_facts is not None and "classes" in own.header:  # version 0.3 wrote none
            _check_same_settings(own.header, setting.public_facts.to_dict())
        plan = Plan.from_header(own.header)
        if not plan.matches(requests):
            raise InputError(_other_releases(own.header.get("version"), plan, requests))
        recovered = directory.resume(own, shared, plan, point)
        return self._resumed_state(own, plan, recovered)

    def _read(self, setting: RunSetting) -> RunState:
        """Read the ledger of a resumed run, on rank 0."""
        if setting.resume_point is None:
            raise InputError("Expected the checkpoint of a run, got none; start the run first.")
        own = RunDirectory(setting.run_dir).read(setting.resume_point)
        _check_same_settings(own.header, self.target.to_dict())
        return self._resumed_state(own, Plan.from_header(own.header), Recovered())

    def _resumed_state(self, own: Ledger, plan: Plan, recovered: Recovered) -> RunState:
        """Return the state of a resumed run.

        Its guarantee is computed from the plan and not read, since the header may have been edited.
        """
        guarantee = plan.account().guarantee(plan.target.delta)
        n_made = {mechanism: count for mechanism, _, count in own.groups()}
        return RunState(own.header, plan, guarantee, n_made, recovered)

    # Statements

    def _settings(self, setting: RunSetting) -> dict[str, Any]:
        """Return the entries of the ledger's header that a resumed run must have again."""
        return {
            **self.target.to_dict(),
            "sample_size": setting.sample_size,
            "records": HANDED_OVER if setting.records is None else "behind a handle",
            "unit": setting.protects,
            "shared": self.shared_ledger is not None,
        }

    def _header(self, setting: RunSetting, plan: Plan, guarantee: Guarantee) -> dict[str, Any]:
        """Return the header of a new ledger."""
        config = setting.run_dir / "config.yaml"
        config_sha256 = None
        if config.is_file():
            config_sha256 = hashlib.sha256(config.read_bytes()).hexdigest()
        public_facts: dict[str, Any] = {}
        if setting.public_facts is not None:
            public_facts = setting.public_facts.to_dict()
        if setting.records is not None and setting.records.taken:
            public_facts["taken"] = list(setting.records.taken)
        return {
            "run": secrets.token_hex(8),  # two runs of one plan have different ledgers
            "version": __version__,
            "versions": package_versions(),
            "config_sha256": config_sha256,
            **self._settings(setting),
            **public_facts,
            "guarantee": guarantee.to_dict(),
            "private": plan.is_private,
            "planned_releases": plan.n_releases,
            "plan": [part.to_dict() for part in plan.parts],
        }

    @property
    def epsilon(self) -> float:
        """Epsilon of the whole plan, which the run costs even if it stops early.

        Raises:
            InputError: If no run has been started.
        """
        epsilon = self._opened_state.guarantee.epsilon
        return math.inf if epsilon is None else epsilon

    def spent_epsilon(self) -> float:
        """Return an upper bound of the epsilon of the releases so far.

        The number is for a line about the progress only. A run costs its whole plan even if it
        stops early, since the decision to stop may depend on the releases. The number to publish is
        :attr:`epsilon`. After the first release, those of all parts of the plan but the last count
        as made.
        """
        if self.n_releases == 0:
            return 0.0
        return self.plan.epsilon_after(self._n_made[self.mechanism])

    def spent_by_accountant(self) -> dict[str, float]:
        """Return :meth:`spent_epsilon` by each accountant.

        The dictionary is empty without subsampling, where the accountants hardly differ. An
        accountant without a bound is left out.
        """
        if self.n_releases == 0:
            return dict.fromkeys(self.plan.epsilons_after(1), 0.0)
        return self.plan.epsilons_after(self._n_made[self.mechanism])

    def statement(self) -> RunStatement:
        """Return the content of ``privacy.json``.

        ``epsilon`` and ``mu`` cover ``run``. The weights have seen the releases of
        ``weights_from_runs``; the total of a shared ledger is in ``across_runs``. ``sound`` is
        False where the guarantee depends on ``conditions``.

        Raises:
            InputError: If no run has been started.
        """
        state = self._opened_state
        across_runs = None
        if self.keeps_ledger and self.shared_ledger is not None:
            across_runs = statement(SharedLedger.open_existing(self.shared_ledger))
        return RunStatement(
            guarantee=self._guarantee(state),
            target=state.plan.target,
            version=state.header["version"],
            sample_size=state.plan.sample_size,
            planned_releases=state.plan.n_releases,
            releases_made=self.n_releases,
            mechanism=self.mechanism,
            across_runs=across_runs,
            epsilon_by_accountant=state.plan.epsilon_by_accountant(),
        )

    def _guarantee(self, state: RunState) -> Guarantee:
        """Return the guarantee of the plan, with the conditions of the run."""
        conditions: tuple[str, ...] = ()
        if state.header["records"] == HANDED_OVER:
            conditions = tuple(CONDITIONS)
        weights_from_runs = {self.run_id}
        if self._setting is not None:
            weights_from_runs |= self._setting.weights_from_runs
        return dataclasses.replace(
            state.guarantee,
            sound=state.guarantee.sound and not conditions,
            unit=state.header.get("unit", ONE_RECORD),  # version 0.3 wrote none
            records=state.header["records"],
            conditions=conditions,
            run=self.run_id,
            weights_from_runs=tuple(sorted(weights_from_runs)),
        )

    def write_statement(self) -> None:
        """Write ``privacy.json``, on rank 0."""
        if self._directory is not None:
            self._directory.write_statement(self.statement())


class Budget(RunBudget):
    r"""Budget of a method that releases queries or a loss, as a context manager.

    Within the context each may be released ``n_releases`` times, queries with noise for their share
    of :math:`\mu^2` (Dong2022, Corollary 3.3). The directory then holds ledger.jsonl, privacy.json
    and the releases, and config.yaml if ``config`` is given.

    Args:
        records: The records; every query reads all of them.
        queries: The queries, or :class:`dpswd.DPSlicedWassersteinLoss`; the last one gets the rest
            of the budget. They may be set before the context is entered.
        target_epsilon: Budget of this run; infinity for no noise, on public stand-ins: NOT PRIVATE.
        target_delta: Budget of this run; below 1 / N.
        run_dir: The run directory; a directory with the ledger of a run is refused.
        n_releases: Planned releases of each query or loss.
        config: Plain values that describe the method, written to config.yaml.
        accountant: ``"pld"`` or ``"rdp"``.
        shared_ledger: Ledger of several runs on the same records, made by ``dpswd ledger create``.
        resume: Finish the run in ``run_dir``, if there is one. Its releases are read from their
            files. They are rows of the map ``rows=`` that made them, whose weights the caller saves
            and loads.

    Raises:
        InputError: If a share or a number is out of range, or the directory cannot be used.
        BudgetExceededError: In the context, if a release is not in the plan.

    Example:
        >>> import tempfile, torch
        >>> from dpswd.queries import ClassCounts
        >>> records = PrivateRecords(torch.rand(10, 3), torch.arange(10) % 2, classes=[0, 1])
        >>> query = ClassCounts(2)
        >>> with Budget(
        ...     records, [query], target_epsilon=1, target_delta=1e-5, run_dir=tempfile.mkdtemp()
        ... ) as budget:
        ...     released = query.release(records)
        >>> len(released), budget.n_releases, round(budget.epsilon, 2)
        (2, 1, 1.0)
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
        target = Target(target_epsilon, target_delta, accountant)
        super().__init__(target, shared_ledger, resume=_RESUME)
        check_handle(records)
        if isinstance(queries, Releasing):
            raise InputError(
                f"Expected queries as a list, got one {type(queries).__name__}; pass [query]."
            )
        at_least(1, n_releases=n_releases)
        self.records = records
        self.sample_size = len(records)
        target.check_sample_size(self.sample_size)  # before anything is said about the records
        self.n_planned = n_releases
        self.queries = list(queries)
        self.run_dir = Path(run_dir)
        self._config = _as_yaml(config)
        self._resume_point: ResumePoint | None = None
        if not resume:
            Budget.check_free(run_dir)
        elif not Budget.is_free(run_dir) or self._has_reservation():
            self._resume_point = ResumePoint()

    @staticmethod
    def is_free(run_dir: str | Path) -> bool:
        """Return whether a directory holds no ledger with releases."""
        try:
            Budget.check_free(run_dir)
        except InputError:
            return False
        return True

    @staticmethod
    def check_free(run_dir: str | Path) -> None:
        """Raise an :class:`InputError` if a directory holds the ledger of a run."""
        Processes().run_on_rank_0(RunDirectory(Path(run_dir)).check_free, _RESUME)

    def _has_reservation(self) -> bool:
        """Return whether the shared ledger has reserved budget for a run in ``run_dir``.

        A run that was killed before its first release is resumed therefore: a new run would
        reserve the same budget a second time.
        """
        if self.shared_ledger is None:
            return False
        directory = RunDirectory(self.run_dir)
        return bool(Processes().run_on_rank_0(directory.has_reserved, self.shared_ledger))

    def __enter__(self) -> Self:
        """Calibrate the queries and open the ledger."""
        if not self.queries:
            raise InputError("Expected at least one query in queries, got none; pass [query].")
        for query in self.queries:
            if not isinstance(query, Releasing):
                raise InputError(
                    "Expected queries of dpswd.queries, or a DPSlicedWassersteinLoss, in queries, "
                    f"got {type(query).__name__}; leave it out."
                )
        setting = RunSetting(
            self.run_dir,
            self.sample_size,
            self.records,
            before_ledger=self._write_config,
            resume_point=self._resume_point,
        )
        if self._resume_point is not None:
            Processes().run_on_rank_0(self._check_same_config)
        self.open(setting, [(query, self.n_planned) for query in self.queries])
        return self

    def __exit__(self, *_: object) -> None:
        """Close the budget and write ``privacy.json``."""
        self.close()
        self.write_statement()

    def _check_same_config(self) -> None:
        """Refuse to resume a run with other public facts or constants of the method.

        Its stored releases would be read as counts of other classes, or between other bounds.
        """
        path = self.run_dir / "config.yaml"
        if self._config is None or not path.is_file():
            return
        try:
            stored = yaml.safe_load(path.read_text(encoding="utf-8"))
            # Read as the file is, so that both have the types of YAML.
            current = yaml.safe_load(self._config)
        except yaml.YAMLError:
            return  # the ledger has the facts that the guarantee rests on
        for name, before, now in differences(stored, current):
            if name not in _CONFIG_MAY_CHANGE:
                raise InputError(
                    f"Expected {name}={before!r} as in {path} of the resumed run, got {now!r}; "
                    "resume with the settings of that run."
                )

    def _write_config(self) -> None:
        """Write ``config.yaml``, if the method is described."""
        if self._config is not None:
            text = self._config
            if self.target.is_noise_free:
                text = f"# {NOISE_FREE}\n{text}"
            atomic_write(self.run_dir / "config.yaml", text.encode())


def _as_yaml(config: Mapping[str, Any] | None) -> str | None:
    """Return a config as YAML, ``None`` for none; refuse what YAML cannot hold."""
    if config is None:
        return None
    try:
        text: str = yaml.safe_dump(dict(config), sort_keys=False)
    except yaml.YAMLError as error:
        raise InputError(
            f"Expected config of plain values, got a value that YAML cannot hold ({error}); "
            "convert it to a number, a text, a list or a dictionary of these."
        ) from None
    return text


def differences(before: Any, now: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield name, former and present value of what differs between two nested configs.

    The names come in the order of the former config, so that equal mistakes get equal messages.
    What only one of them has is left out, as versions differ in it.
    """
    if isinstance(before, dict) and isinstance(now, dict):
        for key in before:
            if key in now:
                yield from differences(before[key], now[key], f"{name}.{key}".lstrip("."))
    elif before != now:
        yield name, before, now


def _other_releases(version: Any, plan: Plan, requests: Sequence[ReleaseRequest]) -> str:
    """Return why a run that has planned other releases is not resumed.

    Args:
        version: Version that the ledger states. Another one may choose and name releases otherwise.
        plan: The plan in the ledger.
        requests: The releases that the resumed run needs.
    """
    if version in (None, __version__):
        planned, requested = plan.first_difference(requests)
        return (
            f"Expected {planned}, as in the ledger of the resumed run, got {requested}; resume "
            "with the settings of that run, whose noise was set for these releases. In a training, "
            "their number is n_releases of the loader or data module, or else the steps."
        )
    return (
        f"Expected the releases that dpswd {version} has planned for the interrupted run, got the "
        f"plan of dpswd {__version__}, which is another one; resume the run with dpswd {version}, "
        "or start a new run in another directory, whose budget adds up with this one."
    )


def _guaranteed_mu(guarantee: Guarantee) -> float | None:
    """Return the mu of a guarantee; ``None`` where a run is not private."""
    if not guarantee.private:
        return None
    return guarantee.mu


def _check_weights(foreign_runs: set[str] | frozenset[str]) -> None:
    """Raise an InputError if weights have seen runs beyond the shared ledger."""
    if not foreign_runs:
        return
    actual = f"weights from run {', '.join(sorted(foreign_runs))}"
    remedy = "start from new weights, or set shared_ledger to a ledger that contains these runs"
    raise InputError(
        f"Expected weights that no earlier private run has trained, got {actual}; {remedy}."
    )


def _check_same_settings(header: dict[str, Any], settings: dict[str, Any]) -> None:
    """Raise an InputError unless a resumed run has the settings of its ledger."""
    header = {"unit": ONE_RECORD, **header}  # version 0.3 wrote no unit
    for name, value in settings.items():
        if header.get(name) != value:
            expected = f"{name}={header.get(name)!r} as in the ledger of the resumed run"
            raise InputError(
                f"Expected {expected}, got {value!r}; resume with the settings of that run."
            )
