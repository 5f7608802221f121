"""Time and memory of functions: interleaved rounds, peak of a new process."""

import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

SLOW = 10.0  # seconds from which a function runs once only, without a warm-up
LEAST_ROUNDS = 9
MOST_ROUNDS = 51
BUDGET = 4.0  # seconds that one measurement of short rounds may take


@dataclass(frozen=True)
class Timing:
    """Times of a function in seconds, and the number of rounds.

    Attributes:
        seconds: Median of the wall-clock times.
        rounds: Number of rounds.
        least_seconds: Wall-clock time of the fastest round.
        least_cpu_seconds: Least processor time of a round, of all threads.
    """

    seconds: float
    rounds: int
    least_seconds: float
    least_cpu_seconds: float


def medians(functions: Mapping[str, Callable[[], object]]) -> dict[str, Timing]:
    """Run every function in turn, round after round; return timings by name.

    Other load on the machine affects all of them alike. Each has one warm-up round that is not
    counted, unless that takes more than ``SLOW`` seconds: then it is the measurement. Short
    functions get more rounds.
    """
    gc.collect()
    warm_up = {name: _times_of(function) for name, function in functions.items()}
    times: dict[str, list[tuple[float, float]]] = {}
    for name, warm_up_times in warm_up.items():
        times[name] = []
        if warm_up_times[0] >= SLOW:
            times[name].append(warm_up_times)
    n_rounds = int(BUDGET / sum(seconds for seconds, _ in warm_up.values()))
    for _ in range(max(LEAST_ROUNDS, min(MOST_ROUNDS, n_rounds))):
        for name, function in functions.items():
            if warm_up[name][0] < SLOW:
                times[name].append(_times_of(function))
    return {name: _timing(rounds) for name, rounds in times.items()}


def _times_of(function: Callable[[], object]) -> tuple[float, float]:
    """Return wall-clock and processor seconds of one call."""
    cpu_started = time.process_time()
    seconds = seconds_of(function)
    return seconds, time.process_time() - cpu_started


def _timing(rounds: list[tuple[float, float]]) -> Timing:
    """Return the timing of rounds of wall-clock and processor seconds."""
    seconds, cpu_seconds = zip(*rounds, strict=True)
    return Timing(statistics.median(seconds), len(rounds), min(seconds), min(cpu_seconds))


def exponent(sizes: Sequence[float], values: Sequence[float], least: float = 1e-9) -> float:
    """Return e of ``values = c sizes^e``, by least squares of the logarithms.

    Values below ``least`` count as it.
    """
    logs = np.log(np.maximum(values, least))
    return float(np.polyfit(np.log(sizes), logs, 1)[0])


def seconds_of(function: Callable[[], object]) -> float:
    """Wall-clock seconds of one call, with the GPU synchronised."""
    _synchronise()
    start = time.perf_counter()
    function()
    _synchronise()
    return time.perf_counter() - start


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


# Memory -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Usage:
    """Time and memory of a piece of work.

    Attributes:
        cpu_seconds: Seconds of the processor.
        peak_bytes: Largest memory of the process during the work.
        above_bytes: The part of it above the memory before the work.
    """

    cpu_seconds: float
    peak_bytes: int
    above_bytes: int


def usage_of(code: str) -> Usage:
    """Measure work in a new process, whose high-water mark is its own.

    ``code`` defines the functions ``before()``, which makes the inputs, and ``work()``.
    """
    program = f"{code}\nfrom {__name__} import report_usage\nreport_usage(before, work)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    return Usage(**json.loads(done.stdout.splitlines()[-1]))


def report_usage(before: Callable[[], None], work: Callable[[], None]) -> None:
    """Write the result of :func:`usage_of` as JSON."""
    before()
    gc.collect()
    resident_before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    cpu_started = time.process_time()
    work()
    cpu_seconds = time.process_time() - cpu_started
    peak = resident("VmHWM")
    usage = Usage(cpu_seconds, peak, peak - resident_before)
    sys.stdout.write(json.dumps(asdict(usage)))


def resident(key: str) -> int:
    """Return an entry of the memory status of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {key}; memory is measured on Linux only")
