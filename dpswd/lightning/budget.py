"""Lightning callback that keeps a training run within its privacy budget.

It reads N, B and the number T of releases from the training loader, calibrates sigma, is the recorder of the loss,
checks the released rows, shows epsilon beside the loss and writes ``privacy.json``.
"""

import contextlib
import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn

from dpswd._distributed import Processes
from dpswd._progress import passing
from dpswd._provenance import mark_runs, seen_runs
from dpswd.accounting.ledger import Ledger, plan_of
from dpswd.errors import BudgetExceededError, DpswdError, InputError
from dpswd.loss import DPSlicedWassersteinLoss, ReleasingModule
from dpswd.mechanism import Mechanism, ProjectionMechanism
from dpswd.queries import GaussianQuery
from dpswd.rowwise import BATCH_NORMS
from dpswd.sampling import FixedSizeSampler
from dpswd.training.budget import Plan, RunBudget

__all__ = ["PrivacyBudget"]

_log = logging.getLogger("dpswd")  # shown on stderr, written to no file
_N_PROBED = 8  # records of the first batch with which the rows are checked
_N_HASHED = 4096  # records read at a time before the first release


class PrivacyBudget(RunBudget, L.Callback):
    """Calibrates the noise of a module's releases and keeps the run within the budget.

    Works with any LightningModule that has one :class:`DPSlicedWassersteinLoss` and a training loader whose batch
    sampler is a :class:`FixedSizeSampler`, such as :class:`ReleaseLoader`; or any number of
    :class:`dpswd.queries.GaussianQuery` of all records, each of which is released once; or both. Each query has its
    share of the budget; the loss, or the last query where there is none, has what the others leave. A module without a
    loss may have no optimiser, since gradients of private batches are not accounted for.

    A training step may release its own private batch once. Refused are

    - a second release of a loss in a step, or outside of training steps; any release before the noise is calibrated,
      or in ``validate``, ``test`` and ``predict``; a loss or query that is hidden from ``module.modules()``;
    - rows that depend on other records of the batch (BatchNorm in train mode, standardisation, division by the batch
      maximum). At the first private batch, ``training_step`` is run up to its release on a few records, of which one is
      then changed: the other rows must not change. Where this fails to run, or is not deterministic, a warning says
      that nothing was checked;
    - a buffer that changes between the arrival of a private batch and its release, or in a module without a loss a
      buffer or weight that changes before a query, unless the LightningModule names it in ``public_buffers``;
    - a new run of a module that has made releases, or of weights that were trained by another run (unless the shared
      ledger contains it), and a checkpoint that no such run wrote.

    Not checked: private statistics in plain attributes of the module, in the data module, or in rows of queries; use of
    the private batch after its release, or without one; a module that keeps an old batch and releases it in place of
    the new one; weights of an earlier run that are loaded before the module has a loss or query.

    Several processes (``strategy="ddp"``, ``use_distributed_sampler=False``) make every release together, see
    :mod:`dpswd.loss`: N, B, T and epsilon are those of one process; rank 0 keeps the ledger. Every rank generates
    public records of its own, and the gradients are averaged.

    Args:
        target_epsilon: Budget of this run.
        target_delta: Budget of this run; well below 1 / N.
        accountant: ``"pld"`` (exact) or ``"rdp"`` (autodp's bound).
        run_dir: Directory of ``ledger.jsonl``, ``privacy.json`` and ``releases/``; the trainer's ``default_root_dir``
            if not given.
        shared_ledger: Ledger of several runs on the same records, made by ``dpswd ledger create``, whose header states
            their total budget. The whole plan of this run is charged to it before the first release.

    Raises:
        InputError: At the start of training, if the budget is out of range, the loader is not the one that the
            accountant assumes, the processes are not those of DDP, the module has made releases, or ledger or
            checkpoint do not fit the run.

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
    ) -> None:
        super().__init__(target_epsilon, target_delta, accountant, shared_ledger)
        self.run_dir = run_dir
        self.epsilon = 0.0
        self._stage = "fit"
        self._n_earlier = self._n_used_before = 0
        self._probing = self._probed = self._in_batches = False
        self._module: L.LightningModule | None = None
        self._buffers: dict[str, Tensor] = {}

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Move this callback to the front; block releases until the noise is calibrated."""
        others = [callback for callback in trainer.callbacks if callback is not self]  # type: ignore[attr-defined]
        if any(isinstance(callback, PrivacyBudget) for callback in others):
            raise InputError("Expected one PrivacyBudget among the trainer's callbacks, got several; keep one.")
        trainer.callbacks = [self, *others]  # type: ignore[attr-defined]  # a new list: Lightning iterates over the old
        self._stage = TrainerFn(stage).value
        if stage == "fit":
            self._check_processes(trainer)
            self._checkpoint, self._n_used_before = None, 0
            self._probing = self._probed = False
            self._reset()
        parts = _releasing_parts(pl_module)
        if stage == "fit" and any(part.n_releases and part.recorder is None for part in parts):
            raise InputError(
                "Expected a module without releases before the fit, got one with releases that no ledger contains; "
                "release in training steps only, and start with a new module."
            )
        self._n_earlier = sum(part.n_releases for part in parts)
        for part in parts:
            part.recorder = self
        self._watch(running=False)
        self._watch(running=True)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Free the directory for the next run."""
        self._watch(running=False)
        self._module, self._buffers = None, {}

    def before_release(
        self, mechanism: Mechanism, rows: Tensor | None = None, labels: Tensor | None = None
    ) -> dict[str, Tensor] | None:
        """As :meth:`RunBudget.before_release`; InputError if a buffer changed since the private batch arrived."""
        if self._probing:
            raise _RowsReady(rows, labels)
        if mechanism.batch_size is not None or not self._in_batches:
            self._check_buffers()
        return super().before_release(mechanism, rows, labels)

    def check(self, mechanism: Mechanism) -> None:
        """Raise BudgetExceededError unless a release is allowed now: in a fit, after the noise is calibrated.

        A refusal before training ends the watch here, since Lightning's tuners disable callbacks and ``on_exception``.
        """
        if self._stage != "fit":
            self._watch(running=False)
            raise BudgetExceededError(
                f"Expected no release outside of a fit, got one in {self._stage}; it is not accounted for."
            )
        if self._made is None and self._ledger is None:
            self._watch(running=False)
        super().check(mechanism)

    def _check_processes(self, trainer: L.Trainer) -> None:
        """Refuse processes that would not make releases together."""
        if trainer.world_size != 1 and not isinstance(trainer.strategy, DDPStrategy):
            raise InputError(
                f"Expected trainer.strategy=ddp for {trainer.world_size} processes, got "
                f"{type(trainer.strategy).__name__}; use ddp, or trainer.devices=1."
            )

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Register as recorder of parts that the module made in its own hooks; refuse modules with releases."""
        self._watch(running=True)
        _check_optimisers(trainer, pl_module)
        if self._checkpoint is None and trainer.ckpt_path is not None:
            raise InputError(
                f"Expected a checkpoint of a run within a PrivacyBudget, got {trainer.ckpt_path}, which states no "
                "releases; its weights may depend on private records. Start a new run without it."
            )
        if self._checkpoint is None and self._n_earlier:
            raise InputError(
                f"Expected a module without releases before a new run, got one with {self._n_earlier}; start with a "
                "new module, or resume from the checkpoint."
            )
        for part in _releasing_parts(pl_module):
            part.recorder = self
        self.weights_from_runs = seen_runs(pl_module)
        self._directory = Path(self.run_dir or trainer.default_root_dir)
        if self._checkpoint is not None:  # also where no step is left to train
            Processes().broadcast(lambda: self._verified_ledger(self._directory / "ledger.jsonl").head)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Calibrate the noise and open the ledger."""
        processes = Processes()
        loss, queries = _the_loss(pl_module), _queries(pl_module)
        self.sample_size = processes.run_on_all(lambda: _sample_size(trainer, loss))
        wanted: Plan = [(query.mechanism, 1) for query in queries]
        parts: list[ReleasingModule[Any]] = [*queries]
        if loss is not None:
            wanted.append((loss.mechanism, _the_sampler(trainer, loss.mechanism).n_releases))
            parts.append(loss)
        self._in_batches = loss is not None
        shares = [query.share for query in queries][: len(wanted) - 1]
        if self._checkpoint is None:
            processes.broadcast(lambda: Ledger.check_free(self._directory / "ledger.jsonl"))
            shown = trainer.progress_bar_callback is not None and processes.rank == 0
            _read_once(trainer.train_dataloader, processes, shown)
        self.plan, self._made, self._stored, self.run = processes.broadcast(lambda: self._open(wanted, shares))
        for part, (mechanism, _) in zip(parts, self.plan, strict=True):
            part.mechanism = mechanism
        mark_runs(pl_module, [self.run])
        self._module = pl_module
        self._watch(running=True)
        processes.run_on_all(self._write)
        if processes.rank:  # latent codes: seed_everything gives all ranks the same seed
            torch.manual_seed(torch.initial_seed() + processes.rank)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Permit one release of a private batch; end the run early where a crash has lost releases.

        Raises:
            BudgetExceededError: If all releases were lost, so that the module has learnt nothing.
        """
        length = batch_length(batch) if self._in_batches else 0
        self._permit = length > 0
        self._buffers = {}
        if not self._in_batches:
            _check_optimisers(trainer, pl_module)
            self._buffers = self._private_state(pl_module)
        if not length:
            return
        mechanism, planned = self.plan[-1]
        waiting = any(stored.mechanism == mechanism for stored in self._stored)
        if self._count(mechanism) >= planned and not waiting:
            if not self._n_used_before:
                raise BudgetExceededError(
                    f"Expected a stored release to train on, got none: all {planned} planned releases are in the "
                    "ledger, but a crash lost their noisy values. The budget is used up; start a new run."
                )
            if not trainer.should_stop:
                trainer.should_stop = True
                _log.warning("All %d planned releases are made: the run ends at step %d.", planned, trainer.global_step)
                raise StopIteration  # ends the epoch: Lightning ignores the return value of a callback
        if not self._probed:
            self._probed = True
            self._check_rows(pl_module, batch)
        self._buffers = self._private_state(pl_module)

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        """End a check of the rows that reached no release."""
        if self._probing:
            raise _RowsReady(None, None)

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any) -> None:
        """End a check of the rows that reached no release."""
        if self._probing:
            raise _RowsReady(None, None)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Show epsilon beside the loss."""
        self._permit = False
        self._n_used_before = self._n_used(self.mechanism)
        self.epsilon = self._spent()
        pl_module.log("epsilon", self.epsilon, prog_bar=True, batch_size=1)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write ``privacy.json``."""
        self._write()
        self._permit = False

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Write ``privacy.json`` when a run breaks off."""
        if self._running:
            self._watch(running=False)
            with contextlib.suppress(DpswdError):  # report the original exception
                self._write()
        self._lock.free()

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Check the loader again, since a data module may have replaced it."""
        found = _sample_size(trainer, _the_loss(pl_module))
        if found != self.sample_size:
            raise InputError(f"Expected {self.sample_size} records as planned, got a loader of {found}.")

    def state_dict(self) -> dict[str, Any]:
        """State in a checkpoint: the budget and the releases that the ledger must contain at least."""
        if self._ledger is None and self._checkpoint is not None:
            return self._checkpoint
        head = self._ledger.head if self._ledger else ""
        counts = {"releases": self.n_releases, "used": self._n_used_before, "planned": self.n_planned}
        shared = {"shared_head": self._shared.head} if self._shared is not None else {}
        return {**self.settings, **counts, "ledger_head": head, **shared}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Mark the run as resumed."""
        self._checkpoint, self._n_used_before = state_dict, int(state_dict.get("used", 0))

    def statement(self) -> dict[str, Any]:
        """Content of ``privacy.json`` at this moment, on rank 0; see :meth:`RunBudget.statement`.

        Raises:
            InputError: If no run has been started.
        """
        if self._ledger is None:  # a resumed run without a step left opens no ledger
            if self._checkpoint is None:
                raise InputError("Expected a run within this PrivacyBudget, got none; call statement() after training.")
            ledger = self._verified_ledger(self._directory / "ledger.jsonl")
            self.sample_size, self.run = ledger.header["sample_size"], str(ledger.header.get("run", ""))
            self.plan = [(mechanism, count) for mechanism, _, count in plan_of(ledger.header)]
            self._facts = self._planned_facts()
            return {**super().statement(), "releases_made": ledger.n_releases}
        return super().statement()

    # Rows and buffers

    def _check_buffers(self) -> None:
        if self._module is None:
            return
        state = self._private_state(self._module) if self._buffers else {}
        for name, value in state.items():
            before = self._buffers.get(name)
            if before is not None and not torch.equal(before, value):
                raise InputError(
                    f"Expected no buffer to change between the arrival of a private batch and its release, got "
                    f"{name}, {_owner(self._module, name)}: it may now contain a statistic of private records. Call "
                    ".eval() on that layer or use GroupNorm or LayerNorm; release the batch before layers that read "
                    "generated records; name a buffer of public values in public_buffers."
                )

    def _private_state(self, module: nn.Module) -> dict[str, Tensor]:
        """Copy the buffers, and without a loss the weights, that are not named as public."""
        public = set(getattr(module, "public_buffers", ()))
        found = dict(module.named_buffers()) | ({} if self._in_batches else dict(module.named_parameters()))
        return {name: value.detach().clone() for name, value in found.items() if name not in public}

    def _check_rows(self, module: L.LightningModule, batch: Any) -> None:
        """Refuse rows of which one changes when another record is changed. Reads a few records, release nothing."""
        length = batch_length(batch)
        n = min(_N_PROBED, length)
        if n < 2:
            return

        def take(tensor: Tensor) -> Tensor:
            return tensor[:n].clone() if tensor.ndim and len(tensor) == length else tensor

        def change(tensor: Tensor) -> Tensor:
            if tensor.ndim and len(tensor) == n:
                tensor = tensor.clone()
                tensor[0] = 4 * tensor[1] + 1 if tensor.is_floating_point() else tensor[1]
            return tensor

        few = apply_to_collection(batch, Tensor, take)
        restore = _snapshot(module)
        self._probing = True
        try:
            first, again, changed = (
                self._rows_of(module, each) for each in (few, few, apply_to_collection(few, Tensor, change))
            )
        except Exception as error:  # of the user's training_step, on records that are out of range
            _log.warning("The rows of the loss were not checked for batch statistics: %s.", type(error).__name__)
            return
        finally:
            self._probing = False
            restore()
        if first is None or again is None or changed is None or not _same(first, again):
            _log.warning(
                "The rows of the loss were not checked for batch statistics: the first training_step releases no rows, "
                "or different ones when it is repeated."
            )
        elif len(first) != n or not _same(first[1:], changed[1:]):
            norms = [
                f"{type(layer).__name__} ({name})"
                for name, layer in module.named_modules()
                if isinstance(layer, BATCH_NORMS) and layer.training
            ]
            remedy = (
                f"call .eval() on {' and '.join(norms)}, or use GroupNorm or LayerNorm"
                if norms
                else "remove the statistic of the batch (mean, standard deviation, maximum, attention over the batch) "
                "from training_step or the module that it calls, or use a public constant"
            )
            raise InputError(
                "Expected rows that are computed from one record each, got rows that change with another record of "
                f"the batch; {remedy}."
            )

    def _rows_of(self, module: L.LightningModule, batch: Any) -> Tensor | None:
        """Run training_step up to its release; return the rows."""
        devices = [module.device] if module.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            try:
                module.training_step(apply_to_collection(batch, Tensor, torch.clone), 0)
            except _RowsReady as ready:
                return None if ready.rows is None else ready.rows.detach().clone()
        return None


class _RowsReady(BaseException):
    """Ends a training step when its rows reach the loss. Not an Exception: user code must not catch it."""

    def __init__(self, rows: Tensor | None, labels: Tensor | None) -> None:
        super().__init__()
        self.rows = rows
        if rows is not None and labels is not None:
            self.rows = torch.cat([rows, labels[:, None].to(rows)], dim=1)


def batch_length(batch: Any) -> int:
    """Return the number of records in a tensor, or in a sequence or mapping of tensors."""
    if isinstance(batch, Tensor):
        return len(batch)
    values = list(batch.values()) if isinstance(batch, dict) else list(batch)
    return batch_length(values[0]) if values else 0


def _same(one: Tensor, other: Tensor) -> bool:
    """Compare rows up to rounding, which may differ between batches."""
    if one.shape != other.shape:
        return False
    scale = float(one.abs().max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=1e-4, atol=1e-5 * scale, equal_nan=True)


def _snapshot(module: nn.Module) -> Callable[[], None]:
    """Copy the buffers of a module and its own attributes and containers; return a function that restores them."""
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    attributes = dict(vars(module))
    containers = [(each, each.copy()) for each in attributes.values() if isinstance(each, list | dict | set)]

    def restore() -> None:
        for name in set(vars(module)) - set(attributes):
            del vars(module)[name]
        vars(module).update(attributes)
        for container, content in containers:
            container.clear()
            container.extend(content) if isinstance(container, list) else container.update(content)
        for buffer, values in buffers:
            buffer.detach().copy_(values)

    return restore


def _owner(module: nn.Module, buffer: str) -> str:
    return f"of {type(module.get_submodule(buffer.rpartition('.')[0])).__name__}"


def _read_once(loader: Any, processes: Processes, shown: bool) -> None:
    """Read all records before a file is written, and warn of those that occur more than once.

    Their number is shown to the owner and written nowhere.

    Raises:
        InputError: If a record on disk cannot be read.
    """
    dataset: Any = getattr(loader, "dataset", None)
    read = getattr(dataset, "read", None) or getattr(dataset, "__getitems__", None)
    if not hasattr(dataset, "__len__") or read is None:
        return
    index = processes.share(torch.arange(len(dataset)), len(dataset))

    def hashes() -> Tensor:
        found = []
        for part in passing(index.split(_N_HASHED), "Checking records", shown=shown):
            batch = read(part)
            records = (
                batch if isinstance(batch, Tensor) else next(iter(batch.values() if isinstance(batch, dict) else batch))
            )
            if not isinstance(records, Tensor):
                return torch.arange(0)
            rows = records.detach().cpu().contiguous().flatten(1).view(torch.uint8).numpy()
            found += [hashlib.blake2b(row, digest_size=8).digest() for row in rows]
        return torch.frombuffer(bytearray(b"".join(found)), dtype=torch.int64)

    own = processes.run_on_all(hashes)
    found = processes.gather(own, processes.all_gather(len(own)))
    if found is not None and (n_repeated := len(found) - len(found.unique())):
        _log.warning(
            "%d of %d records repeat another record. The guarantee is for one record: a record with c copies has c "
            "times the influence. Remove copies, or count them as one person's.",
            n_repeated,
            len(dataset),
        )


def _releasing_parts(module: nn.Module) -> list[ReleasingModule[Any]]:
    return [child for child in module.modules() if isinstance(child, ReleasingModule)]


def _queries(module: nn.Module) -> list[GaussianQuery]:
    return [child for child in module.modules() if isinstance(child, GaussianQuery)]


def _the_loss(module: nn.Module) -> DPSlicedWassersteinLoss | None:
    losses = [child for child in module.modules() if isinstance(child, DPSlicedWassersteinLoss)]
    if len(losses) > 1 or not (losses or _queries(module)):
        raise InputError(
            f"Expected one DPSlicedWassersteinLoss or queries of all records in {type(module).__name__}, got "
            f"{len(losses)} losses; make them attributes of the module."
        )
    return losses[0] if losses else None


def _check_optimisers(trainer: Any, module: nn.Module) -> None:
    """Refuse optimisers of a module without a loss, also within Lightning's tuners."""
    if _the_loss(module) is None and trainer.optimizers:
        raise InputError(
            f"Expected a DPSlicedWassersteinLoss in {type(module).__name__}, which has an optimiser, got none; "
            "gradients of private batches are not accounted for. Return [] from configure_optimizers, and train on "
            "the releases after the fit."
        )


def _sample_size(trainer: Any, loss: DPSlicedWassersteinLoss | None) -> int:
    """Return the number of records; refuse a loader that the accountant does not assume."""
    if loss is not None:
        return _the_sampler(trainer, loss.mechanism).sample_size
    records: Any = getattr(trainer.train_dataloader, "dataset", None)
    if not hasattr(records, "__len__"):
        raise InputError("Expected a training loader whose dataset has a length, the number of records, got none.")
    return len(records)


def _the_sampler(trainer: Any, mechanism: ProjectionMechanism) -> FixedSizeSampler:
    """Return the sampler of the training loader; refuse one that the accountant does not assume."""
    sampler = getattr(trainer.train_dataloader, "batch_sampler", None)
    if not isinstance(sampler, FixedSizeSampler):
        raise InputError(
            "Expected a training loader with fresh fixed-size subsets (batch_sampler=dpswd.FixedSizeSampler), got "
            f"{type(sampler).__name__}; the accountant does not cover shuffled epochs. With several processes, set "
            "trainer.use_distributed_sampler=false."
        )
    if sampler.batch_size != mechanism.batch_size:
        raise InputError(
            f"Expected batch_size of the loader to be that of the mechanism, got {sampler.batch_size} and "
            f"{mechanism.batch_size}; make them equal."
        )
    if sampler.noise_seed is not None and mechanism.is_private:
        raise InputError(
            "Expected secret batches, got a sampler with noise_seed; leave it out, or give the mechanism one."
        )
    records: Any = getattr(trainer.train_dataloader, "dataset", None)
    if hasattr(records, "__len__") and len(records) != sampler.sample_size:
        raise InputError(
            f"Expected sample_size to be the number of records, got {sampler.sample_size} and {len(records)} records; "
            "make the sampler with len(dataset)."
        )
    if trainer.overfit_batches:
        raise InputError("Expected overfit_batches=0, got a repeated batch; the accountant does not cover it.")
    return sampler
