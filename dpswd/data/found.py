"""How a reader is to read files, and what it found, until that is handed over to :class:`~dpswd.PrivateRecords`."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpswd._arrays import Unreadable
from dpswd._layout import Layout
from dpswd._progress import say
from dpswd._public_facts import taken_from_records
from dpswd._validate import choice
from dpswd.records import PrivateRecords, Records, Stored


@dataclass(frozen=True)
class Options:
    """Options of :func:`dpswd.data.read`, of which each reader knows some."""

    root: str | Path | None = None
    size: int | None = None
    channels: int | None = None
    classes: Sequence[Any] | None = None
    labelled: bool = True
    target: str | None = None
    unreadable: Unreadable = "refuse"
    download: bool = False
    in_memory: bool | None = None

    def __post_init__(self) -> None:
        choice(("refuse", "zero"), unreadable=self.unreadable)

    def keep_on_disk(self, stored: Stored) -> bool:
        """Return whether records stay on disk: as stated, else if they need more than 1 GiB."""
        return stored.large if self.in_memory is None else not self.in_memory


@dataclass(frozen=True)
class Found:
    """Records of a folder or file. PRIVATE."""

    name: str  # in reports
    values: Tensor | Stored  # (N, *sample_shape)
    labels: Tensor | None  # numbers (N,) of the classes in int64
    classes: list[Any] | None  # public; without them, labels are not used
    layout: Layout | None = None
    kinds: list[str] | None = (
        None  # of the columns of a table; public only if they are stated or taken
    )
    taken: tuple[str, ...] = ()  # lines about facts that were taken from the records
    note: str = ""  # line about what was read
    files: tuple[str, ...] = ()  # names of the files of images
    test: Records | None = (
        None  # public records for evaluation, if they were asked for and there are any
    )

    def private(self, bounds: Any = None, kinds: Sequence[str] | None = None) -> PrivateRecords:
        """Show the lines, and return the handle; kinds of a table are taken if there are bounds, which need them."""
        taken, layout = self.taken, self.layout
        if kinds is None and bounds is not None and self.kinds is not None:
            kinds, taken = self.kinds, (*taken, taken_from_records(kinds=self.kinds))
        if kinds is not None and layout is not None and self.kinds is not None:
            layout = replace(
                layout, dtypes=tuple("float32" if kind == "numeric" else "int64" for kind in kinds)
            )
        for line in filter(None, (self.note, *taken)):
            say(line)
        facts = {"classes": self.classes, "layout": layout, "name": self.name, "taken": taken}
        return PrivateRecords.from_values(
            self.values, self.labels, **facts, bounds=bounds, kinds=kinds
        )

    def public(self) -> Records:
        """Return the public records; records without labels have label 0."""
        assert isinstance(self.values, Tensor)
        n = len(self.values)
        return Records(
            self.values, torch.zeros(n, dtype=torch.int64) if self.labels is None else self.labels
        )


def data_root(root: str | Path | None) -> Path:
    """Return the directory of the data sets: the argument, else ``DPSWD_DATA``, else ``./data``."""
    return Path(root or os.environ.get("DPSWD_DATA") or "data")


def located(data: str | Path, root: str | Path | None) -> Path | None:
    """Return the path of a folder or file, relative to the working directory or to ``root``, if it exists."""
    return next((path for path in (Path(data), data_root(root) / data) if path.exists()), None)
