"""The processes that make a release together, under ``torch.distributed``; alone where there is no process group.

What they exchange here (indices, projections of private rows, refusals) is inside of the trusted side, in the clear:
the links between the machines of one run must be private. It travels by gloo, on the CPU, whatever carries the
gradients. Every method is collective: all processes call it, in the same order.
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dpswd.errors import InputError, ProcessLostError

__all__ = ["Processes"]

_gloo: dict[Any, Any] = {}  # one group per default group that is none


class Processes:
    """Those of a group, or this one alone.

    Args:
        group: Process group of ``torch.distributed``; by default all of them, if there are any.
    """

    def __init__(self, group: Any = None) -> None:
        together = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank(group) if together else 0
        self.world_size = dist.get_world_size(group) if together else 1
        self.group = group
        if self.world_size > 1 and group is None and dist.get_backend() != "gloo":
            whole = dist.group.WORLD
            if whole not in _gloo:
                _gloo[whole] = dist.new_group(backend="gloo")
            self.group = _gloo[whole]

    def run_on_all(self, work: Callable[[], Any]) -> Any:
        """Does local work; where it fails on one process it fails on all of them, and nobody waits for ever."""
        if self.world_size == 1:
            return work()
        result, error = _attempt(work)
        errors = self.all_gather(error)
        if error is not None:
            raise error
        for rank, other in enumerate(errors):
            if other is not None:
                kind = type(other) if isinstance(other, InputError) else InputError
                raise kind(f"process {rank}: {other}")
        return result

    def all_gather(self, value: Any) -> list[Any]:
        """Returns the values of all processes."""
        if self.world_size == 1:
            return [value]
        found: list[Any] = [None] * self.world_size
        with self._all_there():
            dist.all_gather_object(found, value, group=self.group)
        return found

    def broadcast(self, work: Callable[[], Any]) -> Any:
        """Does work on the first process and hands the result, or the refusal, to all."""
        if self.world_size == 1:
            return work()
        sent = list(_attempt(work)) if self.rank == 0 else [None, None]
        with self._all_there():
            dist.broadcast_object_list(sent, group=self.group, group_src=0)
        result, error = sent
        if error is not None:
            raise error
        return result

    def gather(self, part: Tensor, counts: list[int]) -> Tensor | None:
        """Joins tensors (..., n) of all processes, n as in ``counts``, along their last dimension, on the first one."""
        if self.world_size == 1:
            return part
        if not max(counts):
            return part if self.rank == 0 else None
        padded = part.new_zeros((*part.shape[:-1], max(counts)), device="cpu")
        padded[..., : part.shape[-1]] = part
        found = [torch.empty_like(padded) for _ in counts] if self.rank == 0 else None
        with self._all_there():
            dist.gather(padded, found, group=self.group, group_dst=0)
        if found is None:
            return None
        joined = [each[..., :count] for each, count in zip(found, counts, strict=True)]
        return torch.cat(joined, dim=-1).to(part.device)

    @contextlib.contextmanager
    def _all_there(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # of torch.distributed: a closed connection, a time limit
            raise lost(error) from None


def lost(error: BaseException) -> ProcessLostError:
    """Makes a sentence of what torch.distributed says when another process is gone."""
    said = re.sub(r"\[/[^]]*\] *", "", " ".join(str(error).split()))  # without the source file of the message
    return ProcessLostError(
        "Expected all processes of the run to take part, got one that stopped or cannot be reached "
        f"({said.split('. ')[0][:120]}); the run has ended here, the ledger holds all that was released: resume from "
        "the last checkpoint."
    )


def _attempt(work: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return work(), None
    except Exception as error:
        return None, error
