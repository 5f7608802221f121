"""The command ``dpswd``: a table of commands, whose modules are imported on use.

Exit status: 0 done; 2 invalid input, with one line on stderr and no traceback; 1 everything else. Nothing here imports
torch, so that ``dpswd --help`` is quick.
"""

import argparse
import json
import os
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

from dpswd import __version__
from dpswd.errors import DpswdError, InputError, LedgerError, ProcessLostError

COMMANDS = {  # modules of dpswd.commands, and their lines of --help
    "demo": "generate private digits, evaluate them and write the report, in about ten seconds",
    "generate": "private generator and synthetic records of a folder, a file or a benchmark",
    "sample": "draw synthetic records from a generator.pt",
    "evaluate": "utility and fidelity of synthetic records against records that you may look at",
    "adapt": "adapt a classifier from labelled public records to unlabelled private ones",
    "predict": "classes of new records by a classifier.pt",
    "forecast": "what to expect of generate, from public facts only",
    "fit": "train a network by DP-SWD: the command line of Lightning",
    "configs": "list the shipped configs, or print one",
    "report": "write report.html, report.md and report.json for a run",
    "account": "epsilon, mu and assumptions of releases with a given sigma",
    "calibrate": "least sigma that keeps a budget",
    "audit": "attack a mechanism and compare the result with its claim",
    "ledger": "show a ledger, or create one that several runs share",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            if arguments and arguments[0] == "fit":
                return _fit(arguments)
            return _run(arguments)
    except DpswdError as error:
        # Rank 0 raises the same error and ends the run; a failure here would make the launcher kill rank 0 first.
        if _is_follower() and not isinstance(error, ProcessLostError):
            return 0
        print(f"dpswd: {' '.join(str(error).split())}", file=sys.stderr)
        return 2 if isinstance(error, InputError | LedgerError) else 1
    except KeyboardInterrupt as stop:
        print(*["dpswd: interrupted.", *getattr(stop, "__notes__", ())], file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of stdout has gone, as in: dpswd ... | head -1
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(arguments: list[str]) -> int:
    parser = _Parser(
        prog="dpswd",
        allow_abbrev=False,
        description="Differentially private generators, adapted classifiers and sliced Wasserstein distances.",
        epilog="dpswd COMMAND --help explains a command. Every command takes --json and then prints one JSON object.",
    )
    parser.add_argument("--version", action="version", version=f"dpswd {__version__}")
    subparsers = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=_Parser
    )
    chosen: Any = None
    for name, text in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=text, description=text, allow_abbrev=False)
        if arguments[:1] == [name]:
            with _packages():
                chosen = import_module(f"dpswd.commands.{name}")
            chosen.add_arguments(subparser)
        subparser.add_argument(
            "--json", action="store_true", help="print one JSON object and nothing else"
        )
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        raise InputError(
            f"Expected options listed by dpswd {parsed.command} --help, got {' '.join(unknown)}."
        )
    try:
        with _packages():
            result = chosen.run(parsed)
    except KeyboardInterrupt as stop:
        if (
            getattr(parsed, "resume", None) is not None
            and parsed.out
            and (parsed.out / "ledger.jsonl").exists()
        ):
            again = shlex.join([*(word for word in arguments if word != "--resume"), "--resume"])
            stop.add_note(f"To finish the run, which pays for no release twice: dpswd {again}")
        raise
    if _is_follower():
        return 0
    if parsed.json:
        print(json.dumps(result))
    else:
        chosen.show(result)
    return 0 if result.get("passed", True) else 1  # an audit that refuted a claim


def _fit(arguments: list[str]) -> int:
    with _packages():
        from dpswd.commands.fit import fit
    if "--json" not in arguments:
        fit(arguments)
        return 0
    with redirect_stdout(sys.stderr):
        directory = Path(
            fit([each for each in arguments if each != "--json"]).trainer.default_root_dir
        )
    privacy = directory / "privacy.json"
    facts = json.loads(privacy.read_text()) if privacy.is_file() else None
    print(json.dumps({"run_dir": str(directory), "privacy": facts}))
    return 0


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


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning without the line of source that raised it."""
    print(f"Warning: {message}", file=sys.stderr)


def _is_follower() -> bool:
    """Whether this process has a rank above 0 in a distributed run."""
    rank = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0"
    return rank not in ("", "0") and "WORLD_SIZE" in os.environ


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise InputError(
            f"Expected valid options for {self.prog}, got: {message} ({self.prog} --help lists them)."
        )
