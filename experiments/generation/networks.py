"""Networks trained from scratch on a sketch of the records: accuracy of classifiers trained on their images.

A cell makes all releases within its budget (``OUT/networks/runs/NAME``: ledger, privacy.json, report, samples.png, the
sketch and the generator), trains the network of the shipped config in plain torch, and trains classifiers on 60,000
generated images, which are tested on the real test images. ``OUT/networks/cells`` has the finished cells. Controls, one
seed each: the start of the network without training, the normal law of the sketch; training from random weights; and a
sketch with a second feature map, random convolutions, whose means are released in the same budget.
"""

import hashlib
import json
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
from dpswd.lightning.module import one_cycle
from dpswd.networks.generator import Generator, draw, seeded
from dpswd.networks.image_generators import ShuffleGenerator
from dpswd.report.render import write_report
from dpswd.sketch import Sketch, plan_sketch
from experiments import cells
from experiments.generation.frechet import fidelity
from experiments.generation.training import CONFIGS, DELTA, accuracies

DATASETS = {"MNIST": "mnist", "FashionMNIST": "fashion", "USPS": "usps"}
FACES = "CelebA"  # has no classes: distances in place of accuracies
CONFIG_OF = {
    "MNIST": "mnist_swd",
    "FashionMNIST": "fashion_swd",
    "USPS": "mnist_swd",
    FACES: "celeba_swd",
}
BUDGETS = (10.0, 1.0, 0.2)
N_SYNTHETIC, N_FACES = 60_000, 10_000
SEEDS = 3
LONGER = (2_000, 6_000)  # steps of training from random weights
METHODS = {
    "sketch": "DP-SWD, sketch",
    "random": "DP-SWD, sketch, from random weights",
    "start": "normal law of the sketch, no training",
    "maps": "DP-SWD, sketch of two feature maps",
}
PRINTED = {  # Rakotomamonjy2021, Table 2: logistic regression, MLP
    ("MNIST", "DP-SWD, printed, unsound σ", 10.0): (78, 77),
    ("MNIST", "SWD, printed", None): (82, 87),
    ("FashionMNIST", "DP-SWD, printed, unsound σ", 10.0): (66, 67),
    ("FashionMNIST", "SWD, printed", None): (76, 77),
}


class Convolutions(FeatureMap):
    """Two random convolutions of stride 2 with ReLU, fixed and public; 1,568 features of an image of 28 x 28."""

    def __init__(self, sample_shape: tuple[int, ...], radius: float = 4.0) -> None:
        super().__init__(sample_shape, centre=0.5, radius=radius)
        with seeded(0):
            layers = [
                nn.Conv2d(n, m, 5, stride=2, padding=2)
                for n, m in ((sample_shape[0], 16), (16, 32))
            ]
        self.body = nn.Sequential(
            layers[0], nn.ReLU(), layers[1], nn.ReLU(), nn.Flatten()
        ).requires_grad_(False)
        self.dim = self.body(torch.zeros(1, *sample_shape)).shape[1]

    def transform(self, centred: Tensor) -> Tensor:
        """Map centred images (n, channels, h, w) to features (n, dim)."""
        return self.body(centred)


@dataclass(frozen=True)
class Cell(cells.Cell):
    """One release, one training run, one evaluation."""

    dataset: str
    epsilon: float
    seed: int
    method: str = "sketch"
    steps: int | None = None  # those of the config if not given


def settings(dataset: str) -> dict[str, Any]:
    """Return steps, batch and learning rate of the shipped config, and the options of its network."""
    config = yaml.safe_load((CONFIGS / f"{CONFIG_OF[dataset]}.yaml").read_text())
    options = config["model"]["init_args"]
    network = dict(options["generator"]["init_args"])
    if dataset == "USPS":  # nothing is tuned there: jitter in proportion to the side of the image
        pixels = {
            name: round(network["jitter"][name] * 16 / 28, 2) for name in ("shift", "elastic")
        }
        network |= {"sample_shape": (1, 16, 16), "jitter": network["jitter"] | pixels}
    return {
        "steps": config["trainer"]["max_steps"],
        "batch": options["batch_size"],
        "lr": options["lr"],
        "network": network,
    }


def version(cell: Cell) -> str:
    """Return a digest of the settings: a cell is run again when they change."""
    return hashlib.sha256(json.dumps(settings(cell.dataset), sort_keys=True).encode()).hexdigest()[
        :16
    ]


def train(generator: Generator, sketch: Sketch, *, steps: int, batch: int, lr: float) -> None:
    """Train as :class:`dpswd.lightning.module.SketchModule` does."""
    labels = torch.arange(batch) % max(1, generator.n_classes)
    optimiser = torch.optim.Adam(generator.parameters(), lr=lr, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, partial(one_cycle, n_steps=steps))
    for _ in range(steps):
        loss = sketch.loss(
            generator(generator.latent(batch), labels), labels if generator.n_classes else None
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()


def run_cell(cell: Cell, directory: Path, data: Path | None) -> dict[str, Any]:
    """Release, train and evaluate."""
    directory = cells.new_directory(directory / cell.name)
    found = benchmark((DATASETS | {FACES: "celeba"})[cell.dataset], data, public=True)
    torch.manual_seed(cell.seed)
    chosen, records = settings(cell.dataset), found.private()
    classes = records.n_classes or 0
    size, pooled = plan_sketch(
        len(records), classes, mu_of_epsilon(cell.epsilon, DELTA), records.shape
    )
    generator = ShuffleGenerator(**{"size": size} | chosen.pop("network"))
    chosen["steps"] = 0 if cell.method == "start" else cell.steps or chosen["steps"]
    started, used = time.monotonic(), _cpu_seconds()
    maps: list[FeatureMap] = [generator.features]
    maps += [Convolutions(records.shape)] if cell.method == "maps" else []
    sketch = Sketch(maps, classes, moments=[each is maps[0] for each in maps], pooled=pooled)
    facts = sketch.release(
        records, target_epsilon=cell.epsilon, target_delta=DELTA, run_dir=directory
    )
    if cell.method != "random":
        generator.start_at(*sketch.normal())
    if cell.method != "start":
        train(generator, sketch, **chosen)
    generator.eval()
    seconds, cpu = time.monotonic() - started, _cpu_seconds() - used
    sketch.save(directory / "sketch.pt")
    write_generator(generator, directory / "generator.pt", sketch.guarantee)
    save_samples(generator, directory / "samples.png")
    report = write_report(directory)
    if not report["sound"] or report["guarantee"]["epsilon"] > cell.epsilon:
        raise RuntimeError(
            f"Expected a sound run within epsilon={cell.epsilon}, got {report['guarantee']}."
        )
    return {
        **{
            "dataset": cell.dataset,
            "epsilon": cell.epsilon,
            "seed": cell.seed,
            "method": cell.method,
        },
        **{name: facts[name] for name in ("sound", "mu", "delta")},
        "steps": chosen["steps"],
        "n_frequencies": generator.size,
        "pooled": pooled,
        **_evaluated(generator, found),
        "train_seconds": round(seconds, 1),
        "cpu_seconds": round(cpu, 1),
    }


def _evaluated(generator: Generator, found: Benchmark) -> dict[str, Any]:
    """Return accuracies on the test images, or distances from them where there are no classes."""
    assert found.test is not None
    real = found.test.floats()
    if not generator.n_classes:
        return fidelity(real, draw(generator, torch.zeros(N_FACES, dtype=torch.int64)))
    labels = torch.arange(N_SYNTHETIC) % generator.n_classes
    return {"accuracy": accuracies(IMAGE_CLASSIFIERS, draw(generator, labels), labels, found)}


def _cpu_seconds() -> float:
    found = resource.getrusage(resource.RUSAGE_SELF)
    return found.ru_utime + found.ru_stime


def summarise(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Average cells over seeds: a row for each data set, method, budget and classifier; then the paper's."""
    groups = cells.grouped(
        results,
        lambda result: tuple(result[key] for key in ("dataset", "method", "epsilon", "steps")),
    )
    rows = []
    for (dataset, method, epsilon, _), same in groups.items():
        row = {
            "dataset": dataset,
            "method": METHODS[method],
            "statistic": "moments",
            "epsilon": epsilon,
        }
        row |= {
            name: same[0][name]
            for name in ("delta", "mu", "sound", "steps", "n_frequencies", "pooled")
        }
        row |= {
            key: round(mean(each[key] for each in same)) for key in ("train_seconds", "cpu_seconds")
        }
        rows += cells.by_classifier(same, row)
    for (dataset, method, budget), printed in PRINTED.items():
        for classifier, value in zip(("logreg", "mlp"), printed, strict=True):
            row = {
                "dataset": dataset,
                "method": method,
                "statistic": "rows",
                "epsilon": budget,
                "delta": DELTA,
            }
            row |= {
                "mu": None,
                "sound": False,
                "classifier": classifier,
                "mean": value,
                "std": None,
                "seeds": None,
            }
            rows.append(row | {"train_seconds": None})
    place = {name: i for i, name in enumerate(DATASETS)}
    printed = [method for _, method, _ in PRINTED]
    return sorted(
        rows,
        key=lambda row: (place[row["dataset"]], row["method"] in printed, -(row["epsilon"] or 0)),
    )


def draw_picture(runs: Path, path: Path) -> None:
    """Draw three images of every class, a column each, for each run of seed 0 at the largest budget; and faces."""
    made = {}
    for dataset in (*DATASETS, FACES):
        if (file := runs / Cell(dataset, BUDGETS[0], 0).name / "generator.pt").exists():
            torch.manual_seed(0)
            images = draw(
                read_generator(file)[0], torch.arange(30) % (1 if dataset == FACES else 10)
            )
            made[dataset] = (
                images if dataset == FACES else F.interpolate(images, (28, 28), mode="bilinear")
            )
    if FACES in made:
        save_grid(made.pop(FACES), path.with_stem(f"{path.stem}_faces"), 10)
    if made:
        save_grid(torch.cat(list(made.values())), path, 10)


def plan() -> list[Cell]:
    """List the cells, one seed after the other, then the controls, then faces."""
    sketches = [
        Cell(dataset, epsilon, seed)
        for seed in range(SEEDS)
        for epsilon in BUDGETS
        for dataset in DATASETS
    ]
    variants = [
        ("start", None),
        ("random", None),
        *(("random", steps) for steps in LONGER),
        ("maps", None),
    ]
    both = ("MNIST", "FashionMNIST")
    controls = [
        Cell(dataset, BUDGETS[0], 0, method, steps)
        for method, steps in variants
        for dataset in both
    ]
    return [*sketches, *controls, Cell(FACES, BUDGETS[0], 0)]


def run(out: Path, *, quick: bool = False, data: Path | None = None) -> dict[str, Any]:
    """Networks trained on a sketch: downstream accuracy (minutes of a core for each cell; resumes)."""
    planned = [Cell("MNIST", 10.0, 0, steps=20)] if quick else plan()
    work = partial(run_cell, directory=out / "networks" / "runs", data=data)
    found = cells.run_cells(planned, work, out / "networks" / "cells", version=version, workers=0)
    draw_picture(out / "networks" / "runs", out / "networks.png")
    faces = [each | {"method": METHODS[each["method"]]} for each in found if "frechet" in each]
    return {"rows": summarise([each for each in found if "accuracy" in each]), "faces": faces}
