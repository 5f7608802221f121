"""``dpswd fit``: the command line of Lightning, with errors in one line.

The imports take some seconds, so :mod:`dpswd.commands.main` answers ``dpswd fit --help`` without
this module.
"""

import re
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import yaml  # type: ignore[import-untyped]
from jsonargparse import ArgumentError
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.exceptions import SIGTERMException
from yaml.parser import ParserError  # type: ignore[import-untyped]
from yaml.scanner import ScannerError  # type: ignore[import-untyped]

from dpswd._distributed import lost
from dpswd.commands._config_errors import other_parameters, refused_class
from dpswd.commands._fit_help import HELP, asks_for_full_help
from dpswd.commands._unknown import refused_words
from dpswd.commands.configs import commands_of, config_path
from dpswd.errors import DpswdError, InputError
from dpswd.lightning.cli import PrivateCLI

# Warnings of Lightning about settings that are intended here.
_INTENDED = (
    # Batches are handles, and no worker has to load them.
    ".*does not have many workers.*",
    # main() passes its arguments to the LightningCLI.
    ".*LightningCLI's args parameter is intended.*",
    # Raised inside Lightning.
    ".*isinstance.treespec, LeafSpec.. is deprecated.*",
    ".*is smaller than the logging interval.*",
    # A resumed run has checkpoints.
    ".*Checkpoint directory .* exists and is not empty.*",
    # Checkpoints are written after a step, also of modules that make it by themselves.
    ".*Using ModelCheckpoint with manual optimization.*",
    # Modules that train a part of their parameters need this setting.
    ".*find_unused_parameters=True was specified.*",
)

# Option of the budget, and how people spell one without noise.
_EPSILON = "--privacy.target_epsilon"
_INFINITE = ("inf", "infinity", "Infinity")

# Spellings of the option that names a config.
_CONFIG = ("--config", "-c")

# Lightning's sentence about a metric that was not logged when an EarlyStopping asked for it.
_NO_METRIC = "Early stopping conditioned on metric"

# What jsonargparse says about an option that it does not know.
_UNKNOWN_OPTION = re.compile(r"[Uu]nrecognized arguments: (-\S+)")

# What is wrong with a config that lacks a number of its budget, and what to do.
_NO_BUDGET = (
    "one without a complete budget; set target_epsilon, as 10, and target_delta well below one "
    "over the number of records, as 1e-5"
)

# torch.distributed has no exception class for a lost connection, only these words in the message.
_LOST_CONNECTION = ("gloo", "NCCL", "onnection closed")


def fit(arguments: Sequence[str]) -> PrivateCLI:
    """Run ``fit`` and return the LightningCLI."""
    for message in _INTENDED:
        warnings.filterwarnings("ignore", message=message)
    _import_from_working_folder()
    options = list(arguments)
    _check_config(options)
    if asks_for_full_help(options):
        options.remove("all")
    with _errors_of_this_package():
        return PrivateCLI(_as_yaml(options))


def _check_config(arguments: Sequence[str]) -> None:
    """Refuse a command without a config, and configs of other commands.

    A config of Lightning has groups of keys: model, data, trainer, privacy.
    """
    configs = _configs_in(arguments)
    if not configs and len(arguments) == 1:
        raise InputError(
            "Expected --config NAME|FILE, got none; pass a shipped config, which dpswd configs "
            "lists, or a file."
        )
    _check_order(arguments, max(configs, default=0))
    for name in configs.values():
        content = None
        try:
            content = yaml.safe_load(config_path(name).read_text(encoding="utf-8"))
        except (ScannerError, ParserError) as error:
            raise InputError(_syntax_error(name, error)) from None
        except (yaml.YAMLError, ValueError):  # ValueError: a date such as 2026-02-30
            pass  # reported by the parser of Lightning
        others = []
        if isinstance(content, dict) and content:
            others = commands_of(content)
        if others and others != ["fit"]:
            raise InputError(
                f"Expected a config of dpswd fit, got {name}, which has constants of dpswd "
                f"{others[0]}; run that, or choose a config with a model, which dpswd configs "
                "lists."
            )


def _check_order(arguments: Sequence[str], last_config: int) -> None:
    """Refuse options before a config, which the file would silently replace.

    Args:
        arguments: The words of the command line.
        last_config: Position of the last config among them.
    """
    options = [text.partition("=")[0] for text in arguments[:last_config] if text.startswith("--")]
    others = [option for option in options if option not in _CONFIG]
    if others:
        raise InputError(
            f"Expected options behind --config, got {others[0]} before it, where the file takes "
            "its place; put it behind the file."
        )


def _configs_in(arguments: Sequence[str]) -> dict[int, str]:
    """Return the names of the configs by their positions among the arguments."""
    configs = {}
    for position, (previous, argument) in enumerate(pairwise(["", *arguments])):
        name = _config_name(previous, argument)
        if name is not None:
            configs[position] = name
    return configs


def _config_name(previous: str, argument: str) -> str | None:
    """Return the name of a config in an argument, ``None`` if it has none.

    Args:
        previous: The argument before it.
        argument: A name after ``--config`` or ``-c``, or the option and the name in one.
    """
    if previous in _CONFIG:
        return argument
    if argument in _CONFIG:
        return None
    for prefix in ("--config=", "-c=", "-c"):
        if argument.startswith(prefix):
            return argument.removeprefix(prefix)
    return None


def _syntax_error(name: str, error: yaml.MarkedYAMLError) -> str:
    """Return where the YAML of a config is wrong, and why."""
    place = ""
    if error.problem_mark is not None:
        mark = error.problem_mark
        place = f" in line {mark.line + 1}, column {mark.column + 1}"
    return (
        f"Expected YAML in {name}, got a syntax error{place}: {error.problem}; check the "
        "indentation there."
    )


def _import_from_working_folder() -> None:
    """Let a config name classes of modules in the working folder.

    Installed packages come first. The parent of the working folder, which autodp adds to the path,
    is removed: it would hide a module of the working folder by one of the same name.
    """
    folder = str(Path.cwd())
    sys.path[:] = [entry for entry in sys.path if entry != ".."]
    if folder not in sys.path:
        sys.path.append(folder)


@contextmanager
def _errors_of_this_package() -> Iterator[None]:
    """Turn exceptions of Lightning, jsonargparse and torch into those of this package."""
    try:
        yield
    except SystemExit as stop:
        # Lightning exits after Ctrl-C.
        if isinstance(stop.__context__, KeyboardInterrupt):
            raise stop.__context__ from None
        raise
    except SIGTERMException:
        # Lightning would exit with status 0.
        raise SystemExit(128 + signal.SIGTERM) from None
    except (ArgumentError, MisconfigurationException) as error:
        cause = _cause(error)
        if cause is not None:
            raise cause from None
        unknown = _UNKNOWN_OPTION.search(str(error))
        if unknown:
            raise refused_words("dpswd fit", [unknown[1]], HELP, "--help all") from None
        message = refused_class(str(error))
        if message is None:
            message = f"{_refused_option(str(error))} (dpswd fit --help)"
        raise InputError(f"Expected a valid config, got: {message}.") from None
    except RuntimeError as error:
        if isinstance(error, DpswdError):
            raise
        if str(error).startswith(_NO_METRIC):
            notes = getattr(error, "__notes__", [])
            words = " ".join([str(error), *notes])
            raise InputError(f"Expected a metric that the module logs, got: {words}") from None
        difference = other_parameters(str(error))
        if difference is not None:
            raise InputError(
                f"Expected the checkpoint of this network, got one of another, {difference}; "
                "resume with the config.yaml of the run of the checkpoint, or leave --ckpt_path "
                "out for a new run."
            ) from None
        if not any(word in str(error) for word in _LOST_CONNECTION):
            raise
        raise lost(error) from None


def _cause(error: BaseException | None) -> DpswdError | None:
    """Return the error of this package that another one was raised from, if any."""
    while error is not None and not isinstance(error, DpswdError):
        error = error.__cause__ or error.__context__
    return error


def _refused_option(message: str) -> str:
    """Return what a message of jsonargparse says about an option, else all of it.

    jsonargparse tries every type that a config may have and prints a page about all of them; the
    line about the last one names the option.
    """
    line = " ".join(message.split())
    # jsonargparse 4.40 prints the class of its internal record of the option.
    line = re.sub(r".*NestedArg\(key=('[^']*').*", r"Option \1 is not accepted", line)
    refused = re.findall(r"Option '[^']*' is not accepted", line)
    if refused:
        return str(refused[-1])
    # Of a config that has neither number of the budget, jsonargparse 4.53 names both, and 4.41 one.
    if "required" in line and re.search(r"privacy\.target_(epsilon|delta)", line):
        return _NO_BUDGET
    if "privacy.target_delta" in line:
        line += "; set privacy.target_delta well below one over the number of records, as 1e-5"
    return line


def _as_yaml(arguments: Sequence[str]) -> list[str]:
    """Replace names of shipped configs by paths, and spell infinite budgets as YAML."""
    result = []
    for previous, argument in pairwise(["", *arguments]):
        name = _config_name(previous, argument)
        if name is not None:
            option = argument.removesuffix(name)
            result.append(f"{option}{config_path(name)}")
        elif previous == _EPSILON and argument in _INFINITE:
            result.append(".inf")  # as YAML spells it
        elif argument in (f"{_EPSILON}={word}" for word in _INFINITE):
            result.append(f"{_EPSILON}=.inf")
        else:
            result.append(argument)
    return result
