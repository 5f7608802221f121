"""Work in as many threads as torch has."""

import functools
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from threadpoolctl import ThreadpoolController

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


def multiply_in_threads(function: Callable[[T], None], parts: Iterable[T]) -> None:
    """Multiply large matrices by NumPy in threads: call a function with every part.

    NumPy's library of linear algebra runs on one thread meanwhile: its own threads would keep a
    core busy after each product, for which torch's next operations would wait.
    """
    with _linear_algebra().limit(limits=1):
        run_in_threads(function, parts)


@functools.lru_cache(maxsize=1)
def _linear_algebra() -> ThreadpoolController:
    """Return the loaded libraries of linear algebra; to find them takes milliseconds."""
    return ThreadpoolController().select(user_api="blas")


@functools.lru_cache(maxsize=4)
def _pool(process: int, n_threads: int) -> ThreadPoolExecutor:
    """Return a pool of threads per process; a forked process does not inherit threads."""
    return ThreadPoolExecutor(n_threads, thread_name_prefix="dpswd")
