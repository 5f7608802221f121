"""Sentences of the library in the words of the command line.

The library names an argument as Python does and the option of the command line behind it:
``pass classes= (--classes)``, ``unreadable="zero" (--unreadable zero)``, ``unit (--unit)``. A
command shows the option alone.
"""

import re

# What follows the name of an argument and "=": a list, a text, a number or a name, or nothing.
_VALUE = r"(?:\[[^\]]*\]|\"[^\"]*\"|'[^']*'|[^\s\"'\[(]*)"
_OPTION = r"\((--[^()]+)\)"
_ARGUMENT = re.compile(rf"(?<!\S)[a-z_]+={_VALUE} {_OPTION}")
_NAME = re.compile(rf"(?<!\S)(?P<name>[a-z_]+) {_OPTION}")
# The budget, as Python names it.
_TARGET = re.compile(r"\btarget_(epsilon|delta)\b")

_LIGHTNING_GROUPS = {"--shared-ledger": "--privacy.shared_ledger"}


def in_options(sentence: str) -> str:
    """Return a sentence with options in place of the arguments that stand before them.

    Example:
        >>> in_options("got none; pass bounds=[(low, high), ...] (--bounds FILE), or radius.")
        'got none; pass --bounds FILE, or radius.'
    """
    named = _ARGUMENT.sub(lambda match: match[1], sentence)
    named = _NAME.sub(_same_name, named)
    return _TARGET.sub(r"--\1", named)


def in_options_of_fit(sentence: str) -> str:
    """Return the same with the options of ``dpswd fit``, which have groups.

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
    if name == match["name"]:
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
    group = _LIGHTNING_GROUPS.get(name, f"--data.{name.removeprefix('--').replace('-', '_')}")
    return option.replace(name, group, 1)
