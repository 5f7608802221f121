"""Parts ``startup`` and ``account``: what an import and an account take, in fresh processes and by themselves."""

import json
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
        "-m dpswd.commands.main account --dim 784 --n-projections 1000 --sample-size 60000 --batch-size 100 --n-releases 60100 "
        "--sigma 0.72 --delta 1e-5 --json"
    ).split(),
    "dpswd calibrate, 60,100 releases": (
        "-m dpswd.commands.main calibrate --dim 784 --n-projections 1000 --sample-size 60000 --batch-size 100 "
        "--n-releases 60100 --epsilon 10 --delta 1e-5 --json"
    ).split(),
}


ACCOUNT = """
import json, time
import dpswd.commands.main
from dpswd import PrivacyAccountant, ProjectionMechanism, calibrate_sigma
mechanism = ProjectionMechanism(dim=784, n_projections=1000, sigma=0.72, batch_size=100)
PrivacyAccountant().step(mechanism, sample_size=1000, n_releases=3).get_epsilon(1e-3)  # what is imported on first use
def account():
    PrivacyAccountant().step(mechanism, sample_size=60_000, n_releases=60_100).get_epsilon(1e-5)
def calibrate():
    calibrate_sigma(mechanism.replace(n_projections=1001), 60_000, 60_100, target_epsilon=10.0, target_delta=1e-5)
found = {}
for work in (account, calibrate):  # nothing of either is in a cache
    started = time.perf_counter()
    work()
    found[work.__name__] = time.perf_counter() - started
print(json.dumps(found))
"""


def account(tiny: bool, rounds: int) -> list[dict[str, Any]]:
    """Times an account of 60,100 subsampled releases and a calibration, each in a process that made none before."""
    taken: dict[str, list[float]] = {}
    for _ in range(1 if tiny else min(rounds, 3)):
        done = subprocess.run([sys.executable, "-c", ACCOUNT], check=True, capture_output=True, text=True)
        for name, seconds in json.loads(done.stdout).items():
            taken.setdefault(name, []).append(seconds)
    return [{"part": "account", "what": name, "seconds": statistics.median(times)} for name, times in taken.items()]


def startup(tiny: bool, rounds: int) -> list[dict[str, Any]]:
    """Times fresh processes, interleaved, wall clock from outside."""
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for i in range(1 if tiny else min(rounds, 5) + 1):
        for name, command in list(COMMANDS.items())[: 2 if tiny else None]:
            start = time.perf_counter()
            subprocess.run([sys.executable, *command], check=True, capture_output=True)
            if i or tiny:  # the first one fills the cache of the disk
                taken[name].append(time.perf_counter() - start)
    return [
        {"part": "startup", "what": name, "seconds": statistics.median(times)} for name, times in taken.items() if times
    ]
