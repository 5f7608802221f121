"""Lightning callback that keeps a training run within its privacy budget."""

import contextlib
import math
from pathlib import Path
from typing import Any, TypeVar

import lightning as L
import torch
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import RunningStage
from torch import nn
from torch.utils.data import DataLoader, Dataset

from dpswd._distributed import Processes
from dpswd._progress import say
from dpswd._provenance import mark_runs, seen_runs
from dpswd._validate import at_least
from dpswd.budget.budget import RunBudget
from dpswd.errors import BudgetExceededError, DpswdError, InputError
from dpswd.loss import DPSlicedWassersteinLoss
from dpswd.mechanism import Mechanism
from dpswd.queries import GaussianQuery
from dpswd.records import PrivateBatch
from dpswd.release import Recorder, Releasing
from dpswd.sampling import ReleaseLoader

__all__ = ["PrivacyBudget"]

P = TypeVar("P", bound=nn.Module)

_MOST_ENTRIES = 1000  # plain values in a hyperparameter; more may be records


class PrivacyBudget(RunBudget, L.Callback):
    """Calibrates the noise of a module's releases and keeps the run within the budget.

    The module has one :class:`~dpswd.DPSlicedWassersteinLoss`, or queries of all records, or both. The training loader
    is a :class:`~dpswd.ReleaseLoader`; its number of releases is the plan, whatever ``max_epochs`` and ``max_steps``
    say, and training ends when the plan is used up. Each query has its share of the budget; the
    loss, or without a loss the last query, has the remainder.

    A module may hand tensors of its own loader to the loss instead: give ``sample_size`` and ``n_releases``. Ledger,
    ``privacy.json`` and report call such a run conditional and name the conditions.

    Several processes (``strategy="ddp"``) make every release together: N, B, T and epsilon are those of one process;
    rank 0 keeps the ledger. Every rank generates public records of its own, and the gradients are averaged.

    Args:
        target_epsilon: Budget of this run.
        target_delta: Budget of this run; well below 1 / N.
        accountant: ``"pld"`` (exact) or ``"rdp"`` (autodp's bound).
        run_dir: Directory of ``ledger.jsonl``, ``privacy.json`` and ``releases/``; the trainer's ``default_root_dir``
            if not given.
        shared_ledger: Ledger of several runs on the same records, made by ``dpswd ledger create``, whose header states
            their total budget. The whole plan of this run is charged to it before the first release.
        sample_size: Number N of records, where tensors are handed over.
        n_releases: Number T of releases, where tensors are handed over.

    Raises:
        InputError: At the start of training, if budget, module, loader, processes, ledger or checkpoint do not fit.

    Example:
        >>> budget = PrivacyBudget(target_epsilon=10.0, target_delta=1e-5)  # L.Trainer(callbacks=[budget], ...)
        >>> budget.target_epsilon
        10.0
    """

    def __init__(
        self,
        target_epsilon: float,
        target_delta: float,
        accountant: str = "pld",
        run_dir: str | None = None,
        shared_ledger: str | None = None,
        sample_size: int | None = None,
        n_releases: int | None = None,
    ) -> None:
        super().__init__(target_epsilon, target_delta, accountant, shared_ledger)
        if (sample_size is None) != (n_releases is None):
            raise InputError(
                "Expected sample_size and n_releases together, for tensors that are handed over, got one."
            )
        if sample_size is not None:
            at_least(1, sample_size=sample_size, n_releases=n_releases)
        self._given_run_dir, self._handed_over = run_dir, (sample_size, n_releases)
        self.epsilon = 0.0
        self._trainer: L.Trainer | None = None
        self._earlier: list[
            Recorder | None
        ] = []  # recorders of the parts that had made releases before the run
        self._n_used_before = 0

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Move this callback to the front, and become the recorder of the module's losses and queries."""
        others = [callback for callback in trainer.callbacks if callback is not self]  # type: ignore[attr-defined]
        if any(isinstance(callback, PrivacyBudget) for callback in others):
            raise InputError(
                "Expected one PrivacyBudget among the trainer's callbacks, got several; keep one."
            )
        trainer.callbacks = [self, *others]  # type: ignore[attr-defined]  # a new list: Lightning iterates over the old
        self._trainer = trainer
        parts = _parts(pl_module, Releasing)
        if stage == "fit":
            if trainer.world_size != 1 and not isinstance(trainer.strategy, DDPStrategy):
                got = f"{type(trainer.strategy).__name__}; use ddp, or trainer.devices=1"
                raise InputError(
                    f"Expected trainer.strategy=ddp for {trainer.world_size} processes, got {got}."
                )
            self._checkpoint, self._n_used_before = None, 0
            self._reset()
        self._earlier = [part.recorder for part in parts if part.n_releases]
        for part in parts:
            part.recorder = self

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Refuse records among the hyperparameters, modules with releases, and checkpoints of other runs."""
        _check_hyperparameters(pl_module, getattr(trainer, "datamodule", None))
        if self._checkpoint is None and trainer.ckpt_path is not None:
            got = f"{trainer.ckpt_path}, whose weights may depend on private records; start a new run without it"
            raise InputError(f"Expected a checkpoint of a run within a PrivacyBudget, got {got}.")
        if self._earlier and (self._checkpoint is None or None in self._earlier):
            remedy = "release in training steps only, and start with a new module, or resume from the checkpoint"
            raise InputError(
                f"Expected a module without releases before the run, got some; {remedy}."
            )
        for part in _parts(pl_module, Releasing):  # made in the module's own hooks
            part.recorder = self
        self.weights_from_runs = seen_runs(pl_module)
        self.run_dir = Path(self._given_run_dir or trainer.default_root_dir)
        if self._checkpoint is not None:  # also where no step is left to train
            Processes().broadcast(lambda: self._read_ledger().head)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Calibrate the noise and open the ledger."""
        losses, queries = (
            _parts(pl_module, DPSlicedWassersteinLoss),
            _parts(pl_module, GaussianQuery),
        )
        if len(losses) > 1 or not (losses or queries):
            got = f"{len(losses)} losses in {type(pl_module).__name__}; make them attributes of the module"
            raise InputError(
                f"Expected one DPSlicedWassersteinLoss or queries of all records, got {got}."
            )
        loss = losses[0] if losses else None
        loader: Any = trainer.train_dataloader
        batch_size = None if loss is None else loss.mechanism.batch_size
        if isinstance(loader, ReleaseLoader):
            self.records, self.sample_size, n_releases = (
                loader.records,
                len(loader.records),
                loader.n_releases,
            )
            loader.n_done = lambda: trainer.fit_loop.epoch_loop.batch_progress.current.ready
            if batch_size not in (None, loader.batch_size):
                raise InputError(
                    f"Expected batch_size={batch_size} of the loader, got {loader.batch_size}; make it equal."
                )
        elif None not in self._handed_over:
            self.records, (self.sample_size, n_releases) = None, self._handed_over  # type: ignore[assignment]
        else:
            got = f"{type(loader).__name__}; for tensors give PrivacyBudget sample_size and n_releases"
            raise InputError(
                f"Expected a training loader of private batches (dpswd.ReleaseLoader), got {got}."
            )
        parts: list[Any] = [(query, 1) for query in queries]
        self._open(parts if loss is None else [*parts, (loss, n_releases)])
        mark_runs(pl_module, [self.run])
        processes = Processes()
        processes.run_on_all(self._write)
        if processes.rank:  # latent codes: seed_everything gives all ranks the same seed
            torch.manual_seed(torch.initial_seed() + processes.rank)

    def check(self, mechanism: Mechanism) -> None:
        """Raise BudgetExceededError unless a release is allowed now: in a fit, after the noise is calibrated."""
        stage = None if self._trainer is None else self._trainer.state.stage
        if stage not in (None, RunningStage.TRAINING):
            got = f"{stage.value}; use the last release there: loss.distance(released, public)"
            raise BudgetExceededError(
                f"Expected releases in training steps only, got one in {got}."
            )
        super().check(mechanism)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """End the run where the plan is used up, as in a further epoch; raise if all releases were lost in a crash."""
        if not isinstance(batch, PrivateBatch) or not len(batch) or not self._used_up:
            return
        if not self._n_used_before:
            got = (
                "none: all planned releases are in the ledger, but a crash lost their noisy values"
            )
            raise BudgetExceededError(
                f"Expected a release to train on, got {got}. Start a new run."
            )
        if not trainer.should_stop:
            trainer.should_stop = True
            raise StopIteration  # ends the epoch: Lightning ignores the return value of a callback

    @property
    def _used_up(self) -> bool:
        """Whether the loss has made its planned releases, and none of them waits in a file."""
        mechanism, planned = self.plan[-1]
        return mechanism.batch_size is not None and self._n_used(mechanism) >= planned

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Show epsilon beside the loss."""
        self._n_used_before = self._n_used(self.mechanism)
        self.epsilon = self._spent()
        pl_module.log("epsilon", self.epsilon, prog_bar=True, batch_size=1)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """End the run where the plan is used up."""
        if self._used_up:
            trainer.should_stop = True

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write ``privacy.json``, and say what the plan cost if fewer releases were made, or that it ended the run."""
        self._write()
        if self._used_up and trainer.global_step < trainer.estimated_stepping_batches < math.inf:
            asked = f"step {trainer.global_step} of {trainer.estimated_stepping_batches}"
            say(f"All {self.plan[-1][1]} planned releases are made; the run ends at {asked}.")
        if self._ledger is not None:
            self.epsilon, planned = (
                self._header["guarantee"]["epsilon"],
                self._header["planned_releases"],
            )
            if self.n_releases < planned:
                made = f"{self.n_releases} of {planned} planned releases"
                say(f"The run made {made}. The whole plan is counted: epsilon {self.epsilon:.4g}.")

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Free the directory for the next run."""
        self._close()

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Write ``privacy.json`` when a run breaks off."""
        with contextlib.suppress(DpswdError):  # report the original exception
            self._write()
        self._close()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint holds: the last lines of the ledgers, which they must contain, and a count."""
        if self._ledger is None and self._checkpoint is not None:
            return dict(self._checkpoint)
        heads = [each.head if each is not None else "" for each in (self._ledger, self._shared)]
        return {"ledger_head": heads[0], "shared_head": heads[1], "used": self._n_used_before}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Mark the run as resumed."""
        self._checkpoint, self._n_used_before = state_dict, state_dict["used"]


def _check_hyperparameters(*owners: Any) -> None:
    """Refuse what may hold records among hyperparameters, which every checkpoint contains."""
    for owner in owners:
        for name, value in dict(getattr(owner, "hparams", None) or {}).items():
            if _n_entries(value) > _MOST_ENTRIES:
                got = f"{name}, a {type(value).__name__}, in hparams of {type(owner).__name__}"
                remedy = f"which checkpoints contain; call save_hyperparameters(ignore=[{name!r}])"
                raise InputError(f"Expected hyperparameters without records, got {got}, {remedy}.")


def _n_entries(value: Any) -> float:
    """Return the number of plain values in a hyperparameter; infinity for an array, a frame, a data set or a loader."""
    if isinstance(value, dict | list | tuple | set):
        return sum(map(_n_entries, value.values() if isinstance(value, dict) else value))
    is_array = hasattr(value, "__array__") and getattr(value, "ndim", 0) > 0
    return math.inf if is_array or isinstance(value, Dataset | DataLoader) else 1


def _parts(module: nn.Module, kind: type[P]) -> list[P]:
    return [child for child in module.modules() if isinstance(child, kind)]
