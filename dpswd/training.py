"""Lightning callback that keeps a training run within its privacy budget.

(The only core module besides the command line that imports Lightning.)

The budget goes in, the noise comes out: nobody sets sigma by hand. Where a budget is given, the callback

1. reads N, B and the number T of releases off the training loader, which must draw fresh fixed-size subsets;
2. calibrates sigma so that T releases cost at most (target_epsilon, target_delta), or takes it from the ledger of the
   run that is resumed;
3. is the loss's ledger: every release is written down before it is made, and refused beyond T;
4. shows epsilon beside the loss and writes ``privacy.json``.
"""

import dataclasses
import hashlib
import math
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
from torch import Tensor

from dpswd import __version__
from dpswd._validate import positive, probability
from dpswd.accounting import PrivacyAccountant, calibrate_sigma
from dpswd.accounting.ledger import Ledger
from dpswd.errors import BudgetExceededError, InputError
from dpswd.files import write_json
from dpswd.loss import BudgetWatch, DPSlicedWassersteinLoss
from dpswd.mechanism import GaussianMechanism, Mechanism, ProjectionMechanism, mechanism_from_dict
from dpswd.queries import GaussianQuery
from dpswd.sampling import FixedSizeSampler

__all__ = ["NOT_COVERED", "PrivacyBudget"]

Plan = list[tuple[Any, int]]  # (mechanism, number of releases); the loss stands last

NOT_COVERED = [
    "Choices made after looking at the private records: architecture, hyperparameters, number of steps, selection.",
    "Evaluation: accuracies are measured on test records that the guarantee does not cover.",
    "Other runs on the same records, resumed copies of this one included: their guarantees compose.",
    "Floating-point arithmetic: the noise is a 53-bit approximation of the Gaussian of the proofs.",
    "Side channels: running time, memory, and error messages about private records (finite records are assumed).",
]


class PrivacyBudget(L.Callback):
    """Calibrates the noise of a module's :class:`DPSlicedWassersteinLoss` and keeps the run within the budget.

    Works with any LightningModule that holds exactly one such loss (and any number of
    :class:`dpswd.queries.GaussianQuery`, each of which gets its share of the budget for one release) and trains on a
    :class:`ReleaseLoader`
    (or any loader whose batch sampler is a :class:`FixedSizeSampler`).

    A training step may release its own private batch once, and nothing else: what the accountant assumes. A second
    release in one step (a closure that runs twice), one outside of training steps, and a loss that is hidden from
    ``module.modules()`` are refused. What cannot be seen from here is a module that keeps an old batch and releases it
    in place of the new one: do not.

    Args:
        target_epsilon: Budget, together with
        target_delta: the probability; choose it well below 1 / N.
        accountant: ``"pld"`` (exact) or ``"rdp"`` (autodp's bound).
        run_dir: Where ``ledger.jsonl`` and ``privacy.json`` go; the trainer's ``default_root_dir`` if not given.

    Raises:
        InputError: At the start of training, if the budget is out of range, the loader is not the one that the
            accountant assumes, there are several processes, or the ledger does not fit the run.
    """

    def __init__(
        self,
        target_epsilon: float,
        target_delta: float,
        accountant: str = "pld",
        run_dir: str | None = None,
    ) -> None:
        positive(target_epsilon=target_epsilon)
        probability(target_delta=target_delta)
        PrivacyAccountant(accountant)
        self.target_epsilon, self.target_delta, self.accountant = target_epsilon, target_delta, accountant
        self.run_dir = run_dir
        self.epsilon = 0.0
        self.plan: Plan = []
        self.before_ledger: Callable[[], None] | None = None
        self._checkpoint: dict[str, Any] | None = None
        self._ledger: Ledger | None = None
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
        return self._ledger.n_releases if self._ledger else 0

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stands guard: a release before training (in a sanity check of the validation loop) is refused."""
        self._ledger = None
        self._watch(running=False)
        parts: list[DPSlicedWassersteinLoss | GaussianQuery] = [_the_loss(pl_module), *_queries(pl_module)]
        for part in parts:
            part.ledger = self

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Calibrates and opens the ledger. Nothing has been released before this."""
        loss, queries = _the_loss(pl_module), _queries(pl_module)
        sampler = _the_sampler(trainer, loss.mechanism)
        self._directory = Path(self.run_dir or trainer.default_root_dir)
        self.sample_size = sampler.sample_size
        wanted = [(query.mechanism, 1) for query in queries] + [(loss.mechanism, sampler.num_releases)]
        path = self._directory / "ledger.jsonl"
        if self._checkpoint is None:
            self.plan = self._calibrate(wanted, [query.share for query in queries])
            self._facts = self._state()  # whatever can fail does so before anything is written
            if self.before_ledger is not None:
                self.before_ledger()
            self._ledger = Ledger.create(path, self._header())
        else:
            self._ledger = Ledger.open_existing(path)
            self.plan = self._resume(wanted)
            self._facts = self._state()
        for part, (mechanism, _) in zip((*queries, loss), self.plan, strict=True):
            part.mechanism = mechanism
        self._epsilon_of = {}
        self._watch(running=True)
        self._write()

    def record(self, mechanism: Mechanism) -> None:
        """Writes a release down before it is made. Called by the loss and the queries.

        Raises:
            BudgetExceededError: If the planned releases have all been made, or the mechanism is another one.
        """
        if self._ledger is None:
            raise BudgetExceededError(
                "Expected no release before training starts, got one; the noise is not calibrated yet."
            )
        if mechanism.batch_size is not None:  # a query of all records needs no batch of its own
            if not self._permit:
                raise BudgetExceededError(
                    "Expected one release for the private batch of a training step, got another one; call the loss "
                    "once per training_step (no closures that run it again, no validation or test steps)."
                )
            self._permit = False
        planned = sum(count for other, count in self.plan if other == mechanism)
        if not planned:
            raise BudgetExceededError(
                "Expected the mechanism that the budget was calibrated for, got another one; do not change it in a run."
            )
        if self._ledger.count(mechanism, self.sample_size) >= planned:
            raise BudgetExceededError(
                f"Expected at most {planned} releases within epsilon={self.target_epsilon:g}, got one more; "
                "the budget is used up."
            )
        self._ledger.record(mechanism, self.sample_size)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Stops the run before a step that the budget does not cover (after a crash that wasted releases).

        Where the trainer goes on all the same (``min_steps``), the loss refuses the release.
        """
        mechanism, planned = self.plan[-1]
        assert self._ledger is not None
        self._permit = _size(batch) > 0  # one batch serves one release: the accountant counts on a fresh one
        if _size(batch) and self._ledger.count(mechanism, self.sample_size) >= planned and not trainer.should_stop:
            trainer.should_stop = True
            raise StopIteration  # ends the epoch: Lightning ignores what a callback returns here

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Shows epsilon beside the loss."""
        self._permit = False
        self.epsilon = self._spent()
        pl_module.log("epsilon", self.epsilon, prog_bar=True, batch_size=1)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Writes ``privacy.json`` for the releases that were planned."""
        self._watch(running=False)
        self._write()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Leaves ``privacy.json`` as it stands when a run breaks off."""
        if self._running:
            self._watch(running=False)
            self._write()

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Looks at the loader again: a data module may have made another one."""
        sampler = _the_sampler(trainer, _the_loss(pl_module).mechanism)
        if sampler.sample_size != self.sample_size:
            raise InputError(f"Expected {self.sample_size} records as planned, got a loader of {sampler.sample_size}.")

    def _watch(self, *, running: bool) -> None:
        """While a budget runs, a loss that nobody keeps a ledger for is refused; afterwards there are no permits."""
        if running != self._running:
            BudgetWatch.running += 1 if running else -1
        self._running, self._permit = running, False

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: the budget and how many releases the ledger must show at least."""
        head = self._ledger.head if self._ledger else ""
        return {**self.budget, "releases": self.releases, "planned": self.planned, "ledger_head": head}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Marks the run as resumed."""
        self._checkpoint = state_dict

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
                spent.step(plan[-1][0], sample_size=self.sample_size, num_releases=count)
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
        plan = [{"mechanism": mechanism.to_dict(), "num_releases": count} for mechanism, count in self.plan]
        facts = {"version": __version__, "config_sha256": digest, **self._planned, "private": private, "plan": plan}
        return {**facts, "run": secrets.token_hex(8)}  # two runs of one plan have different ledgers

    def _resume(self, wanted: Plan) -> Plan:
        """Takes the plan from the ledger of the run that is resumed, which the module must still fit."""
        assert self._ledger is not None
        assert self._checkpoint is not None
        header = self._ledger.header
        plan: Plan = [(mechanism_from_dict(part["mechanism"]), part["num_releases"]) for part in header.get("plan", [])]
        stated = {**self.budget, "sample_size": self.sample_size, "planned_releases": sum(count for _, count in wanted)}
        for name, value in stated.items():
            if header.get(name) != value:
                raise InputError(
                    f"Expected {name}={header.get(name)!r} as in the ledger of the run that is resumed, "
                    f"got {name}={value!r}; start a new run for another budget or plan."
                )
        if self._ledger.n_releases < self._checkpoint["releases"]:
            raise InputError(
                f"Expected at least {self._checkpoint['releases']} releases in {self._ledger.path} (the checkpoint's "
                f"count), got {self._ledger.n_releases}; the ledger was cut, so the run cannot go on."
            )
        if (head := self._checkpoint["ledger_head"]) and head not in self._ledger.heads:
            raise InputError(
                f"Expected the ledger of the run that is resumed at {self._ledger.path}, got another run's; "
                "resume in the directory of that run."
            )
        if _unnoised(plan) != _unnoised(wanted):
            raise InputError("Expected the mechanism of the run that is resumed, got another one; keep its config.")
        return plan

    def _account(self, releases: int | None = None) -> PrivacyAccountant:
        """Accounts for the plan, or for the queries in it and so many releases of the loss."""
        account = PrivacyAccountant(self.accountant)
        for mechanism, count in [*self.plan[:-1], (self.plan[-1][0], releases or self.plan[-1][1])]:
            account.step(mechanism, sample_size=self.sample_size, num_releases=count)
        return account

    def _spent(self) -> float:
        """Epsilon of the releases made, rounded up to the next of a few counts (an account takes a while)."""
        assert self._ledger is not None
        mechanism, planned = self.plan[-1]
        made = self._ledger.count(mechanism, self.sample_size)
        if not self.releases:
            return 0.0
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

    def _write(self) -> None:
        write_json(self._directory / "privacy.json", {**self._facts, "releases_made": self.releases})


def _unnoised(plan: Plan) -> list[tuple[Mechanism, int]]:
    return [(dataclasses.replace(mechanism, sigma=1.0), count) for mechanism, count in plan]


def _queries(module: L.LightningModule) -> list[GaussianQuery]:
    return [child for child in module.modules() if isinstance(child, GaussianQuery)]


def _the_loss(module: L.LightningModule) -> DPSlicedWassersteinLoss:
    losses = [child for child in module.modules() if isinstance(child, DPSlicedWassersteinLoss)]
    if len(losses) != 1:
        raise InputError(
            f"Expected exactly one DPSlicedWassersteinLoss in {type(module).__name__}, got {len(losses)}; "
            "make it an attribute of the module."
        )
    return losses[0]


def _the_sampler(trainer: L.Trainer, mechanism: ProjectionMechanism) -> FixedSizeSampler:
    sampler = getattr(trainer.train_dataloader, "batch_sampler", None)
    if not isinstance(sampler, FixedSizeSampler):
        raise InputError(
            "Expected the training loader to draw fresh fixed-size subsets (batch_sampler=dpswd.FixedSizeSampler), got "
            f"{type(sampler).__name__}; shuffled epochs are not what the accountant assumes."
        )
    if sampler.batch_size != mechanism.batch_size:
        raise InputError(
            f"Expected the loader's batch_size to be the mechanism's, got {sampler.batch_size} and "
            f"{mechanism.batch_size}; make them equal."
        )
    if sampler.noise_seed is not None and mechanism.is_private:
        raise InputError("Expected secret batches, got a sampler with noise_seed; leave it out, or mark the mechanism.")
    if trainer.world_size != 1:
        raise InputError(f"Expected one process, got {trainer.world_size}; set trainer.devices to 1.")
    records: Any = getattr(trainer.train_dataloader, "dataset", None)
    if hasattr(records, "__len__") and len(records) != sampler.sample_size:
        raise InputError(
            f"Expected sample_size to be the number of records, got {sampler.sample_size} and {len(records)} records; "
            "make the sampler with len(dataset)."
        )
    if trainer.overfit_batches:  # type: ignore[attr-defined]
        raise InputError("Expected overfit_batches=0, got a repeated batch, which the accountant does not cover.")
    return sampler


def _size(batch: Any) -> int:
    """Number of private records in a batch, which may be a tensor or a sequence or mapping of tensors."""
    if isinstance(batch, Tensor):
        return len(batch)
    values = list(batch.values()) if isinstance(batch, dict) else list(batch)
    return _size(values[0]) if values else 0
