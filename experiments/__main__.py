"""Command line of the experiments.

The commands are ``python -m experiments list | run NAME [--OPTION VALUE ...] | run all [--resume] |
tables``. An experiment is a function ``f(out, *, ...)`` whose first docstring line is its help:
``run`` of a module below ``experiments``, by the module's name, or one of its ``EXPERIMENTS``.
Keyword arguments are options of the command line. The dictionary that the function returns is
written to ``OUT/NAME.json``, or to a name that it gives as ``file``, together with the command, the
version and the machine. ``docs/results`` holds these files.

A file, or a row with a ``version`` of its own, of another minor version is stale unless a sentence
in its ``reason``, which the tables print, says why it is kept. ``list`` marks the stale ones.
``run all`` runs the command of every file that is of another minor version, whether it has a reason
or not; with ``--resume`` it leaves out those that ``OUT`` has. ``tables`` makes the tables of the
documentation from the files.
"""

import argparse
import inspect
import json
import os
import pkgutil
import platform
import shlex
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import experiments
from dpswd import __version__
from dpswd._files import write_json
from dpswd._versions import package_versions
from dpswd.errors import InputError
from experiments.results import RESULTS, Result, Row, outdated
from experiments.tables import write_tables

OUT = Path("runs/experiments")
CPUINFO = Path("/proc/cpuinfo")
# Options that every experiment accepts; those that are not among its arguments
# are left out.
COMMON_OPTIONS = {"data": Path, "quick": bool, "full": bool}


@dataclass(frozen=True)
class Experiment:
    """Line of ``list``, and the function that runs the experiment."""

    help: str
    run: Callable[..., Result]

    @classmethod
    def of(cls, function: Callable[..., Result]) -> "Experiment":
        """Return the experiment of a function with a docstring."""
        docstring = function.__doc__ or ""
        return cls(docstring.partition("\n")[0], function)


def available() -> dict[str, Experiment]:
    """Return the experiments by name, in the order of the alphabet."""
    by_name: dict[str, Experiment] = {}
    for info in pkgutil.walk_packages(experiments.__path__, "experiments."):
        if info.ispkg or "__main__" in info.name:
            continue
        module = import_module(info.name)
        for function in getattr(module, "EXPERIMENTS", ()):
            by_name[function.__name__] = Experiment.of(function)
        if hasattr(module, "run"):
            name = info.name.rpartition(".")[2]
            by_name[name] = Experiment.of(module.run)
    return dict(sorted(by_name.items()))


def machine() -> dict[str, Any]:
    """Describe the processor and the versions, without the name of the host."""
    versions = package_versions()
    del versions["dpswd"]
    return {"processor": _processor(), "cores": os.cpu_count(), **versions}


def _processor() -> str:
    """Return the model of the processor, or its architecture if it is not known."""
    if CPUINFO.exists():
        for line in CPUINFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":")[1].strip()
    return platform.machine()


def main(argv: list[str] | None = None) -> int:
    """Run a command; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list the experiments")
    commands.add_parser("tables", help="write the tables of README.md and docs from docs/results")
    run_help = "run one, or all old ones, and write JSON and figures"
    run_parser = commands.add_parser("run", help=run_help, add_help=False)
    run_parser.add_argument("name")
    arguments, options = parser.parse_known_args(argv)
    if options and arguments.command != "run":
        parser.error(f"unrecognized arguments: {' '.join(options)}")
    try:
        if arguments.command == "list":
            print_list()
        elif arguments.command == "tables":
            write_tables()
        elif arguments.name == "all":
            return run_all(options)
        else:
            run(arguments.name, options)
    except InputError as error:
        print(f"experiments: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def print_list() -> None:
    """Print name and help of every experiment, and mark those with old results."""
    stale = set()
    for path in RESULTS.glob("*.json"):
        result = json.loads(path.read_text())
        if outdated(result):
            stale.add(experiment_of(result))
    for name, experiment in available().items():
        mark = ""
        if name in stale:
            mark = "(stale) "
        print(f"{name:<20} {mark}{experiment.help}")


def experiment_of(result: Result) -> str:
    """Return the name of the experiment in the command of a result."""
    return _words_of_command(result)[0]


def _words_of_command(result: Result) -> list[str]:
    """Return the name of the experiment and its options, as the shell splits them."""
    command: str = result["command"]
    return shlex.split(command.partition(" run ")[2])


def run_all(argv: list[str]) -> int:
    """Run the commands of results of earlier versions; return 1 if one of them fails.

    A command that fails is reported at the end; the others are run in any case.
    """
    parser = argparse.ArgumentParser(prog="python -m experiments run all")
    parser.add_argument("--out", type=Path, default=OUT, help="directory of the results")
    parser.add_argument(
        "--resume", action="store_true", help="leave out results that OUT has of this version"
    )
    arguments = parser.parse_args(argv)
    failed = []
    for path in sorted(RESULTS.glob("*.json")):
        result = json.loads(path.read_text())
        if not outdated(result, with_reasons=True):
            continue
        if arguments.resume and _is_current(arguments.out / path.name):
            continue
        print(f"\n{result['command']}", flush=True)
        try:
            name, *options = _words_of_command(result)
            run(name, [*options, "--out", str(arguments.out)])
        except (Exception, SystemExit):
            traceback.print_exc()
            failed.append(result["command"])
    if failed:
        print(f"Failed: {', '.join(failed)}", file=sys.stderr)
        return 1
    return 0


def _is_current(path: Path) -> bool:
    """Whether a file exists with a result all of whose rows are of this version."""
    if not path.exists():
        return False
    return not outdated(json.loads(path.read_text()), with_reasons=True)


def run(name: str, argv: list[str]) -> None:
    """Run an experiment with options, print its rows and write its result."""
    by_name = available()
    if name not in by_name:
        names = ", ".join(by_name)
        raise InputError(f"Expected the name of an experiment ({names}), got {name!r}.")
    experiment = by_name[name]
    parser = parser_of(name, experiment)
    values = vars(parser.parse_args(argv))
    out: Path = values.pop("out")
    out.mkdir(parents=True, exist_ok=True)
    result = experiment.run(out, **{option: values[option] for option in options_of(experiment)})
    for row in result.get("rows", []):
        print(line_of(row))
    words = ["python", "-m", "experiments", "run", name]
    for option, value in values.items():
        if value != parser.get_default(option) and not isinstance(value, Path):
            words += _words_of_option(option, value)
    path = out / f"{result.pop('file', name)}.json"
    origin = {"command": " ".join(words), "version": __version__, "machine": machine()}
    write_json(path, origin | result)
    print(f"Written: {path}")


def options_of(experiment: Experiment) -> dict[str, inspect.Parameter]:
    """Return the keyword arguments of an experiment by name."""
    parameters = dict(inspect.signature(experiment.run).parameters)
    del parameters["out"]
    return parameters


def parser_of(name: str, experiment: Experiment) -> argparse.ArgumentParser:
    """Return the parser of ``run NAME`` with its options and the common ones."""
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments run {name}", description=experiment.help
    )
    parser.add_argument("--out", type=Path, default=OUT, help="directory of the results")
    parameters = options_of(experiment)
    for option in dict.fromkeys([*COMMON_OPTIONS, *parameters]):
        default = None
        if option in parameters:
            default = parameters[option].default
        if option in COMMON_OPTIONS:
            kind = COMMON_OPTIONS[option]
        else:
            kind = _without_none(parameters[option].annotation)
        if kind is bool:
            parser.add_argument(f"--{option}", action="store_true")
        else:
            parser.add_argument(f"--{option}", type=kind, default=default)
    return parser


def _without_none(hint: Any) -> Any:
    """Return ``str`` of the type hint ``str | None``, and any other hint as it is."""
    for kind in get_args(hint):
        if kind is not type(None):
            return kind
    return hint


def line_of(row: Row) -> str:
    """Return the plain values of a row for the screen."""
    words = []
    for key, value in row.items():
        if value is not None and not isinstance(value, dict | list):
            words.append(f"{key} {_short(value)}")
    return "  ".join(words)


def _words_of_option(option: str, value: Any) -> list[str]:
    """Return an option with its value as words of a command, quoted for the shell."""
    if value is True:
        return [f"--{option}"]
    return [f"--{option}", shlex.quote(_short(value))]


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


if __name__ == "__main__":
    sys.exit(main())
