"""Sentences of the library in the words of the command line.

The library names an argument as Python does and the option of the command line behind it:
``pass classes= (--classes)``, ``unreadable="zero" (--unreadable zero)``, ``unit (--unit)``. A
command shows the option alone.
"""

import re
from collections.abc import Collection

# What follows the name of an argument and "=": a list, a text, a number or a name, or nothing.
_VALUE = r"(?:\[[^\]]*\]|\"[^\"]*\"|'[^']*'|[^\s\"'\[(]*)"
_OPTION = r"\((--[^()]+)\)"
_ARGUMENT = re.compile(rf"(?<!\S)[a-z_]+={_VALUE} {_OPTION}")
_NAME = re.compile(rf"(?<!\S)(?P<name>[a-z_]+) {_OPTION}")
# A check of one value at the end of a sentence, such as: Expected per_unit >= 1, got per_unit=0.
_CHECK = re.compile(
    r"\bExpected (?P<name>[a-z_]+)(?P<check> .*?), got (?P=name)=(?=[^\s;]+(?:$|;))"
)
# Words that are joined by underscores, as in batch_size=65; not those in a path.
_JOINED_WORDS = re.compile(r"(?<![^\s(])[a-z]+(?:_[a-z]+)+(?![\w/\\])")
# The budget, as Python names it; an option of dpswd fit has its group before the name.
_TARGET = re.compile(r"(?<![\w.-])target_(epsilon|delta|mu)\b")

# Options of dpswd fit that are not in the group of the data.
_LIGHTNING_OPTIONS = {
    "--shared-ledger": "--privacy.shared_ledger",
    "--ckpt_path": "--ckpt_path",
}


def in_options(sentence: str, names: Collection[str] = ()) -> str:
    """Return a sentence with options in place of the arguments that stand before them.

    Args:
        sentence: Sentence of the library.
        names: Names of the options of the command, as Python has them: these arguments become
            options also where no option stands behind them.

    Example:
        >>> in_options("got none; pass bounds=[(low, high), ...] (--bounds FILE), or radius.")
        'got none; pass --bounds FILE, or radius.'
        >>> in_options("Expected per_unit >= 1, got per_unit=0.", ["per_unit"])
        'Expected --per-unit >= 1, got 0.'
        >>> in_options("Expected batch_size <= 9, got dim=4, batch_size=12.", ["batch_size"])
        'Expected --batch-size <= 9, got dim=4, --batch-size=12.'
    """
    named = _ARGUMENT.sub(lambda match: match[1], sentence)
    named = _NAME.sub(_same_name, named)
    named = _TARGET.sub(r"--\1", named)
    named = _CHECK.sub(lambda match: _checked_option(match, names), named)
    return _JOINED_WORDS.sub(lambda match: _option_of(match[0], names), named)


def _checked_option(match: re.Match[str], names: Collection[str]) -> str:
    """Return the start of a check with the option, if there is one of this name."""
    name = match["name"]
    if name not in names:
        return match[0]
    return f"Expected {option_of(name)}{match['check']}, got "


def _option_of(name: str, names: Collection[str]) -> str:
    """Return the option of a name, if there is one."""
    if name not in names:
        return name
    return option_of(name)


def option_of(name: str) -> str:
    """Return an option of the command line by the name that it has in Python.

    Example:
        >>> option_of("per_unit"), option_of("n")
        ('--per-unit', '-n')
    """
    dashes = "--"
    if len(name) == 1:
        dashes = "-"
    return dashes + name.replace("_", "-")


def in_options_of_fit(sentence: str) -> str:
    """Return :func:`in_options` with the options of ``dpswd fit``, which have groups.

    Example:
        >>> in_options_of_fit("got none; pass classes= (--classes), the list of them.")
        'got none; pass --data.classes, the list of them.'
        >>> in_options_of_fit("got 2; set n_classes=3 (--model.generator.n_classes 3).")
        'got 2; set --model.generator.n_classes 3.'
    """
    named = _ARGUMENT.sub(lambda match: _of_fit(match[1]), sentence)
    named = _NAME.sub(lambda match: _of_fit(_same_name(match)), named)
    return _TARGET.sub(r"--privacy.target_\1", named)


def _same_name(match: re.Match[str]) -> str:
    """Return the option behind an argument of its name, or the match unchanged."""
    option = match[2]
    name = option.split(maxsplit=1)[0].removeprefix("--").replace("-", "_")
    if name.rpartition(".")[2] == match["name"]:
        return option
    return match[0]


def _of_fit(option: str) -> str:
    """Return an option as ``dpswd fit`` names it.

    A text without option, and an option with a group, are returned unchanged.
    """
    if not option.startswith("--"):
        return option
    name = option.split(maxsplit=1)[0]
    if "." in name:
        return option
    group = _LIGHTNING_OPTIONS.get(name, f"--data.{name.removeprefix('--').replace('-', '_')}")
    return option.replace(name, group, 1)
