"""Time and memory of functions: interleaved rounds, medians, peak memory in a process of its own."""

import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

SLOW = 10.0  # seconds from which a function runs once only, without a warm-up
ROUNDS = 9, 51  # least and largest number
BUDGET = 4.0  # seconds that one measurement of short rounds may take


def medians(functions: Mapping[str, Callable[[], object]]) -> dict[str, tuple[float, int]]:
    """Run every function in turn, round after round, so that other load on the machine affects all of them alike.

    Each has one warm-up round that is not counted, unless that takes more than ``SLOW`` seconds: then it is the
    measurement. Short functions get more rounds. The result is the median in seconds and the number of rounds, by name.
    """
    gc.collect()
    warm = {name: seconds_of(function) for name, function in functions.items()}
    taken: dict[str, list[float]] = {
        name: [seconds] if seconds >= SLOW else [] for name, seconds in warm.items()
    }
    least, most = ROUNDS
    for _ in range(max(least, min(most, int(BUDGET / sum(warm.values()))))):
        for name, function in functions.items():
            if warm[name] < SLOW:
                taken[name].append(seconds_of(function))
    return {name: (statistics.median(times), len(times)) for name, times in taken.items()}


def exponent(sizes: Sequence[float], values: Sequence[float], least: float = 1e-9) -> float:
    """Return e of ``values = c sizes^e``, by least squares of the logarithms; values below ``least`` count as it."""
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(values, least)), 1)[0])


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


def peak_of(code: str) -> dict[str, float]:
    """Run ``code``, which defines ``before()`` and ``work()``, in a new process, whose high-water mark is its own.

    Times and ``peak_bytes`` are those of ``work``, ``above_bytes`` what it needs above the memory ``before`` it.
    """
    program = (
        f"{code}\nfrom experiments.benchmarks.measure import report_peak\nreport_peak(before, work)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=root
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def report_peak(before: Callable[[], None], work: Callable[[], None]) -> None:
    """Write the result of :func:`peak_of` as JSON."""
    before()
    gc.collect()
    start = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    started, busy = time.perf_counter(), time.process_time()
    work()
    seconds, busy, peak = (
        time.perf_counter() - started,
        time.process_time() - busy,
        resident("VmHWM"),
    )
    found = {
        "seconds": seconds,
        "cpu_seconds": busy,
        "peak_bytes": peak,
        "above_bytes": peak - start,
    }
    sys.stdout.write(json.dumps(found))


def resident(key: str) -> int:
    """Return an entry of the memory status of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {key}; memory is measured on Linux only")
