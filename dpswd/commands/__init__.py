"""The commands of ``dpswd``; every module has a table ``COMMANDS`` of :class:`Command`."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Command:
    """A subcommand."""

    help: str  # one line for --help
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], dict[str, Any]]  # returns what --json prints
    show: Callable[[dict[str, Any]], None]  # prints this result as text
