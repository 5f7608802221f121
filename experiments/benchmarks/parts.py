"""Memory, time and accuracy of a whole fit of images on disk.

The fit runs in one process and in several. Processes (gloo) have one thread each. Images are those
of CIFAR-10, repeated with shifts of up to two pixels, in one file or in class folders. Classifiers
are trained on 20,000 synthetic images and tested on the test images of CIFAR-10. Fits of other
numbers of records, pixels, classes and cells give the growth of the cost against each; the rate of
the largest fit, the cost of 10^8 records on 64 machines. A fit whose result is in ``OUT/parts`` is
not run again.
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, partial, partialmethod
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dpswd import mixture, records
from dpswd.accounting.calibrate import mu_of_epsilon
from dpswd.commands.main import main
from dpswd.data import benchmark
from dpswd.errors import InputError
from dpswd.files.generators import read_generator
from dpswd.mixture.forecast import MAX_CELLS, forecast
from dpswd.networks.generator import draw
from experiments.benchmarks.measure import exponent, resident
from experiments.cells import Cell, run_cells
from experiments.generation.training import accuracies
from experiments.results import Result, Row

SIZE = 32  # side of the images of CIFAR-10
N_CLASSES = 10
N_SYNTHETIC = 20_000
CLASSIFIERS = ("logreg", "cnn")
ONE_FILE = "one file"
CLASS_FOLDERS = "class folders"

# The extrapolated fit.
LARGE_N = 10**8
LARGE_PROCESSES = 64
NETWORK = 1.25e9  # bytes per second: 10 Gbit/s
LARGE_EPSILON = 10.0
LARGE_DELTA = 1e-10


@dataclass(frozen=True)
class Fit(Cell):
    """One fit, of square images, with at most ``cells`` cells per class."""

    n: int
    processes: int
    side: int = SIZE
    n_classes: int = N_CLASSES
    cells: int = MAX_CELLS
    source: str = ONE_FILE  # or CLASS_FOLDERS, of PNG


FITS: tuple[Fit, ...] = (
    Fit(50_000, 1),
    Fit(50_000, 2),
    Fit(50_000, 1, source=CLASS_FOLDERS),
    Fit(200_000, 2, source=CLASS_FOLDERS),
    Fit(10**6, 1),
    Fit(10**6, 2),
)
BASE = Fit(25_000, 1, cells=3)
GROWTH = {  # fits that differ in one size, by variable and size; a record has 3 values per pixel
    "N": {n: replace(BASE, n=n) for n in (12_500, 25_000, 50_000)},
    "d": {3 * side**2: replace(BASE, side=side) for side in (32, 48, 64)},
    "C": {count: replace(BASE, n_classes=count) for count in (2, 5, 10, 20)},
    "cells": {count: Fit(50_000, 1, cells=count) for count in (3, 6, 12)},
}


# Images on disk -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cifar:
    """Images (50000, 32, 32, 3) and labels (50000,) in random order."""

    images: np.ndarray
    labels: np.ndarray


@cache
def cifar(root: Path | None) -> Cifar:
    """Read the training images of CIFAR-10."""
    train = benchmark("cifar10", root).train
    order = np.random.default_rng(0).permutation(len(train))
    images = train.values.permute(0, 2, 3, 1).numpy()
    return Cifar(images[order], train.labels.numpy()[order])


def write_images(path: Path, fit: Fit, root: Path | None) -> None:
    """Write ``images.npy`` (n, side, side, 3) and ``labels.npy``.

    The images are those of CIFAR-10, at most 25 times, with another shift each. Another number of
    classes than 10 is made by merging or by cutting them at random.
    """
    original = cifar(root)
    shape = (fit.n, fit.side, fit.side, 3)
    written = np.lib.format.open_memmap(path / "images.npy", "w+", np.uint8, shape)
    starts = range(0, fit.n, len(original.images))
    for start, shift in zip(starts, _shifts(), strict=False):
        moved = np.roll(original.images[: fit.n - start], shift, (1, 2))
        if fit.side != SIZE:
            pixels = np.arange(fit.side) * SIZE // fit.side
            moved = moved[:, pixels][:, :, pixels]
        written[start : start + len(moved)] = moved
    written.flush()
    n_pieces = max(1, fit.n_classes // N_CLASSES)  # into which a class is cut
    piece = np.arange(len(original.labels)) % n_pieces
    labels = (original.labels + N_CLASSES * piece) % fit.n_classes
    np.save(path / "labels.npy", np.resize(labels, fit.n))


def _shifts() -> list[tuple[int, int]]:
    """Return the 25 shifts of up to two pixels, small ones first."""
    pixels = range(-2, 3)
    return sorted(itertools.product(pixels, pixels), key=_largest)


def _largest(shift: tuple[int, int]) -> int:
    return max(abs(shift[0]), abs(shift[1]))


def write_folders(path: Path) -> None:
    """Replace the files of :func:`write_images` by class folders of PNG."""
    images = np.load(path / "images.npy", mmap_mode="r")
    labels = np.load(path / "labels.npy")
    for name in np.unique(labels):
        (path / str(name)).mkdir()
    for number, (image, name) in enumerate(zip(images, labels, strict=True)):
        Image.fromarray(image).save(path / str(name) / f"{number}.png", compress_level=1)
    for file in path.glob("*.npy"):
        file.unlink()


# Fits ---------------------------------------------------------------------------------------------


def measure(fit: Fit, data: Path | None) -> Result:
    """Run one fit in processes of its own.

    Returns the times of rank 0, the largest memory of a rank, and the accuracies of classifiers.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "images")  # the run directory lies beside it
        path.mkdir()
        write_images(path, fit, data)
        if fit.source == CLASS_FOLDERS:
            write_folders(path)
        _run_processes(path, fit)
        ranks = []
        for rank in range(fit.processes):
            ranks.append(json.loads((path.parent / f"{rank}.json").read_text()))
        accuracy = None
        if fit in FITS:
            accuracy = _accuracy(path, data)
    return {
        **asdict(fit),
        **ranks[0],
        "peak_bytes": max(rank["peak_bytes"] for rank in ranks),
        "record_pass_s": ranks[0]["releases_s"] / ranks[0]["records_read"],
        "accuracy": accuracy,
    }


def _run_processes(path: Path, fit: Fit) -> None:
    """Run this module as a program in every process of a fit."""
    command = [sys.executable]
    if fit.processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone"]
        command.append(f"--nproc-per-node={fit.processes}")
    delta = 0.5 / fit.n
    command += ["-m", __name__, str(path), f"{delta:g}", str(fit.cells)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise InputError(
            f"Expected a fit of {fit.n} images, got status {done.returncode}: {done.stderr[-1000:]}"
        )


def _accuracy(path: Path, data: Path | None) -> dict[str, float]:
    """Train classifiers on generated images; return accuracies on test images."""
    labels = torch.arange(N_SYNTHETIC) % N_CLASSES
    generator, _ = read_generator(path.parent / "run" / "generator.pt")
    images = draw(generator, labels)
    return accuracies(CLASSIFIERS, images, labels, benchmark("cifar10", data))


# One process --------------------------------------------------------------------------------------


@dataclass
class Meter:
    """Counts what a fit reads, and the time of its releases.

    Attributes:
        records_read: Number of records that were opened.
        releases_s: Wall-clock seconds of :func:`dpswd.mixture.fit`.
        cpu_s: Its seconds of the processor.
    """

    records_read: int = 0
    releases_s: float = 0.0
    cpu_s: float = 0.0


@contextmanager
def metered(meter: Meter, cells: int) -> Iterator[None]:
    """Replace two functions of the library by ones that measure and call them.

    The command has no hooks there: the cost of a single step is no business of its users. The fit
    gets a structure with at most ``cells`` cells per class, for which the command has no option.
    """
    open_records = partialmethod(_open_counted, meter, records.PrivateRecords.open_records)
    fit = partial(_fit_timed, meter, mixture.fit, cells)
    with (
        mock.patch.object(records.PrivateRecords, "open_records", open_records),
        mock.patch.object(mixture, "fit", fit),
    ):
        yield


def _open_counted(
    handle: records.PrivateRecords, meter: Meter, open_records: Any, index: Tensor
) -> Any:
    """Open the records at ``index``, and count them."""
    meter.records_read += len(index)
    return open_records(handle, index)


def _fit_timed(
    meter: Meter, fit: Any, cells: int, handle: records.PrivateRecords, budget: Any, **options: Any
) -> Any:
    """Fit a generator with at most ``cells`` cells per class, and measure the time."""
    options["structure"] = forecast(
        len(handle), handle.shape, handle.n_classes, budget.mu, max_cells=cells
    )
    started = time.perf_counter()
    cpu_started = time.process_time()
    generator = fit(handle, budget, **options)
    meter.releases_s = time.perf_counter() - started
    meter.cpu_s = time.process_time() - cpu_started
    return generator


def run_rank(folder: Path, delta: str, cells: int) -> None:
    """Run ``dpswd generate`` as one rank, and write times and memory to ``RANK.json``."""
    meter = Meter()
    started = time.perf_counter()
    with (
        metered(meter, cells),
        mock.patch.object(records, "MOST_BYTES_IN_MEMORY", 0),  # on disk at any size
    ):
        run = str(folder.parent / "run")
        status = main(["generate", str(folder), "--out", run, "--delta", delta])
    if status:
        raise SystemExit(status)
    seconds = time.perf_counter() - started
    usage = asdict(meter) | {"seconds": seconds, "peak_bytes": resident("VmHWM")}
    rank = os.environ.get("RANK", "0")
    (folder.parent / f"{rank}.json").write_text(json.dumps(usage))


# Summary ------------------------------------------------------------------------------------------


def growth(variable: str, results: dict[int, Result]) -> Row:
    """Fit powers of a size to the time of the releases, and to the memory."""
    sizes = list(results)
    seconds = [result["cpu_s"] for result in results.values()]
    peaks = [result["peak_bytes"] for result in results.values()]
    return {
        "variable": variable,
        "sizes": sizes,
        "cpu_s": seconds,
        "peak_bytes": peaks,
        "time_exponent": exponent(sizes, seconds),
        "memory_exponent": exponent(sizes, peaks),
    }


def cost(rows: list[Row]) -> Row:
    """Extrapolate to ``LARGE_N`` records from the largest fit in one process."""
    alone = [row for row in rows if row["processes"] == 1 and row["source"] == ONE_FILE]
    largest = max(alone, key=lambda row: row["n"])
    mu = mu_of_epsilon(LARGE_EPSILON, LARGE_DELTA)
    plan = forecast(LARGE_N, (3, SIZE, SIZE), N_CLASSES, mu)
    n_passes = plan.n_releases + 1  # and a check of all records
    n_cells = N_CLASSES * plan.n_cells
    # The largest sums; a rank sends each once.
    n_values = N_CLASSES * plan.dim**2 + n_cells * plan.n_components**2
    sums_bytes = 8 * n_values
    reading_s = n_passes * LARGE_N / LARGE_PROCESSES * largest["record_pass_s"]
    return {
        "n": LARGE_N,
        "processes": LARGE_PROCESSES,
        "passes": n_passes,
        "sums_bytes": sums_bytes,
        "reading_hours": reading_s / 3600,
        "network_s": LARGE_PROCESSES * sums_bytes / NETWORK,
    }


def run(out: Path, *, quick: bool = False, data: Path | None = None) -> Result:
    """Memory and time of dpswd generate on disk (three quarters of an hour; resumes)."""
    fits = FITS
    lines = GROWTH
    if quick:
        fits = FITS[:1]
        lines = {"N": GROWTH["N"]}
    planned = [fit for line in lines.values() for fit in line.values()]
    planned = list(dict.fromkeys([*planned, *fits]))
    results = run_cells(planned, partial(measure, data=data), out / "parts", workers=0)
    by_fit = dict(zip(planned, results, strict=True))
    rows = [by_fit[fit] for fit in fits]
    growths = []
    for variable, line in lines.items():
        of_line = {size: by_fit[fit] for size, fit in line.items()}
        growths.append(growth(variable, of_line))
    return {"rows": rows, "growth": growths, "cost": [cost(rows)]}


if __name__ == "__main__":
    run_rank(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
