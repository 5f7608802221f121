"""Lines and progress bars on stderr."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

# Number of records from which on a pass over them takes long enough for a bar.
_FEWEST_RECORDS = 2000
# Lines about a training where there is no terminal for a bar.
_N_LINES = 4


# Descriptions of what :func:`working` shows. A terminal holds one bar at a time.
_open_bars: list[str] = []
# Puts a line into the words of the interface that is used; empty for those of Python.
_translations: list[Callable[[str], str]] = []


@contextmanager
def translated(translation: Callable[[str], str]) -> Iterator[None]:
    """Translate every line of :func:`say`, as the command line does."""
    _translations.append(translation)
    try:
        yield
    finally:
        _translations.pop()


def say(text: str) -> None:
    """Write one line to stderr, on rank 0 only."""
    if _rank() == 0:
        line = text
        for translation in _translations:
            line = translation(line)
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def _rank() -> int:
    """Return the rank of this process, from torch.distributed or from the launcher."""
    torch: Any = sys.modules.get("torch")  # commands write lines without importing torch
    if torch is not None:
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank())
    return int(os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or 0)


def with_progress_bar(
    parts: "Sequence[Tensor]", description: str, *, shown: bool = True
) -> "Iterator[Tensor]":
    """Yield the parts of an index behind a progress bar.

    The bar vanishes at the end of the pass.

    Args:
        parts: Parts (n,) of the index.
        description: Text beside the bar.
        shown: Whether a bar may be shown; it is, on a terminal and if there are many records.
    """
    n_records = sum(len(part) for part in parts)
    is_short = n_records < _FEWEST_RECORDS
    if not shown or is_short or _open_bars or not sys.stderr.isatty():
        yield from parts
        return
    yield from _bar(parts, description)


def _bar(parts: Sequence[T], description: str) -> Iterator[T]:
    """Yield parts behind a bar on the terminal, which vanishes at the end."""
    # Imported here, since rich is needed on a terminal only.
    from rich.console import Console
    from rich.progress import track

    yield from track(parts, description, console=Console(stderr=True), transient=True)


def steps(n_steps: int, description: str, *, shown: bool = True) -> Iterator[int]:
    """Yield the numbers of training steps, and show the progress.

    The progress is a bar on a terminal, and four lines elsewhere.

    Args:
        n_steps: Number of steps.
        description: What is trained.
        shown: Whether anything is shown; on rank 0 only.
    """
    numbers = range(n_steps)
    if not shown or _open_bars or _rank() != 0:
        yield from numbers
        return
    if sys.stderr.isatty():
        yield from _bar(numbers, description)
        return
    lines = {n_steps * part // _N_LINES for part in range(_N_LINES)}
    for number in numbers:
        if number in lines:
            say(f"{description}: step {number:,} of {n_steps:,}")
        yield number


@contextmanager
def working(description: str, *, shown: bool = True, line: bool = True) -> Iterator[None]:
    """Show that a computation is under way whose length is not known.

    On a terminal, a bar names it and counts the seconds; elsewhere, one line names it. Bars of the
    computation itself are not shown.

    Args:
        description: What is computed.
        shown: Whether anything is shown; on rank 0 only.
        line: Whether a line is written where there is no terminal.
    """
    if not shown or _open_bars or _rank() != 0:
        yield
        return
    if not sys.stderr.isatty():
        if line:
            say(f"{description}.")
        yield
        return
    # Imported here, since rich is needed on a terminal only.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        progress.add_task(description, total=None)
        _open_bars.append(description)
        try:
            yield
        finally:
            _open_bars.clear()
