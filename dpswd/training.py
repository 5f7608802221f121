"""Lightning callback that keeps a training run within its privacy budget.

(The only core module besides the command line that imports Lightning.)

The budget goes in, the noise comes out: nobody sets sigma by hand. Where a budget is given, the callback

1. reads N, B and the number T of releases off the training loader, which must draw fresh fixed-size subsets;
2. calibrates sigma so that T releases cost at most (target_epsilon, target_delta), or takes it from the ledger of the
   run that is resumed;
3. is the loss's ledger: every release is written down before it is made, and refused beyond T;
4. shows epsilon beside the loss and writes ``privacy.json``.
"""

import hashlib
import json
import math
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
from torch import Tensor
from torch.utils.data import DataLoader

from dpswd import __version__
from dpswd._validate import positive, probability
from dpswd.accounting import PrivacyAccountant, calibrate_sigma
from dpswd.accounting.ledger import Ledger
from dpswd.errors import BudgetExceededError, InputError
from dpswd.loss import DPSlicedWassersteinLoss
from dpswd.mechanism import Mechanism, ProjectionMechanism
from dpswd.sampling import FixedSizeSampler

__all__ = ["NOT_COVERED", "PrivacyBudget", "ReleaseLoader", "write_json"]

NOT_COVERED = [
    "Choices made after looking at the private records: architecture, hyperparameters, number of steps, selection.",
    "Evaluation: accuracies are measured on test records that the guarantee does not cover.",
    "Floating-point arithmetic: the noise is a 53-bit approximation of the Gaussian of the proofs.",
    "Side channels: running time, memory, and error messages about private records (finite records are assumed).",
]


def write_json(path: Path, content: Any) -> None:
    """Writes JSON so that a reader sees the old file or the new one, never half of it.

    Raises:
        InputError: If the directory cannot be written.
    """
    partial = path.with_suffix(path.suffix + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(content, indent=2) + "\n")
        os.replace(partial, path)
    except OSError as error:
        raise InputError(f"Expected to write {path}, got: {error.strerror}; choose a writable directory.") from None


class ReleaseLoader(DataLoader[Any]):
    """A loader over a :class:`FixedSizeSampler` that a resumed run continues at the right step.

    What it saves is the number of steps taken. The subsets themselves can be neither saved nor repeated.
    """

    def __init__(self, dataset: Any, sampler: FixedSizeSampler) -> None:
        super().__init__(dataset, batch_sampler=sampler, collate_fn=_identity)  # type: ignore[arg-type]
        self._steps_taken = sampler.start

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            self._steps_taken += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Returns the number of steps taken."""
        return {"start": self._steps_taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continues after as many steps as were taken."""
        sampler: Any = self.batch_sampler
        sampler.start = self._steps_taken = state["start"]


def _identity(batch: Any) -> Any:
    return batch


class PrivacyBudget(L.Callback):
    """Calibrates the noise of a module's :class:`DPSlicedWassersteinLoss` and keeps the run within the budget.

    Works with any LightningModule that holds exactly one such loss and trains on a :class:`ReleaseLoader`
    (or any loader whose batch sampler is a :class:`FixedSizeSampler`).

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
        self.planned = 0
        self.before_ledger: Callable[[], None] | None = None
        self._checkpoint: dict[str, Any] | None = None
        self._ledger: Ledger | None = None
        self._running = False
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
    def releases(self) -> int:
        """Releases written down so far, in this run and in those it resumes."""
        return self._ledger.n_releases if self._ledger else 0

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stands guard: a release before training (in a sanity check of the validation loop) is refused."""
        self._ledger, self._running = None, False
        _the_loss(pl_module).ledger = self

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Calibrates and opens the ledger. Nothing has been released before this."""
        loss = _the_loss(pl_module)
        sampler = _the_sampler(trainer, loss.mechanism)
        self._directory = Path(self.run_dir or trainer.default_root_dir)
        self.sample_size, self.planned = sampler.sample_size, sampler.num_releases
        path = self._directory / "ledger.jsonl"
        if self._checkpoint is None:
            self.mechanism = self._calibrate(loss.mechanism)
            self._facts = self._state()  # whatever can fail does so before anything is written
            if self.before_ledger is not None:
                self.before_ledger()
            self._ledger = Ledger.create(path, self._header(self.mechanism))
        else:
            self._ledger = Ledger.open_existing(path)
            self.mechanism = self._resume(loss.mechanism)
            self._facts = self._state()
        loss.mechanism = self.mechanism
        self._epsilon_of = {}
        self._running = True
        self._write()

    def record(self, mechanism: Mechanism) -> None:
        """Writes a release down before it is made. Called by the loss.

        Raises:
            BudgetExceededError: If the planned releases have all been made, or the mechanism is another one.
        """
        if self._ledger is None:
            raise BudgetExceededError(
                "Expected no release before training starts, got one; the noise is not calibrated yet."
            )
        if mechanism != self.mechanism:
            raise BudgetExceededError(
                "Expected the mechanism that the budget was calibrated for, got another one; do not change it in a run."
            )
        if self.releases >= self.planned:
            raise BudgetExceededError(
                f"Expected at most {self.planned} releases within epsilon={self.target_epsilon:g}, got one more; "
                "the budget is used up."
            )
        self._ledger.record(mechanism, self.sample_size)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Stops the run before a step that the budget does not cover (after a crash that wasted releases).

        Where the trainer goes on all the same (``min_steps``), the loss refuses the release.
        """
        if _size(batch) and self.releases >= self.planned and not trainer.should_stop:
            trainer.should_stop = True
            raise StopIteration  # ends the epoch: Lightning ignores what a callback returns here

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Shows epsilon beside the loss."""
        self.epsilon = self._spent()
        pl_module.log("epsilon", self.epsilon, prog_bar=True, batch_size=1)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Writes ``privacy.json`` for the releases that were planned."""
        self._write()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Leaves ``privacy.json`` as it stands when a run breaks off."""
        if self._running:
            self._write()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: the budget and how many releases the ledger must show at least."""
        head = self._ledger.head if self._ledger else ""
        return {**self.budget, "releases": self.releases, "planned": self.planned, "ledger_head": head}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Marks the run as resumed."""
        self._checkpoint = state_dict

    def _calibrate(self, mechanism: ProjectionMechanism) -> ProjectionMechanism:
        sigma = calibrate_sigma(
            mechanism,
            self.sample_size,
            self.planned,
            target_epsilon=self.target_epsilon,
            target_delta=self.target_delta,
            accountant=self.accountant,
        )
        return mechanism.replace(sigma=sigma)

    def _header(self, mechanism: ProjectionMechanism) -> dict[str, Any]:
        plan = {**self.budget, "sample_size": self.sample_size, "planned_releases": self.planned}
        config = self._directory / "config.yaml"
        digest = hashlib.sha256(config.read_bytes()).hexdigest() if config.is_file() else None
        facts = {"version": __version__, "config_sha256": digest, **plan, "private": mechanism.is_private}
        return {**facts, "run": secrets.token_hex(8)}  # two runs of one plan have different ledgers

    def _resume(self, mechanism: ProjectionMechanism) -> ProjectionMechanism:
        assert self._ledger is not None
        assert self._checkpoint is not None
        plan = {**self.budget, "sample_size": self.sample_size, "planned_releases": self.planned}
        for name, value in plan.items():
            if self._ledger.header.get(name) != value:
                raise InputError(
                    f"Expected {name}={self._ledger.header.get(name)!r} as in the ledger of the run that is resumed, "
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
        if not (groups := self._ledger.groups()):
            return self._calibrate(mechanism)
        written = groups[0][0]
        if not isinstance(written, ProjectionMechanism) or written.replace(sigma=1.0) != mechanism.replace(sigma=1.0):
            raise InputError("Expected the mechanism of the run that is resumed, got another one; keep its config.")
        return written

    def _account(self, releases: int) -> PrivacyAccountant:
        return PrivacyAccountant(self.accountant).step(
            self.mechanism, sample_size=self.sample_size, num_releases=releases
        )

    def _spent(self) -> float:
        """Epsilon of the releases made, rounded up to the next of a few counts (an account takes a second)."""
        if not self.releases:
            return 0.0
        count = min(self.planned, 2 ** math.ceil(math.log2(self.releases)))
        if count not in self._epsilon_of:
            self._epsilon_of[count] = self._account(count).get_epsilon(self.target_delta)
        return self._epsilon_of[count]

    def _state(self) -> dict[str, Any]:
        """What ``privacy.json`` says of the plan."""
        account = self._account(self.planned).resolve(self.target_delta)
        mu, regret = account.get_mu_and_regret()
        return {
            "private": self.mechanism.is_private,
            "sound": account.sound,
            "epsilon": account.get_epsilon(self.target_delta),
            "delta": self.target_delta,
            "mu": mu,
            "regret": regret,
            **self.budget,
            "planned_releases": self.planned,
            "sample_size": self.sample_size,
            "neighboring_relation": "replace-one",
            "mechanism": self.mechanism.to_dict(),
            "assumptions": account.assumptions,
            "not_covered": NOT_COVERED,
            "version": __version__,
        }

    def _write(self) -> None:
        write_json(self._directory / "privacy.json", {**self._facts, "releases_made": self.releases})


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
    if trainer.overfit_batches:  # type: ignore[attr-defined]
        raise InputError("Expected overfit_batches=0, got a repeated batch, which the accountant does not cover.")
    return sampler


def _size(batch: Any) -> int:
    """Number of private records in a batch, which may be a tensor or a sequence or mapping of tensors."""
    if isinstance(batch, Tensor):
        return len(batch)
    values = list(batch.values()) if isinstance(batch, dict) else list(batch)
    return _size(values[0]) if values else 0
