"""Parts ``distance`` and ``step``: our distance and our private step against the others, with peak memory."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from experiments.benchmarks import contestants
from experiments.benchmarks.contestants import DISTANCES, SIZES, Problem
from experiments.benchmarks.measure import medians, peak_of

Rows = list[dict[str, Any]]

TINY = [(20, 6, 9), (16, 5, 4)]


def distance(tiny: bool, rounds: int) -> Rows:
    """Times the distance, forward and backward, on every device with 1 and 2 threads."""
    return _distance(TINY if tiny else SIZES[:5], tiny, rounds, "distance")


def large(tiny: bool, rounds: int) -> Rows:
    """The same at the largest size on one thread, a third of the rounds."""
    return _distance(TINY[:1] if tiny else SIZES[5:], tiny, max(1, rounds // 3), "large")


def _distance(sizes: list[tuple[int, int, int]], tiny: bool, rounds: int, part: str) -> Rows:
    rows = []
    places = [("cpu", 1)] + ([("cpu", 2)] if part == "distance" else [])
    places += [("cuda", 1)] if torch.cuda.is_available() else []
    for n, d, k in sizes:
        for device, threads in places:
            torch.set_num_threads(threads)
            problem = Problem.make(n, d, k, device)
            values: dict[str, Tensor] = {}
            functions = {name: partial(_keep, values, name, run, problem) for name, run in DISTANCES.items()}
            found = medians(functions, rounds)
            difference = abs(float(values["ours"]) / contestants.exact(problem) - 1)
            row = {"part": part, "n": n, "d": d, "k": k, "device": device, "threads": threads}
            rows.append(row | {"difference": difference} | _columns(found))
            sys.stderr.write(f"{rows[-1]}\n")
        if not tiny:
            rows[-len(places)] |= {f"{name}_bytes": _peak(name, n, d, k) for name in ("ours", "pot", "naive")}
    return rows


def step(tiny: bool, rounds: int) -> Rows:
    """Times a whole private step: ours, by rows and by block means, and the paper's."""
    rows = []
    for n, d, k in TINY if tiny else SIZES[:5]:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            problem = Problem.make(n, d, k)
            functions = {name: contestants.private_step(problem, name) for name in ("rows", "quantiles")}
            functions["paper"] = lambda problem=problem: contestants.paper_step(problem)
            functions["directions"] = lambda d=d, k=k: contestants.random_projections(d, k)
            row = {"part": "step", "n": n, "d": d, "k": k, "device": "cpu", "threads": threads}
            rows.append(row | _columns(medians(functions, rounds)))
    return rows


def _keep(values: dict[str, Tensor], name: str, run: Callable[[Problem], Tensor], problem: Problem) -> None:
    values[name] = run(problem)


def _columns(found: dict[str, tuple[float, int]]) -> dict[str, Any]:
    seconds = {f"{name}_s": seconds for name, (seconds, _) in found.items()}
    return seconds | {f"{name}_rounds": rounds for name, (_, rounds) in found.items()}


def _peak(name: str, n: int, d: int, k: int) -> float:
    found = peak_of(
        f"""
import torch
from experiments.benchmarks import contestants
torch.set_num_threads(1)
def before():
    global problem
    contestants.{name}(contestants.Problem.make(8, {d}, 16))
    problem = contestants.Problem.make({n}, {d}, {k})
def work():
    contestants.{name}(problem)
"""
    )
    return found["above_bytes"]
