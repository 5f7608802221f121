"""The LightningCLI behind ``dpswd fit``: the budget is part of the config, and a run keeps everything in one directory.

``trainer.default_root_dir`` is the run directory. It gets config.yaml, ledger.jsonl, privacy.json, TensorBoard events,
checkpoints/last.ckpt, and what the callbacks of the config add.
"""

import contextlib
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.plugins import CheckpointIO
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher

from dpswd.accounting.ledger import Ledger
from dpswd.errors import InputError
from dpswd.training.callback import PrivacyBudget
from dpswd.training.checkpoints import LastCheckpoint, WholeCheckpoints

__all__ = ["PrivateCLI"]


class _SaveConfig(SaveConfigCallback):
    """Keeps the config of a fit in its run directory; other commands leave it alone."""

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Has the config written right before the ledger: a run that is refused or resumed leaves it as it is."""
        if stage == "fit" and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            for callback in trainer.callbacks:  # type: ignore[attr-defined]
                if isinstance(callback, PrivacyBudget):
                    callback.before_ledger = partial(self._write, Path(trainer.default_root_dir))

    def _write(self, directory: Path) -> None:
        partial = directory / "config.part.yaml"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self.parser.save(self.config, partial, skip_none=False, overwrite=True, multifile=False)
            os.replace(partial, directory / "config.yaml")
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise InputError(
                f"Expected to write into {directory} (trainer.default_root_dir), got: {error.strerror}; "
                "choose a writable directory."
            ) from None


class _Curves(TensorBoardLogger):
    """TensorBoard events from the first metric on: a run that is refused leaves none. config.yaml has the rest."""

    _wanted = False

    @property
    def experiment(self) -> Any:
        """The writer, whose file is made when there is something to write; Lightning asks for it before."""
        if not self._wanted:
            raise AttributeError("nothing has been logged yet")
        return super().experiment

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        """Writes metrics, and makes the file for the first ones."""
        self._wanted = True
        super().log_metrics(metrics, step)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Writes nothing."""

    def save(self) -> None:
        """Writes nothing."""

    def finalize(self, status: str) -> None:
        """Closes the file, if there is one."""
        if self._wanted:
            super().finalize(status)


class PrivateCLI(LightningCLI):
    """``dpswd fit --config FILE``: any LightningModule and data module, with a privacy budget.

    Args:
        args: Command line without the program's name.
        run: Whether to run the subcommand at once; ``False`` for tests.
    """

    def __init__(self, args: list[str], run: bool = True) -> None:
        self._started_with = args
        super().__init__(
            L.LightningModule,
            L.LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            save_config_callback=_SaveConfig,
            seed_everything_default=True,
            parser_kwargs={"exit_on_error": False}
            if not run
            else {name: {"exit_on_error": False} for name in ("fit", "validate", "test", "predict")}
            | {"exit_on_error": False},
            args=_long_spellings(args),
            run=run,
        )

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Reads the checkpoint before Lightning does, which would look for hyperparameters in a damaged one."""
        super().parse_arguments(parser, args)
        path = self.config.get(f"{self.config.get('subcommand')}.ckpt_path")
        if path and Path(path).is_file():
            WholeCheckpoints().load_checkpoint(path, weights_only=True)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the budget: ``--privacy.target_epsilon``, ``--privacy.target_delta``, and one that spans runs."""
        parser.add_lightning_class_args(PrivacyBudget, "privacy")

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        """Puts everything of a run into one directory, unless the config says otherwise."""
        from dpswd.commands.main import default_run_dir

        given = self._get(self.config_init, "trainer", default={})
        directory = Path(given.get("default_root_dir") or default_run_dir())
        kwargs.setdefault("default_root_dir", str(directory))
        if given.get("logger") is None and not given.get("fast_dev_run"):
            kwargs.setdefault("logger", _Curves(directory, name="", version="", default_hp_metric=False))
        callbacks = list(given.get("callbacks") or [])
        wanted = given.get("enable_checkpointing") is not False and not given.get("fast_dev_run")
        if wanted and not any(isinstance(each, Checkpoint) for each in callbacks):
            kwargs.setdefault("callbacks", [*callbacks, LastCheckpoint(directory, int(given.get("max_steps") or 0))])
        plugins = given.get("plugins") or []
        plugins = list(plugins) if isinstance(plugins, list | tuple) else [plugins]
        if not any(isinstance(each, CheckpointIO) for each in plugins):
            kwargs.setdefault("plugins", [*plugins, WholeCheckpoints()])
        if self.subcommand == "fit":
            kwargs.setdefault("use_distributed_sampler", False)  # ours draws one subset for all processes
            several = str(given.get("devices")) not in ("1", "auto") or given.get("num_nodes") not in (None, 1)
            manual = not self.model.automatic_optimization  # a step may then train a part of the parameters
            if several and manual and str(given.get("strategy")) in ("ddp", "auto"):
                kwargs.setdefault("strategy", "ddp_find_unused_parameters_true")
        trainer: L.Trainer = super().instantiate_trainer(**kwargs)
        trainer.callbacks.sort(key=lambda each: not isinstance(each, PrivacyBudget))  # type: ignore[attr-defined]
        return trainer

    def _add_checkpoint(self) -> None:
        directory = Path(self.trainer.default_root_dir) / "checkpoints"
        for callback in self.trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint) and callback.dirpath is None:
                callback.dirpath = str(directory)

    def before_instantiate_classes(self) -> None:
        """Refuses checkpoints that are not there before anything else happens."""
        path = self._get(self.config, "ckpt_path")
        if path is None and self.subcommand == "predict":
            raise InputError("Expected --ckpt_path for predict, got none; name the checkpoint of a run.")
        if path is not None and path not in ("last", "best", "hpc") and not Path(path).is_file():
            raise InputError(f"Expected a checkpoint at {path}, got none; see checkpoints/ in the run directory.")

    def before_fit(self) -> None:
        """Sends the trainer's own checkpoints to the run directory; refuses processes that could not be started."""
        if self.trainer.world_size != 1:
            self._check_processes()
        self._add_checkpoint()

    def _check_processes(self) -> None:
        launcher = self.trainer.strategy.launcher
        if not isinstance(launcher, _SubprocessScriptLauncher):
            raise InputError(
                f"Expected trainer.strategy=ddp for {self.trainer.world_size} processes, got "
                f"{type(self.trainer.strategy).__name__} with another way to start them; use ddp, or trainer.devices=1."
            )
        if not launcher.cluster_environment.creates_processes_externally and self._started_with != sys.argv[1:]:
            raise InputError(
                f"Expected one process where dpswd is called from Python, got {self.trainer.world_size}; set "
                "trainer.devices to 1, or start dpswd fit from the command line."
            )

    def _alone(self) -> None:
        if self.trainer.world_size != 1:
            raise InputError(
                f"Expected one process for {self.subcommand}, got {self.trainer.world_size}; set trainer.devices to 1."
            )

    before_validate = before_test = _alone

    def before_predict(self) -> None:
        """Refuses to put what another run's checkpoint makes beside the guarantee of this one."""
        self._alone()
        path = self._get(self.config, "ckpt_path")
        directory = Path(self._get(self.config, "privacy.run_dir") or self.trainer.default_root_dir)
        ledger = directory / "ledger.jsonl"
        if not ledger.is_file() or not Path(path).is_file():
            return
        states = WholeCheckpoints().load_checkpoint(path, weights_only=True).get("callbacks", {})
        heads = [state.get("ledger_head") for name, state in states.items() if name.startswith("PrivacyBudget")]
        if not set(heads) & set(Ledger.open_existing(ledger).heads):
            raise InputError(
                f"Expected a checkpoint of the run in {directory}, got {path}, of another one; name its directory with "
                "--trainer.default_root_dir."
            )

    def after_fit(self) -> None:
        """Keeps the final state under a name that does not change."""
        if not self.trainer.fast_dev_run:  # type: ignore[attr-defined]
            self.trainer.save_checkpoint(Path(self.trainer.default_root_dir) / "checkpoints" / "last.ckpt", False)


def _long_spellings(args: list[str]) -> list[str]:
    """Spells ``--ledger PATH --target-epsilon E`` as the config does; the budget is then that of all runs in PATH."""
    names = [arg.split("=")[0] for arg in args]
    if args[:1] != ["fit"] or "--ledger" not in names:
        return args
    long = {"--ledger": "--privacy.ledger", "--target-epsilon": "--privacy.ledger_epsilon"}
    long["--target-delta"] = "--privacy.target_delta"
    return [long.get(name, name) + arg[len(name) :] for name, arg in zip(names, args, strict=True)]
