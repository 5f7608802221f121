"""Collective calls of the processes that make a release together.

Ranks exchange private rows, sums and batch indices without encryption, so the links between the
machines of a run must be trusted. The transport is gloo on the CPU, independent of the backend of
the gradients. Methods are collective: all ranks call them in the same order. Without
``torch.distributed`` there is one rank, and nothing is sent.
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

# The gloo group of each default group that has another backend.
_gloo: dict[Any, Any] = {}

# One rank reads this many neighbouring records at a time, so that a file is read in long pieces.
_NEIGHBOURS = 4096

# Characters of a message of torch.distributed that an error repeats.
_MESSAGE_LENGTH = 120

# Environment variables that hold the number of processes of a launcher.
_LAUNCHER_SIZES = (
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
        InputError: If a launcher has started several processes and ``torch.distributed`` is not
            initialised.
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
    """Return the launcher's variables that state more than one process.

    The values are the numbers of processes.
    """
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
    """All ranks, or a single one if ``torch.distributed`` is not initialised.

    Attributes:
        rank: Number of this process, from 0.
        world_size: Number of processes.
    """

    def __init__(self) -> None:
        self.rank = 0
        self.world_size = 1
        self.group: Any = None
        if dist.is_available() and dist.is_initialized():
            self.rank = dist.get_rank()
            self.world_size = dist.get_world_size()
        if self.world_size > 1 and dist.get_backend() != "gloo":
            default_group = dist.group.WORLD
            if default_group not in _gloo:
                _gloo[default_group] = dist.new_group(backend="gloo")
            self.group = _gloo[default_group]

    def run_on_all(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``work(*arguments)`` on every rank and return the result of this rank.

        If one rank raises, all ranks raise, which avoids a deadlock.
        """
        if self.world_size == 1:
            return work(*arguments)
        result, error = _attempt(work, arguments)
        errors = self.all_gather(error)
        if error is not None:
            raise error
        for rank, other in enumerate(errors):
            if isinstance(other, DpswdError):
                raise type(other)(f"process {rank}: {other}")
            if other is not None:
                raise InputError(f"process {rank}: {other}")
        return result

    def all_gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        with self._reports_lost_process():
            dist.all_gather_object(values, value, group=self.group)
        return values

    def run_on_rank_0(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``work(*arguments)`` on rank 0, and broadcast its result or error.

        All ranks return the result, or raise the error.
        """
        if self.world_size == 1:
            return work(*arguments)
        message: list[Any] = [None, None]
        if self.rank == 0:
            message = list(_attempt(work, arguments))
        with self._reports_lost_process():
            dist.broadcast_object_list(message, group=self.group, group_src=0)
        result, error = message
        if error is not None:
            raise error
        return result

    def gather(self, part: Tensor) -> Tensor | None:
        """Concatenate the tensors (n, ...) of all ranks, whose n may differ, on rank 0.

        Returns:
            The tensor on the device of the part of rank 0; ``None`` on the other ranks.
        """
        if self.world_size == 1:
            return part
        parts: list[Any] | None = None
        if self.rank == 0:
            parts = [None] * self.world_size
        copied = part.detach().to("cpu", copy=True)
        with self._reports_lost_process():
            dist.gather_object(copied, parts, group=self.group, group_dst=0)
        if parts is None:
            return None
        return torch.cat(parts).to(part.device)

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of the tensors of all ranks; on ranks above 0 it has no meaning."""
        if self.world_size == 1:
            return values
        total = values.cpu().contiguous()
        with self._reports_lost_process():
            dist.reduce(total, group=self.group, group_dst=0)
        return total

    def rank_part(self, n: int) -> Tensor:
        """Return the positions, out of ``n``, that this rank works on.

        Ranks take turns at blocks of neighbouring positions. With two ranks and n = 10,000, rank 0
        has the positions 0 to 4,095 and 8,192 to 9,999, and rank 1 those between.

        Raises:
            InputError: If a rank would have fewer than two positions.
        """
        block = min(_NEIGHBOURS, -(-n // self.world_size))
        rank_of_position = torch.arange(n) // block % self.world_size
        if self.world_size > 1:
            smallest = int(rank_of_position.bincount(minlength=self.world_size).min())
            if smallest < 2:
                raise InputError(
                    "Expected at least two records for every process, "
                    f"got {n} records for {self.world_size} processes; use fewer processes."
                )
        return torch.nonzero(rank_of_position == self.rank)[:, 0]

    @contextlib.contextmanager
    def _reports_lost_process(self) -> Iterator[None]:
        """Raise a :class:`ProcessLostError` in place of the errors of torch.distributed."""
        try:
            yield
        except RuntimeError as error:  # torch.distributed: connection closed or timed out
            raise lost(error) from None


def lost(error: BaseException) -> ProcessLostError:
    """Return a :class:`ProcessLostError` for an exception of torch.distributed."""
    one_line = " ".join(str(error).split())
    without_location = re.sub(r"\[/[^]]*\] *", "", one_line)  # the place in the source of torch
    message = without_location.split(". ")[0][:_MESSAGE_LENGTH]
    return ProcessLostError(
        f"Expected all processes of the run to respond, got a lost connection ({message}); "
        "the ledger holds all releases: resume from the last checkpoint."
    )


def _attempt(work: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, Exception | None]:
    """Return the result of a call and ``None``, or ``None`` and its error."""
    try:
        return work(*arguments), None
    except Exception as error:
        return None, error
