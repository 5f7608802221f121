"""Part ``cost``: peak memory and time of private training against N, B, k, d and T, each in a process of its own.

What is measured is what a generator pays for: one release of B of N records (bytes, as the data modules hold them),
and one comparison of 500 generated rows with it, gradient included; against T, one account of T releases. One thread.
"""

from typing import Any

import numpy as np

from experiments.benchmarks.measure import peak_of

BASE = {"N": 60_000, "B": 6_000, "k": 400, "d": 196}
SIZES = {
    "N": (15_000, 30_000, 60_000, 120_000),  # one shot: B = N
    "B": (3_000, 6_000, 12_000, 24_000, 48_000),
    "k": (400, 800, 1_600, 3_200),
    "d": (196, 392, 784, 1_568),
    "T": (100, 1_000, 10_000, 60_100, 1_000_000),
}


def cost(tiny: bool, rounds: int) -> list[dict[str, Any]]:
    """Measures every size; fits the exponents of time and memory."""
    if tiny:
        sizes, base = {"B": (20, 40), "T": (2, 4)}, {"N": 100, "B": 20, "k": 4, "d": 3}
    else:
        sizes, base = dict(SIZES), BASE
    return [_growth(variable, [{**base, variable: value} for value in values]) for variable, values in sizes.items()]


def _growth(variable: str, settings: list[dict[str, int]]) -> dict[str, Any]:
    settings = [{**each, "B": each["N"]} if variable == "N" else each for each in settings]
    settings = [{**each, "N": 60_000, "B": 100} if variable == "T" else each for each in settings]
    found = [peak_of(_account(**setting) if "T" in setting else _program(**setting)) for setting in settings]
    sizes = [setting[variable] for setting in settings]
    seconds, above = ([each[name] for each in found] for name in ("cpu_seconds", "above_bytes"))
    return {
        "part": "cost",
        "variable": variable,
        "base": {name: value for name, value in settings[0].items() if name != variable},
        "sizes": sizes,
        "cpu_seconds": seconds,
        "peak_bytes": [each["peak_bytes"] for each in found],
        "above_bytes": above,
        "time_exponent": _exponent(sizes, seconds, 1e-9),
        "memory_exponent": _exponent(sizes, above, 1e6),  # a megabyte is nothing
    }


def _account(**size: int) -> str:
    return f"""
from dpswd import PrivacyAccountant, ProjectionMechanism
def account(releases):
    mechanism = ProjectionMechanism({size["d"]}, {size["k"]}, 0.72, {size["B"]})
    PrivacyAccountant().step(mechanism, sample_size={size["N"]}, n_releases=releases).get_epsilon(1e-5)
def before():
    import torch
    torch.set_num_threads(1)
    account(3)
def work():
    account({size["T"]})
"""


def _exponent(sizes: list[int], values: list[float], least: float) -> float:
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(values, least)), 1)[0])


def _program(**size: int) -> str:
    n, b, k, d = size["N"], size["B"], size["k"], size["d"]
    return f"""
import torch
from dpswd import DPSlicedWassersteinLoss, ProjectionMechanism
torch.set_num_threads(1)
def before():
    global loss, records, generated
    quantiles = {10 if b % 100 else 100}
    loss = DPSlicedWassersteinLoss(ProjectionMechanism({d}, {k}, 0.01, {b}, "quantiles", quantiles))
    records = torch.randint(0, 256, ({n}, {d}), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    generated = torch.rand(500, {d}, requires_grad=True)
    small = DPSlicedWassersteinLoss(ProjectionMechanism({d}, 2, 0.01, 100, "quantiles", 10))
    small(records[:1].repeat(100, 1).float() / 255, generated).backward()
def work():
    index = torch.randperm({n})[:{b}]
    loss(records[index].float() / 255, generated).backward()
"""
