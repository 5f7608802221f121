"""``dpswd configs``: lists the shipped configs, or prints one to copy."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from dpswd.commands import Command
from dpswd.errors import InputError

__all__ = ["COMMANDS", "config_path"]


def _directory() -> Path:
    """Directory of the shipped configs: inside the wheel, or at the top level of a checkout."""
    package = Path(__file__).parents[1]
    return package / "configs" if (package / "configs").is_dir() else package.parent / "configs"


def config_path(name: str) -> Path:
    """Path of a config file, or of the shipped config of that name.

    Raises:
        InputError: If neither exists.
    """
    if Path(name).is_file():
        return Path(name)
    shipped = _directory() / f"{name}.yaml"
    if Path(name).name == name and shipped.is_file():
        return shipped
    known = ", ".join(sorted(path.stem for path in _directory().glob("*.yaml")))
    raise InputError(f"Expected a config file or the name of a shipped config ({known}), got {name!r}.")


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="print this config instead of the list")


def _run(arguments: Namespace) -> dict[str, Any]:
    if arguments.name is not None:
        return {"name": arguments.name, "config": config_path(arguments.name).read_text()}
    first_lines = {path.stem: path.read_text().splitlines()[0] for path in sorted(_directory().glob("*.yaml"))}
    return {"configs": {name: line.removeprefix("# ") for name, line in first_lines.items()}}


def _show(result: dict[str, Any]) -> None:
    if "config" in result:
        print(result["config"], end="")
    else:
        for name, line in result["configs"].items():
            print(f"{name:<22}{line}")


COMMANDS = {
    "configs": Command(
        help="list the shipped configs, or print one", add_arguments=_add_arguments, run=_run, show=_show
    )
}
