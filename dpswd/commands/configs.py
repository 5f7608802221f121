"""``dpswd configs``: lists the shipped configs, or prints one to copy."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from dpswd.errors import InputError


def config_path(name: str) -> Path:
    """Return the path of a config file: ``name`` itself, or the shipped config of that name."""
    path = Path(name) if Path(name).is_file() else _shipped().get(name)
    if path is None:
        raise InputError(
            f"Expected a config file or a shipped config ({', '.join(_shipped())}), got {name!r}."
        )
    try:
        path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"Expected a readable config at {path}, got: {error}.") from None
    return path


def _shipped() -> dict[str, Path]:
    """Return the shipped configs by name: of the package in a wheel, or at the top of a checkout."""
    package = Path(__file__).parents[1]
    directory = (
        package / "configs" if (package / "configs").is_dir() else package.parent / "configs"
    )
    return {path.stem: path for path in sorted(directory.glob("*.yaml"))}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="print this config instead of the list")


def run(arguments: Namespace) -> dict[str, Any]:
    if arguments.name is not None:
        return {"name": arguments.name, "config": config_path(arguments.name).read_text()}
    return {
        "configs": {
            name: path.read_text().splitlines()[0].lstrip("# ") for name, path in _shipped().items()
        }
    }


def show(result: dict[str, Any]) -> None:
    if "config" in result:
        print(result["config"], end="")
    else:
        for name, summary in result["configs"].items():
            print(f"{name:<24}{summary}")
