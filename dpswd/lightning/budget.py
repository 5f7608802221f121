"""Lightning callback that keeps a training run within its privacy budget."""

import contextlib
import math
import secrets
import shlex
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import RunningStage
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch import nn
from torch.utils.data import DataLoader, Dataset

from dpswd._distributed import Processes
from dpswd._progress import say
from dpswd._provenance import mark_runs, seen_runs, track_all
from dpswd._validate import at_least
from dpswd.accounting.rounding import round_up
from dpswd.budget.budget import RunBudget, RunSetting
from dpswd.budget.plan import Plan, Target
from dpswd.budget.run_directory import ResumePoint
from dpswd.budget.statement import RunStatement
from dpswd.errors import BudgetExceededError, DpswdError, InputError, PrivacyWarning
from dpswd.lightning._options import (
    refuse_epochs,
    refuse_trial_run,
    warn_of_few_steps,
    warn_of_idle_early_stopping,
    warn_of_validation,
)
from dpswd.lightning.checkpoints import LastCheckpoint
from dpswd.mechanism import Mechanism
from dpswd.queries import GaussianQuery
from dpswd.records import PrivateBatch, PrivateRecords
from dpswd.release import Recorder, Releasing
from dpswd.sampling import ReleaseLoader

__all__ = ["PrivacyBudget"]

# Said on the screen and in the checkpoints of a run that reads records as they are.
UNPROTECTED = (
    "NOT PRIVATE: the module makes no release, and target_epsilon=inf lets it read its records as "
    "they are; use it on public stand-ins of records only."
)

# How to resume a training.
_RESUME = "ckpt_path= (--ckpt_path), with a checkpoint of it"

# How a run whose plan is used up trains for more steps.
_LARGER_EVERY = (
    "The releases cover n_releases x every steps: a larger every of the loader or data module "
    "trains for more steps at the same budget."
)

P = TypeVar("P", bound=nn.Module)

_DIGITS = 4  # significant digits of an epsilon on the screen
_MOST_ENTRIES = 1000  # plain values in a hyperparameter; more may be records


class PrivacyBudget(L.Callback):
    """Calibrates the noise of a module's releases and keeps the run within the budget.

    The module has one :class:`~dpswd.DPSlicedWassersteinLoss`, or queries of all records, or both.
    The training loader is a :class:`~dpswd.ReleaseLoader`, alone or in a dictionary of loaders or a
    ``CombinedLoader`` beside loaders of public records; its number of releases is the plan,
    whatever ``max_epochs`` and ``max_steps`` say, and training ends when the plan is used up. Each
    query has its share of the budget; the loss, or without a loss the last query, has the
    remainder.

    A module may hand tensors of its own loader to the loss instead: give ``sample_size`` and
    ``n_releases``. Ledger, ``privacy.json`` and report call such a run conditional and name the
    conditions.

    Several processes (``strategy="ddp"``) make every release together: N, B, T and epsilon are
    those of one process; rank 0 keeps the ledger. Every rank generates public records of its own,
    and the gradients are averaged.

    Args:
        target_epsilon: Budget of this run; infinity for no noise, on public stand-ins of records:
            NOT PRIVATE. A module that makes no release is trained with infinity only; such a run
            has no ledger.
        target_delta: Budget of this run; well below 1 / N.
        accountant: ``"pld"`` (exact) or ``"rdp"`` (autodp's bound).
        run_dir: Directory of ``ledger.jsonl``, ``privacy.json`` and ``releases/``; the trainer's
            ``default_root_dir`` if not given.
        shared_ledger: Ledger of several runs on the same records, made by ``dpswd ledger create``,
            whose header states their total budget. The whole plan of this run is charged to it
            before the first release.
        sample_size: Number N of records, where tensors are handed over; they have no units.
        n_releases: Number T of releases, where tensors are handed over.

    Raises:
        InputError: At the start of training, if budget, module, loader, processes, ledger or
            checkpoint do not fit.

    Example:
        >>> budget = PrivacyBudget(target_epsilon=10.0, target_delta=1e-5)
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
        self._target = Target(target_epsilon, target_delta, accountant)
        if (sample_size is None) != (n_releases is None):
            raise InputError(
                "Expected sample_size and n_releases together, for tensors that are handed over, "
                "got one."
            )
        self._handed_over: _Source | None = None
        if sample_size is not None and n_releases is not None:
            at_least(1, sample_size=sample_size, n_releases=n_releases)
            self._handed_over = _Source(None, sample_size, n_releases)
        self.shared_ledger = shared_ledger
        self.run_dir: Path | None = None if run_dir is None else Path(run_dir)
        # Of the releases so far while the run trains; of its whole plan after the last step, and
        # before the first step of a resumed run.
        self.epsilon = 0.0
        # Called before the ledger is written; dpswd fit writes config.yaml by it.
        self.before_ledger: Callable[[], None] | None = None
        self.weights_from_runs: set[str] = set()
        self.is_unprotected = False  # whether the module reads records without a release
        self._states_run_dir = run_dir is not None
        self._budget = self._new_budget()
        self._trainer: L.Trainer | None = None
        # Recorders of the losses and queries that had made releases before the run.
        self._earlier_recorders: list[Recorder | None] = []
        self._resume_point: ResumePoint | None = None
        self._n_used_before = 0
        self._ends_run = False  # whether the plan, and no option of the trainer, ends the run
        self._has_loader = False  # whether a ReleaseLoader has the records
        self._has_warned_of_validation = False

    # Facts of the budget

    @property
    def releases_before_training(self) -> bool:
        """Whether every release of the plan is made once, before the first step."""
        return all(part.n_releases == 1 for part in self.plan.parts)

    @property
    def target_epsilon(self) -> float:
        """Budget of this run."""
        return self._target.epsilon

    @property
    def target_delta(self) -> float:
        """Budget of this run."""
        return self._target.delta

    @property
    def accountant(self) -> str:
        """Name of the accountant."""
        return self._target.accountant

    @property
    def stated_sample_size(self) -> int | None:
        """Number N of records that was stated for tensors; ``None`` without tensors."""
        if self._handed_over is None:
            return None
        return self._handed_over.sample_size

    @property
    def mu(self) -> float:
        """Budget of Gaussian differential privacy."""
        return self._target.mu

    @property
    def run_id(self) -> str:
        """Identifier of the run; empty before its ledger is opened."""
        return self._budget.run_id

    @property
    def plan(self) -> Plan:
        """The calibrated plan of the run."""
        return self._budget.plan

    @property
    def mechanism(self) -> Mechanism:
        """The calibrated mechanism of the loss, or of the last query."""
        return self._budget.mechanism

    @property
    def n_releases(self) -> int:
        """Releases in the ledger, by this process and by those that it resumes."""
        return self._budget.n_releases

    @property
    def notice(self) -> str:
        """``NOT PRIVATE`` and why; empty for a private run, and before a run has started."""
        if self.is_unprotected:
            return UNPROTECTED
        return self._budget.notice

    def statement(self) -> RunStatement:
        """Return the content of ``privacy.json``; see :meth:`dpswd.Budget.statement`."""
        return self._budget.statement()

    def _new_budget(self) -> RunBudget:
        """Return the budget of a run that has not started."""
        return RunBudget(self._target, self.shared_ledger, self._check_moment, _RESUME)

    # Hooks of Lightning

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Move this callback to the front, and connect its budget to the module.

        The budget then records the releases of the module.
        """
        callbacks = trainer.callbacks  # type: ignore[attr-defined]  # Lightning sets it at run time
        others = [callback for callback in callbacks if callback is not self]
        if any(isinstance(callback, PrivacyBudget) for callback in others):
            raise InputError(
                "Expected one PrivacyBudget among the trainer's callbacks, got several; keep one."
            )
        # A new list: Lightning iterates over the old.
        trainer.callbacks = [self, *others]  # type: ignore[attr-defined]
        self._trainer = trainer
        if stage == "fit":
            if trainer.world_size != 1 and not isinstance(trainer.strategy, DDPStrategy):
                raise InputError(
                    f"Expected trainer.strategy=ddp for {trainer.world_size} processes, got "
                    f"{type(trainer.strategy).__name__}; use ddp, or trainer.devices=1."
                )
            self._resume_point = None
            self._n_used_before = 0
            self._ends_run = False
            self._has_warned_of_validation = False
            self._budget = self._new_budget()
        releasing = _modules_of(pl_module, Releasing)
        self._earlier_recorders = [module.recorder for module in releasing if module.n_releases]
        for module in releasing:
            module.recorder = self._budget
        if stage == "fit":
            self._budget.warn_of_fixed_seed(releasing)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Refuse to start a run whose guarantee would not hold.

        Records among the hyperparameters, modules with releases, and checkpoints of other runs are
        refused.
        """
        _check_hyperparameters(pl_module, getattr(trainer, "datamodule", None))
        if not self._target.is_noise_free:
            refuse_trial_run(trainer)
        is_resumed = self._resume_point is not None
        if trainer.ckpt_path is not None and not is_resumed:
            raise InputError(
                f"Expected a checkpoint of a run within a PrivacyBudget, got {trainer.ckpt_path}, "
                "whose weights may depend on private records; start a new run without it."
            )
        if self._earlier_recorders and not is_resumed and None not in self._earlier_recorders:
            raise InputError(
                "Expected a module that no run has trained, got one with the releases of an "
                "earlier run; make a new module for a new run, or pass ckpt_path= (--ckpt_path), "
                "a checkpoint of that run, to go on with it."
            )
        if self._earlier_recorders and (not is_resumed or None in self._earlier_recorders):
            raise InputError(
                "Expected a module without releases before the run, got some; release in training "
                "steps only, and start with a new module, or resume from the checkpoint."
            )
        for module in _modules_of(pl_module, Releasing):  # some are made by the module's own hooks
            module.recorder = self._budget
        self.weights_from_runs = seen_runs(pl_module)
        if not self._states_run_dir:
            self.run_dir = Path(trainer.default_root_dir)
        has_releases = bool(_modules_of(pl_module, Releasing))
        self.is_unprotected = self._target.is_noise_free and not has_releases
        self.epsilon = 0.0
        if self.is_unprotected:
            self.epsilon = math.inf
        elif is_resumed:  # also where no step is left to train
            Processes().run_on_rank_0(self._check_ledger, trainer.ckpt_path)
            self._budget.read(self._setting(_Source(None, 0, 0)))
            self.epsilon = self._budget.epsilon

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Calibrate the noise and open the ledger."""
        if self.is_unprotected:
            self._start_unprotected(pl_module)
            return
        queries = _modules_of(pl_module, GaussianQuery)
        losses = [loss for loss in _modules_of(pl_module, Releasing) if loss not in queries]
        if len(losses) > 1 or not (losses or queries):
            remedy = "make it an attribute of the module"
            if losses:
                remedy = "keep one, or train in a loop of your own, whose Budget takes several"
            raise InputError(
                "Expected one DPSlicedWassersteinLoss or queries of all records, got "
                f"{len(losses)} losses in {type(pl_module).__name__}; {remedy}."
            )
        source = self._source(trainer, losses)
        self._has_loader = source.records is not None
        if self._has_loader:
            warn_of_idle_early_stopping(trainer)
        if losses and not self._target.is_noise_free:
            warn_of_few_steps(trainer, source.n_releases, every=source.every, after=source.after)
        modules: list[tuple[Releasing[Any], int]] = [(query, 1) for query in queries]
        modules += [(loss, source.n_releases) for loss in losses]
        self._budget.open(self._setting(source), modules)
        mark_runs(pl_module, [self.run_id])
        processes = Processes()
        processes.run_on_all(self._budget.write_statement)
        self._say_where()
        if processes.rank:  # other latent codes than on rank 0: seed_everything seeds all alike
            torch.manual_seed(torch.initial_seed() + processes.rank)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """End the run where the plan is used up, as in a further epoch.

        An error is raised if all releases were lost in a crash.
        """
        if self.is_unprotected or not _has_release(batch) or not self._is_used_up:
            return
        if not self._n_used_before:
            raise BudgetExceededError(
                "Expected a release to train on, got none: all planned releases are in the ledger, "
                "but a crash lost their noisy values. Start a new run."
            )
        if not trainer.should_stop:
            self._end_run(trainer)
            raise StopIteration  # ends the epoch: Lightning ignores the return value of a callback

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Log the epsilon that is spent, and the target.

        The progress bar shows them if the training makes releases: otherwise they do not change.
        Where releases are subsampled, there is an epsilon of both accountants: ``epsilon_pld`` and
        ``epsilon_rdp``, autodp's.
        """
        if self.is_unprotected:
            return
        self._n_used_before = self._budget.n_used(self.mechanism)
        by_accountant = self._budget.spent_by_accountant()
        if self.accountant in by_accountant:
            self.epsilon = by_accountant[self.accountant]
        else:
            self.epsilon = self._budget.spent_epsilon()
        changes = not self.releases_before_training
        shows_one = changes and not by_accountant
        pl_module.log("epsilon", self.epsilon, prog_bar=shows_one, batch_size=1)
        for name, epsilon in by_accountant.items():
            pl_module.log(f"epsilon_{name}", epsilon, prog_bar=changes, batch_size=1)
        pl_module.log("target_epsilon", self.target_epsilon, prog_bar=changes, batch_size=1)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """End the run where the plan is used up."""
        if not self.is_unprotected and self._is_used_up and not trainer.should_stop:
            self._end_run(trainer)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Say once that no budget counts what validation steps read."""
        if not self._target.is_noise_free and not self._has_warned_of_validation:
            self._has_warned_of_validation = True
            warn_of_validation(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write ``privacy.json``, and say what the run cost.

        If fewer releases were made than planned, say what the plan cost. If the run ended before
        its last step, say whether the plan ended it.
        """
        if self.is_unprotected:
            return
        self._budget.write_statement()
        n_steps = trainer.estimated_stepping_batches
        if self._is_used_up and trainer.global_step < n_steps < math.inf:
            say(self._line_of_end(f"step {trainer.global_step} of {n_steps}"))
        self.epsilon = self._budget.epsilon
        if self._budget.keeps_ledger and self.n_releases < self.plan.n_releases:
            count = f"{self.n_releases} of {self.plan.n_releases} planned releases"
            epsilon = round_up(self.epsilon, _DIGITS)
            say(f"The run made {count}. The whole plan is counted: epsilon {epsilon:g}.")

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Free the directory for the next run."""
        self._budget.close()

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Write ``privacy.json`` when a run breaks off; say after Ctrl-C how to go on.

        Lightning turns Ctrl-C into an exit, which shows no message.
        """
        with contextlib.suppress(DpswdError):  # report the original exception
            self.epsilon = self._budget.epsilon
            self._budget.write_statement()
            if isinstance(exception, KeyboardInterrupt) and self._budget.keeps_ledger:
                self._say_how_to_finish(trainer)
        self._budget.close()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint holds.

        It holds the last lines of the ledgers, which the ledgers must contain on resume, and a
        count.
        """
        if not self._budget.keeps_ledger and self._resume_point is not None:
            return asdict(self._resume_point)
        ledger_head, shared_head = self._budget.heads
        return asdict(ResumePoint(ledger_head, shared_head, self._n_used_before))

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Write into a checkpoint that its run is NOT PRIVATE, if it is not."""
        if self.notice:
            checkpoint["dpswd_notice"] = self.notice

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Mark the run as resumed."""
        self._resume_point = ResumePoint(**state_dict)
        self._n_used_before = self._resume_point.used

    # Parts of the hooks

    def _end_run(self, trainer: L.Trainer) -> None:
        """Let the trainer stop, since its loader would ask for a further release."""
        self._ends_run = True
        trainer.should_stop = True

    def _line_of_end(self, place: str) -> str:
        """Return where a run ends before its last step, and whether the plan ends it."""
        if not self._ends_run:
            return f"The run ends at {place}."
        n_planned = self.plan.parts[-1].n_releases
        line = f"All {n_planned} planned releases are made; the run ends at {place}."
        if n_planned == 1:
            line = f"The planned release is made, and its epoch is over; the run ends at {place}."
        if self._has_loader:
            line += f" {_LARGER_EVERY}"
        return line

    def _say_how_to_finish(self, trainer: L.Trainer) -> None:
        """Name the checkpoint of an interrupted run; LastCheckpoint does so by itself."""
        callbacks = trainer.checkpoint_callbacks
        if any(isinstance(callback, LastCheckpoint) for callback in callbacks):
            return
        paths = []
        for callback in callbacks:
            if isinstance(callback, ModelCheckpoint):
                paths += [callback.last_model_path, callback.best_model_path]
        paths = [path for path in paths if path]
        remedy = (
            "It has no checkpoint to go on from; ModelCheckpoint(every_n_train_steps=10, "
            "save_last=True) among the callbacks of a further run writes some"
        )
        if paths:
            option = shlex.join(["--ckpt_path", paths[0]])
            remedy = (
                "To finish it, which pays for no release twice, pass trainer.fit "
                f"ckpt_path={paths[0]!r} ({option})"
            )
        count = f"{self.n_releases} of {self.plan.n_releases} planned releases"
        say(f"The run was interrupted after {count}, and the whole plan is counted. {remedy}.")

    def _say_where(self) -> None:
        """Name the run directory if it is the working folder by default."""
        run_dir = cast(Path, self.run_dir)
        if not self._states_run_dir and run_dir.resolve() == Path.cwd():
            say(
                f"The run writes ledger.jsonl, privacy.json and releases to {run_dir}, the working "
                "folder; set default_root_dir of the trainer to another one for each run."
            )

    def _check_ledger(self, checkpoint: Any) -> None:
        """Refuse to resume in a directory without a ledger."""
        run_dir = cast(Path, self.run_dir)
        if (run_dir / "ledger.jsonl").exists():
            return
        option = "run_dir of PrivacyBudget" if self._states_run_dir else "trainer.default_root_dir"
        folder = "the directory of that run"
        if isinstance(checkpoint, str | Path):
            beside = [path for path in Path(checkpoint).parents if (path / "ledger.jsonl").exists()]
            if beside:
                folder += f", {beside[0]}"
        raise InputError(
            f"Expected the ledger of the run of the checkpoint in {run_dir}, got none; set "
            f"{option} to {folder}."
        )

    def _start_unprotected(self, module: L.LightningModule) -> None:
        """Say that the run is not private, and mark its weights for later runs."""
        warnings.warn(UNPROTECTED, PrivacyWarning, stacklevel=2)
        if self.before_ledger is not None:
            self.before_ledger()
        track_all(module)
        mark_runs(module, [secrets.token_hex(8)])

    @property
    def _is_used_up(self) -> bool:
        """Whether the loss has made its planned releases.

        A release that waits in a file is not yet used.
        """
        last = self.plan.parts[-1]
        if last.mechanism.batch_size is None:  # a query
            return False
        return self._budget.n_used(last.mechanism) >= last.n_releases

    def _check_moment(self) -> None:
        """Raise BudgetExceededError unless the trainer is training."""
        stage = None if self._trainer is None else self._trainer.state.stage
        if stage not in (None, RunningStage.TRAINING):
            raise BudgetExceededError(
                f"Expected releases in training steps only, got one in {stage.value}; use the last "
                "release there: loss.distance(released, public)."
            )

    def _source(self, trainer: L.Trainer, losses: list[Releasing[Any]]) -> "_Source":
        """Return what the training loader reads, or what was stated for tensors.

        A loader of private batches learns how many steps a resumed epoch has behind it.

        Raises:
            InputError: If the loader has other batches than the losses read.
        """
        loader = _release_loader(trainer.train_dataloader)
        if loader is None:
            if self._handed_over is not None:
                loaders = _list_of(trainer.train_dataloader)
                for loss in losses:
                    batch_size = loss.mechanism.batch_size
                    refuse_epochs(loaders, batch_size, self._handed_over.sample_size)
                return self._handed_over
            raise InputError(
                "Expected a training loader of private batches (dpswd.ReleaseLoader), got "
                f"{_kinds_of(trainer.train_dataloader)}; pass ReleaseLoader(PrivateRecords(X), "
                "batch_size=..., n_releases=...), or to GeneratorModule a PrivateDataModule. Where "
                "a module of your own hands over tensors that you answer for, give PrivacyBudget "
                "sample_size and n_releases."
            )
        loader.n_done = lambda: trainer.fit_loop.epoch_loop.batch_progress.current.ready
        for loss in losses:
            batch_size = loss.mechanism.batch_size
            if batch_size != loader.batch_size:
                raise InputError(
                    f"Expected batch_size={batch_size} of the loader, as the loss has it, got "
                    f"{loader.batch_size}; make both equal, or leave batch_size out of a config's "
                    "data."
                )
        return _Source(
            loader.records, len(loader.records), loader.n_releases, loader.every, loader.after
        )

    def _setting(self, source: "_Source") -> RunSetting:
        """Return what the run reads, and where it is written."""
        if self.run_dir is None:
            raise InputError("Expected a run directory, got none; set trainer.default_root_dir.")
        return RunSetting(
            self.run_dir,
            source.sample_size,
            source.records,
            weights_from_runs=frozenset(self.weights_from_runs),
            before_ledger=self.before_ledger,
            resume_point=self._resume_point,
        )


@dataclass(frozen=True)
class _Source:
    """What the loss of a module reads.

    Attributes:
        records: The records; ``None`` for tensors that are handed over.
        sample_size: Number N of records; of units, where units are stated.
        n_releases: Number T of releases.
        every: Batches of the loader per release.
        after: Batches of the loader before its first release.
    """

    records: PrivateRecords | None
    sample_size: int
    n_releases: int
    every: int = 1
    after: int = 0


def budget_of(trainer: L.Trainer) -> PrivacyBudget | None:
    """Return the budget among the callbacks of a trainer; ``None`` without one."""
    callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    for callback in callbacks:
        if isinstance(callback, PrivacyBudget):
            return callback
    return None


def required_budget(trainer: L.Trainer) -> PrivacyBudget:
    """Return the budget of a trainer; refuse a trainer without one."""
    budget = budget_of(trainer)
    if budget is None:
        raise InputError(
            "Expected a PrivacyBudget among the callbacks of the trainer, got none; add one."
        )
    return budget


def _kinds_of(loaders: Any) -> str:
    """Return the types of the loaders that the trainer trains on, by their names."""
    if isinstance(loaders, CombinedLoader):
        loaders = loaders.iterables
    if not isinstance(loaders, Mapping):
        return type(loaders).__name__
    entries = [f"{name}={type(loader).__name__}" for name, loader in loaders.items()]
    return f"a dictionary without one: {', '.join(entries)}"


def _release_loader(loaders: Any) -> ReleaseLoader | None:
    """Return the loader of private batches.

    It may be alone, or one of the loaders of a CombinedLoader.

    Args:
        loaders: What the trainer trains on: one loader, or a dictionary or list of loaders.

    Raises:
        InputError: If there are several loaders of private batches.
    """
    private = [loader for loader in _list_of(loaders) if isinstance(loader, ReleaseLoader)]
    if len(private) > 1:
        raise InputError(
            f"Expected one loader of private batches (dpswd.ReleaseLoader), got {len(private)}; "
            "a budget has one data set of private records."
        )
    if not private:
        return None
    return private[0]


def _list_of(loaders: Any) -> list[Any]:
    """Return the training loaders of a trainer, which may be a collection of them."""
    if isinstance(loaders, CombinedLoader):
        loaders = loaders.flattened
    if isinstance(loaders, Mapping):
        loaders = list(loaders.values())
    if not isinstance(loaders, list | tuple):
        loaders = [loaders]
    return list(loaders)


def _has_release(batch: Any) -> bool:
    """Return whether a batch holds private records.

    A batch of a CombinedLoader does if one of its batches does.
    """
    if isinstance(batch, Mapping):
        return any(_has_release(part) for part in batch.values())
    if isinstance(batch, list | tuple):
        return any(_has_release(part) for part in batch)
    return isinstance(batch, PrivateBatch) and len(batch) > 0


def _check_hyperparameters(*owners: Any) -> None:
    """Refuse hyperparameters that may hold records.

    Every checkpoint contains the hyperparameters.
    """
    for owner in owners:
        for name, value in dict(getattr(owner, "hparams", None) or {}).items():
            if _n_entries(value) > _MOST_ENTRIES:
                raise InputError(
                    f"Expected hyperparameters without records, got {name}, a "
                    f"{type(value).__name__}, in hparams of {type(owner).__name__}, which "
                    f"checkpoints contain; call save_hyperparameters(ignore=[{name!r}])."
                )


def _n_entries(value: Any) -> float:
    """Return the number of plain values in a hyperparameter.

    It is infinity for an array, a frame, a data set or a loader.
    """
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple | set):
        return sum(map(_n_entries, value))
    is_array = hasattr(value, "__array__") and getattr(value, "ndim", 0) > 0
    if is_array or isinstance(value, Dataset | DataLoader):
        return math.inf
    return 1


def _modules_of(module: nn.Module, kind: type[P]) -> list[P]:
    """Return a module and its submodules that are of a kind."""
    return [child for child in module.modules() if isinstance(child, kind)]
