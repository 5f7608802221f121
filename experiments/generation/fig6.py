"""Rakotomamonjy2021, Figure 6: CelebA faces (docs/celeba.md).

``fig6``: the default generator, without privacy and with it. The last line has the noise of the paper's 162,000
records: the private faces again and again, so that it protects no face.

``fig6_published``: the published algorithm, trained as printed. NOT PRIVATE (docs/errata.md). Generator of Table 5,
code of 32, batches of 256, 2,000 directions in the 8,192 features of a discriminator, sigma of Table 4 for N = 162,000
(0.37 by the CLT's bound, 2.392 by Bernstein's), learning rate 5e-4, 100 epochs by the count of the authors' code:
63,300 steps. From the code that the paper builds on (VinAIResearch/DSW): Adam with betas (0.5, 0.999), and a
discriminator that is trained at every step on the private images, without noise (item 7). The faces are those of
``celeba64``, with the same noise if they are fewer. A step takes seconds on a CPU core.
"""

import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from dpswd._layout import Layout
from dpswd.data import benchmark
from dpswd.errors import InputError
from dpswd.networks.generator import draw as generate
from dpswd.records import PrivateRecords, Records, Stored
from dpswd.report.render import write_report
from experiments.accounting.published import TABLE4
from experiments.generation.frechet import check_weights, fidelity
from experiments.generation.readme_picture import draw_grids, grid
from experiments.generation.table2_published import train_resumably
from experiments.generation.training import Made, train_mixture
from models.networks import FaceDiscriminator, Table5Generator
from models.published import published_loss

EPSILON, DELTA = 10.0, 1e-6
CONSTANTS = Path(__file__).with_name("celeba.yaml")
N_PAPER = 162_000
VARIANTS = (  # name, epsilon, are the faces repeated?
    ("no privacy", None, False),
    ("ours", EPSILON, False),
    ("ours, noise of N = 162,000", EPSILON, True),
)
SETTING = TABLE4[6]
SIGMAS = {"SWD": 0.0, "DP-SWD-c": TABLE4[7].sigma, "DP-SWD-b": TABLE4[6].sigma}
STEPS = {False: 30, True: SETTING.n_releases}
LEARNING_RATE, BETAS = 5e-4, (0.5, 0.999)
SHOWN = 16
N_GENERATED = 10_000


def repeated(faces: Records) -> PrivateRecords:
    """Return a handle of the private faces again and again, ``N_PAPER`` records in all.

    Releases have the noise of so many records. They protect a record, but a face is in them 40 times: NOT PRIVATE.
    """
    shape = (N_PAPER, *faces.values.shape[1:])
    stored = Stored(
        lambda index: faces.values[index % len(faces)], shape, faces.values.dtype, key="repeated"
    )
    return PrivateRecords.from_values(
        stored, None, classes=None, layout=Layout.of(faces.values), name="CelebA"
    )


def fig6(out: Path, *, data: Path | None = None, weights: Path | None = None) -> dict[str, Any]:
    """Rakotomamonjy2021, Figure 6: CelebA 64 x 64 by ours (minutes).

    The figure shows generated faces only, because those of CelebA may not be redistributed. ``weights`` of pytorch-fid
    give the FID.
    """
    if weights is not None:
        check_weights(weights)
    out.mkdir(parents=True, exist_ok=True)
    runs = Path(tempfile.mkdtemp(prefix="fig6-", dir=out))
    rows, pictures = [], []
    faces = benchmark("celeba", data, public=True)
    assert faces.test is not None
    real = faces.test.floats()
    for name, epsilon, again in VARIANTS:
        directory = runs / re.sub(r"\W+", "_", name)
        records = repeated(faces.train) if again else faces.private()
        made = train_mixture(
            records, CONSTANTS, directory, epsilon=epsilon, delta=DELTA, seed=0, residual=False
        )
        if not rows:
            some = faces.train.floats(slice(0, N_GENERATED))
            rows.append(
                _row("real training records", None, made, len(records))
                | fidelity(real, some, weights)
            )
            rows[-1] |= {"n_generated": len(some), "train_seconds": None}
        torch.manual_seed(1)
        images = generate(made.generator, torch.zeros(N_GENERATED, dtype=torch.int64))
        rows.append(_row(name, epsilon, made, len(records)) | fidelity(real, images, weights))
        pictures.append([(_line(images), name)])
        if again:
            rows[-1] |= {"sound": False}
        elif epsilon is not None:
            report = write_report(directory)
            assert report["sound"]
            assert report["guarantee"]["epsilon"] <= epsilon
        print(rows[-1], flush=True)
    draw_grids(pictures, out / "fig6.png")
    return {"rows": rows}


def _row(name: str, epsilon: float | None, made: Made, n: int) -> dict[str, Any]:
    return {
        "dataset": "CelebA",
        "method": name,
        "epsilon": epsilon,
        "delta": made.facts["delta"],
        "mu": made.facts["mu"],
        "sound": made.facts["sound"],
        "sample_size": n,
        "n_generated": N_GENERATED,
        "train_seconds": round(made.seconds),
    }


def _line(images: torch.Tensor) -> np.ndarray:
    """Return the first images (n, 3, h, w) in a line."""
    return grid(images[:SHOWN, None].movedim(2, -1).numpy())


def fig6_published(
    out: Path,
    *,
    data: Path | None = None,
    full: bool = False,
    only: str | None = None,
    weights: Path | None = None,
) -> dict[str, Any]:
    """Rakotomamonjy2021, Figure 6: the published algorithm on faces (30 steps; --full: as printed, for a GPU).

    ``only`` selects one of three rows. An interrupted run goes on from ``OUT/fig6_published/NAME.pt``.
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
        pictures.append([(_line(images), name)])
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
    draw_grids(pictures, out / "fig6_published.png")
    return {"rows": rows}


def train(
    private: Records, sigma: float, steps: int, checkpoint: Path | None
) -> tuple[Table5Generator, float]:
    """Train generator and discriminator; return the generator on the CPU and the seconds of training."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    generator, discriminator = Table5Generator().to(device), FaceDiscriminator().to(device)
    models = {"generator": generator, "discriminator": discriminator}
    optimizers = {
        name: torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, betas=BETAS)
        for name, model in models.items()
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
    seconds = train_resumably(
        work, parts, steps, [sigma, float(steps), float(len(private))], checkpoint
    )
    return generator.cpu().eval(), seconds


@torch.no_grad()
def sample(generator: Table5Generator, n: int) -> torch.Tensor:
    """Return ``n`` images (n, 3, 64, 64)."""
    return torch.cat([generator(part) for part in torch.randn(n, generator.latent_dim).split(500)])


EXPERIMENTS = (fig6, fig6_published)
