"""``python -m experiments list | run NAME | tables``: one module per table or figure of the documentation.

A module below ``experiments`` with ``HELP`` and ``run(out, *, quick, data, full)`` is an experiment (it may leave out
options that it does not need). The dictionary that it returns is written to ``OUT/NAME.json``, or to a name that it
gives as ``file``, together with the command, the version and the machine; ``docs/results`` holds these files.
``tables`` makes the tables of the documentation from them.
"""

import argparse
import inspect
import os
import pkgutil
import platform
import shlex
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import experiments
from dpswd import __version__
from dpswd._files import write_json
from dpswd._versions import package_versions
from dpswd.errors import InputError
from experiments.tables import write_tables

CPUINFO = Path("/proc/cpuinfo")


def available() -> dict[str, ModuleType]:
    """Return the experiments by name."""
    modules = {
        info.name.rpartition(".")[2]: import_module(info.name)
        for info in pkgutil.walk_packages(experiments.__path__, "experiments.")
        if not info.ispkg and "__main__" not in info.name
    }
    found = {name: module for name, module in modules.items() if hasattr(module, "run") and hasattr(module, "HELP")}
    return dict(sorted(found.items()))


def machine() -> dict[str, Any]:
    """Describe the processor and the versions of a measurement, without the name of the host."""
    model = platform.machine()
    if CPUINFO.exists():
        lines = CPUINFO.read_text().splitlines()
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), model)
    versions = {name: number for name, number in package_versions().items() if name != "dpswd"}
    return {"processor": model, "cores": os.cpu_count(), **versions}


def main(argv: list[str] | None = None) -> int:
    """Run a command; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list the experiments")
    commands.add_parser("tables", help="write the tables of README.md and docs from docs/results")
    run = commands.add_parser("run", help="run one and write its JSON and figures")
    run.add_argument("name")
    run.add_argument("--quick", action="store_true", help="fewer seeds, points or settings")
    run.add_argument("--full", action="store_true", help="all settings, where that is not the default")
    run.add_argument("--seeds", type=int, help="number of seeds, where it can be chosen")
    run.add_argument("--only", help="one method, where it can be chosen")
    run.add_argument("--dataset", help="data sets (A or A,B), where they can be chosen")
    run.add_argument("--epsilon", type=float, help="one budget, where it can be chosen")
    run.add_argument("--data", type=Path, help="directory of the data sets (default: DPSWD_DATA or ./data)")
    run.add_argument("--weights", type=Path, help="Inception weights of pytorch-fid, for fig6 and imagebench")
    run.add_argument("--out", type=Path, default=Path("runs/experiments"), help="directory of the results")
    arguments = parser.parse_args(argv)
    try:
        if arguments.command == "run":
            _run(arguments)
        elif arguments.command == "tables":
            write_tables()
        else:
            for name, module in available().items():
                print(f"{name:<20} {module.HELP}")
    except InputError as error:
        print(f"experiments: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def _run(arguments: argparse.Namespace) -> None:
    found = available()
    if arguments.name not in found:
        raise InputError(f"Expected the name of an experiment ({', '.join(found)}), got {arguments.name!r}.")
    arguments.out.mkdir(parents=True, exist_ok=True)
    module = found[arguments.name]
    flags = [f"--{flag}" for flag in ("quick", "full") if getattr(arguments, flag)]
    chosen = {name: getattr(arguments, name) for name in ("only", "dataset", "epsilon", "seeds")}
    flags += [f"--{name} {shlex.quote(_short(value))}" for name, value in chosen.items() if value is not None]
    accepted = inspect.signature(module.run).parameters
    names = ("quick", "full", "data", "weights", *chosen)
    options = {name: getattr(arguments, name) for name in names if name in accepted}
    result = module.run(arguments.out, **options)
    for row in result.get("rows", []):
        shown = {name: value for name, value in row.items() if not isinstance(value, dict | list | None)}
        print("  ".join(f"{name} {_short(value)}" for name, value in shown.items()))
    command = " ".join(["python -m experiments run", arguments.name, *flags])
    path = arguments.out / f"{result.pop('file', arguments.name)}.json"
    write_json(path, {"command": command, "version": __version__, "machine": machine(), **result})
    print(f"Written: {path}")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
