"""Work in as many threads as torch has."""

import functools
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")


def run_in_threads(function: Callable[[T], None], parts: Iterable[T]) -> None:
    """Call a function with every part, in as many threads as torch has.

    The function should release the GIL, as those of NumPy do.
    """
    n_threads = torch.get_num_threads()
    if n_threads == 1:
        for part in parts:
            function(part)
        return
    results = _pool(os.getpid(), n_threads).map(function, parts)
    list(results)  # waits, and raises what a thread raised


@functools.lru_cache(maxsize=4)
def _pool(process: int, n_threads: int) -> ThreadPoolExecutor:
    """Return a pool of threads per process; a forked process does not inherit threads."""
    return ThreadPoolExecutor(n_threads, thread_name_prefix="dpswd")
