"""Lines and progress bars on stderr."""

import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_SHOWN = 2000  # number of records from which on a bar is shown


def say(text: str) -> None:
    """Write one line to stderr, on rank 0 only."""
    torch: Any = sys.modules.get("torch")  # commands write lines without importing torch
    if (
        torch is not None
        and torch.distributed.is_available()
        and torch.distributed.is_initialized()
    ):
        rank = torch.distributed.get_rank()
    else:
        rank = int(os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or 0)
    if rank == 0:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def passing(parts: "Sequence[Tensor]", what: str, *, shown: bool = True) -> "Iterator[Tensor]":
    """Yield the parts of an index behind a progress bar on stderr, which vanishes at the end of the pass."""
    total = sum(map(len, parts))
    if not shown or total < _SHOWN or not sys.stderr.isatty():
        yield from parts
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(parts, what, console=Console(stderr=True), transient=True)
