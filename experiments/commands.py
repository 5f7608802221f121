"""The command line, as experiments run it."""

from collections.abc import Sequence

from dpswd.commands.main import main
from dpswd.errors import DpswdError


def words_of(options: dict[str, object]) -> list[str]:
    """Return options by their names as words of a command line."""
    words = []
    for name, value in options.items():
        words += [f"--{name}", str(value)]
    return words


def fit(options: dict[str, object], further: Sequence[str] = ()) -> None:
    """Run ``dpswd fit``.

    Args:
        options: Options by their names.
        further: Further words of the command.

    Raises:
        DpswdError: If the command ends with an error, which it has printed.
    """
    status = main(["fit", *words_of(options), *further])
    if status != 0:
        raise DpswdError(f"Expected dpswd fit to end with status 0, got {status}; see above.")
