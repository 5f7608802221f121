"""The commands of ``dpswd``; every module has a table ``COMMANDS`` of :class:`Command`."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Command:
    """A subcommand.

    Attributes:
        help: One line for ``--help``.
        add_arguments: Adds the options to a parser.
        run: Runs the command and returns what ``--json`` prints.
        show: Prints this result as text.
    """

    help: str
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], dict[str, Any]]
    show: Callable[[dict[str, Any]], None]
