"""Lightning callback that keeps a training run within its privacy budget.

Where a budget is given, the callback

1. reads N, B and the number T of releases off the training loader, which must draw fresh fixed-size subsets;
2. calibrates sigma so that T releases cost at most (target_epsilon, target_delta), or takes it from the ledger of the
   run that is resumed;
3. is the loss's ledger: every release is written down before it is made, and refused beyond T;
4. shows epsilon beside the loss and writes ``privacy.json``.
"""

import contextlib
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info

from dpswd._distributed import Processes
from dpswd._files import write_json
from dpswd.accounting.ledger import plan_of
from dpswd.errors import BudgetExceededError, InputError
from dpswd.mechanism import Mechanism
from dpswd.training.budget import NOT_COVERED, Budget
from dpswd.training.checks import batch_length, the_loss, the_parts, the_queries, the_sampler

__all__ = ["NOT_COVERED", "PrivacyBudget"]


class PrivacyBudget(Budget, L.Callback):
    """Calibrates the noise of a module's :class:`DPSlicedWassersteinLoss` and keeps the run within the budget.

    Works with any LightningModule that holds exactly one such loss (and any number of
    :class:`dpswd.queries.GaussianQuery`, each of which gets its share of the budget for one release) and trains on a
    :class:`ReleaseLoader`
    (or any loader whose batch sampler is a :class:`FixedSizeSampler`).

    A training step may release its own private batch once, and nothing else: what the accountant assumes. A second
    release in one step (a closure that runs twice), one outside of training steps, and a loss that is hidden from
    ``module.modules()`` are refused. So is any release from the ``setup`` hook on until the noise is set (other
    callbacks', such as a learning rate finder's, included: this one goes first, wherever it was put), any in
    ``validate``, ``test`` and ``predict``, a new run of a module that has made releases already, and a checkpoint that
    no such run wrote. What cannot be seen from here is a module that keeps an old batch and releases it in place of
    the new one: do not.

    Several processes (``strategy="ddp"``, ``use_distributed_sampler=False``) make every release together, see
    :mod:`dpswd.loss`: N, B, T and epsilon are those of one process; rank 0 keeps the ledger. The public side differs:
    every process generates records of its own, and their gradients are averaged.

    Args:
        target_epsilon: Budget, together with
        target_delta: the probability; choose it well below 1 / N.
        accountant: ``"pld"`` (exact) or ``"rdp"`` (autodp's bound).
        run_dir: Where ``ledger.jsonl`` and ``privacy.json`` go; the trainer's ``default_root_dir`` if not given.
        ledger: A further ledger, which several runs on the same records share; begun by the first of them. The whole
            plan of a run is charged to it before the run releases anything.
        ledger_epsilon: Budget of all runs in that ledger together, at ``target_delta``; that of the first one if not
            given. A run that would break it is refused; one that asks for more than all of it gets all of it.

    Raises:
        InputError: At the start of training, if the budget is out of range, the loader is not the one that the
            accountant assumes, the processes are not those of DDP, the module has made releases, or ledger or
            checkpoint do not fit the run.
    """

    def __init__(
        self,
        target_epsilon: float,
        target_delta: float,
        accountant: str = "pld",
        run_dir: str | None = None,
        ledger: str | None = None,
        ledger_epsilon: float | None = None,
    ) -> None:
        super().__init__(target_epsilon, target_delta, accountant, ledger, ledger_epsilon)
        self.run_dir = run_dir
        self.epsilon = 0.0
        self._stage = "fit"
        self._earlier = 0

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Goes first, and stands guard in every stage: until the noise is set nothing is released."""
        others = [callback for callback in trainer.callbacks if callback is not self]  # type: ignore[attr-defined]
        if any(isinstance(callback, PrivacyBudget) for callback in others):
            raise InputError("Expected one PrivacyBudget among the trainer's callbacks, got several; keep one.")
        trainer.callbacks = [self, *others]  # type: ignore[attr-defined]  # a new list: Lightning is walking the old one
        self._stage = TrainerFn(stage).value
        if stage == "fit":
            self._check_processes(trainer)
            self._ledger = self._made = self._shared = self._checkpoint = None
        parts = the_parts(pl_module)
        if stage == "fit" and any(part.n_releases and part.recorder is None for part in parts):
            raise InputError(
                "Expected a module that has made no releases before the fit, got one that made some which no ledger "
                "holds; release in training steps only, and begin with a new module."
            )
        self._earlier = sum(part.n_releases for part in parts)
        for part in parts:
            part.recorder = self
        self._watch(running=False)
        self._watch(running=True)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Ends the watch, and frees the directory for the next run."""
        self._watch(running=False)

    def check(self, mechanism: Mechanism) -> None:
        """Says whether a release is allowed now: never outside of a fit, and in one not before the noise is set.

        A refusal before training ends the watch by itself: Lightning's tuners put callbacks aside, on_exception too.

        Raises:
            BudgetExceededError: What :meth:`dpswd.training.budget.Budget.check` raises.
        """
        if self._stage != "fit":
            self._watch(running=False)
            raise BudgetExceededError(
                f"Expected no release outside of a fit, got one in {self._stage}; nothing there is accounted for."
            )
        if self._made is None and self._ledger is None:
            self._watch(running=False)
        super().check(mechanism)

    def _check_processes(self, trainer: L.Trainer) -> None:
        """Refuses processes that would not make releases together."""
        if trainer.world_size == 1:
            return
        if not isinstance(trainer.strategy, DDPStrategy):
            raise InputError(
                f"Expected trainer.strategy=ddp for {trainer.world_size} processes, got "
                f"{type(trainer.strategy).__name__}; use ddp, or trainer.devices=1."
            )
        if trainer._accelerator_connector.use_distributed_sampler:
            raise InputError(
                "Expected trainer.use_distributed_sampler=false with several processes, got true; the sampler of the "
                "loader draws one subset for all of them."
            )

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Takes what the module made in its own hooks under guard; refuses a new run of one that has released."""
        self._watch(running=True)
        the_loss(pl_module)
        if self._checkpoint is None and trainer.ckpt_path is not None:
            raise InputError(
                f"Expected a checkpoint of a run within a PrivacyBudget, got {trainer.ckpt_path}, which says nothing "
                "of releases; what is in it may come from private records. Begin a new run without it."
            )
        if self._checkpoint is None and self._earlier:
            raise InputError(
                f"Expected a module that has made no releases before a new run, got one with {self._earlier}; begin "
                "with a new module, or resume from the checkpoint."
            )
        for part in the_parts(pl_module):
            part.recorder = self
        self._directory = Path(self.run_dir or trainer.default_root_dir)
        if self._checkpoint is not None:  # even where no step is left to train
            Processes().broadcast(lambda: self._check_record(self._directory / "ledger.jsonl").torn)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Calibrates and opens the ledger. Nothing has been released before this."""
        processes = Processes()
        loss, queries = the_loss(pl_module), the_queries(pl_module)
        sampler = processes.run_on_all(lambda: the_sampler(trainer, loss.mechanism))
        self.sample_size = sampler.sample_size
        wanted = [(query.mechanism, 1) for query in queries] + [(loss.mechanism, sampler.n_releases)]
        self.plan, self._made = processes.broadcast(lambda: self._open(wanted, [query.share for query in queries]))
        if self._ledger is not None and self._ledger.torn:
            rank_zero_info(
                f"The last line of {self._ledger.path} is torn: a crash cut it off before its release was made; it is "
                "not counted, and the next line replaces it."
            )
        for part, (mechanism, _) in zip((*queries, loss), self.plan, strict=True):
            part.mechanism = mechanism
        self._epsilon_of = {}
        self._watch(running=True)
        processes.run_on_all(self._write)
        if processes.rank:  # the public side: seed_everything gave every process the same latent codes
            torch.manual_seed(torch.initial_seed() + processes.rank)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Stops the run before a step that the budget does not cover (after a crash that wasted releases).

        Where the trainer goes on all the same (``min_steps``), the loss refuses the release.
        """
        mechanism, planned = self.plan[-1]
        length = batch_length(batch)
        self._permit = length > 0  # one batch serves one release: the accountant counts on a fresh one
        if length and self._count(mechanism) >= planned and not trainer.should_stop:
            trainer.should_stop = True
            rank_zero_info(
                f"All {planned} planned releases have been made, those that a crash wasted included: the run ends at "
                f"step {trainer.global_step}."
            )
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
        self._write()
        self._permit = False

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Leaves ``privacy.json`` as it stands when a run breaks off."""
        if self._running:
            self._watch(running=False)
            with contextlib.suppress(InputError):  # what broke the run off is what must be said
                self._write()
        self._lock.free()

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Looks at the loader again: a data module may have made another one."""
        sampler = the_sampler(trainer, the_loss(pl_module).mechanism)
        if sampler.sample_size != self.sample_size:
            raise InputError(f"Expected {self.sample_size} records as planned, got a loader of {sampler.sample_size}.")

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: the budget and how many releases the ledger must show at least.

        A resumed run that has not opened its ledger yet, or never will since no step is left, hands on what it got.
        """
        if self._ledger is None and self._checkpoint is not None:
            return self._checkpoint
        head = self._ledger.head if self._ledger else ""
        shared = {"shared_head": self._shared.head} if self._shared is not None else {}
        return {**self.budget, "releases": self.releases, "planned": self.planned, "ledger_head": head, **shared}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Marks the run as resumed."""
        self._checkpoint = state_dict

    def statement(self) -> dict[str, Any]:
        """What ``privacy.json`` of this run says by now, for whoever hands its results out. On the first process.

        A resumed run that had no step left has opened no ledger; that of the run it resumes, which the checkpoint
        vouches for, has the plan then.

        Raises:
            InputError: If no run has been started.
        """
        if self._ledger is not None:
            return self._statement()
        if self._checkpoint is None:
            raise InputError("Expected a run within this PrivacyBudget, got none; call it when training is over.")
        ledger = self._check_record(self._directory / "ledger.jsonl")
        self.sample_size = ledger.header["sample_size"]
        self.plan = [(mechanism, count) for mechanism, _, count in plan_of(ledger.header)]
        return {**self._state(), "releases_made": ledger.n_releases}

    def _write(self) -> None:
        if self._ledger is not None:  # on the first process
            write_json(self._directory / "privacy.json", self._statement())
