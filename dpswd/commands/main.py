"""The command line: ``dpswd fit|validate|test|predict`` is a LightningCLI, the rest are small commands.

Exit status: 0 done; 2 bad input, one line on stderr, no traceback; 1 everything else.
"""

import argparse
import datetime
import json
import logging
import os
import pickle
import re
import signal
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpswd import __version__
from dpswd.commands import Command
from dpswd.commands.configs import config_path
from dpswd.errors import DpswdError, InputError, LedgerError, ProcessLostError

if TYPE_CHECKING:
    from lightning.pytorch.cli import LightningCLI

__all__ = ["fit", "main"]

LIGHTNING = {
    "fit": "train a generator or an adapted classifier within a privacy budget",
    "validate": "run the validation loop of a module",
    "test": "run the test loop of a module",
    "predict": "turn a checkpoint into synthetic records",
}
COMMAND_MODULES = {
    "account": ("account", "calibrate", "plan"),
    "audit": ("audit",),
    "report": ("report",),
    "ledger": ("ledger",),
    "demo": ("demo",),
    "configs": ("configs",),
    "diagnostics": ("wdp", "tangent"),
}


def _commands(wanted: str | None) -> dict[str, Command]:
    """Imports the module of one command, or all of them where none is named (for ``--help``)."""
    found: dict[str, Command] = {}
    for module, names in COMMAND_MODULES.items():
        if wanted in names or not any(wanted in others for others in COMMAND_MODULES.values()):
            found.update(import_module(f"dpswd.commands.{module}").COMMANDS)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    follows = _is_follower()
    try:
        if arguments and arguments[0] in LIGHTNING:
            fit(arguments)
            return 0
        return _small(arguments)
    except DpswdError as error:
        # Rank 0 raises the same error and ends the run; a failure here would make the launcher kill rank 0 first.
        if follows and not isinstance(error, ProcessLostError):
            return 0
        print(f"dpswd: {_one_line(error)}", file=sys.stderr)
        return 2 if isinstance(error, InputError | LedgerError) else 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _small(arguments: list[str]) -> int:
    commands = _commands(arguments[0] if arguments else None)
    parser = _Parser(prog="dpswd", description="Differentially private sliced Wasserstein distances.")
    parser.add_argument("--version", action="version", version=f"dpswd {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    for name, text in LIGHTNING.items():
        subparsers.add_parser(name, help=text, add_help=False)
    for name, command in commands.items():
        subparser = subparsers.add_parser(name, help=command.help, description=command.help)
        command.add_arguments(subparser)
        subparser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parsed = parser.parse_args(arguments)
    command = commands[parsed.command]
    result = command.run(parsed)
    if parsed.json:
        print(json.dumps(result))
    else:
        command.show(result)
    return 0 if result.get("passed", True) else 1  # an audit that refuted a claim


def fit(arguments: Sequence[str]) -> "LightningCLI":
    """Runs ``fit``, ``validate``, ``test`` or ``predict`` and returns the LightningCLI, whose objects tests look at.

    Raises:
        InputError: If an option, a config key or a value does not fit.
    """
    try:
        from jsonargparse import ArgumentError
        from lightning.fabric.utilities.exceptions import MisconfigurationException
        from lightning.pytorch.utilities.exceptions import SIGTERMException

        from dpswd.training.cli import PrivateCLI
    except ImportError as error:
        raise InputError(
            f"Expected the extra packages for training, got: {error}; pip install 'dpswd[train]'."
        ) from None
    _quiet()
    try:
        return PrivateCLI(args=_with_config_paths(arguments))
    except SIGTERMException:  # an exit without a status, as if all were done
        raise SystemExit(128 + signal.SIGTERM) from None
    except ArgumentError as error:
        raise InputError(_config_message(str(error))) from None
    except ValueError as error:  # what a class of the config refused, wrapped by jsonargparse
        if isinstance(error, UnicodeDecodeError):
            raise InputError("Expected a config in UTF-8, got other bytes; check the file.") from None
        if isinstance(error, InputError) or not str(error).startswith("Does not validate against"):
            raise
        said = _said(str(error))
        said = said if said.startswith("Expected") else f"Expected a config that fits, got: {said}."
        raise InputError(said) from None
    except MisconfigurationException as error:  # a module without the steps of the command, a trainer's contradiction
        raise InputError(f"Expected a trainer, module and data that fit, got: {error}") from None
    except (pickle.UnpicklingError, EOFError, RuntimeError) as error:  # from torch.load
        if isinstance(error, ProcessLostError):
            raise
        if isinstance(error, RuntimeError) and _LOST.search(str(error)):  # between releases: gradients, a checkpoint
            from dpswd._distributed import lost

            raise lost(error) from None
        if isinstance(error, RuntimeError) and "PytorchStreamReader" not in str(error):
            raise
        raise InputError("Expected a checkpoint at --ckpt_path, got a file that is none; see checkpoints/.") from None


def _with_config_paths(arguments: Sequence[str]) -> list[str]:
    """Replaces the name of a shipped config after ``--config`` by its path."""
    result = list(arguments)
    for i, argument in enumerate(result):
        if argument == "--config" and i + 1 < len(result):
            result[i + 1] = str(config_path(result[i + 1]))
        elif argument.startswith("--config="):
            result[i] = f"--config={config_path(argument.removeprefix('--config='))}"
    return result


_LOST = re.compile(r"gloo|NCCL|[Cc]onnection (closed|reset)|Broken pipe")
_CHATTER = re.compile(
    r"Does not validate against|Subtypes: |Errors:|Expected a <class 'NoneType'>|Given value|Expected a path but|"
    r"Not a valid subclass|Subclass types expect|a (dict|class path) "
)


def _said(text: str) -> str:
    """Keeps what jsonargparse says about the mistake, without its lists of what it tried."""
    lines = [line.strip().removeprefix("- ") for line in text.splitlines()]
    kept = [line for line in lines if line and not _CHATTER.match(line)]
    return "; ".join(kept).replace(":; ", ": ")


def _config_message(text: str) -> str:
    return f"Expected a config that fits, got: {_said(text)} (dpswd fit --help lists the keys)."


def _quiet() -> None:
    """Silences what a user can do nothing about; everything else is shown."""
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(
        lambda record: (
            not any(
                word in record.getMessage() for word in ("litlogger", "litmodels", "Tip:", "`weights_only` was not set")
            )
        )
    )
    for message in (
        ".*does not have many workers.*",  # the private records are tensors in memory
        ".*LightningCLI's args parameter is intended.*",  # main() passes them on
        ".*isinstance.treespec, LeafSpec.. is deprecated.*",  # inside Lightning
        ".*Using ModelCheckpoint with manual optimization.*",  # the state after a step is what is wanted
        ".*Be aware that when using `ckpt_path`, callbacks.*",  # predict needs no checkpoint callback of the fit's step
        ".*Checkpoint directory .* exists and is not empty.*",  # a resumed run
        ".*find_unused_parameters=True was specified.*",  # asked for by us, for modules that need it
    ):
        warnings.filterwarnings("ignore", message=message)


def default_run_dir() -> Path:
    """Names a directory for a run that names none."""
    return Path("runs") / datetime.datetime.now(tz=datetime.UTC).strftime("%Y%m%d-%H%M%S")


def _is_follower() -> bool:
    """Says whether this is another process than the first of several that train together."""
    rank = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0"
    return rank not in ("", "0") and "WORLD_SIZE" in os.environ


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise InputError(f"Expected valid options for {self.prog}, got: {message} ({self.prog} --help lists them).")


if __name__ == "__main__":
    sys.exit(main())
