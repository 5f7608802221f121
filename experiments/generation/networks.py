"""Networks that match released moments: accuracy of training on their images.

A cell makes all releases within its budget (``OUT/networks/runs/NAME``: ledger, privacy.json,
report, samples.png, the moments and the generator), trains the network of the shipped config in
plain torch, and trains classifiers on 60,000 generated images, which are tested on the real test
images. ``OUT/networks/cells`` has the finished cells. Controls, one seed each: the start of the
network without training, the normal law of the moments; training from random weights; and moments
with a second feature map, random convolutions, whose means are released in the same budget.
"""

import resource
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import torch.nn.functional as F
import yaml
from torch import Tensor, nn

from dpswd.accounting.calibrate import mu_of_epsilon
from dpswd.data import Benchmark, benchmark
from dpswd.evaluation.accuracy import IMAGE_CLASSIFIERS
from dpswd.features.maps import FeatureMap
from dpswd.files.generators import read_generator, write_generator
from dpswd.files.pictures import save_grid, save_samples
from dpswd.lightning.schedules import one_cycle
from dpswd.moments import MomentMatcher, plan_moments
from dpswd.networks.generator import Generator, draw, seeded
from dpswd.networks.image_generators import ShuffleGenerator
from dpswd.report.render import write_report
from experiments import cells
from experiments.generation.frechet import fidelity
from experiments.generation.training import CONFIGS, DELTA, accuracies, digest
from experiments.results import Result, Row

DATASETS = {"MNIST": "mnist", "FashionMNIST": "fashion", "USPS": "usps"}
FACES = "CelebA"  # has no classes: distances in place of accuracies
CONFIG_OF = {
    "MNIST": "mnist_moments",
    "FashionMNIST": "fashion_moments",
    "USPS": "mnist_moments",
    FACES: "celeba_moments",
}
BUDGETS = (10.0, 1.0, 0.2)
N_SYNTHETIC = 60_000
N_FACES = 10_000
N_SEEDS = 3
LONGER = (2_000, 6_000)  # steps of training from random weights
QUICK_STEPS = 20
METHODS = {
    "moments": "moment matching",
    "random": "moment matching, from random weights",
    "start": "normal law of the moments, no training",
    "maps": "moment matching, two feature maps",
}


@dataclass(frozen=True)
class Printed:
    """Accuracies of Rakotomamonjy2021, Table 2, by classifier.

    ``sound`` is ``None`` where no guarantee is claimed.
    """

    dataset: str
    method: str
    epsilon: float | None
    sound: bool | None
    accuracies: dict[str, int]


PRINTED_DP = "DP-SWD, printed, ε claimed"
PRINTED_PLAIN = "SWD, printed"
PRINTED = (
    Printed("MNIST", PRINTED_DP, 10.0, False, {"logreg": 78, "mlp": 77}),
    Printed("MNIST", PRINTED_PLAIN, None, None, {"logreg": 82, "mlp": 87}),
    Printed("FashionMNIST", PRINTED_DP, 10.0, False, {"logreg": 66, "mlp": 67}),
    Printed("FashionMNIST", PRINTED_PLAIN, None, None, {"logreg": 76, "mlp": 77}),
)


class Convolutions(FeatureMap):
    """Two random convolutions of stride 2 with ReLU, fixed and public.

    They have 1,568 features of an image of 28 x 28.
    """

    def __init__(self, sample_shape: tuple[int, ...], radius: float = 4.0) -> None:
        super().__init__(sample_shape, centre=0.5, radius=radius)
        with seeded(0):
            first = nn.Conv2d(sample_shape[0], 16, 5, stride=2, padding=2)
            second = nn.Conv2d(16, 32, 5, stride=2, padding=2)
        body = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten())
        self.body = body.requires_grad_(False)
        self.dim = self.body(torch.zeros(1, *sample_shape)).shape[1]

    def transform(self, centred: Tensor) -> Tensor:
        """Map centred images (n, channels, h, w) to features (n, dim)."""
        features: Tensor = self.body(centred)
        return features


@dataclass(frozen=True)
class Cell(cells.Cell):
    """One release, one training run, one evaluation.

    ``steps`` is the number of steps of the config if it is ``None``.
    """

    dataset: str
    epsilon: float
    seed: int
    method: str = "moments"
    steps: int | None = None


# Experiment ---------------------------------------------------------------------------------------


def run(out: Path, *, quick: bool = False, data: Path | None = None) -> Result:
    """Networks that match released moments: downstream accuracy (hours; resumes)."""
    planned = plan()
    if quick:
        planned = [Cell("MNIST", 10.0, 0, steps=QUICK_STEPS)]
    runs = out / "networks" / "runs"
    work = partial(run_cell, directory=runs, data=data)
    directory = out / "networks" / "cells"
    results = cells.run_cells(planned, work, directory, version=version, workers=0)
    draw_picture(runs, out / "networks.png")
    of_classifiers = [result for result in results if "accuracy" in result]
    faces = []
    for result in results:
        if "frechet" in result:
            faces.append(result | {"method": METHODS[result["method"]]})
    return {"rows": summarise(of_classifiers), "faces": faces}


def plan() -> list[Cell]:
    """List the cells, one seed after the other, then the controls, then faces."""
    planned = []
    for seed in range(N_SEEDS):
        for epsilon in BUDGETS:
            planned += [Cell(dataset, epsilon, seed) for dataset in DATASETS]
    planned += _controls("start")
    planned += _controls("random")
    for steps in LONGER:
        planned += _controls("random", steps)
    planned += _controls("maps")
    planned.append(Cell(FACES, BUDGETS[0], 0))
    return planned


def _controls(method: str, steps: int | None = None) -> list[Cell]:
    """Return the cells of a control on both data sets of the paper."""
    return [Cell(dataset, BUDGETS[0], 0, method, steps) for dataset in ("MNIST", "FashionMNIST")]


def version(cell: Cell) -> str:
    """Return a digest of the settings: a cell is run again when they change."""
    return digest(settings(cell.dataset))


def settings(dataset: str) -> dict[str, Any]:
    """Return settings of the shipped config, and options of its network.

    USPS has the jitter of MNIST in proportion to the side of the image. The number of frequencies
    and the rule for pooling were chosen on MNIST and USPS.
    """
    config = yaml.safe_load((CONFIGS / f"{CONFIG_OF[dataset]}.yaml").read_text())
    options = config["model"]["init_args"]
    network = dict(options["generator"]["init_args"])
    if dataset == "USPS":
        jitter = dict(network["jitter"])
        for name in ("shift", "elastic"):  # in pixels
            jitter[name] = round(jitter[name] * 16 / 28, 2)
        network["sample_shape"] = (1, 16, 16)
        network["jitter"] = jitter
    return {
        "steps": config["trainer"]["max_steps"],
        "batch": options["batch_size"],
        "lr": options["lr"],
        "network": network,
    }


# Cells --------------------------------------------------------------------------------------------


def run_cell(cell: Cell, directory: Path, data: Path | None) -> Result:
    """Release, train and evaluate."""
    directory = cells.new_directory(directory / cell.name)
    loaded = _load(cell.dataset, data)
    records = loaded.private()
    torch.manual_seed(cell.seed)
    options = settings(cell.dataset)
    n_classes = records.n_classes or 0
    mu = mu_of_epsilon(cell.epsilon, DELTA)
    size, pooled = plan_moments(len(records), n_classes, mu, records.shape)
    generator = ShuffleGenerator(**({"size": size} | options["network"]))
    steps = cell.steps or options["steps"]
    if cell.method == "start":
        steps = 0
    started = time.monotonic()
    cpu_started = cpu_seconds()
    maps: list[FeatureMap] = [generator.features]
    moments = [True]  # whether second moments are released, of each map
    if cell.method == "maps":
        maps.append(Convolutions(records.shape))
        moments.append(False)
    matcher = MomentMatcher(maps, n_classes, moments=moments, pooled=pooled)
    statement = matcher.release(
        records, target_epsilon=cell.epsilon, target_delta=DELTA, run_dir=directory
    )
    if cell.method != "random":
        generator.start_at(*matcher.normal())
    if cell.method != "start":
        train(generator, matcher, steps=steps, batch=options["batch"], lr=options["lr"])
    generator.eval()
    seconds = time.monotonic() - started
    cpu_used = cpu_seconds() - cpu_started
    matcher.save(directory / "moments.pt")
    write_generator(generator, directory / "generator.pt", matcher.guarantee)
    save_samples(generator, directory / "samples.png")
    check_report(directory, cell.epsilon)
    return {
        "dataset": cell.dataset,
        "epsilon": cell.epsilon,
        "seed": cell.seed,
        "method": cell.method,
        "sound": statement["sound"],
        "mu": statement["mu"],
        "delta": statement["delta"],
        "steps": steps,
        "n_frequencies": generator.size,
        "pooled": pooled,
        **_evaluated(generator, loaded),
        "train_seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_used, 1),
    }


def _load(dataset: str, data: Path | None) -> Benchmark:
    """Return a data set by its name in the tables."""
    if dataset == FACES:
        return benchmark("celeba", data, public=True)
    return benchmark(DATASETS[dataset], data, public=True)


def train(
    generator: Generator, matcher: MomentMatcher, *, steps: int, batch: int, lr: float
) -> None:
    """Train as :class:`dpswd.lightning.module.MomentModule` does."""
    labels = torch.arange(batch) % max(1, generator.n_classes)
    labels_of_loss = None
    if generator.n_classes:
        labels_of_loss = labels
    optimiser = torch.optim.Adam(generator.parameters(), lr=lr, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, partial(one_cycle, n_steps=steps))
    for _ in range(steps):
        images = generator(generator.latent(batch), labels)
        loss = matcher.loss(images, labels_of_loss)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()


def check_report(directory: Path, epsilon: float) -> None:
    """Write the report of a run, which must be sound and within ``epsilon``."""
    report = write_report(directory)
    if not report["sound"] or report["guarantee"]["epsilon"] > epsilon:
        raise RuntimeError(
            f"Expected a sound run within epsilon={epsilon}, got {report['guarantee']}."
        )


def _evaluated(generator: Generator, loaded: Benchmark) -> Result:
    """Return accuracies on the test images, or distances if there are no classes."""
    assert loaded.test is not None
    if not generator.n_classes:
        images = draw(generator, torch.zeros(N_FACES, dtype=torch.int64))
        return dict(fidelity(loaded.test.floats(), images))
    labels = torch.arange(N_SYNTHETIC) % generator.n_classes
    images = draw(generator, labels)
    return {"accuracy": accuracies(IMAGE_CLASSIFIERS, images, labels, loaded)}


def cpu_seconds() -> float:
    """Return the seconds of the processor that this process has used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


# Rows and pictures --------------------------------------------------------------------------------


def summarise(results: list[Result]) -> list[Row]:
    """Average cells over seeds: a row for each setting and classifier.

    The rows of the paper follow.
    """
    rows = []
    for seed_results in cells.grouped(results, _setting).values():
        rows += _rows_of_setting(seed_results)
    rows += _printed_rows()
    datasets = list(DATASETS)
    printed = (PRINTED_DP, PRINTED_PLAIN)
    return sorted(
        rows,
        key=lambda row: (
            datasets.index(row["dataset"]),
            row["method"] in printed,
            -(row["epsilon"] or 0),
        ),
    )


def _setting(result: Result) -> tuple[Any, ...]:
    return result["dataset"], result["method"], result["epsilon"], result["steps"]


def _rows_of_setting(results: list[Result]) -> list[Row]:
    """Return the rows of results that differ in the seed, one for each classifier."""
    first = results[0]
    row: Row = {
        "dataset": first["dataset"],
        "method": METHODS[first["method"]],
        "statistic": "moments",
        "epsilon": first["epsilon"],
    }
    for name in ("delta", "mu", "sound", "steps", "n_frequencies", "pooled"):
        row[name] = first[name]
    for name in ("train_seconds", "cpu_seconds"):
        row[name] = round(mean(result[name] for result in results))
    return cells.by_classifier(results, row)


def _printed_rows() -> list[Row]:
    """Return the accuracies of the paper, in rows like ours."""
    rows = []
    for printed in PRINTED:
        for classifier, accuracy in printed.accuracies.items():
            rows.append(
                {
                    "dataset": printed.dataset,
                    "method": printed.method,
                    "statistic": "rows",
                    "epsilon": printed.epsilon,
                    "delta": DELTA,
                    "mu": None,
                    "sound": printed.sound,
                    "classifier": classifier,
                    "mean": accuracy,
                    "std": None,
                    "seeds": None,
                    "train_seconds": None,
                }
            )
    return rows


def draw_picture(runs: Path, path: Path) -> None:
    """Draw images of the runs of seed 0 at the largest budget.

    They are three of every class, a column each; faces have a picture of their own.
    """
    lines = []
    for dataset in DATASETS:
        file = _generator_file(runs, dataset)
        if file.exists():
            images = _draw_30(file, torch.arange(30) % 10)
            lines.append(F.interpolate(images, (28, 28), mode="bilinear"))
    if lines:
        save_grid(torch.cat(lines), path, 10)
    file = _generator_file(runs, FACES)
    if file.exists():
        faces = _draw_30(file, torch.zeros(30, dtype=torch.int64))
        save_grid(faces, path.with_stem(f"{path.stem}_faces"), 10)


def _generator_file(runs: Path, dataset: str) -> Path:
    return runs / Cell(dataset, BUDGETS[0], 0).name / "generator.pt"


def _draw_30(file: Path, labels: Tensor) -> Tensor:
    """Return an image of every class in ``labels`` (30,) with seed 0."""
    torch.manual_seed(0)
    generator, _ = read_generator(file)
    return draw(generator, labels)
