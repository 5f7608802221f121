"""Progress bar of a pass over records."""

import sys
from collections.abc import Iterator, Sequence

from torch import Tensor

_SHOWN = 2000  # number of records from which on a bar is shown


def passing(parts: Sequence[Tensor], what: str, *, shown: bool = True) -> Iterator[Tensor]:
    """Yield the parts of an index behind a progress bar on stderr, which vanishes at the end of the pass."""
    total = sum(map(len, parts))
    if not shown or total < _SHOWN or not sys.stderr.isatty():
        yield from parts
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        for part in parts:
            yield part
            bar.advance(task, len(part))
