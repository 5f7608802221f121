"""Memory and time of a whole fit of images on disk, in one and in several processes (gloo, one thread each).

Images are those of CIFAR-10, repeated with shifts of up to two pixels. The rates of the measured fits give the cost of
10^8 records on 64 machines. A fit whose result is in ``OUT/parts`` is not run again.
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from dpswd import mixture, records
from dpswd.accounting.calibrate import mu_of_epsilon
from dpswd.data import benchmark
from dpswd.errors import InputError
from dpswd.mixture.structure import forecast
from experiments.benchmarks.measure import resident
from experiments.cells import Cell, run_cells

SIZE, N_CLASSES = 32, 10
LARGE = {"n": 10**8, "processes": 64, "bytes_per_second": 1.25e9}  # a network of 10 Gbit/s


@dataclass(frozen=True)
class Fit(Cell):
    """One fit."""

    n: int
    processes: int


@cache
def cifar(root: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Images (50000, 32, 32, 3) and labels in random order."""
    train = benchmark("cifar10", root).train
    order = np.random.default_rng(0).permutation(len(train))
    return train.values.permute(0, 2, 3, 1).numpy()[order], train.labels.numpy()[order]


def write_images(path: Path, n: int, root: Path | None) -> None:
    """Write ``images.npy`` (n, 32, 32, 3) and ``labels.npy``: CIFAR-10, at most 25 times, with another shift each."""
    images, labels = cifar(root)
    shifts = sorted(itertools.product(range(-2, 3), repeat=2), key=lambda shift: max(map(abs, shift)))
    written = np.lib.format.open_memmap(path / "images.npy", "w+", np.uint8, (n, SIZE, SIZE, 3))
    for start, shift in zip(range(0, n, len(images)), shifts, strict=False):
        written[start : start + len(images)] = np.roll(images, shift, (1, 2))[: n - start]
    written.flush()
    np.save(path / "labels.npy", np.resize(labels, n))


def measure(fit: Fit, data: Path | None) -> dict[str, Any]:
    """Run one fit in processes of its own; return the times of rank 0 and the largest memory of a rank."""
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder), fit.n, data)
        words = ["-m", "experiments.benchmarks.parts", folder, f"{0.5 / fit.n:g}"]
        if fit.processes > 1:
            words = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={fit.processes}", *words]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment)
        if done.returncode:
            raise InputError(f"Expected a fit of {fit.n} images, got status {done.returncode}: {done.stderr[-1000:]}")
        ranks = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(fit.processes)]
    return {
        **{"n": fit.n, "processes": fit.processes},
        **ranks[0],
        "peak_bytes": max(rank["peak_bytes"] for rank in ranks),
        "record_pass_s": ranks[0]["releases_s"] / ranks[0]["records_read"],
    }


def of_rank(folder: Path, delta: str) -> None:
    """Run ``dpswd generate`` as one rank, and write times and memory."""
    from dpswd.commands.main import main

    found = {"releases_s": 0.0, "records_read": 0.0}
    open_records, fit = records.PrivateRecords.open_records, mixture.fit

    def counted(handle: Any, index: Any) -> Any:
        found["records_read"] += len(index)
        return open_records(handle, index)

    def timed(*arguments: Any, **options: Any) -> Any:
        before = time.perf_counter()
        generator = fit(*arguments, **options)
        found["releases_s"] = time.perf_counter() - before
        return generator

    started = time.perf_counter()
    with (
        mock.patch.object(records, "IN_MEMORY", 0),  # on disk at any size
        mock.patch.object(records.PrivateRecords, "open_records", counted),
        mock.patch.object(mixture, "fit", timed),
    ):
        status = main(["generate", str(folder), "--out", str(folder / "run"), "--delta", delta])
    if status:
        raise SystemExit(status)
    found |= {"seconds": time.perf_counter() - started, "peak_bytes": resident("VmHWM")}
    (folder / f"{os.environ.get('RANK', '0')}.json").write_text(json.dumps(found))


def cost(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Extrapolate to ``LARGE`` from the rates of the largest fit in one process."""
    rates = max((row for row in rows if row["processes"] == 1), key=lambda row: row["n"])
    n, processes = LARGE["n"], LARGE["processes"]
    made = forecast(int(n), (3, SIZE, SIZE), N_CLASSES, mu_of_epsilon(10.0, 1e-10))
    passes = made.n_releases + 1  # and a check of all records
    cells = N_CLASSES * made.n_cells
    moments = 8 * (N_CLASSES * made.dim**2 + cells * made.n_components**2)  # the largest sums; a rank sends each once
    return {
        **{"n": n, "processes": processes, "passes": passes, "sums_bytes": moments},
        "reading_hours": passes * n / processes * rates["record_pass_s"] / 3600,
        "network_hours": processes * moments / LARGE["bytes_per_second"] / 3600,
    }


def run(out: Path, *, quick: bool = False, data: Path | None = None, full: bool = False) -> dict[str, Any]:
    """Memory and time of dpswd generate on images on disk (two minutes; --full: 1,000,000, hours; resumes)."""
    if quick:
        fits = [Fit(1000, 1), Fit(1000, 2)]
    else:
        fits = [Fit(50_000, 1), Fit(50_000, 2)] + [Fit(50_000, 4), Fit(10**6, 1)] * full
    rows = run_cells(fits, partial(measure, data=data), out / f"parts{'-quick' if quick else ''}", workers=0)
    return {"rows": rows, "cost": [cost(rows)]}


if __name__ == "__main__":
    of_rank(Path(sys.argv[1]), sys.argv[2])
