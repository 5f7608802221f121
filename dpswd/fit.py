"""The LightningCLI behind ``dpswd fit``: the budget is part of the config, and a run keeps everything in one directory.

``trainer.default_root_dir`` is the run directory. It gets config.yaml, ledger.jsonl, privacy.json, TensorBoard events,
checkpoints/last.ckpt, and what the callbacks of the config add.
"""

from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import TensorBoardLogger

from dpswd.errors import InputError
from dpswd.training import PrivacyBudget

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
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self.parser.save(self.config, directory / "config.yaml", skip_none=False, overwrite=True, multifile=False)
        except OSError as error:
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


class _LastCheckpoint(ModelCheckpoint):
    """Keeps ``checkpoints/last.ckpt``: twenty times in a run, and when it is interrupted; not when it is refused."""

    def __init__(self, directory: Path, max_steps: int) -> None:
        super().__init__(
            directory / "checkpoints",
            filename="last",
            every_n_train_steps=max(1, max_steps // 20),
            save_on_exception=True,
            enable_version_counter=False,
        )

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Saves, unless bad input was refused: then the old files stay as they are."""
        if not isinstance(exception, InputError):
            super().on_exception(trainer, pl_module, exception)


class PrivateCLI(LightningCLI):
    """``dpswd fit --config FILE``: any LightningModule and data module, with a privacy budget.

    Args:
        args: Command line without the program's name.
        run: Whether to run the subcommand at once; ``False`` for tests.
    """

    def __init__(self, args: list[str], run: bool = True) -> None:
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
            args=args,
            run=run,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the budget: ``--privacy.target_epsilon`` and ``--privacy.target_delta``."""
        parser.add_lightning_class_args(PrivacyBudget, "privacy")

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        """Puts everything of a run into one directory, unless the config says otherwise."""
        from dpswd.cli import default_run_dir

        given = self._get(self.config_init, "trainer", default={})
        directory = Path(given.get("default_root_dir") or default_run_dir())
        kwargs.setdefault("default_root_dir", str(directory))
        if given.get("logger") is None and not given.get("fast_dev_run"):
            kwargs.setdefault("logger", _Curves(directory, name="", version="", default_hp_metric=False))
        callbacks = list(given.get("callbacks") or [])
        wanted = given.get("enable_checkpointing") is not False and not given.get("fast_dev_run")
        if wanted and not any(isinstance(each, Checkpoint) for each in callbacks):
            kwargs.setdefault("callbacks", [*callbacks, _LastCheckpoint(directory, int(given.get("max_steps") or 0))])
        trainer: L.Trainer = super().instantiate_trainer(**kwargs)
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
        """Sends the trainer's own checkpoints to the run directory; refuses several processes before they start."""
        if self.trainer.world_size != 1:
            raise InputError(f"Expected one process, got {self.trainer.world_size}; set trainer.devices to 1.")
        self._add_checkpoint()

    def after_fit(self) -> None:
        """Keeps the final state under a name that does not change."""
        if not self.trainer.fast_dev_run:  # type: ignore[attr-defined]
            self.trainer.save_checkpoint(Path(self.trainer.default_root_dir) / "checkpoints" / "last.ckpt")
