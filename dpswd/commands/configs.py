"""``dpswd configs``: lists the shipped configs, or prints one to copy."""

from argparse import ArgumentParser, Namespace
from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from dpswd.errors import InputError

JITTER = ("shift", "rotation", "zoom", "shear", "elastic")
FACTS = ("size", "channels", "classes")
# Keys that the configs of a command may have.
KEYS = {
    "generate": ("centre", "radius", "shapes", *JITTER, *FACTS),
    "adapt": (
        *("epsilon", "delta", "method", "normalise", "min_shift", "columns", "n_steps"),
        *("size", "channels", "target"),
        *JITTER,
    ),
}


def commands_of(content: dict[str, Any]) -> list[str]:
    """Return the commands that can read a config with this content.

    A config of Lightning has a model, which makes it one of ``dpswd fit``.
    """
    if "model" in content:
        return ["fit"]
    return [command for command, keys in KEYS.items() if set(content) <= set(keys)]


def _suggestion(name: str, shipped: Collection[str]) -> str:
    """Return the config that a name resembles, as a question, or the names of all."""
    similar = get_close_matches(name, shipped, n=1)
    if similar:
        return f"did you mean {similar[0]}? (dpswd configs lists all)"
    return f"those are {', '.join(shipped)}"


def config_path(name: str) -> Path:
    """Return the path of a config: ``name`` itself, or the shipped one of that name.

    Raises:
        InputError: If there is no such config, or it cannot be read.
    """
    shipped = _shipped()
    if Path(name).is_file():
        path = Path(name)
    elif name in shipped:
        path = shipped[name]
    elif "paper" in Path(name).parts:
        raise InputError(
            f"Expected a config file, got {name!r}, which only a clone has: run dpswd in the "
            "clone, with --config configs/paper/NAME.yaml."
        )
    else:
        raise InputError(
            f"Expected a config, got {name!r}, which is no file here and no shipped config; "
            f"{_suggestion(name, shipped)}."
        )
    try:
        path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"Expected a readable config at {path}, got: {error}.") from None
    return path


def _shipped() -> dict[str, Path]:
    """Return the paths of the shipped configs by name.

    A wheel has them in the package, a checkout at its top.
    """
    package = Path(__file__).parents[1]
    directory = package / "configs"
    if not directory.is_dir():
        directory = package.parent / "configs"
    return {path.stem: path for path in sorted(directory.glob("*.yaml"))}


def _summary(path: Path) -> str:
    """Return the comment in the first line of a config."""
    first_line = path.read_text(encoding="utf-8").splitlines()[0]
    return first_line.lstrip("# ")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="print this file instead of the list")


def run(arguments: Namespace) -> dict[str, Any]:
    if arguments.name is None:
        return {"configs": {name: _summary(path) for name, path in _shipped().items()}}
    text = config_path(arguments.name).read_text(encoding="utf-8")
    return {"name": arguments.name, "config": text}


def show(result: dict[str, Any]) -> None:
    if "config" in result:
        print(result["config"], end="")
        return
    for name, summary in result["configs"].items():
        print(f"{name:<24}{summary}")
