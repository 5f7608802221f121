"""Part ``startup``: what an import and an account take, in fresh processes."""

import statistics
import subprocess
import sys
import time
from typing import Any

COMMANDS = {
    "import torch": ["-c", "import torch"],
    "import dpswd": ["-c", "import dpswd"],
    "from dpswd import *": ["-c", "from dpswd import *"],
    "dpswd account, 60,100 releases": (
        "-m dpswd.cli account --dim 784 --n-projections 1000 --sample-size 60000 --batch-size 100 --num-releases 60100 "
        "--sigma 0.72 --delta 1e-5 --json"
    ).split(),
    "dpswd calibrate, 60,100 releases": (
        "-m dpswd.cli calibrate --dim 784 --n-projections 1000 --sample-size 60000 --batch-size 100 "
        "--num-releases 60100 --epsilon 10 --delta 1e-5 --json"
    ).split(),
}


def startup(tiny: bool, rounds: int) -> list[dict[str, Any]]:
    """Times fresh processes, interleaved, wall clock from outside."""
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for i in range(1 if tiny else rounds + 1):
        for name, command in list(COMMANDS.items())[: 2 if tiny else None]:
            start = time.perf_counter()
            subprocess.run([sys.executable, *command], check=True, capture_output=True)
            if i or tiny:  # the first one fills the cache of the disk
                taken[name].append(time.perf_counter() - start)
    return [
        {"part": "startup", "what": name, "seconds": statistics.median(times)} for name, times in taken.items() if times
    ]
