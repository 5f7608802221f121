"""The budget of a run: what it plans to release, with which noise, and who counts. Knows nothing of trainers.

The budget goes in, the noise comes out: nobody sets sigma by hand. Every release is written down before it is made, and
refused where the plan does not hold it. Where several processes train together, the first one keeps the ledger; all of
them count, and each refuses for itself.
"""

import dataclasses
import hashlib
import importlib.metadata
import math
import platform
import secrets
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpswd import __version__
from dpswd._files import DirectoryLock
from dpswd._validate import positive, probability
from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.calibrate import calibrate_sigma
from dpswd.accounting.ledger import Ledger, ReleaseGroup
from dpswd.accounting.shared import SharedBudget
from dpswd.errors import BudgetExceededError, InputError
from dpswd.loss import BudgetWatch
from dpswd.mechanism import GaussianMechanism, Mechanism, mechanism_from_dict

__all__ = ["NOT_COVERED", "Budget"]

_ONE_AT_A_TIME = threading.Lock()  # no thread may release between another one's look at the plan and its entry

Plan = list[tuple[Any, int]]  # (mechanism, number of releases); the loss stands last

PACKAGES = ("dp-accounting", "autodp", "gdpnum", "numpy", "scipy", "torch", "lightning")
OTHER_RUNS = "Other runs on the same records, resumed copies of this one included: their guarantees compose."
NOT_COVERED = [
    "Choices made after looking at the private records: architecture, hyperparameters, number of steps, selection.",
    "Evaluation: accuracies are measured on test records that the guarantee does not cover.",
    OTHER_RUNS,
    "Floating-point arithmetic: the noise is a 53-bit approximation of the Gaussian of the proofs.",
    "Side channels: running time, memory, and error messages about private records (finite records are assumed).",
]


class Budget:
    """Plans the releases of a run, and keeps them within (target_epsilon, target_delta).

    Args:
        target_epsilon: Budget of this run, together with
        target_delta: the probability.
        accountant: ``"pld"`` or ``"rdp"``.
        ledger: A ledger that several runs share.
        ledger_epsilon: Budget of all runs in it together.

    Raises:
        InputError: If a number is out of range.
    """

    _directory: Path
    sample_size: int

    def __init__(
        self,
        target_epsilon: float,
        target_delta: float,
        accountant: str,
        ledger: str | None = None,
        ledger_epsilon: float | None = None,
    ) -> None:
        positive(target_epsilon=target_epsilon)
        probability(target_delta=target_delta)
        PrivacyAccountant(accountant)
        if ledger_epsilon is not None:
            positive(ledger_epsilon=ledger_epsilon)
            if ledger is None:
                raise InputError("Expected a ledger for ledger_epsilon, got none; give its path.")
        self.target_epsilon, self.target_delta, self.accountant = target_epsilon, target_delta, accountant
        self.shared_path, self.shared_epsilon = ledger, ledger_epsilon
        self.plan: Plan = []
        self.before_ledger: Callable[[], None] | None = None
        self._checkpoint: dict[str, Any] | None = None
        self._ledger: Ledger | None = None
        self._shared: SharedBudget | None = None
        self._made: Counter[Mechanism] | None = None  # on every process; the first one also has the ledger
        self._facts: dict[str, Any] = {}
        self._run = ""
        self._lock = DirectoryLock()
        self._running = False
        self._permit = False
        self._epsilon_of: dict[int, float] = {}

    @property
    def budget(self) -> dict[str, Any]:
        """The budget as it stands in the ledger's header."""
        return {
            "target_epsilon": self.target_epsilon,
            "target_delta": self.target_delta,
            "accountant": self.accountant,
        }

    @property
    def planned(self) -> int:
        """Releases in the plan: those of the queries and those of the loss, which stands last in it."""
        return sum(count for _, count in self.plan)

    @property
    def mechanism(self) -> Mechanism:
        """The calibrated mechanism of the loss."""
        mechanism: Mechanism = self.plan[-1][0]
        return mechanism

    @property
    def releases(self) -> int:
        """Releases written down so far, in this run and in those it resumes."""
        return self._ledger.n_releases if self._ledger else sum((self._made or {}).values())

    def record(self, mechanism: Mechanism) -> None:
        """Writes a release down before it is made. Called by the loss and the queries, on every process.

        Raises:
            BudgetExceededError: What :meth:`check` raises.
            InputError: If it cannot be written down.
        """
        with _ONE_AT_A_TIME:
            self.check(mechanism)
            self._permit = self._permit and mechanism.batch_size is None
            if self._ledger is not None:
                self._ledger.record(mechanism, self.sample_size)
            if self._shared is not None and self._shared.ledger is not None:
                self._shared.record(mechanism, self.sample_size)
            if self._made is not None:
                self._made[mechanism] += 1

    def check(self, mechanism: Mechanism) -> None:
        """Says whether a release is allowed now, and changes nothing.

        Raises:
            BudgetExceededError: If the planned releases have all been made, this step has made its own, or the
                mechanism is another one.
        """
        if self._made is None and self._ledger is None:
            raise BudgetExceededError(
                "Expected no release before training starts, got one; the noise is not calibrated yet."
            )
        if mechanism.batch_size is not None and not self._permit:  # a query of all records needs no batch of its own
            raise BudgetExceededError(
                "Expected one release for the private batch of a training step, got another one; call the loss "
                "once per training_step (no closures that run it again, no validation or test steps)."
            )
        planned = sum(count for other, count in self.plan if other == mechanism)
        if not planned:
            raise BudgetExceededError(
                "Expected the mechanism that the budget was calibrated for, got another one; do not change it in a run."
            )
        if self._count(mechanism) >= planned:
            raise BudgetExceededError(
                f"Expected at most {planned} releases within epsilon={self.target_epsilon:g}, got one more; "
                "the budget is used up."
            )

    def _count(self, mechanism: Mechanism) -> int:
        if self._ledger is not None:
            return self._ledger.count(mechanism, self.sample_size)
        return self._made[mechanism] if self._made is not None else 0

    def _open(self, wanted: Plan, shares: list[float]) -> tuple[Plan, Counter[Mechanism]]:
        """Begins the run, or takes it up again; on the first process. Nothing is written before all is known to fit."""
        try:
            return self._opened(wanted, shares)
        except BaseException:
            self._lock.free()
            raise

    def _opened(self, wanted: Plan, shares: list[float]) -> tuple[Plan, Counter[Mechanism]]:
        path = self._directory / "ledger.jsonl"
        self._lock.take(self._directory)
        if self.shared_path is not None:
            if Path(self.shared_path).resolve() == path.resolve():
                raise InputError(f"Expected another file for the ledger of several runs, got this run's own, {path}.")
            arguments = self.shared_epsilon, self.target_delta, self.accountant
            self._shared = SharedBudget(self.shared_path, *arguments)
            self.target_epsilon = min(self.target_epsilon, self._shared.target_epsilon)
        ledger = self._begin(path, wanted, shares) if self._checkpoint is None else self._take_up(path, wanted)
        self._ledger = ledger
        made = Counter({mechanism: ledger.count(mechanism, self.sample_size) for mechanism, _ in self.plan})
        return self.plan, made

    def _begin(self, path: Path, wanted: Plan, shares: list[float]) -> Ledger:
        Ledger.check_free(path)
        self.plan = self._calibrate(wanted, shares)
        self._facts = self._state()  # whatever can fail does so before anything is written
        if self._shared is not None:
            self._shared.check(self._groups())
        if self.before_ledger is not None:
            self.before_ledger()
        header = self._header()
        ledger = Ledger.create(path, header)
        self._lock.take(self._directory)  # where there was no directory before
        if self._shared is not None:
            named = ("version", "config_sha256", "target_epsilon", "target_delta", "sample_size", "private", "plan")
            self._shared.reserve(self._run, {name: header[name] for name in named}, self._groups())
        return ledger

    def _groups(self) -> list[ReleaseGroup]:
        return [(mechanism, self.sample_size, count) for mechanism, count in self.plan]

    def _take_up(self, path: Path, wanted: Plan) -> Ledger:
        """Takes the plan from the ledger of the run that is resumed, which the module must still fit."""
        assert self._checkpoint is not None
        ledger = self._check_record(path)
        header = ledger.header
        plan: Plan = [(mechanism_from_dict(part["mechanism"]), part["n_releases"]) for part in header.get("plan", [])]
        stated = {**self.budget, "sample_size": self.sample_size, "planned_releases": sum(count for _, count in wanted)}
        for name, value in stated.items():
            if header.get(name) != value:
                raise InputError(
                    f"Expected {name}={header.get(name)!r} as in the ledger of the run that is resumed, "
                    f"got {name}={value!r}; start a new run for another budget or plan."
                )
        if _unnoised(plan) != _unnoised(wanted):
            raise InputError("Expected the mechanism of the run that is resumed, got another one; keep its config.")
        if bool(header.get("shared")) != (self._shared is not None):
            which, got = ("the", "none") if self._shared is None else ("no", "one")
            raise InputError(f"Expected {which} ledger of several runs as in the run that is resumed, got {got}.")
        self._run = str(header.get("run", ""))
        if self._shared is not None:
            self._shared.resume(self._run, self._checkpoint["releases"], self._checkpoint.get("shared_head", ""))
        self.plan = plan
        self._facts = self._state()
        return ledger

    def _check_record(self, path: Path) -> Ledger:
        """Reads the ledger of the run that is resumed; refuses one that knows less than the checkpoint."""
        assert self._checkpoint is not None
        ledger = Ledger.open_existing(path)
        if ledger.n_releases < self._checkpoint["releases"]:
            raise InputError(
                f"Expected at least {self._checkpoint['releases']} releases in {path} (the checkpoint's "
                f"count), got {ledger.n_releases}; the ledger was cut, so the run cannot go on."
            )
        if self._checkpoint["ledger_head"] not in ledger.heads:
            raise InputError(
                f"Expected the ledger of the run that is resumed at {path}, got another run's; "
                "resume in the directory of that run."
            )
        return ledger

    def _watch(self, *, running: bool) -> None:
        """While a budget runs, a loss that nobody keeps a ledger for is refused; afterwards there are no permits.

        And the directory is free for the next run.
        """
        if running != self._running:
            BudgetWatch.running += 1 if running else -1
        self._running, self._permit = running, False
        if not running:
            self._lock.free()

    def _calibrate(self, wanted: Plan, shares: list[float]) -> Plan:
        """Gives every query its share of the squared mu that the budget amounts to, and the loss what is left."""
        budget: dict[str, Any] = {**self.budget}
        if sum(shares) >= 1:
            raise InputError(f"Expected shares of the budget that add up to less than 1, got {sum(shares):g}.")
        plan: Plan = []
        spent: PrivacyAccountant | None = None
        if shares:
            one = GaussianMechanism(sensitivity=1.0, sigma=1.0)
            mu = 1 / calibrate_sigma(one, self.sample_size, 1, **budget)
            spent = PrivacyAccountant(self.accountant)
            for (query, count), share in zip(wanted[:-1], shares, strict=True):
                sigma = query.unit_sensitivity / (mu * math.sqrt(share))
                plan.append((dataclasses.replace(query, sigma=sigma), count))
                spent.step(plan[-1][0], sample_size=self.sample_size, n_releases=count)
        mechanism, releases = wanted[-1]
        sigma = calibrate_sigma(mechanism, self.sample_size, releases, spent=spent, **budget)
        return [*plan, (dataclasses.replace(mechanism, sigma=sigma), releases)]

    @property
    def _planned(self) -> dict[str, Any]:
        return {**self.budget, "sample_size": self.sample_size, "planned_releases": self.planned}

    def _header(self) -> dict[str, Any]:
        config = self._directory / "config.yaml"
        digest = hashlib.sha256(config.read_bytes()).hexdigest() if config.is_file() else None
        private = all(mechanism.is_private for mechanism, _ in self.plan)
        plan = [{"mechanism": mechanism.to_dict(), "n_releases": count} for mechanism, count in self.plan]
        versions = {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}
        facts = {"version": __version__, "versions": versions, "config_sha256": digest, **self._planned}
        facts |= {"private": private, "plan": plan}
        self._run = secrets.token_hex(8)  # two runs of one plan have different ledgers
        return {**facts, "run": self._run, **({"shared": True} if self._shared is not None else {})}

    def _account(self, releases: int | None = None) -> PrivacyAccountant:
        """Accounts for the plan, or for the queries in it and so many releases of the loss."""
        account = PrivacyAccountant(self.accountant)
        for mechanism, count in [*self.plan[:-1], (self.plan[-1][0], releases or self.plan[-1][1])]:
            account.step(mechanism, sample_size=self.sample_size, n_releases=count)
        return account

    def _spent(self) -> float:
        """Epsilon of the releases made, rounded up to the next of a few counts (an account takes a while)."""
        mechanism, planned = self.plan[-1]
        if not self.releases:
            return 0.0
        made = self._count(mechanism)
        count = min(planned, 2 ** math.ceil(math.log2(max(made, 1))))  # rounded up, also where only queries were made
        if count not in self._epsilon_of:
            self._epsilon_of[count] = self._account(count).get_epsilon(self.target_delta)
        return self._epsilon_of[count]

    def _state(self) -> dict[str, Any]:
        """What ``privacy.json`` says of the plan."""
        account = self._account().resolve(self.target_delta)
        mu, regret = account.get_mu_and_regret()
        return {
            "private": all(mechanism.is_private for mechanism, _ in self.plan),
            "sound": account.sound,
            "epsilon": account.get_epsilon(self.target_delta),
            "delta": self.target_delta,
            "mu": mu,
            "regret": regret,
            **self._planned,
            "neighboring_relation": "replace-one",
            "mechanism": self.mechanism.to_dict(),
            "assumptions": account.assumptions,
            "not_covered": NOT_COVERED,
            "version": __version__,
        }

    def _statement(self) -> dict[str, Any]:
        """What ``privacy.json`` says now: the plan, how far it got, and what it costs together with other runs."""
        facts = {**self._facts, "releases_made": self.releases}
        if self._shared is None:
            return facts
        together = self._shared.facts()
        others = [line for line in NOT_COVERED if line != OTHER_RUNS]
        return {**facts, "across_runs": together, "not_covered": others}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _unnoised(plan: Plan) -> list[tuple[Mechanism, int]]:
    return [(dataclasses.replace(mechanism, sigma=1.0), count) for mechanism, count in plan]
