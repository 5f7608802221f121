"""Collective calls of the processes that make a release together.

Ranks exchange private rows, sums and batch indices without encryption, so the links between the machines of a run must
be trusted. The transport is gloo on the CPU, independent of the backend of the gradients. Methods are collective: all
ranks call them in the same order. Without ``torch.distributed`` there is one rank, and nothing is sent.
"""

import contextlib
import operator
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dpswd.errors import DpswdError, InputError, ProcessLostError

_gloo: dict[Any, Any] = {}  # gloo group of each default group with another backend
_PART = 4096  # neighbouring records that one rank reads
_LAUNCHER_SIZES = (  # environment variables that hold the number of processes of a launcher
    "WORLD_SIZE",  # torchrun
    "SLURM_STEP_NUM_TASKS",  # srun
    "OMPI_COMM_WORLD_SIZE",  # mpirun of Open MPI
    "PMI_SIZE",  # mpiexec of MPICH and Intel MPI
    "PMIX_SIZE",  # launchers by PMIx that state a size
    "MPI_LOCALNRANKS",  # mpiexec of MPICH, on one machine
    "MV2_COMM_WORLD_SIZE",  # mpirun of MVAPICH2
)


def check_joined() -> None:
    """Refuse a process of a launcher that has not joined the others.

    Each of them would be a run of its own, and all of them together would spend several budgets.

    Raises:
        InputError: If a launcher has started several processes and ``torch.distributed`` is not initialised.
    """
    sizes = _launched_processes()
    if not sizes or dist.is_initialized():
        return
    variable, size = max(sizes.items(), key=operator.itemgetter(1))
    remedy = (
        "start one process; or start them with torchrun and call init_process_group('gloo'), "
        f"or use a Trainer with devices={size} and strategy ddp"
    )
    raise InputError(
        f"Expected {size} processes that have joined, as {variable} says, got one alone; {remedy}."
    )


def _launched_processes() -> dict[str, int]:
    """Return the variables by which a launcher states more than one process, and the numbers."""
    sizes = {variable: _whole_number(variable) for variable in _LAUNCHER_SIZES}
    if "SLURM_PROCID" in os.environ and "SLURM_STEP_NUM_TASKS" not in os.environ:
        sizes["SLURM_NTASKS"] = _whole_number("SLURM_NTASKS")  # without a rank it is an allocation
    if "PMIX_RANK" in os.environ:  # PMIx states no size, but ranks count from 0
        sizes["PMIX_RANK"] = _whole_number("PMIX_RANK") + 1
    return {variable: size for variable, size in sizes.items() if size > 1}


def _whole_number(variable: str) -> int:
    """Return an environment variable as a number; 0 if it is missing or no number."""
    value = os.environ.get(variable, "")
    return int(value) if value.isdecimal() else 0


class Processes:
    """All ranks, or a single one if ``torch.distributed`` is not initialised."""

    def __init__(self) -> None:
        together = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if together else 0
        self.world_size = dist.get_world_size() if together else 1
        self.group: Any = None
        if self.world_size > 1 and dist.get_backend() != "gloo":
            whole = dist.group.WORLD
            if whole not in _gloo:
                _gloo[whole] = dist.new_group(backend="gloo")
            self.group = _gloo[whole]

    def run_on_all(self, work: Callable[[], Any]) -> Any:
        """Call ``work`` on every rank. If one rank raises, all ranks raise, which avoids a deadlock."""
        if self.world_size == 1:
            return work()
        result, error = _attempt(work)
        errors = self.all_gather(error)
        if error is not None:
            raise error
        for rank, other in enumerate(errors):
            if other is not None:
                kind = type(other) if isinstance(other, DpswdError) else InputError
                raise kind(f"rank {rank}: {other}")
        return result

    def all_gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks."""
        if self.world_size == 1:
            return [value]
        found: list[Any] = [None] * self.world_size
        with self._reports_lost_process():
            dist.all_gather_object(found, value, group=self.group)
        return found

    def broadcast(self, work: Callable[[], Any]) -> Any:
        """Call ``work`` on rank 0 and return its result, or raise its exception, on all ranks."""
        if self.world_size == 1:
            return work()
        sent = list(_attempt(work)) if self.rank == 0 else [None, None]
        with self._reports_lost_process():
            dist.broadcast_object_list(sent, group=self.group, group_src=0)
        result, error = sent
        if error is not None:
            raise error
        return result

    def gather(self, part: Tensor) -> Tensor | None:
        """Concatenate the tensors (n, ...) of all ranks, whose n may differ, on rank 0; ``None`` on other ranks."""
        if self.world_size == 1:
            return part
        found: list[Any] | None = [None] * self.world_size if self.rank == 0 else None
        with self._reports_lost_process():
            dist.gather_object(
                part.detach().to("cpu", copy=True), found, group=self.group, group_dst=0
            )
        return None if found is None else torch.cat(found).to(part.device)

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of the tensors of all ranks on rank 0; on other ranks the result has no meaning."""
        if self.world_size > 1:
            values = values.cpu().contiguous()
            with self._reports_lost_process():
                dist.reduce(values, group=self.group, group_dst=0)
        return values

    def share(self, n: int) -> Tensor:
        """Return the numbers of the records, of n, of this rank; ranks take turns at neighbouring records."""
        part = min(_PART, -(-n // self.world_size))
        rank = torch.arange(n) // part % self.world_size
        if self.world_size > 1 and int(rank.bincount(minlength=self.world_size).min()) < 2:
            got = f"{n} records for {self.world_size} ranks"
            raise InputError(
                f"Expected at least two records for every rank, got {got}; use fewer processes."
            )
        return torch.nonzero(rank == self.rank)[:, 0]

    @contextlib.contextmanager
    def _reports_lost_process(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # torch.distributed: connection closed or timed out
            raise lost(error) from None


def lost(error: BaseException) -> ProcessLostError:
    """Return a :class:`ProcessLostError` for an exception of torch.distributed."""
    said = re.sub(r"\[/[^]]*\] *", "", " ".join(str(error).split()))  # without the source location
    return ProcessLostError(
        f"Expected all ranks of the run to respond, got a lost connection ({said.split('. ')[0][:120]}); the ledger "
        "holds all releases: resume from the last checkpoint."
    )


def _attempt(work: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return work(), None
    except Exception as error:
        return None, error
