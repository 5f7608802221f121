"""One-shot release of records that do not fit in memory or lie on several processes.

axes: N records, d dimension, k directions, m block means per column, C classes.

Exact block means need every column sorted, so a column of N values must fit in memory, but the records need not: they
are read in chunks, once for every group of columns. Each process projects its own rows and sorts its own columns, and
rank 0 merges the sorted columns. The result depends on the multiset of rows only, not on their order, the chunks or
the processes (up to rounding far below the noise). Ledger and noise are those of
:class:`dpswd.loss.DPSlicedWassersteinLoss`, on rank 0.
"""

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor

from dpswd._distributed import Processes
from dpswd._sorting import sort_rows
from dpswd._validate import at_least
from dpswd.errors import InputError
from dpswd.loss import DPSlicedWassersteinLoss, Release, check_finite, check_labels, check_rows, clip_rows
from dpswd.mechanism import ProjectionMechanism
from dpswd.sliced import available_memory, padded_block_means

__all__ = ["Chunks", "release_sketch"]

Chunks = Callable[[], Iterable[Tensor | tuple[Tensor, Tensor]]]
"""Function that is called once per pass over the records and returns rows (n, d), or rows and classes (n,)."""

_MAX_BYTES = 2**28
_MERGE_BYTES = 2**26  # of columns that are merged at a time
_CHUNK_ROWS = 8192  # rows that are clipped and projected at a time, for chunks of any size


@torch.no_grad()
def release_sketch(loss: DPSlicedWassersteinLoss, chunks: Chunks, *, max_bytes: int | None = None) -> Release:
    """Make one release of all records, as ``loss.release(rows)`` of all rows would.

    Formal guarantee:
        That of :class:`~dpswd.loss.DPSlicedWassersteinLoss` for one release of ``batch_size = N`` records, provided
        that ``chunks`` returns the same N rows in the same order at every pass (checked on one direction), and that
        each record is on one process only. Every process of ``torch.distributed`` calls this function; exact columns
        travel between them, so the links must be trusted.

    Args:
        loss: The mechanism (``statistic="quantiles"``, ``batch_size`` = all records of all processes) and the
            recorder, which is called on every rank.
        chunks: The records of this process.
        max_bytes: Memory for projected values on this process; by default half of the free memory, at most 256 MiB.

    Returns:
        The release, the same on every process.

    Raises:
        InputError: If the records do not fit the mechanism or differ between passes; nothing was released.
        BudgetExceededError: If the recorder refuses the release.

    Example:
        >>> from dpswd.mechanism import ProjectionMechanism
        >>> mechanism = ProjectionMechanism(4, 8, sigma=0.1, batch_size=1000, statistic="quantiles", n_quantiles=10)
        >>> parts = torch.randn(1000, 4).split(300)
        >>> release_sketch(DPSlicedWassersteinLoss(mechanism), lambda: parts).values.shape
        torch.Size([10, 8])
    """
    processes = Processes()
    first = processes.run_on_all(lambda: next(iter(chunks()), (None, None)))
    rows, labels = first if isinstance(first, tuple) else (first, None)
    if (stored := processes.run_on_all(lambda: loss.stored_release(rows, labels))) is not None:
        return Release(stored["values"], stored["projections"], loss.mechanism)
    processes.run_on_all(loss.mechanism.check_calibrated)
    projections: Tensor = processes.broadcast(loss.draw_projections)
    values = exact_sketch(loss.mechanism, chunks, projections, max_bytes=max_bytes)
    return loss.publish(values, projections)


@torch.no_grad()
def exact_sketch(
    mechanism: ProjectionMechanism,
    chunks: Chunks,
    projections: Tensor,
    *,
    max_bytes: int | None = None,
) -> Tensor | None:
    """Compute the block means before noise. PRIVATE: for :func:`release_sketch` and tests.

    Args:
        mechanism: Numbers of records, blocks and classes, and the clipping norm.
        chunks: The records of this process.
        projections: Directions (d, k), the same on every process.
        max_bytes: See :func:`release_sketch`.

    Returns:
        Tensor (m, k) or (C, m, k) in float64 on rank 0, ``None`` on the other ranks.

    Raises:
        InputError: See :func:`release_sketch`. Raised on every rank if it occurs on one.
    """
    if mechanism.statistic != "quantiles":
        raise InputError("Expected statistic='quantiles' for a sketch, got 'rows'; give n_quantiles.")
    if max_bytes is None:
        max_bytes = min(_MAX_BYTES, available_memory(torch.device("cpu")) // 2)
    at_least(1, max_bytes=max_bytes)
    processes = Processes()
    stream = _Stream(mechanism, chunks, projections.to("cpu", torch.float64))
    local = processes.run_on_all(stream.count)
    sizes = processes.all_gather(local)
    if sum(sizes) != mechanism.batch_size:
        raise InputError(
            f"Expected {mechanism.batch_size} records (batch_size of the mechanism), got {sum(sizes)}; "
            "the guarantee requires a fixed number."
        )
    k = projections.shape[1]
    width = max(1, min(k, max_bytes // (8 * max(sizes)) - 1))  # one column is for the check
    width = min(processes.all_gather(width))  # ranks differ in free memory
    buffer = torch.empty(width, local, dtype=torch.float64)
    groups = []
    for start in range(0, k, width):
        columns = slice(start, min(start + width, k))
        values = processes.run_on_all(partial(stream.project, columns, buffer[: columns.stop - start]))
        groups.append(_summary(mechanism, values, stream.labels, processes))
    return torch.cat(groups, dim=-1) if processes.rank == 0 else None


def _summary(mechanism: ProjectionMechanism, values: Tensor, labels: Tensor | None, processes: Processes) -> Tensor:
    """Sort and merge (columns, n) of all processes and average blocks; (m, columns) or (C, m, columns) on rank 0."""
    size, blocks = mechanism.batch_size, mechanism.n_values
    step = max(1, _MERGE_BYTES // (8 * size))
    if labels is None:
        sort_rows(values, in_place=True)
    classes = []
    for c in range(mechanism.n_classes or 1):
        of_class = None if labels is None else torch.nonzero(labels == c).squeeze(1)
        counts = processes.all_gather(values.shape[1] if of_class is None else len(of_class))
        means = []
        for some in torch.split(values, step):
            part = some if of_class is None else sort_rows(some[:, of_class], in_place=True)
            merged = _merge(part, counts, processes)
            if merged is not None:
                means.append(padded_block_means(merged.T, size, blocks))
        classes.append(torch.cat(means, dim=1) if means else torch.empty(0))
    return classes[0] if labels is None else torch.stack(classes)


class _Stream:
    """The records of one process, validated and projected on a few directions per pass."""

    def __init__(self, mechanism: ProjectionMechanism, chunks: Chunks, projections: Tensor) -> None:
        self.mechanism, self.chunks, self.projections = mechanism, chunks, projections
        self.labels: Tensor | None = None
        self._check: Tensor | None = None  # projections on the first direction, to compare passes
        self._n = 0

    def count(self) -> int:
        """Validate all records in a first pass, store their classes and return their number."""
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
        """Write the projections of the clipped rows on some directions to ``values`` (columns, n), in one pass."""
        assert self._check is not None
        u = torch.cat([self.projections[:, columns], self.projections[:, :1]], dim=1)
        at = 0
        for rows, classes in self._parts():
            end = at + len(rows)
            found = u.T @ rows.T  # (columns + 1, rows)
            same = end <= self._n and torch.allclose(found[-1], self._check[at:end], rtol=1e-9, atol=1e-12)
            if not same or (classes is not None and not torch.equal(classes, self.labels[at:end])):  # type: ignore[index]
                raise InputError(
                    "Expected the same rows in the same order at every pass, got different rows; do not shuffle."
                )
            values[:, at:end] = found[:-1]
            at = end
        if at != self._n:
            raise InputError(f"Expected {self._n} rows at every pass, got {at}; return the same rows every time.")
        return values

    def _parts(self) -> Iterable[tuple[Tensor, Tensor | None]]:
        """Yield validated and clipped rows, a few thousand at a time."""
        for chunk in self.chunks():
            rows, labels = chunk if isinstance(chunk, tuple) and len(chunk) == 2 else (chunk, None)
            check_rows("rows of a chunk", rows, self.mechanism.dim)
            check_labels("classes of a chunk", labels, self.mechanism.n_classes, len(rows))
            for start in range(0, len(rows), _CHUNK_ROWS):
                some = rows[start : start + _CHUNK_ROWS].cpu()
                check_finite(some)
                of_some = None if labels is None else labels[start : start + _CHUNK_ROWS].cpu()
                yield clip_rows(some, self.mechanism.row_norm), of_some


def _merge(part: Tensor, counts: list[int], processes: Processes) -> Tensor | None:
    """Merge sorted rows (columns, n) of all processes into sorted rows (columns, sum of n) on rank 0."""
    merged = processes.gather(part, counts)
    return merged if merged is None or processes.world_size == 1 else sort_rows(merged, in_place=True)
