"""Benchmarks of docs/performance.md: distances, private steps, start, accounting, growth, memory, torch.compile.

Axes: n rows on both sides, d dimension, k directions; float32, gradient for the generated side y. A part whose result
is in ``OUT/benchmarks`` is not measured again; remove its file to repeat it. All parts take about a quarter of an hour.
"""

import json
import math
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

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
from experiments.benchmarks.measure import exponent, medians, peak_of, seconds_of
from experiments.cells import Cell, run_cells
from experiments.plots import figure

Rows = list[dict[str, Any]]
ROOT = Path(__file__).parents[2]
SIGMA = 0.1
SIZES = [(100, 784, 1000), (1000, 784, 1000), (1000, 784, 100), (6000, 144, 288), (256, 8192, 2000)]
LARGE = [(60_000, 784, 1000)]


# Contestants --------------------------------------------------------------------------------------------------------


@dataclass
class Problem:
    """Two samples and directions, the same for all contestants."""

    x: Tensor
    y: Tensor
    u: Tensor

    @classmethod
    def make(cls, n: int, d: int, k: int, device: str = "cpu") -> "Problem":
        """Draw a problem with a fixed seed."""
        generator = torch.Generator().manual_seed(0)
        x, y = (torch.randn(n, d, generator=generator).to(device) for _ in range(2))
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
    return problem.backward(
        ot.sliced_wasserstein_distance(problem.x, problem.y, projections=problem.u) ** 2
    )


def naive_distance(x: Tensor, y: Tensor, u: Tensor) -> Tensor:
    """Two products, two sorts, a mean of squares, as in the paper's code."""
    sorted_x, sorted_y = ((z @ u).sort(dim=0).values for z in (x, y))
    return (sorted_x - sorted_y).square().mean()


def naive(problem: Problem) -> Tensor:
    """:func:`naive_distance`, forward and backward."""
    return problem.backward(naive_distance(problem.x, problem.y, problem.u))


def floor(problem: Problem) -> Tensor:
    """Two products, the fastest sort of the generated side, the backward product. No distance."""
    n, k = len(problem.x), problem.u.shape[1]
    width = k if n * k <= 10**7 else 64  # the projections of all directions do not always fit
    gradient = torch.zeros(n, problem.x.shape[1], device=problem.x.device)
    for piece in problem.u.T.split(width):
        rows, _ = piece @ problem.x.T, sort_rows_with_order(piece @ problem.y.detach().T)
        gradient.addmm_(rows.T, piece)
    return gradient


DISTANCES: dict[str, Callable[[Problem], Tensor]] = {
    "ours": ours,
    "pot": pot,
    "naive": naive,
    "floor": floor,
}


def exact(problem: Problem) -> float:
    """Compute the distance in float64, a few directions at a time."""
    x, y = problem.x.double(), problem.y.detach().double()
    parts = problem.u.double().split(50, dim=1)
    return (
        sum(float(naive_distance(x, y, part)) * part.shape[1] for part in parts)
        / problem.u.shape[1]
    )


def private_step(problem: Problem, statistic: str) -> Callable[[], Tensor]:
    """Our loss with a release: secure randomness, clipping, float64, noise, backward."""
    (n, d), k = problem.x.shape, problem.u.shape[1]
    quantiles = max(m for m in range(1, 51) if n % m == 0) if statistic == "quantiles" else None
    mechanism = ProjectionMechanism(d, k, SIGMA, n, statistic, quantiles)  # type: ignore[arg-type]
    loss = DPSlicedWassersteinLoss(mechanism)
    return lambda: problem.backward(loss(problem.x, problem.y))


def paper_step(problem: Problem) -> Tensor:
    """Make the paper's step: torch's generator, float32, noise on both sides; rows neither clipped nor sorted first."""
    d, k = problem.u.shape
    u = F.normalize(torch.randn(d, k, device=problem.x.device), dim=0)
    clouds = (z @ u for z in (problem.x, problem.y))
    x, y = ((cloud + SIGMA * torch.randn_like(cloud)).sort(dim=0).values for cloud in clouds)
    return problem.backward((x - y).square().mean())


# Parts --------------------------------------------------------------------------------------------------------------


def distance() -> Rows:
    """Time the distance, forward and backward, with 1 and 2 threads, and on a GPU if there is one."""
    rows = []
    places = [("cpu", count) for count in (1, 2)] + [("cuda", 1)] * torch.cuda.is_available()
    for n, d, k in SIZES + LARGE:
        for device, count in places:
            torch.set_num_threads(count)
            problem = Problem.make(n, d, k, device)
            found = medians({name: partial(run, problem) for name, run in DISTANCES.items()})
            difference = abs(float(ours(problem)) / exact(problem) - 1)
            rows.append(
                {
                    "n": n,
                    "d": d,
                    "k": k,
                    "device": device,
                    "threads": count,
                    "difference": difference,
                }
            )
            rows[-1] |= _columns(found)
        rows[-len(places)] |= {
            f"{name}_bytes": _peak(name, n, d, k) for name in ("ours", "pot", "naive")
        }
    return rows


def _columns(found: dict[str, tuple[float, int]]) -> dict[str, Any]:
    seconds = {f"{name}_s": seconds for name, (seconds, _) in found.items()}
    return seconds | {f"{name}_rounds": rounds for name, (_, rounds) in found.items()}


def _peak(name: str, n: int, d: int, k: int) -> float:
    code = f"""
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
    return peak_of(code)["above_bytes"]


def step() -> Rows:
    """Time a whole private step: ours with rows and with block means, the paper's; our directions and product alone."""
    rows = []
    for n, d, k in SIZES:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            problem = Problem.make(n, d, k)
            functions: dict[str, Callable[[], Tensor]] = {
                name: private_step(problem, name) for name in ("rows", "quantiles")
            }
            functions |= {
                "paper": partial(paper_step, problem),
                "directions": partial(random_projections, d, k),
            }
            functions["product"] = partial(torch.matmul, problem.u.double().T, problem.x.double().T)
            rows.append({"n": n, "d": d, "k": k, "threads": threads} | _columns(medians(functions)))
    return rows


ACCOUNT = """
import json, time
import dpswd.commands.main
from dpswd import PrivacyAccountant, ProjectionMechanism, calibrate_sigma
mechanism = ProjectionMechanism(dim=784, n_projections=1000, sigma=0.72, batch_size=100)
PrivacyAccountant().step(mechanism, sample_size=1000, n_releases=3).get_epsilon(1e-3)  # imports on first use
def epsilon():
    PrivacyAccountant().step(mechanism, sample_size=60_000, n_releases=60_100).get_epsilon(1e-5)
def calibration():
    sizes = {"sample_size": 60_000, "n_releases": 60_100}
    calibrate_sigma(mechanism.replace(n_projections=1001), **sizes, target_epsilon=10.0, target_delta=1e-5)
found = {}
for work in (epsilon, calibration):  # with empty caches
    started = time.perf_counter()
    work()
    found[work.__name__] = time.perf_counter() - started
print(json.dumps(found))
"""


def startup() -> Rows:
    """Wall-clock time of new processes that import the package; the first one fills the disk cache."""
    command = [sys.executable, "-c", "import dpswd"]
    times = [
        seconds_of(partial(subprocess.run, command, check=True, capture_output=True))
        for _ in range(6)
    ]
    return [{"what": "import dpswd", "seconds": statistics.median(times[1:])}]


def account() -> Rows:
    """Epsilon and calibration of 60,100 subsampled releases, in a process that has computed nothing like it before."""
    taken: dict[str, list[float]] = defaultdict(list)
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", ACCOUNT], check=True, capture_output=True, text=True
        )
        for name, seconds in json.loads(done.stdout).items():
            taken[name].append(seconds)
    return [{"what": name, "seconds": statistics.median(times)} for name, times in taken.items()]


def scaling() -> Rows:
    """Time of the distance against n, d and k."""
    base: dict[str, Any] = {"n": 1000, "d": 784, "k": 1000}
    rows = []
    for name, size in base.items():
        sizes = [math.ceil(size * factor) for factor in (0.25, 0.5, 1, 2, 4)]
        works = {
            str(value): partial(ours, Problem.make(**(base | {name: value}))) for value in sizes
        }
        seconds = [median for median, _ in medians(works).values()]
        row: dict[str, Any] = {
            "variable": name,
            "what": "distance, forward and backward",
            "sizes": sizes,
        }
        rows.append(row | {"seconds": seconds, "exponent": exponent(sizes, seconds)})
    return rows


COST_BASE = {"N": 60_000, "B": 6_000, "k": 400, "d": 196}
COST_SIZES = {
    "N": (15_000, 30_000, 60_000, 120_000),  # one release of all records: B = N
    "B": (3_000, 6_000, 12_000, 24_000, 48_000),
    "k": (400, 800, 1_600, 3_200),
    "d": (196, 392, 784, 1_568),
    "T": (100, 1_000, 10_000, 60_100, 1_000_000),
}
COST_RELEASE = """
import torch
from dpswd import DPSlicedWassersteinLoss, ProjectionMechanism
torch.set_num_threads(1)
def before():
    global loss, records, generated
    loss = DPSlicedWassersteinLoss(ProjectionMechanism({d}, {k}, 0.01, {B}, "quantiles", 10 if {B} % 100 else 100))
    records = torch.randint(0, 256, ({N}, {d}), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    generated = torch.rand(500, {d}, requires_grad=True)
    small = DPSlicedWassersteinLoss(ProjectionMechanism({d}, 2, 0.01, 100, "quantiles", 10))
    small(records[:1].repeat(100, 1).float() / 255, generated).backward()
def work():
    index = torch.randperm({N})[:{B}]
    loss(records[index].float() / 255, generated).backward()
"""
COST_ACCOUNT = """
import torch
from dpswd import PrivacyAccountant, ProjectionMechanism
torch.set_num_threads(1)
def account(releases):
    mechanism = ProjectionMechanism({d}, {k}, 0.72, {B})
    PrivacyAccountant().step(mechanism, sample_size={N}, n_releases=releases).get_epsilon(1e-5)
def before():
    account(3)
def work():
    account({T})
"""


def cost() -> Rows:
    """Time and peak memory of a release of B of N records and one comparison; of an account against T."""
    return [_cost_of(variable, sizes) for variable, sizes in COST_SIZES.items()]


def _cost_of(variable: str, sizes: tuple[int, ...]) -> dict[str, Any]:
    settings = [{**COST_BASE, variable: size} for size in sizes]
    for setting in settings:
        setting |= (
            {"B": setting["N"]}
            if variable == "N"
            else {"N": 60_000, "B": 100}
            if variable == "T"
            else {}
        )
    code = COST_ACCOUNT if variable == "T" else COST_RELEASE
    found = [peak_of(code.format(**setting)) for setting in settings]
    above = [each["above_bytes"] for each in found]
    seconds = [each["cpu_seconds"] for each in found]
    return {
        "variable": variable,
        "base": {name: value for name, value in settings[0].items() if name != variable},
        "sizes": list(sizes),
        "cpu_seconds": seconds,
        "peak_bytes": [each["peak_bytes"] for each in found],
        "above_bytes": above,
        "time_exponent": exponent(list(sizes), seconds),
        "memory_exponent": exponent(
            list(sizes), above, least=1e6
        ),  # differences below a megabyte are noise
    }


def compiled() -> Rows:
    """Time the naive distance under ``torch.compile``, on one thread (no graph can hold ours: it calls NumPy)."""
    torch.set_num_threads(1)
    size = SIZES[1]
    problem, fast = Problem.make(*size), torch.compile(naive_distance)
    work = lambda: problem.backward(fast(problem.x, problem.y, problem.u))  # noqa: E731
    seconds = seconds_of(work)
    found = medians(
        {"compiled": work, "naive": partial(naive, problem), "ours": partial(ours, problem)}
    )
    return [dict(zip("ndk", size, strict=True)) | {"compile_s": seconds} | _columns(found)]


# Run ----------------------------------------------------------------------------------------------------------------

PARTS = (startup, account, distance, step, scaling, cost, compiled)


@dataclass(frozen=True)
class Part(Cell):
    """A part of the benchmark."""

    part: str


def measure(part: Part) -> dict[str, Any]:
    """Measure one part."""
    work = next(each for each in PARTS if each.__name__ == part.part)
    return {"rows": [{"part": part.part, **row} for row in work()]}


def run(out: Path, *, quick: bool = False) -> dict[str, Any]:
    """Time and memory of distances, releases, start, accounting (15 minutes; --quick: start, accounting; resumes)."""
    parts = [Part(work.__name__) for work in PARTS]
    found = run_cells(parts[: 2 if quick else None], measure, out / "benchmarks", workers=0)
    rows = [row for part in found for row in part["rows"]]
    if not quick:
        draw(rows, out / "scaling.png")
    return {"rows": rows, "pot": ot.__version__}


def draw(rows: Rows, path: Path) -> None:
    """Draw time and memory against every size, with the fitted exponents."""
    with figure(path, 13, 4, 1, 3, dpi=90) as panels:
        distances, releases, memory = panels
        for row in rows:
            if row["part"] not in ("scaling", "cost") or (row["part"], row["variable"]) == (
                "cost",
                "T",
            ):
                continue
            axes = distances if row["part"] == "scaling" else releases
            seconds, power = (
                row.get("seconds") or row["cpu_seconds"],
                row.get("exponent") or row["time_exponent"],
            )
            name = "N = B" if row["variable"] == "N" else row["variable"]
            axes.plot(
                row["sizes"], [1e3 * value for value in seconds], "o-", label=f"{name}: {power:.2f}"
            )
            if "above_bytes" in row:
                above = [max(value, 1e6) / 1e6 for value in row["above_bytes"]]
                memory.plot(
                    row["sizes"], above, "o-", label=f"{name}: {row['memory_exponent']:.2f}"
                )
        distances.set(title="a distance, forward and backward", ylabel="milliseconds")
        releases.set(title="a release and a comparison", ylabel="milliseconds")
        memory.set(title="their memory above the inputs", ylabel="MB")
        for axes in panels:
            axes.set(xscale="log", yscale="log", xlabel="size")
            axes.xaxis.set_minor_formatter("")
            axes.yaxis.set_minor_formatter("")
            axes.grid(alpha=0.3)
            axes.legend(title="exponent against")
