"""Part ``compiled``: whether ``torch.compile`` pays for a distance. Needs a C++ compiler, else there is no row."""

import sys
import time
from typing import Any

import torch

from experiments.benchmarks import contestants
from experiments.benchmarks.contestants import Problem
from experiments.benchmarks.measure import medians

SIZE = (1000, 784, 1000)


def compiled(tiny: bool, rounds: int) -> list[dict[str, Any]]:
    """Compiles the naive distance (ours calls NumPy, where a graph breaks) and times both against ours, one thread."""
    torch.set_num_threads(1)
    problem = Problem.make(*((20, 6, 9) if tiny else SIZE))

    def distance(y: torch.Tensor) -> torch.Tensor:
        sorted_x, sorted_y = ((z @ problem.u).sort(dim=0).values for z in (problem.x, y))
        return (sorted_x - sorted_y).square().mean()

    fast = torch.compile(distance)
    started = time.perf_counter()
    try:
        problem.backward(fast(problem.y))
    except Exception as error:  # whatever a missing compiler makes of it
        sys.stderr.write(f"torch.compile does not work here: {type(error).__name__}\n")
        return []
    seconds = time.perf_counter() - started
    found = medians(
        {
            "compiled": lambda: problem.backward(fast(problem.y)),
            "naive": lambda: contestants.naive(problem),
            "ours": lambda: contestants.ours(problem),
        },
        rounds,
    )
    times = {f"{name}_s": median for name, (median, _) in found.items()}
    return [{"part": "compiled", **dict(zip("ndk", SIZE, strict=True)), "compile_s": seconds, **times}]
