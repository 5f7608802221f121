"""Memory, time and accuracy of a whole fit of images on disk, in one and in several processes (gloo, one thread each).

Images are those of CIFAR-10, repeated with shifts of up to two pixels, in one file or in class folders. Classifiers are
trained on 20,000 synthetic images and tested on the test images of CIFAR-10. Fits of other numbers of records, pixels,
classes and cells give the growth of the cost against each; the rate of the largest fit, the cost of 10^8 records on 64
machines. A fit whose result is in ``OUT/parts`` is not run again.
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image

from dpswd import mixture, records
from dpswd.accounting.calibrate import mu_of_epsilon
from dpswd.data import benchmark
from dpswd.errors import InputError
from dpswd.files.generators import read_generator
from dpswd.mixture.forecast import MAX_CELLS, forecast
from dpswd.networks.generator import draw
from experiments.benchmarks.measure import exponent, resident
from experiments.cells import Cell, run_cells
from experiments.generation.training import accuracies

SIZE, N_CLASSES = 32, 10
LARGE = {"n": 10**8, "processes": 64, "bytes_per_second": 1.25e9}  # a network of 10 Gbit/s


@dataclass(frozen=True)
class Fit(Cell):
    """One fit, of images of ``side`` x ``side`` pixels, with at most ``cells`` cells per class."""

    n: int
    processes: int
    side: int = SIZE
    n_classes: int = N_CLASSES
    cells: int = MAX_CELLS
    source: str = "one file"  # or "class folders" of PNG


FITS = [
    *(Fit(50_000, processes) for processes in (1, 2, 4)),
    Fit(50_000, 1, source="class folders"),
]
FITS += [*(Fit(10**6, processes) for processes in (1, 2, 4)), Fit(10**6, 2, source="class folders")]
N_SYNTHETIC, CLASSIFIERS = 20_000, ("logreg", "cnn")
BASE = Fit(25_000, 1, cells=3)
GROWTH = {  # fits that differ in one size, by variable and size; a record has 3 values per pixel
    "N": {n: replace(BASE, n=n) for n in (12_500, 25_000, 50_000)},
    "d": {3 * side**2: replace(BASE, side=side) for side in (32, 48, 64)},
    "C": {count: replace(BASE, n_classes=count) for count in (2, 5, 10, 20)},
    "cells": {count: Fit(50_000, 1, cells=count) for count in (3, 6, 12)},
}


@cache
def cifar(root: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Images (50000, 32, 32, 3) and labels in random order."""
    train = benchmark("cifar10", root).train
    order = np.random.default_rng(0).permutation(len(train))
    return train.values.permute(0, 2, 3, 1).numpy()[order], train.labels.numpy()[order]


def write_images(path: Path, fit: Fit, root: Path | None) -> None:
    """Write ``images.npy`` (n, side, side, 3) and ``labels.npy``: CIFAR-10, at most 25 times, with another shift each.

    Another number of classes than 10 is made by merging or by cutting them at random.
    """
    (images, labels), n = cifar(root), fit.n
    pixels = np.arange(fit.side) * SIZE // fit.side
    shifts = sorted(
        itertools.product(range(-2, 3), repeat=2), key=lambda shift: max(map(abs, shift))
    )
    written = np.lib.format.open_memmap(
        path / "images.npy", "w+", np.uint8, (n, fit.side, fit.side, 3)
    )
    for start, shift in zip(range(0, n, len(images)), shifts, strict=False):
        moved = np.roll(images[: n - start], shift, (1, 2))
        written[start : start + len(images)] = (
            moved if fit.side == SIZE else moved[:, pixels][:, :, pixels]
        )
    written.flush()
    cut = np.arange(len(labels)) % max(1, fit.n_classes // N_CLASSES)
    np.save(path / "labels.npy", np.resize((labels + N_CLASSES * cut) % fit.n_classes, n))


def write_folders(path: Path) -> None:
    """Replace the files of :func:`write_images` by class folders with one PNG per image."""
    images, labels = np.load(path / "images.npy", mmap_mode="r"), np.load(path / "labels.npy")
    for name in np.unique(labels):
        (path / str(name)).mkdir()
    for number, (image, name) in enumerate(zip(images, labels, strict=True)):
        Image.fromarray(image).save(path / str(name) / f"{number}.png", compress_level=1)
    for file in path.glob("*.npy"):
        file.unlink()


def accuracy(path: Path, data: Path | None) -> dict[str, float]:
    """Train classifiers on what a generator draws; return their accuracies on the test images."""
    labels = torch.arange(N_SYNTHETIC) % N_CLASSES
    return accuracies(
        CLASSIFIERS, draw(read_generator(path)[0], labels), labels, benchmark("cifar10", data)
    )


def measure(fit: Fit, data: Path | None) -> dict[str, Any]:
    """Run one fit in processes of its own; return the times of rank 0 and the largest memory of a rank."""
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder), fit, data)
        if fit.source == "class folders":
            write_folders(Path(folder))
        words = ["-m", "experiments.benchmarks.parts", folder, f"{0.5 / fit.n:g}", str(fit.cells)]
        if fit.processes > 1:
            words = [
                "-m",
                "torch.distributed.run",
                "--standalone",
                f"--nproc-per-node={fit.processes}",
                *words,
            ]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *words], capture_output=True, text=True, env=environment
        )
        if done.returncode:
            raise InputError(
                f"Expected a fit of {fit.n} images, got status {done.returncode}: {done.stderr[-1000:]}"
            )
        ranks = [
            json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(fit.processes)
        ]
        found = accuracy(Path(folder) / "run" / "generator.pt", data) if fit in FITS else None
    return {
        **asdict(fit),
        **ranks[0],
        "peak_bytes": max(rank["peak_bytes"] for rank in ranks),
        "record_pass_s": ranks[0]["releases_s"] / ranks[0]["records_read"],
        "accuracy": found,
    }


def of_rank(folder: Path, delta: str, cells: int) -> None:
    """Run ``dpswd generate`` as one rank, and write times and memory."""
    from dpswd.commands.main import main

    found = {"releases_s": 0.0, "records_read": 0.0}
    open_records, fit = records.PrivateRecords.open_records, mixture.fit

    def counted(handle: Any, index: Any) -> Any:
        found["records_read"] += len(index)
        return open_records(handle, index)

    def timed(handle: Any, budget: Any, **options: Any) -> Any:
        options["structure"] = forecast(
            len(handle), handle.shape, handle.n_classes, budget.mu, max_cells=cells
        )
        before, busy = time.perf_counter(), time.process_time()
        generator = fit(handle, budget, **options)
        found["releases_s"], found["cpu_s"] = (
            time.perf_counter() - before,
            time.process_time() - busy,
        )
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


def growth(variable: str, rows: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Fit a power of a size to the processor time of the releases, and another one to the memory."""
    sizes = list(rows)
    seconds, peaks = ([row[name] for row in rows.values()] for name in ("cpu_s", "peak_bytes"))
    powers = {"time_exponent": exponent(sizes, seconds), "memory_exponent": exponent(sizes, peaks)}
    return {"variable": variable, "sizes": sizes, "cpu_s": seconds, "peak_bytes": peaks} | powers


def cost(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Extrapolate to ``LARGE`` from the rates of the largest fit in one process."""
    alone = [row for row in rows if row["processes"] == 1 and row["source"] == FITS[0].source]
    rates = max(alone, key=lambda row: row["n"])
    n, processes = LARGE["n"], LARGE["processes"]
    made = forecast(int(n), (3, SIZE, SIZE), N_CLASSES, mu_of_epsilon(10.0, 1e-10))
    passes = made.n_releases + 1  # and a check of all records
    cells = N_CLASSES * made.n_cells
    moments = 8 * (
        N_CLASSES * made.dim**2 + cells * made.n_components**2
    )  # the largest sums; a rank sends each once
    return {
        **{"n": n, "processes": processes, "passes": passes, "sums_bytes": moments},
        "reading_hours": passes * n / processes * rates["record_pass_s"] / 3600,
        "network_s": processes * moments / LARGE["bytes_per_second"],
    }


def run(out: Path, *, quick: bool = False, data: Path | None = None) -> dict[str, Any]:
    """Memory and time of dpswd generate on images on disk (two hours; --quick: 50,000 images and fewer; resumes)."""
    fits, lines = (FITS[:1], {"N": GROWTH["N"]}) if quick else (FITS, GROWTH)
    planned = list(
        dict.fromkeys([*(fit for line in lines.values() for fit in line.values()), *fits])
    )
    results = run_cells(planned, partial(measure, data=data), out / "parts", workers=0)
    found = dict(zip(planned, results, strict=True))
    rows = [found[fit] for fit in fits]
    against = [
        growth(name, {size: found[fit] for size, fit in line.items()})
        for name, line in lines.items()
    ]
    return {"rows": rows, "growth": against, "cost": [cost(rows)]}


if __name__ == "__main__":
    of_rank(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
