r"""The one place where private records are opened, and where a noisy statistic of them is made.

A release takes these steps::

    recorder asked -> indices drawn (or all records) -> records opened -> row function (:mod:`dpswd.row_copy`)
    -> statistic of clipped rows -> ledger -> noise (``_random.normal``, ``noisy``) -> value stored -> returned

Several processes (``torch.distributed``) make one release together: each rank opens its share of the records, rank 0
computes the statistic, writes the ledger and draws the noise, and broadcasts the value.

Formal guarantee: docs/theory/private-side.md.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, Generic, ParamSpec, Self, TypeVar, cast

import torch
from torch import Tensor, nn

from dpswd._distributed import Processes
from dpswd._progress import passing
from dpswd._provenance import track_runs
from dpswd._random import random_source, subset
from dpswd.errors import InputError
from dpswd.mechanism import GaussianMechanism, Mechanism, ProjectionMechanism
from dpswd.records import PrivateRecords
from dpswd.row_check import check_row_function
from dpswd.row_copy import RowFunction, map_records

__all__ = ["Recorder"]

_CHUNK_BYTES = 2**26  # of records that are mapped at a time
_MOST_RECORDS = 4096  # of them

P = ParamSpec("P")
T = TypeVar("T")


class Recorder:
    """Base of the objects that record releases. Its methods are called on every rank, ``store`` on rank 0.

    Example:
        >>> class Counter(Recorder):
        ...     count = 0
        ...     def record(self, mechanism):
        ...         self.count += 1
        >>> from dpswd.queries import ClassCounts
        >>> query = ClassCounts(2, sigma=1.0)
        >>> query.recorder = Counter()
        >>> released = query.release(PrivateRecords(torch.zeros(4, 3), [0, 1, 1, 0], classes=[0, 1]))
        >>> query.recorder.count
        1
    """

    def before_release(
        self, mechanism: Mechanism, records: PrivateRecords | None
    ) -> dict[str, Tensor] | None:
        """Return the tensors of a stored release to use, or ``None``; raise to refuse (``records=None``: a tensor)."""
        return None

    def record(self, mechanism: Mechanism) -> None:
        """Write one release to stable storage before its noise is drawn; raise to refuse it."""
        raise NotImplementedError

    def store(self, mechanism: Mechanism, tensors: dict[str, Tensor]) -> None:
        """Store the noisy values of a release before they are returned."""

    def __deepcopy__(self, memo: Any) -> Self:
        """Return itself: the copy of a loss or query reports to the same recorder."""
        return self


def uncompiled(method: Callable[P, T]) -> Callable[P, T]:
    """Let a compiled module call a method as it is: torch.compile would trace the noise, and show parts in messages."""

    @functools.wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        call = torch.compiler.disable(method) if torch.compiler.is_compiling() else method
        return cast(T, call(*args, **kwargs))

    return called


M = TypeVar("M", bound=ProjectionMechanism | GaussianMechanism)


class Releasing(nn.Module, Generic[M]):
    """Base of the loss and of the queries: a mechanism, its source of noise, and a count of releases."""

    share: float = 0.2  # part of the squared mu of a budget over several queries

    def __init__(self, mechanism: M, recorder: Recorder | None = None) -> None:
        super().__init__()
        track_runs(self)
        self.mechanism, self.recorder, self.n_releases = mechanism, recorder, 0
        self._checked: list[Any] = []  # row functions that were checked on public records

    @property
    def mechanism(self) -> M:
        """The mechanism of a release."""
        return self._mechanism

    @mechanism.setter
    def mechanism(self, mechanism: M) -> None:
        self._mechanism: M = mechanism
        self._source = random_source(mechanism.noise_seed)

    def extra_repr(self) -> str:
        """Describe the mechanism for ``print(module)``; a fixed noise seed is named there, too."""
        status = "" if self.mechanism.is_private else "NOT PRIVATE: fixed noise seed; "
        sigma = "not calibrated" if self.mechanism.sigma is None else f"{self.mechanism.sigma:.4g}"
        return f"{status}{self.mechanism.description}, sigma={sigma}"

    def _ask(self, records: PrivateRecords | None) -> dict[str, Tensor] | None:
        """Announce a release to the recorder; return the tensors of a stored release if it has one."""
        if records is not None and self.recorder is None:
            name = type(self).__name__
            raise InputError(
                f"Expected {name} within a budget, got none; use 'with Budget(...)' or PrivacyBudget."
            )
        return (
            None if self.recorder is None else self.recorder.before_release(self.mechanism, records)
        )

    def _publish(
        self, exact: Any, add_noise: Callable[[Any], Tensor], **published: Tensor
    ) -> Tensor:
        """Record a release on every rank, then draw noise for ``exact`` on rank 0, store the values, broadcast them."""

        def record() -> None:
            self.mechanism.check_calibrated()
            if self.recorder is not None:
                self.recorder.record(self.mechanism)
            self.n_releases += 1

        def draw() -> Tensor:
            released = add_noise(exact).cpu()
            if self.recorder is not None:
                self.recorder.store(self.mechanism, {"values": released, **published})
            return released

        processes = Processes()
        processes.run_on_all(record)
        return cast(Tensor, processes.broadcast(draw))

    def _open_all(
        self, records: PrivateRecords, rows: RowFunction | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield rows and groups of this rank's share of all records, chunk by chunk, on the CPU."""
        self._check_rows(records, rows)
        processes = Processes()
        index = processes.share(len(records))
        for part in passing(
            index.split(_chunk(records)), "Reading records", shown=processes.rank == 0
        ):
            values, labels = records.open_records(part)
            mapped, groups = map_records(rows, values, labels)
            yield mapped.cpu(), groups.cpu()

    def _open_batch(
        self, records: PrivateRecords, size: int, rows: RowFunction | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Draw ``size`` of the records, and return their rows (B, d) and groups (B,) on rank 0."""
        self._check_rows(records, rows)
        processes = Processes()
        drawn = processes.broadcast(lambda: subset(self._source, len(records), size))
        own = torch.tensor_split(torch.from_numpy(drawn), processes.world_size)[processes.rank]

        def mapped() -> tuple[Tensor, Tensor]:
            parts = [
                map_records(rows, *records.open_records(part))
                for part in own.split(_chunk(records))
            ]
            found, groups = zip(*parts, strict=True)
            return torch.cat(found).double(), torch.cat(groups)

        found, groups = processes.run_on_all(mapped)
        return processes.gather(found), processes.gather(groups)

    def _check_rows(self, records: PrivateRecords, rows: RowFunction | None) -> None:
        """Check a row function on public random records, the first time that it is used."""
        if rows is not None and rows not in self._checked:
            check_row_function(rows, records.shape, max(1, records.n_classes))
            self._checked.append(rows)


def check_same_records(records: PrivateRecords) -> str:
    """Return the digest of the records, after comparing it between ranks."""
    processes = Processes()
    digest = str(processes.run_on_all(records.digest))
    if len(set(processes.all_gather(digest))) > 1:
        raise InputError(
            "Expected the same list of records on every rank, in one order, got different ones."
        )
    return digest


def clip_rows(rows: Tensor, row_norm: float) -> Tensor:
    """Scale every row with an L2 norm above ``row_norm`` down to it, row by row, in float64.

    The target is ``row_norm (1 - 1e-12 - d u)`` with u = 2^-53, so that rounding cannot leave a row above the bound
    (docs/theory/sensitivity.md, Proposition 1). A row whose norm overflows becomes zero.
    """
    exact = rows.detach().to(torch.float64, copy=True)
    norms: Tensor = torch.linalg.vector_norm(exact, dim=1, keepdim=True)
    margin = 1e-12 + rows.shape[1] * 2.0**-53
    return exact.mul_((row_norm * (1 - margin) / norms).clamp(max=1.0))


def _chunk(records: PrivateRecords) -> int:
    return max(1, min(_MOST_RECORDS, _CHUNK_BYTES // (4 * math.prod(records.shape))))
