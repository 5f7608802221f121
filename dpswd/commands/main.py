"""The command ``dpswd``: a table of commands, whose modules are imported on use.

Exit status: 0 done; 2 invalid input or a ledger that cannot be used, 130 interrupted, each with one
line on stderr and no traceback; 1 everything else, such as an audit or a verification that refutes
a claim. Nothing here imports torch, so that ``dpswd --help`` is quick.
"""

import argparse
import io
import json
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from dpswd import __version__
from dpswd._json import plain_values
from dpswd._progress import translated
from dpswd.commands._fit_help import HELP, asks_for_full_help, asks_for_help
from dpswd.commands._unknown import refused_command, refused_words
from dpswd.commands._words import in_options, in_options_of_fit
from dpswd.errors import DpswdError, InputError, LedgerError, ProcessLostError

COMMANDS = {  # modules of dpswd.commands, and their lines of --help
    "demo": "make and evaluate synthetic digits, in about a minute",
    "generate": "make synthetic records, and a generator of more, from a folder, file or benchmark",
    "sample": "draw more synthetic records from generator.pt; costs no privacy",
    "evaluate": "compare synthetic records with real ones, or test a classifier on real records",
    "attack": "try to find out who was in the private records, and compare with the guarantee",
    "adapt": "adapt a classifier from labelled public records to unlabelled private ones",
    "predict": "write the classes of new records, by classifier.pt",
    "forecast": "say what generate would give, by number and form of the records; spends nothing",
    "columns": "draft the file in which you state what the cells of a table can be",
    "fit": "train a network from a YAML file, in Lightning",
    "configs": "list the shipped YAML files, or print one",
    "report": "write the report of a run for a reviewer: report.html, report.md, report.json",
    "publish": "make a folder to publish: synthetic records, dataset card, report and ledger",
    "verify": "check a published folder, and compute its guarantee anew; needs no torch",
    "account": "compute epsilon and mu of releases from the noise, sigma",
    "calibrate": "compute the least noise, sigma, for a budget",
    "audit": "attack a release with known noise, and compare the result with the claim",
    "ledger": "show the releases of a run, or create a ledger that several runs share",
}

# An example of each command, which its --help shows; fit has a help of its own.
_RELEASE = "--dim 16 --n-projections 16 --sample-size 5000 --batch-size 1000"
EXAMPLES = {
    "demo": "demo",
    "generate": "generate photos --size 32 --channels 3 --classes birds cats dogs",
    "sample": "sample runs/photos/generator.pt -n 300 --out more",
    "evaluate": "evaluate runs/photos/synthetic.npz held_out",
    "attack": "attack runs/photos photos other_photos",
    "adapt": "adapt public scans --size 32 --channels 1",
    "predict": "predict runs/adapted/classifier.pt scans --out classes.csv",
    "forecast": "forecast --shape 28,28 --n 60000 --n-classes 10 --epsilon 1",
    "columns": "columns people.csv --target sick --out draft.yaml",
    "configs": "configs mnist_swd",
    "report": "report runs/photos",
    "publish": "publish runs/photos --out bundle --licence cc-by-4.0",
    "verify": "verify bundle",
    "account": f"account {_RELEASE} --n-releases 20 --sigma 0.5 --delta 1e-5",
    "calibrate": f"calibrate {_RELEASE} --n-releases 20 --epsilon 4 --delta 1e-5",
    "audit": f"audit {_RELEASE} --sigma 0.5",
    "ledger": "ledger show runs/photos",
}

DESCRIPTION = (
    "Differentially private generators, adapted classifiers and sliced Wasserstein distances."
)
EPILOG = (
    "dpswd COMMAND --help explains a command. "
    "Every command takes --json and then prints one JSON object."
)

_OPTIONS = ("-h", "--help", "--version")  # of dpswd itself

DONE = 0
FAILED = 1
INVALID_INPUT = 2
INTERRUPTED = 128 + 2  # as a shell reports SIGINT


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    if argv is None:
        argv = sys.argv[1:]
    arguments = list(argv)
    _write_any_character()
    words: Callable[[str], str] = in_options
    if arguments[:1] == ["fit"]:
        words = in_options_of_fit
    try:
        with warnings.catch_warnings(), translated(words):
            warnings.showwarning = partial(_show_warning, words)
            if not arguments:
                _parser(arguments).print_help()
                return DONE
            if arguments[:1] == ["fit"]:
                return _fit(arguments)
            return _run(arguments)
    except DpswdError as error:
        return _status_of(error, words)
    except KeyboardInterrupt as interrupt:
        print("dpswd: interrupted.", *getattr(interrupt, "__notes__", ()), file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of stdout has gone, as in: dpswd ... | head -1
        null_device = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null_device, sys.stdout.fileno())
        return FAILED
    except OSError as error:
        if error.filename is None:  # no file that the user could change
            raise
        return _status_of(_refused_file(error), words)


def _write_any_character() -> None:
    """Let stdout escape characters that its encoding lacks, as stderr does.

    For example, Latin-1 has no Greek letter mu, and UTF-8 no byte of a file name in Latin-1.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _refused_file(error: OSError) -> InputError:
    """Return the error of a file that the system does not let the command use."""
    return InputError(
        f"Expected to read or write {error.filename}, got: {error.strerror}; check the path and "
        "its permissions."
    )


def _status_of(error: DpswdError, words: Callable[[str], str]) -> int:
    """Print an error in the words of the command line; return the exit status."""
    # Rank 0 raises the same error and ends the run. If another rank failed here, the launcher would
    # kill rank 0 before its message is printed.
    if _is_follower() and not isinstance(error, ProcessLostError):
        return DONE
    message = words(" ".join(str(error).split()))
    print(f"dpswd: {message}", file=sys.stderr)
    if isinstance(error, InputError | LedgerError):
        return INVALID_INPUT
    return FAILED


# Commands with options of their own


def _run(arguments: list[str]) -> int:
    """Run a command of the table other than ``fit``; return the exit status."""
    if arguments[0] not in (*COMMANDS, *_OPTIONS):
        raise refused_command(arguments[0], list(COMMANDS))
    options = _parser(arguments).parse_args(arguments)
    command = _command(options.command)
    words = partial(in_options, names=vars(options))
    warnings.showwarning = partial(_show_warning, words)
    try:
        with _packages():
            result = command.run(options)
    except InputError as error:
        raise InputError(words(str(error))) from error
    except KeyboardInterrupt as interrupt:
        note = _after_interrupt(options, arguments)
        if note:
            interrupt.add_note(note)
        raise
    if _is_follower():
        return DONE
    if options.json:
        print(json.dumps(plain_values(result), allow_nan=False))
    else:
        command.show(result)
    # An audit and a verification pass or fail: they fail if they refute a claim.
    if not result.get("passed", True):
        return FAILED
    return DONE


def _parser(arguments: list[str]) -> argparse.ArgumentParser:
    """Return the parser of all commands, with the options of the one that is called.

    The modules of the other commands are not imported, which would take time.
    """
    parser = _Parser(prog="dpswd", allow_abbrev=False, description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"dpswd {__version__}")
    subparsers = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=_Parser
    )
    for name, text in COMMANDS.items():
        subparser = subparsers.add_parser(
            name,
            help=text,
            description=text,
            epilog=f"Example:\n  dpswd {EXAMPLES.get(name, name)}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        subparser.words = arguments
        if arguments[:1] == [name]:
            _command(name).add_arguments(subparser)
        subparser.add_argument(
            "--json", action="store_true", help="print one JSON object and nothing else"
        )
    return parser


def _command(name: str) -> ModuleType:
    """Return the module of a command."""
    with _packages():
        return import_module(f"dpswd.commands.{name}")


def _after_interrupt(options: argparse.Namespace, arguments: Sequence[str]) -> str:
    """Return how to finish an interrupted run, or that it has released nothing.

    The text is empty for a command without an option ``--resume``.
    """
    if "resume" not in options:
        return ""
    if not options.out or not (options.out / "ledger.jsonl").exists():
        return "Nothing was released, so nothing was spent."
    repeated = [word for word in arguments if word != "--resume"]
    again = shlex.join([*repeated, "--resume"])
    return f"To finish the run, which pays for no release twice: dpswd {again}"


# The message of argparse about a number, in which the type is named as in Python.
_WRONG_VALUE = re.compile(
    r"argument (?P<option>\S+): invalid (?P<type>int|float) value: (?P<value>.*)", re.DOTALL
)
_VALUES = {"int": "a whole number such as 32", "float": "a number such as 0.5"}
# The message of argparse about arguments that are missing.
_MISSING = re.compile(r"the following arguments are required: (?P<names>.+)")


class _Parser(argparse.ArgumentParser):
    """Parser that raises instead of exiting.

    Attributes:
        words: All words of the command line.
    """

    words: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse; refuse unknown words here, where the options of the command are known."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            raise refused_words(self.prog, unknown, self.format_usage())
        return options, unknown

    def error(self, message: str) -> NoReturn:
        wrong_value = _WRONG_VALUE.fullmatch(message)
        if wrong_value is not None:
            raise InputError(
                f"Expected {wrong_value['option']} to be {_VALUES[wrong_value['type']]}, got "
                f"{wrong_value['value']}."
            )
        missing = _MISSING.fullmatch(message)
        if missing is not None:
            raise InputError(
                f"Expected {missing['names']} of {self.prog}, got none; {self._cure(missing)} "
                f"({self.prog} --help)."
            )
        raise InputError(
            f"Expected valid options for {self.prog}, got: {message} "
            f"({self.prog} --help lists them)."
        )

    def _cure(self, missing: re.Match[str]) -> str:
        """Return what to do about missing arguments.

        In ``--classes cats dogs photos``, argparse takes the folder for a class.
        """
        is_option = missing["names"].startswith("-")
        if "--classes" in self.words and not is_option:
            return "write it before --classes, which takes all words behind it"
        return "add what is missing"


# The command line of Lightning


def _fit(arguments: list[str]) -> int:
    """Run ``dpswd fit``, whose options Lightning parses; return the exit status."""
    if asks_for_help(arguments) and not asks_for_full_help(arguments):
        print(HELP, end="")
        return DONE
    with _packages():
        # Lightning takes seconds to import, and no other command needs it.
        from dpswd.commands.fit import fit
    if "--json" not in arguments:
        fit(arguments)
        return DONE
    with redirect_stdout(sys.stderr):
        command_line = fit([word for word in arguments if word != "--json"])
    if not command_line.trainer.is_global_zero:
        return DONE
    directory = Path(command_line.trainer.default_root_dir)
    privacy_file = directory / "privacy.json"
    privacy = None
    if privacy_file.is_file():
        privacy = json.loads(privacy_file.read_text(encoding="utf-8"))
    print(json.dumps({"run_dir": str(directory), "privacy": privacy}))
    return DONE


# Helpers


@contextmanager
def _packages() -> Iterator[None]:
    """Say what to install where a package of the extra ``train`` is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("dpswd"):
            raise
        raise InputError(
            f"Expected the packages for training, got: {error}; pip install 'dpswd[train]'."
        ) from None


def _show_warning(words: Callable[[str], str], message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning without the line of source that raised it."""
    print(f"Warning: {words(str(message))}", file=sys.stderr)


def _is_follower() -> bool:
    """Whether this process has a rank above 0 in a distributed run."""
    rank = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0"
    return rank not in ("", "0") and "WORLD_SIZE" in os.environ
