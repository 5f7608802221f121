"""The LightningCLI behind ``dpswd fit``: the budget is part of the config.

A run has one directory, ``trainer.default_root_dir``. It gets config.yaml, ledger.jsonl,
privacy.json, releases/, checkpoints/last.ckpt, lightning_logs/ and the files of the callbacks in
the config; a resumed run with other options adds resumed.yaml.
"""

import datetime
import logging
import math
import shlex
import sys
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any, cast

import lightning as L
import yaml  # type: ignore[import-untyped]
from lightning.pytorch.callbacks import Checkpoint, ProgressBar, TQDMProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import TensorBoardLogger

from dpswd._files import atomic_write
from dpswd._progress import say
from dpswd.budget.budget import NOISE_FREE, Budget, differences
from dpswd.errors import DpswdError, InputError
from dpswd.lightning.budget import PrivacyBudget, budget_of
from dpswd.lightning.checkpoints import AtomicCheckpointIO, LastCheckpoint
from dpswd.report.render import write_report
from dpswd.report.run_files import RESUMED

# Loggers whose lines on hardware, seeds and advice are not shown; warnings are.
_QUIET_LOGGERS = ("lightning.pytorch", "lightning.fabric")

# Checkpoints that Lightning looks for by itself; other values of --ckpt_path are files.
_KEYWORDS_OF_CKPT_PATH = ("last", "best", "hpc")

# Lines about a training without a progress bar.
_N_LINES = 10

# Metrics of the budget, as a line about the training calls them.
_SHOWN_AS = {
    "epsilon_pld": "epsilon by PLD",
    "epsilon_rdp": "looser bound by RDP",
    "target_epsilon": "target",
}

# Options that say where a resumed run goes on, and not how.
_OF_EVERY_RESUMED_RUN = ("ckpt_path", "trainer.default_root_dir")

# What a resumed run says whose steps were all made before.
_FINISHED_BEFORE = (
    "This run had made all its steps before: nothing was trained, released or spent now. To train "
    "on, pass a larger --trainer.max_steps."
)

# Ways to start processes that torch cannot join to a run.
_LOCAL_STRATEGIES = ("spawn", "fork", "notebook")


class _Parser(LightningArgumentParser):
    """Parser that remembers the error of a class of the config.

    Where an option may have several types, jsonargparse tries all of them. It raises an error with
    the texts of all of theirs, and not from the one that a user can act on.

    Attributes:
        refusal: The last error of this package that a class raised while it was made.
    """

    refusal: DpswdError | None = None

    def add_instantiator(
        self, instantiator: Callable[..., Any], *args: Any, **options: Any
    ) -> None:
        """Add a function that makes objects of a class, and remember its errors."""

        @wraps(instantiator)  # jsonargparse reads its signature
        def remembering(*values: Any, **arguments: Any) -> Any:
            try:
                return instantiator(*values, **arguments)
            except DpswdError as error:
                self.refusal = error
                raise

        super().add_instantiator(remembering, *args, **options)


def _make(class_type: type, *args: Any, **options: Any) -> Any:
    return class_type(*args, **options)


class PrivateCLI(LightningCLI):
    """Command line of any LightningModule and data module, with a privacy budget."""

    def __init__(self, args: list[str]) -> None:
        for name in _QUIET_LOGGERS:
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
            parser_class=_Parser,
            parser_kwargs={**options, "fit": dict(options)},
            args=args,
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Offer ``fit`` only.

        Validation and test loops make no release, and ``dpswd sample`` draws records.
        """
        return {"fit": LightningCLI.subcommands()["fit"]}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the options of :class:`PrivacyBudget` as ``--privacy.*``."""
        parser.add_lightning_class_args(PrivacyBudget, "privacy")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse, and check the checkpoint and the run directory.

        The checkpoint is verified before Lightning reads hyperparameters from it.

        Raises:
            InputError: If the checkpoint is damaged, a new run has the directory of another, or a
                ``--lr_scheduler`` has no ``--optimizer``.
        """
        super().parse_arguments(parser, args)
        if self.config.get("fit.lr_scheduler") and not self.config.get("fit.optimizer"):
            raise InputError(
                "Expected --optimizer beside --lr_scheduler, got none; Lightning would not use the "
                "schedule, and the module has an optimizer and a schedule of its own."
            )
        checkpoint = self.config.get("fit.ckpt_path")
        directory = self.config.get("fit.trainer.default_root_dir")
        if checkpoint is not None:
            if checkpoint not in _KEYWORDS_OF_CKPT_PATH:
                AtomicCheckpointIO().load_checkpoint(checkpoint, weights_only=True)
        elif directory and not Budget.is_free(directory):
            resume = shlex.join(["--ckpt_path", f"{directory}/checkpoints/last.ckpt"])
            raise InputError(
                f"Expected a new run directory, got {directory}, which holds the ledger of a run; "
                f"resume with {resume}, or set another --trainer.default_root_dir for a further "
                "run, which spends a budget of its own: on the same records, the budgets add up."
            )

    def before_instantiate_classes(self) -> None:
        """Remember the errors of all classes; Lightning adds instantiators of its own."""
        self.parser.add_instantiator(_make, object)

    def instantiate_classes(self) -> None:
        """Make the objects of the config.

        Raises:
            InputError: If a class of the config refuses its arguments.
        """
        try:
            super().instantiate_classes()
        except ValueError as error:
            refusal = cast(_Parser, self.parser).refusal
            if refusal is None or isinstance(error, DpswdError):
                raise
            raise refusal from None

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        """Set directory, logger, checkpoints and progress bar where the config does not."""
        options = self.config_init["fit"]["trainer"]
        directory = Path(options.get("default_root_dir") or _dated_directory())
        callbacks = _as_list(options.get("callbacks"))
        if _has_default_logger(options):
            kwargs.setdefault("logger", False)
            callbacks.append(_TensorBoard())
        has_bar = _needs_progress_bar(options, callbacks)
        if has_bar and sys.stdout.isatty():
            callbacks.append(StepProgressBar())
        elif has_bar or options.get("enable_progress_bar") is False:
            kwargs.setdefault("enable_progress_bar", False)
            callbacks.append(_StepLines())
        self._plan_line = _PlanLine()
        callbacks.append(self._plan_line)
        if _needs_checkpoints(options, callbacks):
            callbacks.append(LastCheckpoint(directory))
        plugins = [*_as_list(options.get("plugins")), AtomicCheckpointIO()]
        kwargs.setdefault("default_root_dir", str(directory))
        kwargs.setdefault("callbacks", callbacks)
        kwargs.setdefault("plugins", plugins)
        return super().instantiate_trainer(**kwargs)

    def before_fit(self) -> None:
        """Raise an InputError for processes that cannot join each other."""
        world_size = self.trainer.world_size
        strategy = str(self.config.get("fit.trainer.strategy"))
        if world_size != 1 and any(word in strategy for word in _LOCAL_STRATEGIES):
            raise InputError(
                f"Expected trainer.strategy=ddp for {world_size} processes, got {strategy}; "
                "use ddp, or trainer.devices=1."
            )
        say("Reading the records.")

    def after_fit(self) -> None:
        """Write the final state and the report, and show the guarantee.

        The state goes to ``checkpoints/last.ckpt``, unless ``enable_checkpointing`` is false.
        """
        trainer: Any = self.trainer
        if _keeps_checkpoints(self.config_init["fit"]["trainer"]):
            last = Path(trainer.default_root_dir) / "checkpoints" / "last.ckpt"
            trainer.save_checkpoint(last, weights_only=False)
        is_resumed = self.config.get("fit.ckpt_path") is not None
        if is_resumed and not self._plan_line.has_started:
            say(_FINISHED_BEFORE)
        privacy = self.config_init["fit"]["privacy"]
        if privacy.is_unprotected:
            say(privacy.notice)
        elif trainer.is_global_zero:
            statement = privacy.statement()
            say(statement.in_words())
            if not trainer.fast_dev_run:
                write_report(trainer.default_root_dir)
                say(f"Report: {Path(trainer.default_root_dir) / 'report.html'}")


# Options of the trainer


def _dated_directory() -> str:
    """Return the directory of a run whose config names none: the time of its start."""
    now = datetime.datetime.now(tz=datetime.UTC)
    return f"runs/{now:%Y%m%d-%H%M%S}"


def _has_default_logger(options: Any) -> bool:
    return options.get("logger") is None and not options.get("fast_dev_run")


def _needs_progress_bar(options: Any, callbacks: list[Any]) -> bool:
    if options.get("enable_progress_bar") is False:
        return False
    return not any(isinstance(callback, ProgressBar) for callback in callbacks)


def _keeps_checkpoints(options: Any) -> bool:
    return options.get("enable_checkpointing") is not False and not options.get("fast_dev_run")


def _needs_checkpoints(options: Any, callbacks: list[Any]) -> bool:
    if not _keeps_checkpoints(options):
        return False
    return not any(isinstance(callback, Checkpoint) for callback in callbacks)


def _as_list(value: Any) -> list[Any]:
    """Return the entries of an option of the trainer that takes one object or a list."""
    if isinstance(value, list | tuple):
        return list(value)
    if value:
        return [value]
    return []


# Callbacks of the command line


class StepProgressBar(TQDMProgressBar):
    """The progress bar of Lightning with the name ``training``.

    Lightning names its bar after the number of the epoch, and most runs have one epoch.
    """

    def on_train_epoch_start(self, *_: Any) -> None:
        """Start and name the bar."""
        self.train_progress_bar.reset(self.total_train_batches)
        self.train_progress_bar.set_description("training")


class _PlanLine(L.Callback):
    """Says what is released before the first step, which may take minutes.

    Attributes:
        has_started: Whether a training has started; not if a resumed run had made all its steps.
    """

    def __init__(self) -> None:
        self.has_started = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the line; the budget has calibrated the noise before."""
        self.has_started = True
        budget = budget_of(trainer)
        if budget is not None and not budget.is_unprotected:
            say(_line_of_plan(budget, trainer.global_step))


def _line_of_plan(privacy: PrivacyBudget, step: int) -> str:
    """Return what a run is about to do."""
    n_left = privacy.plan.n_releases - privacy.n_releases
    if not n_left:
        return f"Training from step {step:,}; all releases are made."
    if privacy.releases_before_training:
        names = ", ".join(part.mechanism.released for part in privacy.plan.parts)
        return f"Releasing once, before the first step: {names}. The steps cost no privacy."
    return f"Training with {n_left:,} releases."


class _StepLines(L.Callback):
    """Writes a line at every tenth of the steps, where there is no progress bar."""

    def __init__(self) -> None:
        self._n_written = 0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin at the step of the checkpoint."""
        self._n_written = _tenths(trainer)

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        """Write a line with the values that a bar shows."""
        n_tenths = _tenths(trainer)
        if n_tenths <= self._n_written:
            return
        self._n_written = n_tenths
        values = []
        for name, value in trainer.progress_bar_metrics.items():
            values.append(f"{_SHOWN_AS.get(name, name)} {value:.4g}")
        place = f"step {trainer.global_step:,} of {trainer.estimated_stepping_batches:,}"
        say(", ".join([f"training: {place}", *values]))


def _tenths(trainer: L.Trainer) -> int:
    """Return how many tenths of the steps are made; 0 without a limit."""
    n_steps = trainer.estimated_stepping_batches
    if not 0 < n_steps < math.inf:
        return 0
    return int(_N_LINES * trainer.global_step // n_steps)


class _SaveConfig(SaveConfigCallback):
    """Writes the config of a fit to its run directory right before the ledger.

    A run that is refused before its ledger is written leaves no file. The ledger names the config
    by its SHA-256, so that a resumed run leaves it as it is, and writes what differs to
    ``resumed.yaml``.
    """

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the options of a resumed run that differ from its config."""
        directory = Path(trainer.default_root_dir)
        path = directory / "config.yaml"
        if trainer.ckpt_path is None or not trainer.is_global_zero or not path.is_file():
            return
        try:
            before = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, ValueError):  # was edited
            return
        now = yaml.safe_load(self.parser.dump(self.config, skip_none=False))
        changed = {name: value for name, _, value in differences(before, now)}
        for name in _OF_EVERY_RESUMED_RUN:
            changed.pop(name, None)
        resumed = directory / RESUMED
        if changed:
            atomic_write(resumed, yaml.safe_dump(changed, sort_keys=False).encode())
        else:
            resumed.unlink(missing_ok=True)

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        any_trainer: Any = trainer
        budget = budget_of(trainer)
        if stage == "fit" and budget is not None and not any_trainer.fast_dev_run:
            budget.before_ledger = partial(self._write, Path(trainer.default_root_dir))

    def _write(self, directory: Path) -> None:
        config = self.parser.dump(self.config, skip_none=False)
        if math.isinf(self.config.privacy.target_epsilon):
            config = f"# {NOISE_FREE}\n{config}"
        try:
            atomic_write(directory / "config.yaml", config.encode())
        except InputError as error:
            raise InputError(f"{error} Set trainer.default_root_dir.") from None


class _TensorBoard(L.Callback):
    """Logs to TensorBoard from the first step on; a refused run leaves no file."""

    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.logger is None:
            trainer.logger = TensorBoardLogger(trainer.default_root_dir, version="")
