"""The one-shot release of records that do not fit in memory together, or lie in shards on several processes.

axes: N records, d dimension, k directions, m block means per column, C classes.

The exact block means need every column sorted, so a column of N values must fit, not the records: the records are
passed over once for every few columns, in chunks. Shards are merged exactly: each process projects its own rows and
sorts its own columns, one process merges them. What comes out depends on the multiset of rows only, not on their order,
on the chunks or on the shards (but for rounding, far below the noise). Ledger and noise are those of
:meth:`dpswd.loss.DPSlicedWassersteinLoss.release`, on the first process.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dpswd._distributed import Processes
from dpswd._sorting import sort_rows
from dpswd._validate import at_least, tensor
from dpswd.errors import InputError
from dpswd.loss import DPSlicedWassersteinLoss, Release, clip_rows
from dpswd.mechanism import ProjectionMechanism
from dpswd.sliced import available_memory, padded_block_means

__all__ = ["Chunks", "exact_sketch", "release_sketch"]

Chunks = Callable[[], Iterable[Tensor | tuple[Tensor, Tensor]]]
"""Called once per pass over the records; gives rows (n, d), or rows and classes (n,), the same ones every time."""

_MOST_BYTES = 3 * 2**27
_MERGE_BYTES = 2**26  # of columns that are merged at a time
_CHUNK_ROWS = 8192  # rows that are clipped and projected at a time, whatever the chunks


@torch.no_grad()
def release_sketch(
    loss: DPSlicedWassersteinLoss, chunks: Chunks, *, max_bytes: int | None = None, group: Any = None
) -> Release:
    """Makes one release of all records. Like ``loss.release(rows)`` of all rows at once, which never exist at once.

    Formal guarantee:
        That of :class:`~dpswd.loss.DPSlicedWassersteinLoss` for one release of ``batch_size = N`` records, provided
        that ``chunks`` gives the same N rows, in the same order, at every pass (checked on one direction), and that a
        record is in one shard only. Links between the processes of a group are inside the trusted side: exact columns
        travel over them.

    Args:
        loss: Holds the mechanism (``statistic="quantiles"``, ``batch_size`` = all records of all shards) and the ledger;
            that of rank 0 counts.
        chunks: The records of this process.
        max_bytes: Memory for projected values on this process; by default half of what is free, at most 384 MiB.
        group: Process group of ``torch.distributed``, one shard per process; every process calls this function. By
            default the one that is initialised, if any.

    Returns:
        The release, the same one on every process.

    Raises:
        InputError: If the records do not fit the mechanism, or differ between passes; nothing is released then.
        BudgetExceededError: If the ledger refuses the release.

    Example:
        >>> from dpswd.mechanism import ProjectionMechanism
        >>> mechanism = ProjectionMechanism(4, 8, sigma=0.1, batch_size=1000, statistic="quantiles", n_quantiles=10)
        >>> parts = torch.randn(1000, 4).split(300)
        >>> release_sketch(DPSlicedWassersteinLoss(mechanism), lambda: parts).values.shape
        torch.Size([10, 8])
    """
    shards = Processes(group)
    projections: Tensor = shards.broadcast(loss._directions)
    values = exact_sketch(loss.mechanism, chunks, projections, max_bytes=max_bytes, group=group)

    def publish() -> Tensor:
        assert values is not None
        return loss._publish(values, projections).values

    noisy: Tensor = shards.broadcast(publish)
    return Release(noisy, projections, loss.mechanism)


@torch.no_grad()
def exact_sketch(
    mechanism: ProjectionMechanism,
    chunks: Chunks,
    projections: Tensor,
    *,
    max_bytes: int | None = None,
    group: Any = None,
) -> Tensor | None:
    """Computes the block means before noise: PRIVATE, for :func:`release_sketch` and for tests.

    Args:
        mechanism: Says how many records, blocks and classes there are, and the norm to clip to.
        chunks: The records of this process.
        projections: Directions (d, k), the same on every process.
        max_bytes: See :func:`release_sketch`.
        group: See :func:`release_sketch`.

    Returns:
        Tensor (m, k) or (C, m, k) in float64 on rank 0, ``None`` on the others.

    Raises:
        InputError: See :func:`release_sketch`. Raised on every process where one of them meets it.
    """
    if mechanism.statistic != "quantiles":
        raise InputError("Expected statistic='quantiles' for a sketch, got 'rows'; give n_quantiles.")
    if max_bytes is None:
        max_bytes = min(_MOST_BYTES, available_memory(torch.device("cpu")) // 2)
    at_least(1, max_bytes=max_bytes)
    shards = Processes(group)
    stream = _Stream(mechanism, chunks, projections.to("cpu", torch.float64))
    local = shards.run_on_all(stream.count)
    sizes = shards.all_gather(local)
    if sum(sizes) != mechanism.batch_size:
        raise InputError(
            f"Expected {mechanism.batch_size} records (batch_size of the mechanism), got {sum(sizes)}; "
            "the guarantee counts on a fixed number."
        )
    k = projections.shape[1]
    width = max(1, min(k, max_bytes // (8 * max(sizes)) - 1))  # one column is the check
    buffer = torch.empty(width, local, dtype=torch.float64)
    groups = []
    for start in range(0, k, width):
        columns = slice(start, min(start + width, k))
        values = shards.run_on_all(partial(stream.project, columns, buffer[: columns.stop - start]))
        groups.append(_summary(mechanism, values, stream.labels, shards))
    return torch.cat(groups, dim=-1) if shards.rank == 0 else None


def _summary(mechanism: ProjectionMechanism, values: Tensor, labels: Tensor | None, shards: Processes) -> Tensor:
    """Sorts, merges and blocks (columns, n) of every process; (m, columns) or (C, m, columns), on rank 0."""
    size, blocks = mechanism.batch_size, mechanism.n_values
    step = max(1, _MERGE_BYTES // (8 * size))
    if labels is None:
        sort_rows(values, in_place=True)
    classes = []
    for c in range(mechanism.n_classes or 1):
        of_class = None if labels is None else torch.nonzero(labels == c).squeeze(1)
        counts = shards.all_gather(values.shape[1] if of_class is None else len(of_class))
        means = []
        for some in torch.split(values, step):
            part = some if of_class is None else sort_rows(some[:, of_class], in_place=True)
            merged = _merge(part, counts, shards)
            if merged is not None:
                means.append(padded_block_means(merged.T, size, blocks))
        classes.append(torch.cat(means, dim=1) if means else torch.empty(0))
    return classes[0] if labels is None else torch.stack(classes)


class _Stream:
    """The records of one process: checks them, and projects them on a few directions per pass."""

    def __init__(self, mechanism: ProjectionMechanism, chunks: Chunks, projections: Tensor) -> None:
        self.mechanism, self.chunks, self.projections = mechanism, chunks, projections
        self.labels: Tensor | None = None
        self._check: Tensor | None = None  # projections on the first direction, by which passes are compared
        self._n = 0

    def count(self) -> int:
        """A first pass: every check, the number of rows, the classes."""
        labels, checks = [], []
        for rows, classes in self._parts():
            checks.append(rows @ self.projections[:, 0])
            labels.append(classes)
        self._n = sum(map(len, checks))
        self._check = torch.cat(checks) if checks else torch.empty(0, dtype=torch.float64)
        if self.mechanism.n_classes is not None:
            self.labels = torch.cat(labels) if labels else torch.empty(0, dtype=torch.int64)  # type: ignore[arg-type]
        return self._n

    def project(self, columns: slice, values: Tensor) -> Tensor:
        """A pass: the clipped rows on some directions, written to ``values`` (columns, n)."""
        assert self._check is not None
        u = torch.cat([self.projections[:, columns], self.projections[:, :1]], dim=1)
        at = 0
        for rows, classes in self._parts():
            end = at + len(rows)
            found = u.T @ rows.T  # (columns + 1, rows)
            same = end <= self._n and torch.allclose(found[-1], self._check[at:end], rtol=1e-9, atol=1e-12)
            if not same or (classes is not None and not torch.equal(classes, self.labels[at:end])):  # type: ignore[index]
                raise InputError("Expected the same rows in the same order at every pass, got others; shuffle nothing.")
            values[:, at:end] = found[:-1]
            at = end
        if at != self._n:
            raise InputError(f"Expected the same rows at every pass, got {at} instead of {self._n}; drop none.")
        return values

    def _parts(self) -> Iterable[tuple[Tensor, Tensor | None]]:
        """Gives checked and clipped rows, a few thousand at a time."""
        for chunk in self.chunks():
            rows, labels = chunk if isinstance(chunk, tuple) and len(chunk) == 2 else (chunk, None)
            self._check_chunk(rows, labels)
            for start in range(0, len(rows), _CHUNK_ROWS):
                some = rows[start : start + _CHUNK_ROWS].cpu()
                if not bool(torch.isfinite(some).all()):
                    raise InputError("Expected finite private rows, got nan or inf; clean the data before it is used.")
                of_some = None if labels is None else labels[start : start + _CHUNK_ROWS].cpu()
                yield clip_rows(some, self.mechanism.row_norm), of_some

    def _check_chunk(self, rows: Tensor, labels: Tensor | None) -> None:
        tensor(rows=rows)
        if rows.ndim != 2 or rows.shape[1] != self.mechanism.dim or not rows.is_floating_point():
            raise InputError(
                f"Expected chunks of floating-point rows (n, {self.mechanism.dim}), got {rows.dtype} of shape "
                f"{tuple(rows.shape)}."
            )
        classes = self.mechanism.n_classes
        if labels is not None:
            tensor(classes=labels)
        if (labels is None) != (classes is None):
            got, wanted = ("none", "chunks (rows, classes)") if labels is None else ("some", "no classes")
            raise InputError(f"Expected {wanted}, got {got}; the mechanism's n_classes is {classes}.")
        if labels is not None and (tuple(labels.shape) != (len(rows),) or labels.is_floating_point()):
            raise InputError(f"Expected integer classes of shape ({len(rows)},), got {labels.dtype} {labels.shape}.")
        if labels is not None and classes is not None and bool(((labels < 0) | (labels >= classes)).any()):
            raise InputError(f"Expected classes between 0 and {classes - 1}, got others; check n_classes.")


def _merge(part: Tensor, counts: list[int], shards: Processes) -> Tensor | None:
    """Merges sorted rows (columns, n) of every process into sorted rows (columns, sum of n), on the first one."""
    merged = shards.gather(part, counts)
    return merged if merged is None or shards.world_size == 1 else sort_rows(merged, in_place=True)
