"""Time and precision of structured slices.

Axes: n rows on both sides, d dimension, k directions. A private step is compared with that of the
paper, a distance with POT at equal precision, and block means of classes with aligned ones. A part
of the rows is measured on every number of threads. Independent and orthogonal directions are in
single precision. A size whose result is in ``OUT/structured_slices`` is not measured again; remove
its file to repeat it.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from dpswd import (
    DPSlicedWassersteinLoss,
    ProjectionMechanism,
    Release,
    StructuredProjections,
    random_projections,
    sliced_wasserstein,
)
from dpswd._random import normal, random_source
from dpswd._sorting import sort_rows, sort_rows_with_order
from dpswd.mechanism import Precision, ProjectionKind
from dpswd.structured import add_transposed_frame, apply_frame
from experiments.benchmarks.benchmarks import (
    MOST_QUANTILES,
    SIGMA,
    THREADS,
    Problem,
    Size,
    paper_step,
    pot,
    private_step,
)
from experiments.benchmarks.measure import medians
from experiments.cells import Cell, run_cells
from experiments.results import Result, Row

N_DRAWS = 60  # of a distance, for its standard deviation


@dataclass(frozen=True)
class StepSize:
    """Sizes of the paper's step, and directions beside it.

    The directions have constant or small sensitivity.
    """

    size: Size
    kind: ProjectionKind
    k: int

    @property
    def precision(self) -> Precision:
        """Precision of the private products; those of structured slices are exact sums."""
        if self.kind == "structured":
            return "double"
        return "single"


STEP_SIZES = (
    StepSize(Size(100, 784, 1000), "structured", 1024),
    StepSize(Size(1000, 784, 1000), "structured", 1024),
    StepSize(Size(1000, 784, 100), "orthogonal", 100),  # no whole frame is so small
    StepSize(Size(6000, 144, 288), "structured", 256),
    StepSize(Size(256, 8192, 2000), "structured", 8192),
)
DISTANCE_SIZES = (Size(256, 144, 256), Size(256, 784, 1024), Size(256, 8192, 8192))
# n, classes, directions, blocks of a distance to a release of classes; the first one is unaligned.
CLASS_SIZES = ((500, 10, 864, 200), (500, 10, 864, 250))


def steps(sizes: tuple[StepSize, ...], device: str, threads: tuple[int, ...]) -> list[Row]:
    """Time private steps: ours with rows and with block means, and the paper's."""
    rows = []
    for step_size in sizes:
        size = step_size.size
        n_quantiles = max(m for m in range(1, MOST_QUANTILES + 1) if size.n % m == 0)
        of_rows = ProjectionMechanism(
            size.d,
            step_size.k,
            SIGMA,
            size.n,
            row_norm=math.sqrt(size.d),
            kind=step_size.kind,
            precision=step_size.precision,
        )
        of_blocks = of_rows.replace(statistic="quantiles", n_quantiles=n_quantiles)
        independent = of_rows.replace(kind="iid", n_projections=size.k, precision="single")
        for n_threads in threads:
            _use_threads(n_threads)
            problem = Problem.make(size.n, size.d, size.k, device)
            functions: dict[str, Callable[[], Tensor]] = {"paper": partial(paper_step, problem)}
            mechanisms = {"rows": of_rows, "blocks": of_blocks, "iid": independent}
            for name, mechanism in mechanisms.items():
                loss = DPSlicedWassersteinLoss(mechanism)
                functions[name] = partial(private_step, problem, loss)
            functions["floor"] = partial(step_floor, problem, of_rows)
            row: Row = {"part": "step", "n": size.n, "d": size.d, "k": size.k}
            row |= {"kind": step_size.kind, "slices": step_size.k}
            row |= {"precision": step_size.precision}
            rows.append(row | _seconds(functions, n_threads))
    return rows


def step_floor(problem: Problem, mechanism: ProjectionMechanism) -> Tensor:
    """Compute what every step with noisy rows computes, and no distance.

    The time is a lower bound: directions, the noise of both sides, both sorts, and three products
    or transforms, in float32 but for the private noise.
    """
    public = problem.y.detach()
    noise = normal(random_source(), (mechanism.n_projections, len(problem.x)))
    sort_rows(noise)
    gradient = torch.zeros_like(public)
    if mechanism.kind == "structured":
        projections = StructuredProjections.draw(mechanism.dim, mechanism.n_projections)
        for signs in projections.signs:
            apply_frame(signs, problem.x)
            projected = apply_frame(signs, public)
            torch.randn_like(projected)
            sort_rows_with_order(projected)
            add_transposed_frame(signs, projected, gradient)
        return gradient
    directions = random_projections(
        mechanism.dim, mechanism.n_projections, kind=mechanism.kind, dtype=torch.float32
    )
    torch.matmul(directions.T, problem.x.T)
    projected = torch.matmul(directions.T, public.T)
    torch.randn_like(projected)
    sort_rows_with_order(projected)
    return gradient.addmm_(projected.T, directions.T)


def distances(sizes: tuple[Size, ...], device: str, threads: tuple[int, ...]) -> list[Row]:
    """Time the distance, and measure its standard deviation.

    The standard deviation is that over draws of the directions. Rows have standard deviations 1,
    1/2, 1/3, ... in the coordinates, and means that differ by a third of them.
    """
    rows = []
    for size in sizes:
        problem = Problem.make(size.n, size.d, size.k, device)
        deviations = 1 / torch.arange(1, size.d + 1, device=device)
        problem.x *= deviations
        with torch.no_grad():
            problem.y.add_(1 / 3).mul_(deviations)
        draws: dict[str, Callable[[], Tensor | StructuredProjections]] = {
            "structured": partial(StructuredProjections.draw, size.d, size.k),
            "iid": partial(random_projections, size.d, size.k, dtype=torch.float32),
        }
        row: Row = {"part": "distance", "n": size.n, "d": size.d, "k": size.k}
        n_draws = N_DRAWS
        if size.d > 1000:
            n_draws = N_DRAWS // 3
        for name, draw in draws.items():
            values = [_distance(problem, draw) for _ in range(n_draws)]
            row[f"{name}_deviation"] = float(torch.tensor(values).std())
        structured = StructuredProjections.draw(size.d, size.k, device=device)
        for n_threads in threads:
            _use_threads(n_threads)
            functions: dict[str, Callable[[], Tensor]] = {
                "pot": partial(pot, problem),
                "structured": partial(_backward, problem, structured),
            }
            rows.append(row | _seconds(functions, n_threads))
    return rows


def _distance(problem: Problem, draw: Callable[[], Tensor | StructuredProjections]) -> float:
    with torch.no_grad():
        return float(sliced_wasserstein(problem.x, problem.y, draw()))


def _backward(problem: Problem, projections: StructuredProjections) -> Tensor:
    return problem.backward(sliced_wasserstein(problem.x, problem.y, projections))


def classes(device: str, threads: tuple[int, ...]) -> list[Row]:
    """Time a distance to block means of classes, forward and backward.

    It is timed unaligned and aligned.
    """
    rows = []
    for n, n_classes, k, n_blocks in CLASS_SIZES:
        mechanism = ProjectionMechanism(
            144, k, SIGMA, 1000, "quantiles", n_blocks, 12.0, "orthogonal", n_classes=n_classes
        )
        loss = DPSlicedWassersteinLoss(mechanism)
        generator = torch.Generator().manual_seed(0)
        values = torch.randn(n_classes, n_blocks, k, generator=generator).to(device)
        directions = random_projections(144, k, generator=generator, device=device)
        release = Release(values, directions, mechanism)
        public = torch.randn(n, 144, generator=generator).to(device).requires_grad_()
        labels = (torch.arange(n) % n_classes).to(device)
        for n_threads in threads:
            _use_threads(n_threads)
            function = partial(_distance_of_classes, loss, release, public, labels)
            row: Row = {"part": "classes", "n": n, "classes": n_classes, "k": k}
            row |= {"blocks": n_blocks}
            rows.append(row | _seconds({"ours": function}, n_threads))
    return rows


def _distance_of_classes(
    loss: DPSlicedWassersteinLoss, release: Release, public: Tensor, labels: Tensor
) -> Tensor:
    public.grad = None
    distance = loss.distance(release, public, labels)
    distance.backward()
    return distance.detach()


def _use_threads(number: int) -> None:
    """Set the number of threads of torch, and of the products of NumPy."""
    torch.set_num_threads(number)
    threadpool_limits(number, user_api="blas")


def _seconds(functions: dict[str, Callable[[], Tensor]], n_threads: int) -> Row:
    """Return the times of functions by name, and the load of the machine.

    ``_s`` is the median, ``_least_s`` the fastest round, and ``_least_cpu_s`` the least processor
    time of a round.
    """
    row: Row = {"threads": n_threads}
    for name, timing in medians(functions).items():
        row[f"{name}_s"] = timing.seconds
        row[f"{name}_least_s"] = timing.least_seconds
        row[f"{name}_least_cpu_s"] = timing.least_cpu_seconds
    row["load"] = os.getloadavg()[0]
    return row


@dataclass(frozen=True)
class Part(Cell):
    """The measurements of one size on a number of threads.

    Attributes:
        part: ``step``, ``distance`` or ``classes``.
        number: Number of the size; 0 for classes, whose sizes are measured together.
        threads: Number of threads.
        device: Device of the data.
    """

    part: str
    number: int
    threads: int
    device: str = "cpu"


def measure(part: Part) -> Result:
    """Measure one part."""
    threads = (part.threads,)
    if part.part == "step":
        rows = steps((STEP_SIZES[part.number],), part.device, threads)
    elif part.part == "distance":
        rows = distances((DISTANCE_SIZES[part.number],), part.device, threads)
    else:
        rows = classes(part.device, threads)
    return {"rows": rows}


def run(
    out: Path, *, quick: bool = False, device: str = "cpu", threads: int | None = None
) -> Result:
    """Time and precision of structured slices (3 minutes; resumes; --quick: seconds).

    ``--device`` names the device, ``--threads`` one number of threads in place of one and two.
    Other programs change the times on two threads.
    """
    numbers = THREADS
    n_steps = len(STEP_SIZES)
    n_distances = len(DISTANCE_SIZES)
    if device != "cpu":
        numbers = THREADS[:1]
    if quick:
        numbers = THREADS[:1]
        n_steps = 1
        n_distances = 1
    if threads is not None:
        numbers = (threads,)
    parts = []
    for name, n_sizes in (("step", n_steps), ("distance", n_distances), ("classes", 1)):
        for number in range(n_sizes):
            parts += [Part(name, number, n_threads, device) for n_threads in numbers]
    results = run_cells(parts, measure, out / "structured_slices", workers=0)
    rows = [row for result in results for row in result["rows"]]
    return {"rows": rows, "device": device}
