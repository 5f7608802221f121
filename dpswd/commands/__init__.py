"""The commands behind ``dpswd``: one module for a family, each with a table of :class:`Command`."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Command"]


@dataclass(frozen=True)
class Command:
    """One subcommand.

    Attributes:
        help: One line for ``--help``.
        add_arguments: Adds its flags to a parser.
        run: Does the work and returns what ``--json`` prints.
        show: Prints the same for a person.
    """

    help: str
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], dict[str, Any]]
    show: Callable[[dict[str, Any]], None]
