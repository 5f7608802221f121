"""One release, from private records to a noisy value.

Records are opened here and nowhere else.

:func:`make_release` makes every release of a query and of the loss, in this order:

1. ask the recorder, which refuses the release or has its values from an interrupted run;
2. open records, map them to rows (:mod:`dpswd.row_copy`), clip the rows, and compute the exact
   statistic;
3. record the release in the ledger;
4. draw the noise and add it;
5. store the noisy values, and return them.

A query is a sum over all records (:class:`RecordSum`): it states what a chunk of records
contributes. The loss (:class:`BatchStatistic`) is a function of the rows of a secret batch, which
it sorts, and therefore needs all of them at once.

Terms. Every record is one *entry* of a sum; where units are stated, every unit has c entries, drawn
from its records, which repeat if it has fewer (:mod:`dpswd.units`). A *group* is what a query
counts or sums by itself: the class of a record, unless the row function says otherwise
(:class:`dpswd.LabelledRows`), for example a cell of its class.

Several processes (``torch.distributed``) make one release together: each rank opens its part of the
records; rank 0 gets their sum or their rows, writes the ledger, draws the noise and broadcasts the
noisy values.

``PRIVATE`` at the end of a docstring says that the result depends on records without noise: it must
not be shown, logged or returned to the user.

Formal guarantee: docs/theory/private-side.md.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from dpswd._compiling import uncompiled
from dpswd._distributed import Processes
from dpswd._progress import with_progress_bar
from dpswd._provenance import track_runs
from dpswd._random import noisy, normal, on_grid, random_source, subset
from dpswd.errors import InputError
from dpswd.mechanism import GaussianMechanism, Mechanism, ProjectionMechanism
from dpswd.records import PrivateRecords
from dpswd.row_check import check_row_function
from dpswd.row_copy import RowFunction, map_records

__all__ = ["Recorder"]

# Records are opened and mapped in chunks of at most this many bytes (as float32) and records, which
# bounds the memory of a row function.
_MAX_CHUNK_BYTES = 2**26
_MAX_CHUNK_RECORDS = 4096
# Part of a squared mu that a query gets of which nothing else is stated: five of them fit a budget.
_DEFAULT_SHARE = 0.2

M = TypeVar("M", bound=ProjectionMechanism | GaussianMechanism)


class Recorder:
    """Base of the objects that record releases, as a budget does.

    A loss or query calls its methods on every rank, ``store`` on rank 0 only.

    Example:
        >>> class Counter(Recorder):
        ...     count = 0
        ...     def record(self, mechanism):
        ...         self.count += 1
        >>> from dpswd.queries import ClassCounts
        >>> query = ClassCounts(2, sigma=1.0)
        >>> query.recorder = Counter()
        >>> records = PrivateRecords(torch.zeros(4, 3), [0, 1, 1, 0], classes=[0, 1])
        >>> released = query.release(records)
        >>> query.recorder.count
        1
    """

    def before_release(
        self, mechanism: Mechanism, records: PrivateRecords | None
    ) -> dict[str, Tensor] | None:
        """Return the tensors of a stored release, or ``None`` if a release is to be made.

        Args:
            mechanism: The mechanism of the release.
            records: The handle of the records; ``None`` if the caller hands over a tensor.

        Raises:
            DpswdError: To refuse the release.
        """
        return None

    def record(self, mechanism: Mechanism) -> None:
        """Write one release to stable storage before its noise is drawn.

        An exception refuses the release.
        """
        raise NotImplementedError

    def store(self, mechanism: Mechanism, tensors: dict[str, Tensor]) -> None:
        """Store the noisy values of a release before they are returned."""

    def __deepcopy__(self, memo: Any) -> Self:
        """Return itself: the copy of a loss or query reports to the same recorder."""
        return self


class Releasing(nn.Module, Generic[M]):
    """Base of the queries and of the loss.

    It has a mechanism, the source of its noise, and a count of its releases.

    Attributes:
        mechanism: The mechanism of a release. A new one starts a new source of noise.
        recorder: Object that records every release before it is made.
        n_releases: Number of releases that this object has made.
        source: Source of the noise, of secret batches and of directions.
        share: Part of the squared mu of a budget over several queries. The last one, as the loss of
            a training, gets what the others leave.
    """

    share: float = _DEFAULT_SHARE

    def __init__(self, mechanism: M, recorder: Recorder | None = None) -> None:
        super().__init__()
        track_runs(self)  # a module that holds released values carries the runs they are from
        self.mechanism = mechanism
        self.recorder = recorder
        self.n_releases = 0
        self._checked_functions: list[RowFunction] = []

    @property
    def mechanism(self) -> M:
        """The mechanism of a release."""
        return self._mechanism

    @mechanism.setter
    def mechanism(self, mechanism: M) -> None:
        self._mechanism: M = mechanism
        self.source = random_source(mechanism.noise_seed)

    def extra_repr(self) -> str:
        """Describe the mechanism for ``print(module)``.

        NOT PRIVATE and why stands before a mechanism that is not.
        """
        sigma = "not calibrated"
        if self.mechanism.sigma is not None:
            sigma = f"{self.mechanism.sigma:.4g}"
        text = f"{self.mechanism.description}, sigma={sigma}"
        if not self.mechanism.is_private:
            return f"NOT PRIVATE: {self.mechanism.why_not_private}; {text}"
        return text

    def draw_noise(self, shape: tuple[int, ...]) -> Tensor:
        """Draw fresh noise of this shape and of standard deviation 1, in float64."""
        return normal(self.source, shape)

    def add_noise(self, values: Tensor) -> Tensor:
        """Add fresh noise to exact values and round the sum to a public grid.

        The noise has the standard deviation sigma of the mechanism. A mechanism that is marked
        ``noise_free`` adds none.
        """
        if self.mechanism.noise_free:
            return on_grid(values.clone(), self.mechanism.sigma)
        noise = self.draw_noise(tuple(values.shape)).to(values.device)
        return noisy(values, noise, self.mechanism.sigma)

    def discard_order(self, values: Tensor) -> Tensor:
        """Return noisy values without an order that carries information. Post-processing."""
        return values

    def check_stored(self, tensors: dict[str, Tensor]) -> None:
        """Raise an InputError if the tensors of a stored release are of another query."""

    @property
    def n_groups(self) -> int:
        """Number C of groups of records that the statistic has; 1 without groups."""
        raise NotImplementedError

    def check_row_function(self, row_function: RowFunction, records: PrivateRecords) -> None:
        """Check a row function on public random records, the first time that it is used."""
        if row_function not in self._checked_functions:
            n_classes = max(1, records.n_classes)
            check_row_function(row_function, records.shape, n_classes, self.n_groups)
            self._checked_functions.append(row_function)


class RecordSum(Releasing[GaussianMechanism]):
    """A statistic that is a sum over all records, in float64.

    A subclass states the terms.

    Attributes:
        n_classes: Number C of groups; 1 puts all records into one.
        shape: Shape of the sum.
    """

    n_classes = 1
    shape: tuple[int, ...]

    def contribution(self, rows: Tensor, groups: Tensor, n_records: int) -> Tensor:
        """Return the sum over a chunk of records. PRIVATE.

        Args:
            rows: Rows (n, d) of the chunk, not clipped.
            groups: Their groups (n,), in [0, C).
            n_records: Number of records in the whole sum, which fixes the rounding of the terms.

        Returns:
            Tensor of :attr:`shape` in float64. Terms are rounded such that contributions add up
            without error, in any order (docs/theory/numerics.md).
        """
        raise NotImplementedError

    @property
    def n_groups(self) -> int:
        """Number of groups of a row function."""
        return self.n_classes

    def check_stored(self, tensors: dict[str, Tensor]) -> None:
        """Raise an :class:`InputError` if a stored value has another shape than this sum."""
        if tuple(tensors["values"].shape) != self.shape:
            raise InputError(
                "Expected the query of the interrupted run, got a new one; resume with its config."
            )


class BatchStatistic(Releasing[ProjectionMechanism]):
    """A statistic of all rows of a batch together. A subclass computes it."""

    @property
    def n_groups(self) -> int:
        """Number of classes of the mechanism; 1 without classes."""
        return self.mechanism.n_classes or 1

    def draw_projections(self) -> Tensor:
        """Draw the public directions (d, k) of one release."""
        raise NotImplementedError

    def check_private_rows(self, rows: Tensor, labels: Tensor | None) -> None:
        """Raise an InputError unless rows and labels of a batch fit the mechanism."""
        raise NotImplementedError

    def exact_values(self, rows: Tensor, labels: Tensor | None, projections: Tensor) -> Tensor:
        """Compute the values of private rows (B, d) before noise. PRIVATE.

        The rows are not clipped so far.
        """
        raise NotImplementedError


@uncompiled
@torch.no_grad()
def make_release(
    module: RecordSum | BatchStatistic,
    private: PrivateRecords | Tensor,
    row_function: RowFunction | None = None,
) -> dict[str, Tensor]:
    """Make one release of a query or of the loss. Every rank calls this function.

    Args:
        module: The query or the loss.
        private: The records; or, for the loss, rows (n, d) that the caller hands over, which are
            this rank's part of a batch.
        row_function: Maps records to rows, each by itself; ``None`` flattens them.

    Returns:
        The noisy ``values``, and for the loss its ``projections``.

    Raises:
        InputError: If records, row function and mechanism do not fit; nothing was released.
        BudgetExceededError: If the recorder refuses the release.
    """
    processes = Processes()

    # 1. Ask the recorder, which refuses the release or has its values from an interrupted run.
    stored = _ask_recorder(module, private)
    if stored is not None:
        module.check_stored(stored)
        return stored

    # 2. Open records, map them to rows, clip the rows, and compute the exact statistic on rank 0.
    #    The chunks are lazy: a record is opened when the sum or the batch reads its chunk.
    if isinstance(private, PrivateRecords):
        _check_units(module.mechanism, private)
        entries = _choose_entries(module, private, processes)
        chunks = _open_chunks(module, private, entries, row_function, processes)
        n_entries = private.n_entries
    else:
        n_entries = sum(processes.all_gather(len(private)))
        _check_size(module.mechanism, n_entries)
        chunks = iter([(private.detach(), _one_group(private))])
    public: dict[str, Tensor] = {}
    if isinstance(module, RecordSum):
        part = processes.run_on_all(_add_up, module, chunks, n_entries)
        exact = processes.sum(part)
    else:
        rows, groups = processes.run_on_all(_join_chunks, chunks)
        if processes.world_size > 1:
            rows = processes.gather(rows.double())
        groups = processes.gather(groups)
        public["projections"] = processes.run_on_rank_0(module.draw_projections)
        exact = processes.run_on_all(_exact_values, module, rows, groups, public["projections"])

    # 3. Record the release in the ledger, before its noise exists.
    processes.run_on_all(_record, module)

    # 4. and 5. On rank 0, draw the noise (module.add_noise) and store the noisy values; send them
    #    to every rank. Nothing after this line is private.
    values = processes.run_on_rank_0(_add_noise_and_store, module, exact, public)
    tensors = {"values": values, **public}
    if exact is not None:  # ranks above 0 have no rows of a batch: their values stay on the CPU
        tensors = {name: tensor.to(exact.device) for name, tensor in tensors.items()}
    return tensors


def _ask_recorder(
    module: RecordSum | BatchStatistic, private: PrivateRecords | Tensor
) -> dict[str, Tensor] | None:
    """Announce a release, and return the tensors of a stored one.

    ``None`` says that the release is to be made.
    """
    records = None
    if isinstance(private, PrivateRecords):
        records = private
    if module.recorder is not None:
        return module.recorder.before_release(module.mechanism, records)
    if records is not None:
        raise InputError(
            f"Expected {type(module).__name__} within a budget, got none; "
            "use 'with Budget(...)' or PrivacyBudget."
        )
    return None


def _check_units(mechanism: Mechanism, records: PrivateRecords) -> None:
    """Raise unless the sensitivity counts the records of a unit that change together."""
    if mechanism.per_unit != records.per_unit:
        raise InputError(
            f"Expected a mechanism with per_unit={records.per_unit} as the records, got "
            f"{mechanism.per_unit}; open the budget with the records."
        )


def _check_size(mechanism: Mechanism, n_entries: int) -> None:
    """Raise unless all ranks together hand over a batch of the account."""
    batch_size = mechanism.batch_size
    if batch_size is not None and n_entries != batch_size:
        raise InputError(
            f"Expected batches of batch_size={batch_size} records, which the account has, got "
            f"{n_entries}; make the batches of the loader and batch_size of the mechanism equal."
        )


def _choose_entries(
    module: RecordSum | BatchStatistic, records: PrivateRecords, processes: Processes
) -> Tensor:
    """Return the indices (n,) of the entries of a release that this rank opens.

    A mechanism without ``batch_size`` reads all entries, of which a public rule gives every rank
    a part. Otherwise rank 0 draws a uniform subset of ``batch_size`` units, in secret order, and
    every rank has a contiguous part of their entries, so that the rows of all ranks, one after
    another, have the order of the draw. Without units, an entry is a record.
    """
    batch_size = module.mechanism.batch_size
    if batch_size is None:
        return processes.rank_part(records.n_entries)
    drawn = processes.run_on_rank_0(subset, module.source, len(records), batch_size)
    entries = records.entries_of(torch.from_numpy(drawn))
    parts = torch.tensor_split(entries, processes.world_size)
    return parts[processes.rank]


def _open_chunks(
    module: RecordSum | BatchStatistic,
    records: PrivateRecords,
    entries: Tensor,
    row_function: RowFunction | None,
    processes: Processes,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield rows and groups of the entries with these indices. PRIVATE.

    The entries are opened chunk by chunk. The row function is checked on public records before the
    first chunk is opened. Rank 0 shows a progress bar, with what is released, if all records are
    read.
    """
    if row_function is not None:
        module.check_row_function(row_function, records)
    size = _MAX_CHUNK_BYTES // (4 * math.prod(records.shape))
    size = max(1, min(_MAX_CHUNK_RECORDS, size))
    has_bar = processes.rank == 0 and module.mechanism.batch_size is None
    description = f"Reading records: {module.mechanism.released}"
    for chunk in with_progress_bar(entries.split(size), description, shown=has_bar):
        values, labels = records.open_records(chunk)
        rows, groups = map_records(row_function, values, labels)
        # A refusal would tell of a record: a group that does not exist becomes the nearest one.
        yield rows, groups.clamp(0, module.n_groups - 1)


def _one_group(rows: Tensor) -> Tensor:
    """Return the group 0, that of records without classes, for rows (n, d)."""
    return torch.zeros(len(rows), dtype=torch.int64, device=rows.device)


def _add_up(module: RecordSum, chunks: Iterable[tuple[Tensor, Tensor]], n_records: int) -> Tensor:
    """Return the sum of what the chunks of this rank contribute, on the CPU. PRIVATE."""
    total = torch.zeros(module.shape, dtype=torch.float64)
    for rows, groups in chunks:
        total += module.contribution(rows.cpu(), groups.cpu(), n_records)
    return total


def _join_chunks(chunks: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return the rows (n, d) and the groups (n,) of all chunks of this rank. PRIVATE."""
    rows, groups = zip(*chunks, strict=True)
    if len(rows) == 1 and rows[0].is_floating_point():
        return rows[0], groups[0]  # without a copy, as clip_rows makes one in float64
    return torch.cat(rows).double(), torch.cat(groups)


def _exact_values(
    module: BatchStatistic, rows: Tensor | None, groups: Tensor | None, projections: Tensor
) -> Tensor | None:
    """Return the exact values of a batch. PRIVATE.

    Rank 0 has the rows of the batch; the other ranks get ``None``.
    """
    if rows is None:
        return None
    labels = None
    if module.mechanism.n_classes is not None and groups is not None:
        labels = groups.to(rows.device)
    module.check_private_rows(rows, labels)
    return module.exact_values(rows, labels, projections.to(rows.device))


def _record(module: RecordSum | BatchStatistic) -> None:
    """Write a release to the ledger, if there is one, and count it in the module.

    Without a recorder, the caller hands rows over and keeps the books.
    """
    module.mechanism.check_calibrated()
    if module.recorder is not None:
        module.recorder.record(module.mechanism)
    module.n_releases += 1


def _add_noise_and_store(
    module: RecordSum | BatchStatistic, exact: Tensor, public: dict[str, Tensor]
) -> Tensor:
    """Return noisy values on the CPU, after they are stored.

    From here on everything is public.
    """
    values = module.discard_order(module.add_noise(exact)).cpu()
    if module.recorder is not None:
        module.recorder.store(module.mechanism, {"values": values, **public})
    return values


def check_same_records(records: PrivateRecords) -> None:
    """Raise an InputError unless all ranks have the same records, in the same order.

    Each rank opens its part of the records by their indices.
    """
    processes = Processes()
    digest = processes.run_on_all(records.digest)
    if len(set(processes.all_gather(digest))) > 1:
        raise InputError(
            "Expected the same list of records in every process, in one order, got different "
            "lists; read the same files in every process."
        )
