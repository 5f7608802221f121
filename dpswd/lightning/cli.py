"""The LightningCLI behind ``dpswd fit``: the budget is part of the config, and a run has one directory.

The run directory (``trainer.default_root_dir``) gets config.yaml, ledger.jsonl, privacy.json, releases/,
checkpoints/last.ckpt, lightning_logs/ and the files of the callbacks in the config.
"""

import datetime
import logging
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Checkpoint, ProgressBar, TQDMProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import TensorBoardLogger

from dpswd._files import atomic_write
from dpswd._progress import say
from dpswd.accounting.guarantee import guarantee_line, stated_guarantee
from dpswd.budget.budget import Budget
from dpswd.errors import InputError
from dpswd.lightning.budget import PrivacyBudget
from dpswd.lightning.checkpoints import AtomicCheckpointIO, LastCheckpoint


class _SaveConfig(SaveConfigCallback):
    """Writes the config of a fit to its run directory right before the ledger; refused runs leave no file."""

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if stage == "fit" and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            for callback in trainer.callbacks:  # type: ignore[attr-defined]
                if isinstance(callback, PrivacyBudget):
                    callback.before_ledger = partial(self._write, Path(trainer.default_root_dir))

    def _write(self, directory: Path) -> None:
        try:
            atomic_write(
                directory / "config.yaml", self.parser.dump(self.config, skip_none=False).encode()
            )
        except InputError as error:
            raise InputError(f"{error} Set trainer.default_root_dir.") from None


class StepProgressBar(TQDMProgressBar):
    """The progress bar of Lightning, named after the training steps that it counts: most runs have one epoch."""

    def on_train_epoch_start(self, *_: Any) -> None:
        """Start and name the bar."""
        self.train_progress_bar.reset(self.total_train_batches)
        self.train_progress_bar.set_description("training")


class _TensorBoard(L.Callback):
    """Logs to TensorBoard from the first step on; refused runs leave no file."""

    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.logger is None:
            trainer.logger = TensorBoardLogger(trainer.default_root_dir, version="")


class PrivateCLI(LightningCLI):
    """``dpswd fit --config FILE``: any LightningModule and data module, with a privacy budget."""

    def __init__(self, args: list[str]) -> None:
        for name in ("lightning.pytorch", "lightning.fabric"):  # hardware, tips, seeds
            logging.getLogger(name).setLevel(logging.WARNING)
        options = {"exit_on_error": False, "allow_abbrev": False}
        super().__init__(
            L.LightningModule,
            L.LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            save_config_callback=_SaveConfig,
            seed_everything_default=True,
            trainer_defaults={"enable_model_summary": False},
            parser_kwargs={**options, "fit": dict(options)},
            args=args,
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Offer ``fit`` only: validation and test loops make no release, and ``dpswd sample`` draws records."""
        return {"fit": LightningCLI.subcommands()["fit"]}

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Verify the checkpoint before Lightning reads hyperparameters from it; refuse the directory of another run."""
        super().parse_arguments(parser, args)
        path, directory = (
            self.config.get(f"fit.{name}") for name in ("ckpt_path", "trainer.default_root_dir")
        )
        if path not in (None, "last", "best", "hpc"):
            AtomicCheckpointIO().load_checkpoint(path, weights_only=True)
        if path is None and directory and not Budget.is_free(directory):
            remedy = f"set --trainer.default_root_dir, or resume with --ckpt_path {directory}/checkpoints/last.ckpt"
            raise InputError(
                f"Expected a new run directory, got {directory}, which holds the ledger of a run; {remedy}."
            )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the options of :class:`PrivacyBudget` as ``--privacy.*``."""
        parser.add_lightning_class_args(PrivacyBudget, "privacy")

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        """Set directory, logger, checkpoints and progress bar where the config does not."""
        given = self.config_init["fit"]["trainer"]
        now = datetime.datetime.now(tz=datetime.UTC).strftime("%Y%m%d-%H%M%S")
        directory = Path(given.get("default_root_dir") or f"runs/{now}")
        kwargs.setdefault("default_root_dir", str(directory))
        callbacks = _as_list(given.get("callbacks"))
        if given.get("logger") is None and not given.get("fast_dev_run"):
            kwargs.setdefault("logger", False)
            callbacks.append(_TensorBoard())
        shown = given.get("enable_progress_bar") is not False
        if shown and not any(isinstance(each, ProgressBar) for each in callbacks):
            callbacks.append(StepProgressBar())
        checkpoints = given.get("enable_checkpointing") is not False and not given.get(
            "fast_dev_run"
        )
        if checkpoints and not any(isinstance(each, Checkpoint) for each in callbacks):
            callbacks.append(LastCheckpoint(directory, int(given.get("max_steps") or 0)))
        kwargs.setdefault("callbacks", callbacks)
        kwargs.setdefault("plugins", [*_as_list(given.get("plugins")), AtomicCheckpointIO()])
        return super().instantiate_trainer(**kwargs)

    def before_fit(self) -> None:
        """Refuse processes that cannot be started."""
        world_size, strategy = self.trainer.world_size, str(self.config.get("fit.trainer.strategy"))
        if world_size != 1 and any(word in strategy for word in ("spawn", "fork", "notebook")):
            got = f"{strategy}; use ddp, or trainer.devices=1"
            raise InputError(
                f"Expected trainer.strategy=ddp for {world_size} processes, got {got}."
            )

    def after_fit(self) -> None:
        """Write the final state to checkpoints/last.ckpt; show the guarantee."""
        if not self.trainer.fast_dev_run:  # type: ignore[attr-defined]
            self.trainer.save_checkpoint(
                Path(self.trainer.default_root_dir) / "checkpoints" / "last.ckpt", False
            )
        if self.trainer.is_global_zero:
            say(guarantee_line(stated_guarantee(self.config_init["fit"]["privacy"].statement())))


def _as_list(value: Any) -> list[Any]:
    """Return the entries of an option of the trainer that takes one object or a list."""
    return list(value) if isinstance(value, list | tuple) else [value] if value else []
