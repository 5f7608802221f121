"""Rakotomamonjy2021, Figure 6: the published algorithm on CelebA. NOT PRIVATE.

docs/errata.md says why. Generator of Table 5, code of 32, batches of 256, 2,000 directions in the
8,192 features of a discriminator, sigma of Table 4 for N = 162,000 (0.37 by the CLT's bound, 2.392
by Bernstein's), learning rate 5e-4, 100 epochs by the count of the authors' code: 63,300 steps.

From the code that the paper builds on (VinAIResearch/DSW): Adam with betas (0.5, 0.999), and a
discriminator that is trained at every step on the private images, without noise (item 7). The faces
are those of ``celeba64``, with the same noise if they are fewer. A step takes seconds on a CPU
core.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpswd.data import benchmark
from dpswd.errors import InputError
from dpswd.records import Records
from experiments.accounting.published import table4_row
from experiments.generation.checkpoints import train_resumably
from experiments.generation.frechet import fidelity
from experiments.generation.pictures import Picture, draw_grids, line_of
from experiments.results import Result, Row
from models.networks import FaceDiscriminator, Table5Generator
from models.published import published_loss

SETTING = table4_row("CelebA (b)")
SIGMAS = {
    "SWD": 0.0,
    "DP-SWD-c": table4_row("CelebA (c)").sigma,
    "DP-SWD-b": SETTING.sigma,
}
EPSILON = 10.0  # that the paper claims
LEARNING_RATE = 5e-4
BETAS = (0.5, 0.999)
SHORT_STEPS = 30
N_GENERATED = 10_000
N_GENERATED_SHORT = 100
AT_ONCE = 500  # images that are generated at a time


@dataclass(frozen=True)
class Trained:
    """A trained generator on the CPU, and the seconds of training."""

    generator: Table5Generator
    seconds: float


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
    ``OUT/fig6_published/NAME.pt``.
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
    private = faces.train.select(torch.arange(n_private))
    rows: list[Row] = []
    pictures = []
    for name in names:
        images, row = _run(name, private, out / "fig6_published", full=full)
        pictures.append([Picture(line_of(images), name)])
        fidelities = fidelity(real, images, weights)
        rows.append({"dataset": faces.name, **row, **fidelities})
        print(rows[-1], flush=True)
    draw_grids(pictures, out / "fig6_published.png")
    return {"rows": rows}


def _run(name: str, private: Records, directory: Path, *, full: bool) -> tuple[Tensor, Row]:
    """Train one row; return generated images and its settings."""
    steps = SHORT_STEPS
    n_generated = N_GENERATED_SHORT
    checkpoint = directory / f"{name}-short.pt"
    if full:
        steps = SETTING.n_releases
        n_generated = N_GENERATED
        checkpoint = directory / f"{name}.pt"
    torch.manual_seed(0)
    trained = train(private, SIGMAS[name], steps, checkpoint)
    images = sample(trained.generator, n_generated)
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
        "sample_size": len(private),
        "steps": steps,
        "n_generated": n_generated,
        "train_seconds": round(trained.seconds),
    }
    return images, row


def train(private: Records, sigma: float, steps: int, checkpoint: Path | None) -> Trained:
    """Train generator and discriminator from torch's random state."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda")
    generator = Table5Generator().to(device)
    discriminator = FaceDiscriminator().to(device)
    generator_optimizer = _optimiser(generator)
    discriminator_optimizer = _optimiser(discriminator)
    batch_size = min(SETTING.batch_size, len(private))

    def work(step: int) -> float:
        index = torch.randperm(len(private))[:batch_size]
        real = private.floats(index).to(device)
        fake = generator(torch.randn(batch_size, generator.latent_dim, device=device))
        discriminator_optimizer.zero_grad()
        _discrimination(discriminator, real, fake.detach()).backward()
        discriminator_optimizer.step()
        with torch.no_grad():
            target = discriminator.features(real)
        loss = published_loss(discriminator.features(fake), target, sigma, SETTING.n_projections)
        generator_optimizer.zero_grad()
        loss.backward()
        generator_optimizer.step()
        return loss.item()

    parts = {
        "generator": generator,
        "discriminator": discriminator,
        "generator optimizer": generator_optimizer,
        "discriminator optimizer": discriminator_optimizer,
    }
    setting = [sigma, float(steps), float(len(private))]
    seconds = train_resumably(work, parts, steps, setting, checkpoint)
    return Trained(generator.cpu().eval(), seconds)


def _optimiser(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(network.parameters(), lr=LEARNING_RATE, betas=BETAS)


def _discrimination(discriminator: nn.Module, real: Tensor, fake: Tensor) -> Tensor:
    """Return the cross-entropy of telling real images from generated ones."""
    of_real = discriminator(real)
    of_fake = discriminator(fake)
    truth = torch.cat([torch.ones_like(of_real), torch.zeros_like(of_fake)])
    return F.binary_cross_entropy_with_logits(torch.cat([of_real, of_fake]), truth)


@torch.no_grad()
def sample(generator: Table5Generator, n: int) -> Tensor:
    """Return ``n`` images (n, 3, 64, 64)."""
    codes = torch.randn(n, generator.latent_dim)
    return torch.cat([generator(part) for part in codes.split(AT_ONCE)])


EXPERIMENTS = (fig6_published,)
