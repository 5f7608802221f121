"""The LightningCLI behind ``dpswd fit``: the budget is part of the config, and a run keeps everything in one directory.

``trainer.default_root_dir`` is the run directory. It gets config.yaml, ledger.jsonl, privacy.json, TensorBoard events,
checkpoints/last.ckpt, and what the callbacks of the config add.
"""

from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import TensorBoardLogger

from dpswd.errors import InputError
from dpswd.training import PrivacyBudget

__all__ = ["PrivateCLI"]


class _SaveConfig(SaveConfigCallback):
    """Keeps the config of a fit in its run directory; other commands leave it alone."""

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if stage != "fit" or trainer.fast_dev_run:
            return
        directory = Path(trainer.default_root_dir)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if not (directory / "ledger.jsonl").exists():  # a resumed run keeps the config that it was started with
                self.parser.save(
                    self.config, directory / "config.yaml", skip_none=False, overwrite=True, multifile=False
                )
        except OSError as error:
            raise InputError(
                f"Expected to write into {directory} (trainer.default_root_dir), got: {error.strerror}; "
                "choose a writable directory."
            ) from None


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
            parser_kwargs={"exit_on_error": False} if not run else {
                name: {"exit_on_error": False} for name in ("fit", "validate", "test", "predict")
            } | {"exit_on_error": False},
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
            kwargs.setdefault("logger", TensorBoardLogger(directory, name="", version="", default_hp_metric=False))
        trainer: L.Trainer = super().instantiate_trainer(**kwargs)
        return trainer

    def _add_checkpoint(self) -> None:
        directory = Path(self.trainer.default_root_dir) / "checkpoints"
        for callback in self.trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint) and callback.dirpath is None:
                callback.dirpath = str(directory)

    def before_fit(self) -> None:
        """Sends the trainer's own checkpoints to the run directory."""
        self._add_checkpoint()

    def after_fit(self) -> None:
        """Keeps the final state under a name that does not change."""
        if not self.trainer.fast_dev_run:
            self.trainer.save_checkpoint(Path(self.trainer.default_root_dir) / "checkpoints" / "last.ckpt")
