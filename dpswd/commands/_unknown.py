"""Words of a command line that no option takes, and what was probably meant."""

import re
from collections.abc import Sequence
from difflib import get_close_matches

from dpswd.errors import InputError

__all__ = ["refused_command", "refused_words"]

_OPTION = re.compile(r"(?<![\w-])--?[a-z][\w.-]*")


def refused_words(
    command: str, words: Sequence[str], usage: str, full_help: str = "--help"
) -> InputError:
    """Return the error of words that no option of a command takes.

    The first unknown option is named before other words, which may be its values.

    Args:
        command: The command, as ``dpswd generate``.
        words: The words.
        usage: Text that names the options of the command.
        full_help: Option that lists all of them.

    Example:
        >>> print(refused_words("dpswd x", ["--sed=3"], "[--seed SEED]"))
        Expected an option of dpswd x, got --sed; did you mean --seed? (dpswd x --help lists all).
        >>> print(refused_words("dpswd x", ["--colour", "3"], "[--seed SEED]"))
        Expected an option of dpswd x, got --colour; dpswd x --help lists all.
    """
    remedy = f"{command} {full_help} lists all"
    options = [word.partition("=")[0] for word in words if word.startswith("-")]
    if not options:
        return InputError(
            f"Expected fewer words of {command}, got {words[0]}, which no option takes; write the "
            f"option before it ({remedy})."
        )
    closest = _closest(options[0], _OPTION.findall(usage))
    if closest:
        remedy = f"did you mean {closest}? ({remedy})"
    return InputError(f"Expected an option of {command}, got {options[0]}; {remedy}.")


def _closest(option: str, known: Sequence[str]) -> str:
    """Return the known option that a word abbreviates or resembles, or nothing."""
    by_name: dict[str, str] = {}
    for full in known:
        spelling = full.lstrip("-").replace("_", "-")
        by_name.setdefault(spelling, full)
        by_name.setdefault(spelling.rpartition(".")[2], full)  # dpswd fit has groups of options
    name = option.lstrip("-").lower().replace("_", "-")
    similar = get_close_matches(name, by_name, n=1)
    if len(name) > 1:
        similar += [spelling for spelling in by_name if spelling.startswith(name)]
    if not similar:
        return ""
    return by_name[similar[0]]


def refused_command(word: str, commands: Sequence[str]) -> InputError:
    """Return the error of a word that is no command.

    Args:
        word: The word.
        commands: Names of all commands.
    """
    remedy = "dpswd --help lists all"
    similar = get_close_matches(word.lower(), commands, n=1)
    if similar:
        remedy = f"did you mean {similar[0]}? ({remedy})"
    return InputError(f"Expected a command of dpswd, got {word}; {remedy}.")
