"""Distances and private steps on one GPU, beside POT and the paper's step.

The sizes, contestants and timings are those of :mod:`experiments.benchmarks.benchmarks`. The noise
and the directions of a private step are drawn on the CPU from the secret generator and copied; this
is part of its time.
"""

from functools import partial
from pathlib import Path

import torch

from dpswd.errors import InputError
from experiments.benchmarks.benchmarks import (
    DISTANCE_SIZES,
    STEP_SIZES,
    Problem,
    Size,
    exact,
    naive,
    ours,
    paper_step,
    pot,
    private_loss,
    private_step,
)
from experiments.benchmarks.measure import medians
from experiments.results import Result, Row


def run(out: Path, *, quick: bool = False) -> Result:
    """Time distances and private steps on one GPU (five minutes)."""
    if not torch.cuda.is_available():
        raise InputError("Expected a GPU, got none; run this experiment on a machine with one.")
    distance_sizes = list(DISTANCE_SIZES)
    step_sizes = list(STEP_SIZES)
    if quick:
        distance_sizes = distance_sizes[:1]
        step_sizes = step_sizes[:1]
    rows = [_timed_distance(size) for size in distance_sizes]
    rows += [_timed_step(size) for size in step_sizes]
    return {"gpu": torch.cuda.get_device_name(), "rows": rows}


def _timed_distance(size: Size) -> Row:
    """Time a distance, forward and backward, and state the relative error of ours."""
    problem = Problem.make(size.n, size.d, size.k, "cuda")
    contestants = {"ours": ours, "pot": pot, "naive": naive}
    timings = medians({name: partial(run, problem) for name, run in contestants.items()})
    row: Row = {"part": "distance", "n": size.n, "d": size.d, "k": size.k}
    row["difference"] = abs(float(ours(problem)) / exact(problem) - 1)
    for name, timing in timings.items():
        row[f"{name}_s"] = timing.seconds
    return row


def _timed_step(size: Size) -> Row:
    """Time a private step with both statistics, and the paper's step."""
    problem = Problem.make(size.n, size.d, size.k, "cuda")
    steps = {"paper": partial(paper_step, problem)}
    for statistic in ("rows", "quantiles"):
        steps[statistic] = partial(private_step, problem, private_loss(problem, statistic))
    row: Row = {"part": "step", "n": size.n, "d": size.d, "k": size.k}
    for name, timing in medians(steps).items():
        row[f"{name}_s"] = timing.seconds
    return row
