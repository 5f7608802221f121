"""The command ``dpswd``: ``fit`` and ``predict`` are a LightningCLI, the others are small commands.

Exit status: 0 done; 2 invalid input, with one line on stderr and no traceback; 1 everything else.
"""

import argparse
import json
import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpswd import __version__
from dpswd.commands import Command
from dpswd.commands.configs import config_path
from dpswd.errors import DpswdError, InputError, LedgerError, ProcessLostError

if TYPE_CHECKING:
    from lightning.pytorch.cli import LightningCLI

LIGHTNING = {
    "fit": "fit a generator or an adapted classifier within a privacy budget",
    "predict": "sample synthetic records from a checkpoint, or predict classes (CLASSIFIER.pt RECORDS.npz)",
}
COMMAND_MODULES = {
    "demo": ("demo",),
    "configs": ("configs",),
    "predict": ("predict",),
    "forecast": ("forecast",),
    "account": ("account", "calibrate"),
    "ledger": ("ledger",),
    "report": ("report",),
    "audit": ("audit",),
    "diagnostics": ("wdp", "tangent"),
}


def _commands(name: str | None) -> dict[str, Command]:
    """Import the module of one command, or of all if ``name`` is not a command."""
    known = any(name in names for names in COMMAND_MODULES.values())
    found: dict[str, Command] = {}
    for module, names in COMMAND_MODULES.items():
        if name in names or not known:
            found.update(import_module(f"dpswd.commands.{module}").COMMANDS)
    return found


@contextmanager
def _training_packages() -> Iterator[None]:
    """Say what to install where a package of the extra ``train`` is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InputError(f"Expected the packages for training, got: {error}; pip install 'dpswd[train]'.") from None


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    follows = _is_follower()
    try:
        if arguments and arguments[0] in LIGHTNING and not _is_prediction(arguments):
            return _lightning(arguments)
        return _small(arguments)
    except DpswdError as error:
        # Rank 0 raises the same error and ends the run; a failure here would make the launcher kill rank 0 first.
        if follows and not isinstance(error, ProcessLostError):
            return 0
        print(f"dpswd: {_one_line(error)}", file=sys.stderr)
        return 2 if isinstance(error, InputError | LedgerError) else 1
    except BrokenPipeError:  # the reader of stdout has gone, as in: dpswd ... | head -1
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _is_prediction(arguments: Sequence[str]) -> bool:
    """Whether the arguments are ``predict CLASSIFIER.pt RECORDS.npz``."""
    return arguments[0] == "predict" and len(arguments) > 1 and not arguments[1].startswith("-")


def _lightning(arguments: list[str]) -> int:
    if "--json" not in arguments:
        fit(arguments)
        return 0
    with redirect_stdout(sys.stderr):
        directory = Path(fit([each for each in arguments if each != "--json"]).trainer.default_root_dir)
    privacy = directory / "privacy.json"
    facts = json.loads(privacy.read_text()) if privacy.is_file() else None
    print(json.dumps({"run_dir": str(directory), "privacy": facts}))
    return 0


def _small(arguments: list[str]) -> int:
    commands = _commands(arguments[0] if arguments else None)
    parser = _Parser(
        prog="dpswd",
        description="Differentially private generators, adapted classifiers and sliced Wasserstein distances.",
        epilog="dpswd COMMAND --help explains a command. Every command takes --json and then prints one JSON object.",
    )
    parser.add_argument("--version", action="version", version=f"dpswd {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    for name, text in LIGHTNING.items():
        if name in commands:
            continue
        subparsers.add_parser(name, help=text, add_help=False)
    for name, command in commands.items():
        subparser = subparsers.add_parser(name, help=command.help, description=command.help)
        command.add_arguments(subparser)
        subparser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parsed = parser.parse_args(arguments)
    command = commands[parsed.command]
    with _training_packages():
        result = command.run(parsed)
    if parsed.json:
        print(json.dumps(result))
    else:
        command.show(result)
    return 0 if result.get("passed", True) else 1  # an audit that refuted a claim


def fit(arguments: Sequence[str], run: bool = True) -> "LightningCLI":
    """Run ``fit`` or ``predict`` and return the LightningCLI.

    With ``run=False``, ``arguments`` name no subcommand; the classes are instantiated and nothing is run.

    Raises:
        InputError: If an option, a config key or a value is not valid.
    """
    with _training_packages():
        from jsonargparse import ArgumentError
        from lightning.fabric.utilities.exceptions import MisconfigurationException
        from lightning.pytorch.utilities.exceptions import SIGTERMException

        from dpswd.training.cli import PrivateCLI
    _quiet()
    try:
        return PrivateCLI(args=_with_config_paths(arguments), run=run)
    except SIGTERMException:  # Lightning would exit with status 0
        raise SystemExit(128 + signal.SIGTERM) from None
    except (ArgumentError, MisconfigurationException) as error:
        cause = _cause(error)
        raise cause or InputError(f"Expected a valid config, got: {_one_line(error)} (dpswd fit --help).") from None
    except ValueError as error:
        cause = _cause(error)  # jsonargparse wraps the errors of the classes that it instantiates
        if cause is None:
            raise
        raise cause from None
    except RuntimeError as error:
        # torch.distributed has no exception class for a lost connection
        if not isinstance(error, DpswdError) and any(
            word in str(error) for word in ("gloo", "NCCL", "onnection closed")
        ):
            from dpswd._distributed import lost

            raise lost(error) from None
        raise


def _cause(error: BaseException | None) -> DpswdError | None:
    """Return the error of this package that another exception was raised from, or while handling."""
    while error is not None and not isinstance(error, DpswdError):
        error = error.__cause__ or error.__context__
    return error


def _with_config_paths(arguments: Sequence[str]) -> list[str]:
    """Replace the name of a shipped config by its path."""
    result = list(arguments)
    for i, argument in enumerate(result):
        if argument == "--config" and i + 1 < len(result):
            result[i + 1] = str(config_path(result[i + 1]))
        elif argument.startswith("--config="):
            result[i] = f"--config={config_path(argument.removeprefix('--config='))}"
    return result


def _quiet() -> None:
    """Hide messages of Lightning about settings that are intended."""
    words = ("litlogger", "litmodels", "Tip:", "`weights_only` was not set")
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(
        lambda record: not any(word in record.getMessage() for word in words)
    )
    for message in (
        ".*does not have many workers.*",  # the records are tensors in memory
        ".*LightningCLI's args parameter is intended.*",  # main() passes its arguments
        ".*isinstance.treespec, LeafSpec.. is deprecated.*",  # inside Lightning
        ".*Using ModelCheckpoint with manual optimization.*",  # checkpoints are written after a step
        ".*Be aware that when using `ckpt_path`, callbacks.*",  # predict needs no checkpoint callback
        ".*Checkpoint directory .* exists and is not empty.*",  # a resumed run
        ".*find_unused_parameters=True was specified.*",  # needed by modules that train a part of their parameters
    ):
        warnings.filterwarnings("ignore", message=message)


def _is_follower() -> bool:
    """Whether this process has a rank above 0 in a distributed run."""
    rank = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0"
    return rank not in ("", "0") and "WORLD_SIZE" in os.environ


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise InputError(f"Expected valid options for {self.prog}, got: {message} ({self.prog} --help lists them).")


if __name__ == "__main__":
    sys.exit(main())
