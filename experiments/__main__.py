"""``python -m experiments list | run NAME [--OPTION VALUE ...] | run all [--resume] | tables``: results of the docs.

An experiment is a function ``f(out, *, ...)`` whose first docstring line is its help: ``run`` of a module below
``experiments``, by the module's name, or one of its ``EXPERIMENTS``. Keyword arguments are options of the command line.
The dictionary that it returns is written to ``OUT/NAME.json``, or to a name that it gives as ``file``, together with
the command, the version and the machine; ``docs/results`` holds these files. A file, or a row with a ``version`` of its
own, of another minor version is stale unless a sentence in its ``reason``, which the tables print, says why it is kept.
``list`` marks the stale ones. ``run all`` runs the command of every file that is of another minor version, whether it
has a reason or not, and with ``--resume`` leaves out those that ``OUT`` has. ``tables`` makes the tables of the
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
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, get_args

import experiments
from dpswd import __version__
from dpswd._files import write_json
from dpswd._versions import package_versions
from dpswd.errors import InputError
from experiments.cells import outdated
from experiments.tables import RESULTS, write_tables

OUT = Path("runs/experiments")
CPUINFO = Path("/proc/cpuinfo")
COMMON = {
    "data": Path,
    "quick": bool,
    "full": bool,
}  # accepted, and left out where an experiment has no use for them


class Experiment(NamedTuple):
    """Line of ``list``, and the function that runs it."""

    help: str
    run: Callable[..., dict[str, Any]]


def available() -> dict[str, Experiment]:
    """Return the experiments by name."""
    found: dict[str, Experiment] = {}
    for info in pkgutil.walk_packages(experiments.__path__, "experiments."):
        if info.ispkg or "__main__" in info.name:
            continue
        module = import_module(info.name)
        functions = {each.__name__: each for each in getattr(module, "EXPERIMENTS", ())}
        if hasattr(module, "run"):
            functions[info.name.rpartition(".")[2]] = module.run
        found |= {
            name: Experiment(each.__doc__.partition("\n")[0], each)
            for name, each in functions.items()
        }
    return dict(sorted(found.items()))


def machine() -> dict[str, Any]:
    """Describe the processor and the versions of a measurement, without the name of the host."""
    model = platform.machine()
    if CPUINFO.exists():
        lines = CPUINFO.read_text().splitlines()
        model = next(
            (line.split(":")[1].strip() for line in lines if line.startswith("model name")), model
        )
    versions = {name: number for name, number in package_versions().items() if name != "dpswd"}
    return {"processor": model, "cores": os.cpu_count(), **versions}


def main(argv: list[str] | None = None) -> int:
    """Run a command; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list the experiments")
    commands.add_parser("tables", help="write the tables of README.md and docs from docs/results")
    run = commands.add_parser(
        "run", help="run one, or all old ones, and write JSON and figures", add_help=False
    )
    run.add_argument("name")
    arguments, options = parser.parse_known_args(argv)
    try:
        if arguments.command == "run":
            return _run_all(options) if arguments.name == "all" else _run(arguments.name, options)
        if options:
            parser.error(f"unrecognized arguments: {' '.join(options)}")
        if arguments.command == "tables":
            write_tables()
        else:
            _list()
    except InputError as error:
        print(f"experiments: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def _list() -> None:
    results = [json.loads(path.read_text()) for path in RESULTS.glob("*.json")]
    stale = {experiment_of(result) for result in results if outdated(result)}
    for name, experiment in available().items():
        print(f"{name:<20} {'(stale) ' if name in stale else ''}{experiment.help}")


def experiment_of(result: dict[str, Any]) -> str:
    """Return the name of the experiment in the command of a result."""
    return str(result["command"].partition(" run ")[2].split()[0])


def _run_all(argv: list[str]) -> int:
    """Run the commands of results of earlier versions; one that fails is reported at the end."""
    parser = argparse.ArgumentParser(prog="python -m experiments run all")
    parser.add_argument("--out", type=Path, default=OUT, help="directory of the results")
    parser.add_argument(
        "--resume", action="store_true", help="leave out results that OUT has of this version"
    )
    given = parser.parse_args(argv)
    failed = []
    for path in sorted(RESULTS.glob("*.json")):
        result, made = json.loads(path.read_text()), given.out / path.name
        done = (
            given.resume
            and made.exists()
            and not outdated(json.loads(made.read_text()), with_reasons=True)
        )
        if done or not outdated(result, with_reasons=True):
            continue
        command = result["command"]
        print(f"\n{command}", flush=True)
        try:
            name, *options = shlex.split(command.partition(" run ")[2])
            _run(name, [*options, "--out", str(given.out)])
        except (Exception, SystemExit):  # the others are run in any case
            traceback.print_exc()
            failed.append(command)
    if failed:
        print(f"Failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def _run(name: str, argv: list[str]) -> int:
    found = available()
    if name not in found:
        raise InputError(f"Expected the name of an experiment ({', '.join(found)}), got {name!r}.")
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments run {name}", description=found[name].help
    )
    parser.add_argument("--out", type=Path, default=OUT, help="directory of the results")
    accepted = dict(inspect.signature(found[name].run).parameters)
    accepted.pop("out")
    for option in dict.fromkeys([*COMMON, *accepted]):
        hint = COMMON.get(option) or accepted[option].annotation
        default = accepted[option].default if option in accepted else None
        kind = next((each for each in get_args(hint) if each is not type(None)), hint)
        how: Any = {"action": "store_true"} if kind is bool else {"type": kind, "default": default}
        parser.add_argument(f"--{option}", **how)
    given = vars(parser.parse_args(argv))
    out = given.pop("out")
    out.mkdir(parents=True, exist_ok=True)
    options = {option: given[option] for option in accepted}
    result = found[name].run(out, **options)
    for row in result.get("rows", []):
        shown = {
            key: value for key, value in row.items() if not isinstance(value, dict | list | None)
        }
        print("  ".join(f"{key} {_short(value)}" for key, value in shown.items()))
    flags = [
        f"--{option}" if value is True else f"--{option} {shlex.quote(_short(value))}"
        for option, value in given.items()
        if value != parser.get_default(option) and not isinstance(value, Path)
    ]
    command = " ".join(["python -m experiments run", name, *flags])
    path = out / f"{result.pop('file', name)}.json"
    write_json(path, {"command": command, "version": __version__, "machine": machine(), **result})
    print(f"Written: {path}")
    return 0


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
