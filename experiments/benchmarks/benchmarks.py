"""Benchmarks of docs/performance.md.

They cover distances, private steps, start, accounting, growth, memory, and torch.compile. Axes: n
rows on both sides, d dimension, k directions; float32, gradient for the generated side y. A part
whose result is in ``OUT/benchmarks`` is not measured again; remove its file to repeat it. All parts
take about a quarter of an hour.
"""

import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import ot
import torch
import torch.nn.functional as F
from torch import Tensor

from dpswd import (
    DPSlicedWassersteinLoss,
    ProjectionMechanism,
    random_projections,
    sliced_wasserstein,
)
from dpswd._sorting import sort_rows_with_order
from experiments.benchmarks.measure import Timing, exponent, medians, seconds_of, usage_of
from experiments.cells import Cell, run_cells
from experiments.plots import figure
from experiments.results import Result, Row

SIGMA = 0.1
MOST_QUANTILES = 50  # block means of a private step
AT_ONCE = 10**7  # projected values that the lower bound holds at a time
FEW_DIRECTIONS = 64  # directions that it projects at a time above that
THREADS = (1, 2)


@dataclass(frozen=True)
class Size:
    """Numbers of rows, dimensions and directions."""

    n: int
    d: int
    k: int


STEP_SIZES = (
    Size(100, 784, 1000),
    Size(1000, 784, 1000),
    Size(1000, 784, 100),
    Size(6000, 144, 288),
    Size(256, 8192, 2000),
)
DISTANCE_SIZES = (*STEP_SIZES, Size(60_000, 784, 1000))
COMPILED_SIZE = Size(1000, 784, 1000)
MIDDLE = {"n": 1000, "d": 784, "k": 1000}  # sizes of the growth of the distance
FACTORS = (0.25, 0.5, 1, 2, 4)


# Contestants --------------------------------------------------------------------------------------


@dataclass
class Problem:
    """Two samples (n, d) and directions (d, k), the same for all contestants."""

    x: Tensor
    y: Tensor
    u: Tensor

    @classmethod
    def make(cls, n: int, d: int, k: int, device: str = "cpu") -> "Problem":
        """Draw a problem with a fixed seed."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(n, d, generator=generator).to(device)
        y = torch.randn(n, d, generator=generator).to(device)
        u = random_projections(d, k, generator=generator, dtype=torch.float32, device=device)
        return cls(x, y.requires_grad_(), u)

    def backward(self, loss: Tensor) -> Tensor:
        """Compute the gradient and return the detached loss."""
        self.y.grad = None
        loss.backward()
        return loss.detach()


def ours(problem: Problem) -> Tensor:
    """:func:`dpswd.sliced_wasserstein`, forward and backward."""
    return problem.backward(sliced_wasserstein(problem.x, problem.y, problem.u))


def pot(problem: Problem) -> Tensor:
    """POT's distance, squared, with its torch backend and the same directions."""
    root = ot.sliced_wasserstein_distance(problem.x, problem.y, projections=problem.u)
    return problem.backward(root**2)


def naive_distance(x: Tensor, y: Tensor, u: Tensor) -> Tensor:
    """Two products, two sorts, a mean of squares, as in the paper's code."""
    sorted_x = (x @ u).sort(dim=0).values
    sorted_y = (y @ u).sort(dim=0).values
    return (sorted_x - sorted_y).square().mean()


def naive(problem: Problem) -> Tensor:
    """:func:`naive_distance`, forward and backward."""
    return problem.backward(naive_distance(problem.x, problem.y, problem.u))


def floor(problem: Problem) -> Tensor:
    """Compute what every distance computes: a lower bound on its time. No distance.

    Two products, the fastest sort of the generated side, and the backward product.
    """
    n, d = problem.x.shape
    n_directions = problem.u.shape[1]
    if n * n_directions > AT_ONCE:
        n_directions = FEW_DIRECTIONS
    y = problem.y.detach()
    gradient = torch.zeros(n, d, device=problem.x.device)
    for directions in problem.u.T.split(n_directions):
        projected_x = directions @ problem.x.T
        sort_rows_with_order(directions @ y.T)
        gradient.addmm_(projected_x.T, directions)
    return gradient


DISTANCES: dict[str, Callable[[Problem], Tensor]] = {
    "ours": ours,
    "pot": pot,
    "naive": naive,
    "floor": floor,
}
MEASURED_MEMORY = ("ours", "pot", "naive")


def exact(problem: Problem) -> float:
    """Compute the distance in float64, 50 directions at a time."""
    x = problem.x.double()
    y = problem.y.detach().double()
    total = 0.0
    for directions in problem.u.double().split(50, dim=1):
        total += float(naive_distance(x, y, directions)) * directions.shape[1]
    return total / problem.u.shape[1]


def private_loss(
    problem: Problem, statistic: Literal["rows", "quantiles"]
) -> DPSlicedWassersteinLoss:
    """Return our loss for a problem; block means have the most blocks up to 50."""
    n, d = problem.x.shape
    n_quantiles = None
    if statistic == "quantiles":
        n_quantiles = max(m for m in range(1, MOST_QUANTILES + 1) if n % m == 0)
    k = problem.u.shape[1]
    mechanism = ProjectionMechanism(d, k, SIGMA, n, statistic, n_quantiles, row_norm=math.sqrt(d))
    return DPSlicedWassersteinLoss(mechanism)


def private_step(problem: Problem, loss: DPSlicedWassersteinLoss) -> Tensor:
    """Make our step: secure randomness, clipping, float64, noise, backward."""
    return problem.backward(loss(problem.x, problem.y))


def paper_step(problem: Problem) -> Tensor:
    """Make the paper's step: torch's generator, float32, noise on both sides.

    Rows are neither clipped nor sorted first.
    """
    u = F.normalize(torch.randn(*problem.u.shape, device=problem.x.device), dim=0)
    x = _noisy_sorted(problem.x @ u)
    y = _noisy_sorted(problem.y @ u)
    return problem.backward((x - y).square().mean())


def _noisy_sorted(projected: Tensor) -> Tensor:
    noisy = projected + SIGMA * torch.randn_like(projected)
    return noisy.sort(dim=0).values


# Distances and steps ------------------------------------------------------------------------------


def distance() -> list[Row]:
    """Time the distance, forward and backward, with 1 and 2 threads and a GPU."""
    rows = []
    for size in DISTANCE_SIZES:
        size_rows = [_timed_distance(size, "cpu", threads) for threads in THREADS]
        if torch.cuda.is_available():
            size_rows.append(_timed_distance(size, "cuda", 1))
        for name in MEASURED_MEMORY:
            size_rows[0][f"{name}_bytes"] = _bytes_of_distance(name, size)
        rows += size_rows
    return rows


def _timed_distance(size: Size, device: str, threads: int) -> Row:
    """Return the times of all contestants, and the relative error of ours."""
    torch.set_num_threads(threads)
    problem = Problem.make(size.n, size.d, size.k, device)
    timings = medians({name: partial(run, problem) for name, run in DISTANCES.items()})
    return {
        "n": size.n,
        "d": size.d,
        "k": size.k,
        "device": device,
        "threads": threads,
        "difference": abs(float(ours(problem)) / exact(problem) - 1),
        **_columns(timings),
    }


def _columns(timings: Mapping[str, Timing]) -> Row:
    """Return seconds and rounds of every function by name."""
    columns: Row = {}
    for name, timing in timings.items():
        columns[f"{name}_s"] = timing.seconds
    for name, timing in timings.items():
        columns[f"{name}_rounds"] = timing.rounds
    return columns


MEMORY_CODE = """
import torch
from experiments.benchmarks.benchmarks import DISTANCES, Problem
torch.set_num_threads(1)
def before():
    global problem
    DISTANCES[{name!r}](Problem.make(8, {d}, 16))
    problem = Problem.make({n}, {d}, {k})
def work():
    DISTANCES[{name!r}](problem)
"""


def _bytes_of_distance(name: str, size: Size) -> int:
    """Return the memory that a distance needs above that of its inputs."""
    code = MEMORY_CODE.format(name=name, n=size.n, d=size.d, k=size.k)
    return usage_of(code).above_bytes


def step() -> list[Row]:
    """Time private steps: with rows, with block means, and the paper's.

    Directions and product are also timed alone.
    """
    rows = []
    for size in STEP_SIZES:
        for threads in THREADS:
            torch.set_num_threads(threads)
            problem = Problem.make(size.n, size.d, size.k)
            directions = problem.u.double().T
            functions: dict[str, Callable[[], Tensor]] = {
                "rows": partial(private_step, problem, private_loss(problem, "rows")),
                "quantiles": partial(private_step, problem, private_loss(problem, "quantiles")),
                "paper": partial(paper_step, problem),
                "directions": partial(random_projections, size.d, size.k),
                "product": partial(torch.matmul, directions, problem.x.double().T),
            }
            row: Row = {"n": size.n, "d": size.d, "k": size.k, "threads": threads}
            rows.append(row | _columns(medians(functions)))
    return rows


def scaling() -> list[Row]:
    """Time of the distance against n, d and k."""
    rows = []
    for variable, middle in MIDDLE.items():
        sizes = [math.ceil(middle * factor) for factor in FACTORS]
        functions = {}
        for value in sizes:
            n, d, k = (MIDDLE | {variable: value}).values()
            functions[str(value)] = partial(ours, Problem.make(n, d, k))
        seconds = [timing.seconds for timing in medians(functions).values()]
        rows.append(
            {
                "variable": variable,
                "what": "distance, forward and backward",
                "sizes": sizes,
                "seconds": seconds,
                "exponent": exponent(sizes, seconds),
            }
        )
    return rows


def compiled() -> list[Row]:
    """Time the naive distance under ``torch.compile``, on one thread.

    No graph can hold ours: it calls NumPy.
    """
    torch.set_num_threads(1)
    size = COMPILED_SIZE
    problem = Problem.make(size.n, size.d, size.k)
    function = partial(_compiled_step, problem, torch.compile(naive_distance))
    seconds = seconds_of(function)  # the first call compiles
    timings = medians(
        {"compiled": function, "naive": partial(naive, problem), "ours": partial(ours, problem)}
    )
    row: Row = {"n": size.n, "d": size.d, "k": size.k, "compile_s": seconds}
    return [row | _columns(timings)]


def _compiled_step(
    problem: Problem, compiled_distance: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> Tensor:
    return problem.backward(compiled_distance(problem.x, problem.y, problem.u))


# Start and accounting -----------------------------------------------------------------------------


def startup() -> list[Row]:
    """Time of processes that import the package; the first fills the disk cache."""
    command = [sys.executable, "-c", "import dpswd"]
    start = partial(subprocess.run, command, check=True, capture_output=True)
    seconds = [seconds_of(start) for _ in range(6)]
    return [{"what": "import dpswd", "seconds": statistics.median(seconds[1:])}]


ACCOUNT_CODE = """
import json, time
import dpswd.commands.main
from dpswd import PrivacyAccountant, ProjectionMechanism, calibrate_sigma
mechanism = ProjectionMechanism(dim=784, n_projections=1000, sigma=0.72, batch_size=100)
# imports on first use
PrivacyAccountant().step(mechanism, sample_size=1000, n_releases=3).get_epsilon(1e-3)
def epsilon():
    sizes = {"sample_size": 60_000, "n_releases": 60_100}
    PrivacyAccountant().step(mechanism, **sizes).get_epsilon(1e-5)
def calibration():
    sizes = {"sample_size": 60_000, "n_releases": 60_100}
    budget = {"target_epsilon": 10.0, "target_delta": 1e-5}
    calibrate_sigma(mechanism.replace(n_projections=1001), **sizes, **budget)
times = {}
for work in (epsilon, calibration):  # with empty caches
    started = time.perf_counter()
    work()
    times[work.__name__] = time.perf_counter() - started
print(json.dumps(times))
"""


def account() -> list[Row]:
    """Time of epsilon and calibration of 60,100 subsampled releases, in new processes."""
    times: dict[str, list[float]] = {"epsilon": [], "calibration": []}
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", ACCOUNT_CODE], check=True, capture_output=True, text=True
        )
        for name, seconds in json.loads(done.stdout).items():
            times[name].append(seconds)
    return [{"what": name, "seconds": statistics.median(values)} for name, values in times.items()]


# Cost ---------------------------------------------------------------------------------------------

COST_BASE = {"N": 60_000, "B": 6_000, "k": 400, "d": 196}
COST_SIZES = {
    "N": (15_000, 30_000, 60_000, 120_000),  # one release of all records: B = N
    "B": (3_000, 6_000, 12_000, 24_000, 48_000),
    "k": (400, 800, 1_600, 3_200),
    "d": (196, 392, 784, 1_568),
    "T": (100, 1_000, 10_000, 60_100, 1_000_000),
}
ACCOUNT_BATCH = 100  # B of the account against T
LEAST_BYTES = 1e6  # differences of memory below it are noise
RELEASE_CODE = """
import torch
from dpswd import DPSlicedWassersteinLoss, ProjectionMechanism
torch.set_num_threads(1)
def before():
    global loss, records, generated
    n_quantiles = 10 if {B} % 100 else 100
    row_norm = {d} ** 0.5
    loss = DPSlicedWassersteinLoss(
        ProjectionMechanism({d}, {k}, 0.01, {B}, "quantiles", n_quantiles, row_norm)
    )
    generator = torch.Generator().manual_seed(0)
    records = torch.randint(0, 256, ({N}, {d}), generator=generator, dtype=torch.uint8)
    generated = torch.rand(500, {d}, requires_grad=True)
    small = DPSlicedWassersteinLoss(
        ProjectionMechanism({d}, 2, 0.01, 100, "quantiles", 10, row_norm)
    )
    small(records[:1].repeat(100, 1).float() / 255, generated).backward()
def work():
    index = torch.randperm({N})[:{B}]
    loss(records[index].float() / 255, generated).backward()
"""
RELEASES_CODE = """
import torch
from dpswd import PrivacyAccountant, ProjectionMechanism
torch.set_num_threads(1)
def account(releases):
    mechanism = ProjectionMechanism({d}, {k}, 0.72, {B})
    accountant = PrivacyAccountant().step(mechanism, sample_size={N}, n_releases=releases)
    accountant.get_epsilon(1e-5)
def before():
    account(3)
def work():
    account({T})
"""


def cost() -> list[Row]:
    """Time and memory of a release of B of N records, and of an account of T."""
    return [_cost_against(variable, sizes) for variable, sizes in COST_SIZES.items()]


def _cost_against(variable: str, sizes: tuple[int, ...]) -> Row:
    """Return time and memory at every size of one variable, and their growth."""
    code = RELEASE_CODE
    if variable == "T":
        code = RELEASES_CODE
    settings = [_setting(variable, size) for size in sizes]
    usages = [usage_of(code.format(**setting)) for setting in settings]
    base = settings[0].copy()
    del base[variable]
    seconds = [usage.cpu_seconds for usage in usages]
    above = [usage.above_bytes for usage in usages]
    return {
        "variable": variable,
        "base": base,
        "sizes": list(sizes),
        "cpu_seconds": seconds,
        "peak_bytes": [usage.peak_bytes for usage in usages],
        "above_bytes": above,
        "time_exponent": exponent(sizes, seconds),
        "memory_exponent": exponent(sizes, above, least=LEAST_BYTES),
    }


def _setting(variable: str, size: int) -> dict[str, int]:
    """Return the sizes of one measurement."""
    setting = COST_BASE | {variable: size}
    if variable == "N":
        setting["B"] = size
    if variable == "T":
        setting["B"] = ACCOUNT_BATCH
    return setting


# Run ----------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[], list[Row]]] = {
    "startup": startup,
    "account": account,
    "distance": distance,
    "step": step,
    "scaling": scaling,
    "cost": cost,
    "compiled": compiled,
}
QUICK_PARTS = ("startup", "account")


@dataclass(frozen=True)
class Part(Cell):
    """A part of the benchmark."""

    part: str


def measure(part: Part) -> Result:
    """Measure one part."""
    return {"rows": [{"part": part.part, **row} for row in PARTS[part.part]()]}


def run(out: Path, *, quick: bool = False) -> Result:
    """Time and memory of distances, releases, accounts (15 minutes; resumes)."""
    names = tuple(PARTS)
    if quick:
        names = QUICK_PARTS
    parts = [Part(name) for name in names]
    results = run_cells(parts, measure, out / "benchmarks", workers=0)
    rows = [row for result in results for row in result["rows"]]
    if not quick:
        draw(rows, out / "scaling.png")
    return {"rows": rows, "pot": ot.__version__}


def draw(rows: list[Row], path: Path) -> None:
    """Draw time and memory against every size, with the fitted exponents."""
    with figure(path, 13, 4, 1, 3, dpi=90) as panels:
        distances, releases, memory = panels
        for row in rows:
            if row["part"] == "scaling":
                label = f"{row['variable']}: {row['exponent']:.2f}"
                _draw_times(distances, row["sizes"], row["seconds"], label)
            if row["part"] == "cost" and row["variable"] != "T":
                variable = row["variable"]
                if variable == "N":
                    variable = "N = B"
                label = f"{variable}: {row['time_exponent']:.2f}"
                _draw_times(releases, row["sizes"], row["cpu_seconds"], label)
                above = [max(value, LEAST_BYTES) / 1e6 for value in row["above_bytes"]]
                label = f"{variable}: {row['memory_exponent']:.2f}"
                memory.plot(row["sizes"], above, "o-", label=label)
        distances.set(title="a distance, forward and backward", ylabel="milliseconds")
        releases.set(title="a release and a comparison", ylabel="milliseconds")
        memory.set(title="their memory above the inputs", ylabel="MB")
        for axes in panels:
            axes.set(xscale="log", yscale="log", xlabel="size")
            axes.xaxis.set_minor_formatter("")
            axes.yaxis.set_minor_formatter("")
            axes.grid(alpha=0.3)
            axes.legend(title="exponent against")


def _draw_times(axes: Any, sizes: list[int], seconds: list[float], label: str) -> None:
    axes.plot(sizes, [1e3 * value for value in seconds], "o-", label=label)
