"""Rakotomamonjy2021, Figure 6: faces by the published algorithm, trained as printed. NOT PRIVATE (docs/errata.md).

As printed: generator of Table 5, code of 32, batches of 256, 2,000 directions in the 8,192 features of a discriminator,
sigma of Table 4 for N = 162,000 (0.37 by the CLT's bound, 2.392 by Bernstein's), Adam with a learning rate of 5e-4,
100 epochs by the count of the authors' code: 63,300 steps. From the code that the paper builds on (VinAIResearch/DSW):
Adam with betas (0.5, 0.999), and a discriminator that is trained at every step on the private images, without noise
(item 7).

The full CelebA (torchvision's layout) is used where it is found, else the faces of ``celeba64``, with the same noise.
A step takes seconds on a CPU core: use a GPU for ``--full``.
"""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from dpswd.data import benchmark
from dpswd.errors import InputError
from dpswd.generators import to_bytes
from dpswd.records import Records
from experiments.accounting.published import TABLE4
from experiments.generation.fig6 import N_GENERATED, SHOWN, draw
from experiments.generation.frechet import fidelity
from experiments.generation.table2_published import train_resumably
from models.networks import FaceDiscriminator, Table5Generator
from models.published import published_loss

HELP = "Rakotomamonjy2021, Figure 6: the published algorithm on faces (30 steps; --full: as printed, for a GPU)"

SETTING = TABLE4[6]
SIGMAS = {"SWD": 0.0, "DP-SWD-c": TABLE4[7].sigma, "DP-SWD-b": TABLE4[6].sigma}
STEPS = {False: 30, True: SETTING.n_releases}
LEARNING_RATE, BETAS = 5e-4, (0.5, 0.999)


def run(
    out: Path, *, data: Path | None = None, full: bool = False, only: str | None = None, weights: Path | None = None
) -> dict[str, Any]:
    """Train the three rows, or one with ``only``; draw ``fig6_published.png``; measure generated faces.

    A run that was interrupted goes on from ``OUT/fig6_published/NAME.pt``.
    """
    if only is not None and only not in SIGMAS:
        raise InputError(f"Expected --only as one of {', '.join(SIGMAS)}, got {only!r}.")
    faces = benchmark("celeba", data, public=True)
    assert faces.test is not None
    private = faces.train.select(torch.arange(min(len(faces.train), SETTING.sample_size)))
    (out / "fig6_published").mkdir(parents=True, exist_ok=True)
    rows, pictures = [], []
    for name in [only] if only else SIGMAS:
        torch.manual_seed(0)
        path = out / "fig6_published" / f"{name}{'' if full else '-short'}.pt"
        generator, seconds = train(private, SIGMAS[name], STEPS[full], path)
        images = sample(generator, N_GENERATED if full else 100)
        pictures.append((name, to_bytes(images[:SHOWN])))
        rows.append(
            {
                "dataset": faces.name,
                "method": f"{name}, as printed",
                "epsilon": 10.0 if SIGMAS[name] else None,
                "delta": SETTING.delta,
                "mu": None,
                "sound": False if SIGMAS[name] else None,
                "sigma": SIGMAS[name],
                "sample_size": len(private),
                "steps": STEPS[full],
                "n_generated": len(images),
                **fidelity(faces.test.floats(), images, weights),
                "train_seconds": round(seconds),
            }
        )
        print(rows[-1], flush=True)
    draw(pictures, out / "fig6_published.png")
    return {"rows": rows}


def train(private: Records, sigma: float, steps: int, checkpoint: Path | None) -> tuple[Table5Generator, float]:
    """Train generator and discriminator; return the generator on the CPU and the seconds of training."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    generator, discriminator = Table5Generator().to(device), FaceDiscriminator().to(device)
    models = {"generator": generator, "discriminator": discriminator}
    optimizers = {
        name: torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, betas=BETAS) for name, model in models.items()
    }
    batch = min(SETTING.batch_size, len(private))

    def work(step: int) -> float:
        real = private.floats(torch.randperm(len(private))[:batch]).to(device)
        fake = generator(torch.randn(batch, generator.latent_dim, device=device))
        told = [discriminator(side) for side in (real, fake.detach())]
        goals = [torch.ones_like(told[0]), torch.zeros_like(told[1])]
        optimizers["discriminator"].zero_grad()
        F.binary_cross_entropy_with_logits(torch.cat(told), torch.cat(goals)).backward()
        optimizers["discriminator"].step()
        with torch.no_grad():
            target = discriminator.features(real)
        loss = published_loss(discriminator.features(fake), target, sigma, SETTING.n_projections)
        optimizers["generator"].zero_grad()
        loss.backward()
        optimizers["generator"].step()
        return loss.item()

    parts = models | {f"{name} optimizer": optimizer for name, optimizer in optimizers.items()}
    seconds = train_resumably(work, parts, steps, [sigma, float(steps), float(len(private))], checkpoint)
    return generator.cpu().eval(), seconds


@torch.no_grad()
def sample(generator: Table5Generator, n: int) -> torch.Tensor:
    """Return ``n`` images (n, 3, 64, 64)."""
    return torch.cat([generator(part) for part in torch.randn(n, generator.latent_dim).split(500)])
