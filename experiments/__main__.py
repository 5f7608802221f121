"""``python -m experiments list | run NAME``: one module per table or figure of the documentation.

A module ``experiments/NAME.py`` with ``HELP`` and ``run(out, *, quick, data, full)`` is an experiment. What it returns
is written to ``OUT/NAME.json`` with the command, the version and the machine, as it stands in ``docs/results``.
"""

import argparse
import inspect
import os
import pkgutil
import platform
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import experiments
from dpswd import __version__
from dpswd._files import write_json
from dpswd.errors import InputError

PACKAGES = ("torch", "dp-accounting", "autodp", "gdpnum", "numpy")


def available() -> dict[str, ModuleType]:
    """Returns the experiments by name."""
    modules = {
        info.name.rpartition(".")[2]: import_module(info.name)
        for info in pkgutil.walk_packages(experiments.__path__, "experiments.")
        if not info.ispkg and "__main__" not in info.name
    }
    return {name: module for name, module in modules.items() if hasattr(module, "run") and hasattr(module, "HELP")}


def machine() -> dict[str, Any]:
    """Describes what a result was measured on, without naming the host."""
    versions = {package: version(package) for package in PACKAGES}
    return {"processor": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version(), **versions}


def main(argv: list[str] | None = None) -> int:
    """Runs one experiment; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list the experiments")
    run = commands.add_parser("run", help="run one and write its JSON and pictures")
    run.add_argument("name")
    run.add_argument("--quick", action="store_true", help="fewer seeds, points or settings")
    run.add_argument("--full", action="store_true", help="all of them, where that is not the default")
    run.add_argument("--data", type=Path, help="directory of the data sets (default: DPSWD_DATA or ./data)")
    run.add_argument("--weights", type=Path, help="weights of pytorch-fid, for fig6")
    run.add_argument("--out", type=Path, default=Path("runs/experiments"), help="where the results go")
    arguments = parser.parse_args(argv)
    found = available()
    if arguments.command == "list":
        for name, module in found.items():
            print(f"{name:<20} {module.HELP}")
        return 0
    try:
        if arguments.name not in found:
            raise InputError(f"Expected an experiment ({', '.join(found)}), got {arguments.name!r}.")
        try:
            arguments.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"Expected to write into {arguments.out}, got: {error.strerror}.") from None
        _run(arguments, found[arguments.name])
    except InputError as error:
        print(f"experiments: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def _run(arguments: argparse.Namespace, module: ModuleType) -> None:
    flags = [f"--{flag}" for flag in ("quick", "full") if getattr(arguments, flag)]
    accepted = inspect.signature(module.run).parameters
    options = {name: getattr(arguments, name) for name in ("quick", "full", "data", "weights") if name in accepted}
    result = module.run(arguments.out, **options)
    facts = {
        "command": " ".join(["python -m experiments run", arguments.name, *flags]),
        "version": __version__,
        "machine": machine(),
    }
    path = arguments.out / f"{arguments.name}.json"
    write_json(path, {**facts, **result})
    print(f"Written: {path}")


if __name__ == "__main__":
    sys.exit(main())
