"""Rakotomamonjy2021, Table 2, GANs: DP-CGAN trained and GS-WGAN priced.

DP-CGAN (:mod:`models.dp_cgan`) is trained within epsilon = 10 by a Lightning trainer, and evaluated
by 10,000 images, where the other rows have 60,000. ``steps`` are 10,000 by default, 100 epochs of
batches of 600.

GS-WGAN (Chen et al., 2020; DingfanChen/GS-WGAN, ``source/config.py``) trains 1,000 discriminators,
each on 60 records for 2,000 iterations before the 20,000 iterations of the generator. An iteration
has five updates of a discriminator, with a gradient penalty, and one of the generator, through a
clipped and noisy gradient with respect to the images. Its networks are rebuilt here by their sizes
to measure the seconds of an iteration; it is not trained. The product with the number of iterations
is its cost.
"""

import time
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import DataLoader, TensorDataset

from dpswd import FixedSizeSampler, PrivacyBudget
from dpswd.data import benchmark
from experiments import cells
from experiments.generation.table2_published import (
    DATASETS,
    N_CLASSES,
    PRINTED,
    SETTING,
    classify,
)
from experiments.results import Result, Row
from models.dp_cgan import DPCGAN

STEPS = 10_000
EPSILON = 10.0
N_SYNTHETIC = 10_000
VERSION = 1  # of the cells

# GS-WGAN, in the code of its authors.
N_DISCRIMINATORS = 1000
PRETRAINED = 2000  # iterations of a discriminator
ITERATIONS = 20_000  # of the generator
CRITIC_STEPS = 5  # of an iteration
WGAN_BATCH = 32
PENALTY = 10.0
NOISE = 1.07
MEASURED = 5  # iterations


@dataclass(frozen=True)
class Cell(cells.Cell):
    """A training of DP-CGAN."""

    dataset: str
    seed: int
    steps: int = STEPS


def table2_gans(
    out: Path, *, data: Path | None = None, quick: bool = False, seeds: int = 3, steps: int = STEPS
) -> Result:
    """Rakotomamonjy2021, Table 2: DP-CGAN by Opacus (an hour a cell; resumes)."""
    datasets: tuple[str, ...] = DATASETS
    if quick:
        datasets = DATASETS[:1]
        seeds = 1
        steps = 5
    planned = [Cell(dataset, seed, steps) for dataset in datasets for seed in range(seeds)]
    directory = out / "table2_gans"
    work = partial(train, data=data, directory=directory / "runs")
    results = cells.run_cells(
        planned, work, directory / "cells", version=lambda cell: VERSION, workers=0
    )
    return {"rows": summarise(results)}


def summarise(results: list[Result]) -> list[Row]:
    """Average results of :func:`train` over seeds: a row per data set and classifier."""
    rows = []
    for (dataset, steps), seed_results in cells.grouped(results, _setting).items():
        for classifier in ("logreg", "mlp"):
            values = [result["accuracy"][classifier] for result in seed_results]
            row: Row = {"dataset": dataset, "method": "DP-CGAN", "steps": steps}
            row |= {name: seed_results[0][name] for name in ("epsilon", "delta", "mu", "sound")}
            row["classifier"] = classifier
            row["values"] = values
            row |= cells.averaged(values)
            row["printed"] = PRINTED[dataset]["DP-CGAN"][classifier]
            row["train_seconds"] = round(median(result["seconds"] for result in seed_results))
            rows.append(row)
    return rows


def _setting(result: Result) -> tuple[str, int]:
    """Return data set and steps of a result."""
    return result["cell"]["dataset"], result["cell"]["steps"]


def train(cell: Cell, data: Path | None, directory: Path) -> Result:
    """Train DP-CGAN within the budget; return accuracies and guarantee."""
    loaded = benchmark(cell.dataset, data)
    assert loaded.test is not None
    torch.manual_seed(cell.seed)
    module = DPCGAN()
    dataset = TensorDataset(loaded.train.floats(), loaded.train.labels)
    sampler = FixedSizeSampler(len(dataset), module.batch_size, n_steps=cell.steps)
    run = cells.new_directory(directory / cell.name)
    budget = PrivacyBudget(
        EPSILON, SETTING.delta, sample_size=len(dataset), n_releases=cell.steps, run_dir=str(run)
    )
    trainer = L.Trainer(
        max_epochs=1,
        callbacks=[budget],
        accelerator="cpu",
        default_root_dir=run,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    started = time.monotonic()
    trainer.fit(module, DataLoader(dataset, batch_sampler=sampler))
    seconds = round(time.monotonic() - started, 1)
    guarantee = budget.statement().guarantee
    labels = torch.arange(N_SYNTHETIC) % N_CLASSES
    generator = module.generator.eval()
    with torch.no_grad():
        images = generator(generator.latent(len(labels)), labels)
    return {
        "cell": asdict(cell),
        "accuracy": classify(images, labels, loaded.test),
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "mu": guarantee.mu,
        "sound": guarantee.sound,
        "seconds": seconds,
    }


# GS-WGAN ------------------------------------------------------------------------------------------


class _Block(nn.Module):
    """Residual block of the generator, which doubles the side of its maps."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Upsample(scale_factor=2),
            spectral_norm(nn.Conv2d(width, width, 3, padding=1)),
            nn.ReLU(),
            spectral_norm(nn.Conv2d(width, width, 3, padding=1)),
        )
        self.shortcut = nn.Sequential(
            nn.Upsample(scale_factor=2), spectral_norm(nn.Conv2d(width, width, 1))
        )

    def forward(self, maps: Tensor) -> Tensor:
        """Map maps (n, width, s, s) to (n, width, 2 s, 2 s)."""
        result: Tensor = self.body(maps) + self.shortcut(maps)
        return result


def wgan_generator() -> nn.Sequential:
    """Return a network of the sizes of GS-WGAN's generator, 20 to 1 x 28 x 28."""
    width = 256
    return nn.Sequential(
        spectral_norm(nn.Linear(20, 16 * width)),
        nn.Unflatten(1, (width, 4, 4)),
        nn.ReLU(),
        *(_Block(width) for _ in range(3)),
        spectral_norm(nn.Conv2d(width, 1, 5)),
        nn.Sigmoid(),
    )


def wgan_discriminator() -> nn.Sequential:
    """Return a network of the sizes of a discriminator of GS-WGAN.

    It has no classes.
    """
    widths = (1, 64, 128, 256)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [spectral_norm(nn.Conv2d(before, after, 5, stride=2, padding=2)), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), spectral_norm(nn.Linear(16 * 256, 1)))


def gs_wgan_cost(out: Path) -> Result:
    """Rakotomamonjy2021, Table 2: what a training of GS-WGAN costs (a minute)."""
    torch.manual_seed(0)
    generator = wgan_generator()
    discriminator = wgan_discriminator()
    seconds = []
    for _ in range(MEASURED):
        started = time.process_time()
        _iteration(generator, discriminator)
        seconds.append(time.process_time() - started)
    n_iterations = N_DISCRIMINATORS * PRETRAINED + ITERATIONS
    row: Row = {
        "generator_parameters": sum(parameter.numel() for parameter in generator.parameters()),
        "discriminator_parameters": sum(part.numel() for part in discriminator.parameters()),
        "discriminators": N_DISCRIMINATORS,
        "iterations": n_iterations,
        "cpu_seconds_per_iteration": round(median(seconds), 3),
        "cpu_hours": round(n_iterations * median(seconds) / 3600),
    }
    return {"rows": [row]}


def _iteration(generator: nn.Module, discriminator: nn.Module) -> None:
    """Compute the gradients of one iteration, on random images."""
    for _ in range(CRITIC_STEPS):
        real = torch.rand(WGAN_BATCH, 1, 28, 28)
        with torch.no_grad():
            generated = generator(torch.randn(WGAN_BATCH, 20))
        scores = discriminator(generated).mean() - discriminator(real).mean()
        part = torch.rand(WGAN_BATCH, 1, 1, 1)
        between = (part * real + (1 - part) * generated).requires_grad_()
        (slope,) = torch.autograd.grad(discriminator(between).sum(), between, create_graph=True)
        penalty = ((slope.flatten(1).norm(dim=1) - 1) ** 2).mean()
        _backward(scores + PENALTY * penalty, discriminator)
    generated = generator(torch.randn(WGAN_BATCH, 20))
    images = generated.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(-discriminator(images).mean(), images)
    clipped = gradient / gradient.flatten(1).norm(dim=1).clamp(min=1.0).view(-1, 1, 1, 1)
    noisy: Any = clipped + 2 * NOISE / WGAN_BATCH * torch.randn_like(clipped)
    _backward((generated * noisy).sum(), generator)


def _backward(loss: Tensor, network: nn.Module) -> None:
    """Compute the gradients of a network anew."""
    network.zero_grad(set_to_none=True)
    loss.backward()


EXPERIMENTS = (table2_gans, gs_wgan_cost)
