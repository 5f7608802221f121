"""Time and memory of functions: interleaved rounds, medians, peak memory in a process of its own."""

import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

SLOW = 10.0  # seconds from which a function runs once only, without a warm-up
ENOUGH = 9
BUDGET = 4.0  # seconds of one measurement that short rounds may fill


def medians(functions: dict[str, Callable[[], object]], rounds: int) -> dict[str, tuple[float, int]]:
    """Runs every function in turn, round after round, so that what else the machine does meets all of them.

    Args:
        functions: What to measure, by name. Each has one warm-up, which is not counted,
            unless it takes more than ``SLOW`` seconds: then it is all there is.
        rounds: Measured rounds; from ``ENOUGH`` on there are more of them where they are short.

    Returns:
        The median in seconds and the number of rounds, by name.
    """
    gc.collect()
    warm = {name: _seconds(function) for name, function in functions.items()}
    taken: dict[str, list[float]] = {name: [seconds] if seconds >= SLOW else [] for name, seconds in warm.items()}
    if rounds >= ENOUGH:
        rounds = max(rounds, min(51, int(BUDGET / sum(warm.values()))))
    for _ in range(rounds):
        for name, function in functions.items():
            if warm[name] < SLOW:
                taken[name].append(_seconds(function))
    return {name: (statistics.median(times), len(times)) for name, times in taken.items()}


def _seconds(function: Callable[[], object]) -> float:
    _synchronise()
    start = time.perf_counter()
    function()
    _synchronise()
    return time.perf_counter() - start


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peak_of(code: str) -> dict[str, float]:
    """Runs ``code``, which defines ``before()`` and ``work()``, in a process of its own.

    (The high-water mark of a process cannot be told apart from what it did before.)

    Returns:
        ``seconds`` of work and ``cpu_seconds`` of the processor, the ``peak_bytes`` of the process in that time, and
        how much of them lies ``above_bytes`` what ``before`` left.
    """
    program = f"{code}\nfrom benchmarks.measure import report_peak\nreport_peak(before, work)"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=root)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def report_peak(before: Callable[[], None], work: Callable[[], None]) -> None:
    """Writes what :func:`peak_of` returns, as JSON."""
    before()
    gc.collect()
    start = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # sets the high-water mark back
    started, busy = time.perf_counter(), time.process_time()
    work()
    seconds, busy, peak = time.perf_counter() - started, time.process_time() - busy, _resident("VmHWM")
    found = {"seconds": seconds, "cpu_seconds": busy, "peak_bytes": peak, "above_bytes": peak - start}
    sys.stdout.write(json.dumps(found))


def _resident(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {key} in /proc/self/status: memory is measured on Linux only")
