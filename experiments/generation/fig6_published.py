"""Rakotomamonjy2021, Figure 6: the published algorithm on CelebA. NOT PRIVATE.

docs/errata.md says why. Generator of Table 5, code of 32, batches of 256, 2,000 directions in the
8,192 features of a discriminator, sigma of Table 4 for N = 162,000 (0.37 by the CLT's bound, 2.392
by Bernstein's), learning rate 5e-4, 100 epochs by the count of the authors' code: 63,300 steps.

The rows are configs of ``configs/paper``, which ``dpswd fit`` trains (:mod:`models.faces`). The
faces are those of ``celeba64``, with the same noise if they are fewer. A step takes seconds on a
CPU core.
"""

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpswd._files import verified_archive
from dpswd.data import benchmark
from dpswd.errors import InputError
from experiments.accounting.published import table4_row
from experiments.commands import fit
from experiments.generation.frechet import fidelity
from experiments.generation.pictures import Picture, draw_grids, line_of
from experiments.results import ROOT, Result, Row
from models.faces import PublishedFaceGenerator
from models.networks import Table5Generator

SETTING = table4_row("CelebA (b)")
SIGMAS = {
    "SWD": 0.0,
    "DP-SWD-c": table4_row("CelebA (c)").sigma,
    "DP-SWD-b": SETTING.sigma,
}
EPSILON = 10.0  # that the paper claims
SHORT_STEPS = 30
N_GENERATED = 10_000
N_GENERATED_SHORT = 100
AT_ONCE = 500  # images that are generated at a time


CONFIGS = ROOT / "configs" / "paper"
CONFIG_NAMES = {"SWD": "swd", "DP-SWD-c": "dp_swd_c", "DP-SWD-b": "dp_swd_b"}


def fig6_published(
    out: Path,
    *,
    data: Path | None = None,
    full: bool = False,
    only: str | None = None,
    weights: Path | None = None,
) -> Result:
    """Rakotomamonjy2021, Figure 6: the published algorithm (--full: for a GPU).

    ``full`` trains as printed, ``only`` selects one of three rows. An interrupted run goes on from
    its checkpoint in ``OUT/fig6_published/NAME``.
    """
    names = list(SIGMAS)
    if only is not None:
        names = [only]
    if only not in (None, *SIGMAS):
        raise InputError(f"Expected --only as one of {', '.join(SIGMAS)}, got {only!r}.")
    faces = benchmark("celeba", data, public=True)
    assert faces.test is not None
    real = faces.test.floats()
    n_private = min(len(faces.train), SETTING.sample_size)
    rows: list[Row] = []
    pictures = []
    for name in names:
        images, row = _run(name, out / "fig6_published", data, full=full)
        pictures.append([Picture(line_of(images), name)])
        fidelities = fidelity(real, images, weights)
        rows.append({"dataset": faces.name, "sample_size": n_private, **row, **fidelities})
        print(rows[-1], flush=True)
    draw_grids(pictures, out / "fig6_published.png")
    return {"rows": rows}


def _run(name: str, directory: Path, data: Path | None, *, full: bool) -> tuple[Tensor, Row]:
    """Train one row; return generated images and its settings."""
    steps = SHORT_STEPS
    n_generated = N_GENERATED_SHORT
    run_directory = directory / f"{name}-short"
    if full:
        steps = SETTING.n_releases
        n_generated = N_GENERATED
        run_directory = directory / name
    started = time.monotonic()
    generator = train(name, steps, run_directory, data)
    seconds = time.monotonic() - started
    torch.manual_seed(0)
    images = sample(generator, n_generated)
    epsilon = None
    sound = None
    if SIGMAS[name]:
        epsilon = EPSILON
        sound = False
    row: Row = {
        "method": f"{name}, as printed",
        "epsilon": epsilon,
        "delta": SETTING.delta,
        "mu": None,
        "sound": sound,
        "sigma": SIGMAS[name],
        "steps": steps,
        "n_generated": n_generated,
        "train_seconds": round(seconds),
    }
    return images, row


def train(name: str, steps: int, directory: Path, data: Path | None) -> Table5Generator:
    """Run ``dpswd fit`` on the config of a row; return the generator.

    An interrupted run goes on.

    Raises:
        DpswdError: If the command ends with an error, which it has printed.
    """
    checkpoint = directory / "checkpoints" / "last.ckpt"
    options: dict[str, Any] = {
        "config": CONFIGS / f"{CONFIG_NAMES[name]}_celeba.yaml",
        "trainer.default_root_dir": directory,
        "trainer.max_steps": steps,
        "trainer.accelerator": "auto",
        "trainer.enable_progress_bar": "false",
        "trainer.logger": "false",
    }
    if data is not None:
        options["data.root"] = data
    if checkpoint.exists():
        options["ckpt_path"] = checkpoint
    fit(options)
    state = torch.load(verified_archive(checkpoint), map_location="cpu", weights_only=False)
    module = PublishedFaceGenerator()
    module.load_state_dict(state["state_dict"])
    return module.generator.eval()


@torch.no_grad()
def sample(generator: Table5Generator, n: int) -> Tensor:
    """Return ``n`` images (n, 3, 64, 64)."""
    codes = torch.randn(n, generator.latent_dim)
    return torch.cat([generator(part) for part in codes.split(AT_ONCE)])


EXPERIMENTS = (fig6_published,)
