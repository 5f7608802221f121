"""Parts ``sort``, ``scaling`` and ``sketch``: how time grows, and the stream of a million rows."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dpswd import DPSlicedWassersteinLoss, PrivacyAccountant, ProjectionMechanism
from dpswd._sorting import sort_rows, sort_rows_with_order
from experiments.benchmarks import contestants
from experiments.benchmarks.contestants import Problem
from experiments.benchmarks.measure import medians, peak_of

Rows = list[dict[str, Any]]


def sort(tiny: bool, rounds: int) -> Rows:
    """Times the sorts at hand on 1000 columns, one thread."""
    torch.set_num_threads(1)
    rows = []
    for n in (10, 20) if tiny else (100, 1000, 10_000):
        values = torch.randn(10 if tiny else 1000, n, generator=torch.Generator().manual_seed(0))
        array = values.numpy()
        across = values.T.contiguous()
        found = medians(
            {
                "torch_dim0": lambda across=across: across.sort(dim=0),
                "torch": lambda values=values: values.sort(dim=1),
                "numpy_argsort": lambda array=array: np.argsort(array, axis=1),
                "ours_order": lambda values=values: sort_rows_with_order(values),
                "ours_values": lambda values=values: sort_rows(values),
            },
            rounds,
        )
        rows.append({"part": "sort", "n": n} | {f"{name}_s": seconds for name, (seconds, _) in found.items()})
    return rows


def scaling(tiny: bool, rounds: int) -> Rows:
    """Times the distance against n, d and k, a release against B, accounting against T; fits exponents."""
    torch.set_num_threads(1)
    base = {"n": 1000, "d": 784, "k": 1000}
    factors = (0.01, 0.02) if tiny else (0.25, 0.5, 1, 2, 4)
    rows = []
    for name in base:
        sizes = [{**base, name: math.ceil(base[name] * factor)} for factor in factors]
        if tiny:
            sizes = [{key: min(value, 20) for key, value in size.items()} | {name: size[name]} for size in sizes]
        works = {
            size[name]: lambda problem=Problem.make(**size): contestants.ours(problem)  # noqa: B008
            for size in sizes
        }
        rows.append(_fit(name, "distance, forward and backward", works, rounds))
    batches = (40, 80) if tiny else (1000, 2000, 4000, 8000, 16_000)
    rows.append(_fit("B", "one release of block means", {b: _release(b, tiny) for b in batches}, rounds))
    counts = (3, 9) if tiny else (100, 1000, 10_000, 60_100, 1_000_000)
    rows.append(_fit("T", "epsilon of T releases by PLD", {t: _account(t) for t in counts}, 1 if tiny else 3))
    return rows


def _fit(variable: str, what: str, works: dict[int, Callable[[], object]], rounds: int) -> dict[str, Any]:
    found = medians({str(size): work for size, work in works.items()}, rounds)
    seconds = [found[str(size)][0] for size in works]
    exponent = float(np.polyfit(np.log(list(works)), np.log(seconds), 1)[0])
    return {"part": "scaling", "variable": variable, "what": what, "sizes": list(works), "seconds": seconds} | {
        "exponent": exponent
    }


def _release(size: int, tiny: bool) -> Callable[[], object]:
    d = 8 if tiny else 784
    mechanism = ProjectionMechanism(d, d, 0.1, size, "quantiles", 20)
    loss = DPSlicedWassersteinLoss(mechanism)
    rows = torch.randn(size, d, generator=torch.Generator().manual_seed(0))
    return lambda: loss.release(rows)


def _account(releases: int) -> Callable[[], object]:
    mechanism = ProjectionMechanism(dim=784, n_projections=1000, sigma=0.72, batch_size=100)
    return lambda: PrivacyAccountant().step(mechanism, sample_size=60_000, n_releases=releases).get_epsilon(1e-5)


def sketch(tiny: bool, rounds: int) -> Rows:
    """Streams a million rows through :func:`dpswd.sketch.release_sketch`: time, and peak memory of the process."""
    n, d = (2000, 8) if tiny else (1_000_000, 784)
    code = f"""
import torch
from dpswd import DPSlicedWassersteinLoss, ProjectionMechanism
from dpswd.sketch import release_sketch
torch.set_num_threads(1)
def before():
    global loss
    loss = DPSlicedWassersteinLoss(ProjectionMechanism({d}, {d}, 0.01, {n}, "quantiles", 100, kind="orthogonal"))
def chunks():
    for seed in range(100):
        yield torch.rand({n // 100}, {d}, generator=torch.Generator().manual_seed(seed))
def work():
    release_sketch(loss, chunks, max_bytes=3 * 2**28)
"""
    return [{"part": "sketch", "n": n, "d": d, "k": d} | peak_of(code)]
