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
from lightning.pytorch.utilities import rank_zero_info

from dpswd.budget import NOT_COVERED, Budget
from dpswd.errors import InputError
from dpswd.files import write_json
from dpswd.loss import DPSlicedWassersteinLoss
from dpswd.processes import Processes
from dpswd.queries import GaussianQuery
from dpswd.trainer_checks import batch_length, the_loss, the_queries, the_sampler

__all__ = ["NOT_COVERED", "PrivacyBudget"]


class PrivacyBudget(Budget, L.Callback):
    """Calibrates the noise of a module's :class:`DPSlicedWassersteinLoss` and keeps the run within the budget.

    Works with any LightningModule that holds exactly one such loss (and any number of
    :class:`dpswd.queries.GaussianQuery`, each of which gets its share of the budget for one release) and trains on a
    :class:`ReleaseLoader`
    (or any loader whose batch sampler is a :class:`FixedSizeSampler`).

    A training step may release its own private batch once, and nothing else: what the accountant assumes. A second
    release in one step (a closure that runs twice), one outside of training steps, and a loss that is hidden from
    ``module.modules()`` are refused. What cannot be seen from here is a module that keeps an old batch and releases it
    in place of the new one: do not.

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
            accountant assumes, the processes are not those of DDP, or the ledger does not fit the run.
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

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Refuses processes that would not make releases together."""
        if stage != "fit" or trainer.world_size == 1:
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
        """Stands guard: a release before training (in a sanity check of the validation loop) is refused."""
        self._ledger = self._made = self._shared = None
        self._watch(running=False)
        parts: list[DPSlicedWassersteinLoss | GaussianQuery] = [the_loss(pl_module), *the_queries(pl_module)]
        for part in parts:
            part.ledger = self
        self._directory = Path(self.run_dir or trainer.default_root_dir)
        if self._checkpoint is not None:  # even where no step is left to train
            Processes().from_first(lambda: self._check_record(self._directory / "ledger.jsonl").torn)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Calibrates and opens the ledger. Nothing has been released before this."""
        processes = Processes()
        loss, queries = the_loss(pl_module), the_queries(pl_module)
        sampler = processes.agree(lambda: the_sampler(trainer, loss.mechanism))
        self.sample_size = sampler.sample_size
        wanted = [(query.mechanism, 1) for query in queries] + [(loss.mechanism, sampler.num_releases)]
        self.plan, self._made = processes.from_first(lambda: self._open(wanted, [query.share for query in queries]))
        if self._ledger is not None and self._ledger.torn:
            rank_zero_info(
                f"The last line of {self._ledger.path} is torn: a crash cut it off before its release was made; it is "
                "not counted, and the next line replaces it."
            )
        for part, (mechanism, _) in zip((*queries, loss), self.plan, strict=True):
            part.mechanism = mechanism
        self._epsilon_of = {}
        self._watch(running=True)
        processes.agree(self._write)
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
        self._watch(running=False)

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
        """What a checkpoint keeps: the budget and how many releases the ledger must show at least."""
        head = self._ledger.head if self._ledger else ""
        shared = {"shared_head": self._shared.head} if self._shared is not None else {}
        return {**self.budget, "releases": self.releases, "planned": self.planned, "ledger_head": head, **shared}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Marks the run as resumed."""
        self._checkpoint = state_dict

    def _write(self) -> None:
        if self._ledger is not None:  # on the first process
            write_json(self._directory / "privacy.json", self._statement())
